"""A file that is damaged, strange or hostile costs what it held, and nothing else; it is named, and leads nowhere."""

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import bench.tune
from bench.cli import app
from bench.run import FINAL
from bench.store import Store
from bench.stored import SEAL
from bench.study import Study
from tests.bench.alone import play_jobs
from tests.bench.searching import finish, make

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
LEFT_OUT = "1"  # the seed whose calibration is not played yet, so that the state of its base is needed


class Command:
    """Commands of the program in this process, without Ray.

    Attributes:
        played: ids of the runs that the last one has played.
    """

    def __init__(self, folder: Path, monkeypatch):
        self.folder, self.played = folder, []
        monkeypatch.setattr(bench.tune, "play", self._play)

    def __call__(self, *words: object) -> tuple[int, str]:
        """Exit code and output."""
        self.played = []
        result = CliRunner().invoke(app, [*map(str, words), "--results-dir", str(self.folder)])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.output and not re.search(
            r"\b(dict|NoneType|KeyError|TypeError)\b", result.output
        )
        return result.exit_code, re.sub(r"\s+", " ", result.output)

    def _play(self, jobs, *arguments, **options):
        self.played = [job.id for job in jobs]
        play_jobs(jobs, *arguments, **options)


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    """A grid file, and beside it a results directory with its finished runs but one, and a search."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "mine.yaml").write_text(yaml.safe_dump(GRID))
    with pytest.MonkeyPatch.context() as patch:
        bench = Command(folder / "results", patch)
        code, text = bench("run", "--grid", folder / "mine.yaml")
        assert code == 0, text
        (folder / "whole.md").write_text((folder / "results" / "reports" / "mine@paper.md").read_text())
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
    shutil.rmtree(store.folder / "reports")
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


def files_of(results: Path) -> list[Path]:
    """Every file of a results directory."""
    return sorted(path for path in results.rglob("*") if path.is_file() and path.name != ".lock")


def check(real: Path, folder: Path, name: Path, damage: str, monkeypatch, sealed: bool = True) -> None:
    """One file of a copy is damaged: `report` and then `run` say so, what is whole is not played again, and the table of the
    end is the one without damage."""
    shutil.copytree(real, folder)
    results = folder / "results"
    if not sealed:
        without_seals(results)
    bench = Command(results, monkeypatch)
    before = Store(results).records()
    _, expected = bench("report", "--grid", "mine", "--print")
    path = results / name
    DAMAGE[damage](path)
    told = f"{name} " if name.name != FINAL else str(name)

    code, text = bench("report", "--grid", "mine", "--print")
    is_grid = name.parts[0] == "grids"
    assert code == (2 if is_grid and Store(results).grid(path.stem) is None else 0), text
    assert told in text or expected in text or damage == "removed", "the damage is named, or costs nothing"

    code, text = bench("run", "--grid", folder / "mine.yaml")
    assert code == 0, text
    owner = name.parts[1] if name.parts[0] == "runs" else ""
    whole = {run for run in before if run != owner}
    assert not whole & set(bench.played), "what is finished and undamaged is not played again"
    if owner in bench.played and damage != "removed":
        assert told in text and list((results / "superseded").glob(f"{owner}-*")), "it is named, and kept"
    told_of_digest = "wrapper" in text  # the table was printed
    assert told_of_digest and (results / "reports" / "mine@paper.md").read_text() == _with(real, folder)


def _with(real: Path, folder: Path) -> str:
    return (real / "whole.md").read_text()


@pytest.fixture
def bench_(tmp_path, monkeypatch) -> Command:
    return Command(tmp_path / "results", monkeypatch)


def _kinds(results: Path) -> Iterator[Path]:
    """One file of each kind."""
    found = {re.sub(r"\d+", "", path.name): path for path in files_of(results)}
    yield from found.values()


@pytest.mark.parametrize("damage", ["cut in the middle", "[]", "a link", "another number"])
def test_a_damaged_file_of_each_kind_is_named_and_played_again(real, tmp_path, monkeypatch, damage):
    for number, path in enumerate(_kinds(real / "results")):
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
