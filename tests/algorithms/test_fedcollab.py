"""FedCollab: the values at which it is its base, or training alone; what it keeps, counts and refuses."""

import functools
import hashlib
import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import algorithms
from algorithms import fedcollab
from algorithms.ccvr import CCVR
from algorithms.centralized import Centralized
from algorithms.clsnorm import ClsNorm
from algorithms.clusamp import CluSamp
from algorithms.ditto import Ditto
from algorithms.fedavg import FedAvg
from algorithms.fedcat import FedCat
from algorithms.fedcollab import FedCollab
from algorithms.fedconcat import FedConcat
from algorithms.fednova import FedNova
from algorithms.finetune import Finetune
from algorithms.ifca import IFCA
from algorithms.local_training import LocalTraining
from algorithms.scaffold import Scaffold
from algorithms.shared import divergence, tree
from algorithms.shared.coalitions import bound, solve
from tests.support.oracles import oracle
from tests.support.toy import assert_equal, normalised_task, toy_task, train
from tests.support.weights import write_weights

ORACLE = oracle("fedcollab")["settings"]
EVERYONE = torch.arange(5)
ENGINES = ("loop", "vectorised")

collab = functools.partial(FedCollab, discriminator_rounds=20)
TOGETHER, ALONE = 1e4, 1e-4  # capacities


def deployed(method, task, state=None, ids=EVERYONE):
    """Params and buffers that clients deploy, leaves [K, ...]."""
    found = method.deploy(task, train(method, task) if state is None else state, ids)
    both = {"params": found.params, "buffers": found.buffers}
    if found.per_client:
        return both
    return {key: {k: leaf.expand(len(ids), *leaf.shape) for k, leaf in part.items()} for key, part in both.items()}


# Identities


@pytest.mark.parametrize(
    "base",
    [
        FedAvg(),
        FedNova(),
        Scaffold(),
        Ditto(),
        LocalTraining(),
        Finetune(),
        ClsNorm(),
        Finetune(base=ClsNorm()),
        IFCA(2),
    ],
    ids=algorithms.name_of,
)
def test_with_one_coalition_it_is_its_base(base):
    task, method = toy_task(participation=0.6), collab(base, capacity=TOGETHER)
    state, alone = train(method, task), train(base, task)
    assert state["coalitions"].tolist() == [0] * 5
    assert_equal(state["models"]["0"], alone)
    assert_equal(deployed(method, task, state), deployed(base, task, alone))


@pytest.fixture
def apart(monkeypatch):
    """Everything tells clients apart; on toy data some pairs have divergence 0, and are together at any capacity."""
    pairs = divergence.Estimated(1 - torch.eye(5, dtype=torch.float64), 20 * (1 - torch.eye(5, dtype=torch.long)))
    monkeypatch.setattr(fedcollab, "estimate", lambda *of: pairs)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_of_clients_that_are_all_alone_it_is_local(apart, participation, engine):
    """Up to rounding: FedAvg adds what a client has changed to what it received."""
    task, method = toy_task(participation=participation, engine=engine), collab(capacity=ALONE)
    state = train(method, task)
    assert state["coalitions"].tolist() == list(range(5))
    assert_equal(deployed(method, task, state), deployed(LocalTraining(), task), tolerance=1e-10)


def test_of_clients_that_are_all_alone_it_is_local_also_in_running_statistics(apart):
    task = normalised_task()
    assert_equal(deployed(collab(capacity=ALONE), task), deployed(LocalTraining(), task), tolerance=1e-4)


@pytest.mark.parametrize("capacity", [TOGETHER, 2.0, ALONE])
def test_around_local_it_is_local_whatever_the_coalitions(capacity):
    task = toy_task()
    assert_equal(deployed(collab(LocalTraining(), capacity=capacity), task), deployed(LocalTraining(), task))


