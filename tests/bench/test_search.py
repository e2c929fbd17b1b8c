"""Searches: spaces, what is refused, what a study remembers, and configurations in lock step. Nothing here starts Ray."""

import json

import optuna
import pytest
from optuna.trial import TrialState

import search_spaces
from bench.config import SETTINGS, options_inside, resolve, run_id, with_options
from bench.mistakes import ConfigError
from bench.resources import Resources
from bench.search import Configuration, bases_of
from bench.search_spec import make_search
from bench.store import Store
from bench.study import Search, Study, score, stops
from bench.tuning import how_chosen
from reports import search_report

SETTING = {"algorithm": "fedprox", "dataset": "digits", "partition": "label-2"}
SMALL = {"clients": 12, "rounds": 9, "local_epochs": 1, "model": "mlp", "lr": 0.1}

STAGES = {"rounds": None, "encoder_rounds": 1, "classifier_rounds": 2}


def make(algorithm="fedprox", overrides=None, **options) -> Search:
    asked = {"space": None, "searcher": "grid", "scheduler": "none", "samples": 20, "metric": None} | options
    settings = {key: value for key, value in (SMALL | (overrides or {})).items() if value is not None}
    return make_search(SETTING | {"algorithm": algorithm}, "paper", settings, [0, 1], **asked)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path).locked() as store:
        yield store


def finish(search: Search, store: Store, params: dict, *scores: float, status: str = "done", rounds: int = 9) -> None:
    """Runs of a configuration, as if they had been played."""
    for (run, config), reached in zip(search.runs(params).items(), scores, strict=True):
        store.start(run, config.canonical())
        rows = [{"round": number + 1, "accuracy": reached} for number in range(rounds)]
        store.finish(
            run, rows, {"status": status, "reason": "", "rounds": rounds, "summary": {"last": {"accuracy": reached}}}
        )


def try_next(study: Study, value: float | None) -> dict:
    """What the searcher proposes, told to have reached a value; None leaves it running."""
    trial = study.optuna.ask(study.distributions)
    if value is not None:
        study.optuna.tell(trial, value)
    return trial.params


@pytest.mark.parametrize("name", search_spaces.names())
def test_every_space_is_about_settings_and_options_of_its_method(name):
    method = name if name != "training" else "fedavg"
    config = resolve(
        SETTING | SMALL | {"algorithm": method, "num_clusters": 2}
        if method in ("fesem",)
        else SETTING | SMALL | {"algorithm": method}
    )
    space = search_spaces.load(name)
    assert space.keys() <= {*SETTINGS, *options_inside(config)}
    for key, parameter in space.items():
        ends = [] if parameter.low is None else [parameter.low, parameter.high]
        for value in ends + ([] if "num_clusters" in space else parameter.grid):
            if key != "num_clusters":
                with_options(config, {key: value})
        assert parameter.source


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
        ("mu: {grid: [[1]], source: x}", "mu must be searched among numbers or texts, but its grid has [1]."),
        ("- mu", "must map hyper-parameters to where they are searched."),
        ("mu: [", "is not valid YAML"),
    ],
)
def test_a_mistake_in_a_space_is_explained(tmp_path, content, said):
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(ConfigError) as caught:
        make(space=str(tmp_path / "mine.yaml"))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"searcher": "gird"}, "Unknown searcher 'gird'. Did you mean 'grid'?"),
        ({"scheduler": "ahsa"}, "Unknown scheduler 'ahsa'. Did you mean 'asha'?"),
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
            "fedconcat has no accuracy before its last rounds",
        ),
        ({"algorithm": "local", "scheduler": "asha"}, "local has no accuracy before its last rounds"),
    ],
)
def test_what_a_search_cannot_do_is_refused_in_one_sentence(options, said):
    with pytest.raises(ConfigError) as caught:
        make(**options)
    assert said in str(caught.value)


def test_a_search_is_on_validation_data_and_more_samples_continue_it():
    search = make()
    assert {config.split for config in search.configs.values()} == {"validation"}
    assert make(samples=3).name == search.name
    others = [make(searcher="optuna"), make(overrides={"rounds": 8}), make(space="fedprox,training")]
    assert len({search.name, *(other.name for other in others)}) == 4


def test_an_option_goes_to_the_method_that_has_it():
    config = resolve(SETTING | SMALL | {"algorithm": "ccvr", "base": "fedprox"})
    found = with_options(config, {"mu": 0.3, "virtual_per_class": 7, "lr": 0.2}).algorithm
    assert found["base"]["mu"] == 0.3 and found["virtual_per_class"] == 7
    with pytest.raises(ConfigError, match="nu"):
        with_options(config, {"nu": 1})


def test_a_grid_is_tried_once_and_a_killed_configuration_again(store):
    search = make()
    study = Study(search, store)
    assert study.left == 4
    tried = [try_next(study, 0.5), try_next(study, 0.6)]
    running = try_next(study, None)
    again = Study(search, store)
    assert again.left == 2
    rest = [try_next(again, 0.7), try_next(again, 0.4)]
    assert running in rest
    tried += rest
    assert sorted(params["mu"] for params in tried) == [0.001, 0.01, 0.1, 1] and Study(search, store).left == 0


def test_random_search_goes_on_with_other_points_after_a_restart(store):
    search = make(searcher="random", samples=3)
    first = try_next(Study(search, store), 0.5)
    later = Study(search, store)
    assert later.left == 2 and try_next(later, 0.5) != first


