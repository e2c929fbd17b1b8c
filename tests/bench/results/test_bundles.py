"""A bundle of somebody is refused, and nothing is written, unless it is exactly what its manifest says."""

import json
import stat
import warnings
import zipfile
from pathlib import Path

import pytest

from bench.errors import StoreError
from bench.experiments import bundling
from bench.results import bundles
from bench.results.authors import Authors, read, text
from tests.support.stores import LABEL, cells, results


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
    with pytest.raises(StoreError) as error:
        bundles.unpack(path, folder)
    assert not [*folder.parent.glob("outside*")] and not [*folder.iterdir()]
    return str(error.value)


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
        ("grids/x.json", {}, "was changed: grids/x.json is not what its manifest says"),
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


def test_a_file_that_was_changed_or_left_out_and_a_foreign_manifest_are_refused(bundle, tmp_path):
    content = members(bundle)
    (record,) = [name for name in content if name.endswith("record.json")]
    pack(bundle, content | {record: content[record].replace(b"0.5", b"0.9")})
    assert f"was changed: {record} is not what" in refused(bundle, tmp_path / "b")
    pack(bundle, {name: data for name, data in content.items() if name != record})
    assert f"was changed: {record} is not what" in refused(bundle, tmp_path / "c")
    pack(bundle, {name: data for name, data in content.items() if name != bundles.MANIFEST})
    assert "has no manifest" in refused(bundle, tmp_path / "d")
    manifest = json.loads(content[bundles.MANIFEST]) | {"format": 2}
    pack(bundle, content | {bundles.MANIFEST: json.dumps(manifest).encode()})
    assert "is of the format 2" in refused(bundle, tmp_path / "e")
    bundle.write_bytes(b"PK nothing")
    assert "is no bundle, or a damaged one" in refused(bundle, tmp_path / "f")


def test_who_trained_a_run_is_said_by_its_directory(bundle, tmp_path):
    with bundles.opened(bundle) as store:
        assert read(store).of("0" * 16) == "Jane Doe"
        (store.folder / "authors.json").write_text(text(Authors({"0" * 16: "Ann"}, "Jane Doe")))
        assert (read(store).of("0" * 16), read(store).of("1" * 16)) == ("Ann", "Jane Doe")
        (store.folder / "authors.json").write_text('{"runs": {"x": "Ann"}}')
        with pytest.raises(StoreError, match="does not say who trained which runs"):
            read(store)
