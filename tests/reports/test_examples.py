"""The committed results are whole, and their reports follow from them."""

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from operator import itemgetter
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

import algorithms
from bench.cli import options as given
from bench.config.resolve import with_options
from bench.config.schema import RunConfig, run_id
from bench.experiments.cells import Cell
from bench.experiments.figure_names import CURVES
from bench.experiments.grid_loading import load_grid
from bench.results import authors, verified
from bench.results.store import Store
from reports import api, board
from tests.support import manual
from tests.support.processes import call_bench

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
STORES = sorted(path.parent for path in EXAMPLES.glob("*/grids"))


def commands_for_examples(command: str) -> list[list[str]]:
    """The commands of that name in the manual that make what is committed, as words from its name on."""
    words = [words[3:] for block in manual.blocks("bash") for words in manual.commands(block)]
    return [words for words in words if words[:1] == [command] and "--results-dir docs/examples" in " ".join(words)]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("folder", STORES, ids=lambda folder: folder.name)
def test_committed_reports_follow_from_the_committed_records(folder, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("reports"))
    for name in Store(copy).grids():
        grid, _, budget = name.partition("@")
        for path in api.GridReport(copy, grid, budget).write(formats=("md", "tex", "csv")).values():
            assert path.read_text() == (folder / "reports" / path.name).read_text()


def test_the_committed_board_follows_from_the_committed_records():
    text = board.render([*map(Store, STORES)], verified.read(EXAMPLES / verified.FILE))
    assert (EXAMPLES / board.PAGE).read_text() == text, "`make board` writes it anew"
    assert all((folder / authors.FILE).is_file() for folder in STORES)


@pytest.mark.slow
def test_the_committed_clients_of_fedbench_are_those_that_its_draws_give(real_data, tmp_path):
    folder, path = EXAMPLES / "disputes", tmp_path / "clients.npz"
    subprocess.run([sys.executable, folder / "clients.py", real_data, path], check=True)
    with np.load(path) as dealt, np.load(folder / "lab" / "fedbench-dir-0.5.npz") as committed:
        assert {*dealt} == {*committed}
        assert all(np.array_equal(dealt[name], committed[name]) for name in committed)


@pytest.mark.slow
@pytest.mark.parametrize("folder", STORES, ids=lambda folder: folder.name)
def test_committed_figures_follow_from_the_committed_records(folder, tmp_path):
    compared = set()
    for name in Store(folder).grids():
        grid, _, budget = name.partition("@")
        committed = {path.name: path for path in figures_of_tables(folder) if path.name.startswith(f"{name}-")}
        curves = [x for x in CURVES if f"{name}-{x}.png" in committed]
        drawn, _ = (
            api.GridReport(folder, grid, budget).write_figures(tuple(curves), to=tmp_path) if committed else ([], [])
        )
        for path in drawn:
            if path.name in committed:
                assert_alike(path, committed[path.name])
                compared.add(path.name)
    assert compared == {path.name for path in figures_of_tables(folder)}


def figures_of_tables(folder: Path) -> list[Path]:
    """The committed figures of a store, but for those of searches and pictures of pages."""
    figures = folder.glob("reports/*.png")
    return [path for path in figures if not (path.stem.endswith("-page") or path.stem.startswith("search-"))]


def assert_alike(*figures: Path) -> None:
    found, expected = map(matplotlib.image.imread, figures)
    assert found.shape == expected.shape and abs(found - expected).mean() < 0.002, figures[0].name


@pytest.mark.slow
@pytest.mark.parametrize("words", commands_for_examples("tune"), ids=" ".join)
def test_committed_searches_follow_from_the_committed_records(words, tmp_path, monkeypatch, real_data):
    """The command that the manual gives trains nothing, and writes the same tables and figures."""
    folder, store = ROOT / words[words.index("--results-dir") + 1], Store(tmp_path / "store")
    shutil.copytree(folder, store.folder, ignore=shutil.ignore_patterns("reports"))
    monkeypatch.chdir(tmp_path)
    for name, text in manual.named_files().items():
        Path(name).write_text(text)
    code, printed = call_bench("tune", *words[1:], "--results-dir", store.folder, "--data-dir", real_data)
    assert code == 0 and " 0 to run\n" in printed
    assert {path.name for path in store.folder.glob("runs/*")} == {path.name for path in folder.glob("runs/*")}
    written = [*store.folder.glob("reports/search-*")]
    assert {".md", ".csv", ".png"} <= {path.suffix for path in written}
    for path in written:
        if path.suffix == ".png":
            assert_alike(path, folder / "reports" / path.name)
        elif path.suffix in (".md", ".csv"):
            assert path.read_text() == (folder / "reports" / path.name).read_text()


