"""A run to train, as a worker gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.simulation.retention import StateRetention
from datasets.own_data import DataOfUser

if TYPE_CHECKING:
    from bench.config.schema import RunConfig

BASE_PREFIX = "lent-"  # begins the names of folders of finished runs in a storage, from whose last states others start
CONTINUES = "continues after round"  # begins the note of a run that was interrupted before


def base_of(folder: str) -> str:
    """The run whose last state lies in a folder."""
    return folder.rpartition("/")[2].removeprefix(BASE_PREFIX)


@dataclass(frozen=True)
class Inputs:
    """What the driver has, and a machine that trains its runs must have, too; empty for what need not be compared.

    Attributes:
        code: `bench.config.code_version.code_version` of the run.
        images: digest of the dataset.
        own_data: what another process needs to know of data of users, which it need not have.
    """

    code: Mapping[str, str] = field(default_factory=dict)
    images: str = ""
    own_data: DataOfUser = DataOfUser()


@dataclass(frozen=True)
class Job:
    """One run to train.

    Attributes:
        id: its run id.
        config: where the job was read from a file, a `PlainConfig`, which has the same attributes.
        folder: where its worker writes checkpoints and states: an absolute path, or a URI that fsspec knows.
        retention: which states are kept.
        checkpoint_seconds: least time between checkpoints of the unfinished run; 0 for one after every round.
        engine: "loop", "vectorised", or "auto" for the faster one.
        tf32: as in `bench.determinism.make_deterministic`.
        max_clients_per_vmap: clients that train at once on the vectorised engine, at most; None for no bound.
        base: of a method that is `post_hoc`, where the finished run of its base left its state; "" if it has to be trained.
        marker: a file that the driver has written beside the folders of runs, a path or a URI: a worker that does not see it
            does not share the storage; "" if that need not be checked.
        inputs: a machine with others does not train the run.
    """

    id: str
    config: RunConfig
    folder: str
    retention: StateRetention
    checkpoint_seconds: float = 60.0
    engine: str = "auto"
    tf32: bool = False
    max_clients_per_vmap: int | None = None
    base: str = ""
    marker: str = ""
    inputs: Inputs = field(default_factory=Inputs)
