"""Costly facts are computed once for the same data, seed and options, and whatever happens to their files, they are right."""

import threading
import time
from dataclasses import replace

import pytest
import torch

from bench.simulation import derived
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


@pytest.fixture
def task(tmp_path):
    return replace(toy_task(), derived_dir=tmp_path / "derived")


def test_a_fact_is_computed_once_for_all_that_ask(task):
    compute = Computing()
    for asking in (task, replace(task, engine="vectorised"), replace(task, initial_model=3)):
        assert_equal(asking.derived("fact", (0.1, "x"), compute), FOUND)
    assert compute.calls == 1


def test_without_a_folder_nothing_is_kept(task):
    compute = Computing()
    for _ in range(2):
        assert_equal(replace(task, derived_dir=None).derived("fact", (), compute), FOUND)
    assert compute.calls == 2 and not task.derived_dir.exists()


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
        replace(toy_task(transform="fedconcat", dataset="cifar10", shape=(3, 16, 16)), derived_dir=task.derived_dir),
        replace(toy_task(noise=0.1), derived_dir=task.derived_dir),
        *(
            replace(task, federation=replace(data, **change))
            for change in ({"images": images}, {"labels": labels}, {"clients": swapped})
        ),
    ]
    names = [derived.digest_of(one, "fact", (1,)) for one in [task, *others]]
    names += [derived.digest_of(task, "fact", (2,)), derived.digest_of(task, "other", (1,))]
    monkeypatch.setattr(derived, "_code", lambda: "other code")
    names.append(derived.digest_of(task, "fact", (1,)))
    assert len(set(names)) == len(names) == 12


def test_data_of_others_do_not_matter(task):
    data = task.federation
    part, images = task.restrict(torch.tensor([0, 1])), data.images.clone()
    images[data.clients[2]] = 0
    other = replace(part, federation=replace(data, images=images))
    assert derived.digest_of(part, "fact", ()) == derived.digest_of(other, "fact", ())


def test_the_code_of_methods_models_simulation_and_data_counts():
    assert derived._code() == derived._code() and len(derived._code()) == 64


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_damaged_files_are_replaced(task, damage):
    compute = Computing()
    task.derived("fact", (), compute)
    (path,) = task.derived_dir.glob("fact-*.pt")
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {
            "cut": whole[:middle],
            "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "empty": b"",
            "foreign": b"something else",
        }[damage]
    )
    assert_equal(task.derived("fact", (), compute), FOUND)
    assert compute.calls == 2
    task.derived("fact", (), compute)
    assert compute.calls == 2, "it is whole again"


def test_an_error_leaves_nothing_behind(task):
    def fail():
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        task.derived("fact", (), fail)
    assert not list(task.derived_dir.glob("fact-*"))
    assert_equal(task.derived("fact", (), Computing()), FOUND)


def test_where_nothing_can_be_written_it_is_computed(task, tmp_path):
    (tmp_path / "file").write_text("no folder")
    assert_equal(replace(task, derived_dir=tmp_path / "file" / "derived").derived("fact", (), Computing()), FOUND)


def test_of_several_at_once_one_computes_and_the_others_wait(task):
    compute, results = Computing(seconds=0.2), []
    asking = [threading.Thread(target=lambda: results.append(task.derived("fact", (), compute))) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert compute.calls == 1 and len(results) == 4
    for result in results:
        assert_equal(result, FOUND)
