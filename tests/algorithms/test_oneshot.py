"""One-shot training and what is made of its models, against oneshot_oracle.json and the methods that they equal."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import datasets
from algorithms import fedlpa
from algorithms.ccvr import CCVR
from algorithms.ensemble import EnsembleOfClients, confusion
from algorithms.fedavg import FedAvg
from algorithms.fedconcat import FedConcat
from algorithms.fedlpa import FedLPA, conjugate_gradients, curvature, layer_factors
from algorithms.fedov import FedOV, Outliers, attack, known_loss, mixup_loss
from algorithms.fedprox import FedProx
from algorithms.fens import Fens, in_eight_bits
from algorithms.fusefl import FuseFL
from algorithms.oneshot import OneShot
from algorithms.shared import outliers, partial, tree
from algorithms.shared.base import RoundHooks
from algorithms.shared.hold_out import held_part, num_held, training_part
from algorithms.shared.local_sgd import task_loss
from algorithms.shared.types import Batch
from bench import models
from bench.cli.listing import costs
from bench.config.methods import options_of
from bench.config.resolve import resolve, trained_by
from bench.config.schema import run_id
from bench.experiments.cells import Cell
from bench.experiments.cost import examples_to_train
from bench.models.base import BoundModel, Model
from bench.models.calibrated import NormalisedClassifier, wrap
from bench.models.concat import concatenate, encoder_part
from bench.models.ensemble import RULES, Aggregated, ByRule, HiddenLayer, Linear, Voting, Weights, vote, votes
from bench.models.fused import Fused, WithAdapters, adapter_of, block_inputs, fuse, is_chain, run_block
from bench.results.store import Store
from bench.simulation.local_models import local_models
from bench.simulation.run import Run
from tests.support.toy import NUM_CLASSES, SIZES, SMALL, assert_equal, normalised_task, toy_task, train

ORACLE = json.loads((Path(__file__).parent / "oneshot_oracle.json").read_text())
ENGINES = ["loop", "vectorised"]
EVERYONE = torch.arange(5)


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found, expected, tol=1e-9):
    torch.testing.assert_close(torch.as_tensor(found, dtype=torch.float64), tensor(expected), rtol=0, atol=tol)


def deployed(method, task, rounds=None):
    return method.deploy(task, train(method, task, rounds), torch.arange(task.population))


def logits_of(task, method, rounds=None):
    """What a method deploys says of the test images."""
    one = deployed(method, task, rounds)
    model = BoundModel(one.model, one.buffers)
    return task.map_images(lambda x, first: model(one.params, x), task.federation.test_images)


# One-shot FedAvg


@dataclass(frozen=True)
class Point(Model):
    """One number."""

    def init(self, generator):
        return {"x": torch.tensor([float(ORACLE["oneshot_fedavg"]["inputs"]["x0"])])}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_mean_of_the_models_follows_the_oracle(engine, monkeypatch):
    given, expected = ORACLE["oneshot_fedavg"]["inputs"], ORACLE["oneshot_fedavg"]["expected"]

    def bowl(self, params, batch, view):
        first = view.num_examples == given["n"][0]
        a, c = (torch.where(first, *given[key]) for key in ("a", "c"))
        return (0.5 * a * (params["x"] - c).square()).sum()

    monkeypatch.setattr(OneShot, "local_loss", bowl)
    sizes = tuple(map(int, given["n"]))
    task = toy_task(
        sizes=sizes, engine=engine, lr=given["lr"], local_epochs=None, local_steps=given["steps"], momentum=0.0,
        weight_decay=0.0, rounds=1, batch_size=3,
    )  # fmt: skip
    task = replace(task, model=Point(task.model.input_shape, NUM_CLASSES))
    state = train(OneShot(), task)
    _, locals_ = OneShot().trained(task, state)
    close(locals_["params"]["x"].flatten(), expected["locals"])
    close(deployed(OneShot(), task).params["x"], [expected["size_weighted"]])
    close(deployed(OneShot(weighting="uniform"), task).params["x"], [expected["uniform"]])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("participation", [0.6, 1.0])
def test_one_round_is_fedavg_bit_for_bit(engine, participation):
    task = toy_task(engine=engine, participation=participation, rounds=1)
    assert_equal(deployed(OneShot(), task).params, deployed(FedAvg(), task).params)
    assert train(OneShot(), task)["costs"] == train(FedAvg(), task)["costs"]


def test_running_statistics_are_averaged_as_fedavg_does():
    task = normalised_task(rounds=1)
    assert_equal(deployed(OneShot(), task).buffers, deployed(FedAvg(), task).buffers)


def test_later_rounds_go_on_alone_and_send_nothing():
    task = toy_task(rounds=2, momentum=0.0)
    states = [train(OneShot(), task, rounds) for rounds in (1, 2)]
    keys = ("bytes_down", "bytes_up")
    assert [states[0]["costs"][key] for key in keys] == [states[1]["costs"][key] for key in keys]
    alone = FedAvg()
    own = task.restrict(torch.tensor([3]))
    _, kept = OneShot().trained(task, states[1])
    assert_equal(tree.row(kept["params"], 3), train(alone, own)["params"], 1e-12)
    assert OneShot().caveats(task) == []
    assert "2 rounds" in OneShot().caveats(toy_task(rounds=2))[0]


def test_clients_start_from_models_of_their_own_where_asked():
    task = toy_task(rounds=1, lr=0.0)
    _, kept = OneShot(client_init="independent").trained(task, train(OneShot(client_init="independent"), task))
    for client in range(5):
        own = replace(task, initial_model=client).initial_params()
        assert_equal(tree.row(kept["params"], client), own)


def test_held_out_examples_are_a_part_of_the_clients_and_not_trained_on():
    task = toy_task(sizes=(1, 4, 20, 8, 11))
    training, held = training_part(task, 0.2), held_part(task, 0.2)
    sizes = [len(rows) for rows in held.federation.clients]
    assert sizes == [0, 1, 4, 1, 2] == [num_held(size, 0.2) for size in (1, 4, 20, 8, 11)]
    for whole, kept, out in zip(
        task.federation.clients, training.federation.clients, held.federation.clients, strict=True
    ):
        assert torch.equal(torch.cat([kept, out]).sort().values, whole)
    counts = training.federation.label_counts + held.federation.label_counts
    assert torch.equal(counts, task.federation.label_counts)
    assert training_part(task, 0.0) is task
    short = toy_task(rounds=1, local_epochs=1)
    assert train(OneShot(hold_out=0.2), short)["costs"]["examples"] == sum(n - num_held(n, 0.2) for n in SIZES)


# Ensembles

KNOWN = ORACLE["ensembles"]
LOGITS = tensor(KNOWN["inputs"]["logits_client_sample_class"]).transpose(0, 1)  # [B, m, C]
COUNTS = tensor(KNOWN["inputs"]["class_counts"])
WEIGHTS = COUNTS / COUNTS.sum(0)
KNOWLEDGE = {
    "weighted-logits": WEIGHTS,
    "weighted-probabilities": WEIGHTS,
    "polychotomous": tensor(KNOWN["inputs"]["confusion_client_true_predicted"]),
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
    equal = tensor([[[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
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


def test_one_class_per_client_is_said():
    task = toy_task(sizes=(4, 4, 4))
    alone = task.federation.label_counts.clamp(max=0)
    alone[:, 0] = 4
    single = replace(task, federation=replace(task.federation, label_counts=alone))
    assert EnsembleOfClients().caveats(task) == [
        "Clients trained alone for 3 rounds, in each of which momentum started anew."
    ]
    assert "each client has one class" in EnsembleOfClients().caveats(single)[-1]


def paper_task(**settings):
    """The task of the byte counts: ten clients, the simple CNN, single precision."""
    task = toy_task(
        shape=(3, 32, 32), dataset="cifar10", dtype=torch.float32, sizes=(2,) * 10, rounds=1, local_epochs=None,
        **{"local_steps": 1, **settings},
    )  # fmt: skip
    return replace(task, model=models.load("simple-cnn")((3, 32, 32), 10))


BYTES = ORACLE["oneshot_bytes"]["expected"]


def test_bytes_of_one_exchange_and_of_an_ensemble():
    task = paper_task()
    assert OneShot().traffic(task) == 2 * BYTES["one_way"]
    assert EnsembleOfClients().traffic(task) == 2 * BYTES["one_way"] + BYTES["ensemble_deployed"]
    weighted = EnsembleOfClients(rule="weighted-logits")
    assert weighted.traffic(task) - EnsembleOfClients().traffic(task) == 4 * 10
    model = ByRule((3, 32, 32), 10, (task.model,) * 10)
    assert sum(leaf.numel() for leaf in model.init(torch.Generator()).values()) == 10 * BYTES["params"]


# FENS


@dataclass(frozen=True)
class Given(HiddenLayer):
    """The aggregator of the oracle, with its params."""

    def init(self, generator):
        theta = torch.tensor(ORACLE["fens_aggregator"]["inputs"]["theta_W1_b1_W2_b2"], dtype=torch.float64)
        parts = theta.split([12, 2, 6, 3])
        shapes = {"hidden.weight": (2, 6), "hidden.bias": (2,), "classifier.weight": (3, 2), "classifier.bias": (3,)}
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


AGGREGATOR = Given((6, 1, 1), 3, 2)


def flat(params):
    return torch.cat(
        [params[name].flatten() for name in ("hidden.weight", "hidden.bias", "classifier.weight", "classifier.bias")]
    )


def test_the_aggregator_follows_the_oracle():
    given, expected = ORACLE["fens_aggregator"]["inputs"], ORACLE["fens_aggregator"]["expected"]
    params = {name: leaf.requires_grad_() for name, leaf in AGGREGATOR.init(None).items()}
    logits = BoundModel(AGGREGATOR, {})(params, tensor(given["v"]))
    close(logits.detach(), expected["logits"])
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(given["y"]))
    loss.backward()
    close(loss.item(), expected["loss"])
    close(flat({name: leaf.grad for name, leaf in params.items()}), expected["grad"])
    uniform = Weights((6, 1, 1), 3, True)
    own = {name: leaf.double() for name, leaf in uniform.init(None).items()}
    close(BoundModel(uniform, {})(own, tensor(given["v"])), expected["uniform_aggregator_is_mean_logit"])
    only = Weights((6, 1, 1), 3, False)
    own = {name: leaf.double() for name, leaf in only.init(None).items()}
    close(BoundModel(only, {})(own, tensor(given["v"])), expected["uniform_aggregator_is_mean_logit"])


@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_of_the_aggregator_follow_the_oracle(engine):
    given, known = ORACLE["fens_aggregator"]["inputs"], ORACLE["fens_round"]
    options = {key: known["inputs"][key] for key in ("beta1", "beta2", "server_lr", "tau")}
    task = replace(toy_task(engine=engine), weigh=lambda cohort: tensor(known["inputs"]["p"]))
    inputs = [tensor([row]) for row in given["v"]]
    labels = [torch.tensor([label]) for label in given["y"]]
    before = flat(AGGREGATOR.init(None))
    for round, expected in enumerate(known["expected"]["rounds"], 1):
        fens = Fens(aggregator_rounds=round, aggregator_lr=known["inputs"]["client_lr"], **options)
        found = flat(fens.trained_aggregator(task, AGGREGATOR, inputs, labels))
        close(found, expected["theta"])
        if round == 1:  # m = 0.1 D, v = 0.01 D^2
            delta = tensor(expected["mean_delta"])
            moved = options["server_lr"] * 0.1 * delta / (0.1 * delta.abs() + options["tau"])
            close(found - before, moved.tolist())


@dataclass(frozen=True)
class Part(Model):
    """A model with two features, numbers 2k and 2k + 1 of its input."""

    k: int

    def layers(self):
        return {"classifier": (self.num_classes, 2)}

    def features(self, params, x, bound):
        return x.flatten(1)[:, 2 * self.k : 2 * self.k + 2]


def test_a_linear_aggregator_is_a_concatenated_classifier():
    known = ORACLE["fens_is_fedconcat"]
    given, expected = known["inputs"], known["expected"]
    x = torch.cat([tensor(own) for own in given["features"]], 1)
    members = (Part((4, 1, 1), 3, 0), Part((4, 1, 1), 3, 1))
    heads = {}
    for k in range(2):
        heads[f"encoder{k}.classifier.weight"] = tensor(given["heads"][k])
        heads[f"encoder{k}.classifier.bias"] = tensor(given["head_biases"][k])
    linear = Aggregated((4, 1, 1), 3, members, Linear((6, 1, 1), 3))
    mixing = torch.cat([tensor(own) for own in given["A"]], 1)
    own = {"aggregator.classifier.weight": mixing, "aggregator.classifier.bias": torch.zeros(3, dtype=torch.float64)}
    close(BoundModel(linear, {})({**heads, **own}, x), expected["fens_linear_logits"])
    concat = concatenate(list(members))
    for weight, bias, logits in (
        (expected["fedconcat_W"], expected["fedconcat_b"], expected["fens_linear_logits"]),
        (torch.cat([tensor(own) for own in given["heads"]], 1).tolist(), tensor(given["head_biases"]).sum(0).tolist(),
         expected["fedconcat_init_clusters_logits"]),
    ):  # fmt: skip
        params = {"classifier.weight": tensor(weight), "classifier.bias": tensor(bias)}
        close(BoundModel(concat, {})(params, x), logits)
    together = torch.cat([a @ h for a, h in zip(tensor(given["A"]), tensor(given["heads"]), strict=True)], 1)
    close(together, expected["fedconcat_W"])
    close((tensor(given["A"]) @ tensor(given["head_biases"])[:, :, None]).sum(0).flatten(), expected["fedconcat_b"])
    mean = ByRule((4, 1, 1), 3, members)
    close(BoundModel(mean, {})(heads, x), expected["mean_logit_ensemble"])


def test_an_aggregator_that_is_not_trained_is_the_mean_and_one_that_is_fits_what_was_held_out():
    base = OneShot(hold_out=0.3)
    task = toy_task(rounds=1)
    plain = logits_of(task, EnsembleOfClients(base=base))
    for aggregator in ("class-weights", "client-weights"):
        fens = Fens(base=base, aggregator=aggregator, aggregator_rounds=0)
        torch.testing.assert_close(logits_of(task, fens), plain)
    held = held_part(task, 0.3).federation
    rows = torch.cat(held.clients)
    losses = []
    for rounds in (0, 100):
        one = deployed(Fens(base=base, aggregator_rounds=rounds, server_lr=0.01), task)
        said = task.map_images(lambda x, first, one=one: BoundModel(one.model, {})(one.params, x), held.images[rows])
        losses.append(torch.nn.functional.cross_entropy(said, held.labels[rows]).item())
    assert losses[1] < losses[0] - 0.1


def test_batches_of_the_aggregator_are_no_larger_than_asked():
    task = toy_task(rounds=1)
    small, large, larger = (
        deployed(Fens(aggregator_batch_size=size, aggregator_rounds=3, base=OneShot(hold_out=0.5)), task).params
        for size in (1, 10, 11)
    )
    name = "aggregator.classifier.weight"
    assert torch.equal(large[name], larger[name]) and not torch.equal(small[name], large[name])


def test_eight_bits_are_multiples_of_the_largest_number_over_127():
    found = in_eight_bits(tensor([[1.27, 0.004, -0.016], [0.0, 0.0, 0.0]]))
    close(found, [[1.27, 0.0, -0.02], [0.0, 0.0, 0.0]])


def test_bytes_of_fens():
    task = paper_task()
    shared = OneShot().traffic(task)
    plain, small = Fens(base=OneShot(hold_out=0.1)), Fens(base=OneShot(hold_out=0.1), quantise="int8")
    rounds = BYTES["fens_500_rounds_up_and_down_d2"]
    assert plain.traffic(task) - shared == BYTES["fens_down_models_float32"] + rounds
    assert small.traffic(task) - shared == BYTES["fens_down_models_int8"] + rounds
    sizes = {f"fens_h_d{d}": {"hidden_per_client": d} for d in (1, 2, 4)}
    sizes |= {"fens_weighted": {"aggregator": "class-weights"}, "fens_linear_full": {"aggregator": "linear"}}
    for key, options in sizes.items():
        aggregator = Fens(**options).deployed_model(task).aggregator
        assert sum(leaf.numel() for leaf in aggregator.init(torch.Generator()).values()) == BYTES[key]


def test_fens_needs_examples_that_are_held_out():
    with pytest.raises(ValueError, match="set base.hold_out"):
        Fens(base=OneShot())


# What gradients cost that clients and the server compute once the models are trained


def counting(monkeypatch, where, name, number):
    """What number says of the arguments of each call of a function, from now on."""
    seen, original = [], getattr(where, name)
    monkeypatch.setattr(where, name, lambda *rest, **named: seen.append(number(*rest)) or original(*rest, **named))
    return seen


def test_gradients_of_the_aggregator_count(monkeypatch):
    task = toy_task(rounds=1, local_epochs=1)
    method = Fens(base=OneShot(hold_out=0.4), aggregator_rounds=3, aggregator_batch_size=4)
    rows = counting(monkeypatch, RoundHooks, "local_loss", lambda method, params, batch, view: len(batch.y))
    state = train(method, task)
    del rows[:]
    method.deploy(task, state, EVERYONE)
    assert sum(rows) == method.deploy_examples(task) == 3 * (4 + 1 + 4 + 3 + 4)
    assert sum(method.workload(task.settings, size) for size in SIZES) == state["costs"]["examples"] + sum(rows)


def test_the_pass_for_curvature_counts(monkeypatch):
    task = toy_task(rounds=1, local_epochs=1, participation=0.6)
    method = FedLPA(base=OneShot(hold_out=0.3))
    state = train(method, task)
    rows = counting(monkeypatch, fedlpa, "curvature", lambda model, params, buffers, x, *_: len(x))
    method.deploy(task, state, EVERYONE)
    cohort = task.sample_cohort(0).ids
    assert sum(rows) == method.deploy_examples(task) == sum(n - num_held(n, 0.3) for n in task.sizes(cohort))


@pytest.mark.parametrize("name", ["fens", "fedlpa", "dense", "co-boosting"])
def test_what_follows_the_training_is_in_the_row_of_a_run_and_known_before(name, tmp_path):
    small = {key: value for key, value in SMALL.items() if key in options_of(name)}
    common = {"dataset": "digits", "partition": "iid", "clients": 10, "rounds": 1, "local_epochs": 1}
    common |= {"model": "mlp", "train_examples": 200, "test_examples": 50}
    config = resolve({"algorithm": name, **common, **small})
    base = trained_by(config)
    run = Run(config, datasets.load("digits", None))
    row, more = run.step(), run.algorithm.deploy_examples(run.task)
    assert more > 0 and row["examples"] == examples_to_train(config) == examples_to_train(base) + more
    cells = [Cell("digits", {}, one, run_id(one)) for one in (base, config)]
    *_, total = costs(cells, Store(tmp_path))
    assert (total["trainings"], total["examples"]) == (1, row["examples"])


# FedLPA

LPA = ORACLE["fedlpa"]


@dataclass(frozen=True)
class OneLayer(Model):
    """A classifier of its input."""

    def layers(self):
        return {"classifier": (2, 2)}

    def features(self, params, x, bound):
        return x.flatten(1)


def lpa_factors():
    """Undamped factors of the clients of the oracle, their weights and shares."""
    given = LPA["inputs"]
    m = tensor(given["weights_out_by_in_plus_bias"])
    a, b = [], []
    for k, (x, y) in enumerate(zip(given["layer_inputs"], given["y"], strict=True)):
        params = {"classifier.weight": m[k][:, :-1].contiguous(), "classifier.bias": m[k][:, -1].contiguous()}
        sums = curvature(OneLayer((2, 1, 1), 2), params, {}, tensor(x), torch.tensor(y), ["classifier"])["classifier"]
        a.append(sums.a / len(y))
        b.append(sums.b / len(y))
    return m, torch.stack(a), torch.stack(b), tensor(given["p"])


def lpa(**options):
    return FedLPA(**{"damping": LPA["inputs"]["damping_on_A_and_on_B"], **options})


def test_factors_and_solutions_follow_the_oracle():
    m, a, b, shares = lpa_factors()
    known, tol = LPA["expected"], LPA["tol"]
    close(a, known["A_undamped"])
    close(b, known["B_undamped"])
    r = LPA["inputs"]["damping_on_A_and_on_B"]
    damped = [one + r * torch.eye(len(one[0]), dtype=torch.float64) for one in (a, b)]
    close(torch.einsum("k,koi->oi", shares, damped[1] @ m @ damped[0]), known["Z"], tol)
    close(lpa(solver="expectation").solved(m, a, b, shares)[0], known["expectation_approximation"], tol)
    found, used = lpa().solved(m, a, b, shares)
    close(found, known["exact"], tol)
    assert used <= 6  # numbers of the layer
    for steps, expected in known["code_gradient_steps"].items():
        close(lpa(solver="gradient", gradient_steps=int(steps)).solved(m, a, b, shares)[0], expected, tol)


def test_identities_of_the_solution_follow_the_oracle():
    m, a, b, shares = lpa_factors()
    known, tol = LPA["expected"], LPA["tol"]
    close(torch.einsum("k,koi->oi", shares, m), known["size_weighted_mean"])
    close(lpa(damping=1e6).solved(m, a, b, shares)[0], known["damping_1e6_exact"], 1e-5)
    one = slice(0, 1)
    close(lpa().solved(m[one], a[one], b[one], torch.ones(1).double())[0], known["one_client_exact"], tol)
    close(lpa().solved(m[one], a[one], b[one], torch.ones(1).double())[0], m[0].tolist(), tol)
    same_a, same_b = a[one].expand(2, -1, -1), b[one].expand(2, -1, -1)
    close(lpa().solved(m, same_a, same_b, shares)[0], known["equal_factors_exact"], tol)
    close(lpa().solved(m, same_a, same_b, shares)[0], known["size_weighted_mean"], tol)
    close(lpa().solved(m, same_a, b, shares)[0], known["equal_A_exact"], tol)
    close(lpa(solver="expectation").solved(m, same_a, b, shares)[0], known["equal_A_expectation_approximation"], tol)


def test_factors_of_convolutions_follow_the_oracle():
    known = ORACLE["fedlpa_conv_factors"]
    x, g = (
        tensor(known["inputs"][key]) for key in ("patches_sample_position_entry", "output_gradients_of_per_sample_loss")
    )
    sums = layer_factors(x, g)
    close(sums.a / len(x), known["expected"]["A"])
    close(sums.b / len(x), known["expected"]["B"])


def test_patches_and_gradients_of_a_convolution_are_those_of_the_layer():
    """E[g x^T] summed over positions is the gradient of the layer's weights."""
    model = models.load("simple-cnn")((1, 16, 16), 3)
    params = {name: leaf.double() for name, leaf in model.init(torch.Generator().manual_seed(0)).items()}
    x = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.tensor([0, 2])
    found = {}
    original = fedlpa.layer_factors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedlpa, "layer_factors", lambda *rows: found.setdefault(len(found), rows) and original(*rows))
        curvature(model, params, {}, x, y, [*model.layers()])
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    torch.nn.functional.cross_entropy(BoundModel(model, {})(leaves, x), y, reduction="sum").backward()
    for (rows, slopes), layer in zip(found.values(), model.layers(), strict=True):
        joined = torch.einsum("npo,npi->oi", slopes, rows)
        torch.testing.assert_close(joined[:, :-1].flatten(), leaves[f"{layer}.weight"].grad.flatten())
        torch.testing.assert_close(joined[:, -1], leaves[f"{layer}.bias"].grad)


