"""Spaces, and which searches are refused."""

import os

import pytest

import algorithms
import search_spaces
from bench import plugins
from bench.config.methods import options_of
from bench.config.resolve import resolve, with_options
from bench.errors import ConfigError
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import single
from bench.experiments.spec import TuningOptions
from bench.tuning.build import make_searches, on_validation, unsearched
from bench.tuning.search import stops
from search_spaces import Parameter
from tests.support import method_files, searched
from tests.support.searching import SETTING, SMALL, STAGES, make
from tests.support.toy import toy

OF_PAPERS = {"fedconcat-d5": "fedconcat"}  # spaces that papers print, beside ours of the same method


def test_every_space_is_that_of_a_method_or_of_training():
    assert set(search_spaces.names()) - set(algorithms.REGISTRY) == {"training", *OF_PAPERS}


def test_a_space_of_a_paper_stands_beside_ours():
    ours, of_paper = (search_spaces.load(name)["num_clusters"].grid for name in ("fedconcat", "fedconcat-d5"))
    assert of_paper == [1, 2, 5, 10] and ours != of_paper


def test_a_method_without_a_space_is_searched_by_the_settings_of_training(monkeypatch):
    monkeypatch.setattr(search_spaces, "names", lambda: ["training"])
    assert make("fedprox", space="own,training").space == search_spaces.load("training")
    with pytest.raises(ConfigError, match="^fedprox has no search space: write search_spaces/fedprox.yaml, or give"):
        make("fedprox", space="own")


def test_a_file_is_the_space_of_one_method_in_place_of_its_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("mu: {grid: [0.5]}")
    assert [*make("fedprox", space=f"fedprox={path}").space] == ["mu"]
    assert make("fedprox", space=f"fedprox={path}").space["mu"].grid == [0.5]
    both = make("fedprox", space=f"training,own,fedprox={path}").space
    assert both["mu"].grid == [0.5] and "lr" in both
    assert TuningOptions(space=f"fedprox={path}").label_parts["space"] == "own,fedprox=mine.yaml"
    assert TuningOptions("random", samples=2, space=f"fedprox={path}", compares=True).spaces == ["own", "training"]


