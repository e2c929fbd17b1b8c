"""Ordinary modules as models: they equal the same networks of this project, and what does not fit gets a sentence."""

import random
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from bench import models
from bench.config.resolve import resolve
from bench.experiments.planning import check_engine
from bench.models.base import BoundModel
from bench.models.calibrated import NormalisedClassifier, wrap
from bench.models.modules import model_of
from bench.models.resnet import torchvision_name
from bench.simulation.engines import refuse_loop_only
from bench.speed.reference_loop import SimpleCnn as SimpleCnnModule
from tests.support.toy import NUM_CLASSES, assert_equal, toy_method, toy_task, train

COLOUR = (3, 32, 32)
DIGITS = {"algorithm": "fedavg", "dataset": "digits", "partition": "iid"}


class VisionTransformer(nn.Module):
    """Patches of 8x8 pixels, a class token, two encoder layers, pre-normalised."""

    def __init__(self, input_shape, num_classes, width=16, dropout=0.0):
        super().__init__()
        channels, height, _ = input_shape
        self.patches = nn.Conv2d(channels, width, 8, stride=8)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (height // 8) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x):
        patches = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.position
        return self.fc(self.norm(self.encoder(tokens))[:, 0])


def simple_cnn(input_shape, num_classes):
    """The yardstick's network, its last layer for other numbers of classes."""
    module = SimpleCnnModule()
    module.classifier = nn.Linear(84, num_classes)
    return module


class Perceptron(nn.Module):
    """One hidden layer; what a test changes of it is an option."""

    def __init__(self, input_shape, num_classes, body=nn.Identity, tail=nn.Identity, bias=True):
        super().__init__()
        size = input_shape[0] * input_shape[1] * input_shape[2]
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(size, 8), body(), nn.ReLU())
        self.classifier = nn.Linear(8, num_classes, bias=bias)
        self.tail = tail()

    def forward(self, x):
        return self.tail(self.classifier(self.body(x)))


def trained_twice(adapted, own, names, method, **settings):
    """States after two rounds of a model and of an adapted one, from the same initial params, the latter under the names of the
    former; the adapted run continues from its state after the first round."""
    algorithm = toy_method(method)
    task = toy_task(shape=COLOUR, dtype=torch.float32, engine="loop", **settings)
    expected = train(algorithm, replace(task, model=own), 2)

    class Started(type(adapted)):
        """With the initial params of the other one."""

        def init(self, generator):
            theirs = own.init(generator)
            return {ours: theirs[names(ours)] for ours in super().init(torch.Generator())}

    started = replace(task, model=Started(COLOUR, NUM_CLASSES))
    state = algorithm.init(started)
    first = algorithm.step(started, state)
    again = replace(task, model=Started(COLOUR, NUM_CLASSES))
    return expected, algorithm.step(again, first)


def renamed(leaves, names):
    return {names(name): leaf for name, leaf in leaves.items()}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_torchvisions_resnet18_equals_ours_bit_for_bit_also_when_it_is_resumed(method):
    own, adapted = (models.load(name)(COLOUR, NUM_CLASSES) for name in ("resnet18", "torchvision:resnet18"))
    theirs = {torchvision_name(name): name for name in own.init(torch.Generator()) | own.init_buffers()}
    template = adapted._template
    own_names = {**template.params, **template.buffers}

    def names(name):
        return name if name.startswith("classifier.") else theirs[own_names[name]]

    expected, found = trained_twice(adapted, own, names, method, sizes=(13, 8, 6), last_batch="drop-if-full")
    for part in ("params", "buffers"):
        assert_equal(renamed(found[part], names), dict(expected[part]))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "moon"])
def test_a_handwritten_network_equals_ours_bit_for_bit(method):
    own, adapted = models.load("simple-cnn")(COLOUR, NUM_CLASSES), model_of("mine", simple_cnn)(COLOUR, NUM_CLASSES)
    assert adapted.layers() == own.layers() and adapted.feature_dim == own.feature_dim
    expected, found = trained_twice(adapted, own, str, method)
    assert_equal(found["params"], expected["params"])


@pytest.mark.slow_but_first
@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedconcat", "fedper"])
def test_a_vision_transformer_learns(method, options):
    model = model_of("vit", VisionTransformer, **options)(COLOUR, NUM_CLASSES)
    task = replace(toy_task(shape=COLOUR, dtype=torch.float32), model=model)
    one, same = (train(toy_method(method), task, 2) for _ in range(2))
    assert_equal(one, same)
    names = [*model.init(torch.Generator())]
    assert names[0] == "input.norm.token" and names[-2:] == ["classifier.weight", "classifier.bias"]
    assert model.feature_dim == 16 and bool(model.loop_only) == bool(options)