def test_equal_clients_and_strong_damping_give_fedavg():
    task = toy_task(rounds=1)
    average = deployed(OneShot(), task).params
    assert_equal(deployed(FedLPA(damping=1e6), task).params, average, 1e-4)
    near = deployed(FedLPA(), task).params
    assert float((near["linear1.weight"] - average["linear1.weight"]).abs().max()) > 1e-3
    alone = toy_task(sizes=(20,), rounds=1)
    assert_equal(deployed(FedLPA(), alone).params, deployed(OneShot(), alone).params, 1e-6)
    normalised = normalised_task(rounds=1)
    found, mean = deployed(FedLPA(), normalised), deployed(OneShot(), normalised)
    assert torch.equal(found.params["stem.norm.weight"], mean.params["stem.norm.weight"])
    assert not torch.equal(found.params["stem.weight"], mean.params["stem.weight"])


def test_factors_of_some_layers_are_held_at_a_time(monkeypatch):
    task = toy_task(rounds=1, local_epochs=1)
    expected, seen = deployed(FedLPA(), task), []
    original = FedLPA.factors
    monkeypatch.setattr(FedLPA, "factors", lambda *given: seen.append(given[-1]) or original(*given))
    sides = fedlpa.sides_of(task.model)
    assert sides == {"linear1": (37, 64), "linear2": (65, 64), "classifier": (65, 3)}
    largest = 8 * (65**2 + 64**2)
    for most, groups in (
        (largest, [["linear1"], ["linear2"], ["classifier"]]),
        (2 * largest, [["linear1", "linear2"], ["classifier"]]),
    ):
        del seen[:]
        monkeypatch.setattr(fedlpa, "_MOST_BYTES", 5 * most)
        assert_equal(deployed(FedLPA(), task).params, expected.params)
        assert seen == groups
    assert fedlpa.groups_of(sides, 1) == [["linear1"], ["linear2"], ["classifier"]]


