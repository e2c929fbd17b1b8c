"""A file that is damaged, strange or hostile costs what it held, and nothing else; it is named, and leads nowhere."""

import itertools
import json
import os
import pickle
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml

from bench.execution import scheduler
from bench.results.json_files import SEAL, read_bytes, seal
from bench.results.run_files import RUN_FILES
from bench.results.store import Store
from bench.simulation.retention import FINAL
from bench.tuning.study import Study
from tests.support.alone import run_jobs_alone
from tests.support.processes import call_bench
from tests.support.searching import finish, make
from tests.support.stores import LABEL, cells, results

GRID = {
    "axes": {
        "dataset": ["digits"],
        "partition": ["dir-0.5"],
        "algorithm": ["fedavg"],
        "wrapper": ["none", "ccvr"],
        "seed": [0, 1],
    },
    "settings": {
        **{"model": "mlp", "clients": 4, "rounds": 2, "local_epochs": 1, "batch_size": 64},
        **{"train_examples": 300, "test_examples": 200, "virtual_per_class": 5, "evaluate_every": None},
    },
    "report": {
        "rows": ["partition", "algorithm"],
        "columns": "wrapper",
        "figures": [{"kind": "embedding", "points": 20}],
    },
}
LEFT_OUT = "1"  # the seed whose calibration is not trained yet, so that the state of its base is needed


