"""Runs that wait in a results directory for a machine without Ray and Pydantic."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import registry
from bench.config.code_version import code_version
from bench.config.resolve import resolve
from bench.execution import waiting
from bench.execution.run_recorder import RunRecorder
from bench.execution.waiting import Waiting
from bench.results.store import Store
from bench.simulation.retention import StateRetention
from bench.worker import main
from tests.support import method_files
from tests.support.alone import WORKER_WITHOUT_PACKAGES
from tests.support.grid_runs import GRID, untimed, write_grid
from tests.support.processes import ROOT, call_bench

SHORT = {"axes": GRID["axes"] | {"seed": [0]}, "settings": GRID["settings"] | {"rounds": 2}}


def bench(*words: object, code: int = 0) -> str:
    """What a command prints."""
    ended, text = call_bench(*words)
    assert ended == code, text
    return " ".join(text.split())


def _code_of(method: str) -> str:
    return code_version(resolve({"algorithm": method, "dataset": "digits", "partition": "iid"}))[f"algorithm {method}"]


def configs(grid: Path | str, folder: Path, *more: object, code: int = 0) -> str:
    return bench("describe", "--grid", grid, "--configs", folder, *more, code=code)


@pytest.mark.slow
def test_runs_that_were_trained_on_a_bare_machine_come_back_as_if_they_had_been_trained_here(tmp_path):
    axes = GRID["axes"] | {"algorithm": ["scaffold", "ccvr"], "seed": [0], "partition": ["label-2"]}
    grid = write_grid(tmp_path, axes=axes, settings=SHORT["settings"] | {"model": "mlp"}, save_rounds=[1])
    code, output = call_bench("run", "--grid", grid, "--results-dir", tmp_path / "here", "--executor", "local")
    assert code == 0, output

    assert "3 runs wait in" in configs(grid, tmp_path / "carried")
    shutil.move(tmp_path / "carried", tmp_path / "there")
    train = [sys.executable, "-c", WORKER_WITHOUT_PACKAGES, str(tmp_path / "there")]
    done = subprocess.run(train, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(" done after round") == 3, done.stdout + done.stderr
    again = subprocess.run([*train, "--max-concurrent", "1"], cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0 and again.stdout.startswith("0 runs to train, at most 1 at once.\n")

    assert "3 runs" in bench("import", tmp_path / "there", "--results-dir", tmp_path / "back")
    assert untimed(tmp_path / "back") == untimed(tmp_path / "here")
    cells = [Store(tmp_path / name).grid("six@full")["cells"] for name in ("back", "here")]
    assert cells[0] == cells[1]
    states = {
        name: [Store(tmp_path / name).states(run) for run in untimed(tmp_path / name)] for name in ("back", "here")
    }
    assert states["back"] == states["here"] and all(states["back"])
    assert "No run waits: all of them are done" in configs(grid, tmp_path / "there")


def test_another_results_directory_beside_that_of_the_configs_is_refused(tmp_path):
    said = configs(write_grid(tmp_path), tmp_path / "w", "--results-dir", tmp_path / "other", code=2)
    assert "is itself the results directory; leave --results-dir out." in said and not (tmp_path / "w").exists()


def test_a_results_directory_of_the_environment_does_not_hinder_writing_configs(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWBENCH_RESULTS", str(tmp_path / "other"))
    assert "wait in" in configs(write_grid(tmp_path, **SHORT), tmp_path / "w")


def test_the_list_of_runs_that_wait_is_that_of_the_plan_and_says_what_a_worker_has_to_know(tmp_path):
    partition = tmp_path / "mine.npz"
    np.savez(partition, **{f"train_{client}": np.arange(10 * client, 10 * client + 10) for client in range(10)})
    axes = GRID["axes"] | {"algorithm": ["ccvr", "fedavg"], "partition": [f"file:{partition}"], "seed": [3]}
    configs(
        write_grid(tmp_path, axes=axes, settings=SHORT["settings"], save_when={"algorithm": "fedavg"}), tmp_path / "w"
    )
    store = Store(tmp_path / "w")
    partition.unlink()
    ccvr, fedavg = sorted(waiting.read(store), key=lambda job: job.config.algorithm["name"])
    assert (ccvr.config.algorithm["name"], fedavg.config.seed, fedavg.base) == ("ccvr", 3, "")
    assert ccvr.base == fedavg.folder == str(store.run_folder(fedavg.id))
    assert [len(client) for client in fedavg.inputs.own_data.partition.content.train] == [10] * 10
    assert fedavg.inputs.code["algorithm fedavg"] and fedavg.retention == StateRetention("deployed")

    with store.locked():
        runs = RunRecorder(store)
        runs.start(fedavg.id, fedavg.config.canonical())
        runs.end(fedavg.id, {"status": "diverged"})
        assert [job.id for job in waiting.read(store)] == [ccvr.id]
        ended = store.record(fedavg.id)["finished"]
        again = Waiting(fedavg.id, "", StateRetention("all"), fedavg.inputs.code, before=ended)
        waiting.write(store, [again])
        assert [job.id for job in waiting.read(store)] == [fedavg.id, ccvr.id], (
            "added, and a run that ended is repeated"
        )
        assert waiting.read(store)[0].folder == str(store.folder / "repeating" / fedavg.id)


@pytest.mark.slow
def test_what_another_machine_cannot_know_is_refused(tmp_path):
    images = tmp_path / "mine.npz"
    np.savez(
        images,
        x_train=np.zeros((20, 8, 8), np.uint8),
        y_train=np.arange(20) % 2,
        x_test=np.zeros((4, 8, 8), np.uint8),
        y_test=np.arange(4) % 2,
    )
    grid = write_grid(
        tmp_path, axes=SHORT["axes"] | {"dataset": [f"npz:{images}"]}, settings=SHORT["settings"] | {"model": "mlp"}
    )
    printed = configs(grid, tmp_path / "w", code=2)
    assert "describe --configs cannot take mine to another machine, where nobody knows the place" in printed
    printed = configs("ccvr_table2", tmp_path / "w", code=2)
    assert "searches choose their hyper-parameters first" in printed
    assert not (tmp_path / "w").exists()
    printed = configs("ccvr_table2", tmp_path / "w", "--only", "dataset=cifar10", "--set", "mu=0.01")
    assert "runs wait in" in printed, "nothing is left to search"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "holds no waiting.json; `python -m bench describe --grid NAME --configs DIR` writes one."),
        ("{", "is not readable JSON; remove it, and write the runs again"),
        ("[1]", "is not a list of runs"),
        ('[{"run": "../../x", "base": "", "retention": {}, "code": {}}]', "is not a list of runs: [0].run is not"),
        ('[{"run": "0123456789abcdef", "base": "", "retention": {}, "code": 3}]', "[0].code is not"),
        (
            '[{"run": "0123456789abcdef", "base": "", "retention": {"x": 1}, "code": {}}]',
            "unexpected keyword argument 'x'",
        ),
        ('[{"run": "0123456789abcdef", "base": "", "retention": {}, "code": {}}]', "has no config"),
    ],
)
def test_a_worker_says_what_is_wrong_with_the_list(content, sentence, tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    if content:
        (tmp_path / waiting.FILE).write_text(content)
    assert main([str(tmp_path)]) == 2 and sentence in capsys.readouterr().err


def test_other_code_of_one_method_and_a_lab_that_is_not_there_are_named_before_anything_is_trained(
    tmp_path, capsys, monkeypatch
):
    text = method_files.RUNNABLE
    with monkeypatch.context() as with_lab:
        method_files.register(tmp_path / "lab", with_lab, {"fedmine": text})
        grid = write_grid(
            tmp_path, axes=SHORT["axes"] | {"algorithm": ["fedmine", "fedavg"]}, settings=SHORT["settings"]
        )
        configs(grid, tmp_path / "w")
        listed = tmp_path / "w" / waiting.FILE
        code = next(
            job.inputs.code for job in waiting.read(Store(tmp_path / "w")) if "algorithm fedmine" in job.inputs.code
        )
        whole = listed.read_text()
        for part, folder in (("algorithm fedmine", "lab/"), ("algorithm fedavg", "")):
            listed.write_text(whole.replace(code.get(part) or _code_of("fedavg"), "0" * 16))
            assert main([str(tmp_path / "w")]) == 2
            file = f"{folder}algorithms/{part.split()[1]}.py"
            assert f"its code of this run is not that of the command ({part} in {file})" in capsys.readouterr().err
        listed.write_text(whole)
    registry.forget()
    assert main([str(tmp_path / "w")]) == 2
    assert "nothing is called 'fedmine' here; name the folder of the lab by --plugins" in capsys.readouterr().err


def test_another_grid_of_the_same_name_and_a_folder_of_other_things_are_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = write_grid(tmp_path / "a", axes=SHORT["axes"], settings=SHORT["settings"])
    configs(first, tmp_path / "w")
    other = write_grid(tmp_path / "b", axes=SHORT["axes"], settings=SHORT["settings"] | {"rounds": 3})
    assert "holds results of another grid called six" in configs(other, tmp_path / "w", code=2)
    assert "holds other things than results" in configs(other, tmp_path / "a", code=2)


def test_a_machine_without_the_images_is_named_before_anything_is_trained(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SKEWBENCH_DATA", str(tmp_path / "none"))
    grid = write_grid(tmp_path, axes=SHORT["axes"] | {"dataset": ["fmnist"]}, settings=SHORT["settings"])
    configs(grid, tmp_path / "w")
    assert main([str(tmp_path / "w")]) == 2
    assert "This machine cannot train the runs of" in (said := capsys.readouterr().err) and "fmnist" in said
    assert not (tmp_path / "w" / "jobs").exists() and os.listdir(tmp_path / "w" / "runs")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "There is no nowhere; name the config of a run, or a results directory."),
        (["config.json", "--gpus-per-trial", "1"], "Options are for a results directory, not for one config."),
        (["runs", "--gpus-per-trial", "7"], "--gpus-per-trial 7 is too many"),
    ],
)
def test_options_of_a_worker_that_mean_nothing_are_refused(words, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "runs").mkdir()
    assert main(words) == 2 and sentence in capsys.readouterr().err
