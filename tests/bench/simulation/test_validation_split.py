"""Validation data: held out from training data, client by client, and the test split stays unread."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.config.resolve import resolve
from bench.config.schema import run_id
from bench.errors import ConfigError
from bench.simulation.build import build_task
from bench.simulation.run import Run
from bench.simulation.validation_split import hold_out, hold_out_together
from tests.support.trained import to_end

SETTINGS = {"dataset": "digits", "partition": "label-2", "clients": 12, "rounds": 2, "local_epochs": 1, "model": "mlp"}


class Poison:
    """Images and labels that nobody may look at."""

    def __getattribute__(self, name):
        raise AssertionError(f"the test split was read: {name}")


@pytest.mark.slow_but_first
@pytest.mark.parametrize("algorithm", ["fedavg", "fedconcat", "ifca", "ccvr", "local"])
def test_no_test_image_and_no_test_label_is_read_during_a_search(digits, algorithm):
    poisoned = dataclasses.replace(digits, test=Poison())
    run = to_end(Run(resolve({**SETTINGS, "algorithm": algorithm, "split": "validation"}), poisoned))
    assert any("accuracy" in key for key in run.result()["summary"]["last"])
    with pytest.raises(AssertionError, match="the test split was read"):
        Run(resolve({**SETTINGS, "algorithm": algorithm}), poisoned)


def test_each_client_sets_its_share_of_each_of_its_classes_aside(digits):
    test, validation = (
        build_task(resolve({**SETTINGS, "algorithm": "fedavg", "split": split}), digits).federation
        for split in ("test", "validation")
    )
    before, after = test.label_counts.numpy(), validation.label_counts.numpy()
    expected = np.maximum(np.minimum(np.ceil(0.15 * before - 0.5), before - 1), 0)
    np.testing.assert_array_equal(before - after, expected)
    assert len(validation.test_labels) == expected.sum()
    for with_all, without in zip(test.clients, validation.clients, strict=True):
        assert set(without.tolist()) < set(with_all.tolist())
    trained = {row for rows in validation.clients for row in rows.tolist()}
    assert not trained & set(
        hold_out_together(digits.train.labels, [rows.numpy() for rows in test.clients], 10, 0.15, 0)[1]
    )


@given(
    sizes=st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=5),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 5),
)
def test_nothing_is_lost_and_every_class_of_a_client_is_trained_on(sizes, share, seed):
    labels = np.concatenate([np.repeat(range(3), counts) for counts in sizes]).astype(np.int64)
    ends = np.cumsum([sum(counts) for counts in sizes])
    clients = np.split(np.arange(len(labels)), ends[:-1])
    try:
        kept, held = hold_out_together(labels, clients, 3, share, seed)
    except ValueError:
        return
    assert sorted([*np.concatenate(kept), *held]) == list(range(len(labels)))
    for rows, all_rows in zip(kept, clients, strict=True):
        assert set(labels[rows]) == set(labels[all_rows]) and len(rows) < len(all_rows)


@pytest.mark.parametrize(
    ("counts", "share", "held"),
    [
        ([10, 3, 7], 0.15, [1, 0, 1]),  # of 1.5, 0.45 and 1.05
        ([4, 1, 0], 0.9, [3, 0, 0]),  # of 3.6 and 0.9: one is trained on
        ([2, 3, 1], 0.1, [0, 1, 0]),  # nothing of any: one of the largest class
    ],
)
def test_a_client_sets_aside_the_share_of_each_class_but_not_all_of_it_and_at_least_one_example(counts, share, held):
    labels = np.repeat([0, 1, 2], counts)
    _, (rows,) = hold_out(labels, [np.arange(len(labels))], 3, share, 0)
    assert np.bincount(labels[rows], minlength=3).tolist() == held


def test_what_is_held_out_is_another_draw_for_another_seed_and_the_same_for_the_same():
    labels, clients = np.repeat([0, 1], 50), [np.arange(100)]
    one, same, other = (hold_out_together(labels, clients, 2, 0.15, seed)[1] for seed in (0, 0, 1))
    assert np.array_equal(one, same) and not np.array_equal(one, other) and len(one) == 14


@pytest.mark.parametrize(
    ("labels", "clients", "share", "said"),
    [
        ([0, 0, 1], [[0, 1], [2]], 0.15, "but client 1 has not; use fewer clients"),
        ([0, 1] * 7, [[2 * i, 2 * i + 1] for i in range(7)], 0.15, "clients 0, 1, 2, 3, 4 and 2 more have not"),
        ([0] * 20 + [1, 1], [list(range(22))], 0.15, "sets an example of class 1 aside; use a larger share"),
    ],
)
def test_a_client_or_class_without_validation_examples_is_named(labels, clients, share, said):
    with pytest.raises(ValueError, match=said):
        hold_out_together(np.array(labels), [np.array(rows) for rows in clients], 2, share, 0)


def test_the_split_is_part_of_the_run_id_and_of_no_test_run():
    test, validation = (
        resolve({**SETTINGS, "algorithm": "fedavg", "split": split}) for split in ("test", "validation")
    )
    assert run_id(test) != run_id(validation) and validation.validation_share == 0.15
    assert "validation_share" not in test.canonical()
    with pytest.raises(ConfigError, match="validation_share is for the split validation only"):
        resolve({**SETTINGS, "algorithm": "fedavg", "validation_share": 0.1})
    with pytest.raises(ConfigError, match="test_examples is for the split test only"):
        resolve({**SETTINGS, "algorithm": "fedavg", "split": "validation", "test_examples": 100})