class Command:
    """Commands of the program in this process, without Ray.

    Attributes:
        trained: ids of the runs that the last one has trained.
    """

    def __init__(self, folder: Path, monkeypatch):
        self.folder, self.trained = folder, []
        monkeypatch.setattr("reports.figures.lines.FORMATS", ("svg",))
        monkeypatch.setattr(scheduler, "run_jobs", self._train)

    def __call__(self, *words: object) -> tuple[int, str]:
        """Exit code and output."""
        self.trained = []
        code, text = call_bench(*words, "--results-dir", self.folder)
        assert not re.search(r"Traceback|\b(dict|NoneType|KeyError|TypeError)\b", text)
        return code, re.sub(r"\s+", " ", text)

    def _train(self, jobs, *others):
        self.trained = [job.id for job in jobs]
        run_jobs_alone(jobs, *others)


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    """A grid file, and beside it a results directory with its finished runs but one, and a search."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "mine.yaml").write_text(yaml.safe_dump(GRID))
    with pytest.MonkeyPatch.context() as patch:
        bench = Command(folder / "results", patch)
        code, text = bench("run", "--grid", folder / "mine.yaml")
        assert code == 0, text
        (folder / "whole.md").write_text((folder / "results" / "reports" / "mine@full.md").read_text())
    store = Store(folder / "results")
    for run, record in store.records().items():
        config = store.config(run)
        if config["algorithm"]["name"] == "ccvr" and str(config["seed"]) == LEFT_OUT:
            assert record["status"] == "done"
            shutil.rmtree(store.run_folder(run))
    with store.locked():
        search = make()
        Study(search, store)
        finish(search, store, {"mu": 0.5}, 0.3, 0.5)
    for name in ("reports", "tensorboard"):  # which follow from the runs
        shutil.rmtree(store.folder / name)
    return folder


def without_seals(folder: Path) -> None:
    """As earlier versions have written it."""
    for path in folder.rglob("*.json"):
        content = json.loads(path.read_text())
        if content.pop(SEAL, None):
            path.write_text(json.dumps(content, indent=1) + "\n")


def _other_number(content: bytes, of: str) -> bytes:
    """One number of a text is another one; of a file of tensors one byte."""
    if of.endswith((".pt", ".json~")) or b"\0" in content:
        middle = len(content) // 2
        return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]
    found = [match for match in re.finditer(rb"\d+", content) if match.group() != b"0"]
    match = random.Random(of).choice(found)
    changed = str(int(match.group()) + 1).encode()
    return content[: match.start()] + changed + content[match.end() :]


def _replaced_by_link(path: Path) -> None:
    path.rename(path.parents[2] / f"elsewhere-{path.name}")
    path.symlink_to(path.parents[2] / f"elsewhere-{path.name}")


def _replaced_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut to nothing": lambda path: path.write_bytes(b""),
    "cut in the middle": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "cut at the end": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "[]": lambda path: path.write_text("[]"),
    "{}": lambda path: path.write_text("{}"),
    "text": lambda path: path.write_text("To whom it may concern"),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "a link": _replaced_by_link,
    "a folder": _replaced_by_folder,
    "removed": Path.unlink,
    "another number": lambda path: path.write_bytes(_other_number(path.read_bytes(), path.name)),
}


# Without its record a run has not ended; without its grid nothing was asked for.
CANNOT_BE_MISSED = ("record.json", "mine@full.json")


_REPORTS: dict[bool, str] = {}  # of the store without damage, sealed or not


def files_of(results: Path) -> list[Path]:
    """Every file of a results directory but for its locks, of which other tests are."""
    return sorted(path for path in results.rglob("*") if path.is_file() and path.name not in (".lock", ".driver"))


def check(real: Path, folder: Path, name: Path, damage: str, monkeypatch, sealed: bool = True) -> None:
    """One file of a copy is damaged: `report` and then `run` say so, what is whole is not trained again, and the table of the
    end is the one without damage."""
    shutil.copytree(real, folder)
    results = folder / "results"
    if not sealed:
        without_seals(results)
    bench = Command(results, monkeypatch)
    before = Store(results).records()
    if sealed not in _REPORTS:
        _REPORTS[sealed] = bench("report", "--grid", "mine", "--print")[1]
    path, expected = results / name, _REPORTS[sealed]
    DAMAGE[damage](path)
    told = re.compile(f"{re.escape(str(name))} |{name.parent}/record.json does not fit its digest: .*{name.name}")

    code, text = bench("report", "--grid", "mine", "--print")
    is_grid = name.parts[0] == "grids"
    assert code == (2 if is_grid and Store(results).grid(path.stem) is None else 0), text
    assert told.search(text) or expected in text or name.name in CANNOT_BE_MISSED and damage == "removed", (
        "the damage is named, or costs nothing"
    )

    code, text = bench("run", "--grid", folder / "mine.yaml")
    assert code == 0, text
    owner = name.parts[1] if name.parts[0] == "runs" else ""
    whole = {run for run in before if run != owner}
    assert not whole & set(bench.trained), "what is finished and undamaged is not trained again"
    if owner in bench.trained and damage != "removed":
        assert told.search(text) and list((results / "superseded").glob(f"{owner}-*")), "it is named, and kept"
    assert (results / "reports" / "mine@full.md").read_text() == (real / "whole.md").read_text()


def _kinds(results: Path) -> Iterator[Path]:
    """One file of each kind."""
    found = {re.sub(r"\d+", "", path.name): path for path in files_of(results)}
    yield from found.values()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "damage"), [("record.json", "another number"), ("mine@full.json", "cut in the middle")]
)
def test_a_damaged_record_or_grid_is_named_and_played_again(real, tmp_path, monkeypatch, kind, damage):
    path = next(path for path in files_of(real / "results") if path.name == kind)
    check(real, tmp_path / "x", path.relative_to(real / "results"), damage, monkeypatch)


@pytest.mark.slow
def test_a_damaged_file_of_each_kind_is_named_and_played_again(real, tmp_path, monkeypatch):
    damages = itertools.cycle(["cut in the middle", "[]", "a link", "another number", "a folder"])
    for number, (path, damage) in enumerate(zip(_kinds(real / "results"), damages, strict=False)):
        check(real, tmp_path / str(number), path.relative_to(real / "results"), damage, monkeypatch)


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "of an earlier version"])
def test_every_file_damaged_in_every_way(real, tmp_path, monkeypatch, sealed, record_property):
    cases = [(path.relative_to(real / "results"), damage) for path in files_of(real / "results") for damage in DAMAGE]
    if not sealed:  # a changed number that has no second place to be compared with cannot be known
        cases = [(name, damage) for name, damage in cases if damage != "another number" or name.suffix == ".pt"]
    for number, (name, damage) in enumerate(cases):
        check(real, tmp_path / str(number), name, damage, monkeypatch, sealed)
        shutil.rmtree(tmp_path / str(number))
        print(f"{number + 1} of {len(cases)}: {name} {damage}", flush=True)
    record_property("cases", len(cases))


# Files of others.


def snapshot(folder: Path, *without: str) -> dict[str, bytes | None]:
    """Every file below a folder but those below some of it; links as they are."""
    paths = (path for path in folder.rglob("*") if path.relative_to(folder).parts[0] not in without)
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


RUNS = cells("label-2", "fedavg")


@pytest.fixture
def foreign(tmp_path) -> Store:
    """A results directory of somebody else, of a grid with two finished runs."""
    return results(tmp_path / "results", RUNS, {cell.id: 0.5 for cell in RUNS[:2]})


@pytest.fixture
def program(tmp_path, monkeypatch) -> Command:
    return Command(tmp_path / "results", monkeypatch)


STRANGE = ["../../X", "/tmp/X", "a\0b", "a\nb", "..", "\x1b[2J", ".hidden", "a/b", ""]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("where", ["grid", "budget", "figure", "of a search"])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_name_in_a_foreign_file_leads_nowhere(foreign, program, tmp_path, name, where, is_sealed):
    path = foreign.folder / "grids" / f"{LABEL}.json"
    grid = foreign.grid(LABEL)
    if where == "figure":
        grid["report"]["figures"] = [{"kind": "by-setting", "setting": name}]
    elif where == "of a search":
        grid["cells"][0]["tuned"] = {"hparams": {}, "search": name}
    else:
        grid[where] = name
    path.write_text(seal(json.dumps(grid)) if is_sealed else json.dumps(grid))
    before = snapshot(tmp_path)
    for command in (("report",), ("report", "--grid", "quickstart", "--figure", "rounds"), ("report", "--print")):
        code, text = program(*command)
        assert code == 2 and f"grids/{LABEL}.json" in text and "\x1b" not in text
    assert snapshot(tmp_path) == before


def test_the_label_of_a_dataset_is_no_path(foreign, program, tmp_path):
    grid = foreign.grid(LABEL)
    for cell in grid["cells"]:
        cell["dataset"] = "../../../X"
    foreign.write_grid(LABEL, grid)
    before = snapshot(tmp_path, "results", "boards")
    assert program("report", "--figure", "rounds")[0] == 0
    assert program("export", "--grid", "quickstart", "--tensorboard", tmp_path / "boards")[0] == 0
    assert len(list((tmp_path / "boards").iterdir())) == 2
    assert snapshot(tmp_path, "results", "boards") == before


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "0123456789abcdef~", ".x", "x" * 200])
def test_strange_names_of_files_are_told_in_one_line_each(foreign, program, name):
    for part in ("grids", "runs", "searches"):
        (foreign.folder / part).mkdir(exist_ok=True)
        (foreign.folder / part / name).write_text("{}")
    code, text = program("report", "--print")
    assert code == 0 and ("3 entries" in text) == (name[0] != ".") and "\x1b" not in text


CRAFTED = {
    "wrapper of nothing": lambda grid, record: grid["cells"][0].update(wrapper="ccvr"),
    "base of no method": lambda grid, record: grid["cells"][0]["config"]["algorithm"].update(base="x"),
    "no split": lambda grid, record: grid["cells"][0]["config"].pop("split"),
    "no model": lambda grid, record: grid["cells"][0]["config"].pop("model"),
    "no rounds": lambda grid, record: grid["cells"][0]["config"].pop("rounds"),
    "versions of nothing": lambda grid, record: [
        cell["config"].update(versions={"a.b.c": 1 + number}) for number, cell in enumerate(grid["cells"])
    ],
    "half of a choice": lambda grid, record: grid["cells"][0].update(tuned={"params": {}}),
    "unknown x": lambda grid, record: grid["report"].update(figures=[{"kind": "curves", "x": "nix"}]),
    "client -1": lambda grid, record: grid["report"].update(figures=[{"kind": "distributions", "client": -1}]),
    "rows that are columns": lambda grid, record: grid["report"].update(rows=["algorithm"]),
    "rows twice": lambda grid, record: grid["report"].update(rows=["dataset", "dataset"]),
    "rounds of no kind": lambda grid, record: grid["report"].update(also=["nix"]),
    "no rows": lambda grid, record: grid["report"].update(rows=[]),
    "no cells": lambda grid, record: grid["cells"].clear(),
    "runs of each other": lambda grid, record: grid["cells"][0].update(run=grid["cells"][1]["run"]),
    "diverged for no reason": lambda grid, record: (record.update(status="diverged"), record.pop("reason")),
    "no versions": lambda grid, record: record.pop("versions"),
    "data of nothing": lambda grid, record: record.update(data={}),
    "kept nothing known": lambda grid, record: record.update(kept="foo"),
    "deep": lambda grid, record: record.update(diagnostics={"x": _deep(500)}),
    "divergences of others": lambda grid, record: (
        record.update(diagnostics={"coalitions": [0, 1], "divergences": [[0.0, 1.0], [1.0]]}),
        grid["report"].update(figures=[{"kind": "divergences"}, {"kind": "client-gains"}]),
    ),
    "studies of no seed": lambda grid, record: grid.update(ruleset={"name": "tuned", "studies": [[]], "samples": 1}),
    "studies of other seeds": lambda grid, record: grid.update(
        ruleset={"name": "tuned", "studies": [[71]], "samples": 1}
    ),
    "no numbers": lambda grid, record: record.update(summary={"last": {"accuracy": None}}),
}


def _deep(levels: int) -> list:
    return [_deep(levels - 1)] if levels else []


@pytest.mark.slow_but_first
@pytest.mark.parametrize("craft", CRAFTED)
@pytest.mark.parametrize("is_sealed", [True, False])
def test_no_file_that_looks_right_ends_in_a_traceback(foreign, program, craft, is_sealed):
    """Anybody can seal: files are checked whatever their digest says."""
    grid, folder = foreign.grid(LABEL), foreign.run_folder(RUNS[0].id)
    record = foreign.record(RUNS[0].id)
    CRAFTED[craft](grid, record)
    written, others = [json.dumps(grid), json.dumps(record)], [read_bytes(folder / name) for name in RUN_FILES[-1:]]
    if is_sealed:
        written = [seal(written[0]), seal(written[1], *others)]
    (foreign.folder / "grids" / f"{LABEL}.json").write_text(written[0])
    (folder / "record.json").write_text(written[1])
    for command in (
        ("report", "--figure", "rounds"),
        ("export", "--grid", "quickstart", "--to", foreign.folder / "x.csv"),
    ):
        code, text = program(*command)
        assert code == 0 or "error: " in text
        assert code == 0 or f"grids/{LABEL}.json" in text


def test_a_grid_that_cannot_be_laid_out_costs_no_other_its_report(foreign, program):
    grid = foreign.grid(LABEL)
    odd = grid | {"budget": "aaa", "report": grid["report"] | {"metric": "nix"}}
    foreign.write_grid(f"{grid['grid']}@aaa", odd)
    for command in (("report",), ("report", "--print")):
        code, text = program(*command)
        assert code == 2 and f"{grid['grid']}@aaa: Unknown metric 'nix'" in text and "50.0" in text
    assert (foreign.folder / "reports" / f"{LABEL}.md").exists()


@pytest.mark.parametrize(
    "link", ["runs/ID", "repeating/ID", "runs/ID/checkpoint", "runs/ID/final.pt", "runs/ID/.x.partial"]
)
def test_a_run_does_not_begin_where_links_lead_elsewhere(foreign, tmp_path, link):
    run = RUNS[0].id if link.startswith("repeating") else RUNS[2].id
    path, elsewhere = foreign.folder / link.replace("ID", run), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "record.json").write_text("mine")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(elsewhere)
    with foreign.locked():
        foreign.start(run, RUNS[2].config.canonical())
        folder = foreign.unfinished_folder(run)
        assert not folder.is_symlink() and [entry.name for entry in folder.iterdir()] == ["config.json"]
    assert [entry.name for entry in elsewhere.iterdir()] == ["record.json"]
    assert list((foreign.folder / "superseded").iterdir()), "nothing is deleted"


def test_a_pipe_does_not_let_commands_wait_for_ever(foreign, tmp_path, monkeypatch):
    (foreign.folder / ".lock").unlink()
    os.mkfifo(foreign.folder / ".lock")
    code, text = Command(tmp_path / "mine", monkeypatch)("import", foreign.folder)
    assert code == 2 and ".lock: it is not a regular file" in text


@pytest.mark.parametrize("place", ["reports", "grids", "runs"])
def test_nothing_is_written_through_a_link(foreign, program, tmp_path, place):
    (foreign.folder / place).rename(tmp_path / "elsewhere")
    (foreign.folder / place).symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path, "results")
    for command in (
        (("report", "--grid", "quickstart"), ("run", "--grid", "quickstart"))
        if place == "reports"
        else (("run", "--grid", "quickstart"),)
    ):
        code, text = program(*command)
        assert code == 2 and "link" in text
    assert snapshot(tmp_path, "results") == before


@pytest.mark.parametrize("kind", ["file", "absolute", "folder", "pipe", "state"])
def test_import_takes_no_links_and_no_special_files(tmp_path, monkeypatch, foreign, kind):
    """A link to a secret would become a file of the importer's."""
    secret = tmp_path / "secret"
    secret.write_text("password")
    run = foreign.run_folder(RUNS[0].id)
    path = run / {"file": "probe-x.json", "absolute": "notes.pt", "state": FINAL}.get(kind, "extra.pt")
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(secret if kind == "absolute" else Path("..") / ".." / ".." / "secret")
    mine = Command(tmp_path / "mine", monkeypatch)
    code, text = mine("import", foreign.folder)
    assert code == 0 and f"runs/{RUNS[0].id}/{path.name} is" in text
    assert "1 run taken" in text and set(Store(tmp_path / "mine").records()) == {RUNS[1].id}
    assert not any(path.is_file() and b"password" in path.read_bytes() for path in (tmp_path / "mine").rglob("*"))


