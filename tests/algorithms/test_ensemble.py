"""Ensembles of the models of one-shot training: rules by which they answer together."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import algorithms
from algorithms.ensemble import EnsembleOfClients, confusion
from algorithms.fedconcat import FedConcat
from algorithms.fedprox import FedProx
from algorithms.oneshot import OneShot
from bench.models.ensemble import RULES, ByRule, votes
from tests.support.by_hand import double
from tests.support.oracles import close, deployed, logits_of, oracle, paper_task
from tests.support.toy import normalised_task, toy_task, train

ORACLE = oracle("oneshot")
EVERYONE = torch.arange(5)
BYTES = ORACLE["oneshot_bytes"]["expected"]
KNOWN = ORACLE["ensembles"]
LOGITS = double(KNOWN["inputs"]["logits_client_sample_class"]).transpose(0, 1)  # [B, m, C]
COUNTS = double(KNOWN["inputs"]["class_counts"])
WEIGHTS = COUNTS / COUNTS.sum(0)
KNOWLEDGE = {
    "weighted-logits": WEIGHTS,
    "weighted-probabilities": WEIGHTS,
    "polychotomous": double(KNOWN["inputs"]["confusion_client_true_predicted"]),
}
SCORES = {
    "logits": "a_mean_logit",
    "probabilities": "b_mean_prob",
    "weighted-logits": "d_count_weighted_logit",
    "weighted-probabilities": "e_count_weighted_prob",
    "polychotomous": "f_polychotomous",
}


@pytest.mark.parametrize("rule", SCORES)
def test_rules_follow_the_oracle(rule):
    close(WEIGHTS, KNOWN["expected"]["a_weights"])
    found = RULES[rule].combine(LOGITS, KNOWLEDGE.get(rule))
    score = found if rule.endswith("logits") else found.exp()
    close(score, KNOWN["expected"][SCORES[rule]])
    assert found.argmax(1).tolist() == KNOWN["expected"]["argmax"][SCORES[rule]]


def test_ties_of_votes_are_decided_by_probabilities_then_by_the_lowest_class():
    close(votes(LOGITS), KNOWN["expected"]["c_votes"])
    found = RULES["votes"].combine(LOGITS, None)
    assert found.argmax(1).tolist() == KNOWN["expected"]["argmax_c_ties_by_summed_probability"]
    equal = double([[[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
    assert RULES["votes"].combine(equal, None).argmax(1).tolist() == [0]


@pytest.mark.parametrize("rule", ["logits", "probabilities", "votes", "weighted-probabilities"])
def test_of_equal_models_all_rules_say_the_same(rule):
    one = torch.randn(4, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known = torch.full((5, 3), 0.2, dtype=torch.float64)
    found = RULES[rule].combine(one.expand(-1, 5, -1), known)
    assert found.argmax(1).tolist() == one[:, 0].argmax(1).tolist()
    if rule != "votes":
        close(found.softmax(1), one[:, 0].softmax(1).tolist())


def test_a_class_that_nobody_has_leaves_the_loss_finite():
    known = torch.tensor([[1.0, 1.0, 0.0]] * 3, dtype=torch.float64)
    assert torch.isfinite(RULES["weighted-probabilities"].combine(LOGITS, known)).all()
    confusions = torch.zeros(3, 3, 3, dtype=torch.float64)
    assert torch.isfinite(RULES["polychotomous"].combine(LOGITS, confusions)).all()


@pytest.mark.parametrize("client_init", ["common", "independent"])
def test_the_mean_logit_is_fedconcat_with_the_classifiers_of_its_clients(client_init):
    task = toy_task(rounds=1)
    ensemble = EnsembleOfClients(base=OneShot(client_init=client_init))
    concat = FedConcat(
        num_clusters="none", encoder_rounds=1, classifier_rounds=0, classifier_init="clusters", cluster_init=client_init
    )
    torch.testing.assert_close(5 * logits_of(task, ensemble), logits_of(task, concat), rtol=0, atol=1e-12)


def test_deployed_rules_know_class_counts_and_confusions():
    task = toy_task(rounds=1)
    weighted = deployed(EnsembleOfClients(rule="weighted-logits"), task)
    counts = task.federation.label_counts
    close(weighted.params["knowledge"], (counts / counts.sum(0)).tolist())
    voting = EnsembleOfClients(base=OneShot(hold_out=0.3), rule="polychotomous")
    shares = deployed(voting, task).params["knowledge"]
    close(shares.sum(2), torch.ones(5, 3).tolist())
    assert torch.isfinite(logits_of(task, voting)).all()
    # Calls of examples of classes 0, 0, 2; of class 1 there is none.
    found = confusion(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 2]), 3)
    close(found, [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]])


def test_models_with_running_statistics_keep_their_own():
    task = normalised_task(rounds=1)
    ensemble = EnsembleOfClients()
    state = train(ensemble, task)
    _, kept = ensemble.oneshot.trained(task, state)
    one = ensemble.deploy(task, state, EVERYONE)
    assert torch.equal(one.buffers["encoder3.stem.norm.running_mean"], kept["buffers"]["stem.norm.running_mean"][3])


def test_what_is_impossible_is_refused():
    with pytest.raises(ValueError, match="ensemble combines the models that the clients of oneshot have trained, but"):
        EnsembleOfClients(base=FedProx())
    with pytest.raises(ValueError, match="needs examples that clients hold out; set base.hold_out"):
        EnsembleOfClients(rule="polychotomous")
    with pytest.raises(ValueError, match="hold_out must be at least 0 and below 1, but got 1"):
        OneShot(hold_out=1.0)


@pytest.mark.parametrize("name", ["ccvr", "oracle", "co-boosting", "fens-linear"])
def test_what_reads_images_without_their_noise_is_refused_by_its_name(name):
    config = SimpleNamespace(partition="noise-0.1")
    said = f"{name} is not defined for inputs with noise, but the partition is noise-0.1."
    assert algorithms.make(name).validate(config) == [said]
    assert algorithms.make(name).validate(SimpleNamespace(partition="iid")) == []


def test_one_class_per_client_is_said():
    task = toy_task(sizes=(4, 4, 4))
    alone = task.federation.label_counts.clamp(max=0)
    alone[:, 0] = 4
    single = replace(task, federation=replace(task.federation, label_counts=alone))
    assert EnsembleOfClients().caveats(task) == [
        "Clients trained alone for 3 rounds, in each of which momentum started anew."
    ]
    assert EnsembleOfClients(rule="votes").caveats(single)[-1].startswith("ensemble-vote: each client has one class")


def test_bytes_of_one_exchange_and_of_an_ensemble():
    task = paper_task()
    assert OneShot().traffic(task) == 2 * BYTES["one_way"]
    assert EnsembleOfClients().traffic(task) == 2 * BYTES["one_way"] + BYTES["ensemble_deployed"]
    weighted = EnsembleOfClients(rule="weighted-logits")
    assert weighted.traffic(task) - EnsembleOfClients().traffic(task) == 4 * 10
    model = ByRule((3, 32, 32), 10, (task.model,) * 10)
    assert sum(leaf.numel() for leaf in model.init(torch.Generator()).values()) == 10 * BYTES["params"]
