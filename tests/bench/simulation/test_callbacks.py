"""What a run does with metrics and callbacks, those of labs among them."""

import json
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from bench import plugins
from bench.callbacks import Callback
from bench.callbacks.stop_early import StopEarly
from bench.config.code_version import code_version, versions_of
from bench.config.resolve import base_of, resolve, trained_by
from bench.config.schema import run_id, settings_of
from bench.errors import ConfigError, HookError
from bench.execution.worker import failure
from bench.experiments.cells import to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import make_grid
from bench.results.artifacts import Folder
from bench.results.columns import described, measured
from bench.results.json_files import Damaged
from bench.results.metrics import METRICS, check_sources, summarise
from bench.results.run_files import read_rows
from bench.results.schema import SCHEMA
from bench.results.store import Store
from bench.simulation.callbacks import RoundOutcome, as_numbers
from bench.simulation.checkpoints import Checkpoints
from bench.simulation.retention import StateRetention
from bench.simulation.run import Run
from reports import api
from reports.exports.frames import rounds_frame, runs_frame
from tests.support import method_files
from tests.support.toy import assert_equal
from tests.support.trained import to_end, without_times

FLAT = {
    **{"algorithm": "fednoted", "dataset": "digits", "partition": "label-2", "clients": 5, "rounds": 4},
    **{"local_epochs": 1, "batch_size": 16, "train_examples": 300, "evaluate_every": 2},
}
METHOD = '''"""FedNoted: FedAvg that tells how far clients drift."""

from dataclasses import dataclass

from algorithms import LocalResult, RoundBased, registered, tree


@registered("fednoted")
@dataclass(frozen=True)
class FedNoted(RoundBased):
    """FedAvg."""

    def local_update(self, data, plan, view):
        result = super().local_update(data, plan, view)
        return LocalResult(result.update, result.client, {"drift": tree.norm(result.update["delta"])})
'''
CALLBACK = '''"""How far the shared model has moved."""

from dataclasses import dataclass

from algorithms import tree
from bench.callbacks import Callback, Noted, registered_callback


@registered_callback("moved", less_is_better=("distance",), percent=("share",))
@dataclass(frozen=True)
class Moved(Callback):
    """Distance of the shared model from the initial one, and from that of the round before."""

    fails_in: int = 0
    stops_in: int = 0

    def init(self, task, state):
        return {"start": state["params"], "rounds": 0}

    def after_round(self, outcome, own):
        if outcome.round == self.fails_in:
            raise RuntimeError("no way")
        moved = tree.norm(tree.subtract(outcome.after["params"], own["start"]))
        step = tree.norm(tree.subtract(outcome.after["params"], outcome.before["params"]))
        metrics = {"distance": moved, "share": step / moved, "rounds": own["rounds"] + 1}
        return Noted({**own, "rounds": own["rounds"] + 1}, metrics, "far enough" * (outcome.round == self.stops_in))
'''


@pytest.fixture(autouse=True)
def lab(tmp_path, monkeypatch):
    method_files.use(
        tmp_path / "mylab", monkeypatch, {"algorithms/fednoted.py": METHOD, "callbacks/moved.py": CALLBACK}
    )


def looked(*callbacks, **more):
    return resolve(FLAT | {"callbacks": list(callbacks)} | more)


def test_rows_have_the_metrics_of_the_method_and_of_callbacks_by_their_names(digits):
    run = to_end(Run(looked("moved", "per-class-accuracy", {"name": "server-ema", "decay": 0.5}), digits))
    assert all(row["metrics"]["method/drift"] > 0 for row in run.rows)
    assert [row["metrics"]["moved/rounds"] for row in run.rows] == [1, 2, 3, 4]
    assert ["per-class-accuracy/9" in row["metrics"] for row in run.rows] == [False, True, False, True]
    assert set(run.rows[1]["metrics"]) > {"server-ema/accuracy", "server-ema/loss", "moved/distance"}
    summary = run.result()["summary"]
    assert summary["last"]["moved/distance"] == run.rows[-1]["metrics"]["moved/distance"]
    assert summary["best"]["moved/distance"] == min(row["metrics"]["moved/distance"] for row in run.rows)
    assert summary["best"]["moved/rounds"] == 4 and summary["last10"]["moved/rounds"] == 2.5


