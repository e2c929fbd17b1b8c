"""How much of a GPU a trial gets: from a short profile of its kind, and from what did not fit before.

Trials of one kind (the same model, images, method, cohort and batch) need the same, so each kind is profiled once, and what
was found is remembered in the results directory.
"""

import json
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.resources import Resources
from bench.store import StoreError, write_file

MEMORY_SHARE = 0.85  # of a GPU's memory that is given away; fragments and libraries need the rest
BUSY_SHARE = 0.95  # of a GPU's time: more trials than that would only wait for each other
_STEPS = 8  # local steps of a profiled round


@dataclass(frozen=True)
class Profile:
    """What one trial does to a GPU that it has for itself.

    Attributes:
        used_mb, total_mb: memory, 10^6 bytes; used counts everything that the process holds.
        busy: share of the time in which the GPU works, in [0, 1].
    """

    used_mb: float
    total_mb: float
    busy: float


def kind_of(config: Any) -> str:
    """The kind of a run: runs of one kind need the same of a GPU."""
    model = config.model + (f" x{config.model_width:g}" if config.model_width != 1 else "")
    return (
        f"{config.dataset} {config.transform}, {model}, {config.algorithm['name']}, {config.cohort_size} clients per round, "
        f"batch {config.batch_size}"
    )


def trials_per_gpu(profile: Profile, most: int) -> tuple[int, str]:
    """How many trials share a GPU, and why.

    Args:
        most: trials that the cores of a GPU's machine can serve.
    """
    bounds = {
        "its memory": int(MEMORY_SHARE * profile.total_mb / max(profile.used_mb, 1)),
        "its time": int(BUSY_SHARE / max(profile.busy, 0.01)),
        "the cores": most,
    }
    by = min(bounds, key=bounds.get)
    return max(1, bounds[by]), by


class Shares:
    """Resources of jobs by their kind.

    Attributes:
        resources: of kinds that nothing else is known about.
    """

    def __init__(
        self,
        path: Path,
        resources: Resources,
        *,
        trials_by_cores: int,
        profile: Callable[[Any], Profile],
        say: Callable[[str], None],
    ):
        """
        Args:
            path: JSON file of what was found.
            trials_by_cores: trials that the cores of a GPU's machine can serve.
            profile: job -> its profile; called once per kind, if `resources.auto`.
            say: told what was chosen, and why.

        Raises:
            StoreError: if the file cannot be read.
        """
        self._path, self.resources = path, resources
        self._most, self._profile, self._say = trials_by_cores, profile, say
        try:
            self._known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except ValueError as error:
            raise StoreError(f"{path} is not readable JSON; remove it.") from error

    def of(self, job: Any) -> Resources:
        """What a job gets."""
        if not self.resources.gpus:
            return self.resources
        known = self._known.get(kind_of(job.config), {})
        if self.resources.auto and "trials" not in known:
            known = self._choose(job)
        most = self.resources.gpus if not self.resources.auto else 1 / known["trials"]
        return replace(self.resources, gpus=max(most, known.get("at_least", 0)), auto=False)

    def block_of(self, job: Any) -> int | None:
        """Clients that a job may train at once; None for no bound."""
        return self._known.get(kind_of(job.config), {}).get("block")

    def shrank(self, job: Any, block: int) -> None:
        """Remembers that only so many clients at once fit."""
        self._remember(job, block=block)

    def crowded(self, job: Any, had: Resources) -> bool:
        """Remembers that a job did not fit beside its neighbours; False if it had none."""
        if had.gpus >= 1:
            return False
        more = min(1.0, 2 * had.gpus)
        self._remember(job, at_least=more)
        self._say(
            f"{kind_of(job.config)}: out of GPU memory, so {int(1 / more)} at once instead of {int(1 / had.gpus)}"
        )
        return True

    def _choose(self, job: Any) -> dict:
        profile = self._profile(job)
        trials, by = trials_per_gpu(profile, self._most)
        self._say(
            f"{kind_of(job.config)}: one trial needs {profile.used_mb:,.0f} MB and {100 * profile.busy:.0f} % of a GPU's "
            f"time, so {trials} at once (bounded by {by})"
        )
        return self._remember(job, trials=trials, profile=asdict(profile))

    def _remember(self, job: Any, **found: Any) -> dict:
        kind = kind_of(job.config)
        self._known[kind] = self._known.get(kind, {}) | found
        write_file(self._path, json.dumps(self._known, indent=1) + "\n")
        return self._known[kind]


def measure(config: Any, data_dir: Path | None) -> Profile:
    """Plays two short rounds on this process's GPU: the first loads and tunes kernels, the second is measured."""
    import torch

    from bench import images
    from bench.run import Run

    short = config.model_copy(update={"local_epochs": None, "local_steps": _STEPS, "evaluate_every": 1})
    run = Run(short, images.load(config.dataset, config.transform, data_dir), device="cuda")
    run.step()
    samples, done = [], threading.Event()
    sampler = threading.Thread(target=_sample, args=(samples, done))
    sampler.start()
    if not run.finished:
        run.step()
    done.set()
    sampler.join()
    free, total = torch.cuda.mem_get_info()
    return Profile((total - free) / 1e6, total / 1e6, sum(samples) / len(samples))


def _sample(samples: list[float], done: threading.Event) -> None:
    """Appends the share of time in which the GPU worked, until it is done, at least once."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    while not samples or not done.wait(0.2):
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        samples.append(max(float(line) for line in printed.split()) / 100)
