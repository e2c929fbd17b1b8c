"""A worker without a scheduler: what it says while it trains, goes on, or cannot."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import algorithms
import bench.simulation.run
from algorithms import at_least
from algorithms.shared import divergence
from bench.config.code_version import code_version
from bench.config.resolve import resolve
from bench.contract.cases import Case
from bench.contract.checks import a_resumed_run_goes_on_as_if_uninterrupted, divergence_ends_in_numbers_and_no_error
from bench.contract.report import outcomes
from bench.errors import HookError
from bench.execution import worker as workers
from bench.execution.gpus import NO_GPU
from bench.execution.job import Inputs, Job
from bench.execution.ray_environment import PACKAGES, ROOT
from bench.execution.worker import Worker, WorkerReport, failure, storage_trouble
from bench.results.schema import check_record
from bench.simulation.engines import run_block
from bench.simulation.retention import StateRetention
from bench.simulation.run import Run
from datasets import DataError, load
from tests.support import method_files

DIGITS = {"dataset": "digits", "partition": "label-2", "clients": 10, "rounds": 6, "local_epochs": 1, "batch_size": 16}


@pytest.fixture
def job(tmp_path):
    config = resolve({"algorithm": "fedavg", **DIGITS})
    return Job("a1", config, str(tmp_path), StateRetention(final="none"), checkpoint_seconds=0)


def train(job: Job, steps: int = 50) -> list[WorkerReport]:
    """What a new worker reports until the job ends."""
    worker, said = Worker(job, None, "cpu"), []
    while len(said) < steps:
        said.append(worker.step())
        if said[-1].is_last:
            break
    return said


def rows(said: list[WorkerReport]) -> list[dict]:
    """Rounds as a driver puts them together, without times."""
    known = []
    for report in said:
        known[report.start :] = report.rows
    return [{key: value for key, value in row.items() if "second" not in key} for row in known]


def test_rounds_are_reported_once_and_in_order_whatever_the_rhythm(job, monkeypatch):
    together = train(replace(job, checkpoint_seconds=60))
    monkeypatch.setattr(workers, "REPORT_SECONDS", 0)
    one_by_one = train(job)
    assert [len(report.rows) for report in one_by_one] == [1] * 6
    assert [report.start for report in one_by_one] == list(range(6))
    assert rows(one_by_one) == rows(together)
    assert one_by_one[-1].result["status"] == "done"


@pytest.mark.slow
def test_another_worker_goes_on_from_the_checkpoint_and_reports_everything(job, monkeypatch):
    whole = train(replace(job, checkpoint_seconds=60))
    monkeypatch.setattr(workers, "REPORT_SECONDS", 0)
    train(job, steps=4)
    later = train(job)
    assert later[0].note == "continues after round 4"
    assert (later[0].start, len(later[0].rows)) == (0, 5)
    assert rows(later) == rows(whole)


@pytest.mark.slow
def test_a_run_of_coalitions_that_is_killed_between_divergences_and_first_round_does_not_compute_them_again(
    job, tmp_path, monkeypatch
):
    flat = {"algorithm": "fedcollab", **DIGITS, "rounds": 2, "discriminator_rounds": 20}
    job = replace(job, config=resolve(flat))
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "whole"))
    whole = train(replace(job, folder=str(tmp_path / "whole")))
    killed = f"""
