"""The committed results are whole, and their reports follow from them."""

import json
import shutil
from collections import defaultdict
from operator import itemgetter
from pathlib import Path

import pytest

from bench.config.resolve import with_options
from bench.config.schema import run_id
from bench.experiments.cells import Cell
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
