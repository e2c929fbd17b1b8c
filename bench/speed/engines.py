"""Methods, engines, partitions and models against the yardstick: on the GPU if there is one, else on one thread."""

from collections.abc import Callable
from dataclasses import replace

import torch

from algorithms import load
from bench.simulation.engines import padding_share
from bench.simulation.evaluation import evaluate
from bench.simulation.task import Task
from bench.speed import reference_loop
from bench.speed.clock import take_turns
from bench.speed.rows import Row
from bench.speed.workload import Setting, task_on

METHODS = ("fedavg", "fedprox", "fedrs", "fedlc", "scaffold", "fednova", "fedavgm", "moon")
PARTITIONS = ("label-2", "dir-0.1", "iid")
MODELS = ("simple-cnn", "mlp", "moon-cnn", "simple-cnn-wide")
LARGE_MODELS = ("vgg9", "resnet50")  # minutes per round on a CPU
ROUND = 1  # which round is measured: not the first, in which MOON has no contrastive term
_YARDSTICK, _PLAIN = "yardstick", "yardstick, without augmentation"


def methods(setting: Setting) -> list[Row]:
    """Methods on the faster engine against the yardstick."""
    task, plain = _task(setting, engine="auto"), _task(setting, transform="none")
    tasks = {f"{task.engine}, {name}": task for name in METHODS}
    rounds = {
        _PLAIN: lambda: yardstick_round(plain, augment=False),
        _YARDSTICK: lambda: yardstick_round(task, augment=True),
        **{f"{task.engine}, {name}": method_round(task, name) for name in METHODS},
    }
    return _rows(setting, tasks, rounds)


def engines(setting: Setting) -> list[Row]:
    """Both engines on each partition, against the yardstick."""
    tasks = {}
    for partition in PARTITIONS:
        tasks |= _on_both_engines(setting, f"{{}}, {partition}", partition=partition)
    reference = tasks[f"loop, {PARTITIONS[0]}"]
    rounds = {_YARDSTICK: lambda: yardstick_round(reference, augment=True)}
    return _rows(setting, tasks, rounds | {case: method_round(task, "fedavg") for case, task in tasks.items()})


def models(setting: Setting) -> list[Row]:
    """Models on the engines that can run them."""
    tasks = {}
    for model in MODELS + (LARGE_MODELS if setting.device.type == "cuda" else ()):
        tasks |= _on_both_engines(setting, f"{model}, {{}}", model=model)
    return _rows(setting, tasks, {case: method_round(task, "fedavg") for case, task in tasks.items()})


def yardstick_round(task: Task, augment: bool) -> int:
    """One round of the bare loop on the clients that a method would train; the examples trained on."""
    clients = task.sample_cohort(ROUND).ids.tolist()
    model = reference_loop.SimpleCnn().to(task.device)
    return reference_loop.train_round(model, task.federation, clients, task.settings, augment)


def method_round(task: Task, name: str) -> Callable[[], int]:
    """One round of a method and its evaluation; returns the examples trained on."""
    method = load(name)()
    start = {**method.init(task), "round": ROUND}

    def run() -> int:
        state = method.step(task, start)
        evaluate(task, method.deploy(task, state, torch.arange(task.population)))
        return state["spent"]["examples"]

    return run


def padding_of(task: Task) -> float | None:
    """Share of padded batch rows in the round that is measured; None on the loop engine, which pads nothing."""
    if task.engine == "loop":
        return None
    sizes = task.sizes(task.sample_cohort(ROUND).ids)
    return padding_share([sum(task.settings.passes(size), []) for size in sizes])


def _task(setting: Setting, **changes) -> Task:
    return task_on(setting.folder, device=setting.device.type, participation=setting.share, **changes)


def _on_both_engines(setting: Setting, name: str, **changes) -> dict[str, Task]:
    """Case -> task; the loop engine alone where only it can run the model."""
    task = _task(setting, **changes)
    engines = ("loop",) if task.model.loop_only else ("loop", "vectorised")
    return {name.format(engine): replace(task, engine=engine) for engine in engines}


def _rows(setting: Setting, tasks: dict[str, Task], rounds: dict[str, Callable[[], int]]) -> list[Row]:
    """A row per case; those that have a task are also given as a ratio to the yardstick, if it is measured."""
    rows = take_turns(rounds, setting.repeats, setting.device, setting.gpu)
    reference = rows.get(_YARDSTICK)
    for case, task in tasks.items():
        note = f"{rows[case].value / reference.value:.2f} of the yardstick" if reference else ""
        rows[case] = replace(rows[case], note=note, padding=padding_of(task))
    return list(rows.values())
