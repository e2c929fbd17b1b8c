"""What is on somebody's disk since commit c6a6f82 is read, reported and continued as if it had been written today."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch

from bench.config.schema import run_id
from bench.execution import worker as workers
from bench.execution.job import Job
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.results.artifacts import Folder
from bench.results.json_files import Damaged
from bench.results.schema import check_grid
from bench.results.store import Store
from bench.simulation.retention import StateRetention
from tests.support.processes import call_bench

FIXTURE = Path(__file__).with_name("store_c6a6f82")  # its README says how it was written
INTERRUPTED = FIXTURE / "interrupted.yaml"
RENAMED = {
    "like_best": "not_significant",
    r"like\_best": r"not\_significant",
    r"10\textasciicircum{}6": "$10^{6}$",
    # What all cells share is said since then.
    "; budget paper": "; mlp, 20 clients, 10 rounds (fedconcat 15, fedconcat-id 15), 5 local epochs; budget paper",
    "not distinguishable from the best of the row, by the two-sided paired t-test over the same 3 seeds at level 0.05 with "
    "Holm's correction for the rivals of the row; that the best was found on the same seeds is not corrected for, so that more "
    "than ": (
        "not significantly different from the best of the row (two-sided paired t-test over the same 3 seeds, level 0.05, "
        "Holm's correction within the row). The best was chosen on these seeds, so equal methods differ in more than "
    ),
    " of the rows of equals show a difference. Of so few seeds its power is low: italics say unknown, not equal.": (
        " of the rows. With 3 seeds the test often finds nothing. Italics do not mean equal."
    ),
}  # words in reports: then -> now
TIMES = ("seconds", "examples_per_second")


@pytest.fixture
def results(tmp_path) -> Path:
    """A copy of the store."""
    return Path(shutil.copytree(FIXTURE / "results", tmp_path / "results"))


def test_every_file_is_read_and_none_is_called_damaged(results):
    store = Store(results)
    store.validate_all()
    assert store.damaged == {}
    records = store.records()
    assert [record["status"] for record in records.values()] == ["done"] * 24
    for run, record in records.items():
        assert len(store.rows(run)) == record["rounds"]
        assert record["caveats"] == [] and "diagnostics" in record, "by the names of today"
    assert store.damaged == {}


@pytest.mark.parametrize(
    ("grid", "only", "count"),
    [("quickstart", "label-2", 24), (str(INTERRUPTED), "label-2", 2)],
    ids=["done", "interrupted"],
)
def test_runs_have_the_ids_that_they_had(results, grid, only, count):
    grid = load_grid(grid)
    cells = [cell for cell in expand(grid, "paper") if cell.setting("partition") == only]
    stored = {cell["run"]: cell["config"] for cell in Store(results).grid(f"{grid.name}@paper")["cells"]}
    assert {cell.id: cell.config.canonical() for cell in cells} == stored and len(stored) == count
    assert all(run_id(cell.config) == cell.id for cell in cells)
    for run, config in stored.items():
        assert json.loads((results / "runs" / run / "config.json").read_text()) == config


def test_reports_have_the_same_numbers_and_sentences_but_for_renamed_words(results, tmp_path):
    code, text = call_bench(
        "report", "--grid", "quickstart", "--results-dir", results, "--to", tmp_path, "--format", "md,tex,csv"
    )
    assert code == 0 and "amaged" not in text, text
    for then in (results / "reports").iterdir():
        expected = then.read_text()
        for word, now in RENAMED.items():
            expected = expected.replace(word, now)
        now = (tmp_path / then.name).read_text()
        if then.suffix == ".csv":  # of ids; tables have names since then, and p-values a seventh digit
            assert re.sub(r"0\.\d{7,}", lambda found: str(round(float(found[0]), 6)), now) == expected
        # Sentences have names of methods and datasets since then, which differ from ids in case alone.
        assert numbers_and_sentences(now.casefold()) == numbers_and_sentences(expected.casefold())
        assert then.suffix == ".csv" or len(numbers_and_sentences(now)) > 8


def numbers_and_sentences(table: str) -> list[str]:
    """Cells with their marks, and footnotes, of a table in Markdown or LaTeX."""
    cell, sentence = r"(?:\*\*|_|\\text..{)?\d+\.\d(?:±|\$\\pm\$)\d+\.\d(?:\*\*|_|})?", r"^- .*$|^.*\\par$"
    return re.findall(f"{cell}|{sentence}", table, re.MULTILINE)


def measured(rows: list[dict]) -> list[dict]:
    """What a run has measured that is not a time."""
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def assert_same(found: list[dict], stored: list[dict], machine: dict) -> None:
    """Rounds with equal numbers: to the bit where torch uses the same kernels. Elsewhere training lets differences of rounding
    grow, to a fifth of the loss in five rounds: there only the first round has nearly equal accuracy and loss."""
    same_kernels = machine == this_machine()
    assert [row.keys() for row in found] == [row.keys() for row in stored]
    for count, (row, then) in enumerate(zip(found, stored, strict=True)):
        if same_kernels:
            assert row == then
        elif count == 0:
            assert row == {key: pytest.approx(value, rel=1e-3, abs=2 / 360) for key, value in then.items()}
        else:
            exact = {key for key in then if key not in ("accuracy", "loss")}
            assert {key: row[key] for key in exact} == {key: then[key] for key in exact}
            assert math.isfinite(row["loss"])


def this_machine() -> dict[str, str]:
    """What decides which kernels torch uses."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    vendor = next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
    return {"vendor": vendor, "capability": torch.backends.cpu.get_cpu_capability(), "torch": str(torch.__version__)}


