"""How much of a machine a trial gets."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Resources:
    """What one trial gets; Ray counts it, nothing enforces it.

    Attributes:
        cpus: cores; also the number of torch threads (at least 1).
        gpus: share of one GPU, or a whole number of them; 0 trains on the CPU.
        device: where torch trains, "cpu" or "cuda".
        auto: whether the share of a GPU is to be measured (see `bench.execution.gpu_sharing`).
    """

    cpus: float = 1.0
    gpus: float = 0.0
    device: str = "cpu"
    auto: bool = False

    @property
    def threads(self) -> int:
        return max(1, int(self.cpus))


@dataclass(frozen=True)
class Machines:
    """Where trials run.

    Attributes:
        resources: of each trial.
        max_concurrent: bound on the trials at once, 0 for none.
        address: a running Ray cluster; None for this machine alone.
        wait_seconds: how long a cluster may take until a machine has what a trial needs.
        executor: "ray"; "slurm" for jobs of Slurm, or "local" for plain processes of this machine.
        slurm: options of sbatch for each job of Slurm.
    """

    resources: Resources
    max_concurrent: int = 0
    address: str | None = None
    wait_seconds: float = 0.0
    executor: str = "ray"
    slurm: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_cluster(self) -> bool:
        """Whether trials run on other machines than this one."""
        return bool(self.address) or self.executor == "slurm"

    @property
    def at_once(self) -> int:
        """Trials that this machine runs at once; of a cluster, which is not inspected, the bound on them, or 1."""
        bound, share = self.max_concurrent, self.resources
        if self.is_cluster:
            return bound or 1
        most = int(num_cores() / share.cpus)
        if share.gpus and not share.auto:
            most = min(most, self.places_on_gpus)
        return max(1, min(most, bound or most))

    @property
    def places_on_gpus(self) -> int:
        """Trials for which the GPUs of this machine have room, whatever bounds them otherwise."""
        gpus = self.resources.gpus
        return _num_gpus() * int(1 / gpus) if gpus < 1 else int(_num_gpus() / gpus)  # a share is one of a single GPU


def choose(cpus_per_trial: float, gpus_per_trial: str, address: str | None = None) -> Resources:
    """Checks the options of a trial's resources against this machine; a cluster at an address is not inspected.

    Args:
        cpus_per_trial: cores of a trial.
        gpus_per_trial: a number, or `auto`: measured by a short profile of every kind of trial; 0 where there is no GPU.

    Raises:
        ValueError: if one of them is no number, out of range, or more than this machine has, or the address is a Ray Client's.
    """
    if address and "://" in address:
        raise ValueError(
            "--address (or RAY_ADDRESS) must be HOST:PORT of a running cluster, or auto, from one of its own machines, but got "
            f"{address}."
        )
    cores = num_cores()
    if not 0 < cpus_per_trial < math.inf or (cpus_per_trial > cores and not address):
        most = "" if address else f" and at most {cores} here"
        raise ValueError(f"--cpus-per-trial must be above 0{most}, but got {cpus_per_trial:g}.")
    if gpus_per_trial == "auto":
        return (
            Resources(cpus_per_trial, 1.0, "cuda", auto=True) if address or _num_gpus() else Resources(cpus_per_trial)
        )
    try:
        gpus = float(gpus_per_trial)
    except ValueError:
        gpus = -1.0
    if not gpus >= 0 or (gpus > 1 and not gpus.is_integer()):
        raise ValueError(
            f"--gpus-per-trial must be auto, 0, a share of one GPU or a whole number of them, but got {gpus_per_trial}."
        )
    if gpus and not address and gpus > (there := _num_gpus()):
        raise ValueError(
            f"--gpus-per-trial {gpus:g} is too many: torch finds {there} GPUs on this machine; "
            f"{f'name at most {there}, or 0' if there else 'leave the option out'} to train on the CPU."
        )
    return Resources(cpus_per_trial, gpus, "cuda" if gpus else "cpu")


def num_cores() -> int:
    """Cores that this process may use: of a batch system's job, or under `taskset`, fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def _num_gpus() -> int:
    import torch  # takes seconds, and most runs train on the CPU

    return torch.cuda.device_count()
