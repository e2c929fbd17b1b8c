"""How the runs of an experiment are executed; without pydantic, which a machine for runs alone may lack."""

from dataclasses import dataclass
from pathlib import Path

from bench.simulation.retention import Final


@dataclass(frozen=True)
class ExecutionOptions:
    """How the runs of an experiment are executed: nothing of it is part of a run's id.

    Attributes:
        data_dir: where the images are.
        storage: where workers write checkpoints and states, a shared path or a URI; None for the results directory.
        checkpoint_seconds: least time between checkpoints of an unfinished run.
        engine: "loop", "vectorised", or "auto" for the faster one; their numbers agree up to rounding.
        tf32: whether GPUs compute faster and less exactly; see `bench.determinism.make_deterministic`.
        keep: how much of each run's last state is kept, at least.
        rerun: repeat finished runs. Each replaces the earlier one when it has finished, and the earlier results go to
            `superseded`. After a kill in between, the earlier results are still there, and the same command continues.
        keep_stale: use finished runs as they are, also if code on which their numbers depend has changed since.
        names_hosts: whether a record has the name of the machine on which its run was trained.
        track: the tracking service that gets every round, one of `bench.execution.tracking.KINDS`; None for none.
    """

    data_dir: Path | None = None
    storage: str | None = None
    checkpoint_seconds: float = 60.0
    engine: str = "auto"
    tf32: bool = False
    keep: Final = "deployed"
    rerun: bool = False
    keep_stale: bool = False
    names_hosts: bool = True
    track: str | None = None
