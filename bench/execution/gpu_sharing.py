"""How much of a GPU a trial gets: from a short profile of its kind, and from the trials that ran out of memory.

Trials of one kind (the same model, images, method, cohort and batch) need the same, so each kind is profiled once, and what
was measured is stored in the results directory. It holds for the code with which it was measured.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.config.code_version import code_version
from bench.config.schema import RunConfig
from bench.execution.job import Job
from bench.execution.resources import Resources
from bench.files import write_file
from bench.results.json_files import Damaged, parse, read_bytes
from bench.results.json_schema import is_integer, is_number, is_text, mismatch
from datasets.own_data import DataOfUser

MEMORY_SHARE = 0.85  # of a GPU's memory that trials get; fragments and libraries need the rest
BUSY_SHARE = 0.95  # of a GPU's time: more trials than that would only wait for each other
_STEPS = 40  # local steps of a profiled round, at most
_SECONDS = 3.0  # how long a profile measures the GPU
_MEASURED = {  # for the GPUs of one name: kind of trial -> what was measured
    str: {
        "profile?": {"used_mb": is_number, "total_mb": is_number, "busy": is_number},
        "at_least?": is_number,
        "block?": (is_integer, None),
        "code?": {str: is_text},
    }
}
_CONTEXT_MB = 600  # memory of a GPU that a process takes before it computes anything


@dataclass(frozen=True)
class Profile:
    """What one trial needs of a GPU that it has for itself.

    Attributes:
        used_mb, total_mb: memory, 10^6 bytes.
        busy: share of the time in which the GPU works, in [0, 1].
    """

    used_mb: float
    total_mb: float
    busy: float

    def of_seeds(self, seeds: int) -> "Profile":
        """What so many seeds need that take turns in one process: memory for each, and the time of one."""
        return replace(self, used_mb=_CONTEXT_MB + seeds * max(0.0, self.used_mb - _CONTEXT_MB))


def kind_of(job: Job, seeds: int = 1) -> str:
    """The kind of a job: jobs of one kind need the same of a GPU; several seeds in one process are another kind."""
    config = job.config
    model = config.model + (f" x{config.model_width:g}" if config.model_width != 1 else "")
    method = json.dumps(_shape(config.algorithm), sort_keys=True)
    images = " ".join(map(str, filter(None, (config.dataset, config.transform, config.image_size))))
    everyone = "all " if config.participation == 1 else ""  # whose rounds are replayed as CUDA graphs
    return (
        f"{images}, {model}, {method}, {everyone}{config.cohort_size} clients per round, batch "
        f"{config.batch_size}{'' if job.engine == 'auto' else f', engine {job.engine}'}{', tf32' if job.tf32 else ''}"
        f"{f', {seeds} seeds together' if seeds > 1 else ''}"
    )


def _shape(algorithm: dict[str, Any]) -> dict[str, Any]:
    """A method without its options that are fractions, such as mu: no size depends on them."""
    return {
        key: _shape(value) if isinstance(value, dict) else value
        for key, value in algorithm.items()
        if not isinstance(value, float)
    }


def trials_per_gpu(profile: Profile, by_cores: int) -> tuple[int, str]:
    """How many trials share a GPU, and why.

    Args:
        by_cores: trials that the cores of a GPU's machine can serve.
    """
    bounds = {
        "its memory": int(MEMORY_SHARE * profile.total_mb / max(profile.used_mb, 1)),
        "its time": int(BUSY_SHARE / max(profile.busy, 0.01)),
        "the cores": by_cores,
    }
    by = min(bounds, key=lambda name: bounds[name])
    return max(1, bounds[by]), by


class GpuAllocator:
    """Decides which resources a job gets, by its kind.

    A profile measures a run's first rounds. If a later stage needs more, trials run out of memory, and fewer of them share a
    GPU from then on.
    """

    def __init__(
        self,
        path: Path,
        resources: Resources,
        *,
        hardware: str,
        trials_by_cores: int,
        profile: Callable[[Job, int | None], Profile],
        on_message: Callable[[str], None],
    ):
        """
        Args:
            path: JSON file of what was measured.
            resources: of jobs of whose kind nothing is known.
            hardware: name of the GPUs; measurements hold for them only.
            trials_by_cores: trials that the cores of a GPU's machine can serve.
            profile: job and bound on its clients at once -> its profile; called once per kind, if `resources.auto`.
            on_message: gets a line for each choice, with its reason.
        """
        self._path, self._resources, self._hardware = path, resources, hardware
        self._by_cores, self._profile, self._on_message = trials_by_cores, profile, on_message
        self._known = self._read()
        self._chosen: dict[str, float] = {}

    def _read(self) -> dict[str, dict[str, Any]]:
        """What is stored; nothing if the file is damaged, since all of it can be measured again."""
        try:
            known = parse(self._path, read_bytes(self._path) or b"{}")
            if found := mismatch(known, {str: _MEASURED}):
                raise Damaged(self._path, f"does not hold what it should: {found}")
        except Damaged as error:
            self._on_message(f"{error}; what trials need of a GPU is measured again.")
            return {}
        return known

    def of(self, job: Job, seeds: int = 1) -> Resources:
        """The resources of a job.

        Args:
            seeds: jobs of its kind that take turns in one process, each with its own state.
        """
        if not self._resources.gpus:
            return self._resources
        if job.base:  # it trains nothing but a classifier, for seconds: not worth a profile
            gpus = 1.0 if self._resources.auto else self._resources.gpus
        else:
            gpus = self._choose(job, seeds) if self._resources.auto else self._resources.gpus
        return replace(self._resources, gpus=max(gpus, self._of_kind(job, seeds).get("at_least", 0)), auto=False)

    def clients_per_vmap_of(self, job: Job) -> int | None:
        """Clients that a job may train at once; None for no bound."""
        return self._of_kind(job).get("block")

    def reduce_clients_per_vmap(self, job: Job, most: int) -> None:
        """Stores that at most so many clients fit at once."""
        self._remember(job, block=min(most, self.clients_per_vmap_of(job) or most))

    def out_of_memory(self, job: Job, had: Resources, seeds: int = 1) -> bool:
        """Stores that a job, or several seeds together, did not fit beside its neighbours; returns False if it had none."""
        if had.gpus >= 1:
            return False
        more = 1 / max(1, int(1 / had.gpus) // 2)  # half as many at once, at least
        self._remember(job, seeds, at_least=more, block=None)  # with fewer neighbours all clients may fit again
        self._on_message(
            f"{kind_of(job, seeds)}: out of GPU memory, so {int(1 / more)} at once instead of {int(1 / had.gpus)}"
        )
        return True

    def _choose(self, job: Job, seeds: int) -> float:
        kind = kind_of(job, seeds)
        if kind not in self._chosen:
            self._chosen[kind] = 1 / self._trials(job, kind, seeds)
        return self._chosen[kind]

    def _trials(self, job: Job, kind: str, seeds: int) -> int:
        known = self._of_kind(job)
        try:
            profile = (
                Profile(**known["profile"]) if "profile" in known else self._profile(job, self.clients_per_vmap_of(job))
            )
        except Unprofiled as error:  # the record of the run says more, and only this one may fail
            self._on_message(f"{kind}: could not be profiled ({error}), so it gets a whole GPU")
            return 1
        self._remember(job, profile=asdict(profile))
        profile = profile.of_seeds(seeds)
        trials, by = trials_per_gpu(profile, self._by_cores)
        self._on_message(
            f"{kind}: one trial needs {profile.used_mb:,.0f} MB and {100 * profile.busy:.0f} % of a GPU's time, so {trials} "
            f"at once (bounded by {by})"
        )
        return trials

    def _of_kind(self, job: Job, seeds: int = 1) -> dict[str, Any]:
        found = self._known.get(self._hardware, {}).get(kind_of(job, seeds), {})
        return found if found.get("code") == code_version(job.config) else {}

    def _remember(self, job: Job, seeds: int = 1, **found: Any) -> None:
        kind, kinds = kind_of(job, seeds), self._known.setdefault(self._hardware, {})
        kinds[kind] = self._of_kind(job, seeds) | found | {"code": code_version(job.config)}
        write_file(self._path, json.dumps(self._known, indent=1) + "\n")


class Unprofiled(RuntimeError):
    """A kind of trial could not be profiled; says why."""


def shortened(config: RunConfig) -> RunConfig:
    """A config with the same needs of a GPU and short rounds, as many as anyone asks for."""
    import algorithms

    changes: dict[str, Any] = {
        "rounds": 10**6,
        "local_epochs": None,
        "local_steps": min(config.local_steps or _STEPS, _STEPS),
        "trace_local_models": None,
        "callbacks": [],
        "algorithm": config.algorithm | algorithms.load(config.algorithm["name"]).profile_options,
    }
    return config.model_copy(update=changes)


def measure(
    config: RunConfig,
    data_dir: Path | None,
    max_clients_per_vmap: int | None = None,
    engine: str = "auto",
    data_of_user: DataOfUser | None = None,
    tf32: bool = False,
) -> Profile:
    """Trains short rounds on this process's GPU: the first loads and tunes kernels, the others are measured.

    Args:
        max_clients_per_vmap: clients that train at once, at most; None for no bound.
        engine, tf32: as in `bench.execution.job.Job`.
        data_of_user: as `own_data` in `bench.execution.job.Inputs`; None if this process knows it.

    Raises:
        RuntimeError: if `nvidia-smi` does not tell how busy the GPU is.
    """
    import torch

    from bench.determinism import make_deterministic
    from bench.profiling import GpuUse
    from bench.simulation.run import Run
    from datasets import own_data
    from datasets import resized as images

    make_deterministic(tf32)
    if data_of_user:
        own_data.remember(data_of_user, config.dataset)
    dataset = images.of_config(config, data_dir)
    run = Run(
        shortened(config),
        dataset,
        device="cuda",
        engine=engine,
        max_clients_per_vmap=max_clients_per_vmap,
        data_dir=data_dir,
    )
    before, total = torch.cuda.mem_get_info()
    before += torch.cuda.memory_reserved()  # what the run holds already
    run.step()
    with GpuUse() as gpu:
        begin = end = time.perf_counter()
        while not run.finished and end < begin + _SECONDS:
            run.step()
            end = time.perf_counter()
        busy = gpu.between(begin, end)
    if busy is None:
        raise RuntimeError("nvidia-smi does not tell how busy the GPU is")
    free, _ = torch.cuda.mem_get_info()
    return Profile((before - free) / 1e6 + _CONTEXT_MB, total / 1e6, busy)