import os, signal
from algorithms import fedcollab
from bench.config.resolve import resolve
from bench.config.code_version import code_version
from bench.execution.job import Inputs, Job
from bench.execution.worker import Worker
from bench.simulation.retention import StateRetention
import torch
torch.set_num_threads({torch.get_num_threads()})
fedcollab.solve = lambda *of: os.kill(os.getpid(), signal.SIGKILL)
Worker(Job("a1", resolve({flat!r}), {str(tmp_path)!r}, StateRetention(final="none")), None, "cpu").step()
"""
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    ended = subprocess.run([sys.executable, "-c", killed], cwd=ROOT)
    assert ended.returncode == -signal.SIGKILL
    monkeypatch.setattr(divergence, "_inputs", None)  # what discriminators read
    later = train(job)
    assert rows(later) == rows(whole) and len(rows(whole)) == 2
    assert later[-1].result["diagnostics"] == whole[-1].result["diagnostics"]


def test_a_checkpoint_of_another_run_is_ignored_with_a_sentence(job, monkeypatch):
    monkeypatch.setattr(workers, "REPORT_SECONDS", 0)
    train(job, steps=2)
    other = Job("b2", job.config, job.folder, job.retention)
    (first, *_) = train(other, steps=1)
    assert first.note == "starts over: its checkpoint was written with run 'a1' instead of 'b2'"
    assert train(job, steps=1)[0].note == "continues after round 2", "and left alone until there is another"
    assert len(first.rows) == 1


def test_who_starts_over_leaves_no_states_of_an_earlier_attempt_behind(job, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "REPORT_SECONDS", 60)  # one report of all rounds, however slow the machine is
    train(replace(job, id="b2", retention=StateRetention(final="deployed", rounds=(2,)), checkpoint_seconds=60))
    assert {path.name for path in tmp_path.glob("*.pt")} == {"round-0002.pt", "final.pt"}
    train(replace(job, retention=StateRetention(final="none", rounds=(3,))), steps=1)
    assert {path.name for path in tmp_path.glob("*.pt")} == {"round-0003.pt"}, "others may be of other code"


@pytest.mark.slow_but_first
@pytest.mark.parametrize(("engine", "used"), [("loop", "loop"), ("vectorised", "vectorised"), ("auto", "vectorised")])
def test_a_run_is_played_on_the_engine_that_was_asked_for_and_its_record_says_so(job, engine, used):
    assert train(replace(job, engine=engine))[-1].result["engine"] == used


def test_a_checkpoint_of_another_engine_is_not_gone_on_from(job, monkeypatch):
    monkeypatch.setattr(workers, "REPORT_SECONDS", 0)
    train(replace(job, engine="loop"), steps=2)
    (first,) = train(replace(job, engine="vectorised"), steps=1)
    assert first.note == "starts over: its checkpoint was written with engine 'loop' instead of 'vectorised'"


CONTINUED = "continues after round 2"
THREADS = torch.get_num_threads()


@pytest.mark.parametrize(
    ("part", "now", "note"),
    [
        ("nothing", None, CONTINUED),
        ("images", "0badcafe", "starts over: its checkpoint was written with images '"),
        ("threads", 7, f"starts over: its checkpoint was written with threads {THREADS} instead of 7"),
        ("torch", "3.0", f"starts over: its checkpoint was written with torch '{torch.__version__}' instead of '3.0'"),
        ("device", "H200", "starts over: its checkpoint was written with device 'cpu' instead of 'H200'"),
        ("weights", "ab12", "starts over: its checkpoint was written with weights None instead of 'ab12'"),
        ("tf32", True, "starts over: its checkpoint was written with tf32 None instead of True"),
    ],
)
def test_a_checkpoint_is_continued_only_where_all_is_the_same_that_decides_the_numbers(
    job, monkeypatch, part, now, note
):
    monkeypatch.setattr(workers, "REPORT_SECONDS", 0)
    train(job, steps=2)
    key, seen = workers._checkpoint_key, {
        "nothing": (workers, "REPORT_SECONDS", 0),
        "images": (workers, "_checkpoint_key", lambda job, run, digest: key(job, run, now)),
        "threads": (torch, "get_num_threads", lambda: now),
        "torch": (torch, "__version__", now),
        "device": (workers, "device_name", lambda device: now),
        "weights": (Run, "weights", now),
        "tf32": (workers, "uses_tf32", lambda device: {"tf32": now}),
    }  # fmt: skip
    monkeypatch.setattr(*seen[part])
    (first,) = train(job, steps=1)
    assert first.note.startswith(note) and len(first.rows) == (3 if note == CONTINUED else 1)


def test_images_of_several_sizes_are_resized_and_the_record_says_so(job, tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    for name in (f"{split}/{kind}/{n}.png" for split in ("train", "test") for kind in "ab" for n in range(10)):
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        height, width = draw.integers(8, 40, 2)
        Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(tmp_path / "mine" / name)
    mine = {"algorithm": "fedavg", "dataset": f"imagefolder:{tmp_path / 'mine'}", "partition": "iid", "model": "mlp"}
    mine |= {"clients": 2, "rounds": 1, "local_epochs": 1}
    ended = {}
    for size in (None, 16, [16, 20]):
        (*_, last) = train(replace(job, config=resolve(mine | {"image_size": size})))
        ended[str(size)] = last.result or last.machine_error
    assert "must have one size" in ended["None"], "the driver has found images that can be read"
    square, other = ended["16"]["data"], ended["[16, 20]"]["data"]
    assert square["kind"] == "image folders, resized to 16x16 pixels"
    assert other["kind"] == "image folders, resized to 16x20 pixels" and square["digest"] != other["digest"]
    larger = ended["[16, 20]"]["bytes_per_client"] - ended["16"]["bytes_per_client"]
    assert larger == 2 * 4 * 3 * (16 * 20 - 16 * 16) * 64, "weights of the first layer, both ways"


def test_a_worker_that_runs_out_of_memory_trains_fewer_clients_at_once_and_then_asks_for_room(job, monkeypatch):
    blocks, step, error = [], Run.step, torch.OutOfMemoryError("CUDA out of memory")

    def out_of_memory(run):
        blocks.append(run.task.max_clients_per_vmap)
        if run.task.max_clients_per_vmap is None or run.task.max_clients_per_vmap > fitting:
            raise error
        return step(run)

    monkeypatch.setattr(Run, "step", out_of_memory)
    fitting = 3
    said = train(job)
    assert dict.fromkeys(blocks) == {None: None, 5: None, 2: None}
    assert [report.max_clients_per_vmap for report in said[:3]] == [5, 2, None]
    assert said[0].note == "out of GPU memory, continues with 5 clients at once"
    assert said[-1].result["status"] == "done" and len(rows(said)) == 6
    for status in ("CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED"):
        fitting, error = 0, RuntimeError(f"CUDA error: {status} when calling `cublasCreate(handle)`")
        assert train(replace(job, checkpoint_seconds=60))[-1].out_of_memory


def test_a_worker_that_runs_out_of_memory_first_goes_on_without_graphs_of_blocks(job, monkeypatch):
    step, had, graphs = Run.step, [], SimpleNamespace(forget=lambda: True, notes=[], run=run_block)

    def out_of_memory(run):
        had.append(run.task.graphs)
        if len(had) == 1:
            run.task = replace(run.task, graphs=graphs)
        elif run.task.graphs:
            graphs.notes.append("one gave other numbers")
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(run)

    monkeypatch.setattr(Run, "step", out_of_memory)
    monkeypatch.setattr(workers, "REPORT_SECONDS", 0)
    said = train(job)
    assert [bool(one) for one in had[:3]] == [False, True, False]
    assert "one gave other numbers; out of GPU memory, continues without CUDA graphs" in [
        report.note for report in said
    ]
    assert {report.max_clients_per_vmap for report in said} == {None}
    assert said[-1].result["status"] == "done"


def test_the_notes_of_graphs_are_told_once(job, monkeypatch):
    monkeypatch.setattr(workers, "REPORT_SECONDS", 0)
    graphs = SimpleNamespace(forget=lambda: False, notes=["one gave other numbers"], run=run_block)
    start = Run.__init__

    def with_graphs(run, *arguments, **options):
        start(run, *arguments, **options)
        run.task = replace(run.task, graphs=graphs)

    monkeypatch.setattr(Run, "__init__", with_graphs)
    assert [report.note for report in train(job)].count("one gave other numbers") == 1


def test_a_round_that_fails_leaves_the_run_as_before(job, monkeypatch):
    run, measure = Run(job.config, workers.resized.load("digits", "fedconcat", None)), bench.simulation.run.measure
    run.step()

    def fail(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("bench.simulation.run.measure", fail)
    with pytest.raises(torch.OutOfMemoryError):
        run.step()
    assert (run.round, len(run.rows)) == (1, 1)
    monkeypatch.setattr("bench.simulation.run.measure", measure)
    assert run.step()["round"] == 2


def test_blocks_change_no_number_beyond_rounding(job):
    def params(block):
        run = Run(
            job.config,
            workers.resized.load("digits", "fedconcat", None),
            engine="vectorised",
            max_clients_per_vmap=block,
        )
        return torch.cat([leaf.flatten() for leaf in (run.step(), run.state)[1]["params"].values()])

    torch.testing.assert_close(params(None), params(3), rtol=1e-4, atol=1e-6)


def test_a_gpu_that_needs_another_process_ends_this_one(job, monkeypatch):
    def fail(run):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Run, "step", fail)
    with pytest.raises(torch.AcceleratorError):
        train(job)


def test_a_machine_that_does_not_see_what_the_driver_has_written_is_told(job, tmp_path):
    (tmp_path / "driver.pt").touch()
    assert train(replace(job, marker=str(tmp_path / "driver.pt")))[-1].result["status"] == "done"
    (said,) = train(replace(job, marker=str(tmp_path / "elsewhere" / "driver.pt")))
    assert said.storage_error.endswith(
        "elsewhere/driver.pt, which the command has written: results and checkpoints need a place that all machines of the "
        "cluster see; name it by --storage."
    )


def test_a_calibration_whose_base_has_failed_says_so(job, tmp_path):
    config = resolve({"algorithm": "ccvr", **DIGITS})
    (said,) = train(replace(job, config=config, base=str(tmp_path / "runs" / "b2")))
    assert said.result["reason"] == "RuntimeError: the run of its base (b2) has failed"


SCRIPT = """
import json
import sys
import bench.execution.job
import bench.execution.worker
import bench.config.resolve
import bench.simulation.retention
settings = {"algorithm": "fedavg", "dataset": "digits", "partition": "iid", "clients": 4, "rounds": 1}
config = bench.config.resolve.resolve(settings)
job = bench.execution.job.Job("a1", config, sys.argv[1], bench.simulation.retention.StateRetention())
worker = bench.execution.worker.Worker(job, None, "cpu")
ended = None
while not ended:
    ended = worker.step().result
