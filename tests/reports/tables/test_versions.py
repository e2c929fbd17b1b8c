"""Versions of a grid: their names in the store, their titles, and what a report of an earlier one says."""

import pytest

from bench.errors import ConfigError
from bench.experiments import grid_files
from bench.experiments.cells import is_laid_out_as, to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid, make_grid
from bench.experiments.spec import ExperimentSpec
from bench.results.ids import is_meant, unversioned, versioned
from bench.results.store import Store
from reports import api
from reports.tables import versions
from tests.support.processes import call_bench

CONTENT = {
    "title": "Mine",
    "axes": {"dataset": ["digits"], "partition": ["label-2"], "algorithm": ["fedavg"], "seed": [0]},
}


def stored(version: int | None, title: str = "Mine") -> dict:
    content = CONTENT | {"title": title} | ({} if version is None else {"version": version})
    grid = make_grid("mine", content)
    return to_json(grid, "smoke", {}, expand(grid, "smoke"))


def test_a_version_from_two_on_is_part_of_the_name_in_the_store_and_of_the_title():
    assert (stored(None)["grid"], stored(None)["title"]) == (stored(1)["grid"], stored(1)["title"]) == ("mine", "Mine")
    assert (stored(2)["grid"], stored(2)["title"]) == ("mine v2", "Mine (mine v2)")
    assert ExperimentSpec(make_grid("mine", CONTENT | {"version": 3}), "smoke").label == "mine v3@smoke"
    assert is_laid_out_as(make_grid("mine", CONTENT | {"version": 2}), stored(2))
    assert make_grid("mine", CONTENT | {"version": 2}).digest("smoke") == make_grid("mine", CONTENT).digest("smoke")


def test_versions_lie_side_by_side_in_a_store_and_are_read(tmp_path):
    with Store(tmp_path).locked() as store:
        for version in (1, 2):
            grid = stored(version)
            store.write_grid(f"{grid['grid']}@smoke", grid)
    assert sorted(Store(tmp_path).grids()) == ["mine v2@smoke", "mine@smoke"]
    assert api.GridReport(tmp_path, "mine v2", "smoke").render().startswith("# Mine (mine v2)\n")
    assert api.GridReport(tmp_path, "mine", "smoke").render().startswith("# Mine\n"), (
        "there is no other version that comes along"
    )


def test_commands_show_the_version_that_is_named_or_all(tmp_path):
    with Store(tmp_path).locked() as store:
        for version in (1, 2):
            grid = stored(version)
            store.write_grid(f"{grid['grid']}@smoke", grid)
    titles = {"mine": {"# Mine", "# Mine (mine v2)"}, "mine v1": {"# Mine"}, "mine v2@smoke": {"# Mine (mine v2)"}}
    for wanted, expected in titles.items():
        code, text = call_bench("report", "--grid", wanted, "--print", "--results-dir", str(tmp_path))
        assert code == 0 and {line for line in text.splitlines() if line.startswith("# ")} == expected
        code, text = call_bench("status", "--grid", wanted, "--results-dir", str(tmp_path))
        assert code == 0 and text.count("@smoke") == len(expected)
    code, text = call_bench("export", "--grid", "mine", "--results-dir", str(tmp_path), "--to", str(tmp_path / "x.csv"))
    assert code == 2 and "choose one with --grid 'mine v2@smoke'" in " ".join(text.split())


def test_a_name_without_a_version_means_all_of_them():
    held = ["mine", "mine v2", "mine v12", "other"]
    assert [name for name in held if is_meant("mine", name)] == held[:3]
    assert [name for name in held if is_meant("mine v1", name)] == ["mine"]
    assert [name for name in held if is_meant("mine v2", name)] == ["mine v2"]
    assert [name for name in held if is_meant(None, name)] == held
    assert [unversioned(versioned("mine", version)) for version in (1, 2, 12)] == ["mine"] * 3


def test_a_grid_that_is_stored_without_a_version_is_marked_once_there_is_a_second(monkeypatch):
    for now, title, notes in ((1, "Mine", 0), (2, "Mine (mine v1)", 1)):
        monkeypatch.setattr(grid_files, "version_of", {"mine": now}.__getitem__)
        assert versions.title_of(stored(None)) == title and len([*versions.footnotes(stored(None))]) == notes
    assert [*versions.footnotes(stored(None))][0].startswith("Version 1 of mine, which is at version 2 now: ")
    assert versions.title_of(stored(2)) == "Mine (mine v2)" and not [*versions.footnotes(stored(2))]
    own = stored(None) | {"source": "/home/me/mine.yaml"}
    assert versions.title_of(own) == "Mine" and not [*versions.footnotes(own)]


@pytest.mark.parametrize("version", [0, -1, 1.5, "2", True])
def test_a_version_is_a_whole_number_from_one_on(version):
    with pytest.raises(ConfigError, match="version"):
        make_grid("mine", CONTENT | {"version": version})


@pytest.mark.slow
def test_some_boards_are_of_version_two_and_no_other_grid_of_ours_has_one():
    now = {name: load_grid(name).version for name in grid_files.names()}
    boards = ("leaderboard_mnist", "leaderboard_fmnist", "leaderboard_personal", "leaderboard_oneshot")
    assert {name: version for name, version in now.items() if version > 1} == dict.fromkeys(boards, 2)
    assert now == {name: grid_files.version_of(name) for name in now} and grid_files.version_of("none") == 1
    assert load_grid("leaderboard_mnist").stored_title.endswith(" (leaderboard_mnist v2)")