# Methods whose committed runs are of an earlier version, as footnotes of their tables say: their commands train them again.
EARLIER = {"fedgen", "per-fedavg"}


def test_commands_of_the_manual_name_exactly_the_committed_runs():
    runs = commands_for_examples("run")
    named, stored = defaultdict(set), {}
    for arguments in runs:
        with manual.without_plugins(arguments) as rest:
            options = manual.check_bench(rest)
            grid, store = load_grid(options["grid"]), Store(ROOT / options["results_dir"])
            is_tuned, overrides = options["tuned"] == "validation", given.read_set(options["set_"])
            start = f"{grid.name}( v2)?@{options['budget'] or grid.usual_budget}"
            labels = [label for label in store.grids() if re.match(rf"{start}(\+|$)", label)]
            labels = [label for label in labels if store.grid(label).get("overrides", {}) == overrides]
            labels = [label for label in labels if ("tuned=validation" in label) == is_tuned]
            key = str(store.folder), max(labels)  # version 1 first
            stored[key], cells = store.grid(key[1])["cells"], manual.cells_of(grid.name, options)
            configs = chosen_configs(cells, stored[key]) if is_tuned else [cell.config for cell in cells]
            named[key] |= {run_id(of_its_time(config, stored[key])) for config in configs}
            assert all(map(store.record, named[key])), options
    assert named == {key: {cell["run"] for cell in cells} for key, cells in stored.items()}
    assert len(runs) == 59


def test_the_manual_says_which_layer_is_least_similar_in_figure_2_of_ccvr():
    """CCVR has it that this is the classifier."""
    store = Store(EXAMPLES / "ccvr")
    cells = [cell for cell in store.grid("ccvr_figure2@small")["cells"] if cell["partition"] == "dir-0.1"]
    found = [store.probe(cell["run"], "cka-linear-0015")["result"]["layers"] for cell in cells]
    by_layer = pd.DataFrame(
        [
            {layer: np.mean([row[:i][j] for i, row in enumerate(cka) for j in range(i)]) for layer, cka in one.items()}
            for one in found
        ]
    )
    mean, std, least = by_layer.mean(), by_layer.std(), [*by_layer.idxmin(axis="columns")]
    assert mean.idxmin() == "projection1" and least.count("classifier") == 1
    said = [f"{mean[layer]:.2f}±{std[layer]:.2f}" for layer in ("projection1", "classifier")]
    manual_says = " ".join((store.folder / "README.md").read_text().split())
    assert "main observation is open" in manual_says and all(text in manual_says for text in said), said


def test_the_manual_has_both_readings_of_table_6_of_fedconcat():
    store = Store(EXAMPLES / "encoders")
    (cell,) = store.grid("paper_table6@paper")["cells"]
    values = store.probe(cell["run"], "encoder-heads-exchange-256-0001")["result"]["values"]
    loss = {name: f"{of['cls_loss']:.4f}, {of['rec_loss']:.4f}" for name, of in values.items()}
    lines = (store.folder / "README.md").read_text()
    assert f"| f_e1 | 0.2345, 0.0657 | {loss['fe2-exchange']} | {loss['fe1-exchange']} |" in lines
    assert f"| f_e2 | 0.0292, 0.0816 | {loss['fe1-exchange']} | {loss['fe2-exchange']} |" in lines
    table = (store.folder / "reports" / "paper_table6@paper.md").read_text()
    assert re.search(r"\| f_e1 +\| yes +\| 0\.2725 \(0\.2345, \+0\.0380\) +\| 0\.0650 \(0\.0657, -0\.0007\) ", table)