def test_local_steps_are_searched_in_place_of_epochs_and_not_beside_them(tmp_path):
    path = tmp_path / "steps.yaml"
    path.write_text("local_steps: {grid: [1, 3]}")
    search = make("fedavg", space=str(path))
    assert search.template.local_epochs == 1
    tried = with_options(search.template, {"local_steps": 3})
    assert (tried.local_steps, tried.local_epochs) == (3, None)
    back = with_options(tried, {"local_epochs": 1})
    assert back == search.template
    path.write_text("local_steps: {grid: [1, 3]}\nlocal_epochs: {grid: [1]}")
    with pytest.raises(ConfigError, match="^local_epochs and local_steps are searched together, but a run has one"):
        make("fedavg", space=str(path))


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ("fedprx=mine.yaml", "Unknown method of --space 'fedprx'. Did you mean 'fedprox'"),
        ("moon=mine.yaml", "--space names a space of moon, but only fedprox are searched"),
        (
            "training,fedprox=mine.yaml",
            "takes the place of the method's own space, which training,fedprox=mine.yaml does not",
        ),
        ("fedprox=absent.yaml", "There is no file absent.yaml"),
    ],
)
def test_a_space_of_a_method_that_nothing_would_read_is_refused(space, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make("fedprox", space=space)


def test_a_method_whose_options_no_space_has_is_named_before_the_search(tmp_path, monkeypatch):
    method_files.register(tmp_path / "mylab", monkeypatch, {"fedmine": method_files.RUNNABLE})

    def sentences(algorithm, fixed=(), **how):
        grid = single(SETTING | {"algorithm": algorithm}, [0])
        cells, layout, tuning = expand(grid, "paper", overrides=SMALL), grid.report.model_dump(), TuningOptions(**how)
        return unsearched(cells, make_searches(cells, layout, tuning), layout, tuning, fixed)

    said = (
        "Only lr and weight_decay of fedmine are searched, which has no search space for strength: write "
        "search_spaces/fedmine.yaml, or give --space fedmine=FILE.yaml."
    )
    assert sentences("fedmine", space="own,training") == [said]
    assert sentences("fedmine", space="training") == sentences("fedprox", space="own,training") == []
    assert sentences("fedmine", fixed=["strength"], space="own,training") == []
    (tmp_path / "mine.yaml").write_text("strength: {grid: [1, 2]}")
    assert sentences("fedmine", space=f"own,training,fedmine={tmp_path / 'mine.yaml'}") == []


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", search_spaces.names())
def test_every_space_is_about_training_and_options_of_its_method(name):
    method = "fedavg" if name == "training" else OF_PAPERS.get(name, name)
    stages = STAGES if "encoder_rounds" in options_of(method) else {}
    search = make(method, stages | toy(method).search, space=name)
    assert search.space and all(parameter.source for parameter in search.space.values())
    assert len([search.runs(params) for params in search.points()]) == search.wanted


@pytest.mark.slow
def test_each_setting_of_each_method_is_searched_where_the_list_says():
    """After a wanted change of `search_spaces`, `python -m tests.support.searched` writes the list anew."""
    found = [line for method in searched.searched_methods() for line in searched.searched(method)]
    assert found == searched.FILE.read_text().splitlines()


@pytest.mark.parametrize("spaces", ["own,training", "training,own"])
@pytest.mark.parametrize("method", ["fedadagrad", "fedadam", "fedyogi", "fedprox"])
def test_the_entry_of_a_method_wins_over_that_of_training(method, spaces):
    space, own = make(method, space=spaces).space, search_spaces.load(method)
    assert space == search_spaces.load("training") | own
    assert ("lr" in own and own["lr"].grid != search_spaces.load("training")["lr"].grid) == (method != "fedprox")


@pytest.mark.parametrize("spaces", ["FILE,own,training", "own,training,FILE", "FILE,training"])
def test_the_entry_of_a_file_wins_over_all_others(tmp_path, spaces):
    (tmp_path / "mine.yaml").write_text("lr: {grid: [0.5]}\nserver_lr: {grid: [0.7]}")
    space = make("fedadagrad", space=spaces.replace("FILE", str(tmp_path / "mine.yaml"))).space
    assert [space[key].grid for key in ("lr", "server_lr")] == [[0.5], [0.7]]
    assert ("adaptivity" in space) == ("own" in spaces)


def test_a_listed_space_names_what_training_adds_and_no_more():
    lines = search_spaces.describe("fedadagrad").splitlines()
    assert [line.partition(" in ")[0] for line in lines[1:]] == [
        "lr",
        "server_lr",
        "adaptivity",
        "with training: weight_decay",
    ]
    assert not any("with training" in line for line in search_spaces.describe("training").splitlines())


def test_a_space_without_a_comment_is_listed_by_its_ranges_alone(monkeypatch, tmp_path):
    (tmp_path / "search_spaces").mkdir()
    (tmp_path / "search_spaces" / "mine.yaml").write_text("mu: {grid: [0.5, 1]}\n")
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path))
    assert search_spaces.describe("mine").splitlines()[0] == "mu in 0.5, 1"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("mu: {grid: [1], low: 2, high: 1, source: x}", "the range must not be empty, but low is 2 and high 1."),
        ("mu: {grid: [], source: x}", "grid"),
        ("mu: {grid: [1], low: 0, high: 1, log: true, source: x}", "a logarithmic range needs low above 0, but got 0."),
        ("mu: {grid: [1], low: 0, source: x}", "low and high belong together"),
        ("mu: {grid: [1], hihg: 3, source: x}", "Did you mean 'high'?"),
        ("nu: {grid: [1], source: x}", "Unknown hyper-parameter of fedprox 'nu'. Did you mean 'mu'?"),
        ("mu: {grid: [1, -1], source: x}", "The space of mu has -1: fedprox:"),
        ("mu: {grid: [0.1, 1, 1.0], source: x}", "the grid has a value twice: [0.1, 1, 1.0]."),
        ("rounds: {grid: [1, 2], source: x}", "Unknown hyper-parameter of fedprox 'rounds'."),
        ("clients: {grid: [1, 2], source: x}", "Unknown hyper-parameter of fedprox 'clients'."),
        ("mu: {grid: [[1]], source: x}", "mu must be searched among numbers or texts, but its grid has [1]."),
        ("mu: {grid: [1], low: .inf, high: x}", "mu: low must be a finite number, but got inf."),
        ("mu: {grid: [1], low: 1, high: x}", "mu: high must be a finite number, but got 'x'."),
        ("mu: {grid: [1], low: 0, high: true}", "mu: high must be a finite number, but got True."),
        ("- mu", "must map hyper-parameters to their grids and ranges."),
        ("mu: [", "is not valid YAML"),
        ("mu: " + "[" * 3000, "is not valid YAML: it is nested too deeply."),
    ],
)
def test_a_mistake_in_a_space_is_explained(tmp_path, content, said):
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(ConfigError) as caught:
        make(space=str(tmp_path / "mine.yaml"))
    assert said in str(caught.value)


def test_a_space_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "mine.yaml")
    with pytest.raises(ConfigError, match=r"mine\.yaml is not a regular file; name a YAML file"):
        make(space=str(tmp_path / "mine.yaml"))


