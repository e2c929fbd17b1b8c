"""How long the runs that are left take, by hand."""

import pytest

from bench.results.snapshot import RunState
from bench.results.time_left import time_left


def cell(run: str, method: str = "fedavg", dataset: str = "digits", seed: int = 0, rounds: int = 10) -> dict:
    algorithm = {"name": method}
    settings = {"dataset": dataset, "model": "mlp", "rounds": rounds, "seed": seed, "versions": {"model": 1}}
    return {"run": run, "config": {"algorithm": algorithm, **settings}}


def left(cells: list[dict], states: dict[str, RunState], trials: int = 1, **planned: int) -> float | None:
    return time_left({each["run"]: each["config"] for each in cells}, states, trials, planned)


def done(seconds: float) -> RunState:
    return RunState("done", 0, seconds)


def test_a_run_takes_as_long_as_those_of_the_same_settings_with_other_seeds():
    cells = [cell("a"), cell("b", seed=1), cell("c", seed=2), cell("d", "moon")]
    states = {"a": done(100), "b": done(140), "d": done(1000)}
    assert left(cells, states) == pytest.approx(120)


@pytest.mark.parametrize(
    ("method", "dataset", "seconds"),
    [
        (
            "fedavg",
            "digits",
            100,
        ),  # of 20 rounds: no run with these settings has ended, but one of the method on the dataset
        ("moon", "digits", (100 + 300) / 2),  # no run of the method
        ("fedavg", "mnist", (100 + 300) / 2),  # none on the dataset
    ],
)
def test_else_as_long_as_those_of_the_method_on_the_dataset_else_as_all(method, dataset, seconds):
    cells = [cell("a"), cell("b", "scaffold"), cell("c", method, dataset, rounds=20)]
    assert left(cells, {"a": done(100), "b": done(300)}) == pytest.approx(seconds)


def test_seconds_are_in_proportion_to_the_examples_that_are_planned():
    cells = [cell("a"), cell("b", rounds=20), cell("c", rounds=30)]
    states = {"a": done(100), "b": done(260)}
    # 360 s for 3,000 examples: 5,000 take 600 s.
    assert left(cells, states, a=1000, b=2000, c=5000) == pytest.approx(600)
    assert left(cells, states, a=1000, b=2000) == pytest.approx(180), "the mean where they are not known"


def test_a_running_or_interrupted_run_has_only_its_last_rounds_left():
    cells = [cell("a"), cell("b", seed=1), cell("c", seed=2), cell("d", seed=3)]
    states = {"a": done(100), "b": RunState("running", 4), "c": RunState("interrupted", 9)}
    assert left(cells, states) == pytest.approx(60 + 10 + 100)


def test_examples_tell_better_than_rounds_how_much_is_left():
    """FedConcat's first rounds have most of the examples: 750 of 1,000 in the first 2 of 10 rounds."""
    cells = [cell("a"), cell("b", seed=1), cell("c", seed=2)]
    states = {"a": done(100), "b": RunState("running", 2, examples=750), "c": RunState("running", 2)}
    planned = dict.fromkeys("abc", 1000)
    assert left(cells, states, **planned) == pytest.approx(25 + 80), "by rounds where rows do not say"
    assert left(cells, states) == pytest.approx(80 + 80), "and where the grid does not say"
    over = {**states, "b": RunState("running", 9, examples=1001)}
    assert left(cells[:2], over, **planned) == 0


def test_trials_at_once_share_the_time_but_no_run_ends_earlier_for_them():
    cells = [cell("a"), *(cell(f"b{seed}", seed=seed) for seed in range(1, 9))]
    assert left(cells, {"a": done(100)}, trials=4) == pytest.approx(200)
    assert left(cells[:3], {"a": done(100)}, trials=4) == pytest.approx(100)


def test_ended_runs_take_no_time_whatever_their_end_and_only_done_ones_tell_the_speed():
    cells = [cell("a"), cell("b", seed=1), cell("c", seed=2)]
    ended = {"b": RunState("failed", 0, 3), "c": RunState("diverged", 0, 1)}
    assert left(cells, {"a": done(100), **ended}) == 0
    assert left(cells, ended) is None, "a is left"
    assert left([*cells, cell("e", seed=4)], {"a": done(100), **ended}) == pytest.approx(100)


def test_while_no_run_is_done_the_rounds_so_far_tell_the_speed():
    cells = [cell("a"), cell("b", seed=1)]
    begun = {"a": RunState("running", 4, 60.0)}
    assert left(cells, begun) == pytest.approx(90 + 150)
    assert left(cells, {"a": RunState("running", 4)}) is None, "the rows do not say"
    assert left(cells, {"a": RunState("running", 0, 60.0)}) is None, "no round is trained"
    halves = {"a": RunState("interrupted", 4, 60.0, examples=500)}
    assert left(cells, halves, a=1000, b=3000) == pytest.approx(60 + 360)
    assert left([*cells, cell("c", seed=2)], {**begun, "c": done(100)}) == pytest.approx(60 + 100), (
        "done ones are exact"
    )


def test_times_of_others_that_add_up_to_more_than_any_number_say_nothing():
    states = {"a": done(1e308), "b": done(1e308)}
    assert left([cell("a"), cell("b", seed=1), cell("c", seed=2)], states) is None
