"""What FedBN, FedAS, FedPAC, GPFL and FedCP have in common: heads of absent clients, bytes, footnotes and errors."""

from dataclasses import dataclass, replace

import pytest
import torch

import algorithms
from algorithms.fedas import FedAS
from algorithms.fedbn import FedBN
from algorithms.fedcp import FedCP
from algorithms.fedpac import FedPAC
from algorithms.gpfl import GPFL
from algorithms.shared import tree
from algorithms.shared.client_states import read_rows
from bench import models
from bench.models.base import Model
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import NUM_CLASSES, assert_equal, normalised_task, toy_task, train

ORACLE = oracle("personal")
ENGINES = pytest.mark.parametrize("engine", ["loop", "vectorised"])
EVERYONE = torch.arange(5)
CP = ORACLE["fedcp"]
PARTS = [FedBN(), FedAS(), FedPAC(), GPFL(), FedCP()]


@ENGINES
@pytest.mark.parametrize("method", [FedAS(), FedPAC(), GPFL(), FedCP()], ids=lambda one: type(one).__name__)
def test_clients_that_were_absent_from_all_rounds_fit_their_head_to_the_received_body(method, engine):
    task = toy_task(engine=engine, participation=0.4, rounds=1)
    state, cohort = train(method, task), set(task.sample_cohort(0).ids.tolist())
    absent, none, every = (
        replace(method, fit_private=who).deploy(task, state, EVERYONE).params for who in ("absent", "none", "all")
    )
    for client in range(5):
        found, plain, fitted = (tree.row(params, client) for params in (absent, none, every))
        assert_equal(found, plain if client in cohort else fitted, 1e-12)
        assert not torch.equal(plain["classifier.weight"], fitted["classifier.weight"])
        assert_equal(fitted["linear1.weight"], state["params"]["linear1.weight"])
    assert_equal(method.deploy(task, state, EVERYONE).params, absent)


def test_heads_that_are_fitted_move_no_shared_statistics_and_own_ones():
    task = normalised_task(participation=0.4, rounds=1)
    for method in (FedPAC(), GPFL(), FedCP(), FedAS()):
        state = train(method, task)
        deployed = replace(method, fit_private="all").deploy(task, state, EVERYONE)
        for client, found in enumerate(tree.row(deployed.buffers, client) for client in range(5)):
            if isinstance(method, FedAS):
                before = read_rows(state["clients"], EVERYONE[client : client + 1])["buffers"]
                counter = "stem.norm.num_batches_tracked"
                assert found[counter] == before[counter] + task.cohort(EVERYONE).num_steps[client]
            else:
                assert_equal(found, state["buffers"])


@ENGINES
@pytest.mark.parametrize("make", [FedPAC, GPFL, FedCP])
def test_clients_scored_after_training_deploy_what_the_next_round_trains(make, engine):
    task, method = toy_task(engine=engine, rounds=2), make(scored="after")
    state = train(method, task)
    deployed = method.deploy(task, state, EVERYONE)
    assert deployed.model == method.deployed_model(task)
    outputs = method.map_clients(task, method.local_update, task.cohort(EVERYONE), state)
    own = outputs.result.client
    head = own.get("params", own)["classifier.weight"]
    assert torch.equal(deployed.params["classifier.weight"], head)
    moved = state["params"]["linear1.weight"] + outputs.result.update["delta"]["linear1.weight"]
    assert torch.equal(deployed.params["linear1.weight"], moved)


@pytest.mark.parametrize("method", PARTS, ids=lambda one: type(one).__name__)
def test_a_footnote_says_when_models_are_scored(method):
    said = f"{type(method).__name__.lower()}: clients' models are scored {method.scored} local training."
    assert method.caveats(normalised_task())[0] == said


def test_bytes_of_parts():
    known = ORACLE["bytes_personal"]["expected"]
    task = toy_task(shape=(3, 32, 32), dataset="cifar10", dtype=torch.float32, sizes=(6,), rounds=1)
    held = replace(task.federation, label_counts=torch.ones(1, 10, dtype=torch.float64))
    task = replace(task, federation=held, model=models.load("simple-cnn")((3, 32, 32), 10))
    for method, up, down in (
        (FedBN(), "fedbn_one_way", "fedbn_one_way"),
        (FedAS(), "fedas_up", "fedas_down"),
        (GPFL(), "gpfl_one_way", "gpfl_one_way"),
        (FedCP(), "fedcp_one_way", "fedcp_one_way"),
    ):
        received = tree.num_bytes(method.downloads(method.init(task)))
        assert (method.traffic(task) - received, received) == (known[up], known[down])
    start = FedPAC().init(task)
    after = {**start, "server": {**start["server"], "known": torch.ones(10, dtype=torch.bool)}}
    assert tree.num_bytes(FedPAC().downloads(after)) == known["fedpac_down"]
    first = tree.num_bytes(FedPAC().downloads(start))
    assert FedPAC().traffic(task) - first == known["fedpac_up"]
    assert (
        sum(leaf.numel() for name, leaf in FedCP().init(task)["params"].items() if name.startswith("gate."))
        == CP["expected"]["gate_numbers_d84"]
    )


test_wrong_options = refused(
    (lambda: FedBN(weighting="none"), "weighting must be one of examples, uniform, but got 'none'."),
    (lambda: FedAS(alignment_lr=-1.0), "alignment_lr must be at least 0, but got -1.0."),
    (lambda: FedAS(weighting="none"), "weighting must be one of fisher, examples, but got 'none'."),
    (lambda: FedPAC(alignment_weight=-1.0), "alignment_weight must be at least 0, but got -1.0."),
    (lambda: FedPAC(head_lr=0.0), "head_lr must be greater than 0, but got 0.0."),
    (lambda: GPFL(distance_weight=-1.0), "distance_weight must be at least 0, but got -1.0."),
    (lambda: GPFL(embedding_decay=-1.0), "embedding_decay must be at least 0, but got -1.0."),
    (lambda: FedCP(mmd_weight=-1.0), "mmd_weight must be at least 0, but got -1.0."),
    (lambda: FedCP(gate="open"), "gate must be one of learned, personal, global, but got 'open'."),
    (lambda: FedCP(scored="never"), "scored must be one of before, after, but got 'never'."),
)


@dataclass(frozen=True)
class Headless(Model):
    """One number, and no classifier."""

    def init(self, generator):
        return {"point.weight": torch.zeros(1)}

    def layers(self):
        return {"point": (1,)}


@pytest.mark.parametrize(
    "method",
    [FedAS(), FedPAC(), GPFL(), FedCP(), *map(algorithms.make, ("clsnorm", "clsprox", "fedgela", "fednh", "fedproto"))],
    ids=lambda one: type(one).__name__,
)
def test_methods_that_need_a_classifier(method):
    task = replace(toy_task(), model=Headless((1, 6, 6), NUM_CLASSES))
    with pytest.raises(ValueError, match="but Headless has n|no layer of Headless is called classifier"):
        method.init(task)