def test_a_value_with_which_a_method_cannot_have_the_model_is_refused(tmp_path):
    (tmp_path / "mine.yaml").write_text("width: {grid: [10, 4], low: 3, high: 20}")
    with pytest.raises(ConfigError) as caught:
        make("fedetf", space=str(tmp_path / "mine.yaml"))
    why = "fedetf needs a vector for each class in as many dimensions: width must be at least 10, the number of classes, but"
    assert caught.value.mistakes == [f"The space of width has 4: {why} got 4."]
    with pytest.raises(ConfigError) as caught:
        make("fedetf", space=str(tmp_path / "mine.yaml"), searcher="random", samples=2)
    assert caught.value.mistakes == [f"The space of width has 3: {why} got 3."]
    with pytest.raises(ConfigError) as caught:
        make("fedetf", {"width": 4}, space="training", metric="acuracy")
    assert caught.value.mistakes[0] == f"{why} got 4."
    assert [line[:24] for line in caught.value.mistakes[1:]] == ["Unknown metric 'acuracy'"]


def test_the_value_that_a_method_would_usually_have_may_be_impossible_where_others_are_searched(tmp_path):
    (tmp_path / "mine.yaml").write_text("lr: {grid: [0.1, 0.2]}\nwidth: {grid: [10, 20], low: 10, high: 20}")
    for how in ({}, {"searcher": "random", "samples": 2}):
        assert make("fedetf", {"width": 4}, space=str(tmp_path / "mine.yaml"), **how).wanted


def test_a_space_of_ones_own_needs_no_source(tmp_path):
    (tmp_path / "mine.yaml").write_text("mu: {grid: [1], low: 1, high: 5}\nlr: {grid: [1], source: ours}")
    space = make(space=str(tmp_path / "mine.yaml")).space
    assert space["mu"].is_whole and space["mu"].size("random") == 5
    assert {key: where.origin("random") for key, where in space.items()} == {
        "mu": "of a space that names no source",
        "lr": "ours",
    }


def test_a_range_that_was_measured_is_not_called_one_around_the_grid_of_a_paper():
    beta = search_spaces.load("fedntd")["beta"]
    assert beta.origin("random") == beta.source and beta.source.startswith("measured here; FedNTD's code takes 1")


def test_common_learning_rates_are_searched_where_most_methods_work():
    """Ranges of the space training, and of the methods that need others."""
    lr = search_spaces.load("training")["lr"]
    assert (lr.low, lr.high, lr.grid) == (0.003, 0.1, [0.003, 0.01, 0.03, 0.1])
    own = {name: space["lr"] for name in search_spaces.names() if "lr" in (space := search_spaces.load(name))}
    assert {name: (where.low, where.high) for name, where in own.items() if where.high != lr.high} == {
        "fedcm": (0.01, 0.3),
        "mofedsam": (0.01, 0.3),
        "fedetf": (0.01, 0.15),
        "fedov": (None, None),  # Adam does not read it
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"searcher": "gird"}, "Unknown searcher 'gird'. Did you mean 'grid'?"),
        ({"scheduler": "ahsa"}, "Unknown scheduler 'ahsa'. Did you mean 'asha'?"),
        ({"samples": 3}, "The grid has 4 points, more than --samples 3, all of which are tried"),
        ({"searcher": "optuna"}, "--searcher optuna needs --samples"),
        (
            {"overrides": {"evaluate_every": 3}, "scheduler": "asha"},
            "asha compares runs after round 1, but they are evaluated",
        ),
        ({"validation_share": 0.0}, "--validation-share must lie between 0 and 1, but got 0."),
        ({"samples": 0}, "--samples must be at least 1, but got 0."),
        ({"space": "fedporx"}, "Unknown space 'fedporx'. Did you mean 'fedprox'?"),
        ({"algorithm": "centralized"}, "centralized has no clients that could set validation data aside"),
        ({"metric": "acuracy"}, "Unknown metric 'acuracy'."),
        (
            {"metric": "validation_local_accuracy"},
            "no run reports validation_local_accuracy; choose validation_accuracy.",
        ),
        (
            {"algorithm": "fedconcat", "scheduler": "asha", "overrides": STAGES},
            "asha compares runs after round 1, but fedconcat has no accuracy before round 2; use --scheduler none.",
        ),
        ({"algorithm": "local", "scheduler": "asha"}, "local has no accuracy before round 9; use --scheduler none."),
    ],
)
def test_what_a_search_cannot_do_is_refused_in_one_sentence(options, said):
    with pytest.raises(ConfigError) as caught:
        make(**options)
    assert said in str(caught.value)


def test_a_search_is_on_validation_data_and_more_samples_continue_it():
    search = make(searcher="random", samples=3)
    assert {config.split for config in search.configs.values()} == {"validation"}
    assert make(searcher="random", samples=30).name == search.name
    assert make(overrides={"mu": 0.7}, searcher="random", samples=3).name != search.name, "it starts elsewhere"
    assert make(overrides={"mu": 0.7}).name == make().name, "a grid does not"
    others = [
        make(searcher="optuna", samples=3),
        make(overrides={"rounds": 8}),
        make(space="fedprox,training"),
        make(validation_share=0.3),
    ]
    assert len({search.name, *(other.name for other in others)}) == 5
    assert make(overrides={"test_examples": 100}).name == make().name, "the final runs may be tested on fewer images"