def test_conjugate_gradients_stop_at_the_solution_or_at_the_limit():
    square = tensor([[4.0, 1.0], [1.0, 3.0]])
    apply, same = (lambda x: square @ x), (lambda x: x)
    z, start = tensor([[1.0], [2.0]]), torch.zeros(2, 1).double()
    found, used = conjugate_gradients(apply, same, z, start, 10)
    assert used == 2
    close(found.flatten(), [1 / 11, 7 / 11])
    assert conjugate_gradients(apply, same, z, start, 1)[1] == 1
    assert conjugate_gradients(apply, same, z, found, 10)[1] == 0


def test_bytes_of_fedlpa_are_those_of_triangles():
    task = paper_task()
    up = FedLPA().deploy_traffic(task, task.model)["bytes_up"] // 10
    assert up == 4 * BYTES["fedlpa_factors_triangles"]
    assert FedLPA().traffic(task) - BYTES["one_way"] == BYTES["fedlpa_up_triangles"]
    sides = [side for pair in fedlpa.sides_of(task.model).values() for side in pair]
    assert sum(side**2 for side in sides) == BYTES["fedlpa_factors_full_matrices"]
    assert 4 * (BYTES["params"] + sum(side**2 for side in sides)) == BYTES["fedlpa_up_full"]