@pytest.mark.slow
def test_interrupted_runs_are_continued_by_the_same_command_and_end_as_if_nothing_had_been(results, ray_session):
    """Code that the runs use has changed since, so they start over, and say so."""
    expected = json.loads((FIXTURE / "uninterrupted.json").read_text())
    before = {run: read_rows(results, run) for run in expected["rounds"]}
    assert all(0 < len(rows) < 12 for rows in before.values())
    same = ("--grid", INTERRUPTED, "--results-dir", results, "--keep-state", "none", "--checkpoint-seconds", 0)
    code, text = call_bench("run", *same)
    assert code == 0 and "0 finished, 2 to run" in text and "amaged" not in text, text
    assert text.count("starts over: its checkpoint was written with code ") == 2, text
    for run, rows in expected["rounds"].items():
        found = measured(Store(results).rows(run))
        assert_same(found, rows, expected["machine"])
        assert_same(found[: len(before[run])], measured(before[run]), expected["machine"])
        assert Store(results).record(run)["status"] == "done"
        assert not (results / "runs" / run / "checkpoint").exists()


@pytest.mark.slow
def test_a_checkpoint_of_that_time_is_continued_where_the_code_of_the_run_is_the_same(results, monkeypatch):
    """As if no file that the run imports had changed since."""
    expected = json.loads((FIXTURE / "uninterrupted.json").read_text())
    (cell,) = (cell for cell in expand(load_grid(str(INTERRUPTED)), "paper") if cell.setting("algorithm") == "fedavg")
    folder = results / "runs" / cell.id
    key = torch.load(folder / "checkpoint" / "checkpoint.pt", weights_only=True)["of"]
    monkeypatch.setattr(
        workers, "_checkpoint_key", lambda *about: {name: key[name] for name in key if name != "format"}
    )
    job = Job(cell.id, cell.config, str(folder), StateRetention(final="none"), engine="vectorised")
    worker = workers.Worker(job, None, "cpu")
    reports = [worker.step()]
    while not reports[-1].result:
        reports.append(worker.step())
    assert reports[0].note == "continues after round 5" and reports[-1].result["status"] == "done"
    rows = [row for report in reports for row in report.rows]
    assert_same(measured(rows), expected["rounds"][cell.id], expected["machine"])


def read_rows(results: Path, run: str) -> list[dict]:
    """Rounds of a run that has not ended."""
    return [json.loads(line) for line in (results / "runs" / run / "rounds.jsonl").read_text().splitlines()]


def test_costs_of_a_state_are_found_under_their_earlier_name_and_what_a_method_calls_so_stays(tmp_path):
    costs = {"bytes_down": 1, "bytes_up": 2, "examples": 3}
    own = {"round": 2, "costs": costs, "spent": {"epsilon": 0.5}, "server": {"spent": 0.5}}
    folder = Folder(tmp_path)
    folder.save("then.pt", {"round": 2, "spent": costs, "models": {"0": {"round": 2, "spent": costs}}})
    folder.save("own.pt", own)
    now = {"round": 2, "costs": costs}
    assert folder.load("then.pt", torch.device("cpu")) == now | {"models": {"0": now}}
    assert folder.load("own.pt", torch.device("cpu")) == own


def test_a_grid_with_a_key_under_both_names_is_damaged(tmp_path):
    grid = json.loads((FIXTURE / "results" / "grids" / "quickstart@paper.json").read_text())
    grid.pop("sha256", None)
    content = json.dumps(grid | {"reproduces": None}).encode()
    with pytest.raises(Damaged, match="it has both mirrors and reproduces"):
        check_grid(tmp_path / "quickstart@paper.json", content)
