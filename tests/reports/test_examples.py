"""The committed results are whole, and their reports follow from them."""

import json
import re
import shutil
import subprocess
from collections import defaultdict
from operator import itemgetter
from pathlib import Path

import matplotlib.image
import pytest

from bench.config.resolve import with_options
from bench.config.schema import run_id
from bench.experiments.cells import Cell
from bench.experiments.figure_names import CURVES
from bench.results.store import Store
from reports import api
from tests.support import manual

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
STORES = sorted(path.parent for path in EXAMPLES.glob("*/grids"))


@pytest.mark.parametrize("folder", STORES, ids=lambda folder: folder.name)
def test_committed_reports_follow_from_the_committed_records(folder, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("reports"))
    for name in Store(copy).grids():
        grid, _, budget = name.partition("@")
        for path in api.write(copy, grid, budget, formats=("md", "tex", "csv")).values():
            assert path.read_text() == (folder / "reports" / path.name).read_text()


@pytest.mark.parametrize("folder", STORES, ids=lambda folder: folder.name)
def test_committed_figures_follow_from_the_committed_records(folder, tmp_path):
    compared = set()
    for name in Store(folder).grids():
        grid, _, budget = name.partition("@")
        committed = {
            path.name: path for path in folder.glob(f"reports/{name}-*.png") if not path.stem.endswith("-page")
        }
        curves = [x for x in CURVES if f"{name}-{x}.png" in committed]
        drawn, _ = api.write_figures(folder, grid, budget, tuple(curves), to=tmp_path) if committed else ([], [])
        for path in drawn:
            if path.name in committed:
                found, expected = (matplotlib.image.imread(image) for image in (path, committed[path.name]))
                assert found.shape == expected.shape and abs(found - expected).mean() < 0.002, path.name
                compared.add(path.name)
    assert compared == {path.name for path in folder.glob("reports/*.png") if not path.stem.endswith("-page")}


def test_commands_of_the_manual_name_exactly_the_committed_runs():
    commands = [words for block in manual.blocks("bash") for words in manual.commands(block)]
    runs = [words[3:] for words in commands if words[3:4] == ["run"] and "docs/examples" in " ".join(words)]
    named, stored = defaultdict(set), {}
    for options in map(manual.check_bench, runs):
        store, is_tuned = Store(ROOT / options["results_dir"]), options["tuned"] == "validation"
        labels = [label for label in store.grids() if label.startswith(f"{options['grid']}@{options['budget']}")]
        (label,) = [label for label in labels if ("tuned=validation" in label) == is_tuned]
        key = str(store.folder), label
        stored[key], cells = store.grid(label)["cells"], manual.cells_of(options["grid"], options)
        named[key] |= chosen_runs(cells, stored[key]) if is_tuned else {cell.id for cell in cells}
        assert all(map(store.record, named[key])), options
    assert named == {key: {cell["run"] for cell in cells} for key, cells in stored.items()}
    assert len(runs) == 10


def test_commits_of_the_records_are_in_the_history_or_the_manual_names_them():
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("no clone with its history")
    history = {*git("rev-list", "HEAD").split()}
    records = [json.loads(path.read_text()) for path in EXAMPLES.glob("*/runs/*/record.json")]
    lost = {commit[:10] for record in records if (commit := record["commit"].partition("-")[0]) not in history}
    assert lost == {*re.findall(r"`([0-9a-f]{10})`", (ROOT / "docs" / "reproduction.md").read_text())}


def chosen_runs(cells: list[Cell], stored: list[dict]) -> set[str]:
    """Ids of the runs of cells with the hyper-parameters that searches have chosen. What they tried is not committed."""
    place = itemgetter("dataset", "partition", "algorithm", "seed")
    chosen = {place(cell): cell["tuned"]["params"] for cell in stored}
    return {run_id(with_options(cell.config, chosen[place(cell.to_json())])) for cell in cells}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/reports/*.html")), ids=lambda path: path.stem)
def test_committed_pages_follow_from_the_committed_records(path):
    """But for the script of the package that draws, which has versions of its own."""
    grid, _, budget = path.stem.partition("@")
    found, committed = api.render(path.parents[1], grid, budget, format="html"), path.read_text(encoding="utf-8")
    assert without_script(found) == without_script(committed)


def without_script(page: str) -> str:
    before, start, after = page.partition('<script type="module">')
    _, end, rest = after.partition("</script>")
    assert "</main>" in before and '<script type="module">' in rest
    return before + start + end + rest


@pytest.mark.parametrize("folder", STORES, ids=lambda folder: folder.name)
def test_every_committed_record_has_its_rows_and_its_config(folder):
    store = Store(folder)
    asked = {cell["run"] for name in store.grids() for cell in store.grid(name)["cells"]}
    records = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("runs/*/record.json")}
    assert records and records.keys() <= asked
    for run, record in records.items():
        rows = store.rows(run)
        assert record["status"] in ("done", "diverged") and record["rounds"] == len(rows)
        for metric in {"accuracy", "own_accuracy"} & rows[-1].keys():
            assert record["summary"]["last"][metric] == rows[-1][metric]
        assert (folder / "runs" / run / "config.json").exists()


def test_examples_are_small_and_there_are_some():
    files = [path for path in EXAMPLES.rglob("*") if path.is_file()]
    assert STORES and not [path for path in files if path.suffix == ".pt"]
    assert sum(path.stat().st_size for path in files) < 12_000_000
