"""What every callback must do, and what those that come with the harness find."""

import dataclasses
import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import algorithms
from algorithms import tree
from algorithms.shared.rounds import RoundBased
from bench.callbacks import REGISTRY, Noted, RoundOutcome
from bench.config.methods import read_callbacks
from bench.config.resolve import resolve
from bench.errors import ConfigError
from bench.simulation.callbacks import as_numbers, build_callbacks
from bench.simulation.evaluation import correctness, evaluate
from tests.support.toy import assert_equal, toy_task

FLAT = {"algorithm": "fedavg", "dataset": "digits", "partition": "label-2", "clients": 5, "rounds": 3}


def looked_at(callback, task, method=None, rounds=3):
    """What a callback has noted of each round of a run whose rounds are all evaluated."""
    method = method or algorithms.make("fedavg")
    state = method.init(task)
    own, found = callback.init(task, state), []
    for _ in range(rounds):
        before, state = state, method.step(task, state)
        deployed = method.deploy(task, state, torch.arange(task.population))
        seen = RoundOutcome(task, method, before, state, evaluate(task, deployed), deployed)
        found.append(Noted(*callback.after_round(seen, own)))
        own = found[-1].own
    return found


def numbers(noted):
    traced = noted.local_models or {"accuracies": []}
    return as_numbers(noted.metrics, "of"), traced["accuracies"]


@pytest.fixture(params=[name for name, entry in REGISTRY.items() if not entry.lab])
def callback(request):
    (found,) = build_callbacks([{"name": request.param}]).values()
    return found


def test_both_engines_give_the_same_metrics(callback):
    looped, vectorised = (looked_at(callback, toy_task(engine=engine)) for engine in ("loop", "vectorised"))
    for one, other in zip(looped, vectorised, strict=True):
        assert_equal(torch.tensor(list(numbers(one)[0].values())), torch.tensor(list(numbers(other)[0].values())), 1e-8)
        assert numbers(one)[1] == numbers(other)[1]


def test_states_are_left_as_they_are_and_its_own_state_survives_a_checkpoint(callback):
    task, method = toy_task(), algorithms.make("fedavg")
    before = method.init(task)
    after = method.step(task, before)
    deployed = method.deploy(task, after, torch.arange(task.population))
    seen = RoundOutcome(task, method, before, after, evaluate(task, deployed), deployed)
    copies = [tree.map(lambda leaf: leaf.clone(), part["params"]) for part in (before, after)]
    own = Noted(*callback.after_round(seen, callback.init(task, before))).own
    written = io.BytesIO()
    torch.save(own, written)
    written.seek(0)
    again = torch.load(written, weights_only=True)
    first, second = (Noted(*callback.after_round(seen, one)) for one in (own, again))
    assert numbers(first) == numbers(second) and first.stop == second.stop
    for part, copy in zip((before, after), copies, strict=True):
        assert_equal(part["params"], copy)
        assert part.keys() == {"round", "params", "buffers", "server", "clients", "costs"}


def test_every_callback_has_options_with_defaults_and_a_sentence_about_itself(callback):
    assert all(field.default is not dataclasses.MISSING for field in dataclasses.fields(callback))
    (entry,) = (entry for entry in REGISTRY.values() if entry.load() is type(callback))
    assert entry.description.endswith(".")  # one line for `list callbacks`


def test_accuracies_of_classes_have_the_accuracy_as_their_mean_by_test_examples():
    task = toy_task()
    (callback,) = build_callbacks([{"name": "per-class-accuracy"}]).values()
    (noted,) = looked_at(callback, task, rounds=1)
    found = as_numbers(noted.metrics, "classes")
    assert list(found) == ["classes/0", "classes/1", "classes/2"]
    method = algorithms.make("fedavg")
    deployed = method.deploy(task, method.step(task, method.init(task)), torch.arange(5))
    assert sum(found.values()) / 3 == pytest.approx(evaluate(task, deployed)["accuracy"])  # ten of each class


def test_accuracies_of_classes_are_means_over_the_models_of_clients():
    task, method = toy_task(), algorithms.make("local")
    (callback,) = build_callbacks([{"name": "per-class-accuracy"}]).values()
    (noted,) = looked_at(callback, task, method, rounds=1)
    deployed = method.deploy(task, method.step(task, method.init(task)), torch.arange(5))
    mean = evaluate(task, deployed)["global_accuracy"]
    assert sum(as_numbers(noted.metrics, "classes").values()) / 3 == pytest.approx(mean)


@pytest.mark.parametrize(("name", "noise", "rows"), [("fedavg", 0.0, 1), ("fedavg", 0.1, 5), ("ditto", 0.0, 5)])
def test_what_is_correct_has_a_row_for_each_model_and_each_noisy_copy(name, noise, rows):
    task, method = toy_task(noise=noise), algorithms.make(name)
    deployed = method.deploy(task, method.step(task, method.init(task)), torch.arange(5))
    correct = correctness(task, deployed)
    assert correct.shape == (rows, 30)
    scores = evaluate(task, deployed)
    assert correct.double().mean().item() == pytest.approx(scores.get("accuracy", scores.get("global_accuracy")))