# FedOV

OV = ORACLE["fedov_loss"]
OV_BATCH = Batch(torch.zeros(4, 1, 1, 1), torch.tensor(OV["inputs"]["y"]))


def padded(batch):
    """The batch with a padding row, and what a row of it does to a tensor."""
    mask = torch.tensor([True] * len(batch.y) + [False])
    more = lambda leaf: torch.cat([leaf, leaf[:1]])  # noqa: E731
    return Batch(more(batch.x), more(batch.y), mask), more


@pytest.mark.parametrize("pads", [False, True])
def test_the_terms_of_the_loss_follow_the_oracle(pads):
    given, expected = OV["inputs"], OV["expected"]
    batch, more = padded(OV_BATCH) if pads else (OV_BATCH, lambda leaf: leaf)
    x, o, a = (more(tensor(given[f"logits_{key}"])).requires_grad_() for key in ("x", "destroyed", "adversarial"))
    f = tensor(given["first_hidden"]).requires_grad_()
    order, b = torch.tensor(given["perm"]), given["b"]
    mixed = (b * f + (1 - b) * f[order]) @ tensor(given["later_layers_W"]) + tensor(given["later_layers_b"])
    order = torch.cat([order, torch.tensor([4])]) if pads else order
    mixup = mixup_loss(more(mixed), order, batch)
    close(mixup.item(), expected["mixup_before_0.01"])
    loss = known_loss(x, o, a, batch) + FedOV().mixup_weight * mixup
    close(loss.item(), expected["loss"])
    loss.backward()
    close(x.grad[:4], expected["grad_logits_x"])
    close(o.grad[:4], expected["grad_logits_destroyed"])
    close(f.grad, expected["grad_first_hidden_from_mixup"])
    zero = x.detach() * 0
    plain = known_loss(x, zero, zero, batch).item() - 2 * math.log(4)
    close(plain, expected["ce"] + expected["lowered"])
    close(known_loss(x, o, zero, batch).item() - plain - math.log(4), expected["dd"])
    close(known_loss(x, zero, a, batch).item() - plain - math.log(4), expected["aoe"])
    one_class = batch._replace(y=torch.zeros_like(batch.y))
    assert mixup_loss(more(mixed), order, one_class).item() == expected["one_class_client_mixup"]