def test_a_class_that_is_personal_by_an_option_is_judged_by_what_its_name_deploys():
    metrics = [make(name).metric for name in ("fedrod", "fedrod-personal", "fedgela", "fedgela-personal")]
    assert metrics == ["accuracy", "local_accuracy", "accuracy", "local_accuracy"]


def test_configurations_may_be_compared_on_other_seeds_than_those_of_the_table():
    usual, other = make(), make(search_seeds=(8, 0))
    assert [*usual.configs] == [0, 1] and [*other.configs] == [0, 8] and other.name != usual.name
    assert other.configs[0] == usual.configs[0]
    assert other.configs[8].model_dump() == usual.configs[0].model_dump() | {"seed": 8}


OWN = {"dataset": "mnist", "partition": "label-shift", "clients": 20}


@pytest.mark.parametrize("algorithm", ["fedprox", "local"])
def test_where_clients_have_test_data_of_their_own_that_is_what_counts(algorithm):
    search = make(algorithm, OWN | {"test_examples": 9000})
    assert search.metric == "own_accuracy" and search.template.test_examples == 9000, "they are in the pool"
    assert make(algorithm, OWN, metric="validation_own_accuracy").metric == "own_accuracy"
    with pytest.raises(
        ConfigError, match="of label-shift has test data of its own, so no run reports validation_accuracy"
    ):
        make(algorithm, OWN, metric="validation_accuracy")
    with pytest.raises(ConfigError, match="of label-2 does not have test data of its own, .*; choose validation_"):
        make(algorithm, metric="validation_own_accuracy")


def test_an_option_goes_to_the_method_that_has_it():
    config = resolve(SETTING | SMALL | {"algorithm": "ccvr", "base": "fedprox"})
    found = with_options(config, {"mu": 0.3, "virtual_per_class": 7, "lr": 0.2}).algorithm
    assert found["base"]["mu"] == 0.3 and found["virtual_per_class"] == 7
    with pytest.raises(ConfigError, match="nu"):
        with_options(config, {"nu": 1})


@pytest.mark.parametrize(
    ("scheduler", "rounds", "expected"),
    [("none", 9, [9]), ("asha", 9, [1, 3, 9]), ("asha", 50, [5, 15, 50]), ("asha", 2, [1, 2]), ("asha", 1, [1])],
)
def test_where_configurations_are_compared(scheduler, rounds, expected):
    assert stops(make(scheduler=scheduler, overrides={"rounds": rounds})) == expected


def test_a_dataset_of_which_a_part_is_there_is_searched_as_it_is():
    """All of Tiny-ImageNet has more classes than these clients could share."""
    flat = {"algorithm": "fedprox", "dataset": "tinyimagenet", "partition": "label-2", "clients": 20}
    with pytest.raises(ConfigError):
        resolve(flat)
    config = on_validation(resolve(flat, facts=None), 0.2)
    assert with_options(config, {"mu": 0.5}).algorithm["mu"] == 0.5 and config.split == "validation"


@pytest.mark.parametrize(
    ("given", "searcher", "ends", "inside"),
    [
        (
            {"grid": [0.1], "low": 0.001, "high": 10, "log": True},
            "random",
            {0.001: -0.999, 0.0015: 0.000999, 6.5: 10.01, 10: 11},
            [0.002, 6, 1],
        ),
        ({"grid": [0.1], "low": 0.0, "high": 1.0}, "optuna", {0.0: -0.001, 0.05: -1, 0.96: 1.001}, [0.06, 0.94]),
        ({"grid": [1, 2], "low": 1, "high": 5}, "random", {1: 0, 5: 6}, [2, 3, 4]),
        ({"grid": [1, 5, 0.1], "low": 0.001, "high": 10}, "grid", {0.1: 0.0999, 5: 6}, [1]),
        ({"grid": ["fast", "full", "none"]}, "grid", {}, ["fast", "none"]),
        ({"grid": [0, 1]}, "random", {}, [0, 1]),
        ({"grid": [1, 2], "low": 1, "high": 2}, "random", {}, [1, 2]),
    ],
)
def test_what_lies_beyond_the_end_of_a_range_at_which_a_value_is(given, searcher, ends, inside):
    parameter = Parameter(**given)
    assert all(pytest.approx(beyond) in parameter.beyond(value, searcher) for value, beyond in ends.items())
    assert [parameter.beyond(value, searcher) for value in inside] == [[]] * len(inside)
