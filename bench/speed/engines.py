"""Methods, engines, partitions and models against the yardstick: on the GPU if there is one, else on one thread."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from algorithms import make
from algorithms.shared.base import Algorithm
from bench.simulation.engines import padding_share
from bench.simulation.evaluation import evaluate
from bench.simulation.task import Task
from bench.speed import reference_loop
from bench.speed.rows import Row, not_measured
from bench.speed.workload import Setting, take_turns, task_on

METHODS = (
    "fedavg fedprox fedrs fedlc scaffold fednova fedavgm moon fedcat clusamp fedgen feddyn fedadagrad fedadam fedyogi fedexp "
    "feddisco fedntd fedlmd fedlmd-tf fedvls feddecorr feduv fedsam fedasam mofedsam fedetf fedgela fedrod fedbabu"
).split()
PERSONAL = (
    "finetune ditto per-fedavg pfedme fedper fedrep lg-fedavg fedrod-personal fedgela-personal fedproto fedcollab"
).split()
# FedCollab trains in its published coalitions: discriminators are no part of a round.
_OPTIONS: dict[str, dict[str, Any]] = {"fedcollab": {"divergence": "published"}}
SHIFTED = {"partition": "feature-shift", "clients": 20}  # of FedCollab's paper, with published divergences
PARTITIONS = ("label-2", "dir-0.1", "iid")
MODELS = ("simple-cnn", "mlp", "moon-cnn", "simple-cnn-wide")
LARGE_MODELS = ("vgg9", "resnet50")  # minutes per round on a CPU
ROUND = 1  # of which the yardstick trains the clients: the second, as most methods


def methods(setting: Setting) -> list[Row]:
    """Methods on the faster engine against the yardstick, and those with several models against FedAvg."""
    named = setting.methods or (*METHODS, *PERSONAL)
    personal = [name for name in named if make(name).personal]
    shared = [name for name in named if name not in personal]
    rows = []
    if shared:
        task = _task(setting, engine="auto")
        runs = {f"{task.engine}, {name}": method_round(task, name) for name in shared}
        rows += _against_yardstick(setting, task, runs, dict.fromkeys(runs, task))
    if personal:
        # All train and test on the same images. Ratios are of examples, each as often as a method computes its gradient.
        try:
            task = _task(setting, engine="auto", **SHIFTED)
            names = "fedavg", *personal
            runs = {f"{task.engine}, {name}, shifted clients": method_round(task, name) for name in names}
        except ValueError as error:  # some images are not there
            return [*rows, *(not_measured(f"{name}, shifted clients", error) for name in personal)]
        base, *others = runs
        rows += _rows(setting, runs, dict.fromkeys(others, task), base, "fedavg")
    return rows


def engines(setting: Setting) -> list[Row]:
    """Both engines on each partition, against the yardstick."""
    tasks = {}
    for partition in PARTITIONS:
        tasks |= _on_both_engines(setting, f"{{}}, {partition}", partition=partition)
    runs = {case: method_round(task, "fedavg") for case, task in tasks.items()}
    return _against_yardstick(setting, tasks[f"loop, {PARTITIONS[0]}"], runs, tasks)


def models(setting: Setting) -> list[Row]:
    """Models on the engines that can run them."""
    tasks = {}
    for model in MODELS + (LARGE_MODELS if setting.device.type == "cuda" else ()):
        tasks |= _on_both_engines(setting, f"{model}, {{}}", model=model)
    return _rows(setting, {case: method_round(task, "fedavg") for case, task in tasks.items()}, tasks)


def yardstick_round(task: Task) -> int:
    """One round of the bare loop on the clients that a method would train; the examples trained on."""
    clients = task.sample_cohort(ROUND).ids.tolist()
    model = reference_loop.SimpleCnn().to(task.device)
    return reference_loop.train_round(model, task.federation, clients, task.settings)


def method_round(task: Task, name: str) -> Callable[[], int]:
    """The rounds that lead a method to its second model, with a test after each; returns the examples trained on.

    One round, for most methods: not the first, in which MOON has no contrastive term. A method that has no new model after
    every round runs all until it has one, and its last model is tested meanwhile, so that rounds of all methods compare.
    The rounds before are those of clients with one local step.
    """
    method = make(name, **_OPTIONS.get(name, {}))
    rounds, short = rounds_to_a_model(task, method), replace(task.settings, local_epochs=None, local_steps=1)
    start = method.init(task)
    for _ in range(rounds):
        start = method.step(replace(task, settings=short), start)
    everyone = torch.arange(task.population)
    first = method.deploy(task, start, everyone)

    def run() -> int:
        state, deployed = start, first
        for _ in range(rounds):
            state = method.step(task, state)
            deployed = method.deploy(task, state, everyone) or deployed
            evaluate(task, deployed)
        return state["costs"]["examples"] - start["costs"]["examples"]

    return run


def rounds_to_a_model(task: Task, method: Algorithm) -> int:
    """After how many rounds a method has a new model: the size of a cohort for FedCat, 1 for most."""
    config = SimpleNamespace(cohort_size=len(task.sample_cohort(ROUND).ids))
    return next(rounds for rounds in itertools.count(1) if method.has_model(config, rounds))


def padding_of(task: Task) -> float | None:
    """Share of padded batch rows in a round of FedAvg; None on the loop engine, which pads nothing."""
    if task.engine == "loop":
        return None
    sizes = task.sizes(task.sample_cohort(ROUND).ids)
    return padding_share([sum(task.settings.passes(size), []) for size in sizes])


def _task(setting: Setting, **changes) -> Task:
    return task_on(setting.folder, device=setting.device.type, participation=setting.share, **changes)


def _on_both_engines(setting: Setting, name: str, **changes) -> dict[str, Task]:
    """Case -> task; the loop engine alone where only it can run the model."""
    task = _task(setting, **changes)
    names = ("loop",) if task.model.loop_only else ("loop", "vectorised")
    return {name.format(engine): replace(task, engine=engine) for engine in names}


def _against_yardstick(
    setting: Setting, task: Task, runs: dict[str, Callable[[], int]], tasks: dict[str, Task]
) -> list[Row]:
    """Rows of the yardstick on the clients of a task, and of runs as ratios to it."""
    return _rows(setting, {"yardstick": lambda: yardstick_round(task), **runs}, tasks, "yardstick", "the yardstick")


def _rows(
    setting: Setting, runs: dict[str, Callable[[], int]], tasks: dict[str, Task], base: str = "", of: str = ""
) -> list[Row]:
    """A row per run; those that have a task with its padding, and as a ratio to the run `base`, which notes call `of`.

    Ratios are of processor time on the CPU, which whatever else runs on the machine changes less; of wall time on the GPU.
    """
    rows = take_turns(runs, setting.repeats, setting.device, setting.gpu)
    pace = {case: row.value if setting.device.type == "cuda" else row.per_core_second for case, row in rows.items()}
    for case, task in tasks.items():
        note = f"{pace[case] / pace[base]:.2f} of {of}" if base else ""
        rows[case] = replace(rows[case], note=note, padding=padding_of(task))
    return [*rows.values()]
