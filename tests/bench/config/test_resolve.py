"""Configs: complete, checked, and named by what they say."""

import dataclasses
import re
from typing import get_type_hints

import pytest

import algorithms
import datasets
from bench.config.methods import defaults_of
from bench.config.resolve import base_of, resolve, with_options
from bench.config.schema import RunConfig, run_id, settings_of
from bench.errors import ConfigError
from bench.results import omitted_defaults
from bench.tuning.search import value_in
from tests.support import method_files
from tests.support.toy import other_value

FEDPROX = {"algorithm": "fedprox", "mu": 0.1, "dataset": "digits", "partition": "label-2", "clients": 20}


def mistakes(**changes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(FEDPROX | changes)
    return caught.value.mistakes


def test_every_default_stands_in_the_resolved_config():
    config = resolve({"algorithm": "fedprox", "dataset": "digits", "partition": "label-2"})
    assert config.algorithm == {"name": "fedprox", "mu": 0.01}
    assert (config.model, config.local_epochs, config.local_steps, config.clients) == ("mlp", 10, None, 40)
    assert set(config.versions) == {"algorithm", "partition", "transform", "model"}


def test_run_id_does_not_depend_on_the_order_of_keys():
    backwards = dict(reversed(FEDPROX.items()))
    assert run_id(resolve(FEDPROX)) == run_id(resolve(backwards))
    canonical = resolve(FEDPROX).canonical()
    assert run_id(canonical) == run_id(dict(reversed(canonical.items()))) == run_id(resolve(FEDPROX))


def test_run_id_does_not_depend_on_how_a_value_is_written():
    same = resolve(FEDPROX | {"partition": "label-02", "local_epochs": 10, "participation": 1})
    assert run_id(same) == run_id(resolve(FEDPROX))
    whole, written = resolve(FEDPROX | {"lr": 1, "mu": 1}), resolve(FEDPROX | {"lr": 1.0, "mu": 1.0})
    assert run_id(whole) == run_id(written)
    zeros = [run_id(resolve(FEDPROX | {"momentum": zero, "mu": zero})) for zero in (0, 0.0, -0.0)]
    assert len(set(zeros)) == 1
    sizes = [run_id(resolve(FEDPROX | {"image_size": size})) for size in (24, "24x24", [24, 24])]
    assert len(set(sizes)) == 1 and sizes[0] != run_id(resolve(FEDPROX | {"image_size": [24, 25]}))
    assert type(whole.lr) is type(whole.algorithm["mu"]) is float


@pytest.mark.parametrize(
    "change",
    [
        {"mu": 0.2},
        {"algorithm": "moon"},
        {"seed": 1},
        {"partition": "label-3"},
        {"rounds": 49},
        {"local_steps": 5},
        {"transform": "none"},
        {"image_size": 24},
        {"last_batch": "drop-if-full"},
        {"train_examples": 1000},
        {"evaluate_every": 5},
    ],
)
def test_run_id_depends_on_every_setting(change):
    assert run_id(resolve(FEDPROX | change)) != run_id(resolve(FEDPROX))


@pytest.mark.parametrize(
    ("base", "change"),
    [
        ({"model": "resnet50"}, {"model_width": 0.5}),
        ({"partition": "dir-1"}, {"dirichlet_seed_override": 2020}),
        ({"dataset": "cifar10", "model": "resnet18"}, {"weights": "resnet18.pth"}),
    ],
)
def test_run_id_depends_on_settings_that_only_some_runs_read(base, change):
    assert run_id(resolve(FEDPROX | base | change)) != run_id(resolve(FEDPROX | base))


@pytest.mark.parametrize(
    ("options", "model", "version"),
    [
        ({}, "resnet18", 2),
        ({}, "simple-cnn", 1),
        ({}, "simple-cnn-concat5", 1),
        ({"weighting": "examples"}, "resnet18", 1),
    ],
)
def test_the_version_of_scaffold_is_raised_for_uniform_means_of_buffers_only(options, model, version):
    """Runs of all other models have kept their ids."""
    setting = {"dataset": "cifar10", "partition": "label-2", "model": model}
    assert resolve(setting | {"algorithm": "scaffold"} | options).versions["algorithm"] == version
    inside = resolve(setting | {"algorithm": "finetune", "base": {"name": "scaffold", **options}})
    assert inside.versions["algorithm.base"] == version and inside.versions["algorithm"] == 1


def test_weights_are_part_of_a_config_only_where_there_are_some():
    """So that the setting has renamed no run."""
    config = resolve(FEDPROX | {"weights": "none"})
    assert "weights" not in config.canonical() and run_id(config) == run_id(resolve(FEDPROX))


@pytest.mark.parametrize("name", omitted_defaults.OPTIONS)
def test_options_that_came_later_are_left_out_at_their_defaults_only(name):
    """So that they have renamed no run: ids are those without the options."""
    came_later = omitted_defaults.OPTIONS[name]
    assert came_later.items() <= defaults_of(name).items()
    setting = {key: value for key, value in FEDPROX.items() if key != "mu"}
    inside = [] if algorithms.make(name).personal else [{"algorithm": "ccvr", "base": {"name": name}}]
    for method in ({"algorithm": name}, *inside):
        config = resolve(setting | method)
        stored = config.canonical()
        assert not set(came_later) & {*stored["algorithm"], *stored["algorithm"].get("base", {})}
        assert resolve(settings_of(stored)) == config
        for option, usual in came_later.items():
            assert value_in(stored, option) == usual
            kind, needed = get_type_hints(algorithms.load(name))[option], {}
            if option == "models":  # whose type does not tell its values
                value, needed = "mlp+fedcollab-mlp", {"inference_round": "before"} if name == "fedconcat-id" else {}
            else:
                value = other_value(kind, usual)
            if option == "swa_last_lr":  # at most the rate from which it falls
                value, needed = 0.001, {"swa": True}
            near = with_options(config, needed)
            other = with_options(near, {option: value})
            assert run_id(other) != run_id(near) and value_in(other.canonical(), option) != usual
            assert with_options(other, {option: usual}) == near


def test_a_model_by_another_name_is_the_same_run():
    on_images = FEDPROX | {"dataset": "cifar10"}
    one, other = (resolve(on_images | {"model": name}) for name in ("simple-cnn", "lenet-cifar"))
    assert one.model == "simple-cnn" and run_id(one) == run_id(other)


@pytest.mark.parametrize("part", ["algorithm", "partition", "transform", "model"])
def test_run_id_covers_the_versions(part):
    config = resolve(FEDPROX)
    raised = config.model_copy(update={"versions": config.versions | {part: 2}})
    assert run_id(raised) != run_id(config)


def test_a_resolved_config_resolves_to_itself():
    config = resolve(FEDPROX)
    again = settings_of(config)
    assert resolve(again) == config == RunConfig(**config.canonical())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithm": "fedporx"}, "Did you mean 'fedprox'?"),
        ({"algorithm": "fedporx"}, "No folder of your own is in use: --plugins DIR, or SKEWBENCH_PLUGINS, names one."),
        ({"dataset": "cifer10"}, "Did you mean 'cifar10'?"),
        ({"partition": "lable-2"}, "Did you mean 'label-2'?"),
        ({"model": "simple-cn"}, "Did you mean 'simple-cnn'?"),
        ({"model": "lenet-cifer"}, "Did you mean 'lenet-cifar'?"),
        ({"transform": "fedconcta"}, "Did you mean 'fedconcat'?"),
        ({"batchsize": 3}, "Did you mean 'batch_size'?"),
        ({"mue": 3}, "Did you mean 'mu'?"),
        ({"partition": "label-11"}, "label-k needs k to be at most the number of classes (10), but got label-11."),
        ({"clients": 4}, "label-2 needs at least 5 clients to hold all 10 classes, but got 4."),
        ({"clients": 0}, "clients must be greater than 0, but got 0."),
        ({"clients": -3}, "clients must be greater than 0, but got -3."),
        ({"rounds": 0}, "rounds must be greater than 0, but got 0."),
        ({"batch_size": -1}, "batch_size must be greater than 0, but got -1."),
        ({"lr": 0}, "lr must be greater than 0, but got 0."),
        ({"lr": -0.1}, "lr must be greater than 0, but got -0.1."),
        ({"participation": 0}, "participation must be greater than 0, but got 0."),
        ({"participation": 1.1}, "participation must be less than or equal to 1, but got 1.1."),
        ({"mu": -1}, "mu must be at least 0, but got -1.0."),
        ({"mu": "big"}, "mu must be a valid number"),
        ({"rounds": "many"}, "rounds must be a valid integer"),
        ({"rounds": True}, "rounds must be a valid integer, but got True."),
        ({"rounds": "3"}, "rounds must be a valid integer, but got '3'."),
        ({"lr_decay": 1.5}, "lr_decay must be less than or equal to 1, but got 1.5."),
        (
            {"lr_decay": 0.1, "rounds": 60},
            "lr_decay 0.1 lets the learning rate 0.01 fall to 1e-61 in round 60, but below 1e-30 it is lost in numbers of 32 "
            "bits; 0.9 is a decay by 10 % per round.",
        ),
        ({"max_gradient_norm": 0}, "max_gradient_norm must be greater than 0, but got 0."),
        ({"lr": True}, "lr must be a valid number, but got True."),
        ({"mu": True}, "fedprox: mu must be a valid number, but got True."),
        ({"mu": "1"}, "fedprox: mu must be a valid number, but got '1'."),
        ({"seed": 2**32}, "seed must be less than or equal to 4294967295, but got 4294967296."),
        ({"dataset": ["digits"]}, "dataset must be a valid string, but got ['digits']."),
        ({"model": ["mlp"]}, "model must be a valid string, but got ['mlp']."),
        ({"algorithm": ["fedavg"]}, "Unknown algorithm"),
        ({"mu": 1e39}, "fedprox: mu must be between -3.4e+38 and 3.4e+38, but got 1e+39."),
        ({"lr": 1e300}, "lr must be less than or equal to 34"),
        ({"local_epochs": 10**25}, "local_epochs must be less than or equal to 10000000, but got 1000"),
        (
            {"algorithm": "fedconcat", "num_clusters": 2**63},
            "num_clusters must be between -9.22337e+18 and 9.22337e+18",
        ),
        ({"train_examples": 1438}, "train_examples must be between 10 and 1427"),
        ({"train_examples": 1430}, "or 1437 for all, but got 1430."),
        ({"train_examples": 9}, "train_examples must be between 10 and 1427"),
        ({"test_examples": 361}, "test_examples must be between 10 and 350"),
        ({"model_width": 0.5}, "model_width must be 1 for mlp, which has no width, but got 0.5."),
        (
            {"weights": "w.pth"},
            "weights must be none for mlp, which takes no ImageNet weights as resnet18 does, but got w.pth.",
        ),
        (
            {"weights": "w.pth", "model": "resnet18"},
            "ImageNet weights are for images of 3 channels, but digits has 1; set weights to none.",
        ),
        ({"weights": "a\nb"}, "weights must be none or the name of a file, but got 'a\\nb'."),
        ({"weights": None}, "weights must be a valid string, but got None."),
        ({"dirichlet_seed_override": 3}, "dirichlet_seed_override is for partitions dir-b only"),
        ({"partition": "dir-0.1", "clients": 144}, "1437 training examples are too few for 144 clients"),
        ({"partition": "region-4-0.1", "clients": 144}, "1437 training examples are too few for 144 clients"),
        (
            {"partition": "region-4-0.1", "clients": 3},
            "has 4 groups of clients: clients must be at least 4, but got 3.",
        ),
        ({"partition": "iid", "clients": 1438}, "clients must be at most the number of training examples"),
        ({"first_clients": 20}, "first_clients must be less than clients (20) or left out, but got 20."),
        ({"local_epochs": 2, "local_steps": 3}, "Set either local_epochs or local_steps, but not both."),
        (
            {"image_size": 0},
            "image_size must be a number of pixels from 1 to 1024, or height and width as 24x32",
        ),
        ({"image_size": 12, "model": "simple-cnn"}, "needs images of at least 16x16 pixels, but got 12x12"),
        ({"image_size": [16, 12], "model": "simple-cnn"}, "needs images of at least 16x16 pixels, but got 16x12"),
        (
            {"image_size": 8, "model": "mobilenetv2", "batch_size": 1},
            "batch_size must be at least 2 for mobilenetv2, which takes batch statistics, but got 1.",
        ),
        ({"algorithm": "centralized", "mu": None}, "mu"),
        ({"partition": "none"}, "partition 'none' gives one client everything and is for centralized only"),
    ],
)
def test_bad_input_is_answered_with_the_condition_and_a_remedy(change, said):
    assert said in " ".join(mistakes(**change))


