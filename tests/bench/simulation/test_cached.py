"""Costly facts are computed once for the same data, seed and options, and whatever happens to their files, they are right."""

import hashlib
import io
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.execution.ray_environment import ROOT
from bench.simulation import cached
from tests.support.toy import assert_equal, toy_task

FOUND = {"numbers": torch.arange(3.0), "inside": {"count": torch.tensor(2)}}


class Computing:
    """Counts how often it is called."""

    def __init__(self, seconds: float = 0.0):
        self.calls, self.seconds = 0, seconds

    def __call__(self):
        self.calls += 1
        time.sleep(self.seconds)
        return FOUND


def is_valid(found) -> bool:
    return found["numbers"].shape == (3,)


def derive(task, purpose: str, key: tuple, compute):
    return task.cached(purpose, key, compute, is_valid)


@pytest.fixture
def task(tmp_path):
    return replace(toy_task(), cache_dir=tmp_path / "derived")


def test_a_fact_is_computed_once_for_all_that_ask(task):
    compute = Computing()
    for asking in (task, replace(task, engine="vectorised"), replace(task, initial_model=3)):
        assert_equal(derive(asking, "fact", (0.1, "x"), compute), FOUND)
    assert compute.calls == 1


def test_without_a_folder_nothing_is_kept(task):
    compute = Computing()
    for _ in range(2):
        assert_equal(derive(replace(task, cache_dir=None), "fact", (), compute), FOUND)
    assert compute.calls == 2 and not task.cache_dir.exists()


def test_a_fact_belongs_to_its_data_partition_seed_precision_and_key(task, monkeypatch):
    data = task.federation
    images, labels = data.images.clone(), data.labels.clone()
    images[data.clients[2][0], 0, 0, 0] ^= 1
    labels[data.clients[4][1]] += 1
    swapped = tuple(data.clients[i] for i in (1, 0, 2, 3, 4))
    others = [
        replace(task, seed=1),
        replace(task, dtype=torch.float32),
        task.restrict(torch.tensor([0, 1])),
        replace(toy_task(transform="fedconcat", dataset="cifar10", shape=(3, 16, 16)), cache_dir=task.cache_dir),
        replace(toy_task(noise=0.1), cache_dir=task.cache_dir),
        *(
            replace(task, federation=replace(data, **change))
            for change in ({"images": images}, {"labels": labels}, {"clients": swapped})
        ),
    ]
    module = "algorithms.fedcollab"
    names = [cached.digest_of(one, "fact", (1,), module) for one in [task, *others]]
    names += [cached.digest_of(task, "fact", (2,), module), cached.digest_of(task, "other", (1,), module)]
    names.append(cached.digest_of(task, "fact", (1,), "algorithms.scaffold"))
    monkeypatch.setattr(torch, "__version__", "another")
    names.append(cached.digest_of(task, "fact", (1,), module))
    monkeypatch.setattr(cached, "hash_of", lambda modules: "other code")
    names.append(cached.digest_of(task, "fact", (1,), module))
    assert len(set(names)) == len(names) == 14


def test_data_of_others_do_not_matter(task):
    data = task.federation
    part, images = task.restrict(torch.tensor([0, 1])), data.images.clone()
    images[data.clients[2]] = 0
    other = replace(part, federation=replace(data, images=images))
    assert cached.digest_of(part, "fact", (), "") == cached.digest_of(other, "fact", (), "")


def test_the_code_that_counts_is_that_of_the_module_which_computes_and_of_the_task(task, monkeypatch):
    modules = []
    monkeypatch.setattr(cached, "hash_of", lambda names: modules.append(names) or "code")
    derive(task, "fact", (), Computing())
    assert modules == [(__name__, "bench.simulation.task")]


def sealed(stored: bytes) -> bytes:
    """With the checksum of a whole file."""
    return hashlib.sha256(stored).digest() + stored