@dataclass(frozen=True)
class LinearOf3(Model):
    """A linear classifier of three numbers into two classes and unknown, or as many as asked."""

    def layers(self):
        return {"classifier": (self.num_classes, 3)}

    def features(self, params, x, bound):
        return x.flatten(1)


def test_the_attack_follows_the_oracle():
    given, expected = ORACLE["fedov_attack"]["inputs"], ORACLE["fedov_attack"]["expected"]
    params = {"classifier.weight": tensor(given["model_W"]).T, "classifier.bias": tensor(given["model_b"])}
    view = SimpleNamespace(model=BoundModel(LinearOf3((3, 1, 1), 4), {}, training=True))
    start = tensor(given["o"])[:, :, None, None]
    losses = []
    for steps in range(6):
        found = attack(view, params, start, steps, given["step"])
        logits = view.model(params, found)
        losses.append(torch.nn.functional.cross_entropy(logits, torch.full((2,), given["unknown"])).item())
    close(losses, [expected["loss_before"], *expected["loss_after_each_step"]])
    close(found.flatten(1), expected["o_adversarial"])


def test_the_attack_reads_running_statistics():
    task = FedOV().training(normalised_task(rounds=1))
    params, buffers = task.initial_params(), task.initial_buffers()
    buffers["stem.norm.running_mean"] += torch.arange(4)
    x = torch.rand(6, *task.model.input_shape, generator=torch.Generator().manual_seed(0))
    slopes = []
    for training in (False, True):
        model, own = BoundModel(task.model, buffers).copy(training=training), x.clone().requires_grad_()
        (-model(params, own).log_softmax(1)[:, -1].sum()).backward()
        slopes.append(own.grad.sign())
    assert not torch.equal(*slopes)
    view = SimpleNamespace(model=BoundModel(task.model, buffers, training=True))
    torch.testing.assert_close(attack(view, params, x, 1, 0.1), x + 0.1 * slopes[0])


def test_the_vote_follows_the_oracle():
    given, expected = ORACLE["fedov_vote"]["inputs"], ORACLE["fedov_vote"]["expected"]
    logits = tensor(given["logits_client_sample"]).transpose(0, 1)
    q = logits.softmax(2)
    close(q.transpose(0, 1), expected["q"])
    assert q[0, :, -1].argsort().tolist() == expected["clients_by_unknown"]
    for voters, scores in expected["scores"].items():
        close(vote(logits, int(voters))[0], scores)
        model = Voting((1, 1, 1), 3, (LinearOf3((3, 1, 1), 4),) * 3, int(voters) % 3)
        assert model.combine({}, logits).argmax(1).tolist() == [expected["argmax"][voters]]
    closed = (1 - q[:, :, -1:]) * logits[:, :, :-1].softmax(2)
    close(closed[0], expected["identity_1_minus_unknown_times_closed_softmax"])


def test_equally_unknown_images_are_voted_on_by_the_mean_probability():
    closed = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unknown = closed.logsumexp(2, keepdim=True) - math.log(4)  # q[u] = 1 / 5 everywhere
    close(vote(torch.cat([closed, unknown], 2), 4), (4 * 0.8 * closed.softmax(2).mean(1)).tolist())


