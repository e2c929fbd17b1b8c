"""What is left to train, and what of a grid is stored, over several requests; nothing is trained."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

import datasets
from algorithms.fedavg import FedAvg
from bench.config.code_version import code_version
from bench.config.schema import RunConfig
from bench.errors import ConfigError
from bench.experiments.cost import examples_to_train
from bench.experiments.execution_options import ExecutionOptions
from bench.experiments.grid_loading import load_grid
from bench.experiments.images import Images
from bench.experiments.planning import as_stored, kept_of_other_files, training_of
from bench.experiments.spec import ExperimentSpec
from bench.results.json_files import SEAL
from bench.results.store import Store
from datasets import Dataset, MissingData, Split, resized
from reports import api
from tests.support.earlier_code import earlier
from tests.support.leaf import write_femnist
from tests.support.planning import Experiment
from tests.support.weights import write_weights

GRID = {
    "axes": {"dataset": ["digits"], "partition": ["label-2"], "algorithm": ["fedavg", "fedprox"], "seed": [0, 1]},
    "settings": {"clients": 10, "rounds": 8, "model": "mlp"},
}


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "results").locked() as store:
        yield store


@pytest.fixture
def ask(tmp_path):
    """A request for GRID, with changes of its file and of the request."""

    def ask(
        folder="a",
        only=None,
        overrides=None,
        seeds=None,
        substitutes=None,
        rerun=False,
        keep="deployed",
        keep_stale=False,
        **changes,
    ):
        path = tmp_path / folder / "mine.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(GRID | changes))
        grid = load_grid(str(path))
        spec = ExperimentSpec(grid, "paper", only or {}, overrides or {}, seeds, substitutes or {})
        return Experiment(spec, ExecutionOptions(tmp_path, rerun=rerun, keep=keep, keep_stale=keep_stale))

    return ask


def train(request, store, accuracy=0.5, status="done", **facts):
    """Plans and stores a request, and pretends to train it; returns the plan."""
    made = request.plan(store)
    request.store_grid(made, store)
    for cell in made.todo:
        retention = request.retention(cell, store)
        store.start(cell.id, cell.config.canonical())
        for name in retention.files():
            torch.save({"round": 1, "params": {}}, store.unfinished_folder(cell.id) / name)
        scores = {value: {"accuracy": accuracy} for value in ("last", "best", "last10")}
        record = {"id": cell.id, "status": status, "summary": scores, "kept": retention.final}
        record |= {"reason": "", "versions": {}, "device": "cpu", "engine": "loop", "data_note": ""} | facts
        store.finish(cell.id, [{"round": 1, "accuracy": accuracy}], record)
    return made


def stored(store, request) -> list[tuple]:
    cells = store.grid(request.label)["cells"]
    return [(cell["dataset"], cell["algorithm"], cell["seed"]) for cell in cells]


def table(store, request) -> str:
    return api.GridReport(store.folder, *request.label.split("@")).render()


ONE = {"algorithm": ["fedavg"], "seed": [0]}


def test_grids_that_need_different_states_do_not_repeat_each_others_runs_for_ever(ask, store):
    first, second = ask(only=ONE, save_rounds=[5]), ask(only=ONE, save_rounds=[7], save_local_models=[2])
    (cell,) = train(first, store).todo
    assert train(second, store).reasons == {cell.id: "the stored run lacks round-0007.pt, local-models-0002.pt"}
    assert store.states(cell.id) == ["final.pt", "local-models-0002.pt", "round-0005.pt", "round-0007.pt"]
    for request in (first, second, ask(only=ONE, save_rounds=[5, 7])):
        assert request.plan(store).todo == []
    train(ask(only=ONE, save_rounds=[6], keep="none"), store)
    assert "final.pt" in store.states(cell.id), "asked for by nobody now, but it was there"


def test_client_states_that_are_asked_for_later_are_played_again_and_then_stay(ask, store):
    (cell,) = train(ask(only=ONE), store).todo
    assert store.record(cell.id)["kept"] == "deployed"
    whole = ask(only=ONE, keep="all")
    assert train(whole, store).reasons == {cell.id: "the stored run lacks client states in final.pt"}
    assert whole.plan(store).todo == []
    train(ask(only=ONE, save_rounds=[6]), store)
    assert store.record(cell.id)["kept"] == "all", "asked for by nobody now, but they were there"
    train(ask(only=ONE, rerun=True), store)
    assert store.record(cell.id)["kept"] == "deployed", "the others are in superseded/"


def test_a_run_that_kept_nothing_is_played_again_only_for_what_needs_its_state(ask, store):
    (cell,) = train(ask(only=ONE, keep="none"), store).todo
    assert ask(only=ONE).plan(store).todo == []
    assert ask(only=ONE, keep="all").plan(store).reasons == {cell.id: "the stored run lacks final.pt"}
    made = ask(**SWEEP, keep="none").plan(store)
    assert made.reasons == {cell.id: "its last state, from which others start, is gone or damaged"}
    kept = {one.id: ask(**SWEEP, keep="none").retention(one, store, one.id in made.bases.values()) for one in made.todo}
    assert kept.pop(cell.id).final == "deployed" and {one.final for one in kept.values()} == {"none"}


def test_a_record_from_before_there_was_a_choice_has_kept_everything(ask, store):
    (cell,) = train(ask(only=ONE), store).todo
    path = store.run_folder(cell.id) / "record.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in content.items() if key not in ("kept", SEAL)}))
    assert ask(only=ONE, keep="all").plan(store).todo == []
    assert ask(only=ONE).retention(cell, store).final == "all"


def test_what_only_deploys_has_no_client_states_to_ask_for(ask, store):
    train(ask(**SWEEP, keep="all"), store)
    assert ask(**SWEEP, keep="all").plan(store).todo == []


def test_a_repetition_that_failed_is_tried_again_without_asking_for_all_of_them(ask, store):
    (cell,) = train(ask(only=ONE), store).todo
    store.start(cell.id, cell.config.canonical())
    store.finish(cell.id, [], {"id": cell.id, "status": "failed", "summary": {}})
    assert ask(only=ONE).plan(store).reasons == {cell.id: "its repetition failed"}
    train(ask(only=ONE), store)
    assert ask(only=ONE).plan(store).todo == []


def test_runs_of_earlier_code_are_repeated_and_the_change_is_named(ask, store):
    cells = ask(only={"algorithm": ["fedavg"]}).plan(store).todo
    digest = earlier(store, "algorithm fedavg", "algorithms/fedavg.py", "FedAvg")
    before = code_version(cells[0].config) | {"algorithm fedavg": digest}
    train(ask(only={"algorithm": ["fedavg"]}), store, code=before)
    train(ask(only={"algorithm": ["fedprox"], "seed": [0]}), store)
    made = ask().plan(store)
    reason = (
        "the code has changed (algorithms/fedavg.py: FedAvg); the earlier results will be in superseded/, and --keep-stale "
        "uses them as they are"
    )
    assert made.reasons == {cell.id: reason for cell in cells} and len(made.todo) == 3 and made.finished == 1
    assert [cell.config.algorithm["name"] for cell in ask(keep_stale=True).plan(store).todo] == ["fedprox"]
    request = ask(only={"algorithm": ["fedavg"]})
    train(request, store, accuracy=0.6, code=code_version(cells[0].config))
    assert request.plan(store).todo == []
    aside = [store.folder / "superseded" / f"{cell.id}-1" / "record.json" for cell in cells]
    assert [json.loads(path.read_text())["code"] for path in aside] == [before, before], "nothing is lost"


def test_a_stale_run_whose_repetition_failed_can_be_kept(ask, store):
    (cell,) = ask(only=ONE).plan(store).todo
    digest = earlier(store, "engine", "bench/seeding.py", "seed_for")
    train(ask(only=ONE), store, code=code_version(cell.config) | {"engine": digest})
    store.start(cell.id, cell.config.canonical())
    store.finish(cell.id, [], {"id": cell.id, "status": "failed", "summary": {}})
    assert ask(only=ONE).plan(store).reasons == {cell.id: "its repetition failed"}
    assert ask(only=ONE, keep_stale=True).plan(store).todo == []


def test_a_base_of_earlier_code_is_trained_again_and_what_started_from_it_as_well(ask, store):
    made = ask(**SWEEP).plan(store)
    base, *calibrated = made.todo
    digest = earlier(store, "algorithm fedavg", "algorithms/fedavg.py", "FedAvg")
    train(ask(only=ONE), store, code=code_version(base.config) | {"algorithm fedavg": digest})
    assert [cell.id for cell in ask(**SWEEP).plan(store).todo] == [cell.id for cell in made.todo]
    assert ask(**SWEEP).plan(store).reasons.keys() == {base.id}
    kept = ask(**SWEEP, keep_stale=True)
    assert {cell.id for cell in kept.plan(store).todo} == {cell.id for cell in calibrated}
    # They are of the code of today, but start from the end of a run that is not.
    train(kept, store, code=code_version(calibrated[0].config), **store.base_fields(base.id))
    assert kept.plan(store).todo == []
    again = ask(**SWEEP).plan(store)
    assert again.reasons.keys() == {cell.id for cell in made.todo} and len({*again.reasons.values()}) == 1


def test_the_longest_runs_are_first_but_after_those_from_which_they_start(ask, store):
    """Else the longest would train alone at the end."""
    axes = {**GRID["axes"], "algorithm": ["fedavg", "ccvr"], "local_epochs": [1, 4, 2], "seed": [0]}
    made = ask(axes=axes, report={"rows": ["partition", "local_epochs"], "columns": "algorithm"}).plan(store)
    order = [(cell.config.algorithm["name"], cell.config.local_epochs) for cell in made.todo]
    assert order == [(name, epochs) for name in ("fedavg", "ccvr") for epochs in (4, 2, 1)]
    assert set(made.bases.values()) == {cell.id for cell in made.todo[:3]}


SWEEP = {
    "axes": GRID["axes"] | {"algorithm": ["ccvr"], "virtual_per_class": [0, 50, 100], "seed": [0]},
    "report": {"rows": ["partition"], "columns": "virtual_per_class"},
}


def test_what_a_post_hoc_method_needs_is_trained_once_and_never_again(ask, store):
    made = ask(**SWEEP).plan(store)
    base, *calibrated = made.todo
    assert base.config.algorithm == {"name": "fedavg"} and len(calibrated) == 3, (
        "trained first, although not in the grid"
    )
    assert made.bases == {cell.id: base.id for cell in calibrated}
    assert base.id == ask(only=ONE).plan(store).todo[0].id, "the run that a grid of fedavg has"
    train(ask(only=ONE), store)
    made = ask(**SWEEP).plan(store)
    assert made.todo == calibrated and set(made.bases.values()) == {base.id}
    assert made.finished == 0
    (store.run_folder(base.id) / "final.pt").unlink()
    assert ask(**SWEEP).plan(store).reasons == {base.id: "its last state, from which others start, is gone or damaged"}


def test_what_starts_from_a_base_is_played_again_when_that_has_other_numbers(ask, store):
    calibrated = ask(
        settings=GRID["settings"] | {"evaluate_every": None}, axes=GRID["axes"] | {"wrapper": ["ccvr"], **ONE}
    )
    (cell,) = [cell for cell in train(calibrated, store).todo if cell.wrapper == "ccvr"]
    summary = store.record(training_of(cell).id)["summary"]
    record, rows = store.record(cell.id), store.rows(cell.id)
    for before, todo in ((summary, 0), ({"last": {"accuracy": 0.1}}, 1)):
        shutil.rmtree(store.run_folder(cell.id))
        store.start(cell.id, cell.config.canonical())
        store.finish(cell.id, rows, record | {"base_summary": before})
        made = calibrated.plan(store)
        assert len(made.todo) == todo
    assert made.reasons == {cell.id: "its base was trained again, with other numbers"}


def test_local_models_are_kept_where_the_grid_says(ask, store):
    axes = GRID["axes"] | {"wrapper": ["none", "clsnorm"], "algorithm": ["fedavg", "fedprox"], "seed": [0]}
    when = {"algorithm": "fedavg", "wrapper": "none"}
    request = ask(
        axes=axes,
        save_local_models=[1, 50, "last"],
        save_when=when,
        report={"columns": "wrapper", "rows": ["algorithm"]},
    )
    kept = {
        (cell.setting("algorithm"), cell.wrapper): request.retention(cell, store).local_models
        for cell in request.plan(store).todo
    }
    assert kept == {
        ("fedavg", "none"): (1, 8),
        ("fedavg", "clsnorm"): (),
        ("fedprox", "none"): (),
        ("fedprox", "clsnorm"): (),
    }


def test_finished_runs_of_other_images_stay_and_are_named(ask, store):
    request = ask(only={"algorithm": ["fedavg"]})
    first, second = train(request, store, data={"kind": "arrays", "digest": "0badcafe"}).todo
    assert request.plan(store).todo == []
    here = datasets.load("digits", None).digest
    (line,) = kept_of_other_files(request.plan(store), request.images(), store)
    assert line == (
        f"2 finished runs used another digits (digest 0badcafe) than the one that is here ({here}); to train again on this "
        "one, add --rerun, or name another --results-dir."
    )
    (line,) = kept_of_other_files(ask(**SWEEP).plan(store), ask(**SWEEP).images(), store)
    assert line.startswith(f"The finished run {first.id} used another digits"), "others start from its end"
    train(ask(only=ONE, rerun=True), store, data={"kind": "arrays", "digest": here})
    (line,) = kept_of_other_files(request.plan(store), request.images(), store)
    assert line.startswith(f"The finished run {second.id} used")


def test_a_base_is_trained_again_where_a_run_of_the_grid_would_be(ask, store):
    train(ask(only=ONE), store, data_note="2 of 10 classes")
    made = ask(**SWEEP).plan(store)
    assert made.reasons == {made.todo[0].id: "its images were incomplete (2 of 10 classes), now: all of them"}
    train(ask(only=ONE), store, data_note="")
    train(ask(**SWEEP), store)
    assert ask(**SWEEP).plan(store).todo == []
    repeated = ask(**SWEEP, rerun=True).plan(store)
    assert [cell.config.algorithm["name"] for cell in repeated.todo] == ["ccvr"] * 3, "its base was not asked for"


def test_states_on_the_way_are_asked_of_the_base_only(ask, store):
    made = train(ask(**SWEEP, save_rounds=[5], save_local_models=[2]), store)
    kept = {cell.id: store.states(cell.id) for cell in made.todo}
    base, *calibrated = kept.values()
    assert base == ["final.pt", "local-models-0002.pt", "round-0005.pt"]
    assert calibrated == [["final.pt"]] * 3
    assert ask(**SWEEP, save_rounds=[5], save_local_models=[2]).plan(store).todo == []


def test_a_post_hoc_method_that_is_evaluated_on_the_way_trains_for_itself(ask, store):
    made = ask(**SWEEP, settings=GRID["settings"] | {"evaluate_every": 2}).plan(store)
    assert len(made.todo) == 3 and made.bases == {}


def test_seeds_asked_for_earlier_stay_in_the_stored_grid(ask, store):
    train(ask(seeds=[7], only={"algorithm": ["fedavg"]}), store)
    train(ask(only={"algorithm": ["fedprox"]}), store)
    request = ask(only={"algorithm": ["fedavg"]})
    train(request, store)
    assert stored(store, request) == [
        ("digits", "fedavg", 0),
        ("digits", "fedavg", 1),
        ("digits", "fedavg", 7),
        ("digits", "fedprox", 0),
        ("digits", "fedprox", 1),
    ]
    assert "over 3 seeds (0, 1, 7)" in table(store, request)


def test_the_stored_grid_does_not_depend_on_the_order_of_requests(ask, store, tmp_path):
    train(ask(only={"algorithm": ["fedprox"]}), store)
    train(ask(only={"algorithm": ["fedavg"]}), store)
    with Store(tmp_path / "other").locked() as other:
        train(ask(), other)
        assert store.grid("mine@paper") == other.grid("mine@paper")


def test_a_grid_whose_settings_were_edited_starts_a_table_of_its_own(ask, store):
    train(ask(), store)
    request = ask(only={"algorithm": ["fedavg"]}, settings=GRID["settings"] | {"rounds": 9})
    train(request, store)
    assert stored(store, request) == [("digits", "fedavg", 0), ("digits", "fedavg", 1)]
    longer = ask(only={"seed": [2]}, axes=GRID["axes"] | {"seed": [0, 1, 2]})
    train(ask(), store)
    train(longer, store)
    assert len(stored(store, longer)) == 6, "a longer axis is the same grid"


def test_a_stored_grid_says_how_many_examples_its_runs_train_on_also_those_of_earlier_requests(ask, store):
    one, other = ask(only=ONE), ask(only={"algorithm": ["fedavg"], "seed": [1]})
    for request in (one, other):
        request.store_grid(request.plan(store), store)
    stored = store.grid(one.spec.label)
    configs = {cell["run"]: RunConfig.model_validate(cell["config"]) for cell in stored["cells"]}
    planned = {run: examples_to_train(config) for run, config in configs.items()}
    assert len(planned) == 2 and 0 not in planned.values()
    assert stored["planned_examples"] == planned


def test_a_raised_version_is_shown_once_it_has_a_result_and_mixtures_are_named(ask, store, monkeypatch):
    request = ask(only={"algorithm": ["fedavg"]})
    train(request, store, accuracy=0.5)
    monkeypatch.setattr(FedAvg, "version", FedAvg.version + 1)
    one = ask(only=ONE)
    one.store_grid(one.plan(store), store)
    assert "50.0±0.0" in table(store, request) and "Mixed" not in table(store, request), "nothing new has ended"
    train(one, store, accuracy=0.7, status="failed")
    assert "50.0±0.0" in table(store, request)
    train(one, store, accuracy=0.7)
    assert "60.0±10.0" in table(store, request)
    new = FedAvg.version
    assert f"Mixed versions: algorithm fedavg {new} (1 run), {new - 1} (1 run)." in table(store, request)
    train(request, store, accuracy=0.7)
    assert "70.0±0.0" in table(store, request) and "Mixed" not in table(store, request)


def test_a_table_of_several_engines_says_so(ask, store):
    train(ask(only=ONE), store)
    request = ask(only={"algorithm": ["fedavg"]})
    train(request, store, engine="vectorised")
    assert "Mixed versions: engine loop (1 run), vectorised (1 run)." in table(store, request)


def test_each_size_of_images_on_an_axis_is_checked_as_it_is(ask, store):
    axes = {"dataset": ["digits"], "partition": ["label-2"], "algorithm": ["fedavg"], "image_size": [20, None]}
    report = {"rows": ["image_size"]}
    request = ask(axes=axes, settings=GRID["settings"] | {"model": "simple-cnn"}, report=report)
    with pytest.raises(ConfigError, match="needs images of at least 16x16 pixels, but got 8x8"):
        request.plan(store)
    todo = request.but(overrides={"image_size": 20}).plan(store).todo
    assert [cell.config.image_size for cell in todo] == [20]
    assert len({cell.id for cell in ask(axes=axes, report=report).plan(store).todo}) == 2


def test_models_that_the_vectorised_engine_cannot_run_are_named_before_anything_is_trained(ask, store, monkeypatch):
    monkeypatch.setattr(resized, "load", lambda *wanted: _images(10, 100, ""))
    axes = GRID["axes"] | {"dataset": ["svhn"], "model": ["mlp", "simple-cnn-concat5", "vgg9", "resnet50"]}
    request = ask(axes=axes, settings={"clients": 10, "rounds": 2}, report={"rows": ["model"]})
    for engine in ("auto", "loop"):
        assert len(request.but(engine=engine).plan(store).todo) == 16
    vectorised = request.but(engine="vectorised")
    with pytest.raises(ConfigError) as told:
        vectorised.plan(store)
    assert told.value.mistakes == [
        "The vectorised engine cannot run vgg9, which draws dropout masks from one generator per client; use the engine loop "
        "or auto, or leave the cells of vgg9 out.",
        "The vectorised engine cannot run resnet50, which normalises by batch statistics, which padding rows would enter; use "
        "the engine loop or auto, or leave the cells of resnet50 out.",
    ]
    assert len(vectorised.but(only={"model": ["mlp", "simple-cnn-concat5"]}).plan(store).todo) == 8


@pytest.fixture
def without_svhn(ask):
    return lambda **more: ask(axes=GRID["axes"] | {"dataset": ["svhn", "digits"]}, **more)


def test_a_substitute_adds_no_rows_that_were_not_asked_for(without_svhn, store):
    request = without_svhn(only={"dataset": ["svhn"]}, substitutes={"svhn": "digits"})
    train(request, store)
    assert {dataset for dataset, *_ in stored(store, request)} == {"svhn"}
    assert "on Digits" in table(store, request)


def test_cells_without_images_take_the_place_of_nothing_that_was_measured(without_svhn, store):
    substituted = without_svhn(only={"dataset": ["svhn"]}, substitutes={"svhn": "digits"})
    train(substituted, store)
    request = without_svhn()
    train(request, store)
    assert "on Digits" in table(store, request)
    fresh = without_svhn(overrides={"rounds": 3})
    train(fresh, store)
    assert "no data: SVHN" in table(store, fresh)


def test_cells_of_natural_have_the_writers_that_are_there(ask, store, tmp_path):
    axes = GRID["axes"] | {"dataset": ["femnist", "digits"], "partition": ["iid"], "seed": [0]}
    conditions = [{"when": {"dataset": "femnist"}, "set": {"partition": "natural", "clients": None}}]
    request = ask(axes=axes, conditions=conditions)
    absent = {cell.dataset: (cell.config.clients, cell.missing) for cell in request.plan(store).cells}
    assert absent == {"femnist": (180, "no data: femnist"), "digits": (10, None)}
    write_femnist(tmp_path)
    assert {cell.dataset: cell.config.clients for cell in request.plan(store).todo} == {"femnist": 4, "digits": 10}


def _images(classes: int, each: int, note: str) -> Dataset:
    labels = np.arange(classes).repeat(each)
    split = Split(np.zeros((len(labels), 3, 32, 32), np.uint8), labels)
    return Dataset("svhn", split, split, tuple(map(str, range(classes))), "test", "test", "0badcafe", note)


@pytest.fixture
def svhn(monkeypatch):
    """Makes svhn what a test says: a Dataset, or None for missing."""
    found = {}

    def load(name, transform, data_dir, image_size):
        if name == "svhn" and found.get(name) is None:
            raise MissingData("No svhn.")
        return found[name] if name in found else datasets.load(name, None)

    monkeypatch.setattr(resized, "load", load)
    return lambda dataset: found.update(svhn=dataset)


def test_incomplete_data_decide_what_is_possible_and_are_played_again_when_more_is_there(ask, store, svhn):
    request = ask(axes=GRID["axes"] | {"dataset": ["svhn"]}, only=ONE, overrides={"clients": 4})
    svhn(_images(10, 30, ""))
    with pytest.raises(ConfigError, match="hold all 10 classes"):
        request.plan(store)
    svhn(_images(5, 30, "5 of 10 classes"))
    (cell,) = train(request, store, data_note="5 of 10 classes").todo
    assert request.plan(store).todo == []
    svhn(_images(5, 40, "5 of 10 classes, 200 training images"))
    assert request.plan(store).reasons == {
        cell.id: "its images were incomplete (5 of 10 classes), now: 5 of 10 classes, 200 training images"
    }
    svhn(None)
    with pytest.raises(datasets.DataError, match="No svhn"):
        request.plan(store)


def test_a_papers_grid_shows_its_table_even_if_none_of_its_images_are_there(ask, store, svhn):
    svhn(None)
    mirrored = {"reproduces": {"paper": "fedconcat", "table": 13}}
    request = ask(axes=GRID["axes"] | {"dataset": ["svhn"]}, overrides={"clients": 10}, **mirrored)
    made = request.plan(store)
    assert made.todo == [] and request.images().none_found == "No svhn."
    assert {cell.missing for cell in made.selected} == {"no data: svhn"}


@pytest.fixture
def from_weights(ask, svhn):
    """A grid of a ResNet-18 with random weights and with those of w.pth."""
    svhn(_images(10, 30, ""))
    axes = {
        "dataset": ["svhn"],
        "partition": ["iid"],
        "weights": ["none", "w.pth"],
        "algorithm": ["fedavg"],
        "seed": [0],
    }
    report = {"rows": ["dataset", "weights"], "columns": "algorithm"}
    return lambda **more: ask(axes=axes, settings=GRID["settings"] | {"model": "resnet18"}, report=report, **more)


def test_cells_whose_weights_are_absent_say_so_and_are_played_when_they_are_there(from_weights, store, tmp_path):
    request = from_weights()
    made = train(request, store)
    assert {cell.config.weights: cell.missing for cell in made.cells} == {"none": None, "w.pth": "no data: w.pth"}
    assert [cell.config.weights for cell in made.todo] == ["none"]
    shown = re.sub(" +", " ", table(store, request))
    assert "| SVHN | none | 50.0 |" in shown and "| SVHN | w.pth | no data: w.pth |" in shown
    assert (
        request.images()
        .absent_weights["w.pth"]
        .startswith(f"No weights in {tmp_path / 'w.pth'}: expected torchvision's")
    )
    write_weights(tmp_path / "w.pth")
    assert [cell.config.weights for cell in request.plan(store).todo] == ["w.pth"]
    train(request, store, weights={"w.pth": "0badcafe" * 8})
    (line,) = kept_of_other_files(request.plan(store), request.images(), store)
    assert re.search(r" used another w.pth \(digest 0badcafe\) than the one that is here \([0-9a-f]{8}\); ", line)
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="w.pth lack 101 names, such as 'bn1.weight': expected"):
        request.plan(store)


def test_where_all_cells_lack_their_weights_only_a_papers_grid_shows_its_table(from_weights, store):
    alone = {"only": {"weights": ["w.pth"]}}
    with pytest.raises(datasets.DataError, match="No weights in .*w.pth"):
        from_weights(**alone).plan(store)
    made = from_weights(**alone, reproduces={"paper": "fedconcat", "table": 13}).plan(store)
    assert [cell.missing for cell in made.selected] == ["no data: w.pth"] and made.todo == []


def test_real_images_replace_a_substitute_whatever_the_seed(without_svhn, store, svhn):
    train(without_svhn(only={"dataset": ["svhn"]}, substitutes={"svhn": "digits"}), store, accuracy=0.9)
    svhn(_images(10, 30, ""))
    request = without_svhn(only={"dataset": ["svhn"], **ONE})
    train(request, store, accuracy=0.5)
    cells = store.grid(request.label)["cells"]
    assert [(cell["algorithm"], cell["seed"], cell["substitute"]) for cell in cells] == [
        ("fedavg", 0, None),
        ("fedprox", 0, "digits"),
        ("fedprox", 1, "digits"),
    ]


def test_a_grid_keeps_the_name_that_earlier_versions_gave_it(ask, store):
    request = ask()
    train(request, store)
    own = replace(request.spec, budget="full")
    assert (own.label, as_stored(own, store).label, as_stored(own, store).budget_label) == (
        "mine@full",
        "mine@paper",
        "paper",
    )
    assert as_stored(replace(own, overrides={"lr": 0.5}), store).label == "mine@full+lr=0.5"
    train(replace(request, spec=as_stored(own, store)), store)
    assert list(store.grids()) == ["mine@paper"]


def test_a_budget_of_ones_own_that_is_called_full_is_not_the_whole_grid_of_earlier_versions(ask, store):
    train(ask(), store)
    own = replace(ask(budgets={"full": {"settings": {"lr": 0.7}}}).spec, budget="")
    assert (own.budget, as_stored(own, store).label) == ("full", "mine@full")
    of_a_paper = load_grid("paper_table1").model_copy(update={"budgets": own.grid.budgets})
    assert of_a_paper.usual_budget == "paper"


def test_another_grid_of_the_same_name_is_refused(ask, store):
    train(ask(only=ONE), store)
    moved = ask(folder="b", only=ONE)
    assert moved.plan(store).todo == [], "the same grid in another folder is the same grid"
    other = ask(folder="b", only=ONE, settings=GRID["settings"] | {"rounds": 9})
    with pytest.raises(ConfigError, match="another grid called mine .*a/mine.yaml.*rename the file"):
        other.plan(store)
    ask(only=ONE, settings=GRID["settings"] | {"rounds": 9}).plan(store)


def test_axes_that_the_report_does_not_show_are_refused_before_anything_runs(ask, store):
    hidden = GRID["axes"] | {"lr": [0.1, 0.2]}
    with pytest.raises(ConfigError, match="several runs of one seed for .*name the axis in which they differ"):
        ask(axes=hidden).plan(store)
    assert len(ask(axes=hidden, report={"rows": ["lr"]}).plan(store).todo) == 8


def test_many_settings_on_the_command_line_still_make_names_of_files(ask, store):
    numbers = ("lr", "momentum", "weight_decay", "participation")
    counts = ("clients", "rounds", "local_epochs", "batch_size", "evaluate_every", "train_examples", "test_examples")
    overrides = dict.fromkeys(numbers, 0.1234567890123456) | dict.fromkeys(counts, 100)
    request = ask(only=ONE, overrides=overrides | {"transform": "none", "last_batch": "drop-if-full"})
    train(request, store)
    paths = api.GridReport(store.folder, *request.label.split("@")).write(formats=("md", "csv"))
    assert all(path.exists() and len(path.name) < 120 for path in paths.values())
    assert store.grid(request.label)["overrides"]["lr"] == 0.1234567890123456


def test_a_report_replaces_the_earlier_one_in_one_step(ask, store, monkeypatch):
    request = ask(only=ONE)
    train(request, store)
    path = api.GridReport(store.folder, *request.label.split("@")).write(formats=("md", "csv"))["md"]
    before = path.read_text()
    monkeypatch.setattr("bench.results.store.os.fsync", lambda file: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        api.GridReport(store.folder, *request.label.split("@")).write(value="last")
    assert path.read_text() == before


def test_runs_with_which_others_are_compared_are_played_where_only_leaves_them_out(ask, store):
    layout = {"metric": "ipr", "reference": {"algorithm": "local"}}
    changes = {
        "report": layout,
        "axes": GRID["axes"] | {"algorithm": ["local", "fedavg", "fedprox"], "partition": ["label-2", "label-3"]},
    }
    asked = ask(only={"algorithm": ["fedavg"], "partition": ["label-2"]}, seeds=[1], **changes)
    plan = asked.plan(store)
    assert [(cell.setting("algorithm"), cell.config.partition, cell.config.seed) for cell in plan.selected] == [
        ("local", "label-2", 1),
        ("fedavg", "label-2", 1),
    ]
    assert {cell.id for cell in plan.todo} == {cell.id for cell in plan.selected}
    asked.store_grid(plan, store)
    assert [cell["algorithm"] for cell in store.grid("mine@paper")["cells"]] == ["local", "fedavg"], (
        "the report reads it"
    )
    without = ask(only={"algorithm": ["fedavg"]}, **(changes | {"report": {}})).plan(store)
    assert {cell.setting("algorithm") for cell in without.selected} == {"fedavg"}


def test_only_selected_cells_and_their_references_have_to_fit(ask, store):
    changes = {
        "axes": GRID["axes"] | {"algorithm": ["local", "fedavg", "ditto"], "wrapper": ["none"]},
        "conditions": [{"when": {"algorithm": "local"}, "set": {"wrapper": "none"}}],
        "report": {"metric": "ipr", "rows": ["wrapper"], "reference": {"algorithm": "local", "wrapper": "none"}},
    }
    around = {"overrides": {"wrapper": "ccvr"}}
    plan = ask(only={"algorithm": ["fedavg"]}, seeds=[1], **around, **changes).plan(store)
    chosen = [(cell.setting("algorithm"), cell.wrapper, cell.config.seed) for cell in plan.selected]
    assert chosen == [("local", "none", 1), ("fedavg", "ccvr", 1)]
    with pytest.raises(ConfigError, match="ditto"):
        ask(only={"algorithm": ["ditto"]}, **around, **changes).plan(store)
    with pytest.raises(ConfigError, match="No cell has algorithm=dito. Did you mean 'ditto'?"):
        ask(only={"algorithm": ["dito"]}, **around, **changes).plan(store)
    with pytest.raises(ConfigError, match=r"algorithm=ccvr\. Did you mean wrapper=ccvr\? The cells have: local,"):
        ask(only={"algorithm": ["ccvr"]}, **around, **changes).plan(store)
    of_all = {"report": {"metric": "ipr", "reference": {"algorithm": "local"}}, "conditions": []}
    with pytest.raises(ConfigError, match="local"):
        ask(only={"algorithm": ["fedavg"]}, **around, **(changes | of_all)).plan(store)
    with pytest.raises(ConfigError, match="Unknown setting 'lrr'"):
        ask(only={"algorithm": ["fedavg"]}, overrides={"wrapper": "ccvr", "lrr": 1}, **changes).plan(store)
    misspelt = {"settings": GRID["settings"] | {"lrr": 1}}  # so that there is no cell at all
    with pytest.raises(ConfigError, match="settings: Unknown setting 'lrr'"):
        ask(only={"algorithm": ["fedavg"]}, **around, **(changes | misspelt)).plan(store)


def test_only_selected_cells_have_to_fit_their_images(ask, store):
    axes = GRID["axes"] | {"partition": ["label-2", "label-11"]}
    fitting = ask(only={"partition": ["label-2"]}, axes=axes)
    assert {cell.config.partition for cell in fitting.plan(store).todo} == {"label-2"}
    with pytest.raises(ConfigError, match="label-11"):
        ask(only={"partition": ["label-11"]}, axes=axes).plan(store)


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        ({"metric": "ipr"}, "ipr compare runs with others: name these by reference, as {algorithm: local}."),
        ({"metric": "isr"}, "Unknown metric 'isr'. Did you mean 'ipr'?"),
        ({"metrics": ["accuracy", "accuracy"]}, "metrics of the report names accuracy more than once."),
        (
            {"metrics": ["own_accuracy", "rsd"], "metric": "accuracy"},
            "metric of the report is the first of metrics, own_accuracy, but got accuracy; name that one.",
        ),
        (
            {"metric": "rsd", "rounds_shown": "best", "reference": {"algorithm": "fedavg"}},
            "rsd are known of the last round only: rounds_shown must be last, but got best.",
        ),
        (
            {"metric": "ipr", "reference": {"algorithm": "local"}},
            "reference names algorithm=local, but the axis has fedavg, fedprox.",
        ),
        ({"metric": "ipr", "reference": {"lr": 0.1}}, "Unknown row or column of reference 'lr'."),
        (
            {"metrics": ["own_accuracy"], "reference": {"algorithm": "fedavg"}},
            "reference is for metrics that compare runs with it, but the report shows own_accuracy; add ipr or rsd to metrics, "
            "or leave reference out.",
        ),
        (
            {"metrics": ["accuracy"], "measured": {"kind": "dataset-sizes"}},
            "The report is measured and names metrics (accuracy); leave one of them out.",
        ),
        ({"compared": ["seed"]}, "Unknown row or column in compared 'seed'."),
        (
            {"compared": ["dataset", "partition", "algorithm"]},
            "compared names all rows and columns, but contests differ in at least one of them.",
        ),
    ],
)
def test_reports_that_cannot_be_are_refused_before_anything_is_trained(ask, report, sentence):
    with pytest.raises(ConfigError) as error:
        ask(report=report)
    assert sentence in str(error.value)


def test_files_are_not_complete_without_the_weights_that_cells_name():
    assert Images({}, {}, {}, {}).are_complete and not Images({}, {}, {}, {"w.pth": "get it"}).are_complete