HUGE = 20_000_000_000  # bytes; a file with a hole takes no room on the disk
TOO_LARGE = "has 20,000,000,000 bytes, but such a file has at most"


@pytest.mark.parametrize("name", [*(f"runs/ID/{name}" for name in RUN_FILES), f"grids/{LABEL}.json"])
def test_a_file_larger_than_memory_is_named_and_not_read(foreign, program, tmp_path, monkeypatch, name):
    damaged = name.replace("ID", RUNS[0].id)
    os.truncate(foreign.folder / damaged, HUGE)
    is_grid, csv = name.startswith("grids"), tmp_path / "x.csv"
    code, text = program("report", "--print")
    assert code == (2 if is_grid else 0) and f"{damaged} {TOO_LARGE}" in text
    code, text = program("status")
    assert code == 0 and (f"{damaged} {TOO_LARGE}" in text) == (is_grid or name.endswith("record.json")), "all it reads"
    code, text = program("export", "--grid", "quickstart", "--to", csv)
    assert f"{damaged} {TOO_LARGE}" in text and code == (2 if is_grid else 0)
    assert is_grid or RUNS[1].id in csv.read_text() and RUNS[0].id not in csv.read_text(), "the other run is exported"
    mine = Command(tmp_path / "mine", monkeypatch)
    code, text = mine("import", foreign.folder)
    assert code == 0 and f"{damaged} {TOO_LARGE}" in text and ("2 runs taken" if is_grid else "1 run taken") in text


