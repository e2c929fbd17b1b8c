"""Figures about features: similarity of clients, norms of classifiers, embeddings, and gains over separability."""

import json
import subprocess
import sys

import numpy as np
import pytest

from bench.measurements.specs import figure_of
from bench.results.store import Store
from reports import api
from reports.figures import heatmaps, lines

ROUNDS = 15
CKA = {"kind": "cka", "show": "layers", "layers": [], "estimator": "linear", "round": "last"}
NORMS = {"kind": "weight-norms", "rounds": [1, 50, "last"]}
EMBEDDING = {"kind": "embedding", "points": 100}
SEPARABILITY = {"kind": "separability", "relative": False}
CLASSES = ["cat", "dog", "owl"]


@pytest.fixture
def measured(store):
    """Like `store.add`, for runs of ROUNDS rounds, with probes (name -> a result per seed) and diagnostics (one per seed)."""

    def add(
        row: str, algorithm: str, scores: list, *, probes=None, diagnostics=None, wrapper="none", base=None, **options
    ):
        first = len(store.cells)
        config = {"rounds": ROUNDS} | ({"algorithm": {"name": wrapper, "base": {"name": base}}} if base else {})
        store.add(row, algorithm, scores, config=config, wrapper=wrapper, **options)
        for number, cell in enumerate(store.cells[first:]):
            folder = store.folder / "runs" / cell["run"]
            for name, results in (probes or {}).items():
                content = {"version": 1, "result": {"classes": CLASSES, **results[number]}}
                (folder / f"probe-{name}.json").write_text(json.dumps(content))
            more = ({"diagnostics": diagnostics[number]} if diagnostics else {}) | (
                {"base_summary": {}} if base else {}
            )
            record = json.loads((folder / "record.json").read_text())
            (folder / "record.json").write_text(json.dumps(record | more))

    return add


def stored(store) -> tuple[dict, dict, Store]:
    """The grid, its records, and the store."""
    found = Store(store.save())
    grid = found.grid("small_table@paper")
    records = {cell["run"]: found.record(cell["run"]) for cell in grid["cells"]}
    return grid, {run: record for run, record in records.items() if record}, found


def similar(*pairs: float, layer: str = "conv1") -> dict:
    """Similarities of three clients: of 0 and 1, 0 and 2, 1 and 2."""
    a, b, c = pairs
    return {
        "clients": [4, 5, 9],
        "cohort": 3,
        "layers": {layer: [[1, a, b], [a, 1, c], [b, c, 1]], "classifier": [[1.0] * 3] * 3},
    }


def test_similarity_by_layer_is_the_mean_over_pairs_and_then_over_seeds(store, measured):
    probes = {f"cka-linear-{ROUNDS:04d}": [similar(0.1, 0.2, 0.3), similar(0.5, 0.6, 0.7)]}
    measured("cifar10 dir-0.1", "fedavg", [0.5, 0.6], probes=probes)
    found = figure_of(CKA).collect(*stored(store))["accuracy"]
    lines = found.points[["line", "x", "mean"]].values.tolist()
    assert [(line, x, pytest.approx(mean)) for line, x, mean in lines] == [
        ("fedavg", "conv1", pytest.approx(0.4)),
        ("fedavg", "classifier", pytest.approx(1.0)),
    ]
    assert found.points["std"].tolist() == pytest.approx([0.2, 0])
    assert found.y_label.startswith("Linear CKA")
    (drawn,) = figure_of(CKA).drawings(*stored(store)).values()
    assert [text.get_text() for text in drawn.axes[0].get_xticklabels()] == ["conv1", "classifier"]


def test_similarity_is_said_to_be_over_the_seeds_and_clients_that_it_is_over(store, measured):
    probes = {f"cka-linear-{ROUNDS:04d}": [similar(0.1, 0.2, 0.3) | {"cohort": 20}] * 3}
    measured("cifar10 dir-0.1", "fedavg", [0.5, 0.6, 0.7], probes=probes)
    (store.folder / "runs" / store.cells[2]["run"] / f"probe-cka-linear-{ROUNDS:04d}.json").unlink()
    found = figure_of(CKA).collect(*stored(store))["accuracy"]
    assert found.seeds == 2
    assert found.caveats == {"CIFAR-10, Dir(0.1)": ["FedAvg: 2/3 seeds", "FedAvg: the first 3 of 20 clients"]}


