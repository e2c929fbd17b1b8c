"""Models: sizes, initial values, and agreement with the same networks written as modules."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench import models
from bench.models.base import BoundModel
from bench.models.concat import Concatenated
from bench.speed.reference_loop import SimpleCnn as YardstickCnn
from tests.support.toy import assert_equal, toy_method, toy_task, train

COLOUR, GREY = (3, 32, 32), (1, 28, 28)


@pytest.mark.parametrize(
    "name, shape, num_classes, num_params, feature_dim",
    [
        ("simple-cnn", COLOUR, 10, 62_006, 84),
        ("simple-cnn", GREY, 10, 44_426, 84),
        ("moon-cnn", COLOUR, 10, 92_626, 256),
        ("simple-cnn-concat5", COLOUR, 10, 309_990, 420),
        ("simple-cnn-concat5", GREY, 10, 222_090, 420),
        ("simple-cnn-wide", COLOUR, 10, 310_089, 189),
        ("vgg9", COLOUR, 10, 3_491_530, 512),
        ("resnet18", COLOUR, 20, 11_186_772, 512),
        ("resnet50", COLOUR, 100, 23_705_252, 2048),
        ("resnet50", COLOUR, 200, 23_910_152, 2048),
        ("mobilenetv2", COLOUR, 10, 2_236_682, 1280),
        ("mobilenetv2", COLOUR, 100, 2_351_972, 1280),
        ("lenet-cifar", COLOUR, 10, 62_006, 84),
        ("lenet-cifar", COLOUR, 20, 62_856, 84),
        ("mcmahan2017-mnist-cnn", GREY, 10, 1_663_370, 512),
        ("mcmahan2017-mnist-cnn", GREY, 62, 1_690_046, 512),
        ("mcmahan2017-cifar-cnn", (3, 24, 24), 10, 1_068_298, 192),
        ("mcmahan2017-cifar-cnn", (3, 24, 24), 20, 1_070_228, 192),
        ("mcmahan2017-cifar-cnn", COLOUR, 10, 1_756_426, 192),
        ("mcmahan2017-cifar-cnn", COLOUR, 20, 1_758_356, 192),
        ("fedmr-mnist-cnn", GREY, 10, 66_130, 50),
        ("fedmr-femnist-cnn", GREY, 62, 160_510, 256),
        ("fedcollab-mlp", GREY, 10, 199_210, 200),
        ("fedcollab-cnn", COLOUR, 10, 122_570, 64),
        ("mlp", (1, 8, 8), 10, 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10, 64),
    ],
)
def test_parameter_counts(name, shape, num_classes, num_params, feature_dim):
    model = models.load(name)(shape, num_classes)
    params = model.init(torch.Generator().manual_seed(0))
    assert sum(leaf.numel() for leaf in params.values()) == num_params
    assert model.feature_dim == feature_dim


def test_resnet50_has_the_buffers_of_the_digest():
    buffers = models.load("resnet50")(COLOUR, 100).init_buffers()
    assert sum(leaf.numel() for leaf in buffers.values()) == 53_173


@pytest.mark.parametrize("name", models.REGISTRY)
def test_logits_are_the_head_of_the_features(name):
    bound, params = initialised(name)
    x = torch.rand(3, *COLOUR)
    features = bound.features(params, x)
    assert features.shape == (3, bound.spec.feature_dim)
    torch.testing.assert_close(bound(params, x), features @ params["classifier.weight"].T + params["classifier.bias"])


@pytest.mark.parametrize("name", models.REGISTRY)
def test_initial_params_depend_on_the_generator_alone(name):
    (_, one), (_, same), (_, other) = initialised(name), initialised(name), initialised(name, seed=1)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["classifier.weight"], other["classifier.weight"])


def test_initial_params_have_the_spread_of_torch_defaults():
    _, params = initialised("simple-cnn")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = YardstickCnn()
    for name, leaf in params.items():
        layer, _, _ = name.partition(".")
        bound = params[f"{layer}.weight"][0].numel() ** -0.5  # PyTorch: uniform in +-1/sqrt(fan-in), the bias as well
        for found in (leaf, dict(module.named_parameters())[name]):
            assert found.shape == leaf.shape and found.abs().max() <= bound
    assert params["linear1.weight"].std().item() == pytest.approx(module.linear1.weight.std().item(), rel=0.05)


def test_simple_cnn_equals_the_module_with_its_params():
    bound, params = initialised("simple-cnn")
    module = YardstickCnn()
    module.load_state_dict(params)
    x = torch.rand(4, *COLOUR)
    torch.testing.assert_close(bound(params, x), module(x))


@pytest.mark.parametrize("training", [False, True])
def test_resnet50_equals_torchvisions_with_the_stem_for_small_images(training):
    import torchvision

    bound, params = initialised("resnet50", training=training)
    module = torchvision.models.resnet50(num_classes=10)
    module.conv1, module.maxpool = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False), torch.nn.Identity()
    assert_equal_to_module(bound, params, module.train(training))


@pytest.mark.parametrize("shape", [COLOUR, (3, 40, 56)])
@pytest.mark.parametrize("training", [False, True])
def test_resnet18_equals_torchvisions(training, shape):
    import torchvision

    bound, params = initialised("resnet18", training=training, shape=shape)
    assert_equal_to_module(bound, params, torchvision.models.resnet18(num_classes=10).train(training), shape)


@pytest.mark.parametrize("training", [False, True])
def test_mobilenetv2_equals_torchvisions_with_three_strides_instead_of_five(training):
    import torchvision

    bound, params = initialised("mobilenetv2", training=training)
    module = torchvision.models.mobilenet_v2(num_classes=10, dropout=0.0)
    module.features[0][0].stride = module.features[2].conv[1][0].stride = (1, 1)
    assert_equal_to_module(bound, params, module.train(training))


def assert_equal_to_module(bound, params, module, shape=COLOUR):
    """The same logits, and the same running statistics afterwards, with the same params."""
    for ours, theirs in zip(params.values(), module.parameters(), strict=True):
        theirs.data = ours
    x = torch.rand(4, *shape)
    torch.testing.assert_close(bound(params, x), module(x), rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(bound.buffers.values(), module.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_fedcollabs_cnn_equals_the_module_with_its_params():
    nn, (bound, params) = torch.nn, initialised("fedcollab-cnn")
    module = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    assert_equal_to_module(bound, params, module)


def test_mcmahans_mnist_cnn_equals_the_module_with_its_params():
    bound, params = initialised("mcmahan2017-mnist-cnn", shape=GREY)
    pooled = [torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    module = torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 32, 5, padding="same"), *pooled),
        *(torch.nn.Conv2d(32, 64, 5, padding="same"), *pooled),
        *(torch.nn.Flatten(), torch.nn.Linear(3136, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)),
    )
    assert_equal_to_module(bound, params, module, GREY)


@pytest.mark.parametrize("shape, flat", [((3, 24, 24), 2304), (COLOUR, 4096)])
def test_mcmahans_cifar_cnn_equals_the_module_with_its_params(shape, flat):
    bound, params = initialised("mcmahan2017-cifar-cnn", shape=shape)
    pool = [torch.nn.ZeroPad2d((0, 1, 0, 1)), torch.nn.MaxPool2d(3, 2)]  # inputs are not negative
    normalise = torch.nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1)
    module = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 64, 5, padding="same"), torch.nn.ReLU(), *pool, normalise),
        *(torch.nn.Conv2d(64, 64, 5, padding="same"), torch.nn.ReLU(), normalise, *pool),
        *(torch.nn.Flatten(), torch.nn.Linear(flat, 384), torch.nn.ReLU(), torch.nn.Linear(384, 192)),
        *(torch.nn.ReLU(), torch.nn.Linear(192, 10)),
    )
    assert_equal_to_module(bound, {name: 3 * leaf for name, leaf in params.items()}, module, shape)


@pytest.mark.parametrize("pixels", [4, 5, 6, 7, 24, 31])
def test_mcmahans_cifar_cnn_pools_every_size_to_half_rounded_up(pixels):
    bound, params = initialised("mcmahan2017-cifar-cnn", shape=(3, pixels, pixels + 1))
    assert bound(params, torch.rand(2, 3, pixels, pixels + 1)).shape == (2, 10)


def test_mcmahans_cifar_cnn_starts_from_the_values_of_the_tutorial():
    _, params = initialised("mcmahan2017-cifar-cnn")
    values = {"conv1": (0.05, 0), "conv2": (0.05, 0.1), "linear1": (0.04, 0.1), "linear2": (0.04, 0.1)}
    for name, (std, bias) in {**values, "classifier": (1 / 192, 0)}.items():
        weight = params[f"{name}.weight"]
        assert weight.abs().max() <= 2 * std
        assert weight.std().item() == pytest.approx(0.8796 * std, rel=0.05)  # of a normal cut at two deviations
        assert (params[f"{name}.bias"] == bias).all()


@pytest.mark.parametrize("name", [name for name in models.REGISTRY if not models.load(name)(COLOUR, 10).loop_only])
def test_engines_agree_on_every_model_that_both_can_run(name):
    task = toy_task(sizes=(5, 3), model=name, shape=(3, 18, 18), rounds=1, local_epochs=1, batch_size=3)
    method = toy_method("fedavg")
    looped, vectorised = (train(method, replace(task, engine=engine)) for engine in ("loop", "vectorised"))
    assert_equal(looped, vectorised, tolerance=1e-10)


@pytest.mark.parametrize(("name", "largest"), [("resnet18", 32), ("resnet50", 8), ("mobilenetv2", 8)])
def test_images_that_end_as_one_pixel_need_two_examples_for_batch_statistics(name, largest):
    for side, least in ((largest, 2), (largest + 1, 1)):
        bound, params = initialised(name, training=True, shape=(3, side, side))
        assert bound.spec.smallest_batch == least
        bound(params, torch.rand(least, 3, side, side))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        bound, params = initialised(name, training=True, shape=(3, largest, largest))
        bound(params, torch.rand(1, 3, largest, largest))


def test_another_name_is_the_same_class_and_is_described():
    assert models.load("lenet-cifar") is models.load("simple-cnn")
    assert models.describe("lenet-cifar") == models.describe("simple-cnn")


def test_width_scales_the_channels_of_resnet50():
    narrow = models.load("resnet50")(COLOUR, 10, width=0.125)
    assert narrow.feature_dim == 256
    assert narrow.layers()["stem"] == (8, 3, 3, 3)


def test_dropout_is_drawn_from_the_clients_generator_in_training_only():
    bound, params = initialised("vgg9")
    x = torch.rand(2, *COLOUR)
    assert torch.equal(bound(params, x), bound(params, x))
    spec = bound.spec
    first, again, other = (
        BoundModel(spec, {}, training=True, generator=torch.Generator().manual_seed(seed))(params, x)
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_dropout_keeps_the_mean_and_drops_whole_channels_when_asked():
    bound = BoundModel(initialised("vgg9")[0].spec, {}, training=True, generator=torch.Generator().manual_seed(0))
    dropped = bound.dropout(torch.ones(100, 100, 2, 2), 0.25, channelwise=True)
    assert dropped.mean().item() == pytest.approx(1, abs=0.02)
    assert (dropped.flatten(2).amin(2) == dropped.flatten(2).amax(2)).all()
    assert not (dropped == dropped[:, :1]).all()


def test_a_model_apart_leaves_the_buffers_as_they_are():
    bound, params = initialised("resnet50", training=True)
    before = {name: leaf.clone() for name, leaf in bound.buffers.items()}
    bound.copy(training=True)(params, torch.rand(2, *COLOUR))
    assert all(torch.equal(before[name], bound.buffers[name]) for name in before)


@pytest.mark.parametrize(
    "name, shape",
    [
        ("simple-cnn", (1, 8, 8)),
        ("moon-cnn", (1, 8, 8)),
        ("vgg9", (1, 4, 4)),
        ("fedmr-mnist-cnn", (1, 8, 8)),
        ("mcmahan2017-mnist-cnn", (1, 3, 3)),
        ("fedcollab-cnn", (1, 17, 20)),
    ],
)
def test_images_that_are_too_small_are_refused(name, shape):
    with pytest.raises(ValueError, match=f"at least .* pixels, but got {shape[1]}x{shape[2]}; use the model mlp"):
        models.load(name)(shape, 10)


def test_unknown_model_names_the_nearest():
    with pytest.raises(ValueError, match="Unknown model 'simple-cn'. Did you mean 'simple-cnn'?"):
        models.load("simple-cn")


@pytest.mark.parametrize("name", models.REGISTRY)
def test_descriptions_are_sentences(name):
    assert models.describe(name).endswith(".")


def initialised(name: str, seed: int = 0, training: bool = False, shape=COLOUR):
    spec = models.load(name)(shape, 10)
    return BoundModel(spec, spec.init_buffers(), training=training), spec.init(torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", [*models.REGISTRY])
def test_layers_are_told_in_order_and_end_in_features_and_logits(name):
    model = models.load(name)((3, 32, 32), 10)
    bound = BoundModel(model, model.init_buffers())
    params = model.init(torch.Generator().manual_seed(0))
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = bound.outputs(params, x)
        *hidden, last = found
        assert last == "classifier" and torch.equal(found[last], bound(params, x))
        assert torch.equal(found[hidden[-1]], bound.features(params, x))
    assert hidden == ["features"] or [*hidden, last] == [*model.layers()]


def test_encoders_side_by_side_need_the_largest_of_their_batches():
    encoders = tuple(SimpleNamespace(smallest_batch=least) for least in (1, 2, 1))
    assert Concatenated((1, 8, 8), 10, encoders).smallest_batch == 2
