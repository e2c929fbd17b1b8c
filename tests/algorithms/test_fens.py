"""FENS: its aggregator and the rounds that train it."""

from dataclasses import dataclass, replace

import pytest
import torch

from algorithms.ensemble import EnsembleOfClients
from algorithms.fens import Fens, in_eight_bits
from algorithms.oneshot import OneShot
from algorithms.shared.hold_out import held_part
from bench.models.base import BoundModel, Model
from bench.models.concat import concatenate
from bench.models.ensemble import Aggregated, ByRule, HiddenLayer, Linear, Weights
from tests.support.by_hand import double
from tests.support.oracles import close, deployed, logits_of, oracle, paper_task
from tests.support.toy import toy_task

ORACLE = oracle("oneshot")
ENGINES = ["loop", "vectorised"]
BYTES = ORACLE["oneshot_bytes"]["expected"]


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
    logits = BoundModel(AGGREGATOR, {})(params, double(given["v"]))
    close(logits.detach(), expected["logits"])
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(given["y"]))
    loss.backward()
    close(loss.item(), expected["loss"])
    close(flat({name: leaf.grad for name, leaf in params.items()}), expected["grad"])
    uniform = Weights((6, 1, 1), 3, True)
    own = {name: leaf.double() for name, leaf in uniform.init(None).items()}
    close(BoundModel(uniform, {})(own, double(given["v"])), expected["uniform_aggregator_is_mean_logit"])
    only = Weights((6, 1, 1), 3, False)
    own = {name: leaf.double() for name, leaf in only.init(None).items()}
    close(BoundModel(only, {})(own, double(given["v"])), expected["uniform_aggregator_is_mean_logit"])


@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_of_the_aggregator_follow_the_oracle(engine):
    given, known = ORACLE["fens_aggregator"]["inputs"], ORACLE["fens_round"]
    options = {key: known["inputs"][key] for key in ("beta1", "beta2", "server_lr")}
    options["adaptivity"] = known["inputs"]["tau"]
    task = replace(toy_task(engine=engine), weigh=lambda cohort: double(known["inputs"]["p"]))
    inputs = [double([row]) for row in given["v"]]
    labels = [torch.tensor([label]) for label in given["y"]]
    before = flat(AGGREGATOR.init(None))
    for round, expected in enumerate(known["expected"]["rounds"], 1):
        fens = Fens(aggregator_rounds=round, aggregator_lr=known["inputs"]["client_lr"], **options)
        found = flat(fens.trained_aggregator(task, AGGREGATOR, inputs, labels))
        close(found, expected["theta"])
        if round == 1:  # m = 0.1 D, v = 0.01 D^2
            delta = double(expected["mean_delta"])
            moved = options["server_lr"] * 0.1 * delta / (0.1 * delta.abs() + options["adaptivity"])
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
    x = torch.cat([double(own) for own in given["features"]], 1)
    members = (Part((4, 1, 1), 3, 0), Part((4, 1, 1), 3, 1))
    heads = {}
    for k in range(2):
        heads[f"encoder{k}.classifier.weight"] = double(given["heads"][k])
        heads[f"encoder{k}.classifier.bias"] = double(given["head_biases"][k])
    linear = Aggregated((4, 1, 1), 3, members, Linear((6, 1, 1), 3))
    mixing = torch.cat([double(own) for own in given["A"]], 1)
    own = {"aggregator.classifier.weight": mixing, "aggregator.classifier.bias": torch.zeros(3, dtype=torch.float64)}
    close(BoundModel(linear, {})({**heads, **own}, x), expected["fens_linear_logits"])
    concat = concatenate(list(members))
    for weight, bias, logits in (
        (expected["fedconcat_W"], expected["fedconcat_b"], expected["fens_linear_logits"]),
        (torch.cat([double(own) for own in given["heads"]], 1).tolist(), double(given["head_biases"]).sum(0).tolist(),
         expected["fedconcat_init_clusters_logits"]),
    ):  # fmt: skip
        params = {"classifier.weight": double(weight), "classifier.bias": double(bias)}
        close(BoundModel(concat, {})(params, x), logits)
    together = torch.cat([a @ h for a, h in zip(double(given["A"]), double(given["heads"]), strict=True)], 1)
    close(together, expected["fedconcat_W"])
    close((double(given["A"]) @ double(given["head_biases"])[:, :, None]).sum(0).flatten(), expected["fedconcat_b"])
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
    found = in_eight_bits(double([[1.27, 0.004, -0.016], [0.0, 0.0, 0.0]]))
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
    with pytest.raises(ValueError, match="adaptivity must be greater than 0, but got 0"):
        Fens(adaptivity=0.0)