def test_centralized_needs_one_client_with_everything():
    with pytest.raises(ConfigError, match="partition must be 'none' and clients 1, but got partition 'iid'"):
        resolve({"algorithm": "centralized", "dataset": "digits", "partition": "iid"})


def test_all_mistakes_come_in_one_message():
    found = mistakes(mu=-1, dataset="cifer10", rounds=0, batchsize=3)
    assert len(found) == 4
    with pytest.raises(ConfigError, match="^4 mistakes:\n  - "):
        resolve(FEDPROX | {"mu": -1, "dataset": "cifer10", "rounds": 0, "batchsize": 3})


def test_no_method_option_is_named_like_a_setting():
    import algorithms
    from bench.config.methods import options_of
    from bench.config.schema import SETTINGS

    for name in algorithms.REGISTRY:
        assert not set(options_of(name)) & set(SETTINGS), name


NATURAL = {"algorithm": "fedavg", "dataset": "femnist", "partition": "natural"}


@pytest.mark.parametrize("given", [{}, {"clients": None}, {"clients": 7}])
def test_the_writers_of_the_images_are_the_clients_of_natural(given):
    known = dataclasses.replace(datasets.INFO["femnist"], train_size=900, test_size=100, num_writers=7)
    assert resolve(NATURAL | given, {"femnist": known}).clients == 7
    with pytest.raises(ConfigError, match="leave clients out, or set it to the 7 writers of femnist, but got 40"):
        resolve(NATURAL | {"clients": 40}, {"femnist": known})


