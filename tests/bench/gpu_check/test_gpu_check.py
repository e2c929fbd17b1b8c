"""The check of a GPU runs whole on a CPU, with a small workload; what it would find on a card is not tested."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

import algorithms
from algorithms.shared import tree
from bench.gpu_check import correctness, facts, main, pace, session
from bench.gpu_check import graphs as graph_section
from bench.gpu_check.main import SECTIONS
from bench.gpu_check.session import distance, numerics
from bench.simulation.engines import ENGINES
from bench.speed.workload import write_random_cifar10
from tests.support import kinds

ROOT = Path(__file__).parents[3]
METHODS = correctness.METHODS
SLOW = ("speed", "graphs", "captured")


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    """Few methods, and a workload of few images, of a CIFAR-10 of 500 random ones."""
    dry = {"clients": 5, "train_examples": 100, "test_examples": 20, "batch_size": 16}
    monkeypatch.setattr(session, "_DRY", dry)
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SKEWBENCH_DATA", raising=False)  # the whole of a real one would be decoded in each test
    few = lambda folder: write_random_cifar10(folder, batch_size=100)  # noqa: E731
    monkeypatch.setattr("bench.speed.workload.write_random_cifar10", few)
    monkeypatch.setattr(correctness, "METHODS", {"fedavg": {}, "scaffold": {}})
    monkeypatch.setattr(correctness, "_DRAWN", ("fedavg",))
    monkeypatch.setattr(graph_section, "_METHODS", ("fedavg",))
    monkeypatch.setattr(pace, "_METHODS", ("scaffold",))


@pytest.fixture
def check(tmp_path):
    """Runs sections on the CPU; returns the exit code and what the file has of each section."""

    def run(*names: str, budget: float = 300) -> tuple[int, dict]:
        out = tmp_path / "out"
        options = ["--out", str(out), "--device", "cpu", "--budget", str(budget), "--only", ",".join(names)]
        code = main.main(options)
        return code, json.loads((out / "gpu_check.json").read_text())

    return run


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SECTIONS])
def test_each_section_runs_on_a_cpu(name, check, capsys):
    code, found = check(name)
    assert code == 0 and found[name]["ended"] == "done" and found[name]["summary"] and not found[name]["wrong"]
    assert f"| {name} | " in capsys.readouterr().out


@pytest.mark.slow
def test_right_compares_every_method_on_both_engines_and_models(check):
    _, found = check("right", "resumed")
    assert found["right"]["summary"] == "8 runs compared, 0 wrong"
    assert found["resumed"]["summary"] == "4 runs compared, 0 wrong"


def test_an_engine_with_other_numbers_is_found(check, monkeypatch, capsys):
    engine = ENGINES["vectorised"]
    beside = lambda *given: tree.map(lambda leaf: leaf * (1 + 1e-6), engine(*given))  # noqa: E731
    monkeypatch.setitem(ENGINES, "vectorised", beside)
    code, found = check("right")
    assert code == 1 and {"fedavg, mlp, vectorised, from the CPU"} <= found["right"]["wrong"].keys()
    assert not any("loop" in case for case in found["right"]["wrong"])
    assert "right: fedavg, mlp, vectorised, from the CPU: params." in capsys.readouterr().out


def test_numbers_that_are_not_the_same_again_are_found(check, monkeypatch):
    engine, calls = ENGINES["vectorised"], []

    def drifting(*given):
        calls.append(None)
        return tree.map(lambda leaf: leaf * (1 + 1e-12 * len(calls)), engine(*given))

    monkeypatch.setitem(ENGINES, "vectorised", drifting)
    code, found = check("right")
    assert code == 1 and all(case.endswith("from itself") for case in found["right"]["wrong"])


def test_an_error_in_one_run_is_a_wrong_number_and_the_others_go_on(check, monkeypatch):
    def broken(*given):
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(ENGINES, "vectorised", broken)
    code, found = check("right")
    assert code == 1 and found["right"]["summary"] == "8 runs compared, 4 wrong"
    assert "RuntimeError" in found["right"]["wrong"]["scaffold, cnn, vectorised, from the CPU"]


def test_a_state_that_is_read_otherwise_than_stored_is_found(check, monkeypatch):
    load = correctness.Checkpoints.load
    later = lambda self, device: {"state": {**(state := load(self, device)["state"]), "round": state["round"] + 1}}  # noqa: E731
    monkeypatch.setattr(correctness.Checkpoints, "load", later)
    code, found = check("resumed")
    assert code == 1 and len(found["resumed"]["wrong"]) == 4


def test_a_failing_section_does_not_stop_the_others(check, monkeypatch):
    def failing(session):
        session.report.note("before", 1)
        raise RuntimeError("a card\nthat is tired")

    monkeypatch.setattr(facts, "facts", failing)
    code, found = check("facts", "rounding")
    assert found["facts"]["ended"].startswith("failed: RuntimeError at test_gpu_check.py:")
    assert found["facts"]["ended"].endswith(": a card that is tired") and found["facts"]["found"] == {"before": 1}
    assert (code, found["rounding"]["ended"]) == (0, "done")


def test_a_round_that_was_not_captured_is_not_reported_as_if_it_were(check, monkeypatch):
    monkeypatch.setattr("bench.simulation.graphs.inspect.ismethod", lambda fn: False)
    _, found = check("graphs")
    assert "what runs on clients is no hook" in found["graphs"]["found"]["fedavg"] and found["graphs"]["summary"] == ""


@pytest.mark.parametrize("name", main.MUST_HOLD)
def test_a_check_that_could_not_compare_does_not_say_that_all_is_right(name, check, monkeypatch):
    monkeypatch.setattr(correctness, name, lambda session: 1 / 0)
    assert check(name)[0] == 1


@pytest.mark.slow
def test_a_section_ends_when_its_time_is_up_and_keeps_what_it_found(check, monkeypatch):
    def endless(session):
        session.report.note("first", 1)
        while True:
            try:
                time.sleep(0.01)
            except Exception:  # as sections do that go on after an error
                continue

    monkeypatch.setattr(facts, "facts", endless)
    monkeypatch.setitem(SECTIONS, "facts", ("facts", 0.01))
    code, found = check("facts", "rounding")
    assert (code, found["facts"]["ended"], found["facts"]["found"]) == (0, "its time was up", {"first": 1})
    assert found["rounding"]["ended"] == "done"


def test_sections_for_which_no_time_is_left_say_so(check):
    _, found = check("facts", "right", budget=1e-6)
    assert found["right"]["ended"] == "not begun: no time was left"


def test_the_file_is_whole_while_a_later_section_runs(check, monkeypatch, tmp_path):
    seen = []

    def looking(session):
        session.report.note("half", 0.5)
        seen.append(json.loads((tmp_path / "out" / "gpu_check.json").read_text()))

    monkeypatch.setattr(correctness, "rounding", looking)
    check("facts", "rounding")
    assert seen[0]["facts"]["ended"] == "done" and seen[0]["facts"]["found"]["torch"] == torch.__version__
    assert seen[0]["rounding"]["ended"] == "cut off" and seen[0]["rounding"]["found"] == {"half": 0.5}


def test_sections_run_in_the_order_of_their_importance(check):
    _, found = check("rounding", "facts")
    assert [*found] == ["facts", "rounding"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--only", "facts,sped"], "Unknown section 'sped'. Did you mean 'speed'?"),
        (["--budget", "0"], "--budget must be more than 0 seconds, but got 0."),
    ],
)
def test_an_option_that_makes_no_sense_gets_a_sentence(options, sentence, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main.main(["--out", str(tmp_path), "--device", "cpu", *options])
    assert stopped.value.code == 2 and f"error: {sentence}" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_check_says_how_to_try_it(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main.main(["--out", str(tmp_path / "out")])
    assert stopped.value.code == 2 and "use --device cpu for a dry run" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_there_is_a_method_of_each_kind():
    assert kinds.METHODS.keys() <= METHODS.keys() <= algorithms.REGISTRY.keys()


def test_waits_of_local_steps_are_those_of_which_a_longer_round_has_more():
    few, many = Counter({"tree.py:3": 1, "rounds.py:9": 2}), Counter({"tree.py:3": 1, "rounds.py:9": 8, "moon.py:1": 4})
    assert correctness.grown(few, many) == {"rounds.py:9": 6, "moon.py:1": 4}


def test_a_distance_is_relative_to_the_largest_number_of_a_leaf():
    a, b = {"w": torch.tensor([1.0, 10.0]), "b": torch.zeros(0)}, {"w": torch.tensor([1.5, 10.0]), "b": torch.zeros(0)}
    assert distance(a, b) == pytest.approx(0.05)


def test_torch_is_set_up_as_before_afterwards():
    flags = lambda: (  # noqa: E731
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
    )
    before = flags()
    with numerics(deterministic=False, fill=True, tf32=True):
        assert flags() == (False, True, True, True, True)
    with numerics():
        assert flags() == (True, False, False, False, False)
    assert flags() == before


# torch asks whether some of these can be found, and imports none.
BLOCKED = """
import importlib.util, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"ray", "pydantic", "optuna", "typer", "rich", "pandas", "yaml", "tests", "matplotlib"}:
            return importlib.util.spec_from_loader(name, self)
    def create_module(self, spec):
        raise ModuleNotFoundError(f"No module named {spec.name!r}", name=spec.name)
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, Blocked())
from bench.gpu_check import correctness
from bench.gpu_check.main import main
short = {"rounds": 2, "local_epochs": 1, "batch_size": 12}  # one step of small clients, two of large ones
correctness._KINDS = {kind: own | short for kind, own in correctness._KINDS.items()}
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_it_runs_where_there_is_little_but_torch(tmp_path):
    options = ["--out", str(tmp_path), "--device", "cpu", "--budget", "500", "--only", "facts,right"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", BLOCKED, *options], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert [section["ended"] for section in found.values()] == ["done", "done"]
    assert found["right"]["summary"] == f"{4 * len(METHODS)} runs compared, 0 wrong"