print(json.dumps([ended["status"], bench.execution.worker.code_version(config), bench.execution.worker.__file__]))
"""


@pytest.mark.slow
def test_packages_need_not_lie_side_by_side(tmp_path):
    """A cluster unpacks each in a folder of its own."""
    places = {name: tmp_path / f"unpacked-{name}" for name in PACKAGES}
    for name, place in places.items():
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places.values()))}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run")]
    told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    status, version, where = json.loads(told.stdout)
    config = resolve({"algorithm": "fedavg", "dataset": "digits", "partition": "iid", "clients": 4, "rounds": 1})
    assert (status, version) == ("done", workers.code_version(config))
    assert where.startswith(str(places["bench"])), "this was the copy"


def test_errors_of_a_run_are_its_record_and_errors_of_the_disk_are_not(job, monkeypatch):
    def fail(run):
        raise error

    monkeypatch.setattr(Run, "step", fail)
    error = KeyError("wrong")
    (said,) = train(job)
    assert (said.result["status"], said.result["reason"], said.storage_error) == ("failed", "KeyError: 'wrong'", "")
    assert "in fail" in said.result["traceback"]
    error = OSError(errno.ENOSPC, "No space left on device")
    (said,) = train(job)
    assert said.result is None
    assert said.storage_error == (
        f"Cannot use {job.folder}: No space left on device. Finished runs are kept; mend this, and the same "
        "command continues."
    )
    for code in (errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM):
        assert storage_trouble(OSError(code, os.strerror(code)), "here").startswith(
            f"Cannot use here: {os.strerror(code)}."
        )
    assert storage_trouble(FileNotFoundError(errno.ENOENT, "No such file"), "here") == ""


def test_an_error_that_is_not_of_the_storage_is_that_of_the_run(tmp_path):
    """A method may try a file that it must not read, and go on."""
    for name, is_of_storage in (("runs/a1/final.pt", True), ("../secret", False), ("/proc/1/mem", False)):
        error = PermissionError(errno.EACCES, "Permission denied", str((tmp_path / name).resolve()))
        assert bool(storage_trouble(error, tmp_path)) == is_of_storage
    for cause, is_of_storage in ((OSError(errno.ENOSPC, "full"), True), (None, False)):
        with pytest.raises(ValueError) as raised:
            try:
                raise OSError(errno.ENOSPC, "No space left on device")
            except OSError:
                raise ValueError("bad option") from cause
        assert bool(storage_trouble(raised.value, tmp_path)) == is_of_storage


HOOK = """
    def local_loss(self, params, batch, view):
        loss = task_loss(params, batch, view)
        {line}
        return loss