def test_without_images_natural_has_the_clients_of_the_paper():
    assert resolve(NATURAL).clients == resolve(NATURAL, None).clients == 180
    assert resolve(NATURAL | {"clients": 178}).clients == 178  # of images that are not there now
    assert resolve(NATURAL | {"partition": "iid"}).clients == 40


def test_natural_needs_a_dataset_that_names_its_writers():
    with pytest.raises(ConfigError, match="but digits does not name its writers; use femnist, or another partition"):
        resolve(NATURAL | {"dataset": "digits"})


SHIFT = {"algorithm": "fedavg", "dataset": "fmnist", "partition": "label-shift"}


def test_shifts_have_twenty_clients_unless_told_otherwise():
    for given in ({}, {"clients": None}):
        assert resolve(SHIFT | given).clients == resolve(SHIFT | given, None).clients == 20
    assert resolve(SHIFT | {"clients": 12}).clients == 12


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients": 18}, "clients must be a multiple of 4, but got 18."),
        ({"dataset": "cifar100", "partition": "concept-shift"}, "is defined for 20 classes, but the dataset has 100;"),
        ({"dataset": "cifar10", "partition": "concept-shift"}, "is defined for 20 classes, but the dataset has 10;"),
        ({"dataset": "cifar100-coarse"}, "label-shift is defined for 10 classes, but the dataset has 20;"),
        ({"train_examples": 2000}, "label-shift of 12000 examples leaves client 10 of 20 without examples"),
        (
            {"dataset": "digits", "partition": "feature-shift", "clients": 400},
            "leaves client 0 of 400 without examples",
        ),
        ({"transform": "fedcollab", "dataset": "svhn", "partition": "feature-shift"}, "but the dataset is svhn."),
    ],
)
def test_shifts_that_cannot_be_dealt_are_refused_before_any_work(changes, said):
    with pytest.raises(ConfigError) as caught:
        resolve(SHIFT | changes)
    (mistake,) = caught.value.mistakes
    assert said in mistake