def test_commits_of_the_records_are_in_the_history_or_the_manual_names_them():
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("no clone with its history")
    history = {*git("rev-list", "HEAD").split()}
    records = [json.loads(path.read_text()) for path in EXAMPLES.glob("*/runs/*/record.json")]
    lost = {record["commit"] for record in records} - history
    named = re.findall(r"`([0-9a-f]{10}(?:-dirty)?)`", (ROOT / "docs" / "reproduction.md").read_text())
    assert {re.sub(r"^(\w{10})\w*", r"\1", commit) for commit in lost} == {*named}


def of_its_time(config: RunConfig, stored: list[dict]) -> RunConfig:
    """A config, with the versions of its committed run if its method is one of `EARLIER`."""
    if not EARLIER & methods_in(config.algorithm).keys():
        return config
    settings = {**config.canonical(), "versions": None}
    (versions,) = [cell["config"]["versions"] for cell in stored if {**cell["config"], "versions": None} == settings]
    return config.model_copy(update={"versions": versions})


def test_methods_whose_committed_runs_are_of_an_earlier_version_are_known():
    configs = [json.loads(path.read_text()) for path in EXAMPLES.glob("*/runs/*/config.json")]
    found = {
        name
        for config in configs
        for name, path in methods_in(config["algorithm"]).items()
        if name in algorithms.REGISTRY  # not one of a lab beside its runs
        and config["versions"][path] < algorithms.version_of(name)[0]
    }
    assert found == EARLIER


def methods_in(method: dict, path: str = "algorithm") -> dict[str, str]:
    """Name of a method and of those that it wraps -> where configs have their versions."""
    base = method.get("base")
    return {method["name"]: path} | (methods_in(base, f"{path}.base") if base else {})


def chosen_configs(cells: list[Cell], stored: list[dict]) -> list[RunConfig]:
    """Cells with the hyper-parameters that searches have chosen. What they tried is not committed."""
    place = itemgetter("dataset", "partition", "algorithm", "seed")
    chosen = {place(cell): cell["tuned"]["hparams"] for cell in stored}
    return [with_options(cell.config, chosen[place(cell.to_json())]) for cell in cells]


def runs_of_search(search: dict) -> set[str]:
    """Ids of the runs on validation data of all configurations that a search has proposed."""
    found = set()
    for config, params in itertools.product(search["configs"].values(), search["proposed"]):
        method = config["algorithm"]
        config = config | {key: value for key, value in params.items() if key not in method}
        config["algorithm"] = method | {key: value for key, value in params.items() if key in method}
        found.add(run_id(config))
    return found


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/reports/*.html")), ids=lambda path: path.stem)
def test_committed_pages_follow_from_the_committed_records(path):
    """But for the script of the package that draws, which has versions of its own."""
    grid, _, budget = path.stem.partition("@")
    found, committed = (
        api.GridReport(path.parents[1], grid, budget).render(format="html"),
        path.read_text(encoding="utf-8"),
    )
    assert without_script(found) == without_script(committed)


def without_script(page: str) -> str:
    before, start, after = page.partition('<script type="module">')
    _, end, rest = after.partition("</script>")
    assert "</main>" in before and '<script type="module">' in rest
    return before + start + end + rest


@pytest.mark.parametrize("folder", STORES, ids=lambda folder: folder.name)
def test_every_committed_record_has_its_rows_and_its_config(folder):
    store = Store(folder)
    sources = [store.grid(name).get("source", "") for name in store.grids()]
    assert all(Path(source).name == source for source in sources), "folders of a machine: keep the names of the files"
    asked = {cell["run"] for name in store.grids() for cell in store.grid(name)["cells"]}
    asked |= {run for name in store.searches() for run in runs_of_search(store.search(name))}
    records = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("runs/*/record.json")}
    assert records and records.keys() <= asked
    for run, record in records.items():
        rows = store.rows(run)
        assert record["status"] in ("done", "diverged", "stopped") and record["rounds"] == len(rows)
        for metric in {"accuracy", "own_accuracy"} & rows[-1].keys():
            assert record["summary"]["last"][metric] == rows[-1][metric]
        assert (folder / "runs" / run / "config.json").exists()


def test_examples_are_small_and_there_are_some():
    files = [path for path in EXAMPLES.rglob("*") if path.is_file()]
    assert STORES and not [path for path in files if path.suffix == ".pt"]
    assert sum(path.stat().st_size for path in files) < 40_000_000  # some 20 kB for each of 1,500 runs