def view_of(task, params, **own):
    """What the first client of a task sees, and its first batch."""
    seen = {}

    def look(data, plan, view):
        seen["view"], seen["batch"] = view, data.take(plan[0])
        return {}

    task.map_clients(look, task.cohort(torch.tensor([0])), round=0, params=params, buffers={})
    return seen["view"], seen["batch"]


def test_features_are_mixed_in_the_first_hidden_layer():
    """The loss of a model by hand, and CE on x and o in one batch."""
    task = FedOV().training(toy_task(rounds=1))
    params = task.initial_params()
    view, batch = view_of(task, params)
    method = FedOV()
    found = method.outliers(params, batch, view, 0.0, method.attack_step)
    assert found.order.sort().values.tolist() == list(range(len(batch.y))) and 0 < found.share < 1
    assert float((found.attacked - found.destroyed).abs().max()) == pytest.approx(5 * method.attack_step)
    hidden = dict(task.model.hidden(params, batch.x, view.model))["linear1"]
    mixed = found.share * hidden + (1 - found.share) * hidden[found.order]
    later = torch.relu(torch.nn.functional.linear(mixed, params["linear2.weight"], params["linear2.bias"]))
    logits = [view.model(params, images) for images in (batch.x, found.destroyed, found.attacked)]
    expected = known_loss(*logits, batch) + 0.01 * mixup_loss(view.model.head(params, later), found.order, batch)
    torch.testing.assert_close(method.open_set_loss(params, batch, view, found), expected)
    joint = FedOV(terms="joint")
    found = joint.outliers(params, batch, view, 0.0, 0.0)
    unknown = torch.full_like(batch.y, NUM_CLASSES)
    together = torch.cat([view.model(params, batch.x), view.model(params, found.destroyed)])
    expected = torch.nn.functional.cross_entropy(together, torch.cat([batch.y, unknown]))
    torch.testing.assert_close(joint.open_set_loss(params, batch, view, found), expected)


def test_the_joint_loss_follows_the_oracle():
    given = OV["inputs"]
    params = {"classifier.weight": torch.eye(4).double(), "classifier.bias": torch.zeros(4).double()}
    model = SimpleNamespace(model=lambda params, x: x.flatten(1))
    x, o = (tensor(given[f"logits_{key}"])[:, :, None, None] for key in ("x", "destroyed"))
    found = Outliers(o, o, o, o)
    loss = FedOV(terms="joint").open_set_loss(params, OV_BATCH._replace(x=x), model, found)
    close(loss.item(), OV["expected"]["loss_mixed_variant_x_and_destroyed_in_one_batch"])


def test_steps_are_those_of_adam():
    task = toy_task(sizes=(12,), rounds=1, local_epochs=1)
    method = FedOV(client_init="common")
    _, found = method.trained(task, train(method, task))
    own = FedOV().training(task)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in own.initial_params().items()}
    assert task.settings.lr != method.adam_lr == 0.001
    adam = torch.optim.Adam(leaves.values(), lr=0.001, weight_decay=task.settings.weight_decay)

    def steps(data, plan, view):
        for index in plan:
            batch = data.take(index)
            extra = method.outliers(leaves, batch, view, 0.0, method.attack_step)
            adam.zero_grad()
            method.open_set_loss(leaves, batch, view, extra).backward()
            adam.step()
        return {}

    own.map_clients(steps, own.cohort(torch.tensor([0])), round=0, params=own.initial_params(), buffers={})
    for name, leaf in leaves.items():
        torch.testing.assert_close(tree.row(found["params"], 0)[name], leaf.detach(), rtol=0, atol=1e-9)


def test_normalised_images_take_steps_of_pixels_and_are_erased_to_black():
    task = toy_task(sizes=(6, 5), shape=(1, 16, 16), dataset="mnist", transform="fedcat", rounds=1, local_epochs=1)
    transform, seen = task.federation.transform, {}

    class Seen(FedOV):
        def outliers(self, params, batch, view, black, length):
            seen["black"], seen["length"] = black, length
            return super().outliers(params, batch, view, black, length)

    train(Seen(), task)
    black = transform.scale(torch.zeros(1, 1, 1, 1, dtype=torch.uint8), torch.float64)
    torch.testing.assert_close(seen["black"].flatten(), black.flatten())
    torch.testing.assert_close(seen["length"].flatten(), (0.002 / transform.std.double()).flatten())