def test_a_cohort_of_one_client_has_no_similarity(store, measured):
    alone = {"clients": [4], "cohort": 1, "layers": {"conv1": [[1.0]]}}
    measured("cifar10 dir-0.1", "fedavg", [0.5], probes={f"cka-linear-{ROUNDS:04d}": [alone]})
    assert not figure_of(CKA).collect(*stored(store))


def test_the_two_estimators_are_numbers_of_their_own(store, measured):
    measured("cifar10 dir-0.1", "fedavg", [0.5], probes={f"cka-linear-{ROUNDS:04d}": [similar(0.1, 0.2, 0.3)]})
    assert not figure_of(CKA | {"estimator": "minibatch"}).collect(*stored(store))
    assert figure_of(CKA | {"estimator": "minibatch"}).name == "cka-minibatch-layers"
    assert figure_of(CKA | {"round": 3, "show": "clients"}).name == "cka-linear-clients-round-3"


def test_similarity_of_clients_is_shown_for_the_layers_that_are_named(store, measured):
    measured("cifar10 dir-0.1", "fedavg", [0.5], probes={f"cka-linear-{ROUNDS:04d}": [similar(0.1, 0.2, None)]})
    figure = CKA | {"show": "clients", "layers": ["classifier", "conv1", "conv9"]}
    ((classifier, conv1),) = figure_of(figure).collect(*stored(store))
    assert (conv1.title, classifier.title) == (
        "conv1",
        "classifier",
    ) and conv1.run == "CIFAR-10, Dir(0.1), FedAvg, seed 0"
    np.testing.assert_array_equal(conv1.values, [[1, 0.1, 0.2], [0.1, 1, np.nan], [0.2, np.nan, 1]])
    assert conv1.rows == conv1.columns == [4, 5, 9] and conv1.scale == "Linear CKA"
    drawn = heatmaps.draw([[classifier, conv1]])
    images = [axes.images[0] for axes in drawn.axes[:2]]
    assert images[0].get_clim() == images[1].get_clim() == (0.1, 1), "panels of one scale share their colours"


def test_norms_stand_beside_the_examples_for_the_rounds_that_a_run_has(store, measured):
    def norms(scale: float) -> dict:
        counts = [[5, 2, 1], [3, 7, 1]]  # their scale begins at 0 all the same
        return {"clients": [0, 1], "label_counts": counts, "norms": [[scale, 1, 2], [1, 1, 1]]}

    probes = {"weight-norms-0001": [norms(3)], f"weight-norms-{ROUNDS:04d}": [norms(9)]}
    measured("cifar10 dir-0.1", "fedavg", [0.5], probes=probes)
    ((counts, early, late),) = figure_of(NORMS).collect(*stored(store))
    assert counts.values[1, 1] == 7 and (early.values[0, 0], late.values[0, 0]) == (3, 9)
    assert early.title.endswith("round 1") and late.title.endswith(f"round {ROUNDS}")
    drawn = heatmaps.draw([[counts, early, late]])
    limits = [axes.images[0].get_clim() for axes in drawn.axes[:3]]
    assert limits == [(0, 7), (1, 9), (1, 9)]


def test_an_embedding_says_how_much_is_right_before_and_after(store, measured):
    points = {"points": [[0, 0], [1, 1], [2, 0], [3, 3]], "labels": [0, 1, 2, 2]}
    result = points | {"before": [0, 0, 0, 0], "after": [0, 1, 2, 0]}
    measured("cifar10 dir-0.1", "fedavg", [0.5], wrapper="ccvr", base="fedavg", probes={"embedding-100": [result]})
    found = figure_of(EMBEDDING).collect(*stored(store))
    drawn = figure_of(EMBEDDING).draw(found)
    titles = [axes.get_title() for axes in drawn.axes]
    assert titles == ["t-SNE, by label", "predicted before: 25.0% right", "predicted after: 75.0% right"]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == CLASSES
    assert drawn.axes[0].get_ylabel() == "CIFAR-10, Dir(0.1), FedAvg, seed 0"