def saved(found) -> bytes:
    buffer = io.BytesIO()
    torch.save(found, buffer)
    return sealed(buffer.getvalue())


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "damage", ["cut", "flipped", "empty", "foreign", "no archive", "list", "other names", "other shape", "code"]
)
def test_what_is_damaged_or_not_valid_is_replaced_and_never_run(task, damage, tmp_path):
    compute = Computing()
    derive(task, "fact", (), compute)
    (path,) = task.cache_dir.glob("fact-*.pt")
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {
            "cut": whole[:middle],
            "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "empty": b"",
            "foreign": b"something else",
            "no archive": sealed(b"something else"),
            "list": saved([1, 2]),
            "other names": saved({"others": FOUND["numbers"]}),
            "other shape": saved(FOUND | {"numbers": torch.arange(4.0)}),
            "code": saved(FOUND | {"numbers": Trap(tmp_path / "was run")}),
        }[damage]
    )
    assert_equal(derive(task, "fact", (), compute), FOUND)
    assert compute.calls == 2 and not (tmp_path / "was run").exists()
    derive(task, "fact", (), compute)
    assert compute.calls == 2, "it is whole again"


@pytest.mark.parametrize("trap", ["pipe", "folder", "link"])
def test_what_is_no_file_is_neither_read_nor_waited_for(task, trap, tmp_path):
    derive(task, "fact", (), Computing())
    (path,) = task.cache_dir.glob("fact-*.pt")
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    make = {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda path: os.symlink(elsewhere, path)}[trap]
    make(path)
    before, compute = elsewhere.read_bytes(), Computing()
    assert_equal(derive(task, "fact", (), compute), FOUND)
    assert compute.calls == 1 and elsewhere.read_bytes() == before
    assert len(list(task.cache_dir.iterdir())) == 2, "the lock, and the file or what stands in its place"


def test_a_link_in_place_of_the_lock_harms_nothing(task, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    derive(task, "fact", (), Computing())
    (path,) = task.cache_dir.glob("fact-*.pt")
    path.unlink()
    lock = task.cache_dir / f".{path.name}.lock"
    lock.unlink()
    lock.symlink_to(precious)
    assert_equal(derive(task, "fact", (), Computing()), FOUND)
    assert precious.read_text() == "precious"


@pytest.mark.slow
def test_what_a_killed_writer_left_is_removed_after_an_hour(task):
    script = f"""
import os
from pathlib import Path
import torch
from bench.simulation import cached
os.replace = lambda *paths: os._exit(9)
cached.kept(Path({str(task.cache_dir)!r}), "x.pt", lambda: {{"a": torch.ones(1)}}, bool)
"""
    left = subprocess.run([sys.executable, "-c", script], cwd=ROOT)
    assert left.returncode == 9
    (partial,) = task.cache_dir.glob(".x.pt.*.partial")
    os.utime(partial, (time.time() - 3700,) * 2)
    cached.kept(task.cache_dir, "x.pt", lambda: FOUND, bool)
    assert {path.name for path in task.cache_dir.iterdir()} == {"x.pt", ".x.pt.lock"}


def test_an_error_leaves_nothing_behind(task):
    def fail():
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        derive(task, "fact", (), fail)
    assert not list(task.cache_dir.glob("fact-*"))
    assert_equal(derive(task, "fact", (), Computing()), FOUND)


def test_where_nothing_can_be_written_it_is_computed(task, tmp_path):
    (tmp_path / "file").write_text("no folder")
    assert_equal(derive(replace(task, cache_dir=tmp_path / "file" / "derived"), "fact", (), Computing()), FOUND)


def test_of_several_at_once_one_computes_and_the_others_wait(task):
    compute, results = Computing(seconds=0.2), []
    asking = [threading.Thread(target=lambda: results.append(derive(task, "fact", (), compute))) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert compute.calls == 1 and len(results) == 4
    for result in results:
        assert_equal(result, FOUND)
