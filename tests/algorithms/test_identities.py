"""The values at which one method becomes another, and the sums that a method conserves."""

from typing import get_args

import pytest
import torch

from algorithms.centralized import Centralized
from algorithms.fedavg import FedAvg
from algorithms.fedavgm import FedAvgM
from algorithms.fedcm import FedCM
from algorithms.fedgen import FedGen
from algorithms.fedlc import FedLC
from algorithms.fednova import FedNova
from algorithms.fedprox import FedProx
from algorithms.fedrs import FedRS
from algorithms.fedsam import MoFedSAM
from algorithms.local_training import LocalTraining
from algorithms.moon import Moon
from algorithms.scaffold import Scaffold
from algorithms.shared import tree
from algorithms.shared.control_variates import MomentumMode
from tests.support.toy import toy_task, train

NO_SINGLE = (14, 4, 20, 8, 11)  # no batch of one example, which MOON would skip


def assert_same_model(one, other, tolerance=0.0):
    for a, b in zip(tree.leaves(one["params"]), tree.leaves(other["params"]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "method, tolerance",
    [
        (FedProx(mu=0), 0),
        (Moon(mu=0), 0),
        (FedRS(alpha=1), 0),
        (FedLC(tau=0), 0),
        (FedAvgM(server_momentum=0), 0),
        (FedGen(label_weight=0, latent_weight=0, generator_steps=2), 0),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_at_its_neutral_value_a_method_is_fedavg(method, tolerance, engine):
    task = toy_task(engine=engine, sizes=NO_SINGLE)
    assert_same_model(train(method, task), train(FedAvg(), task), tolerance)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_the_largest_norm_of_all_methods_is_the_clip_of_those_that_have_one(engine):
    """FedCM with alpha 1 is FedAvg with a clip."""
    free, one, other = (
        train(method, toy_task(engine=engine, max_gradient_norm=most))
        for method, most in ((FedAvg(), None), (FedAvg(), 0.5), (FedCM(alpha=1.0, clip=0.5), None))
    )
    assert_same_model(one, other)
    assert tree.norm(tree.subtract(one["params"], free["params"])) > 1e-3
    assert_same_model(train(FedAvg(), toy_task(engine=engine, max_gradient_norm=1e6)), free)


@pytest.mark.parametrize("method", [FedCM, MoFedSAM])
def test_where_the_gradient_has_a_weight_the_largest_norm_is_that_of_the_gradient(method):
    """Else a bound of 0.5 would be one of 5 at alpha 0.1, ten times that of FedAvg."""
    free, own, setting = (
        train(method(alpha=0.1, clip=clip), toy_task(max_gradient_norm=most))
        for clip, most in ((None, None), (0.5, None), (None, 0.5))
    )
    assert_same_model(setting, own)
    assert tree.norm(tree.subtract(own["params"], free["params"])) > 1e-3


@pytest.mark.parametrize("mode", ["corrected", "steps"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_clients_is_fedavg(mode, momentum):
    task = toy_task(sizes=(12, 12, 12), momentum=momentum)
    assert_same_model(train(FedNova(momentum_mode=mode), task), train(FedAvg(), task), 1e-12)


def test_fednova_with_unequal_clients_is_not_fedavg():
    task = toy_task()
    nova, avg = (train(method, task)["params"]["classifier.weight"] for method in (FedNova(), FedAvg()))
    assert (nova - avg).abs().max() > 1e-3


@pytest.mark.parametrize("mode", get_args(MomentumMode))
def test_mean_client_control_of_scaffold_is_the_server_control(mode):
    state = train(Scaffold(momentum_mode=mode), toy_task())
    controls = tree.stack([row["control"] for row in state["clients"]["rows"].values()])
    means = tree.map(lambda rows: rows.mean(0), controls)
    for mean, control in zip(tree.leaves(means), tree.leaves(state["server"]["control"]), strict=True):
        torch.testing.assert_close(mean, control, rtol=0, atol=1e-10)
        assert control.abs().max() > 0


def test_first_round_of_scaffold_is_fedavg_where_clients_are_equal():
    task = toy_task(sizes=(12, 12, 12))
    assert_same_model(train(Scaffold(), task, rounds=1), train(FedAvg(), task, rounds=1), 1e-12)


def test_modes_of_scaffold_agree_without_momentum():
    task = toy_task(momentum=0.0)
    outside, *others = (train(Scaffold(momentum_mode=mode), task) for mode in get_args(MomentumMode))
    for other in others:
        assert_same_model(outside, other, 1e-10)


def test_scaffold_diverges_under_momentum_in_one_mode_alone():
    task = toy_task(rounds=30, lr=0.01)
    start = task.initial_params()
    far = {
        mode: tree.squared_distance(train(Scaffold(momentum_mode=mode), task)["params"], start)
        for mode in get_args(MomentumMode)
    }
    assert not far.pop("inside").isfinite() and max(far.values()) < 1e4


def test_local_training_of_a_single_client_is_fedavg_of_a_single_client():
    task = toy_task(sizes=(20,))
    own = LocalTraining().deploy(task, train(LocalTraining(), task), torch.tensor([0]))
    assert_same_model({"params": tree.row(own.params, 0)}, train(FedAvg(), task), 1e-12)


def test_clients_of_local_training_do_not_influence_each_other():
    task = toy_task()
    both = LocalTraining().deploy(task, train(LocalTraining(), task), torch.tensor([2])).params
    alone = task.restrict(torch.tensor([2]))
    single = LocalTraining().deploy(alone, train(LocalTraining(), alone), torch.tensor([0])).params
    assert_same_model({"params": both}, {"params": single})


def test_centralized_keeps_its_momentum_between_rounds():
    one_long = toy_task(sizes=(20,), rounds=1, local_epochs=2, batch_size=20)
    two_short = toy_task(sizes=(20,), rounds=2, local_epochs=1, batch_size=20)
    # Full batches of a plain transform: which pass an example is in makes no difference beyond rounding.
    assert_same_model(train(Centralized(), one_long), train(Centralized(), two_short), 1e-12)
    fedavg, centralized = (train(method, two_short)["params"] for method in (FedAvg(), Centralized()))
    assert not torch.equal(fedavg["classifier.weight"], centralized["classifier.weight"])