@pytest.mark.parametrize(
    ("described", "name", "result", "said"),
    [
        (
            EMBEDDING,
            "embedding-100",
            {"points": [[0, 0]], "labels": [3], "before": [0], "after": [0]},
            "labels is not a known class for each point",
        ),
        *(
            (
                EMBEDDING,
                "embedding-100",
                {"points": [[0, 0]], "labels": [0], "before": [0], "after": [0]} | {view: wrong},
                f"{view} is not a known class for each point",
            )
            for view in ("labels", "before", "after")
            for wrong in ([], [0, 1], [-1])
        ),
        (
            EMBEDDING,
            "embedding-100",
            {"points": [[0]], "labels": [0], "before": [0], "after": [0]},
            "a point does not have two coordinates",
        ),
        (
            NORMS | {"rounds": [1]},
            "weight-norms-0001",
            {"clients": [0], "label_counts": [[5, 2, 1]], "norms": []},
            "norms does not have a row of equal length for each client",
        ),
    ],
)
def test_a_result_whose_parts_do_not_fit_each_other_counts_as_damaged(store, measured, described, name, result, said):
    measured("cifar10 dir-0.1", "fedavg", [0.5], wrapper="ccvr", base="fedavg", probes={name: [result]})
    grid, records, found = stored(store)
    assert not figure_of(described).collect(grid, records, found)
    assert [what for what in found.damaged.values()] == [f"does not hold what it should: {said}"]


def test_a_figure_is_laid_out_once_for_all_formats_and_reads_no_record_that_the_report_has_read(
    store, measured, monkeypatch
):
    result = {"clients": [0], "label_counts": [[5, 2, 1]], "norms": [[1, 2, 3]]}
    measured("cifar10 dir-0.1", "fedavg", [0.5], probes={f"weight-norms-{ROUNDS:04d}": [result]})
    store.report |= {"figures": [NORMS | {"rounds": ["last"]}]}
    read, fitted = [], []
    folder = Store(store.save())
    for owner, name, calls in ((Store, "_record_in", read), (lines, "_fit_titles", fitted)):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, real=real, calls=calls: calls.append(given) or real(*given))
    report = api.GridReport(folder, "small_table", "paper")
    report.write(formats=("md",))
    before = len(read)
    paths, _ = report.write_figures()
    assert len(paths) == 3 and len(fitted) == 1 and before and len(read) == before


@pytest.mark.parametrize("relative", [False, True])
def test_gains_are_against_the_run_that_was_calibrated(store, measured, relative):
    distances = [{"sliced_wasserstein": value, "relative_sliced_wasserstein": value / 10} for value in (1.0, 2.0, 3.0)]
    for algorithm, shift in (("fedavg", 0), ("moon", 0.1)):
        scores = [0.3 + shift, 0.4, 0.5]
        measured("cifar10 dir-0.1", algorithm, scores)
        options = {"base": algorithm, "diagnostics": distances}
        measured("cifar10 dir-0.1", algorithm, [0.32 + shift, 0.44, 0.56], wrapper="ccvr", **options)
        measured("cifar10 dir-0.1", algorithm, [score + 0.1 for score in scores], wrapper="oracle", base=algorithm)
    store.report = {"rows": ["dataset", "partition", "algorithm"], "columns": "wrapper", "metric": "accuracy"}
    found = figure_of(SEPARABILITY | {"relative": relative}).collect(*stored(store))["accuracy"]
    points = found.points
    ccvr = points[points["panel"].str.contains("CCVR")]
    assert set(ccvr["panel"]) == {"CIFAR-10, Dir(0.1): + CCVR\n(correlation 1.00 over 6 runs)"}
    of_moon = ccvr[ccvr["line"] == "moon"]
    assert of_moon["mean"].tolist() == pytest.approx([2, 4, 6])
    assert of_moon["x"].tolist() == pytest.approx([0.1, 0.2, 0.3] if relative else [1, 2, 3])
    oracle = points[points["panel"].str.contains("Oracle")]
    assert oracle["mean"].tolist() == pytest.approx([10] * 6) and oracle["x"].tolist() == ccvr["x"].tolist()