def test_looking_changes_no_number_of_the_run(digits):
    plain, watched = to_end(Run(looked(), digits)), to_end(Run(looked("moved", "server-ema"), digits))
    assert_equal(plain.state["params"], watched.state["params"])
    for row, other in zip(without_times(plain.rows), without_times(watched.rows), strict=True):
        assert row["metrics"] == {"method/drift": other["metrics"]["method/drift"]}
        assert {**row, "metrics": None} == {**other, "metrics": None}


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_run_that_was_killed_goes_on_with_the_state_of_its_callbacks(digits, tmp_path, engine):
    config = looked("moved", {"name": "server-ema", "decay": 0.5}, {"name": "stop-early", "patience": 5})
    whole = to_end(Run(config, digits, engine=engine))
    run = Run(config, digits, engine=engine)
    for _ in range(3):
        run.step()
    checkpoints = Checkpoints(Folder(tmp_path / "run"), {"id": "a"}, 0.0)
    checkpoints.save(run.checkpoint())
    other = Run(config, digits, engine=engine)
    other.restore(Checkpoints(Folder(tmp_path / "run"), {"id": "a"}).load(torch.device("cpu")))
    to_end(other)
    assert without_times(other.rows) == without_times(whole.rows)


def test_both_engines_give_the_same_metrics(digits):
    rows = [to_end(Run(looked("moved", "server-ema"), digits, engine=engine)).rows for engine in ("loop", "vectorised")]
    for one, other in zip(*rows, strict=True):
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-3)


def test_a_callback_ends_a_run_which_is_done_and_evaluated_and_says_why(digits, tmp_path):
    folder = Folder(tmp_path / "kept")
    run = to_end(Run(looked({"name": "moved", "stops_in": 3}), digits, folder=folder, retention=StateRetention()))
    result = run.result()
    assert (run.round, result["status"], result["reason"]) == (3, "done", "far enough")
    assert "accuracy" in run.rows[-1] and result["summary"]["last"]["accuracy"] == run.rows[-1]["accuracy"]
    assert folder.names() == ["final.pt"]
    restored = Run(looked({"name": "moved", "stops_in": 3}), digits)
    restored.restore(run.checkpoint())
    assert restored.finished


def test_a_callback_ends_a_run_and_all_look_at_the_evaluation_of_that_round(digits):
    ema = {"name": "server-ema", "decay": 0.5}
    run = to_end(Run(looked({"name": "moved", "stops_in": 1}, "per-class-accuracy", ema), digits))
    assert (run.round, run.result()["reason"]) == (1, "far enough")
    assert {"moved/distance", "per-class-accuracy/0", "server-ema/accuracy"} <= run.rows[-1]["metrics"].keys()
    short = to_end(Run(looked("moved", "per-class-accuracy", ema, rounds=3), digits))
    run = to_end(Run(looked({"name": "moved", "stops_in": 3}, "per-class-accuracy", ema), digits))
    assert run.rows[-1]["metrics"] == short.rows[-1]["metrics"], "each has counted the round once"


def test_the_evaluation_of_a_round_in_which_a_callback_ends_a_run_is_in_its_seconds(digits, monkeypatch):
    own = Run._measured
    monkeypatch.setattr(Run, "_measured", lambda run, evaluated: (time.sleep(evaluated), own(run, evaluated))[1])
    run = to_end(Run(looked({"name": "moved", "stops_in": 1}), digits))
    assert 1 < run.rows[-1]["seconds"] == run.result()["seconds"]


def test_a_run_may_be_stopped_by_its_test_loss(digits):
    patient = {"name": "stop-early", "metric": "loss", "less_is_better": True}
    run = to_end(Run(looked(patient | {"patience": 9}), digits))
    assert run.round == 4 and run.checkpoint()["callbacks"]["stop-early"]["best"] == -min(
        row["loss"] for row in run.rows if "loss" in row
    )


def test_a_run_may_be_stopped_where_it_reaches_a_target(digits):
    whole = to_end(Run(looked({"name": "stop-early", "metric": "loss", "less_is_better": True, "patience": 9}), digits))
    losses = {row["round"]: row["loss"] for row in whole.rows if "loss" in row}
    first = min(losses)
    target = {"name": "stop-early", "metric": "loss", "less_is_better": True, "target": losses[first]}
    run = to_end(Run(looked(target), digits))
    assert run.round == first < whole.round
    assert run.result()["reason"] == f"stopped early: loss has reached {losses[first]:g}"


