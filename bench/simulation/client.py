"""What one client gets in a round: settings, batches, data, and its view of the federation."""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algorithms.shared.tree import Tree
from bench.models.base import BoundModel, Model, Params
from bench.participation import cohort_size
from datasets.federation import Federation


@dataclass(frozen=True)
class Settings:
    """How every method trains; host values.

    Attributes:
        rounds: communication rounds.
        local_epochs: passes over a client's data per round, or None.
        local_steps: SGD steps per round, over as many reshuffled passes as they need, or None; exactly one is set.
        batch_size: examples per step.
        lr, momentum, weight_decay: of SGD; the decay is added to the gradient, momentum starts at 0 in every round.
        participation: cohort size / population, in (0, 1].
        last_batch: "keep" trains on the smaller last batch of a pass; "drop-if-full" drops it where the client has at
            least one full batch.
        nearest_cohort: whether the size of a cohort is rounded to the nearest integer, and not down.
    """

    rounds: int
    local_epochs: int | None
    local_steps: int | None
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    participation: float
    last_batch: str
    nearest_cohort: bool = False

    @classmethod
    def of(cls, config: Any) -> "Settings":
        """Those of a resolved run config."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})

    def cohort_size(self, population: int) -> int:
        """Clients of a round, of so many."""
        return cohort_size(population, self.participation, self.nearest_cohort)

    def passes(self, num_examples: int) -> list[list[int]]:
        """Batch sizes of each pass of one client over its data in one round."""
        full, rest = divmod(num_examples, self.batch_size)
        one = [self.batch_size] * full + ([rest] if rest and (self.last_batch == "keep" or not full) else [])
        if self.local_epochs is not None:
            return [one] * self.local_epochs
        whole, left = divmod(self.local_steps, len(one))
        return [one] * whole + ([one[:left]] if left else [])

    def num_visited(self, num_examples: int, smallest_batch: int = 1) -> int:
        """Examples that one client visits in one round, repetitions included; without batches of fewer than smallest_batch."""
        sizes = (size for one in self.passes(num_examples) for size in one)
        return sum(size for size in sizes if size >= smallest_batch)

    def num_steps(self, num_examples: int) -> int:
        """SGD steps of one client in one round."""
        return sum(len(sizes) for sizes in self.passes(num_examples))


class Batch(NamedTuple):
    """One mini-batch. Padding rows are its last ones.

    Attributes:
        x: [B, C, H, W].
        y: [B], int64.
        mask: [B], False for padding rows; None if all rows are real.
        key: int64 scalar, another for each client and step: what a loss draws, it draws as a function of it (see
            `bench.seeding.uniform_from_keys`). None outside of rounds.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    key: Tensor | None = None

    def mean(self, per_example: Tensor) -> Tensor:
        """Mean of per_example [B] over the real rows; 0 if there are none."""
        if self.mask is None:
            return per_example.mean()
        return torch.where(self.mask, per_example, 0).sum() / self.mask.sum().clamp(min=1)

    def halves(self) -> tuple["Batch", "Batch"]:
        """The first half of the real rows, rounded down, and the second half. Relies on padding being last."""
        if self.mask is None:
            middle = len(self.y) // 2
            return self._replace(x=self.x[:middle], y=self.y[:middle]), self._replace(
                x=self.x[middle:], y=self.y[middle:]
            )
        # How many rows are real differs between the clients that vmap traces: what is the same are the rows of half a batch.
        middle, rows = self.mask.sum() // 2, torch.arange(len(self.y), device=self.y.device)
        first = rows[: max(1, len(rows) // 2)]
        second = (middle + rows[: len(rows) - len(rows) // 2]).clamp(max=len(rows) - 1)
        return self._replace(x=self.x[first], y=self.y[first], mask=first < middle), self._replace(
            x=self.x[second], y=self.y[second], mask=self.mask[second]
        )


class BatchIndex(NamedTuple):
    """Which examples make one batch.

    Attributes:
        rows: [B], of the federation.
        mask: [B], False for padding rows; None if all are real.
        draws: of the transform, leaves [B].
        least: how many rows are real, at least, at every client that runs this step (a host value).
        key: of the batch.
    """

    rows: Tensor
    mask: Tensor | None
    draws: dict[str, Tensor]
    least: int
    key: Tensor | None = None


BatchPlan = list[BatchIndex]  # the batches of one client in one round; the same for every algorithm and engine


@dataclass(frozen=True)
class ClientData:
    """One client's access to its own examples."""

    federation: Federation
    noise_level: Tensor | None
    dtype: torch.dtype

    def take(self, index: BatchIndex) -> Batch:
        """The batch of those rows, augmented as drawn."""
        # Channels last makes convolutions and pooling of few channels faster; vmap does not know memory formats.
        layout = {"memory_format": torch.channels_last} if index.mask is None else {}
        x = self.federation.inputs(index.rows, index.draws, self.noise_level, self.dtype, **layout)
        return Batch(x, self.federation.labels[index.rows], index.mask, index.key)


@dataclass(frozen=True)
class ClientView:
    """What one client sees this round.

    Attributes:
        model: the model, bound to this client's buffers, in training mode.
        settings, round: host values.
        params, buffers: those that it starts from.
        server: those entries of the server state that the method broadcasts, or that clients draw.
        client: its own state.
        num_examples, num_steps: scalars (tensors: write formulas, not `if` or `range`).
        label_counts: [num_classes], its examples of each class.
    """

    model: BoundModel
    settings: Settings
    round: int
    params: Params
    buffers: Params
    server: Tree
    client: Tree
    num_examples: Tensor
    num_steps: Tensor
    label_counts: Tensor


class ClientOutputs(NamedTuple):
    """What a function returned on every client of a cohort: leaves [K, ...], and the buffers it left, [K, ...]."""

    result: Tree
    buffers: Tree


def bind(spec: Model, buffers: Params, generator: Any = None) -> BoundModel:
    """A model in training mode on its own copy of buffers."""
    return BoundModel(spec, {name: leaf.clone() for name, leaf in buffers.items()}, training=True, generator=generator)