def test_rounds_of_an_unfinished_run_that_are_larger_than_memory_are_named(foreign, program):
    folder = foreign.run_folder(RUNS[2].id)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(RUNS[2].config.canonical()))
    (folder / "rounds.jsonl").touch()
    os.truncate(folder / "rounds.jsonl", HUGE)
    code, text = program("status")
    assert code == 0 and f"runs/{RUNS[2].id}/rounds.jsonl {TOO_LARGE}" in text


def test_a_grid_file_larger_than_memory_is_refused(program, tmp_path):
    (tmp_path / "big.yaml").touch()
    os.truncate(tmp_path / "big.yaml", HUGE)
    code, text = program("run", "--grid", tmp_path / "big.yaml")
    assert code == 2 and f"big.yaml {TOO_LARGE} 4,194,304; name a YAML file" in text


class _Code:
    """What runs a command when it is unpickled."""

    def __init__(self, trap: Path):
        self._trap = trap

    def __reduce__(self):
        return os.mkdir, (str(self._trap),)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "code", "old code", "not a state", "another object"])
def test_a_damaged_or_hostile_state_of_a_base_is_named_and_the_base_trained_again(real, tmp_path, monkeypatch, damage):
    shutil.copytree(real, tmp_path / "x")
    store = Store(tmp_path / "x" / "results")
    base = next(
        run
        for run in store.records()
        if (config := store.config(run))["seed"] == 1 and config["algorithm"]["name"] == "fedavg"
    )
    state, trap = store.run_folder(base) / FINAL, tmp_path / "trap"
    match damage:
        case "truncated":
            state.write_bytes(state.read_bytes()[:-200])
        case "code":
            torch.save({"params": _Code(trap)}, state)
        case "old code":
            state.write_bytes(pickle.dumps(_Code(trap)))
        case "another object":
            torch.save([torch.ones(1)], state)
        case "not a state":
            state.write_text("nothing")
    program = Command(store.folder, monkeypatch)
    code, text = program("run", "--grid", tmp_path / "x" / "mine.yaml")
    assert code == 0 and f"runs/{base}/{FINAL} cannot be read" in text and base in program.trained
    assert not trap.exists() and list((store.folder / "superseded").glob(f"{base}-1/{FINAL}"))
    everything = text + "".join(path.read_text() for path in store.folder.rglob("*.json"))
    assert "weights_only" not in everything
    assert (store.folder / "reports" / "mine@full.md").read_text() == (real / "whole.md").read_text()