def test_a_callback_that_raises_fails_the_run_with_its_file_and_line(digits):
    config = looked({"name": "moved", "fails_in": 2})
    run = Run(config, digits)
    run.step()
    with pytest.raises(RuntimeError, match="no way") as raised:
        run.step()
    line = CALLBACK.splitlines().index('            raise RuntimeError("no way")') + 1
    record = failure(raised.value, config)
    assert record["status"] == "failed"
    assert record["reason"] == f"Moved in mylab/callbacks/moved.py failed in line {line}: RuntimeError: no way."
    assert run.round == 1 and len(run.rows) == 1  # as it was before the round


def test_a_metric_that_no_method_has_ends_the_run_in_its_first_round(digits):
    config = looked({"name": "stop-early", "metric": "method/drfit"})  # it is evaluated every two rounds
    with pytest.raises(
        ValueError, match="round 1 has no metric method/drfit, but method/drift. Did you mean"
    ) as raised:
        Run(config, digits).step()
    assert failure(raised.value, config)["reason"].startswith(
        "StopEarly in bench/callbacks/stop_early.py failed in line"
    )
    rare = StopEarly(metric="method/rare")
    assert rare.after_round(
        RoundOutcome(None, None, {}, {}, {}, None), {"best": 1.0, "waited": 0}
    )  # not in every round


PAIR = "but the pair (own, metrics) is expected; write return own, {}."
HELD = (
    "but a checkpoint holds tensors, numbers of Python, texts, and dicts and lists of these; write float(...) or int(...) of a "
    "number, torch.from_numpy(...) of an array, and a dict in place of a NamedTuple."
)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("own", f", returned a dict, {PAIR}"),
        ("{'distance': moved, 'share': step}", f", returned a dict, {PAIR}"),
        ("None", f", returned None, {PAIR}"),
        ("own, {}, '', None, 1", f", returned 5 values, {PAIR}"),
        ("own, {}, True", ', returned a bool, but a sentence as stop is expected; write stop="...".'),
        (
            "Noted(own, local_models={'clients': [tree.norm(own['start'])]})",
            ", returned a Tensor as local_models.clients[0], but JSON values are expected; write float(...) or int(...) of a "
            "number, and .tolist() of an array or a tensor.",
        ),
        ("{'seen': [1, np.float64(1)]}, {}", f", returned a float64 as own.seen[1], {HELD}"),
        ("{np.int64(1): 1}, {}", f", returned a int64 as own.1, {HELD}"),
        ("{'best': Noted(1)}, {}", f", returned a Noted as own.best, {HELD}"),
        ("own, {'distance': 'far'}", ": The metric distance of moved must be a scalar tensor or a number, but got 'far'."),
    ],
)  # fmt: skip
def test_a_callback_that_returns_something_else_fails_the_run_with_its_file_and_line(
    digits, tmp_path, monkeypatch, returned, said
):
    at = CALLBACK.index("        moved =")
    wrong = f"{CALLBACK[:at]}        moved = step = 1.0\n        return {returned}\n"
    wrong = wrong.replace("import dataclass\n", "import dataclass\nimport numpy as np\n")
    method_files.use(tmp_path / "other", monkeypatch, {"algorithms/fednoted.py": METHOD, "callbacks/moved.py": wrong})
    config = looked("moved")
    with pytest.raises(ValueError) as raised:
        Run(config, digits).step()
    line = next(number for number, text in enumerate(wrong.splitlines(), 1) if "def after_round" in text)
    assert failure(raised.value, config)["reason"] == f"after_round in other/callbacks/moved.py, line {line}{said}"


def test_a_callback_that_returns_no_scalar_is_told_so(digits, tmp_path, monkeypatch):
    wrong = CALLBACK.replace('"share": step / moved', '"share": step.repeat(2)')
    method_files.use(tmp_path / "other", monkeypatch, {"algorithms/fednoted.py": METHOD, "callbacks/moved.py": wrong})
    with pytest.raises(
        ValueError, match="The metric share of moved must be a scalar tensor or a number, but got the shape"
    ):
        Run(looked("moved"), digits).step()