IMAGES = torch.rand(400, 2, 12, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
KEYS = torch.arange(400)


def test_one_of_seven_changes_happens_to_an_image_whatever_others_there_are():
    found = outliers.destroyed(IMAGES, KEYS)
    assert torch.equal(outliers.destroyed(IMAGES[5:9], KEYS[5:9]), found[5:9])
    kinds = (outliers.uniform_from_keys(KEYS, 1)[:, 0] * 7).long()
    u = outliers.uniform_from_keys(KEYS, 12).double()[:, 1:]
    changes = [
        outliers._cropped(IMAGES, u), outliers._blurred(IMAGES, u), outliers._erased(IMAGES, u, 0.0),
        *[outliers._cut(IMAGES, u)] * 2, *[outliers._turned(IMAGES, u)] * 2,
    ]  # fmt: skip
    for row, kind in enumerate(kinds.tolist()):
        assert torch.equal(found[row], changes[kind][row])
    assert kinds.unique().tolist() == list(range(7))


def test_changes_are_those_of_the_code():
    u = outliers.uniform_from_keys(KEYS, 11).double()
    size = 12
    crops = outliers._stretch(size, torch.full((400,), 6.0).double(), u[:, 0])
    close(crops.sum(2), torch.ones(400, size).tolist())  # interpolation
    assert sorted({int((one > 0).any(0).sum()) for one in crops}) == [6]  # pixels
    blurs = outliers._smoothed(size, torch.tensor([0.0, 1.0, 4.0]).double(), torch.full((3,), 1e6).double())
    close(blurs.sum(2), torch.ones(3, size).tolist())
    close(blurs[0], torch.eye(size).tolist())
    close(blurs[1][0][:3], [1 / 3, 2 / 3, 0.0])  # reflected
    close(blurs[2][5], [0.0] + [1 / 9] * 9 + [0.0] * 2)
    erased = outliers._erased(IMAGES, u, -1.0)
    shares = (erased == -1).double().mean((1, 2, 3))
    assert 0.25 < shares.min() and shares.max() < 0.6 and 0.33 < shares.mean() < 0.5
    for change, kept in ((outliers._turned(IMAGES, u), True), (outliers._cut(IMAGES, u), False)):
        same = [
            torch.equal(a.flatten().sort().values, b.flatten().sort().values)
            for a, b in zip(change, IMAGES, strict=True)
        ]
        assert all(same) if kept else 100 < sum(same) < 300  # halves swapped; a band copied
        assert not any(torch.equal(a, b) for a, b in zip(change, IMAGES, strict=True))
    swapped = outliers._moved(4, torch.tensor([True]), torch.tensor([0.0]))
    assert swapped.tolist() == [[2, 3, 0, 1]]
    copied = {tuple(outliers._moved(8, torch.tensor([False]), torch.tensor([c]))[0].tolist()) for c in (0.0, 0.999)}
    assert copied == {(0, 1, 0, 1, 2, 3, 6, 7), (0, 1, 4, 5, 6, 7, 6, 7)}
    square = torch.arange(16.0).view(1, 1, 4, 4)
    turned = outliers._turned(square, torch.tensor([[0.0, 0.0, 0.5]]))[0, 0]  # by 90 and by 180 degrees
    expected = torch.cat([torch.rot90(square[0, 0, :2, :2]), torch.rot90(square[0, 0, :2, 2:], 2)], 1)
    assert torch.equal(turned, torch.cat([expected, square[0, 0, 2:]]))


def test_bytes_and_passes_of_fedov():
    task = paper_task()
    assert FedOV().traffic(task) == 2 * 4 * BYTES["fedov_params"] + BYTES["fedov_ensemble"]
    assert FedOV().passes_per_example == 8 and FedOV(terms="joint").passes_per_example == 2


def test_models_with_running_statistics_are_trained_by_terms_joint():
    task = normalised_task(rounds=1, local_epochs=1)
    usual, joint, full = (train(FedOV(**options), task) for options in ({}, {"terms": "joint"}, {"terms": "full"}))
    assert_equal(usual["clients"], joint["clients"])
    assert usual["costs"]["examples"] == joint["costs"]["examples"] == 2 * sum(SIZES)
    assert not torch.equal(*(state["clients"]["rows"][0]["params"]["stem.weight"] for state in (usual, full)))
    again = local_models(task, FedOV(), FedOV().init(task))
    assert torch.equal(again["params"]["stem.weight"][0], usual["clients"]["rows"][0]["params"]["stem.weight"])
    common = {
        "dataset": "cifar10",
        "partition": "iid",
        "algorithm": "fedov",
        "clients": 10,
        "rounds": 1,
        "local_epochs": 1,
    }
    plain, normalised = (examples_to_train(resolve(common | {"model": name})) for name in ("simple-cnn", "resnet18"))
    assert (plain, normalised) == (8 * 50000, 2 * 50000)


def test_that_moments_of_adam_start_anew_is_said_whatever_the_momentum():
    for momentum in (0.0, 0.9):
        (said,) = FedOV().caveats(toy_task(rounds=2, momentum=momentum))
        assert "in each of which the moments of Adam started anew" in said
    assert FedOV(optimizer="sgd").caveats(toy_task(rounds=2, momentum=0.0)) == []
    assert FedOV().caveats(toy_task(rounds=1)) == FedOV().caveats(normalised_task(rounds=1)) == []


def test_models_without_a_place_to_mix_or_for_the_class_unknown_are_refused():
    task = toy_task(rounds=1)
    wrapped = replace(task, model=wrap(NormalisedClassifier, task.model))
    with pytest.raises(ValueError, match="the classifier of NormalisedClassifier cannot have it"):
        FedOV().init(wrapped)


# FuseFL

FUSE = ORACLE["fusefl_forward"]


@dataclass(frozen=True)
class TwoBlocks(Model):
    """Two layers without bias, ReLU after each, and a classifier."""

    def layers(self):
        return {"block1": (2, 2), "block2": (2, 2), "classifier": (3, 2)}

    def features(self, params, x, bound):
        x = x.flatten(1)
        for name in ("block1", "block2"):
            x = torch.relu(torch.nn.functional.linear(x, params[f"{name}.weight"]))
        return x


TWO, X = TwoBlocks((2, 1, 1), 3), tensor(FUSE["inputs"]["x"])[:, :, None, None]


def fused_params(adapters=False):
    """Of each client of the oracle: its own params, and those of all of them in one model with the heads' mean."""
    given = FUSE["inputs"]
    own = []
    for k in range(2):
        one = {f"block{n}.weight": tensor(given[f"block{n}"][k]).T for n in (1, 2)}
        one |= {"classifier.weight": tensor(given["heads"][k]).T, "classifier.bias": tensor(given["head_biases"][k])}
        own.append(one | ({adapter_of(0): tensor(given["adapters_1x1_on_concatenated"][k]).T} if adapters else {}))
    whole = {f"encoder{k}.{n}": leaf for k, one in enumerate(own) for n, leaf in one.items() if "classifier" not in n}
    mean = {name: sum(one[name] for one in own) / 2 for name in ("classifier.weight", "classifier.bias")}
    return own, whole | mean


def test_fused_networks_follow_the_oracle():
    own, whole = fused_params()
    expected = FUSE["expected"]
    bound = BoundModel(TWO, {})
    close(torch.stack([run_block(bound, one, X, end="block2") for one in own]), expected["block1_outputs"])
    mean = Fused(TWO.input_shape, 3, (TWO, TWO), ("block2",), False)
    one = BoundModel(mean, {})
    close(one.features(whole, X), expected["K2_mean_adapter_features_sum"])
    close(one(whole, X), expected["K2_mean_adapter_logits"])
    isolated = replace(mean, cuts=())
    close(BoundModel(isolated, {})(whole, X), expected["K1_isolated_encoders_logits"])
    heads = {"classifier.weight": torch.cat([part["classifier.weight"] for part in own], 1)}
    heads["classifier.bias"] = own[0]["classifier.bias"] + own[1]["classifier.bias"]
    several = replace(isolated, multihead=True)
    close(BoundModel(several, {})(whole | heads, X), expected["K1_multihead_logits_sum"])
    _, whole = fused_params(adapters=True)
    adapted = WithAdapters(TWO.input_shape, 3, TWO, ("block2",), 2)
    close(BoundModel(replace(mean, members=(adapted, adapted)), {})(whole, X), expected["K2_1x1_adapter_logits"])


def test_a_client_trains_on_the_fused_blocks_as_in_the_oracle():
    own, _ = fused_params()
    stacked = tree.stack(own)
    task = toy_task(rounds=1)
    view, batch = view_of(replace(task, model=TWO), own[0])
    view = replace(view, round=1, server={"frozen": {"params": stacked, "buffers": {}}}, settings=task.settings)
    outputs = block_inputs([view.model] * 2, own, X, ["block2"])
    given = fuse(outputs, None)
    logits = view.model.head(own[0], run_block(view.model, own[0], X, "block2", given))
    close(logits, FUSE["expected"]["local_phase2_client0_logits"])
    y = torch.tensor([0, 2])
    loss = FuseFL().local_loss(own[0], Batch(X, y), view)
    close(loss.item(), torch.nn.functional.cross_entropy(logits, y).item())


def test_without_cuts_it_is_the_ensemble_and_fedconcats_encoders():
    task = toy_task(rounds=1)
    multihead = logits_of(task, FuseFL(blocks=1, multihead=True))
    torch.testing.assert_close(multihead, 5 * logits_of(task, EnsembleOfClients()))
    encoders = deployed(FedConcat(num_clusters="none", encoder_rounds=1, classifier_rounds=0), task).params
    found = deployed(FuseFL(blocks=1), task).params
    assert_equal(encoder_part(found), encoder_part(encoders), 1e-12)
    _, kept = OneShot().trained(task, train(OneShot(), task))
    torch.testing.assert_close(found["classifier.weight"], kept["params"]["classifier.weight"].mean(0))


@pytest.mark.parametrize("adapter", ["mean", "conv1x1"])
@pytest.mark.parametrize("engine", ENGINES)
def test_blocks_freeze_one_after_another(adapter, engine):
    task = toy_task(
        engine=engine, rounds=2, local_epochs=1, model="simple-cnn", shape=(1, 16, 16), dataset="mnist", sizes=(6, 4)
    )
    method = FuseFL(blocks=3, adapter=adapter, phase_rounds=2)
    assert method.cuts(task.model) == ("conv2", "linear1")
    states = [train(method, task, rounds) for rounds in range(7)]
    found = [method.trained(task, state)[1]["params"] for state in states]
    moved = [{name for name in a if not torch.equal(a[name], b[name])} for a, b in zip(found, found[1:], strict=False)]
    parts = [{name.rpartition(".")[0] for name in one} for one in moved]
    own = [{"adapter0"}, {"adapter1"}] if adapter == "conv1x1" else [set(), set()]
    whole = {"conv1", "conv2", "linear1", "linear2", "classifier"}
    last = {"linear1", "linear2", "classifier"}
    assert parts == [whole] * 2 + [last | {"conv2"} | own[0]] * 2 + [last | own[1]] * 2
    model = deployed(method, task).model
    assert model.cuts == ("conv2", "linear1") and deployed(method, task, 2).model.cuts == ()


def test_one_client_is_local_training_with_blocks_that_freeze():
    task = toy_task(sizes=(13,), rounds=1)
    state = train(FuseFL(), task)
    alone = toy_task(sizes=(13,), rounds=2, local_epochs=1)
    first = train(OneShot(), alone, 1)["clients"]["rows"][0]["params"]

    def second(data, plan, view):
        return partial.descend_on(
            ["linear2", "classifier"], task_loss, {"params": first, "buffers": {}}, data, plan, view
        )

    own = alone.map_clients(second, alone.cohort(torch.tensor([0])), round=1, params=first, buffers={}).result["params"]
    assert_equal(tree.row(own, 0), state["clients"]["rows"][0]["params"], 1e-12)
    image = task.map_images(
        lambda x, first: BoundModel(task.model, {})(tree.row(own, 0), x), task.federation.test_images
    )
    torch.testing.assert_close(logits_of(task, FuseFL()), image)


@pytest.mark.parametrize(
    ("blocks", "setting", "number", "shares"),
    [(2, "local_epochs", 4, [2, 2]), (3, "local_epochs", 5, [2, 2, 1]), (3, "local_steps", 2, [1, 1, 1])],
)
def test_phases_share_the_epochs_of_a_round(blocks, setting, number, shares):
    task = toy_task(sizes=(7, 7), rounds=1, **{"local_epochs": None, setting: number})
    method = FuseFL(blocks=blocks)
    assert [getattr(method.in_phase(task.settings, phase), setting) for phase in range(blocks)] == shares
    state, found = method.init(task), []
    for _ in range(blocks):
        before, state = state["costs"]["examples"], method.step(task, state)
        found.append((state["costs"]["examples"] - before) // 2)
    expected = [replace(task.settings, **{setting: share}).num_visited(7) for share in shares]
    assert found == expected and sum(found) == method.workload(task.settings, 7)
    assert bool(method.caveats(task)) == (number < blocks)


def test_running_statistics_of_frozen_blocks_stay():
    task = normalised_task(rounds=1)
    kept = [FuseFL().trained(task, train(FuseFL(), task, rounds))[1]["buffers"] for rounds in (0, 1, 2)]
    assert not torch.equal(kept[0]["stem.norm.running_mean"], kept[1]["stem.norm.running_mean"])
    assert_equal(kept[1], kept[2])


def test_the_classifier_can_be_calibrated():
    task = toy_task(rounds=1)
    method = CCVR(base=FuseFL(), virtual_per_class=20, transform_stage="none")
    before, after = (deployed(one, task).params for one in (FuseFL(), method))
    assert not torch.equal(before["classifier.weight"], after["classifier.weight"])
    assert_equal(encoder_part(before), encoder_part(after))


def test_a_model_whose_layers_are_no_chain_is_not_cut():
    task = replace(toy_task(shape=(3, 32, 32), dataset="cifar10"), model=models.load("resnet18")((3, 32, 32), 3))
    with pytest.raises(ValueError, match="but what follows reads more than what goes into it, as with shortcuts"):
        FuseFL().init(task)
    with pytest.raises(ValueError, match="blocks must be at most 3, the layers of Mlp, but got 4"):
        FuseFL(blocks=4).init(toy_task())
    vgg = models.load("vgg9")((3, 32, 32), 3)
    assert all(is_chain(vgg, cut) for cut in FuseFL(blocks=4).cuts(vgg))


def test_bytes_of_fusefl():
    task, model = paper_task(), 4 * BYTES["params"]
    head = 4 * (84 * 10 + 10)
    for blocks, adapters in ((1, 0), (3, 0), (3, 4 * (6 * 60 + 400 * 4000))):
        method = FuseFL(blocks=blocks, adapter="conv1x1" if adapters else "mean")
        down_and_up = 2 * (model + adapters) + 10 * (model - head + adapters) + head
        assert method.traffic(task) == down_and_up
