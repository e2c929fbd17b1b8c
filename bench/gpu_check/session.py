"""What every section of the check is given: the device, the workload W1, the notes, and how to time and to set up torch."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from algorithms.shared import tree
from algorithms.shared.tree import Tree
from bench.determinism import make_deterministic
from bench.gpu_check.report import Report
from bench.profiling import GpuUse
from bench.simulation.task import Task
from bench.speed.workload import images, median_seconds, task_on

# W1 where a dry run on a CPU only shows that everything runs.
_DRY = {"clients": 8, "train_examples": 400, "test_examples": 100, "batch_size": 16}


class Session:
    """One check.

    Attributes:
        device: "cuda" or "cpu"; a check on a CPU is a dry run, on a smaller W1.
        report: takes the notes.
        gpu: samples the use of the GPU, as long as the session is entered.
    """

    def __init__(self, device: str, report: Report, data_dir: Path | None):
        self.device, self.report, self.gpu = device, report, GpuUse()
        self._data_dir, self._open = data_dir, ExitStack()

    def __enter__(self) -> "Session":
        self._open.enter_context(self.gpu)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.close()

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def w1_changes(self) -> dict[str, Any]:
        """What W1 has otherwise on this device."""
        return {} if self.on_gpu else _DRY

    @cached_property
    def folder(self) -> Path:
        """Where CIFAR-10, or random images in its shape, lie: written when the first section asks."""
        scratch = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        folder, _ = self._open.enter_context(images(self._data_dir, scratch))
        return folder

    def w1(self, engine: str = "vectorised", **changes: Any) -> Task:
        """W1 with changes, on the device, without graphs."""
        task = task_on(self.folder, device=self.device, engine=engine, **{**self.w1_changes, **changes})
        return replace(task, graphs=None)

    def equal_clients(self, engine: str = "vectorised", **changes: Any) -> Task:
        """W1 with clients of the same size, which are one block."""
        return self.w1(engine, partition="iid", **changes)

    def wait(self) -> None:
        """Returns when the device has done everything that it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], object], repeats: int = 3) -> float:
        """Wall time of a call until the device is done, the median of several."""

        def until_done() -> None:
            run()
            self.wait()

        self.wait()
        return median_seconds(until_done, repeats)


@contextmanager
def numerics(*, deterministic: bool = True, fill: bool = False, tf32: bool = False) -> Iterator[None]:
    """How torch computes, for a while.

    Args:
        deterministic: as workers do; if not, also the fastest convolutions are looked for.
        fill: whether new tensors are filled before they are written.
        tf32: see `make_deterministic`.
    """
    flags, cudnn, products = torch.utils.deterministic, torch.backends.cudnn, torch.backends.cuda.matmul
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    values = flags.fill_uninitialized_memory, cudnn.benchmark, cudnn.allow_tf32, products.allow_tf32
    make_deterministic(tf32)
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    flags.fill_uninitialized_memory, cudnn.benchmark = fill, not deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        flags.fill_uninitialized_memory, cudnn.benchmark, cudnn.allow_tf32, products.allow_tf32 = values


def distance(a: Tree, b: Tree) -> float:
    """Largest difference of two trees of tensors, relative to the largest number in its leaf of b (or to 0.001)."""
    pairs = [(x.double().cpu(), y.double().cpu()) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True)]
    return max((float((x - y).abs().max() / y.abs().max().clamp(min=1e-3)) for x, y in pairs if x.numel()), default=0.0)
