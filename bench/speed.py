"""How fast the harness is, as ratios within one run: engines against the yardstick, several processes against one.

The workload is W1: CIFAR-10, 40 clients, label-2, simple CNN, batch 64, SGD 0.01 / 0.9, one local epoch per round, the
global test after each round. Every figure is the median of repeats that take turns, so that a machine whose speed drifts
treats all cases alike. Needs neither Ray nor pydantic; what cannot be measured here says so.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import datasets
from algorithms import load
from bench import yardstick
from bench.evaluate import evaluate
from bench.models.cnn import SimpleCnn
from bench.run import peak_memory_mb
from bench.task import Settings, Task
from datasets import partitions, transforms
from datasets.federation import federate

W1 = Settings(
    rounds=2,
    local_epochs=1,
    local_steps=None,
    batch_size=64,
    lr=0.01,
    momentum=0.9,
    weight_decay=1e-5,
    participation=1.0,
    last_batch="keep",
)
NUM_CLIENTS = 40
METHODS = ("fedavg", "fedprox", "fedrs", "fedlc", "scaffold", "fednova", "fedavgm", "moon")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        case: what was measured.
        value: a number with its unit, or "not measured (why)".
        ratio: to what, as text; empty for absolute figures.
    """

    case: str
    value: str
    ratio: str = ""