"""


@pytest.mark.slow_but_first
@pytest.mark.parametrize("engine", ["vectorised", "loop"])
@pytest.mark.parametrize(
    "line",
    ["loss = loss * view.num_steps.item()", "loss = loss if view.num_steps > 0 else 2 * loss", "loss.nonzero()"],
)
def test_a_line_that_cannot_run_for_many_clients_at_once_is_named_with_what_to_do(
    job, line, engine, tmp_path, monkeypatch
):
    text = method_files.RUNNABLE.replace("RoundBased, registered", "RoundBased, registered, task_loss")
    method_files.register(tmp_path / "mylab", monkeypatch, {"fedmine": text + HOOK.format(line=line)})
    config = resolve({"algorithm": "ccvr", "base": {"name": "fedmine"}, **DIGITS, "rounds": 1})
    result = train(replace(job, config=config, engine=engine))[-1].result
    if engine == "vectorised":
        number = 1 + (text + HOOK.format(line=line)).splitlines().index(f"        {line}")
        assert result["status"] == "failed" and "Traceback" in result["traceback"]
        assert result["reason"].startswith(
            f"mylab/algorithms/fedmine.py, line {number}, in local_loss ({line}): the vectorised engine refuses this line"
        )
        assert "choose by torch.where" in result["reason"] and "--engine loop" in result["reason"]
        assert "\n" not in result["reason"]
    else:
        assert result["status"] == "done", result["reason"]


LOCAL_METRIC = """
    def local_update(self, data, plan, view):
        trained = descend(self.local_loss, view.params, data, plan, view).params
        return LocalResult({"delta": tree.subtract(trained, view.params)}, view.client, {"drift": METRIC})