def test_gains_on_a_dataset_that_stands_in_are_shown_under_its_name_and_of_the_value_that_is_asked_for(store, measured):
    for dataset in ("svhn", "mnist"):
        measured(f"{dataset} dir-0.1", "fedavg", [0.3], substitute="digits")
        diagnostics = [{"sliced_wasserstein": 1.0}]
        measured(
            f"{dataset} dir-0.1",
            "fedavg",
            [0.4],
            wrapper="ccvr",
            base="fedavg",
            diagnostics=diagnostics,
            substitute="digits",
        )
    measured("svhn dir-0.1", "ditto", [0.4], personal=True)
    measured("svhn dir-0.1", "fedavg", [0.9], wrapper="clsnorm", base="fedavg")
    path = store.folder / "runs" / store.cells[-1]["run"] / "record.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "base_summary"}))
    store.report = {"rows": ["dataset", "partition", "algorithm"], "columns": "wrapper", "metric": "accuracy"}
    found = figure_of(SEPARABILITY).collect(*stored(store))["accuracy"].points
    assert found["panel"].tolist() == [f"{name}, Dir(0.1) (on Digits): + CCVR" for name in ("MNIST", "SVHN")]
    assert found["mean"].tolist() == pytest.approx([10, 10])


def test_a_run_without_its_base_or_without_a_distance_is_no_point(store, measured):
    measured(
        "cifar10 dir-0.1", "fedavg", [0.4], wrapper="ccvr", base="fedavg", diagnostics=[{"sliced_wasserstein": 1.0}]
    )
    measured("cifar10 dir-0.5", "fedavg", [0.4])
    measured("cifar10 dir-0.5", "fedavg", [0.5], wrapper="oracle", base="fedavg")
    store.report = {"rows": ["dataset", "partition", "algorithm"], "columns": "wrapper", "metric": "accuracy"}
    assert not figure_of(SEPARABILITY).collect(*stored(store))


def test_a_wrapper_without_the_accuracy_of_the_shared_model_is_no_point(store, measured):
    distances = {"base": "fedavg", "diagnostics": [{"sliced_wasserstein": 1.0}]}
    measured("cifar10 dir-0.1", "fedavg", [0.4])
    measured("cifar10 dir-0.1", "fedavg", [0.5], wrapper="ccvr", **distances)
    measured("cifar10 dir-0.1", "fedavg", [0.6], wrapper="finetune", personal=True, **distances)
    store.report = {"rows": ["dataset", "partition", "wrapper"], "columns": "algorithm", "metric": "accuracy"}
    found = figure_of(SEPARABILITY).collect(*stored(store))["accuracy"].points
    assert found["mean"].tolist() == pytest.approx([10]) and "CCVR" in found["panel"].iloc[0]


@pytest.mark.slow
def test_a_report_draws_them_from_stored_numbers_and_says_what_is_not_there(store, measured):
    measured("cifar10 dir-0.1", "fedavg", [0.5], probes={f"cka-linear-{ROUNDS:04d}": [similar(0.1, 0.2, 0.3)]})
    store.report |= {"figures": [CKA, CKA | {"show": "clients"}, NORMS, EMBEDDING, SEPARABILITY]}
    command = [
        sys.executable,
        "-c",
        "import sys; from reports import api; print(api.GridReport(*sys.argv[1:]).write_figures()); print(*sys.modules)",
    ]
    output = subprocess.run([*command, str(store.save()), "small_table", "paper"], capture_output=True, text=True)
    assert "'torch'" not in output.stdout and " torch " not in output.stdout and not output.stderr
    names = sorted(path.name for path in (store.folder / "reports").iterdir())
    assert names == [
        f"small_table@paper-cka-linear-{kind}.{of}" for kind in ("clients", "layers") for of in ("pdf", "png", "svg")
    ]
    _, sentences = store.grid_report().write_figures()
    assert [line.split(" of ")[0] for line in sentences] == [
        f"Nothing to draw yet for {name}" for name in ("weight-norms", "embedding", "separability")
    ]
