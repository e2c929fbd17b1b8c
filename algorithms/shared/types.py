"""What the hooks of methods get: on a client its data, batches and view, on the server the task and its cohorts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from algorithms.shared.tree import Tree
from bench.models.base import BoundModel, Model, Params
from bench.models.pretrained import Pretrained
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
        lr, momentum, weight_decay: of SGD; the decay is added to the gradient, momentum starts at 0 in every round. In hooks
            lr is that of the round.
        participation: cohort size / population, in (0, 1].
        last_batch: "keep" trains on the smaller last batch of a pass; "drop-if-full" drops it where the client has at
            least one full batch.
        nearest_cohort: whether the size of a cohort is rounded to the nearest integer, and not down.
        lr_decay: factor on lr from one round to the next, in (0, 1].
        max_gradient_norm: gradients that are longer, over all params that a step moves, are shortened to it; or None.
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
    lr_decay: float = 1.0
    max_gradient_norm: float | None = None

    @classmethod
    def of(cls, config: Any) -> "Settings":
        """Those of a resolved run config."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})

    def in_round(self, round: int) -> "Settings":
        """Those of a round, from 0, if these are of the first one: lr is lr lr_decay^round."""
        return self if self.lr_decay == 1 else replace(self, lr=self.lr * self.lr_decay**round)

    def one_pass(self, **changes: Any) -> "Settings":
        """The settings, with other changes, of a round in which each client goes through its data once."""
        return replace(self, local_epochs=1, local_steps=None, **changes)

    def cohort_size(self, population: int) -> int:
        """Clients of a round, of so many."""
        return cohort_size(population, self.participation, self.nearest_cohort)

    def passes(self, num_examples: int) -> list[list[int]]:
        """Batch sizes of each pass of one client over its data in one round."""
        full, rest = divmod(num_examples, self.batch_size)
        one = [self.batch_size] * full + ([rest] if rest and (self.last_batch == "keep" or not full) else [])
        if self.local_epochs is not None:
            return [one] * self.local_epochs
        whole, left = divmod(cast(int, self.local_steps), len(one))
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
        half, rows = self.mask.sum() // 2, torch.arange(len(self.y), device=self.y.device)
        first = rows[: max(1, len(rows) // 2)]
        second = (half + rows[: len(rows) - len(rows) // 2]).clamp(max=len(rows) - 1)
        return self._replace(x=self.x[first], y=self.y[first], mask=first < half), self._replace(
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


class ClientData(Protocol):
    """One client's access to its own examples."""

    @property
    def federation(self) -> Federation: ...

    def take(self, index: BatchIndex) -> Batch:
        """The batch of those rows, augmented as drawn."""
        ...


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


OnClient = Callable[[ClientData, BatchPlan, ClientView], Tree]  # what runs on each client; `local_update` is one
Loss = Callable[[Tree, Batch, ClientView], Tensor]  # (params, batch, view) -> scalar; `local_loss` is one


@dataclass(frozen=True)
class Cohort:
    """The clients of one round.

    Attributes:
        ids: [K], client ids within the task, on the host; ascending, unless the method samples them in an order of its own.
        num_examples, num_steps: [K].
        label_counts: [K, num_classes].
        population: number of clients of the task.
        weights: [K], >= 0, not all 0; by which the server weighs clients in means: num_examples, unless the task has a rule
            of its own (`Task.weigh`).
    """

    ids: Tensor
    num_examples: Tensor
    num_steps: Tensor
    label_counts: Tensor
    population: int
    weights: Tensor = cast(Tensor, None)

    def __post_init__(self) -> None:
        if self.weights is None:
            object.__setattr__(self, "weights", self.num_examples)

    def of(self, position: int) -> "Cohort":
        """One client of this cohort, with the weight that it has here."""
        own = slice(position, position + 1)
        return Cohort(
            ids=self.ids[own],
            num_examples=self.num_examples[own],
            num_steps=self.num_steps[own],
            label_counts=self.label_counts[own],
            population=self.population,
            weights=self.weights[own],
        )


class Task(Protocol):
    """One federated learning problem: of `bench.simulation.task.Task`, which says what each part is, what methods use.

    `dataclasses.replace` makes one with another model, other settings or another seed.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def model(self) -> Model: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def federation(self) -> Federation: ...
    @property
    def seed(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def initial_model(self) -> int: ...
    @property
    def population(self) -> int: ...
    @property
    def cohort_share(self) -> float: ...

    def restrict(self, ids: Tensor) -> "Task": ...
    def global_ids(self, ids: Tensor) -> Tensor: ...
    def generator_for(self, purpose: str, *ids: int) -> torch.Generator: ...
    def cached(
        self, purpose: str, key: tuple, compute: Callable[[], Tree], is_valid: Callable[[Any], bool]
    ) -> Tree: ...
    def initial_params(self) -> Params: ...
    def initial_buffers(self) -> Params: ...
    def place(self, params: Params) -> Params: ...
    def pretrained(self, name: str) -> Pretrained: ...
    def sample_cohort(self, round: int) -> Cohort: ...
    def cohort(self, ids: Tensor) -> Cohort: ...
    def sizes(self, ids: Tensor) -> list[int]: ...
    def require_batches(self, models: Sequence[Model], drops: bool = True) -> None: ...
    def num_trained(self, cohort: Cohort, smallest_batch: int = 1) -> int: ...
    def streams(self, num_bytes: int) -> bool: ...
    @property
    def trains_models_at_once(self) -> bool: ...
    def map_clients(
        self,
        fn: OnClient,
        cohort: Cohort,
        *,
        round: int,
        params: Params,
        buffers: Params,
        server: Tree | None = None,
        client: Tree | None = None,
        own_params: bool = False,
    ) -> ClientOutputs: ...
    def map_images(self, fn: Callable[[Tensor, int], Tensor], images: Tensor) -> Tensor: ...


class RunConfig(Protocol):
    """The settings of a run before there is a task: what methods read of `bench.config.schema.RunConfig`."""

    @property
    def dataset(self) -> str: ...
    @property
    def partition(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def population(self) -> int: ...
    @property
    def cohort_size(self) -> int: ...
    @property
    def participation(self) -> float: ...
    @property
    def rounds(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def lr_decay(self) -> float: ...