@pytest.mark.parametrize(("name", "score"), [("local", "local_accuracy"), ("fedavg", None)])
def test_accuracies_of_clients_are_by_their_label_shares(name, score):
    task, method = toy_task(sizes=(20,) * 11), algorithms.make(name)
    (callback,) = build_callbacks([{"name": "per-client-accuracy"}]).values()
    (noted,) = looked_at(callback, task, method, rounds=1)
    deployed = method.deploy(task, method.step(task, method.init(task)), torch.arange(11))
    correct, counts = correctness(task, deployed).double(), task.cohort(torch.arange(11)).label_counts.double()
    labels = task.federation.test_labels
    of_classes = torch.stack([correct[:, labels == label].mean(1) for label in range(3)], 1)
    each = [float(row @ own / own.sum()) for row, own in zip(of_classes.expand(11, 3), counts, strict=True)]
    lowest = sorted(each)
    found = as_numbers(noted.metrics, "of")
    assert found == pytest.approx(
        {
            "of/mean": sum(each) / 11,
            "of/std": float(np.std(each)),
            "of/worst": lowest[0],
            "of/worst-tenth": (lowest[0] + lowest[1]) / 2,
        }
    )
    assert score is None or found["of/mean"] == pytest.approx(evaluate(task, deployed)[score])


def test_accuracies_of_clients_with_test_data_of_their_own_are_on_these():
    task, method = toy_task(own_tests=True), algorithms.make("fedavg")
    (callback,) = build_callbacks([{"name": "per-client-accuracy"}]).values()
    (noted,) = looked_at(callback, task, method, rounds=1)
    deployed = method.deploy(task, method.step(task, method.init(task)), torch.arange(5))
    assert as_numbers(noted.metrics, "of")["of/mean"] == pytest.approx(evaluate(task, deployed)["own_accuracy"])


def test_the_average_of_the_server_is_that_of_the_deployed_params():
    """After three rounds with decay 0.5: 0.25 of the first, 0.25 of the second, 0.5 of the third."""
    task, method = toy_task(), algorithms.make("fedavg")
    states = [method.init(task)]
    for _ in range(3):
        states.append(method.step(task, states[-1]))
    (callback,) = build_callbacks([{"name": "server-ema", "decay": 0.5}]).values()
    own = looked_at(callback, task)[-1].own
    parts = zip((0.25, 0.25, 0.5), states[1:], strict=True)
    first, second, third = (tree.scale(state["params"], share) for share, state in parts)
    assert_equal(own, tree.add(tree.add(first, second), third), 1e-12)


def test_rounds_that_are_not_evaluated_count_in_the_average_but_have_no_scores():
    task, method = toy_task(), algorithms.make("fedavg")
    (callback,) = build_callbacks([{"name": "server-ema"}]).values()
    before = method.init(task)
    after = method.step(task, before)
    own, metrics = callback.after_round(RoundOutcome(task, method, before, after, {}, None), {})
    assert_equal(own, after["params"])
    assert metrics == {}


def test_features_of_the_deployed_model_are_not_those_of_the_average():
    task, method = toy_task(), algorithms.make("fedavg")
    (callback,) = build_callbacks([{"name": "server-ema"}]).values()
    before = method.init(task)
    after = method.step(task, before)
    plain = method.deploy(task, after, torch.arange(5))
    deployed = plain._replace(test_features=torch.zeros(30, task.model.feature_dim, dtype=torch.float64))
    _, metrics = callback.after_round(RoundOutcome(task, method, before, after, {}, deployed), {})
    assert metrics == evaluate(task, plain) != evaluate(task, deployed)


def stops_after(values, **options):
    """The round, from 1, in which a run with these accuracies is stopped; 0 if it is not."""
    (callback,) = build_callbacks([{"name": "stop-early", **options}]).values()
    own = {}
    for number, value in enumerate(values, 1):
        seen = RoundOutcome(None, None, {}, {}, {} if value is None else {"accuracy": value}, None)
        noted = Noted(*callback.after_round(seen, own))
        own = noted.own
        if noted.stop:
            return number
    return 0