def test_shifts_need_test_images():
    without = dataclasses.replace(datasets.INFO["fmnist"], test_size=0)
    with pytest.raises(
        ConfigError, match="deals training and test images together, but the dataset has no test images"
    ):
        resolve(SHIFT, {"fmnist": without})
    unknown = dataclasses.replace(datasets.INFO["fmnist"], test_size=None)
    assert resolve(SHIFT, {"fmnist": unknown}).partition == "label-shift"


def test_the_test_examples_of_a_shift_stay_in_its_pool_on_validation_data():
    assert resolve(SHIFT | {"split": "validation", "test_examples": 5000}).test_examples == 5000


def test_sizes_that_depend_on_the_files_limit_nothing():
    assert resolve(NATURAL | {"train_examples": 10**6}).train_examples == 10**6
    assert resolve(NATURAL | {"partition": "dir-0.1", "clients": 10**5}).clients == 10**5


def test_a_share_for_validation_that_is_null_is_the_usual_one():
    assert resolve(FEDPROX | {"split": "validation", "validation_share": None}).validation_share == 0.15


def test_a_width_that_leaves_no_channel_is_refused_before_a_run_starts():
    cifar = {"dataset": "cifar10", "model": "resnet50", "model_width": 0.01}
    with pytest.raises(ConfigError, match="^model_width must leave at least one channel of 64, but got 0.01.$"):
        resolve(FEDPROX | cifar, {"cifar10": datasets.INFO["cifar10"]})


