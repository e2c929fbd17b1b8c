"""The board of a pool: every grid of every directory, with who, when, by which code, and what was verified."""

import shutil
from types import SimpleNamespace

import pytest

from bench.config.schema import run_id
from bench.experiments.cells import to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import make_grid
from bench.results import authors, verified
from bench.results.store import Store
from reports import board
from reports.tables.aggregate import cell_keys
from reports.tables.names import Names
from tests.support.processes import call_bench
from tests.support.stores import LABEL, cells, finish, results

AVG, PROX = cells("label-2", "fedavg"), cells("label-2", "fedprox")


def pool(folder):
    """Ours and that of a stranger, who has a method more and one seed of ours with other numbers."""
    results(folder / "ours", AVG, {cell.id: 0.5 for cell in AVG})
    theirs = results(
        folder / "theirs", (*AVG[:1], *PROX), {cell.id: 0.6 for cell in (*AVG[:1], *PROX)}, commit="b" * 40 + "-dirty"
    )
    (theirs.folder / authors.FILE).write_text(authors.text(authors.Authors({}, "Jane <b>|Doe")))
    verify(folder, "ours", **{AVG[0].id: "equal", AVG[1].id: "first rounds equal"})
    return folder


def written(folder) -> tuple[int, str, str]:
    """Exit code and output of the command, and the board without its padding."""
    return *call_bench("board", folder), " ".join((folder / "board.md").read_text().split())


def verify(folder, directory: str, **results_: str) -> None:
    """Writes what came out for runs of a directory."""
    store = Store(folder / directory)
    about = {"rounds": 2, "of": 2, "by": "Ann", "when": "2026-11-26", "code": "c" * 40}
    said = {
        run: {**about, "result": result, "files": verified.digest_of(store, run)} for run, result in results_.items()
    }
    verified.write(folder / verified.FILE, said)


def test_a_stranger_s_results_stand_beside_ours_with_who_when_code_and_what_is_verified(tmp_path):
    page = pool(tmp_path) / "theirs" / "reports" / f"{LABEL}.html"
    page.parent.mkdir(exist_ok=True)
    page.write_text("of before")
    code, output, page = written(tmp_path)
    said = f"(run {AVG[0].id}) has other numbers in theirs than in ours (accuracy of round 1: 0.5 and 0.4)."
    assert code == 1 and f"{LABEL}: digits, label-2, fedavg, seed 0 {said}" in output and said in page
    found = "1 of 3 equal, 1 first rounds equal (2 of 2 rounds) (Ann, 2026-11-26)"
    assert f"| FedAvg | ours | 3 | not said | 2026-01-01 | aaaaaaaaaa | {found} |" in page
    assert "| FedAvg | theirs | 1 | Jane &lt;b&gt;\\|Doe | 2026-01-01 | bbbbbbbbbb-dirty | no |" in page
    assert "| FedProx | theirs | 3 |" in page and f"[all together](<reports/{LABEL}.md>)" in page
    together = (tmp_path / "reports" / f"{LABEL}.md").read_text()
    assert "| 50.0±0.0, 2/3 seeds |" in " ".join(together.split()) and "60.0±0.0" in together, (
        "seed 0 of FedAvg is left out"
    )
    assert "different results are left out" in together
    assert "FedProx" in (tmp_path / "theirs" / "reports" / f"{LABEL}.html").read_text()
    assert not [*tmp_path.glob("ours/reports/*.html"), *tmp_path.glob("reports/*.html")]


def test_a_verified_run_that_has_changed_since_is_not_verified(tmp_path):
    folder = pool(tmp_path)
    verdicts = verified.read(folder / verified.FILE)
    shutil.rmtree(folder / "ours")
    results(folder / "ours", AVG, {cell.id: 0.7 for cell in AVG})
    assert "Ann" not in board.render([Store(folder / "ours")], verdicts)


def test_the_name_of_a_directory_is_text_and_ends_no_link(tmp_path):
    results(tmp_path / "a>)<img src=x>", AVG, {cell.id: 0.7 for cell in AVG})
    text = board.render([Store(tmp_path / "a>)<img src=x>")], {})
    assert f"[a&gt;)&lt;img src=x&gt;](<a%3E)%3Cimg src=x%3E/reports/{LABEL}.md>)" in text and "<img" not in text


def test_titles_are_those_of_tables_without_paths_and_a_grid_without_one_has_its_name(tmp_path):
    store = Store(pool(tmp_path) / "ours")
    grid = store.grid(LABEL)
    assert f"{grid['title']}. Tables: " in written(tmp_path)[2]
    cells_of = [cell | {"dataset": "imagefolder:/home/ada/secret/cats"} for cell in grid["cells"]]
    for side, title in (("ours", "FedAvg on imagefolder:/home/ada/secret/cats"), ("theirs", "")):
        other = {"grid": side, "title": title, "cells": cells_of}
        Store(tmp_path / side).write_grid(f"{side}@paper", grid | other)
    page = written(tmp_path)[2]
    assert "secret" not in page and "FedAvg on cats. Tables: " in page and "## theirs@paper theirs. Tables: " in page