def test_a_run_is_stopped_when_a_metric_has_not_become_better_for_so_many_rounds():
    assert stops_after([0.1, 0.2, 0.2, 0.15, 0.3], patience=2) == 4
    assert stops_after([0.1, 0.2, 0.2, 0.25, 0.25, 0.3], patience=2) == 0
    assert stops_after([0.1, None, 0.05, None, 0.05], patience=2) == 5  # rounds without the metric do not count
    assert stops_after([0.3, 0.2, 0.25, 0.22], patience=2, less_is_better=True) == 4


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("server-emma", "Unknown callback 'server-emma'. Did you mean 'server-ema'?"),
        ([{"name": "server-ema", "decai": 0.9}], "Unknown option of server-ema 'decai'. Did you mean 'decay'?"),
        ([{"name": "server-ema", "decay": 2.0}], "server-ema: decay must be less than 1, but got 2."),
        ([{"name": "server-ema", "decay": "much"}], "server-ema: decay must be a valid number, but got 'much'."),
        ([{"name": "stop-early", "patience": 0}], "stop-early: patience must be at least 1, but got 0."),
        (
            [{"name": "stop-early", "metric": "acuracy"}],
            "stop-early: Unknown metric 'acuracy'. Did you mean 'accuracy'?",
        ),
        (
            [{"name": "stop-early", "metric": "server-ema/accuracy"}, "server-ema"],
            "stop-early: Unknown metric 'server-ema/accuracy'.",
        ),
        (
            [{"name": "stop-early", "metric": "loss"}],
            "stop-early: less loss is better; set less_is_better: true.",
        ),
        (
            [{"name": "stop-early", "metric": "loss", "less_is_better": True, "target": math.inf}],
            "stop-early: target must be finite, but got inf.",
        ),
        (
            [{"name": "stop-early", "metric": "local_accuracy"}],
            "under label-2 have no local_accuracy; set another metric, such as accuracy.",
        ),
        (
            ["server-ema", {"name": "stop-early", "metric": "server-ema/accuracy", "less_is_better": True}],
            "stop-early: more server-ema/accuracy is better; set less_is_better: false.",
        ),
        ([{"decay": 0.9}], "Unknown callback 'None'. Known: local-models"),
        (3, "callbacks is a list of names, with options as {name: server-ema, decay: 0.9}, but got 3."),
        (["server-ema", "server-ema"], "callbacks names server-ema twice"),
    ],
)
def test_what_is_no_callback_is_refused_in_one_sentence(given, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        resolve(FLAT | {"callbacks": given})


def test_a_run_may_be_stopped_by_a_metric_of_the_method_and_of_a_callback_that_is_named_before():
    for metric, less in (
        ("loss", True),
        ("own_accuracy", False),
        ("method/drift", True),
        ("method/drift", False),
        ("server-ema/accuracy", False),
    ):
        stop_early = {"name": "stop-early", "metric": metric, "less_is_better": less}
        assert resolve(FLAT | {"callbacks": ["server-ema", stop_early]})


def test_callbacks_say_what_they_cannot_look_at():
    with pytest.raises(
        ConfigError, match="server-ema averages one shared model, but ditto deploys one model per client"
    ):
        resolve(FLAT | {"algorithm": "ditto", "callbacks": "server-ema"})
    with pytest.raises(ConfigError, match="runs of ditto under label-2 have no accuracy; .*, such as local_accuracy"):
        resolve(FLAT | {"algorithm": "ditto", "callbacks": "stop-early"})
    shift = {"partition": "feature-shift", "clients": 4, "callbacks": "stop-early"}
    with pytest.raises(ConfigError, match="under feature-shift have no accuracy; set another metric, such as own_acc"):
        resolve(FLAT | shift)
    with pytest.raises(ConfigError, match="local-models evaluates models after every local epoch: set local_epochs"):
        resolve(FLAT | {"local_steps": 3, "callbacks": "local-models"})
    with pytest.raises(ConfigError, match="trace_local_models is the callback local-models; name one of them"):
        resolve(FLAT | {"trace_local_models": True, "callbacks": "local-models"})


def test_a_metric_is_a_scalar_with_a_name():
    assert as_numbers({"a": torch.tensor(2.0), "b": 1, "c": torch.tensor(float("nan"))}, "of") == {
        "of/a": 2.0,
        "of/b": 1.0,
        "of/c": None,
    }
    with pytest.raises(
        ValueError,
        match=re.escape("The metric a of method must be a scalar tensor or a number, but got the shape [2]."),
    ):
        as_numbers({"a": torch.zeros(2)}, "method")
    with pytest.raises(ValueError, match="The metric a of mine must be a scalar tensor or a number, but got 'x'"):
        as_numbers({"a": "x"}, "mine")
    with pytest.raises(
        ValueError, match="A metric of mine needs a name of letters, digits, and . _ [+] -, but got 'a b'"
    ):
        as_numbers({"a b": 1.0}, "mine")
    with pytest.raises(ValueError, match="The metrics of mine are a dict of names and scalars, but got float"):
        as_numbers(1.0, "mine")


def test_a_metric_in_double_precision_keeps_it():
    third = torch.tensor(1 / 3, dtype=torch.float64)
    assert as_numbers({"a": third, "b": third.float()}, "of") == {"of/a": 1 / 3, "of/b": third.float().item()}


def test_streaming_changes_no_callback():
    task = toy_task()
    assert isinstance(algorithms.make("fedavg"), RoundBased)
    for name in ("per-class-accuracy", "server-ema"):
        (callback,) = build_callbacks([{"name": name}]).values()
        stacked, streamed = (looked_at(callback, one) for one in (task, replace(task, largest_stack=0)))
        for one, other in zip(stacked, streamed, strict=True):
            assert numbers(one)[0] == pytest.approx(numbers(other)[0], abs=1e-9)


@pytest.mark.parametrize("between", [",", "+", ", "])
def test_names_in_a_text_stand_between_commas_or_plus_signs(between):
    specs, _, mistakes = read_callbacks(f"server-ema{between}per-class-accuracy")
    assert [spec["name"] for spec in specs] == ["server-ema", "per-class-accuracy"] and not mistakes
