"""A kind of figures in one file of a lab's folder: that of the manual, from its grid to its picture, and what can be wrong."""

import re

import pytest
import torch

from bench import plugins, registry
from bench.cli.listing import listing
from bench.errors import ConfigError, HookError
from bench.execution import scheduler
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.measurements.specs import REGISTRY, figure_of
from bench.results.store import Store
from bench.results.written import code_digest
from tests.support import manual, method_files
from tests.support.alone import run_jobs_alone
from tests.support.processes import call_bench

(DRIFT,) = (block.text for block in manual.blocks("python") if block.page.stem == "own-figure")
PROBES = "return [Probe(self.kind, number) for number in rounds_of(self.rounds, rounds)]"
GRID = manual.named_files()["drift.yaml"]
REACHED = "{name: stop-early, metric: loss, less_is_better: true, target: 2.28}"  # in the second round


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Commands in this process, without Ray, in a folder with the grid of the manual; returns exit code and output."""
    (tmp_path / "drift.yaml").write_text(GRID)
    monkeypatch.setattr("reports.figures.lines.FORMATS", ("svg",))
    monkeypatch.setattr(scheduler, "run_jobs", run_jobs_alone)

    def bench(*words: str) -> tuple[int, str]:
        code_digest.cache_clear()  # as in a process of its own
        code, text = call_bench(*words, "--results-dir", tmp_path / "results")
        return code, re.sub(r"\s+", " ", text)

    return bench


def use(tmp_path, monkeypatch, text: str = DRIFT) -> None:
    method_files.use(tmp_path / "mylab", monkeypatch, {"figures/drift.py": text})


@pytest.mark.slow
def test_a_kind_in_one_file_is_measured_and_drawn(bench, tmp_path, monkeypatch):
    use(tmp_path, monkeypatch)
    assert registry.held_by(tmp_path / "mylab") == ["1 figure"]
    assert dict(listing("figures"))["drift"].startswith("Distance of each client's model")
    code, text = bench("run", "--grid", str(tmp_path / "drift.yaml"))
    assert code == 0 and "drift-0001 of digits iid" in text and "not measured" not in text
    picture = tmp_path / "results" / "reports" / "drift@full-drift.svg"
    shown = picture.read_text()
    assert "label-2" not in shown and "Distance from the mean model" in shown and shown.count("Clients") == 4
    store = Store(tmp_path / "results")
    for cell in store.grid("drift@full")["cells"]:
        assert store.states(cell["run"]) == ["final.pt", "local-models-0001.pt", "local-models-0003.pt"]
        models = torch.load(store.run_folder(cell["run"]) / "local-models-0003.pt", weights_only=True)["params"]
        flat = torch.cat([leaf.flatten(1) for leaf in models.values()], 1)
        found = store.probe(cell["run"], "drift-0003")
        assert found["version"] == 1 and len(found["result"]["distances"]) == 20
        assert found["result"]["distances"][7] == pytest.approx((flat[7] - flat.mean(0)).norm().item(), rel=1e-5)
    assert "drift-0001" not in bench("run", "--grid", str(tmp_path / "drift.yaml"))[1], "it is measured once"


@pytest.mark.slow
def test_the_last_round_of_a_run_that_a_callback_has_ended_is_the_last_that_it_has(bench, tmp_path, monkeypatch):
    use(tmp_path, monkeypatch)
    falls = f"callbacks: [{REACHED}]"
    (tmp_path / "drift.yaml").write_text(GRID.replace("rounds: 3}", f"rounds: 3, {falls}}}"))
    code, text = bench("run", "--grid", str(tmp_path / "drift.yaml"))
    assert (
        code == 0
        and "drift-0002 of digits iid" in text
        and "not measured" not in text
        and "Nothing to draw" not in text
    )
    assert "round 2" in (tmp_path / "results" / "reports" / "drift@full-drift.svg").read_text().replace("\n", " ")
    store = Store(tmp_path / "results")
    for cell in store.grid("drift@full")["cells"]:
        assert store.states(cell["run"]) == ["final.pt", "local-models-0001.pt", "local-models-0002.pt"]
    assert "2 finished, 0 to run" in bench("run", "--grid", str(tmp_path / "drift.yaml"), "--dry-run")[1]


@pytest.mark.slow
def test_what_cannot_say_what_it_needs_of_a_run_that_has_ended_early_costs_itself_alone(bench, tmp_path, monkeypatch):
    use(tmp_path, monkeypatch, DRIFT.replace(PROBES, f"assert rounds == 3\n        {PROBES}"))
    falls = f"callbacks: [{REACHED}]"
    (tmp_path / "drift.yaml").write_text(GRID.replace("rounds: 3}", f"rounds: 3, {falls}}}"))
    code, text = bench("run", "--grid", str(tmp_path / "drift.yaml"))
    assert code == 0 and "not measured: Drift in mylab/figures/drift.py failed in line 18: AssertionError" in text


@pytest.mark.slow
def test_what_fails_in_it_costs_it_alone(bench, tmp_path, monkeypatch):
    wrong = DRIFT.replace("return {", "result = probe.round > 1 or troch\n        _ = {")
    use(tmp_path, monkeypatch, wrong)
    text = bench("run", "--grid", str(tmp_path / "drift.yaml"))[1]
    assert f"not measured: Drift in mylab/figures/drift.py failed in line {line_of('return {')}: NameError" in text
    place = f"measure in mylab/figures/drift.py, line {line_of('def measure')}"
    assert f"not measured: {place}, returned None, but a dict is expected; write return {{name: numbers}}." in text
    wrong = DRIFT.replace("axes.hist(distances)", "axes.hist(distance)").replace('"distances": (', '"distance": (')
    use(tmp_path, monkeypatch, wrong)
    (tmp_path / "drift.yaml").write_text(GRID + "    - {kind: curves, x: rounds}\n")
    code, text = bench("run", "--grid", str(tmp_path / "drift.yaml"))
    assert code == 0
    place = f"measure in mylab/figures/drift.py, line {line_of('def measure')}"
    said = f"{place}, returned distance, but the shape of drift says: result.distances is missing."
    assert text.count("not measured") == 1 and f"drift of 2 runs: not measured: {said}" in text
    assert (
        "Nothing to draw yet for drift of drift@full: no run that is done has results for it; python -m bench run"
        in text
    )
    use(tmp_path, monkeypatch, DRIFT.replace(".tolist()", ""))
    (tmp_path / "drift.yaml").write_text(GRID.replace("rounds: [1,", "rounds: [1, 9,"))
    text = bench("run", "--grid", str(tmp_path / "drift.yaml"))[1]
    assert "result.distances is not a list. distances is a Tensor; write .tolist()." in text
    assert "of drift@full: no run has round 9." in text
    (tmp_path / "drift.yaml").write_text(GRID + "    - {kind: curves, x: rounds}\n")
    use(tmp_path, monkeypatch, DRIFT.replace("axes.hist(distances)", "axes.hist(distance)"))
    code, text = bench("run", "--grid", str(tmp_path / "drift.yaml"))
    line = DRIFT[: DRIFT.index("axes.hist")].count("\n") + 1
    assert code == 0 and f"Drift in mylab/figures/drift.py failed in line {line}: NameError" in text
    assert (tmp_path / "results" / "reports" / "drift@full-rounds.svg").exists()
    monkeypatch.setenv(plugins.VARIABLE, "")
    code, text = bench("report")
    assert code == 0 and "Not drawn in drift@full: Unknown kind of figure 'drift'." in text
    assert "SKEWBENCH_PLUGINS, names one." in text and "FedAvg" in text


@pytest.mark.parametrize("hook", ["collect", "draw"])
def test_a_hook_may_find_nothing_but_must_draw_a_picture(tmp_path, monkeypatch, hook):
    text = DRIFT.replace("in first_runs(grid, records, value)", "in [('iid', {'rounds': 3}, '')]")
    text = text.replace(
        'self.results(store, run_id, config["rounds"], records[run_id])', "{Probe('drift', 1): {'distances': [1.0]}}"
    )
    before = {"collect": "return [\n            (f", "draw": "return figure"}[hook]
    use(tmp_path, monkeypatch, text.replace(before, before.replace("return", "found =")))
    figure = figure_of({"kind": "drift"})
    if hook == "collect":
        assert figure.pictures({"report": {"metric": "accuracy"}}, {}, None) == {}
        return
    with pytest.raises(HookError) as raised:
        figure.pictures({"report": {"metric": "accuracy"}}, {}, None)
    place = f"draw in mylab/figures/drift.py, line {line_of('def draw')}"
    said = f"{place}, returned None, but a matplotlib Figure is expected; write return figure."
    assert str(raised.value) == REGISTRY["drift"].failure(raised.value) == said


def line_of(text):
    return DRIFT[: DRIFT.index(text)].count("\n") + 1


@pytest.mark.parametrize(
    ("text", "figure", "said"),
    [
        (DRIFT, "kind: drift, round: 1", "drift: Unknown key 'round'. Did you mean 'rounds'? Known: kind, rounds."),
        (DRIFT, "kind: drift, rounds: [0]", "A round must be a positive integer or last, but got 0."),
        (
            DRIFT.replace("return [Probe(self.kind, number) for", "return [(number) for"),
            "kind: drift",
            "probes in mylab/figures/drift.py, line 17, returned a list, but a list of Probe is expected; write return [Probe(",
        ),
        (
            DRIFT.replace("return [Probe(self.kind, number)", "return [Prob(self.kind, number)"),
            "kind: drift",
            "Drift in mylab/figures/drift.py failed in line 18: NameError: name 'Prob' is not defined.",
        ),
        (DRIFT, "kind: drfit", "Unknown kind of figure 'drfit'. Did you mean 'drift'?"),
        (
            DRIFT.replace("(Figure)", ""),
            "kind: drift",
            "Drift in mylab/figures/drift.py is no figure; write class Drift(Fig",
        ),
        (
            "import nowhere\n" + DRIFT,
            "kind: drift",
            "mylab/figures/drift.py, line 1: cannot be imported: ModuleNotFound",
        ),
        (
            DRIFT.replace('"drift"', '"cka"'),
            "kind: cka",
            "Two things are registered as 'cka', in reports/figures/cka.py",
        ),
    ],
)
def test_a_mistake_is_explained_before_any_work(tmp_path, monkeypatch, text, figure, said):
    use(tmp_path, monkeypatch, text)
    (tmp_path / "drift.yaml").write_text(re.sub(r"\{kind.*\}", f"{{{figure}}}", GRID))
    with pytest.raises(ConfigError) as caught:
        expand(load_grid(str(tmp_path / "drift.yaml")), "full")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "probes",
    [
        f"return iter({PROBES.removeprefix('return ')})",
        f"return tuple({PROBES.removeprefix('return ')})",
        "return (Probe(self.kind, number) for number in range(1, rounds + 1, rounds // 2))",
    ],
)
def test_probes_are_any_iterable_for_the_rounds_that_runs_have(tmp_path, monkeypatch, probes):
    assert PROBES in DRIFT
    use(tmp_path, monkeypatch, DRIFT.replace(PROBES, probes))
    (tmp_path / "drift.yaml").write_text(GRID)
    assert expand(load_grid(str(tmp_path / "drift.yaml")), "full")


@pytest.mark.parametrize(
    ("before", "after"), [(PROBES, "return [Probe(self.kind, rounds)]"), ("def probes", "def _unused")]
)
def test_a_number_that_is_no_round_of_a_measurement_is_not_taken_for_one(tmp_path, monkeypatch, before, after):
    """A window, of a figure that measures other rounds, or nothing."""
    text = re.sub(r"    rounds: .*", "    rounds: int = 100", DRIFT)
    use(tmp_path, monkeypatch, text.replace(before, after))
    (tmp_path / "drift.yaml").write_text(re.sub(r"\{kind.*\}", "{kind: drift}", GRID))
    assert expand(load_grid(str(tmp_path / "drift.yaml")), "full")


def test_the_decorator_sets_defaults(tmp_path, monkeypatch):
    use(tmp_path, monkeypatch, DRIFT.replace('("drift")', '("early-drift", rounds=[1])'))
    (tmp_path / "drift.yaml").write_text(re.sub(r"\{kind.*\}", "{kind: early-drift}", GRID))
    (figure,) = load_grid(str(tmp_path / "drift.yaml")).report.figures
    assert figure.model_dump() == {"kind": "early-drift", "rounds": [1]} and figure.name == "early-drift"