def test_more_metrics_of_all_callbacks_than_a_round_can_hold_fail_the_run(digits, tmp_path, monkeypatch):
    many = (
        CALLBACK[: CALLBACK.index("        moved =")]
        + "        return own, dict.fromkeys(map(str, range(6000)), 1.0)\n"
    )
    files = {"algorithms/fednoted.py": METHOD, "callbacks/moved.py": many}
    more = many.replace('"moved"', '"more"')
    method_files.use(tmp_path / "other", monkeypatch, files | {"callbacks/more.py": more})
    with pytest.raises(
        HookError, match=r"more gives 6,000 metrics in a round beside 6,0\d\d of others, but at most 10,000"
    ):
        Run(looked("moved", "more"), digits).step()


def test_without_callbacks_runs_keep_their_ids_and_with_them_have_others():
    plain = resolve(FLAT)
    assert "callbacks" not in plain.canonical() and run_id(plain) == run_id(resolve(FLAT | {"callbacks": []}))
    ids = [run_id(looked(*callbacks)) for callbacks in ([], ["moved"], [{"name": "moved", "stops_in": 2}])]
    assert len({*ids}) == 3
    assert run_id(looked("moved")) == run_id(resolve(FLAT | {"callbacks": "moved"}))
    again = looked({"name": "moved", "stops_in": 2})
    assert resolve(settings_of(again)) == again


def test_an_option_of_a_callback_may_be_called_base_as_the_method_in_a_wrapper_is(tmp_path, monkeypatch):
    own = CALLBACK.replace("fails_in: int = 0", "base: float = 2.0")
    method_files.use(tmp_path / "other", monkeypatch, {"algorithms/fednoted.py": METHOD, "callbacks/moved.py": own})
    config = looked("moved")
    with Store(tmp_path / "results").locked() as store:
        store.start(run_id(config), config.canonical())
        assert store.config(run_id(config)) == config.canonical() and not store.damaged
    assert described(config.canonical())["moved.base"] == 2.0


def test_the_code_of_callbacks_is_a_part_of_the_code_of_the_run():
    config = looked("moved")
    assert config.versions["callback.moved"] == 1 and versions_of(config)["callback moved"] == 1
    assert "callback moved" in code_version(config) and versions_of(config.canonical()) == versions_of(config)
    traced = looked(trace_local_models=True)
    assert "callback local-models" in code_version(traced) and traced.versions["callback.local-models"] == 2


def test_what_is_calibrated_after_training_trains_for_itself_if_somebody_looks():
    flat = {"algorithm": {"name": "ccvr", "base": {"name": "fedavg"}}, "dataset": "digits", "partition": "label-2"}
    assert trained_by(resolve(flat)) == base_of(resolve(flat)) is not None
    assert trained_by(resolve(flat | {"callbacks": "moved"})) is None


def test_settings_as_columns_name_callbacks_and_their_options():
    found = described(looked("moved", {"name": "server-ema", "decay": 0.5}).canonical())
    assert (found["callbacks"], found["server-ema.decay"]) == ("moved, server-ema", 0.5)
    assert "callbacks" not in described(resolve(FLAT).canonical())


def test_numbers_of_a_row_for_other_programs_are_flat_and_finite():
    row = {"round": 2, "accuracy": 0.5, "metrics": {"a/b": 1.0, "a/c": None}, "local_models": {"clients": []}}
    assert measured(row) == {"round": 2, "accuracy": 0.5, "a/b": 1.0}


@pytest.mark.parametrize(
    "metrics",
    [
        3,
        None,
        [["a/b", 1.0]],
        {"a": 1.0},
        {"a/b": "1"},
        {"a/b": True},
        {"a/b": [1.0]},
        {"a/b": {}},
        {"a/b/c": 1.0},
        {"../b": 1.0},
        {"a/\u202eb": 1.0},
        {"a/" + "b" * 100: 1.0},
        {"": 1.0},
    ],
)
def test_metrics_of_a_hostile_row_are_refused(tmp_path, metrics):
    (tmp_path / "rounds.jsonl").write_text(json.dumps({"round": 1, "metrics": metrics}) + "\n")
    with pytest.raises(Damaged, match="has metrics of round 1 that are no names with numbers"):
        read_rows(tmp_path)


def test_too_many_metrics_are_refused(tmp_path):
    many = {f"a/{number}": 0.0 for number in range(10_001)}
    (tmp_path / "rounds.jsonl").write_text(json.dumps({"round": 1, "metrics": many}) + "\n")
    with pytest.raises(Damaged, match="metrics of round 1"):
        read_rows(tmp_path)