# What a record says must fit.


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("record.json", lambda text: text.replace('"rounds": 2', '"rounds": 3'), "was changed"),
        ("record.json", lambda text: text.replace("0.5", "0.6", 1), "was changed"),
        ("rounds.jsonl", lambda text: text.replace("0.4", "0.41"), "was changed"),
        ("rounds.jsonl", lambda text: text + text.splitlines()[-1] + "\n", "was changed"),
    ],
)
def test_what_was_sealed_cannot_be_changed(foreign, name, change, what):
    folder = foreign.run_folder(RUNS[0].id)
    (folder / "record.json").write_text(
        seal(
            json.dumps(foreign.record(RUNS[0].id) | {"rounds": 2}),
            *(read_bytes(folder / other) for other in RUN_FILES[-1:]),
        )
    )
    assert foreign.record(RUNS[0].id)
    text = (folder / name).read_text()
    (folder / name).write_text(change(text))
    assert (folder / name).read_text() != text
    assert foreign.record(RUNS[0].id) is None and what in foreign.damaged[folder / "record.json"]


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("rounds.jsonl", lambda text: text.splitlines()[0] + "\n", "has 1 rounds, but the run's record says 2"),
        ("rounds.jsonl", lambda text: text.replace("0.5,", "0.7,"), "ends with another accuracy than the run's record"),
        (
            "record.json",
            lambda text: text.replace('"last": {"accuracy": 0.5}', '"last": {"accuracy": 0.9}'),
            "ends with another",
        ),
        ("record.json", lambda text: text.replace('"schema": 2', '"schema": 3'), "has schema 3, which this version"),
        ("record.json", lambda text: text.replace('"done"', '"won"'), "status is not what it should be"),
        (
            "record.json",
            lambda text: text.replace('"summary": {', '"summary": 3, "x": {'),
            "summary is not a JSON object",
        ),
        ("rounds.jsonl", lambda text: text.replace("0.4,", "nothing,", 1), "is not readable JSON"),
        ("rounds.jsonl", lambda text: text.replace('"round": 2', '"round": 1'), "rounds that do not follow each other"),
        ("config.json", lambda text: text.replace('"seed": 0', '"seed": 7'), "the folder is not named after it"),
        ("config.json", lambda text: None, "is missing, though the run has ended"),
    ],
)
def test_records_of_earlier_versions_are_checked_by_what_they_have(foreign, name, change, what):
    folder = foreign.run_folder(RUNS[0].id)
    record = foreign.record(RUNS[0].id) | {"rounds": 2}
    (folder / "record.json").write_text(json.dumps(record))
    assert foreign.record(RUNS[0].id) == record
    text = (folder / name).read_text()
    changed = change(text)
    assert changed != text
    if changed is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(changed)
    assert foreign.record(RUNS[0].id) is None and what in next(iter(foreign.damaged.values()))