def test_one_results_directory_is_no_pool(tmp_path):
    results(tmp_path / "ours", AVG, {})
    code, text = call_bench("board", tmp_path / "ours")
    assert code == 2 and "is one results directory; name the folder in which several lie." in text


def test_the_code_of_a_lab_s_method_is_not_that_of_a_commit(tmp_path, monkeypatch):
    folder = pool(tmp_path)
    monkeypatch.setattr("reports.board.algorithms", SimpleNamespace(REGISTRY={"fedavg": SimpleNamespace(lab=None)}))
    page = written(folder)[2]
    assert "| bbbbbbbbbb-dirty, and the method's own |" in page and page.count("the method's own") == 1


def test_a_run_that_came_out_different_is_as_visible_as_an_equal_one(tmp_path):
    ours = results(tmp_path / "ours", AVG + PROX, {cell.id: 0.5 for cell in AVG + PROX[:1]})
    with ours.locked():
        finish(ours, PROX[1], 0.1, status="failed")
    assert "Nobody has verified a run of this folder yet." in written(tmp_path)[2]
    verify(tmp_path, "ours", **{AVG[0].id: "different", AVG[1].id: "equal", PROX[0].id: "different"})
    code, _, page = written(tmp_path)
    assert code == 0 and "1 of 3 equal, 1 DIFFERS (Ann, 2026-11-26) |" in page and "Nobody has" not in page
    assert "| FedProx | ours | 1, 1 failed |" in page and "| 1 of 1 DIFFERS (Ann, 2026-11-26) |" in page


@pytest.mark.parametrize("copy", ["aaa", "zzz"])
def test_a_copy_with_better_numbers_does_not_lead_whatever_its_name(tmp_path, copy):
    results(tmp_path / "ours", AVG + PROX, {cell.id: 0.5 for cell in AVG + PROX})
    assert written(tmp_path)[0] == 0
    results(
        tmp_path / copy, AVG + PROX, {cell.id: 0.97 if cell in AVG else 0.5 for cell in AVG + PROX}, processor="X 1"
    )
    code, output, page = written(tmp_path)
    others = ("0.87 and 0.4", "0.4 and 0.87")[copy == "aaa"]
    on = ("X 1 and on cpu", "cpu and on X 1")[copy == "aaa"]
    where = (f"{copy} than in ours", f"ours than in {copy}")[copy == "aaa"]
    assert code == 1 and page.count(f"has other numbers in {where} (accuracy of round 1: {others}; on {on}).") == 3
    together = (tmp_path / "reports" / f"{LABEL}.md").read_text()
    assert "97.0" not in together and "50.0" in together


def test_grids_and_cells_of_other_settings_are_left_out_of_what_is_put_together(tmp_path):
    results(tmp_path / "ours", AVG + PROX, {cell.id: 0.5 for cell in AVG + PROX})
    theirs = results(tmp_path / "theirs", AVG, {cell.id: 0.5 for cell in AVG})
    grid, lr = theirs.grid(LABEL), {"lr": 0.5}
    for cell in grid["cells"]:
        config = {**cell["config"], **lr}
        theirs.start(run_id(config), config)
        rows, record = theirs.rows(cell["run"]), theirs.record(cell["run"])
        theirs.finish(run_id(config), rows, {**record, "id": run_id(config)})
        cell |= {"run": run_id(config), "config": config}
    theirs.write_grid(LABEL, grid)
    code, _, page = written(tmp_path)
    assert code == 1 and "digits, label-2, fedavg has other settings in one directory than in another." in page
    together = (tmp_path / "reports" / f"{LABEL}.md").read_text()
    assert together.count("50.0±0.0") == 1 and "different results are left out" in together, "that of FedProx"
    theirs.write_grid(LABEL, {**grid, "digest": "other"})
    code, _, page = written(tmp_path)
    assert (
        code == 1
        and "It has other settings, axes or studies in theirs than in ours: nothing of it is put together." in page
    )
    assert "all together](" not in page and not [*(tmp_path / "reports").glob(f"{LABEL}.*")]


@pytest.mark.parametrize(
    ("axes", "called"),
    [
        ({"algorithm": ["fedavg", "ccvr"]}, ["FedAvg", "CCVR"]),
        ({"algorithm": ["fedavg"], "wrapper": ["none", "ccvr"]}, ["FedAvg", "FedAvg + CCVR"]),
        ({"algorithm": ["ccvr"], "base": ["fedavg"]}, ["CCVR of FedAvg"]),
    ],
)
def test_a_method_is_called_as_in_the_tables_of_its_grid(axes, called):
    content = {"axes": {"dataset": ["digits"], "partition": ["iid"], **axes}, "report": {"rows": ["dataset", *axes]}}
    grid = make_grid("mine", {**content, "report": {**content["report"], "columns": "partition"}})
    stored = to_json(grid, "full", {}, expand(grid, "full"))
    names, keys = Names.of_grid(stored), cell_keys(stored)
    assert [board._method(cell, names, keys) for cell in stored["cells"]] == called