@pytest.mark.parametrize("base", [FedAvg(), Ditto(), Finetune()], ids=algorithms.name_of)
def test_a_coalition_trains_as_if_there_were_no_others(base):
    task, method = toy_task(participation=0.6), collab(base, capacity=2.0)
    state = train(method, task)
    assert 1 < len(state["models"]) < 5
    for name, model in state["models"].items():
        members = torch.nonzero(state["coalitions"] == int(name)).flatten()
        own = task.restrict(members)
        assert_equal(model, train(base, own))
        inside = torch.arange(len(members))
        assert_equal(deployed(method, task, state, members), deployed(base, own, model, inside))


def test_coalitions_start_from_one_model():
    task = toy_task(rounds=1, lr=0.0)
    state = train(collab(capacity=2.0), task)
    assert len(state["models"]) > 1
    for model in state["models"].values():
        assert_equal(model["params"], task.initial_params())


def test_clients_in_any_order_deploy_their_own_models():
    task, method = toy_task(), collab(Ditto(), capacity=2.0)
    state = train(method, task)
    everyone = deployed(method, task, state)
    for ids in ([3, 0, 4], [2], [4, 3, 2, 1, 0]):
        some = deployed(method, task, state, torch.tensor(ids))
        assert_equal(some, {key: {k: leaf[ids] for k, leaf in part.items()} for key, part in everyone.items()})


