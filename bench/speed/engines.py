"""Methods, engines, partitions and models against the yardstick: on the GPU if there is one, else on one thread."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from algorithms import make
from algorithms.shared.base import Algorithm, State
from bench.simulation.engines import padding_share
from bench.simulation.evaluation import evaluate
from bench.simulation.task import Task
from bench.speed import reference_loop
from bench.speed.clock import take_turns
from bench.speed.rows import Row, not_measured
from bench.speed.workload import Setting, task_on

METHODS = (
    "fedavg",
    "fedprox",
    "fedrs",
    "fedlc",
    "scaffold",
    "fednova",
    "fedavgm",
    "moon",
    "fedcat",
    "clusamp",
    "fedgen",
    "feddyn",
    "fedadagrad",
    "fedadam",
    "fedyogi",
    "fedexp",
    "feddisco",
    "fedntd",
    "fedlmd",
    "fedlmd-tf",
    "fedvls",
    "feddecorr",
    "feduv",
    "fedsam",
    "fedasam",
    "mofedsam",
    "fedetf",
    "fedgela",
    "fedrod",
    "fedbabu",
)
PERSONAL = (
    "finetune",
    "ditto",
    "per-fedavg",
    "pfedme",
    "fedper",
    "fedrep",
    "lg-fedavg",
    "fedrod-personal",
    "fedgela-personal",
    "fedproto",
    "fedcollab",
)
# FedCollab trains in its published coalitions: discriminators are no part of a round.
_OPTIONS: dict[str, dict[str, Any]] = {"fedcollab": {"divergence": "published"}}
SHIFTED = {"partition": "feature-shift", "clients": 20}  # of FedCollab's paper, with published divergences
PARTITIONS = ("label-2", "dir-0.1", "iid")
MODELS = ("simple-cnn", "mlp", "moon-cnn", "simple-cnn-wide")
LARGE_MODELS = ("vgg9", "resnet50")  # minutes per round on a CPU
ROUND = 1  # of which the yardstick trains the clients: the second, as most methods
_YARDSTICK, _PLAIN = "yardstick", "yardstick, without augmentation"


def methods(setting: Setting) -> list[Row]:
    """Methods on the faster engine against the yardstick, and those with several models against FedAvg."""
    named = setting.methods or (*METHODS, *PERSONAL)
    shared = [name for name in named if not make(name).personal]
    personal = [name for name in named if name not in shared]
    return [*(_unshifted(setting, shared) if shared else ()), *(_shifted(setting, personal) if personal else ())]


def _unshifted(setting: Setting, names: Sequence[str]) -> list[Row]:
    """Methods with one shared model against the yardstick."""
    task, plain = _task(setting, engine="auto"), _task(setting, transform="none")
    rounds = {
        _PLAIN: lambda: yardstick_round(plain, augment=False),
        _YARDSTICK: lambda: yardstick_round(task, augment=True),
        **{f"{task.engine}, {name}": method_round(task, name) for name in names},
    }
    return _rows(setting, {f"{task.engine}, {name}": task for name in names}, rounds)


def _shifted(setting: Setting, names: Sequence[str]) -> list[Row]:
    """Methods with a model per client against FedAvg on the same clients.

    Clients have test data of their own, so that all train and test on the same images. Ratios are of examples, each as often as
    a method computes its gradient.
    """
    names = ("fedavg", *names)
    try:
        task = _task(setting, engine="auto", **SHIFTED)
        cases = {f"{task.engine}, {name}, shifted clients": method_round(task, name) for name in names}
    except ValueError as error:  # some images are not there
        return [not_measured(f"{name}, shifted clients", str(error).rstrip(".")) for name in names[1:]]
    base, *others = take_turns(cases, setting.repeats, setting.device, setting.gpu).values()
    notes = (f"{_pace(setting, row) / _pace(setting, base):.2f} of fedavg" for row in others)
    return [base, *(replace(row, note=note) for row, note in zip(others, notes, strict=True))]


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
    """The rounds that lead a method to its second model, with a test after each; returns the examples trained on.

    One round, for most methods: not the first, in which MOON has no contrastive term. A method that has no new model after
    every round runs all until it has one, and its last model is tested meanwhile, so that rounds of all methods compare.
    The rounds before are those of clients with one local step.
    """
    method = make(name, **_OPTIONS.get(name, {}))
    rounds = rounds_to_a_model(task, method)
    start = _after(method, replace(task, settings=replace(task.settings, local_epochs=None, local_steps=1)), rounds)
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


def _after(method: Algorithm, task: Task, rounds: int) -> State:
    state = method.init(task)
    for _ in range(rounds):
        state = method.step(task, state)
    return state


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
        row = rows[case]
        note = f"{_pace(setting, row) / _pace(setting, reference):.2f} of the yardstick" if reference else ""
        rows[case] = replace(row, note=note, padding=padding_of(task))
    return list(rows.values())


def _pace(setting: Setting, row: Row) -> float:
    """By what rows are compared: on the CPU by processor time, which whatever else runs on the machine changes less."""
    return row.value if setting.device.type == "cuda" else row.per_core_second
