"""A bundle of somebody is refused, and nothing of it stays, unless it is exactly what its manifest says."""

import hashlib
import itertools
import json
import random
import stat
import tracemalloc
import warnings
import zipfile
from pathlib import Path
from unittest import mock

import pytest

from bench.errors import StoreError
from bench.experiments import bundling
from bench.experiments.grid_loading import load_grid
from bench.experiments.importing import merge_results
from bench.experiments.spec import ExperimentSpec
from bench.results import bundles
from bench.results.authors import Authors, read, text
from bench.results.store import Store
from bench.tuning.study import draws
from reports import api
from tests.support.planning import Experiment
from tests.support.searching import make
from tests.support.stores import LABEL, cells, finish, results


@pytest.fixture
def bundle(tmp_path) -> Path:
    store = results(tmp_path / "a", cells("label-2", "fedavg"), {cells("label-2", "fedavg")[0].id: 0.5})
    bundling.write(store, [LABEL], tmp_path / "a.zip", "Jane Doe")
    return tmp_path / "a.zip"


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def pack(path: Path, content: dict[str, bytes], **of_last) -> None:
    """Writes a zip file; attributes of its last member."""
    with zipfile.ZipFile(path, "w") as packed:
        for number, (name, data) in enumerate(content.items(), 1):
            part = zipfile.ZipInfo(name)
            for key, value in of_last.items() if number == len(content) else ():
                setattr(part, key, value)
            packed.writestr(part, data)


def refused(path: Path, folder: Path) -> str:
    folder.mkdir()
    with mock.patch("tempfile.tempdir", str(folder)), pytest.raises(StoreError) as error:
        with bundles.opened(path):
            pass
    assert not [*folder.parent.glob("outside*")] and not [*folder.iterdir()]
    return str(error.value)


