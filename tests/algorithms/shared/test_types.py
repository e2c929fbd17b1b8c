"""Batches, and how they are cut."""

import pytest
import torch

from algorithms.shared.types import Batch
from bench.simulation.engines import _pad
from tests.support.toy import toy_task


def batch(num_rows: int, num_real: int | None = None) -> Batch:
    """Rows 0, 1, ...; the first ones are real, or all if num_real is None."""
    rows = torch.arange(num_rows)
    return Batch(rows.double().view(-1, 1, 1, 1), rows, None if num_real is None else rows < num_real)


def real(part: Batch) -> list[int]:
    rows = part.y if part.mask is None else part.y[part.mask]
    assert part.x.flatten().tolist() == part.y.tolist()
    return rows.tolist()


@pytest.mark.parametrize("num_rows", [1, 2, 4, 5, 7])
def test_halves_are_the_first_half_of_the_rows_rounded_down_and_the_rest(num_rows):
    middle = num_rows // 2
    assert list(map(real, batch(num_rows).halves())) == [list(range(middle)), list(range(middle, num_rows))]


@pytest.mark.parametrize("num_rows", [1, 2, 7, 8])
def test_halves_of_a_padded_batch_are_those_of_its_real_rows_and_half_as_long(num_rows):
    for num_real in range(num_rows + 1):
        halves = batch(num_rows, num_real).halves()
        assert list(map(real, halves)) == list(map(real, batch(num_real).halves()))
        assert [len(half.y) for half in halves] == [max(1, num_rows // 2), num_rows - num_rows // 2]


def test_halves_are_traced_for_clients_with_different_numbers_of_rows():
    one = batch(6)._replace(key=torch.tensor(0))
    masks = torch.arange(6) < torch.tensor([[6], [5], [0]])
    cut = torch.func.vmap(lambda mask: one._replace(mask=mask).halves())(masks)
    for client, mask in enumerate(masks):
        for found, expected in zip(cut, one._replace(mask=mask).halves(), strict=True):
            assert all(torch.equal(a[client], b) for a, b in zip(found, expected, strict=True))


def test_padding_is_last():
    task = toy_task()
    plans, _ = _pad([task.batch_indices(client, 0) for client in range(task.population)])
    mask = plans["mask"]
    assert not mask.all() and not (mask[..., 1:] & ~mask[..., :-1]).any()