def test_a_subset_may_be_everything():
    few = dataclasses.replace(datasets.INFO["digits"], train_size=20, test_size=5)
    assert resolve(FEDPROX | {"test_examples": 5}, {"digits": few}).test_examples == 5  # fewer than classes
    assert resolve(FEDPROX | {"train_examples": 1437, "test_examples": 360}).train_examples == 1437
    assert resolve(FEDPROX | {"train_examples": 1427}).train_examples == 1427  # one of each class is outside


def test_what_fits_a_dataset_is_judged_by_what_is_known_about_it():
    half = dataclasses.replace(datasets.INFO["digits"], num_classes=5, train_size=700)
    assert resolve(FEDPROX | {"clients": 5}, {"digits": half}).clients == 5
    with pytest.raises(ConfigError, match=r"the number of classes \(5\)"):
        resolve(FEDPROX | {"partition": "label-6"}, {"digits": half})
    assert resolve(FEDPROX | {"clients": 5}, None).clients == 5


WRAP = '''"""A wrapper, as later methods have it."""

from dataclasses import dataclass
from typing import ClassVar

from algorithms import Algorithm, RoundBased, registered


@registered("wrap")
@dataclass(frozen=True)
class Wrap(RoundBased):
    base: Algorithm
    share: float = 0.5
    version: ClassVar[int] = 3
'''


@pytest.fixture
def wrap(tmp_path, monkeypatch):
    method_files.register(tmp_path, monkeypatch, {"wrap_of_a_test": WRAP})
    return {key: value for key, value in FEDPROX.items() if key != "mu"} | {"algorithm": "wrap"}


def test_a_wrapper_takes_its_base_as_a_nested_method(wrap):
    spec = {"name": "wrap", "base": {"name": "wrap", "base": {"name": "fedprox", "mu": 1}}, "share": 1}
    config = resolve(wrap | {"algorithm": spec})
    inner = {"name": "fedprox", "mu": 1.0}
    assert config.algorithm == {"name": "wrap", "base": {"name": "wrap", "base": inner, "share": 0.5}, "share": 1.0}
    again = settings_of(config)
    assert resolve(again) == config
    assert {key: value for key, value in config.versions.items() if key.startswith("algorithm")} == {
        "algorithm": 3,
        "algorithm.base": 3,
        "algorithm.base.base": 1,
    }
    for base, said in [
        ({"name": "fedporx"}, "Did you mean 'fedprox'?"),
        ({"name": "fedprox", "mue": 1}, "Did you mean 'mu'?"),
        ({"name": "fedprox", "mu": "1"}, "fedprox: mu must be a valid number"),
        (3, "wrap: base must be"),
    ]:
        with pytest.raises(ConfigError) as caught:
            resolve(wrap | {"algorithm": "wrap", "base": base})
        assert said in str(caught.value)
    with pytest.raises(ConfigError, match="wrap: base is missing"):
        resolve(wrap)


def test_the_run_of_a_wrappers_base_is_the_run_that_the_base_alone_would_be(wrap):
    wrapped = resolve(wrap | {"base": {"name": "fedprox", "mu": 0.3}, "rounds": 7})
    alone = resolve(FEDPROX | {"mu": 0.3, "rounds": 7})
    assert run_id(base_of(wrapped)) == run_id(alone)
    assert base_of(alone) is None


def test_a_model_that_cannot_take_the_images_is_refused_before_any_work():
    with pytest.raises(ConfigError) as error:
        resolve(FEDPROX | {"dataset": "digits", "model": "simple-cnn"})
    assert str(error.value) == (
        "SimpleCnn needs images of at least 16x16 pixels, but got 8x8; use the model mlp for smaller ones."
    )


MINE = """
from algorithms import registered
from algorithms.fedprox import FedProx

@registered("mine")
class Mine(FedProx):
"""


def test_a_method_whose_hooks_have_earlier_names_is_refused_with_the_new_ones(tmp_path, monkeypatch):
    hooks = "    def mistakes(self, config): return []\n\n    def findings(self, state): return {}\n"
    method_files.register(tmp_path, monkeypatch, {"mine_of_a_test": MINE + hooks})
    sentence = (
        "algorithms/mine_of_a_test.py has hooks by earlier names: rename mistakes to validate, findings to diagnostics."
    )
    with pytest.raises(ValueError, match=f"^Mine in .*{re.escape(sentence)}$"):
        resolve(FEDPROX | {"algorithm": "mine"})