def test_both_engines_agree_on_a_module():
    model = model_of("mine", Perceptron, body=lambda: nn.LayerNorm(8))((1, 6, 6), NUM_CLASSES)
    loop, vectorised = (
        train(toy_method("fedavg"), replace(toy_task(engine=engine), model=model), 2)
        for engine in ("loop", "vectorised")
    )
    assert_equal(loop["params"], vectorised["params"], 1e-10)


def test_the_generator_of_the_run_draws_dropout_masks_and_no_other_is_touched():
    model = model_of("mine", Perceptron, body=lambda: nn.Dropout(0.5))((1, 6, 6), NUM_CLASSES)
    params, x = model.init(torch.Generator().manual_seed(0)), torch.rand(5, 1, 6, 6)

    def features(seed, training=True):
        return BoundModel(model, {}, training, torch.Generator().manual_seed(seed)).features(params, x)

    before = torch.get_rng_state()
    one, same, other = features(0), features(0), features(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(features(0, training=False), features(1, training=False))
    bound = BoundModel(model, {}, True, torch.Generator().manual_seed(0))
    assert torch.equal(bound.twin().features(params, x), bound.features(params, x))
    with pytest.raises(ValueError, match=r"mine, which draws random numbers .* use the engine loop"):
        refuse_loop_only(model)
    with pytest.raises(ValueError, match="there is no generator"):
        BoundModel(model, {}, True).features(params, x)


class Counting(nn.Module):
    """Counts its passes in a buffer that it replaces, beside a constant and a frozen param."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))
        self.register_buffer("constant", torch.full((8,), 0.1), persistent=False)
        self.frozen = nn.Parameter(torch.eye(8), requires_grad=False)

    def forward(self, x):
        if self.training:
            self.passes = self.passes + 1
        return x @ self.frozen + self.constant


def test_buffers_that_move_are_those_of_the_model_and_all_others_are_constants():
    model = model_of("mine", Perceptron, body=Counting)((1, 6, 6), NUM_CLASSES)
    (name,) = model.init_buffers()
    assert name.endswith("passes") and not any("frozen" in key for key in model.init(torch.Generator()))
    bound = BoundModel(model, model.init_buffers(), True)
    params = model.init(torch.Generator().manual_seed(0))
    for passes in (1, 2):
        bound.features(params, torch.rand(2, 1, 6, 6))
        assert bound.buffers[name] == passes
    assert model.init_buffers()[name] == 0
    one, other = (BoundModel(model, model.init_buffers()).features(params, torch.ones(1, 1, 6, 6)) for _ in range(2))
    assert torch.equal(one, other)
    assert (
        BoundModel(model, {name: bound.buffers[name].double()})
        .features({key: leaf.double() for key, leaf in params.items()}, torch.ones(1, 1, 6, 6).double())
        .dtype
        == torch.float64
    )


def test_batch_statistics_run_on_the_loop_engine_only():
    model = model_of("mine", Perceptron, body=lambda: nn.BatchNorm1d(8, affine=False))((1, 6, 6), NUM_CLASSES)
    assert model.loop_only.startswith("normalises by batch statistics")
    assert model.smallest_batch == 2 and model.depends_on_mode
    names = ("running_mean", "running_var", "num_batches_tracked")
    assert [*model.init_buffers()] == [f"body.1.norm.body_2_{name}" for name in names]


class HalvedWhenTested(nn.Module):
    """Gives other outputs in evaluation mode, without random numbers, buffers or batch statistics."""

    def forward(self, x):
        return x if self.training else 0.5 * x


def test_who_wraps_a_model_knows_that_its_mode_counts():
    model = model_of("mine", Perceptron, body=HalvedWhenTested)((1, 6, 6), NUM_CLASSES)
    wrapped = wrap(NormalisedClassifier, model)
    assert not model.loop_only and model.depends_on_mode and wrapped.depends_on_mode


class Residual(nn.Module):
    """Its batch statistics count only once `scale` has left 0."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.scale * self.norm(x)


class Untraceable(nn.Module):
    """Decides by its values."""

    def forward(self, x):
        return x if x.isfinite().all() else -x


@pytest.mark.parametrize(
    ("body", "why"),
    [(Residual, "normalises by batch statistics"), (Untraceable, "torch.func.vmap cannot trace: RuntimeError")],
)
def test_what_the_vectorised_engine_could_not_run_is_found_before(body, why):
    assert model_of("mine", Perceptron, body=body)((1, 6, 6), NUM_CLASSES).loop_only.startswith(why)


class Drop(nn.Module):
    """Drops its layer, by Python's own generator, or by NumPy's."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x * (2.0 * (self.draw() < 0.5)) if self.training else x


@pytest.mark.parametrize("draw", [random.random, lambda: np.random.rand()])
def test_generators_of_python_and_numpy_are_seeded_too(draw):
    model = model_of("mine", Perceptron, body=lambda: Drop(draw))((1, 6, 6), NUM_CLASSES)
    assert "draws random numbers" in model.loop_only
    params, x = model.init(torch.Generator().manual_seed(0)), torch.rand(5, 1, 6, 6)
    state = random.getstate()
    seeds = [0, 0, *range(1, 9)]
    found = [BoundModel(model, {}, True, torch.Generator().manual_seed(seed)).features(params, x) for seed in seeds]
    assert torch.equal(found[0], found[1]) and len({float(one.sum()) for one in found}) == 2
    assert random.getstate() == state


class Late(nn.Module):
    """Moves its buffer after so many passes, or in every one."""

    def __init__(self, first=0, always=False):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.first, self.always, self.passes = first, always, 0

    def forward(self, x):
        self.passes += 1
        if self.always or (self.training and self.passes > self.first):
            self.seen += 1
        return x


def test_a_buffer_that_begins_to_move_after_the_trial_is_no_silent_leak():
    model = model_of("mine", Perceptron, body=lambda: Late(40))((1, 6, 6), NUM_CLASSES)
    bound, params = BoundModel(model, {}, True), model.init(torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="has changed its buffer body.2.seen, which stood still in the first passes"):
        for _ in range(41):
            bound.features(params, torch.rand(2, 1, 6, 6))


class Cosine(nn.Linear):
    """A classifier by angles."""

    def forward(self, x):
        return nn.functional.linear(nn.functional.normalize(x), self.weight, self.bias)


class OwnGenerator(nn.Module):
    """Initial values that no seed decides."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(np.random.default_rng().normal(size=(8,))).float())

    def forward(self, x):
        return x * self.weight


class Twins(nn.Module):
    """Two layers whose params would have one name."""

    def __init__(self):
        super().__init__()
        self.norm = nn.ModuleList([nn.Identity(), nn.LayerNorm(8)])
        self.norm_1 = nn.LayerNorm(8)

    def forward(self, x):
        return self.norm_1(self.norm[1](x))


def with_head(change):
    """A perceptron whose classifier is changed."""

    def build(shape, classes):
        module = Perceptron(shape, classes)
        module.classifier = change(module.classifier)
        return module

    return build


def test_lazy_layers_get_their_sizes_and_the_seed_decides_alone():
    build = lambda shape, classes: nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, classes))  # noqa: E731
    model = model_of("mine", build)((1, 6, 6), NUM_CLASSES)
    one, same, other = (model.init(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert_equal(one, same)
    assert one["1.weight"].shape == (5, 36) and not torch.equal(one["1.weight"], other["1.weight"])


def test_figures_get_the_outputs_of_layers():
    model = model_of("vit", VisionTransformer)(COLOUR, NUM_CLASSES)
    outputs = BoundModel(model, {}).outputs(model.init(torch.Generator().manual_seed(0)), torch.rand(3, *COLOUR))
    assert outputs["patches"].shape == (3, 16, 4, 4) and outputs["features"].shape == (3, 16)
    assert [*outputs][-2:] == ["features", "classifier"]
    assert not any(module._forward_hooks for module in model._template.encoder.modules())


class AlwaysDropping(nn.Module):
    """Forgets to pass its mode."""

    def forward(self, x):
        return nn.functional.dropout(x, 0.5)


class Squeezing(nn.Module):
    """Loses the first axis of one image."""

    def forward(self, x):
        return x.squeeze()


class Twice(Perceptron):
    """With auxiliary logits in training mode."""

    def forward(self, x):
        logits = super().forward(x)
        return (logits, logits) if self.training else logits


class Overwriting(Perceptron):
    """Begins with an operation in place that a second one does not show."""

    def forward(self, x):
        return super().forward(x.relu_())


@pytest.mark.parametrize(
    "build, options, sentence",
    [
        (Overwriting, {}, "changes its images in place, .*; make new tensors, such as x = x - 0.5"),
        (lambda shape, classes: 3, {}, "must make a torch.nn.Module, but got 3"),
        (
            lambda shape, classes: [][1],
            {},
            "cannot be built for images of 1x6x6 and 3 classes: IndexError: list index out",
        ),
        (lambda shape, classes: nn.Flatten(), {}, "needs a torch.nn.Linear as its classifier, but has none"),
        (Perceptron, {"head": "fc"}, "has none called 'fc'; its linear layers: body.1, classifier"),
        (Perceptron, {"tail": lambda: nn.Softmax(1)}, r"return logits without a softmax\.$"),
        (
            Perceptron,
            {"head": "body.1"},
            'linear layer body.1, .*, or name the classifier: @registered_model."mine", head="classifier".',
        ),
        (
            Perceptron,
            {"tail": lambda: nn.Unflatten(1, (3, 1))},
            r"must return logits \[4, 3\] .* but returns \(4, 3, 1\) in evaluation",
        ),
        (Perceptron, {"body": lambda: nn.Linear(9, 8)}, "cannot take images of 1x6x6: RuntimeError: .*mat1 and mat2"),
        (Twice, {}, "and nothing else, but returns tuple in training mode"),
        (with_head(lambda head: Cosine(8, NUM_CLASSES)), {}, "are not the outputs of its linear layer classifier"),
        (
            with_head(parametrizations.weight_norm),
            {},
            "must have a weight of its own that is trained, without weight_norm",
        ),
        (with_head(lambda head: head.requires_grad_(False)), {}, "must have a weight of its own that is trained"),
        (Perceptron, {"body": OwnGenerator}, "other initial values of body.2.weight each time that it is built"),
        (
            Perceptron,
            {"body": lambda: nn.Linear(8, 8).requires_grad_(False)},
            "draws body.2.weight at random and does not train it",
        ),
        (
            Perceptron,
            {"body": lambda: parametrizations.spectral_norm(nn.Linear(8, 8))},
            "at random and does not train",
        ),
        (
            Perceptron,
            {"body": lambda: nn.BatchNorm1d(8, track_running_stats=False)},
            "cannot take images of 1x6x6: ValueError",
        ),
        (Perceptron, {"body": lambda: AlwaysDropping()}, "draws random numbers in evaluation mode"),
        (Perceptron, {"body": lambda: Late(always=True)}, "changes its buffer body.2.seen in evaluation mode"),
        (Perceptron, {"body": Squeezing}, "makes other features of an image alone"),
        (Perceptron, {"body": Twins}, "two params that would be called body.1.norm.body_2_norm_1_weight"),
    ],
)
def test_what_is_no_classifier_gets_a_sentence(build, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        model_of("mine", build, **options)((1, 6, 6), NUM_CLASSES)


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("torchvision:resnet81", "torchvision has no model 'resnet81'. Did you mean 'resnet18'?"),
        ("timm:vit_tiny", "one of timm, which is not installed"),
        ("keras:vit", "Unknown model 'keras:vit'"),
    ],
)
def test_unknown_models_of_libraries(name, sentence, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    with pytest.raises(ValueError, match=sentence):
        models.load(name)


class OneSize(Perceptron):
    """Takes images of 1x6x6 pixels only."""

    def __init__(self, input_shape, num_classes):
        if input_shape != (1, 6, 6):
            raise ValueError("only 1x6x6")
        super().__init__(input_shape, num_classes)


def test_a_model_for_none_of_the_usual_sizes_is_a_model(monkeypatch):
    config = resolve(DIGITS).model_copy(update={"model": "mine"})
    monkeypatch.setattr(models, "load", lambda name: model_of(name, OneSize))
    assert models.of_any_size.__wrapped__("mine") is None
    monkeypatch.setattr(models, "of_any_size", models.of_any_size.__wrapped__)
    assert not models.has_buffers("mine") and models.load("mine")((1, 6, 6), NUM_CLASSES).feature_dim == 8
    check_engine("vectorised", [SimpleNamespace(config=config)])


def test_torchvisions_networks_read_colours():
    with pytest.raises(ValueError, match="takes images of 3 channels, but these have 1"):
        models.load("torchvision:resnet18")((1, 28, 28), 10)
    assert (
        models.has_buffers("torchvision:resnet18")
        and models.canonical("torchvision:resnet18") == "torchvision:resnet18"
    )