def test_scores_are_accuracies_by_name_and_metrics_are_their_own():
    """What only ends as an accuracy does is none: its round is not evaluated."""
    rows = [
        {"round": 1, "accuracy": 0.5, "loss": 1.0, "metrics": {"a/accuracy": 0.1}},
        {"round": 2, "inaccuracy": 0.9, "metrics": {"a/accuracy": None}},
    ]
    assert summarise(rows)["last"] == {"accuracy": 0.5, "a/accuracy": 0.1}
    assert summarise([{"round": 1}])["last"] == {}


def test_what_a_callback_says_of_its_metrics_is_read_without_its_file_being_imported():
    assert METRICS["moved/distance"].less_is_better and not METRICS["moved/distance"].is_share
    assert METRICS["moved/share"].scale == 100 and not METRICS["moved/share"].ranked
    assert METRICS["per-class-accuracy/3"].ranked and METRICS["server-ema/loss"].less_is_better
    assert METRICS["nobody/knows"].scale == 1 and "accuracy/" not in METRICS


def test_a_metric_names_a_callback_that_runs_have():
    assert check_sources(["accuracy", "method/drift", "moved/distance"], ["moved"]) == []
    assert METRICS["method/delta_norm"].title == "method/delta_norm"
    (sentence,) = check_sources(["moved/distance"], [])
    assert sentence == (
        "The metric moved/distance is of the callback moved, which no run has: add moved to callbacks in the settings."
    )
    (sentence,) = check_sources(["movd/distance"], ["moved"])
    assert sentence.startswith("The metric movd/distance: Unknown callback 'movd'. Did you mean 'moved'?")