"""


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    ("hook", "sentence"),
    [
        (
            "def server_step(self, task, params, server, update, cohort):\n        return params",
            "returned a dict, but the pair (params, server) is expected; write return params, server.",
        ),
        (
            "def init_server(self, task, params):\n        return {'count': 0}",
            "returned the int 0 as count, but states are trees of tensors; write a tensor on the "
            "device of the others, such as params[name].new_zeros(()).",
        ),
        (
            "def init_client(self, task, params):\n        return {'seen': {'rounds': None}}",
            "returned None as seen.rounds, but states are trees of tensors; write a tensor on the "
            "device of the others, such as params[name].new_zeros(()).",
        ),
        (
            "def server_step(self, task, params, server, update, cohort):\n        return params, {'count': 1.5}",
            "returned the float 1.5 as server.count, but states are trees of tensors; write a tensor on the "
            "device of the others, such as params[name].new_zeros(()).",
        ),
        (
            "def round_metrics(self, task, before, after, update, cohort):\n        return {'drift': update['delta']}",
            "returned a dict as the metric drift, but a metric is a scalar tensor or a number; reduce it, by .mean() or "
            "tree.norm(...).",
        ),
        (
            "def round_metrics(self, task, before, after, update, cohort):\n        return tree.norm(update['delta'])",
            'returned a tensor of shape [], but a dict of names and scalars is expected; write {"drift": tree.norm(...)}.',
        ),
        (
            LOCAL_METRIC.replace("METRIC", "0.5").strip(),
            "returned the float 0.5 as metrics.drift, but results are trees of tensors; write a tensor on the "
            "device of the others, such as params[name].new_zeros(()).",
        ),
        (
            LOCAL_METRIC.replace("METRIC", "torch.zeros(3)").strip(),
            "returned a tensor of shape [3] as the metric drift, but a metric is a scalar tensor or a number; reduce it, by "
            ".mean() or tree.norm(...).",
        ),
    ],
)
@pytest.mark.parametrize("engine", ["vectorised", "loop"])
def test_what_a_hook_returned_wrong_is_told_alike_by_a_run_and_by_a_check(
    job, engine, hook, sentence, tmp_path, monkeypatch
):
    needed = "LocalResult, RoundBased, descend, registered, tree\nimport torch"
    text = method_files.RUNNABLE.replace("RoundBased, registered", needed) + f"\n    {hook}\n"
    method_files.register(tmp_path / "mylab", monkeypatch, {"fedmine": text})
    name = re.search(r"def (\w+)", hook)[1]
    line = 1 + next(number for number, code in enumerate(text.splitlines()) if name in code)
    said = f"{name} in mylab/algorithms/fedmine.py, line {line}, {sentence}"
    config = resolve({"algorithm": "fedmine", **DIGITS, "rounds": 1})
    reason = train(replace(job, config=config, engine=engine))[-1].result["reason"]
    assert reason == f"{said} `python -m bench check fedmine` finds such mistakes."
    assert [outcome.sentence for outcome in outcomes(Case("fedmine", algorithms.make("fedmine")))] == [said]


JSON = "but JSON values are expected; write float(...) or int(...) of a number, and .tolist() of an array or a tensor."


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ("{'norms': [np.float32(1)]}", f"returned a float32 as diagnostics.norms[0], {JSON}"),
        ("{np.int64(3): 1}", f"returned a int64 as diagnostics.3, {JSON}"),
        ("{(3, 4): 1}", f"returned a dict as diagnostics, {JSON}"),
        ("None", 'returned None, but a dict is expected; write return {"name": number}.'),
        (
            "{'bound': 0.3}",
            "returned what a report cannot read (diagnostics.bound is not a JSON object); choose another name than those that "
            "reports know, and printable values.",
        ),
    ],
)
def test_diagnostics_that_a_record_cannot_hold_fail_the_run_and_the_check(
    job, returned, sentence, tmp_path, monkeypatch
):
    text = method_files.RUNNABLE.replace("registered\n", "registered\nimport numpy as np\n", 1)
    text += f"\n    def diagnostics(self, state):\n        return {returned}\n"
    method_files.register(tmp_path / "mylab", monkeypatch, {"fedmine": text})
    result = train(replace(job, config=resolve({"algorithm": "fedmine", **DIGITS, "rounds": 1})))[-1].result
    said = f"diagnostics in mylab/algorithms/fedmine.py, line 14, {sentence}"
    assert (result["status"], result["reason"]) == ("failed", said)
    with pytest.raises(HookError) as raised:
        divergence_ends_in_numbers_and_no_error(Case("fedmine", algorithms.make("fedmine")))
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("hook", "sentence"),
    [
        (
            "def caveats(self, task):\n        return 'alone'",
            "caveats in mylab/algorithms/fedmine.py, line 13, returned a str, but a list of sentences is expected; "
            'write return ["..."].',
        ),
        (
            "def caveats(self, task):\n        return ['\\x1b[2J']",
            "caveats in mylab/algorithms/fedmine.py, line 13, returned '\\x1b[2J' as a caveat, but a text that a terminal can "
            "print is expected.",
        ),
        (
            "def deploy(self, task, state, clients):\n        found = super().deploy(task, state, clients)\n"
            "        return found._replace(examples=next(iter(state['params'].values())).sum())",
            "A hook of fedmine has given a Tensor as deploy_examples of a round, but a number of Python is expected; write "
            "int(...) or float(...).",
        ),
    ],
)
def test_what_no_record_can_hold_of_a_method_fails_its_run(job, hook, sentence, tmp_path, monkeypatch):
    method_files.register(tmp_path / "mylab", monkeypatch, {"fedmine": f"{method_files.RUNNABLE}\n    {hook}\n"})
    result = train(replace(job, config=resolve({"algorithm": "fedmine", **DIGITS, "rounds": 1})))[-1].result
    assert result["status"] == "failed" and result["reason"].startswith(sentence)


@pytest.mark.parametrize("hook", ["init(self, task)", "step(self, task, state)"])
def test_a_state_that_no_checkpoint_can_hold_fails_the_run_at_once_and_the_check(job, tmp_path, monkeypatch, hook):
    text = method_files.RUNNABLE.replace("registered\n", "registered\nimport numpy as np\n", 1)
    whole = f"super().{hook.replace('self, ', '')} | {{'seen': {{'count': np.int64(0)}}}}"
    text += f"\n    def {hook}:\n        return {whole}\n"
    method_files.register(tmp_path / "mylab", monkeypatch, {"fedmine": text})
    (said,) = train(replace(job, config=resolve({"algorithm": "fedmine", **DIGITS})))
    sentence = (
        "returned a int64 as state.seen.count, but a checkpoint holds tensors, numbers of Python, texts, and dicts"
    )
    name = hook.partition("(")[0]
    assert said.result["reason"].startswith(f"{name} in mylab/algorithms/fedmine.py, line 14, {sentence}")
    with pytest.raises(HookError, match=re.escape(sentence)):
        a_resumed_run_goes_on_as_if_uninterrupted(Case("fedmine", algorithms.make("fedmine")))


def test_metrics_of_numpy_are_no_trouble_of_a_checkpoint(job, tmp_path, monkeypatch):
    text = method_files.RUNNABLE.replace("registered\n", "registered\nimport numpy as np\n", 1)
    text += "\n    def round_metrics(self, *arguments):\n        return {'drift': np.float64(0.5)}\n"
    method_files.register(tmp_path / "mylab", monkeypatch, {"fedmine": text})
    monkeypatch.setattr(workers, "REPORT_SECONDS", 0)
    job = replace(job, config=resolve({"algorithm": "fedmine", **DIGITS}))
    train(job, steps=2)
    assert train(job, steps=1)[0].note == "continues after round 2"


@pytest.mark.parametrize("returned", ["{'base': 0.3, 'name': 3}", "{'norm': np.float64(1)}", "{3: (1, None)}"])
def test_diagnostics_are_any_json_values(job, returned, tmp_path, monkeypatch):
    text = method_files.RUNNABLE.replace("registered\n", "registered\nimport numpy as np\n", 1)
    text += f"\n    def diagnostics(self, state):\n        return {returned}\n"
    method_files.register(tmp_path / "mylab", monkeypatch, {"fedmine": text})
    result = train(replace(job, config=resolve({"algorithm": "fedmine", **DIGITS, "rounds": 1})))[-1].result
    assert result["status"] == "done"
    record = json.loads(json.dumps({"id": "a1" * 8, **result}))
    assert check_record(tmp_path / record["id"] / "record.json", record)["diagnostics"] == record["diagnostics"]


@pytest.mark.parametrize(
    ("hook", "sentence"),
    [
        (
            "def init_server(self, task, params):\n        return {'norm': tree.nrm(params)}",
            "mylab/algorithms/fedmine.py, line 14, in init_server (return {'norm': tree.nrm(params)}): AttributeError: module "
            "'algorithms.shared.tree' has no attribute 'nrm'. ",
        ),
        (
            "def weighted_means(self, updates, cohort):\n        return {'delta': cohort.weights}",
            "weighted_means in mylab/algorithms/fedmine.py, line 13, returned a tensor of shape [10] as delta, but an Average "
            "is expected for each name; ",
        ),
        (
            "def weighted_means(self, updates, cohort):\n        return {'delta': (updates['delta'], cohort.weights[:3])}",
            "(tree.py, line NUMBER), raised by what the method's hooks returned; compare weighted_means in "
            "mylab/algorithms/fedmine.py with the tables of hooks in docs/own-method.md and docs/hooks.md. ",
        ),
    ],
)
def test_an_error_around_a_hook_is_told_by_a_run_with_its_place_and_how_to_find_it(
    job, hook, sentence, tmp_path, monkeypatch
):
    text = method_files.RUNNABLE.replace("registered\n", "registered, tree\n", 1) + f"\n    {hook}\n"
    method_files.register(tmp_path / "mylab", monkeypatch, {"fedmine": text})
    config = resolve({"algorithm": "ccvr", "base": {"name": "fedmine"}, **DIGITS, "rounds": 1})
    reason = train(replace(job, config=config))[-1].result["reason"]
    reason = re.sub(r"line \d+\), raised", "line NUMBER), raised", reason)
    assert sentence in reason and reason.endswith("`python -m bench check fedmine` finds such mistakes.")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        MemoryError("no room"),
        OSError(24, "Too many open files"),
    ],
)
def test_what_a_machine_lacks_is_no_mistake_of_the_method(job, error, monkeypatch):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("algorithms.shared.local_sgd.F.cross_entropy", fail)
    reason = failure_of(job)
    assert str(error) in reason and "hooks" not in reason and "bench check" not in reason


def failure_of(job) -> str:
    """Why a run fails that is trained in this process."""
    try:
        Run(job.config, load("digits", None)).step()
    except Exception as error:
        return failure(error, job.config)["reason"]
    raise AssertionError("it does not fail")


def test_a_refusal_of_this_project_is_a_sentence_of_its_own(job, monkeypatch):
    def refuse(method, task):
        at_least("rounds", 0, 1)

    monkeypatch.setattr(algorithms.load("fedavg"), "init", refuse)
    assert train(job)[-1].result["reason"] == "ValueError: rounds must be at least 1, but got 0."


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (Inputs(code={"engine": "of-the-driver"}), "its code of this run is not that of the command"),
        (Inputs(images="of-the-driver"), "its images of digits are not those of the command"),
    ],
    ids=["code", "images"],
)
def test_a_machine_with_other_code_or_images_than_the_driver_trains_nothing(inputs, sentence, job):
    (report,) = train(replace(job, inputs=inputs))
    assert report.is_last and report.result is None and report.machine_error.startswith(sentence)
    own = Inputs(code_version(job.config), load("digits", None).digest)
    assert train(replace(job, inputs=own))[-1].result["status"] == "done"


def test_a_machine_whose_gpu_torch_does_not_see_trains_nothing_and_a_gpu_that_is_lost_puts_a_run_back(job, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(workers, "make_deterministic", lambda tf32: None)
    worker = Worker(job, None, "cuda")
    assert worker.step().machine_error == NO_GPU
    busy = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    for is_seen, text, said in (
        (False, "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", NO_GPU),
        (True, f"{busy}\nCUDA kernel errors might be ...", f"{NO_GPU} that works ({busy})"),
        *(
            (True, text, f"{NO_GPU} that works ({text})")
            for text in (
                "CUDA error: no CUDA-capable device is detected",
                "No CUDA GPUs are available",
                "CUDA error: uncorrectable ECC error encountered",
            )
        ),
    ):
        with monkeypatch.context() as patch:
            on_cpu = Worker(replace(job, checkpoint_seconds=60), None, "cpu")
            on_cpu.step(1)
            on_cpu._device = "cuda"
            patch.setattr(torch.cuda, "is_available", lambda is_seen=is_seen: is_seen)
            patch.setattr(Run, "step", lambda run, text=text: (_ for _ in ()).throw(RuntimeError(text)))
            report = on_cpu.step()
        assert report.machine_error == said and not report.out_of_memory and report.result is None


def test_a_machine_whose_own_disk_is_full_is_unfit_and_does_not_end_the_grid(job, monkeypatch):
    def full(*arguments):
        raise DataError("Cannot write decoded images to /scratch.") from OSError(
            errno.ENOSPC, "No space left on device"
        )

    monkeypatch.setattr(workers.resized, "load", full)
    (report,) = train(job)
    assert report.machine_error == "Cannot write decoded images to /scratch." and report.storage_error == ""


def test_a_machine_says_what_it_lacks_before_any_run(job, monkeypatch):
    own = Inputs(code_version(job.config), load("digits", None).digest)
    assert workers.inspect_machine([(job.config, own)], None, "cpu") == ""
    others = replace(own, code=own.code | {"engine": "other"})
    told = workers.inspect_machine([(job.config, others)], None, "cpu")
    assert told.startswith("its code of this run is not that of the command (engine): it was changed")
    svhn = resolve({"algorithm": "fedavg", "dataset": "svhn", "partition": "iid"})
    assert "svhn needs a data directory" in workers.inspect_machine([(svhn, Inputs())], None, "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert workers.inspect_machine([], None, "cuda") == NO_GPU