def measure(
    data_dir: Path | None = None,
    *,
    share: float = 0.25,
    repeats: int = 3,
    say: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """The whole table.

    Args:
        data_dir: where CIFAR-10 is; random images of its shape and class counts if it is not there.
        share: part of the 40 clients that trains in a round, in (0, 1].
        repeats: measurements of each case.
        say: told which part is being measured.
    """
    with tempfile.TemporaryDirectory() as scratch, _one_thread():
        images = _Images.find(data_dir, Path(scratch))
        settings = replace(W1, participation=share)
        rows = [Row("images", images.source)]
        for part in (_engines_on_cpu, _engines_on_gpu, _processes, _scheduler):
            say(part.__doc__.splitlines()[0])
            rows += part(images, settings, repeats)
    return rows


def markdown(rows: list[Row]) -> str:
    """The table, and what it was measured on."""
    from tabulate import tabulate

    table = tabulate([(row.case, row.value, row.ratio) for row in rows], ("case", "value", "ratio"), "github")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{table}\n\ntorch {torch.__version__}, {os.cpu_count()} cores, {device}; one thread per process.\n"


def _engines_on_cpu(images: "_Images", settings: Settings, repeats: int) -> list[Row]:
    """Methods on the loop engine against the yardstick, one thread."""
    task = images.task(settings)
    plain = images.task(settings, transform="none")
    cases = {
        "yardstick, without augmentation": lambda: _yardstick_round(plain, augment=False),
        "yardstick": lambda: _yardstick_round(task, augment=True),
        **{f"loop, {name}": (lambda name=name: _method_round(task, name)) for name in METHODS},
    }
    rates = _take_turns(cases, repeats)
    rows = []
    for case, rate in rates.items():
        ratio = f"{rate / rates['yardstick']:.2f} of the yardstick" if case.startswith("loop") else ""
        rows.append(Row(case, f"{rate:,.0f} examples per core-second", ratio))
    return rows


def _engines_on_gpu(images: "_Images", settings: Settings, repeats: int) -> list[Row]:
    """Both engines on a GPU."""
    if not torch.cuda.is_available():
        return [Row("vectorised on a GPU", "not measured (no GPU here)")]
    rates = {}
    for engine in ("loop", "vectorised"):
        task = images.task(replace(settings, participation=1.0), device="cuda", engine=engine)
        _method_round(task, "fedavg")
        rates[engine] = _take_turns({engine: lambda task=task: _method_round(task, "fedavg")}, repeats)[engine]
    rows = [Row(f"{engine} on a GPU, fedavg", f"{rate:,.0f} examples per second") for engine, rate in rates.items()]
    rows[1] = replace(rows[1], ratio=f"{rates['vectorised'] / rates['loop']:.1f} of loop")
    return [*rows, Row("peak memory on the GPU", f"{peak_memory_mb(torch.device('cuda')):,.0f} MB")]


def _processes(images: "_Images", settings: Settings, repeats: int) -> list[Row]:
    """One and two processes side by side."""
    if os.cpu_count() < 2:
        return [Row("two processes", "not measured (one core)")]
    singles, pairs, private = [], [], []
    for _ in range(repeats):
        singles.append(sum(rate for rate, _ in _side_by_side(images, settings, 1)))
        together = _side_by_side(images, settings, 2)
        pairs.append(sum(rate for rate, _ in together))
        private.append(together[1][1])
    one, two = statistics.median(singles), statistics.median(pairs)
    memory = "not measured (needs /proc)" if private[0] is None else f"{max(private):,.0f} MB"
    return [
        Row("one trial, one core", f"{one:,.0f} examples per second"),
        Row("two trials, two cores", f"{two:,.0f} examples per second", f"{two / one:.2f} of one trial"),
        Row("memory that a second trial adds (unique set size)", memory),
    ]


def _scheduler(images: "_Images", settings: Settings, repeats: int) -> list[Row]:
    """What Ray Tune costs per trial once its workers are warm."""
    try:
        from bench.overhead import seconds_per_trial
    except ImportError:
        return [Row("scheduler overhead", "not measured (Ray is not installed)")]
    return [Row("scheduler overhead, warm workers", f"{seconds_per_trial():.3f} s per trial")]


@dataclass(frozen=True)
class _Images:
    """Memory-mapped files of images in the shape of CIFAR-10, so that processes share them."""

    source: str
    folder: Path

    @classmethod
    def find(cls, data_dir: Path | None, scratch: Path) -> "_Images":
        try:
            found = datasets.load("cifar10", data_dir)
            arrays = (found.train.images, found.train.labels, found.test.images, found.test.labels)
            source = found.source
        except datasets.DataError:
            rng = np.random.default_rng(0)
            make = lambda count: (rng.integers(0, 256, (count, 3, 32, 32), np.uint8), np.arange(count) % 10)  # noqa: E731
            arrays = (*make(50_000), *make(10_000))
            source = "random, in the shape of CIFAR-10"
        for number, array in enumerate(arrays):
            np.save(scratch / f"{number}.npy", array)
        return cls(source, scratch)

    def task(self, settings: Settings, transform: str = "fedconcat", device: str = "cpu", engine: str = "loop") -> Task:
        images, labels, test_images, test_labels = (np.load(self.folder / f"{i}.npy", mmap_mode="r") for i in range(4))
        clients = partitions.parse("label-2").split(labels, NUM_CLIENTS, 10, seed=0)
        prepared = transforms.build(transform, "cifar10", (3, 32, 32), device)
        federation = federate(images, labels, test_images, test_labels, clients, 10, prepared, device=device)
        return Task(SimpleCnn((3, 32, 32), 10), settings, federation, seed=0, engine=engine)


def _yardstick_round(task: Task, augment: bool) -> int:
    clients = task.sample_cohort(0).ids.tolist()
    return yardstick.play_round(yardstick.SimpleCnn(), task.federation, clients, task.settings, augment)


def _method_round(task: Task, name: str) -> int:
    """Round 1 of a method, so that MOON's contrastive term is active."""
    method = load(name)()
    state = method.step(task, {**method.init(task), "round": 1})
    evaluate(task, method.deploy(task, state, torch.arange(task.population)))
    return state["spent"]["examples"]


def _take_turns(cases: dict[str, Callable[[], int]], repeats: int) -> dict[str, float]:
    """Median examples per second of each case; the first turn of each only warms up."""
    rates = {case: [] for case in cases}
    for turn in range(repeats + 1):
        for case, play in cases.items():
            begin = time.perf_counter()
            examples = play()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:
                rates[case].append(examples / (time.perf_counter() - begin))
    return {case: statistics.median(values) for case, values in rates.items()}


def _side_by_side(images: _Images, settings: Settings, count: int) -> list[tuple[float, float | None]]:
    """(examples per second, unique memory in MB) of processes that train at the same time."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(count), context.Queue()
    workers = [context.Process(target=_train_alone, args=(images, settings, ready, results)) for _ in range(count)]
    for worker in workers:
        worker.start()
    outcomes = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    return outcomes


def _train_alone(images: _Images, settings: Settings, ready, results) -> None:
    torch.set_num_threads(1)
    task = images.task(settings)
    _method_round(task, "fedavg")
    ready.wait()
    begin, examples = time.perf_counter(), 0
    for _ in range(W1.rounds):
        examples += _method_round(task, "fedavg")
    rate = examples / (time.perf_counter() - begin)
    memory = unique_memory_mb()
    ready.wait()  # nobody leaves while another is still measured
    results.put((rate, memory))


def unique_memory_mb() -> float | None:
    """Memory of this process that no other shares, in MB of 10^6 bytes; None where /proc does not tell."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6


@contextmanager
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