class Allocated(TorchDispatchMode):
    """Counts the bytes of all tensors that are computed within, or looked at."""

    def __init__(self):
        super().__init__()
        self.held = []  # so that no other gets their place

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        self.held += [leaf.untyped_storage() for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        return found

    @property
    def num_bytes(self) -> int:
        return sum({storage.data_ptr(): storage.nbytes() for storage in self.held}.values())


def test_a_shared_model_is_written_out_once_for_each_client():
    task, method = toy_task(), collab(capacity=2.0)
    state = train(method, task, 1)
    assert 1 < len(state["models"]) < 5
    with Allocated() as allocated:
        found = method.deploy(task, state, EVERYONE)
    models = tree.num_bytes([model["params"] for model in state["models"].values()])
    assert 0 <= allocated.num_bytes - models - tree.num_bytes(found.params) < 0.1 * models, "the rest are indices"


# What it keeps and counts


def test_coalitions_are_found_once_in_the_first_round(monkeypatch):
    task, method, calls = toy_task(), collab(capacity=2.0), []
    monkeypatch.setattr(fedcollab, "estimate", lambda *of: calls.append(of) or divergence.estimate(*of))
    state = method.init(task)
    assert not calls and method.deploy(task, state, EVERYONE) is None
    for _ in range(3):
        state = method.step(task, state)
    assert len(calls) == 1


def test_divergences_are_shared_by_bases_and_capacities_and_give_the_same(monkeypatch, tmp_path):
    task, calls = replace(toy_task(), cache_dir=tmp_path), []
    monkeypatch.setattr(fedcollab, "estimate", lambda *of: calls.append(of) or divergence.estimate(*of))
    methods = [collab(capacity=2.0), collab(Ditto(), capacity=1.0), collab(capacity=2.0)]
    states = [train(method, task, 1) for method in methods]
    assert len(calls) == 1
    assert_equal(states[0], states[2])
    assert_equal(states[0], train(methods[0], replace(task, cache_dir=None), 1))
    train(collab(discriminator_lr=0.02), task, 1)
    train(FedCollab(discriminator_rounds=10), task, 1)
    train(methods[0], replace(task, seed=1), 1)
    assert len(calls) == 5, "one of them without a folder"


def test_stored_divergences_that_cannot_be_are_found_anew(tmp_path):
    task, method = replace(toy_task(), cache_dir=tmp_path), collab(capacity=2.0)
    expected = train(method, task, 1)
    (path,) = tmp_path.glob("divergences-*.pt")
    whole = path.read_bytes()
    buffer = io.BytesIO()
    torch.save({"divergences": torch.full((5, 5), -7.0).double(), "rounds": torch.zeros(5, 5).long()}, buffer)
    path.write_bytes(hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue())
    assert_equal(train(method, task, 1), expected)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("other", [{"discriminator_lr": 0.02}, {"discriminator_rounds": 10}], ids=str)
def test_options_of_discriminators_reach_them(other):
    task = toy_task()
    usual, changed = (train(FedCollab(**{"discriminator_rounds": 20} | options), task, 1) for options in ({}, other))
    assert not torch.equal(usual["divergences"], changed["divergences"])


def test_as_many_searches_are_made_as_restarts_say(monkeypatch):
    asked = []
    monkeypatch.setattr(fedcollab, "solve", lambda *given: asked.append(given[3]) or solve(*given))
    train(collab(restarts=3), toy_task(), 1)
    assert asked == [3]


def test_capacity_makes_coalitions_larger():
    task = toy_task(rounds=1, local_epochs=1)
    counts = [len(train(collab(capacity=capacity), task)["models"]) for capacity in (ALONE, 2.0, TOGETHER)]
    assert counts == [4, 2, 1], "two of the clients have no divergence"


def test_what_it_found_is_reported():
    task, method = toy_task(), collab(IFCA(2), capacity=2.0)
    state = train(method, task)
    found = json.loads(json.dumps(method.diagnostics(state)))
    assert found["coalitions"] == state["coalitions"].tolist()
    torch.testing.assert_close(torch.tensor(found["divergences"]).double(), state["divergences"], rtol=0, atol=1e-5)
    assert found["objective"] == state["objective"].item()
    assert found["of_coalitions"]["0"] == IFCA(2).diagnostics(state["models"]["0"])
    assert "of_coalitions" not in collab().diagnostics(train(collab(), task, 1))
    assert method.diagnostics(method.init(task)) == {}


def test_the_bound_of_each_client_is_reported_for_the_delta_and_the_dimension_that_are_asked_for():
    task = toy_task()
    state = train(collab(capacity=2.0), task, 1)
    known = [state[key] for key in ("coalitions", "divergences")] + [torch.tensor([13.0, 4, 20, 8, 11]).double()]
    for delta, dimension in ((0.05, 1), (0.01, 1), (0.05, 7)):
        found = collab(capacity=2.0, delta=delta, dimension=dimension).diagnostics(state)
        limit = bound(*known, delta, dimension)
        assert found["num_examples"] == [13, 4, 20, 8, 11]
        for part in ("quantity", "divergence", "excess"):
            assert found["bound"][part] == pytest.approx(getattr(limit, part).tolist(), abs=1e-5)
    other = train(collab(capacity=2.0, delta=0.01, dimension=7), task, 1)
    assert_equal(state["models"], other["models"])


@pytest.mark.parametrize(
    "options, said",
    [
        ({"delta": 0.0}, "delta must be greater than 0 and less than 0.5, but got 0.0."),
        ({"delta": 0.5}, "delta must be greater than 0 and less than 0.5, but got 0.5."),
        ({"delta": float("nan")}, "delta must be greater than 0 and less than 0.5, but got nan."),
        ({"dimension": 0}, "dimension must be at least 1, but got 0."),
    ],
)
def test_what_the_bound_cannot_be_computed_for_is_refused(options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        FedCollab(**options)


def test_discriminators_are_counted_beside_what_the_base_exchanges():
    task, method = toy_task(), collab(capacity=TOGETHER)
    state, base = train(method, task), train(FedAvg(), task)
    size = divergence.num_bytes(task)  # ten pairs, 20 rounds, and the model that is evaluated after the last one
    both = {"bytes_down": 10 * 2 * 21 * size, "bytes_up": 10 * 2 * 20 * size}
    assert {key: state["costs"][key] - base["costs"][key] for key in both} == both
    assert method.diagnostics(state)["discriminator_bytes"] == sum(both.values())
    assert state["costs"]["examples"] == base["costs"]["examples"]


def test_traffic_is_a_bound_where_discriminators_stop_early():
    task, method = toy_task(), FedCollab(capacity=TOGETHER, discriminator_rounds=200)
    spent = train(method, task)["costs"]
    assert spent["bytes_down"] + spent["bytes_up"] < 5 * method.traffic(task)


# Features


@pytest.mark.slow
def test_divergences_of_features_are_kept_for_what_the_file_holds(tmp_path):
    task = toy_task(sizes=(80, 84, 90), shape=(3, 8, 8))
    task = replace(task, cache_dir=tmp_path / "derived", data_dir=tmp_path)
    pixels, method = collab(), collab(features="w.pth")
    assert (pixels.weights_files, method.weights_files, Ditto().weights_files) == ((), ("w.pth",), ())
    found = {"pixels": train(pixels, task, 1)}
    for seed in (0, 1):
        write_weights(tmp_path / "w.pth", seed)
        found[seed] = train(method, task, 1)
    assert len({str(state["divergences"]) for state in found.values()}) == 3
    (tmp_path / "w.pth").rename(tmp_path / "v.pth")
    assert_equal(train(collab(features="v.pth"), task, 1), found[1])
    assert len([*(tmp_path / "derived").glob("divergences-*.pt")]) == 3
    *_, size = (divergence.num_bytes(task, of_features) for of_features in (False, True))
    assert found[0]["discriminator_bytes"] == 2 * size * (41 * 3)  # three pairs of 20 rounds
    assert method.traffic(task) - pixels.traffic(task) == round(2 * 41 * (size - divergence.num_bytes(task)))
    with pytest.raises(ValueError, match="No weights in .*w.pth"):
        train(method, task, 1)


def test_features_are_of_coloured_images_and_for_estimated_divergences():
    said = r"ImageNet features need images of 3 channels, but {} has 1; use features pixels."
    with pytest.raises(ValueError, match=said.format("the dataset")):
        FedCollab(features="w.pth").init(toy_task())
    assert FedCollab(features="w.pth").validate(config(dataset="mnist")) == [said.format("mnist")]
    assert FedCollab(features="w.pth").validate(config()) == FedCollab().validate(config(dataset="mnist")) == []


def test_tables_say_where_discriminators_read_pixels_and_those_of_the_paper_do_not():
    colour = toy_task(shape=(3, 8, 8))
    (said,) = FedCollab().caveats(colour)
    assert said.startswith(
        "fedcollab: discriminators read pixels; on images in colour, those of the paper read ImageNet"
    )
    for method, task in ((FedCollab(features="w.pth"), colour), (FedCollab(divergence="published"), colour)):
        assert method.caveats(task) == []
    assert FedCollab().caveats(toy_task()) == []


# Published divergences


def sizes_of(name: str) -> tuple[int, ...]:
    return tuple(ORACLE[name]["train_counts"]["values"])


def test_published_divergences_are_those_of_the_three_settings():
    known = {one["partition"]: one for one in fedcollab._settings()}
    assert known.keys() == ORACLE.keys()
    for name, setting in ORACLE.items():
        assert known[name]["divergences"] == setting["divergence"]["matrix"]
        assert known[name]["num_examples"] == setting["train_counts"]["values"]
        assert known[name]["dataset"] == setting["dataset"]


@pytest.mark.parametrize("name", ORACLE)
def test_published_divergences_give_the_published_coalitions(name):
    task = toy_task(sizes=sizes_of(name), local_epochs=None, local_steps=1)
    method = FedCollab(divergence="published", capacity=ORACLE[name]["C"])
    state = train(method, task, 1)
    assert state["coalitions"].tolist() == ORACLE[name]["coalitions"]["labels"]
    assert state["objective"].item() == pytest.approx(ORACLE[name]["exact_optimum"]["value_matrix4"], abs=1e-8)
    assert state["costs"]["bytes_down"] == train(FedAvg(), task, 1)["costs"]["bytes_down"]
    assert method.traffic(task) == FedAvg().traffic(task)
    assert method.diagnostics(state)["discriminator_bytes"] == 0


def config(**settings):
    usual = {"dataset": "cifar10", "partition": "feature-shift", "clients": 20, "split": "test", "first_clients": None}
    usual |= {"train_examples": None, "test_examples": None} | settings
    return SimpleNamespace(**{"population": usual["first_clients"] or usual["clients"]} | usual)


def test_published_divergences_are_for_the_clients_of_the_paper():
    method = FedCollab(divergence="published")
    assert method.validate(config()) == []
    assert method.validate(config(dataset="fmnist", partition="label-shift")) == []
    for other in ({"clients": 8}, {"dataset": "mnist"}, {"partition": "dir-0.5"}):
        (sentence,) = method.validate(config(**other))
        assert sentence.startswith("Divergences are published for 20 clients of fmnist with label-shift, cifar10 with")
        assert sentence.endswith("; use --set divergence=estimated.") and str(next(iter(other.values()))) in sentence
        assert FedCollab().validate(config(**other)) == []
    with pytest.raises(ValueError, match="10 x 2100 and 10 x 14; .* This run has 1 x 13 and 1 x 4 and"):
        method.init(toy_task())


@pytest.mark.parametrize(
    "other, said",
    [
        ({"split": "validation"}, "split validation"),
        ({"train_examples": 30_000}, "train_examples 30000"),
        ({"test_examples": 1000}, "test_examples 1000"),
        ({"clients": 40, "first_clients": 20}, "first_clients 20"),
    ],
)
def test_published_divergences_are_for_clients_with_all_their_examples(other, said):
    assert FedCollab(divergence="published").validate(config(**other)) == [
        f"Divergences are published for clients with all their examples, but got {said}; use split test and all examples and "
        "clients, or --set divergence=estimated."
    ]
    assert FedCollab().validate(config(**other)) == []
    assert FedCollab(divergence="published").validate(config(train_examples=50_000, test_examples=10_000)) == []


def test_published_divergences_at_other_seeds_are_footnoted():
    method = FedCollab(divergence="published")
    assert method.caveats(toy_task(seed=0)) == FedCollab().caveats(toy_task(seed=1)) == []
    assert method.caveats(toy_task(seed=1)) == [
        "fedcollab: published divergences are those of the clients of seed 0; at other seeds, clients are others."
    ]


# Refusals


@pytest.mark.parametrize(
    "base, said",
    [
        (CCVR(), "fedcollab needs a base that trains, but ccvr only changes what another method deploys."),
        (FedCollab(), "fedcollab divides clients into coalitions, and cannot go around itself."),
        (FedCat(), "whose cohorts differ in size, but fedcat needs cohorts of one size."),
        (Finetune(CluSamp()), "whose cohorts differ in size, but clusamp needs cohorts of one size."),
        (Centralized(), "but centralized has only one, which holds everything."),
        (FedConcat(), "trains in rounds with any number of clients, but fedconcat does not."),
    ],
    ids=lambda value: algorithms.name_of(value) if isinstance(value, algorithms.shared.base.Algorithm) else "",
)
def test_bases_that_do_not_fit(base, said):
    with pytest.raises(ValueError) as caught:
        FedCollab(base)
    assert said in str(caught.value)


@pytest.mark.parametrize("method", [CCVR, Finetune, ClsNorm])
def test_what_cannot_go_around_it(method):
    with pytest.raises(ValueError, match="one shared model, but fedcollab deploys one model per client|of one shared"):
        method(FedCollab())


@pytest.mark.parametrize(
    "options, said",
    [
        ({"capacity": 0.0}, "capacity must be greater than 0, but got 0.0."),
        ({"capacity": -1.0}, "capacity must be greater than 0, but got -1.0."),
        ({"capacity": float("nan")}, "capacity must be greater than 0, but got nan."),
        ({"restarts": 0}, "restarts must be at least 1, but got 0."),
        ({"divergence": "ideal"}, "divergence must be one of estimated, published, but got 'ideal'."),
        ({"discriminator_lr": 0.0}, "discriminator_lr must be greater than 0, but got 0.0."),
        ({"features": ""}, "features must be pixels or the name of a file, but got ''."),
        (
            {"features": "w.pth", "divergence": "published"},
            "features must be pixels with published divergences, which read none, but got w.pth.",
        ),
        ({"discriminator_rounds": 0}, "discriminator_rounds must be at least 1, but got 0."),
    ],
)
def test_wrong_options(options, said):
    with pytest.raises(ValueError) as caught:
        FedCollab(**options)
    assert str(caught.value) == said


def test_a_client_with_one_example_is_refused_before_anything_is_trained():
    task = toy_task(sizes=(13, 1, 20, 8, 11))
    with pytest.raises(ValueError, match="A discriminator needs at least 2 training examples of each client"):
        FedCollab().init(task)