def with_manifest(bundle: Path, content: dict[str, bytes], **more) -> None:
    """A bundle whose manifest fits its files."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    manifest = json.dumps({"format": 1, "files": digests, **more}).encode()
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in {bundles.MANIFEST: manifest, **content}.items():
            packed.writestr(name, data)


def test_a_manifest_says_who_what_and_by_which_code(bundle, tmp_path):
    (tmp_path / "b").mkdir()
    manifest = bundles.unpack(bundle, tmp_path / "b")
    assert (manifest["author"], manifest["runs"], manifest["grids"][LABEL]["cells"]) == ("Jane Doe", 1, 3)
    assert manifest["commits"] == {"a" * 40: 1} and "torch 2.15.0" in manifest["versions"]
    assert manifest["last_run"] == "2026-01-01T12:00:00+0000" and manifest["images"] == ["digits: 0badcafe"]
    assert manifest["methods"] == {"fedavg": {"part_of_skewbench": True, "code": []}}
    cited = members(bundle)["CITATION"].decode()
    assert "AISTATS 2017. https://arxiv.org/abs/1602.05629" in cited
    assert bundling.TITLE in (Path(__file__).parents[3] / "CITATION.cff").read_text() and bundling.TITLE in cited
    assert not [name for name in members(bundle) if name.endswith(".pt")]


@pytest.mark.parametrize(
    ("name", "attributes", "said"),
    [
        ("../outside", {}, "'../outside', which is no file of a bundle"),
        ("/tmp/outside", {}, "which is no file of a bundle"),
        ("runs/../../outside", {}, "which is no file of a bundle"),
        ("grids/..json/outside.json", {}, "which is no file of a bundle"),
        ("grids/.outside.json", {}, "which is no file of a bundle"),
        ("runs/0123456789abcdef/final.pt", {}, "which is no file of a bundle"),
        (
            "grids/x.json",
            {"external_attr": (stat.S_IFLNK | 0o777) << 16},
            "holds a link or a special file, grids/x.json",
        ),
        ("grids/x.json", {"compress_type": zipfile.ZIP_BZIP2}, "packed by method 12"),
        ("grids/x.json", {}, "was changed: 'grids/x.json' is not what its manifest says; ask its author"),
        ("authors.json", {}, "two files of one name"),
    ],
)
def test_a_member_that_is_none_of_a_bundle_is_refused(bundle, tmp_path, name, attributes, said):
    content = members(bundle)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns about the second file of a name
        if name in content:
            with zipfile.ZipFile(bundle, "a") as packed:
                packed.writestr(name, b"again")
        else:
            pack(bundle, {**content, name: b"x"}, **attributes)
    assert said in refused(bundle, tmp_path / "b")


def test_a_bundle_that_was_unpacked_and_packed_again_with_its_folders_is_read(bundle, tmp_path):
    content = members(bundle)
    folders = {f"{parent}/": b"" for name in content for parent in Path(name).parents if str(parent) != "."}
    pack(bundle, {**folders, **content})
    (tmp_path / "again").mkdir()
    assert bundles.unpack(bundle, tmp_path / "again")["format"] == bundles.FORMAT
    pack(bundle, {**content, "outside/": b"more than a folder"})
    assert "'outside/', which is no file of a bundle" in refused(bundle, tmp_path / "b")


def test_a_file_that_was_changed_or_left_out_and_a_foreign_manifest_are_refused(bundle, tmp_path):
    content = members(bundle)
    (record,) = [name for name in content if name.endswith("record.json")]
    pack(bundle, content | {record: content[record].replace(b"0.5", b"0.9")})
    assert f"was changed: {record!r} is not what" in refused(bundle, tmp_path / "b")
    pack(bundle, {name: data for name, data in content.items() if name != record})
    assert f"was changed: {record!r} is not what" in refused(bundle, tmp_path / "c")
    pack(bundle, {name: data for name, data in content.items() if name != bundles.MANIFEST})
    assert "has no manifest" in refused(bundle, tmp_path / "d")
    pack(bundle, {"results/runs/0123456789abcdef/events.out": b"x"})
    assert "has no manifest (if somebody zipped a results directory by hand, unpack it" in refused(
        bundle, tmp_path / "by hand"
    )
    changed = {name: data + b" " for name, data in content.items() if name != bundles.MANIFEST}
    pack(bundle, content | changed)
    assert f" and {len(changed) - 1} more are not what its manifest says" in refused(bundle, tmp_path / "many")
    manifest = json.loads(content[bundles.MANIFEST]) | {"format": 2}
    pack(bundle, content | {bundles.MANIFEST: json.dumps(manifest).encode()})
    assert "is of the format 2" in refused(bundle, tmp_path / "e")
    bundle.write_bytes(b"PK nothing")
    assert "is no bundle, or a damaged one" in refused(bundle, tmp_path / "f")


MANY_ZEROS = bytes(10 * bundles.MIB)


@pytest.mark.parametrize(
    ("files", "more", "said"),
    [
        ({"grids/A.json": b"{}", "grids/a.json": b"{}"}, {}, "holds both grids/A.json and grids/a.json, which are one"),
        ({"grids/\u00e9.json": b"", "grids/e\u0301.json": b""}, {}, "which are one file on some disks"),
        ({f"grids/{number}.json": MANY_ZEROS for number in range(3)}, {}, "unpacks to 31,457,"),
        ({}, {"format": 10**40}, "has a manifest that is none: format is not an integer"),
        ({}, {"files": {"grids/\x1b[2J.json": 1}}, r"was changed: 'grids/\x1b[2J.json' is not"),
        (
            {},
            {"x": random.Random(0).randbytes(bundles.MIB).hex()},
            "has a manifest of 2,097,187 bytes, but for 0 files at most 1,048,576",
        ),
    ],
    ids=["capitals", "accents", "bomb", "format", "name", "manifest"],
)
def test_a_hostile_bundle_is_refused_in_one_sentence_before_it_fills_memory(tmp_path, files, more, said):
    with_manifest(tmp_path / "a.zip", files, **more)
    tracemalloc.start()
    try:
        sentence = refused(tmp_path / "a.zip", tmp_path / "b")
        assert tracemalloc.get_traced_memory()[1] < 10 * bundles.MIB
    finally:
        tracemalloc.stop()
    assert said in sentence and "\n" not in sentence and sentence.endswith("ask its author for another one.")


@pytest.mark.parametrize("value", ["[" * 100_000 + "]" * 100_000, "1" * 10_000], ids=["nested", "number"])
def test_of_a_manifest_that_python_cannot_read_nothing_of_python_is_said(tmp_path, value):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr(bundles.MANIFEST, f'{{"format": 1, "files": {{}}, "x": {value}}}')
    said = refused(tmp_path / "a.zip", tmp_path / "b")
    assert said == f"{tmp_path / 'a.zip'} has a manifest that is not readable JSON; ask its author for another one."


def test_more_files_than_a_bundle_has_are_refused_before_they_are_listed(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "_MOST", 4)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    assert "holds more than 4 files" in refused(bundle, tmp_path / "b")


def test_a_bundle_with_wrong_bytes_anywhere_is_refused_in_one_sentence(bundle, tmp_path):
    """Not only where a digest sees it: in the tables of the zip file, too, of which Python raises errors of many kinds."""
    whole, dice = bundle.read_bytes(), random.Random(0)
    for number in range(150):
        content = bytearray(whole)
        for _ in range(3):
            content[dice.randrange(len(content) - 600, len(content))] = dice.randrange(256)
        bundle.write_bytes(content[: dice.choice([None, None, dice.randrange(len(content))])])
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            bundles.unpack(bundle, folder)
        except StoreError as error:
            assert str(bundle) in str(error)


def test_what_export_would_write_and_import_refuse_is_not_written(bundle, tmp_path):
    with pytest.raises(
        StoreError, match=r"cannot hold both grids/A\.json and grids/a\.json: .* Choose one by --grid\."
    ):
        bundles.write(tmp_path / "b.zip", {"grids/A.json": b"{}", "grids/a.json": b"{}"}, {}, "")
    assert not (tmp_path / "b.zip").exists()


def test_a_bundle_says_nothing_of_the_machine_and_its_records_still_hold(tmp_path):
    run, failed = (cell.id for cell in cells("label-2", "fedavg")[:2])
    content = []
    for host in ("vm", "desk"):
        store = results(tmp_path / host, cells("label-2", "fedavg"), {run: 0.5}, host=host)
        with store.locked():
            about = {"reason": "boom", "traceback": f"File /home/{host}/x.py", "host": host}
            finish(store, cells("label-2", "fedavg")[1], 0.2, status="failed", **about)
        store.write_grid(LABEL, {**store.grid(LABEL), "source": f"/home/{host}/mine.yaml"})
        bundling.write(store, [LABEL], tmp_path / "a.zip", "Jane Doe")
        content.append((tmp_path / "a.zip").read_bytes())
        assert store.record(run)["host"] == host, "here it stays"
    assert content[0] == content[1]
    assert not [name for name, data in members(tmp_path / "a.zip").items() if b"desk" in data or b"/home" in data]
    with bundles.opened(tmp_path / "a.zip") as theirs:
        theirs.validate_all()
        assert not theirs.damaged and theirs.grid(LABEL)["source"] == "mine.yaml"
        assert theirs.record(run) == {key: value for key, value in store.record(run).items() if key != "host"}
        assert theirs.rows(run) == store.rows(run) and theirs.record(failed)["reason"] == "boom"


def test_a_run_that_failed_travels_and_is_repeated_there(tmp_path):
    """Without it the table of the receiver would rank a method by the runs that it survived."""
    first, second, third = AVG = cells("label-2", "fedavg")
    ours = results(tmp_path / "ours", AVG, {first.id: 0.5})
    with ours.locked():
        finish(ours, second, 0.2, status="failed", reason="boom")
        finish(ours, third, 0.2, status="failed", reason="boom")
    bundling.write(ours, [LABEL], tmp_path / "a.zip", "Jane Doe")
    here = results(tmp_path / "here", AVG, {third.id: 0.7})
    table = api.GridReport(ours.folder, "quickstart", "paper").render()
    with bundles.opened(tmp_path / "a.zip") as theirs:
        assert api.GridReport(theirs.folder, "quickstart", "paper").render() == table and "2 runs failed" in table
        found = merge_results(theirs, here)
        assert (found.taken, found.failed, found.unfinished) == ([first.id], [second.id], [])
        assert merge_results(theirs, here).failed == []
    assert here.record(third.id)["status"] == "done" and read(here).of(second.id) == "Jane Doe"
    asked = ExperimentSpec(load_grid("quickstart"), "paper", only={"algorithm": ("fedavg",), "partition": ("label-2",)})
    reasons = Experiment(asked).plan(here).reasons
    assert reasons[second.id] == "failed before" and third.id not in reasons


def test_who_trained_a_run_is_said_by_its_directory(bundle, tmp_path):
    with bundles.opened(bundle) as store:
        assert read(store).of("0" * 16) == "Jane Doe"
        (store.folder / "authors.json").write_text(text(Authors({"0" * 16: "Ann"}, "Jane Doe")))
        assert (read(store).of("0" * 16), read(store).of("1" * 16)) == ("Ann", "Jane Doe")
        (store.folder / "authors.json").write_text('{"runs": {"x": "Ann"}}')
        with pytest.raises(StoreError, match="does not say who trained which runs"):
            read(store)


@pytest.mark.parametrize(
    ("limit", "most", "said"), [("_MOST", 5, "holds 7 files"), ("_LARGEST", 100, "bytes, but at most")]
)
def test_a_bundle_that_nobody_could_open_is_not_written(bundle, tmp_path, monkeypatch, limit, most, said):
    monkeypatch.setattr(bundles, limit, most)
    with pytest.raises(StoreError, match=f"{said}.*Choose fewer by --grid"):
        bundling.write(Store(tmp_path / "a"), [LABEL], tmp_path / "b.zip", "Jane Doe")
    assert not (tmp_path / "b.zip").exists()


def test_the_last_run_of_a_bundle_is_the_last_in_any_zone(tmp_path):
    ends = ["2026-06-01T02:50:00+0200", "2026-06-01T02:10:00+0100"]  # 00:50 and 01:10 in UTC
    asked = cells("label-2", "fedavg")[:2]
    store = results(tmp_path / "a", asked, {})
    with store.locked():
        for cell, end in zip(asked, ends, strict=True):
            finish(store, cell, 0.5, finished=end)
    bundling.write(store, [LABEL], tmp_path / "a.zip", "Jane Doe")
    manifest = json.loads(members(tmp_path / "a.zip")[bundles.MANIFEST])
    assert [manifest["first_run"], manifest["last_run"]] == ends


@pytest.mark.parametrize("algorithm", ["feddyn", "fednh"])
def test_all_validation_runs_of_a_search_are_found_however_values_are_written(algorithm):
    """A space may have 1 where a config has 1.0."""
    search = make(algorithm, searcher="random", samples=8)
    points = [*itertools.islice(draws(search, 8), 8)]
    refused = {key: -1 for key in points[0]}  # by the method of today, which hides no other one
    found = {*bundling._searched(search.describe() | {"proposed": [refused, *points]})}
    assert points and {run for params in points for run in search.runs(params)} <= found