GRID = {
    "axes": {"dataset": ["digits"], "partition": ["label-2"], "algorithm": ["fednoted"], "seed": [0, 1]},
    "settings": {key: FLAT[key] for key in ("clients", "rounds", "local_epochs", "train_examples")}
    | {"callbacks": ["moved"]},
    "report": {
        "metrics": ["accuracy", "method/drift", "moved/share", "moved/nothing"],
        "figures": [{"kind": "curves", "x": "rounds"}],
    },
}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"settings": {}}, "The metric moved/share is of the callback moved, which no run has"),
        ({"report": {"metric": "movd/x"}}, "The metric movd/x: Unknown callback 'movd'"),
        ({"report": {"metric": "accuracies"}}, "Unknown metric 'accuracies'"),
        ({"axes": GRID["axes"] | {"callbacks": [["moved"]]}}, "callbacks is no axis"),
    ],
)
def test_a_grid_that_shows_what_no_run_has_is_refused_when_it_is_read(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make_grid("mine", GRID | changes, "mine.yaml")


@pytest.mark.slow
def test_a_callback_of_a_lab_in_one_file_is_in_tables_figures_and_exports(digits, tmp_path, monkeypatch):
    grid = make_grid("mine", GRID, "mine.yaml")
    cells, store = expand(grid, "full"), Store(tmp_path / "results")
    with store.locked():
        for cell in cells:
            run = to_end(Run(cell.config, digits))
            store.start(cell.id, cell.config.canonical())
            store.append(cell.id, run.rows)
            store.finish(cell.id, run.rows, {"id": cell.id, "schema": SCHEMA, **run.result()})
        store.write_grid("mine@full", to_json(grid, "full", {}, cells))
    store = Store(tmp_path / "results")
    text = api.GridReport(store, "mine", "full").render()
    (shown,) = (line for line in text.splitlines() if line.startswith("| Digits"))
    rows = {cell.config.seed: store.rows(cell.id)[-1]["metrics"] for cell in cells}
    drift, share = (sum(of[name] for of in rows.values()) / 2 for name in ("method/drift", "moved/share"))
    assert f"{drift:.3g}±" in shown and f"{100 * share:.1f}±" in shown
    assert (
        "| FedNoted method/drift" in text and "- method/drift" not in text
    )  # only the method knows more than the name
    assert "- moved/share: of the callback moved; in percent." in text
    assert (
        "No run has the metric moved/nothing, or none a finite one; there are: method/drift, moved/distance, moved/rounds"
        in text
    )
    unknown = "moved/share: the callback moved is in no folder that is in use (--plugins DIR), so nothing is bold"
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv(plugins.VARIABLE, "")
        assert unknown not in text and unknown in api.GridReport(store, "mine", "full").render()
    assert all(api.GridReport(store, "mine", "full").render(format=kind) for kind in ("tex", "html", "csv"))
    paths, _ = api.GridReport(store, "mine", "full").write_figures()
    drawn = {path.stem for path in paths}
    assert {"mine@full-rounds-method_drift", "mine@full-rounds-moved_share"} <= drawn
    by_round = rounds_frame(store)
    assert by_round["moved/rounds"].tolist() == [1, 2, 3, 4] * 2 and pd.notna(by_round["method/drift"]).all()
    assert runs_frame(store)["moved/distance_last"].tolist() == [rows[seed]["moved/distance"] for seed in (0, 1)]


def test_a_table_says_which_runs_ended_early(digits, tmp_path):
    settings = GRID["settings"] | {"callbacks": [{"name": "moved", "stops_in": 2}]}
    grid = make_grid("mine", GRID | {"settings": settings, "report": {}}, "mine.yaml")
    cells, store = expand(grid, "full"), Store(tmp_path / "results")
    with store.locked():
        for cell in cells:
            run = to_end(Run(cell.config, digits))
            store.start(cell.id, cell.config.canonical())
            store.finish(cell.id, run.rows, {"id": cell.id, "schema": SCHEMA, **run.result()})
        store.write_grid("mine@full", to_json(grid, "full", {}, cells))
    text = api.GridReport(Store(tmp_path / "results"), "mine", "full").render()
    assert f"2 runs ended early (first {cells[0].id}, after round 2): far enough." in text


def test_a_metric_in_the_record_that_no_round_has_is_damage(digits, tmp_path):
    config, store = looked("moved"), Store(tmp_path / "results")
    run = to_end(Run(config, digits))
    result = run.result()
    for name, value, what in (
        ("moved/distance", 7.0, "ends with another moved/distance than the run's record"),
        ("moved/more", 7.0, "has no moved/more, but the run's record has"),
    ):
        summary = result["summary"] | {"last": result["summary"]["last"] | {name: value}}
        with store.locked():
            store.start(run_id(config), config.canonical())
            store.finish(
                run_id(config), run.rows, {"id": run_id(config), "schema": SCHEMA, **result, "summary": summary}
            )
        again = Store(tmp_path / "results")
        assert again.record(run_id(config)) is None and what in again.damaged.popitem()[1]


def test_a_metric_on_any_device_is_copied_once():
    found = as_numbers({"a": torch.tensor(1, dtype=torch.long), "b": torch.tensor(0.5, dtype=torch.float16)}, "of")
    assert found == {"of/a": 1.0, "of/b": 0.5}


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["params"]["linear1.weight"].zero_(),
        lambda state: state["params"].update({"linear1.weight": torch.zeros(64, 64)}),
        lambda state: state.update({"params": {name: 0 * leaf for name, leaf in state["params"].items()}}),
        lambda state: state.update({"round": 0}),
        lambda state: state.update({"noted": 1.5}),
    ],
)
def test_a_callback_that_changes_a_state_fails_the_run(digits, change):
    class Changing(Callback):
        def after_round(self, outcome, own):
            change(outcome.after)
            return own, {}

    run = Run(looked("moved"), digits)
    run._callbacks = {"moved": Changing()}
    line = Changing.after_round.__code__.co_firstlineno
    said = rf"^The callback moved has changed a state \(after_round in test_callbacks.py, line {line}\), but .* by \.clone\(\)"
    with pytest.raises(HookError, match=said):
        run.step()


@pytest.mark.parametrize(
    ("round", "metrics", "metric", "said"),
    [
        (1, {}, "method/gap", ""),
        (1, {"method/drift": 1.0}, "method/gap", ""),  # its rounds may differ
        (
            1,
            {"method/drift": 1.0},
            "method/drfit",
            "round 1 has no metric method/drfit, but method/drift. Did you mean",
        ),
        (4, {"accuracy": 0.5}, "method/gap", "round 4 has no metric method/gap, but accuracy."),
        (2, {"loss": 0.5}, "own_accuracy", "round 2 has no metric own_accuracy, but loss."),
    ],
)
def test_a_metric_of_some_rounds_is_waited_for_and_a_misspelt_one_is_not(round, metrics, metric, said):
    task, method = SimpleNamespace(settings=None), SimpleNamespace(num_rounds=lambda settings: 4)
    outcome = RoundOutcome(task, method, {}, {"round": round}, metrics, object() if round % 2 == 0 else None)
    with pytest.raises(ValueError, match=said) if said else nullcontext():
        StopEarly(metric=metric).after_round(outcome, {})
