"""Fixtures of all tests."""

import csv
import os

os.environ["OMP_NUM_THREADS"] = "1"  # tensors of tests are tiny: a second thread only waits for the first

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import hypothesis
import pytest

from bench.published.lookup import PAPERS
from datasets import cache

for _name in ("FORCE_COLOR", "NO_COLOR", "PY_COLORS"):  # some CI systems set them; tests read texts without colours
    os.environ.pop(_name, None)

# The same examples on every machine, however slow it is, and none of earlier failures.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("same")

ARCHIVES = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.hookimpl(tryfirst=True)  # before those of `-m` are chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the params of a test marked `slow_but_first`, all but the first are slow."""
    tried = set[str]()
    for item in items:
        if item.get_closest_marker("slow_but_first") and not item.get_closest_marker("slow"):
            test = item.nodeid.partition("[")[0]
            if test in tried:
                item.add_marker(pytest.mark.slow)
            tried.add(test)


@pytest.fixture(scope="session", autouse=True)
def notes_of_reports(tmp_path_factory) -> Iterator[None]:
    """What reports note in the cache of the user who runs the tests would stay there for ever."""
    folder = tmp_path_factory.mktemp("notes")
    with mock.patch("bench.results.written.default_dir", lambda: folder):
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A data directory with real images: all of CIFAR-10 (as image folders) and MNIST, part of Tiny-ImageNet.

    It is $SKEWBENCH_DATA, or the archives beside the repository, unpacked once into the cache. Where there
    are none, the test is skipped; with CI=true it fails.
    """
    if named := os.environ.get("SKEWBENCH_DATA"):
        if not Path(named).is_dir():
            return _absent(f"SKEWBENCH_DATA is {named}, which is not a folder")
        return Path(named)
    if not (ARCHIVES / "unpack.sh").is_file():
        return _absent("no real images: SKEWBENCH_DATA is not set and there are no archives beside the repository")
    return _unpacked(cache.default_dir() / "real-data")


def _unpacked(folder: Path) -> Path:
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".real-data-", dir=folder.parent))
    try:
        done = subprocess.run(["sh", ARCHIVES / "unpack.sh", temporary / "data"], capture_output=True, text=True)
        if done.returncode != 0:
            return _absent(f"the archives in {ARCHIVES} could not be unpacked: {done.stderr.strip()}")
        try:
            (temporary / "data").rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            # another test process was faster
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _absent(reason: str):
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI needs the real images, but {reason}.")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def ray_session(tmp_path_factory) -> Iterator[None]:
    """Ray, started once as commands start it: those that the tests of a module run in this process find it there.

    A test that needs a session of its own starts a process, or is in a module that does not ask for this one.
    """
    from bench.execution import ray_session  # Ray takes seconds to import
    from bench.execution.resources import Machines, Resources
    from bench.execution.workspace import Workspace
    from bench.results.store import Store

    folder = tmp_path_factory.mktemp("ray")
    with (
        mock.patch.dict(os.environ),  # a session sets what its workers inherit
        mock.patch.object(tempfile, "tempdir", str(folder)),  # where each command leaves files of the scheduler's
        Store(folder / "results").locked() as store,
        ray_session.session(Workspace(store, Machines(Resources(1.0))), on_message=print),
    ):
        yield


@pytest.fixture
def read_published():
    """Paper -> lines of its CSV, every field as text."""

    def read(paper: str) -> list[dict]:
        with PAPERS[paper].path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    return read
