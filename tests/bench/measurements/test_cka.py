"""CKA against numbers computed by hand, and what it must not depend on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms.fedavg import FedAvg
from bench.measurements import features
from bench.measurements.cka import linear_cka, minibatch_cka, unbiased_hsic
from bench.simulation.local_models import local_models
from tests.support.oracles import oracle
from tests.support.toy import toy_task

ORACLE = oracle("ccvr")["cka"]


@pytest.fixture
def both() -> torch.Tensor:
    """The oracle's activations [2, 8, 3]; a zero column changes no inner product."""
    first, second = (torch.tensor(ORACLE[name], dtype=torch.double) for name in ("X", "Y"))
    return torch.stack([first, torch.nn.functional.pad(second, (0, 1))])


def close(found, expected):
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.double), rtol=0, atol=1e-9)


def test_linear_cka_of_all_examples(both):
    expected, same = ORACLE["linear_cka"], ORACLE["linear_cka_self"]
    close(linear_cka(both), [[same, expected], [expected, same]])


def test_the_unbiased_hsic(both):
    xx, xy, yy = (ORACLE[f"hsic1_{name}"] for name in ("xx", "xy", "yy"))
    close(unbiased_hsic(both), [[xx, xy], [xy, yy]])
    close(unbiased_hsic(both[:, :5])[0, 1], ORACLE["hsic1_first5_xy"])


def test_cka_from_minibatches_and_from_one_batch_of_all(both):
    close(minibatch_cka([both])[0, 1], ORACLE["unbiased_cka_full"])
    close(minibatch_cka(both.split(4, 1))[0, 1], ORACLE["minibatch_cka_batch4"])


@given(seed=st.integers(0, 1000), scale=st.floats(0.01, 100), estimator=st.sampled_from(["linear", "minibatch"]))
def test_rotation_scale_and_shift_of_a_models_outputs_do_not_matter(seed, scale, estimator):
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(3, 24, 4, generator=generator, dtype=torch.double)
    rotation, _ = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.double))
    cka = linear_cka if estimator == "linear" else lambda both: minibatch_cka(both.split(8, 1))
    moved = torch.cat([outputs[:1] @ rotation * scale + 3, outputs[1:]])
    torch.testing.assert_close(cka(moved), cka(outputs), rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("cka", [linear_cka, lambda outputs: minibatch_cka(outputs.split(50, 1))])
def test_a_model_whose_outputs_are_all_alike_is_like_no_other(cka):
    generator = torch.Generator().manual_seed(0)
    alike = torch.rand(2, 1, 7, generator=generator).expand(2, 500, 7)
    found = cka(torch.cat([alike, torch.randn(1, 500, 7, generator=generator)]))
    assert found[:2].isnan().all() and found[2, 2] == pytest.approx(1)


def test_a_last_batch_of_fewer_than_four_images_is_left_out(monkeypatch):
    monkeypatch.setattr(features, "_BATCH", 27)  # of 30 test images
    task, method = toy_task(), FedAvg()
    found = features.cka(task, local_models(task, method, method.init(task)), "minibatch")
    assert all(isinstance(value, float) for layer in found["layers"].values() for row in layer for value in row)
