"""Methods that share a part of the model: numbers worked out by hand, what they become at special values, what stays where."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms.ccvr import CCVR
from algorithms.fedavg import FedAvg
from algorithms.fedbabu import FedBabu
from algorithms.fedcollab import FedCollab
from algorithms.fedconcat import FedConcat
from algorithms.fedper import FedPer
from algorithms.fedrep import FedRep
from algorithms.finetune import Finetune, FinetuneBody, FinetuneHead
from algorithms.fusefl import FuseFL
from algorithms.lg_fedavg import LGFedAvg
from algorithms.local_training import LocalTraining
from algorithms.shared import tree
from algorithms.shared.partial import layers_of, pick
from bench import models
from bench.models.base import Model
from bench.models.concat import SimpleCnnConcat5
from bench.simulation.task import Task
from datasets import transforms
from datasets.federation import federate
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import NUM_CLASSES, SETTINGS, Normalised, assert_equal, normalised_task, toy_task, train

KNOWN = oracle("rivals")
ORACLE, SIZES = KNOWN["partial_sharing"], KNOWN["bytes_simple_cnn"]["expected"]
ENGINES = ("loop", "vectorised")
EVERYONE = torch.arange(5)
LAYERS = 3  # of the mlp
HEAD = ("classifier.weight", "classifier.bias")


# The model of the oracle: yhat = h b x, loss 1/2 (yhat - y)^2


@dataclass(frozen=True)
class Product(Model):
    """One number is the body, one the classifier; a pixel of value v is the input v / 100."""

    def layers(self):
        return {"stem": (1, 1), "classifier": (1, 1)}

    def init(self, generator):
        return {"stem.weight": torch.tensor(1.0), "classifier.weight": torch.tensor(1.0)}

    def features(self, params, x, bound):
        return params["stem.weight"] * x.flatten(1) * 2.55

    def head(self, params, z):
        return params["classifier.weight"] * z


@pytest.fixture
def squared(monkeypatch):
    """Local training and fine-tuning minimise half the squared error."""

    def loss(params, batch, view):
        return batch.mean(0.5 * (view.model(params, batch.x)[:, 0] - batch.y) ** 2)

    for user in ("shared.base", "finetune"):
        monkeypatch.setattr(f"algorithms.{user}.task_loss", loss)


def product_task(engine="loop", **settings) -> Task:
    """The clients of the oracle: all examples of one are the same, and a step takes them all."""
    known = ORACLE["inputs"]["clients_x_y_n"]
    sizes = [int(n) for _, _, n in known]
    images = np.repeat([int(100 * x) for x, _, _ in known], sizes).astype(np.uint8)[:, None, None, None]
    labels = np.repeat([int(y) for _, y, _ in known], sizes)
    clients = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    prepared = transforms.build("none", "digits", (1, 1, 1))
    federation = federate(images, labels, images, labels, clients, NUM_CLASSES, prepared, 0.0)
    one_step = {"rounds": 1, "local_epochs": 1, "lr": ORACLE["inputs"]["lr"], "momentum": 0.0, "weight_decay": 0.0}
    how = replace(SETTINGS, **one_step | settings)
    return Task(Product((1, 1, 1), NUM_CLASSES), how, federation, 0, engine, torch.float64)


def played(method, **settings):
    """Body and head of the server, and those that clients deploy, as numbers."""
    task = product_task(**settings)
    state = train(method, task)
    deployed = method.deploy(task, state, torch.arange(2))
    names = ("stem.weight", "classifier.weight")
    return [state["params"][name].item() for name in names], [deployed.params[name].tolist() for name in names]


def near(expected):
    return pytest.approx(expected, abs=ORACLE["tol"])


@pytest.mark.parametrize("engine", ENGINES)
def test_fedavg_and_fedper_follow_the_oracle(squared, engine):
    known = ORACLE["expected"]
    assert played(FedAvg(), engine=engine)[0] == near([known["fedavg"]["global_b"], known["fedavg"]["global_h"]])
    (body, _), (own_body, own_head) = played(FedPer(), engine=engine)
    assert body == near(known["fedper"]["global_b"]) and own_body == near([body] * 2)
    assert own_head == near(known["fedper"]["personal_h"])


@pytest.mark.parametrize("engine", ENGINES)
def test_fedrep_follows_the_oracle(squared, engine):
    known = ORACLE["expected"]["fedrep"]
    for weighting, name in (("examples", "weighted"), ("uniform", "uniform")):
        (body, head), (own_body, own_head) = played(FedRep(weighting=weighting, head_passes=1), engine=engine)
        assert body == near(known[f"global_b_{name}"]) and own_body == near([body] * 2) and head == 1
        assert own_head == near(known["personal_h_after_head_phase"])
    task, method = product_task(engine), FedRep(head_passes=1)
    state = method.init(task)
    outputs = method.map_clients(task, method.local_update, task.cohort(torch.arange(2)), state)
    assert method.local_models(state, outputs)["params"]["stem.weight"].tolist() == near(known["local_b"])


@pytest.mark.parametrize("engine", ENGINES)
def test_lg_fedavg_follows_the_oracle(squared, engine):
    known = ORACLE["expected"]["lg_fedavg"]
    for weighting, name in (("examples", "weighted"), ("uniform", "uniform")):
        (body, head), (own_body, own_head) = played(LGFedAvg(weighting=weighting), engine=engine)
        assert head == near(known[f"global_h_{name}"]) and own_head == near([head] * 2) and body == 1
        assert own_body == near(known["personal_b"])


@pytest.mark.parametrize("engine", ENGINES)
def test_fedbabu_and_its_fine_tuning_follow_the_oracle(squared, engine):
    known = ORACLE["expected"]["fedbabu"]
    (body, head), _ = played(FedBabu(), engine=engine)
    assert body == near(known["global_b"]) and head == known["h_all"]
    task, method = product_task(engine), FedBabu()
    state = method.init(task)
    outputs = method.map_clients(task, method.local_update, task.cohort(torch.arange(2)), state)
    assert method.local_models(state, outputs)["params"]["stem.weight"].tolist() == near(known["local_b"])
    assert method.local_models(state, outputs)["params"]["classifier.weight"].tolist() == [1, 1]
    for part, tuned in {"full": Finetune, "head": FinetuneHead}.items():
        _, found = played(tuned(FedBabu(), finetune_length=1), engine=engine)
        assert list(zip(*found, strict=True)) == [
            near(client) for client in map(tuple, known[f"finetuned_{part}_1_step"])
        ]
    _, (bodies, heads) = played(FinetuneBody(FedBabu(), finetune_length=1), engine=engine)
    assert heads == [1, 1] and bodies == near(
        [one for one, _ in known["finetuned_full_1_step"]]
    )  # one step: the same slope


def descended(value, frozen, x, y, steps, momentum=0.0, decay=0.0):
    """SGD with momentum and decay on one of body and head, the other one frozen."""
    velocity, lr = 0.0, ORACLE["inputs"]["lr"]
    for _ in range(steps):
        velocity = momentum * velocity + (value * frozen * x - y) * frozen * x + decay * value
        value -= lr * velocity
    return value


@pytest.mark.parametrize("engine", ENGINES)
def test_phases_of_fedrep_have_momentum_and_decay_of_their_own(squared, engine):
    """Two rounds of two epochs: four steps of the head from its last value, then two of the body, each from velocity 0."""
    how = {"momentum": 0.9, "weight_decay": 0.1, "local_epochs": 2, "rounds": 2}
    body, heads = 1.0, [1.0, 1.0]
    for _ in range(how["rounds"]):
        bodies = []
        for client, (x, y, _) in enumerate(ORACLE["inputs"]["clients_x_y_n"]):
            heads[client] = descended(heads[client], body, x, y, 4, 0.9, 0.1)
            bodies.append(descended(body, heads[client], x, y, 2, 0.9, 0.1))
        body = (bodies[0] + 3 * bodies[1]) / 4
    found, (own_bodies, own_heads) = played(FedRep(head_passes=2), engine=engine, **how)
    assert found[0] == near(body) and own_bodies == near([body] * 2) and own_heads == near(heads)


@pytest.mark.parametrize("method", [FedPer(fit_private="all"), FedRep(fit_private="all"), LGFedAvg(fit_private="all")])
def test_a_private_part_is_fitted_on_a_frozen_shared_one(squared, method):
    """One step of the head (fedrep: two) or of the body from what `fit_private` "none" deploys."""
    _, before = played(replace(method, fit_private="none"))
    _, after = played(method)
    mine, steps = (0 if isinstance(method, LGFedAvg) else 1), (2 if isinstance(method, FedRep) else 1)
    assert after[1 - mine] == before[1 - mine]
    for client, (x, y, _) in enumerate(ORACLE["inputs"]["clients_x_y_n"]):
        fitted = descended(before[mine][client], before[1 - mine][client], x, y, steps)
        assert after[mine][client] == near(fitted)


# Identities


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [FedPer(head_layers=0), FedBabu(head_layers=0), LGFedAvg(head_layers=LAYERS)])
def test_where_everything_is_shared_a_method_is_fedavg_bit_for_bit(engine, method):
    task = toy_task(engine=engine, participation=0.6)
    state, fedavg = train(method, task), train(FedAvg(), task)
    assert_equal(state["params"], fedavg["params"])
    assert state["costs"] == fedavg["costs"] and method.traffic(task) == FedAvg().traffic(task)
    if method.personal:
        assert_equal(
            method.deploy(task, state, EVERYONE).params, FedAvg().deploy(task, fedavg, EVERYONE).for_each(5).params
        )


@pytest.mark.parametrize("method", [FedPer(head_layers=0), FedBabu(head_layers=0), LGFedAvg(head_layers=2)])
def test_where_everything_is_shared_running_statistics_are_those_of_fedavg(method):
    task = normalised_task()
    state, fedavg = train(method, task), train(FedAvg(), task)
    assert_equal(
        {key: state[key] for key in ("params", "buffers")}, {key: fedavg[key] for key in ("params", "buffers")}
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [FedPer(head_layers=LAYERS), LGFedAvg(head_layers=0)])
def test_where_nothing_is_shared_a_method_is_local_training_bit_for_bit(engine, method):
    task = toy_task(engine=engine, participation=0.6, rounds=2)
    method = replace(method, fit_private="none")
    state, local = train(method, task), train(LocalTraining(), task)
    (own, alone) = (one.deploy(task, trained, EVERYONE) for one, trained in ((method, state), (LocalTraining(), local)))
    assert_equal(own.params, alone.params)
    assert state["costs"] == local["costs"] and method.traffic(task) == 0
    assert_equal(state["params"], task.initial_params())


@pytest.mark.parametrize("method", [FedPer(head_layers=2), LGFedAvg(head_layers=0)])
def test_where_nothing_is_shared_running_statistics_are_those_of_local_training(method):
    task = normalised_task()
    own, alone = (one.deploy(task, train(one, task), EVERYONE) for one in (method, LocalTraining()))
    assert_equal({**own.params, **own.buffers}, {**alone.params, **alone.buffers})


@pytest.mark.parametrize("engine", ENGINES)
def test_without_its_phase_of_the_head_fedrep_trains_the_body_of_fedbabu(engine):
    task = toy_task(engine=engine, participation=0.6)
    assert_equal(train(FedRep(head_passes=0), task)["params"], train(FedBabu(), task)["params"], 1e-12)


def test_without_steps_the_personal_model_of_fedbabu_is_the_generic_one():
    task, method = toy_task(), Finetune(FedBabu(), finetune_length=0)
    state = train(method, task)
    assert_equal(state, train(FedBabu(), task))
    generic = FedBabu().deploy(task, state, EVERYONE)
    assert_equal(method.deploy(task, state, EVERYONE).params, generic.for_each(5).params)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_warm_start_is_fedavg_and_then_clients_begin_with_its_body(engine):
    task = toy_task(engine=engine, participation=0.4, rounds=3)
    method = LGFedAvg(warm_start_rounds=2, fit_private="none")
    warm, fedavg = train(method, task, rounds=2), train(FedAvg(), task, rounds=2)
    assert_equal(warm["params"], fedavg["params"])
    assert warm["costs"] == fedavg["costs"] and warm["clients"]["rows"] == {}
    begun = replace(method, fit_private="all").deploy(task, warm, EVERYONE)
    assert_equal(begun.params, FedAvg().deploy(task, fedavg, EVERYONE).for_each(5).params)
    after = method.step(task, warm)
    third = set(task.sample_cohort(2).ids.tolist())
    assert set(after["clients"]["rows"]) == third
    absent = min(set(range(5)) - third)
    deployed = tree.row(method.deploy(task, after, EVERYONE).params, absent)
    for name, leaf in fedavg["params"].items():
        assert_equal(deployed[name], after["params"][name] if name in HEAD else leaf)
        assert torch.equal(after["params"][name], leaf) == (name not in HEAD)


def test_the_warm_start_is_uniform_where_the_method_is():
    task = toy_task(rounds=2)
    by_size, uniform = (
        train(LGFedAvg(weighting=w, warm_start_rounds=1), task, rounds=1) for w in ("examples", "uniform")
    )
    assert not torch.equal(by_size["params"]["linear1.weight"], uniform["params"]["linear1.weight"])


# What stays where


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "method", [FedPer(), FedRep(), FedBabu(), LGFedAvg()], ids=lambda method: type(method).__name__
)
def test_only_the_shared_part_of_the_server_changes(engine, method):
    task = toy_task(engine=engine, participation=0.6, weight_decay=0.1)
    state, start = train(method, task), task.initial_params()
    for name, leaf in state["params"].items():
        shared = (name in HEAD) == isinstance(method, LGFedAvg)
        assert torch.equal(leaf, start[name]) != shared, name
        kept = [name in row.get("params", {}) for row in state["clients"]["rows"].values()]
        assert kept == [method.personal and not shared] * len(kept)


@pytest.mark.parametrize("method", [FedPer(), FedRep(), LGFedAvg()], ids=lambda method: type(method).__name__)
def test_the_private_part_of_an_absent_client_stays(method):
    task = toy_task(participation=0.4)
    before = train(method, task, rounds=2)
    after = method.step(task, before)
    cohort = set(task.sample_cohort(2).ids.tolist())
    stayed = set(before["clients"]["rows"]) - cohort
    assert stayed
    for client in stayed:
        assert_equal(after["clients"]["rows"][client], before["clients"]["rows"][client])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [FedPer(), FedRep(), LGFedAvg()], ids=lambda method: type(method).__name__)
def test_clients_that_were_absent_from_all_rounds_fit_their_private_part(engine, method):
    task = toy_task(engine=engine, participation=0.4, rounds=1)
    state, cohort = train(method, task), set(task.sample_cohort(0).ids.tolist())
    absent, none, every = (
        replace(method, fit_private=who).deploy(task, state, EVERYONE).params for who in ("absent", "none", "all")
    )
    for client in range(5):
        fits, plain, fitted = (tree.row(params, client) for params in (absent, none, every))
        assert_equal(fits, plain if client in cohort else fitted, 1e-12)
        for name, leaf in plain.items():
            private = (name in HEAD) != isinstance(method, LGFedAvg)
            assert torch.equal(leaf, fitted[name]) != private
            if client not in cohort:
                assert torch.equal(leaf, task.initial_params()[name] if private else state["params"][name])


@pytest.mark.parametrize("method", [FedPer(), FedRep(), FedBabu()], ids=lambda method: type(method).__name__)
def test_running_statistics_belong_to_their_layer_and_move_with_it(method):
    """Those of the convolution are shared with the body; they move once per step of the body, not in phases of the head."""
    task = normalised_task(sizes=(4, 8), batch_size=4, local_epochs=1, rounds=1)
    state = train(method, task)
    assert state["buffers"]["stem.norm.num_batches_tracked"] == 1  # (1 + 2 * 2) / 3, truncated
    assert (state["buffers"]["stem.norm.running_mean"] != 0).all()
    if method.personal:
        assert all(row["buffers"] == {} for row in state["clients"]["rows"].values())
        fitted = replace(method, fit_private="all").deploy(task, state, torch.arange(2))
        assert_equal(tree.row(fitted.buffers, 1), state["buffers"])
    head = FinetuneHead(FedBabu(), finetune_length=2).deploy(task, train(FedBabu(), task), torch.arange(2))
    assert head.buffers["stem.norm.num_batches_tracked"].tolist() == [1, 1]


def test_lg_fedavg_keeps_the_running_statistics_of_bodies_and_sends_none():
    task = normalised_task(sizes=(4, 8), batch_size=4, local_epochs=1, rounds=2)
    method = LGFedAvg()
    state = train(method, task)
    assert_equal(state["buffers"], task.initial_buffers())
    deployed = method.deploy(task, state, torch.arange(2))
    assert deployed.buffers["stem.norm.num_batches_tracked"].tolist() == [2, 4]
    head = tree.num_bytes(pick(state["params"], ["classifier"]))
    assert state["costs"]["bytes_up"] == state["costs"]["bytes_down"] == 2 * 2 * head


def test_uniform_weights_are_those_of_running_statistics_too():
    task = normalised_task(sizes=(4, 8), batch_size=4, local_epochs=1, rounds=1)
    method = FedBabu(weighting="uniform")
    outputs = method.map_clients(task, method.local_update, task.cohort(torch.arange(2)), method.init(task))
    mean = outputs.buffers["stem.norm.running_mean"].mean(0)
    torch.testing.assert_close(train(method, task)["buffers"]["stem.norm.running_mean"], mean)


@pytest.mark.parametrize(
    ("method", "one_way"),
    [
        (FedAvg(), "fedavg_one_way"),
        (FedPer(), "body_only_one_way"),
        (FedRep(), "body_only_one_way"),
        (FedBabu(), "body_only_one_way"),
        (Finetune(FedBabu()), "body_only_one_way"),
        (LGFedAvg(), "head_only_one_way"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_bytes_follow_the_oracle(method, one_way):
    shape = (3, 32, 32)
    task = toy_task(sizes=(4, 4), model="simple-cnn", shape=shape, dtype=torch.float32, local_epochs=1, rounds=1)
    task = replace(task, model=models.load("simple-cnn")(shape, 10))
    assert sum(leaf.numel() for leaf in task.initial_params().values()) == SIZES["params"]
    assert method.traffic(task) == 2 * SIZES[one_way]
    spent = train(method, task)["costs"]
    assert spent["bytes_up"] == spent["bytes_down"] == 2 * SIZES[one_way]


def test_a_warm_start_costs_rounds_of_whole_models():
    task = toy_task(sizes=(20,) * 5, participation=0.6, rounds=3)
    method = LGFedAvg(warm_start_rounds=1)
    spent = train(method, task)["costs"]
    assert method.traffic(task) == pytest.approx((spent["bytes_up"] + spent["bytes_down"]) / 5, abs=1)
    params = task.initial_params()
    whole, head = tree.num_bytes(params), tree.num_bytes(pick(params, ["classifier"]))
    assert spent["bytes_up"] == 3 * (whole + 2 * head)


def test_passes_of_fedrep_count_head_and_body():
    task = toy_task(sizes=(20,) * 5, rounds=1)  # two epochs
    assert train(FedRep(head_passes=3), task)["costs"]["examples"] == 5 * 20 * 2 * 4


# Layers


@pytest.mark.parametrize("name", models.REGISTRY)
def test_names_of_params_and_buffers_tell_the_layers_of_every_model(name):
    shape = (1, 28, 28) if "mnist" in name else (3, 32, 32)
    model = models.load(name)(shape, 10)
    assert layers_of(model.init(torch.Generator())) == [*model.layers()] and [*model.layers()][-1] == "classifier"
    assert set(layers_of(model.init_buffers())) <= set(model.layers())


def test_a_head_of_two_layers():
    method, params = FedPer(head_layers=2), toy_task().initial_params()
    assert method.shared_layers(params) == ["linear1"] and method.private_layers(params) == ["linear2", "classifier"]
    assert LGFedAvg(head_layers=2).shared_layers(params) == ["linear2", "classifier"]


def test_fedcollab_trains_private_parts_within_coalitions():
    task = toy_task(engine="vectorised", participation=0.6)
    method = FedCollab(FedRep(), capacity=2.0, discriminator_rounds=5, restarts=2)
    deployed = method.deploy(task, train(method, task), EVERYONE)
    heads = deployed.params["classifier.weight"]
    assert deployed.per_client and all(not torch.equal(heads[0], other) for other in heads[1:])


# Refusals


test_wrong_options = refused(
    (lambda: FedPer(head_layers=-1), "head_layers must be at least 0, but got -1."),
    (lambda: FedPer(weighting="size"), "weighting must be one of examples, uniform, but got 'size'."),
    (lambda: FedPer(fit_private="some"), "fit_private must be one of absent, all, none, but got 'some'."),
    (lambda: FedRep(head_passes=-1), "head_passes must be at least 0, but got -1."),
    (lambda: FedRep(head_layers=0), "head_layers must be at least 1, but got 0."),
    (lambda: LGFedAvg(warm_start_rounds=-1), "warm_start_rounds must be at least 0, but got -1."),
    (lambda: Finetune(FedPer()), "finetune fine-tunes one shared model, but fedper deploys one model per client."),
    (lambda: CCVR(FedRep()), "ccvr calibrates one shared model, but fedrep deploys one model per client."),
    (
        lambda: FedConcat(base=LGFedAvg()),
        "FedConcat needs one shared model per cluster, but lg-fedavg deploys one model per client.",
    ),
)


class Headless(Normalised):
    """A model whose last layer is not a classifier."""

    def layers(self):
        return {"stem": (4, self.input_shape[0], 3, 3)}


@pytest.mark.parametrize(
    ("method", "model", "said"),
    [
        (
            FedPer(),
            Headless,
            "fedper shares a part of the model, but Headless has no classifier as",
        ),
        (
            FedBabu(),
            Headless,
            "fedbabu shares a part of the model, but Headless has no classifier as",
        ),
        (
            FinetuneHead(),
            Headless,
            "finetune-head trains a part of the model, but Headless",
        ),
        (FuseFL(), Headless, "fusefl cuts a model, but Headless has no classifier as its last layer"),
        (
            FedPer(head_layers=3),
            Normalised,
            "head_layers must be at most 2 for fedper and Normalised, which has 2 layers, but",
        ),
        (
            FedRep(head_layers=2),
            Normalised,
            "head_layers must be at most 1 for fedrep and Normalised, which has 2 layers, but",
        ),
        (FedBabu(head_layers=2), Normalised, "head_layers must be at most 1 for fedbabu and Normalised, which has 2"),
        (
            FedPer(head_layers=2),
            lambda _, num_classes: SimpleCnnConcat5((1, 28, 28), num_classes),
            "head_layers must be at most 1 for fedper and SimpleCnnConcat5, which has 5 encoders side by side, so",
        ),
    ],
)
def test_models_that_do_not_have_the_parts(method, model, said):
    task = replace(toy_task(), model=model((1, 6, 6), NUM_CLASSES))
    with pytest.raises(ValueError, match=f"^{said}"):
        method.init(task)


def test_as_many_clients_are_expected_to_fit_their_part_as_are_absent_after_the_warm_start():
    task = toy_task(sizes=(10,) * 10, participation=0.2, rounds=10)
    method = LGFedAvg(warm_start_rounds=8)
    fits = method.fit_visits(task.settings, 10)
    assert method.deploy_workload(task.settings, 10) == round(0.8**2 * fits) > round(0.8**10 * fits)


def test_a_warm_start_leaves_rounds_to_train_in():
    assert LGFedAvg(warm_start_rounds=2).validate(SimpleNamespace(rounds=3)) == []
    assert LGFedAvg(warm_start_rounds=3).validate(SimpleNamespace(rounds=3)) == [
        "lg-fedavg shares heads after warm_start_rounds (3) rounds of FedAvg: rounds must be larger than that, but got 3."
    ]