def test_finished_runs_teach_a_new_search_but_count_for_none(store):
    search = make(searcher="optuna", samples=5)
    finish(search, store, {"mu": 0.5}, 0.3, 0.5)
    finish(search, store, {"mu": 50.0}, 0.9, 0.9)  # outside of the range
    finish(search, store, {"mu": 0.7}, 0.9, 0.9, status="stopped")
    test_runs = {
        run_id(c): c
        for c in (
            with_options(c, {"mu": 0.9, "split": "test", "validation_share": None}) for c in search.configs.values()
        )
    }
    for run, config in test_runs.items():
        store.start(run, config.canonical())
        store.finish(run, [], {"status": "done", "rounds": 9, "summary": {"last": {"accuracy": 1.0}}})
    study = Study(search, store)
    (trial,) = study.optuna.get_trials(states=[TrialState.COMPLETE])
    assert trial.params == {"mu": 0.5} and trial.value == pytest.approx(0.4) and study.left == 5
    assert not set(study.ended_runs()) & set(test_runs)
    assert len(Study(search, store).optuna.get_trials()) == 1, "once"


def test_the_winner_is_the_best_mean_among_what_was_trained_to_the_end(store):
    search = make()
    study = Study(search, store)
    for mu, scores, status, rounds in (
        (0.001, (0.5, 0.6), "done", 9),
        (0.01, (0.9, 0.9), "stopped", 3),
        (0.1, (0.7, 0.5), "done", 9),
        (1, (0.9, 0.0), "diverged", 9),
    ):
        trial = optuna.trial.create_trial(params={"mu": mu}, distributions=study.distributions, value=sum(scores) / 2)
        study.optuna.add_trial(trial)
        finish(search, store, {"mu": mu}, *scores, status=status, rounds=rounds)
    found = study.outcomes()
    assert [one.params["mu"] for one in found] == [0.1, 0.001, 1, 0.01] and not found[-1].whole
    assert found[2].mean == 0, "a run that diverged counts as nothing"
    assert (
        "mu=0.1, with 60.0 % accuracy there, mean over seeds 0, 1; searched: mu in 0.001, 0.01, 0.1, 1, by grid"
        in how_chosen(search, found[0])
    )
    paths = search_report.write(study, found)
    text = next(path for path in paths if path.suffix == ".md").read_text()
    assert [line.split("|")[1:3] for line in text.splitlines() if "±" in line][0] == [
        " 0.1   ",
        " 60.0±10.0                 ",
    ]
    assert "3 of 9, stopped" in text
    assert {path.suffix for path in paths} == {".md", ".csv", ".png", ".pdf", ".svg"}


@pytest.mark.parametrize(
    ("scheduler", "rounds", "expected"),
    [("none", 9, [9]), ("asha", 9, [1, 3, 9]), ("asha", 50, [5, 15, 45, 50]), ("asha", 2, [1, 2])],
)
def test_where_configurations_are_compared(scheduler, rounds, expected):
    assert stops(make(scheduler=scheduler, overrides={"rounds": rounds})) == expected


def configuration(search: Search, params: dict, folder, ended=None, bases=None) -> Configuration:
    """A trial without its scheduler."""
    made = Configuration.__new__(Configuration)
    made.setup(params, search, str(folder), 60.0, None, Resources(1.0), ended or {}, bases or {})
    return made


def test_seeds_are_played_in_lock_step_and_the_mean_is_reported(tmp_path):
    search = make(scheduler="asha")
    trial = configuration(search, {"mu": 0.1}, tmp_path)
    rounds, last = [], None
    while last is None or not last["done"]:
        last = trial.step()
        assert {told["until"] for told in last["runs"]} == {last["round"]} and len(last["runs"]) == 2
        rounds += [[row["round"] for row in told["rows"]] for told in last["runs"]]
    assert rounds == [[1], [1], [2, 3], [2, 3], [4, 5, 6, 7, 8, 9], [4, 5, 6, 7, 8, 9]]
    scores = [score(told["ended"], "accuracy") for told in last["runs"]]
    assert last["value"] == pytest.approx(sum(scores) / 2) and all(scores)
    assert {json.dumps(told["config"]) for told in last["runs"]} == {
        json.dumps(config.canonical()) for config in search.runs({"mu": 0.1}).values()
    }


def test_runs_that_have_ended_are_not_played_again(tmp_path):
    search = make(scheduler="asha")
    first, second = search.runs({"mu": 0.1})
    trial = configuration(search, {"mu": 0.1}, tmp_path, ended={first: 0.25, second: 0.75})
    assert trial.step() == {"value": 0.5, "round": 9, "runs": [], "done": True}
    part = configuration(search, {"mu": 0.1}, tmp_path, ended={first: 0.25})
    assert [told["id"] for told in part.step()["runs"]] == [second]


def test_a_method_that_only_changes_what_is_deployed_starts_from_one_run_of_its_base():
    search = make("ccvr")
    assert {seed: config.algorithm for seed, config in bases_of(search).items()} == {
        0: {"name": "fedavg"},
        1: {"name": "fedavg"},
    }
    assert {config.split for config in bases_of(search).values()} == {"validation"}
    assert bases_of(make()) == {} == bases_of(make("ccvr", space="ccvr,training"))
