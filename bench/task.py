"""What an algorithm may ask for: the clients, the model, the settings, and to run something on a cohort."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algorithms import tree
from algorithms.tree import Tree
from bench import engine
from bench.models.base import BoundModel, Model, Params
from bench.seeds import generator_for
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

    def passes(self, num_examples: int) -> list[list[int]]:
        """Batch sizes of each pass of one client over its data in one round."""
        full, rest = divmod(num_examples, self.batch_size)
        one = [self.batch_size] * full + ([rest] if rest and (self.last_batch == "keep" or not full) else [])
        if self.local_epochs is not None:
            return [one] * self.local_epochs
        whole, left = divmod(self.local_steps, len(one))
        return [one] * whole + ([one[:left]] if left else [])

    def num_steps(self, num_examples: int) -> int:
        """SGD steps of one client in one round."""
        return sum(len(sizes) for sizes in self.passes(num_examples))


class Batch(NamedTuple):
    """One mini-batch.

    Attributes:
        x: [B, C, H, W].
        y: [B], int64.
        mask: [B], False for padding rows; None if all rows are real.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None

    def mean(self, per_example: Tensor) -> Tensor:
        """Mean of per_example [B] over the real rows; 0 if there are none."""
        if self.mask is None:
            return per_example.mean()
        return torch.where(self.mask, per_example, 0).sum() / self.mask.sum().clamp(min=1)


class BatchIndex(NamedTuple):
    """Which examples make one batch.

    Attributes:
        rows: [B], of the federation.
        mask: [B], False for padding rows; None if all are real.
        draws: of the transform, leaves [B].
        least: how many rows are real, at least, at every client that runs this step (a host value).
    """

    rows: Tensor
    mask: Tensor | None
    draws: dict[str, Tensor]
    least: int


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
        return Batch(x, self.federation.labels[index.rows], index.mask)


@dataclass(frozen=True)
class ClientView:
    """What one client sees this round.

    Attributes:
        model: the model, bound to this client's buffers, in training mode.
        settings, round: host values.
        params: the params it starts from.
        server: those entries of the server state that the method broadcasts.
        client: its own state.
        num_examples, num_steps: scalars (tensors: write formulas, not `if` or `range`).
        label_counts: [num_classes], its examples of each class.
    """

    model: BoundModel
    settings: Settings
    round: int
    params: Params
    server: Tree
    client: Tree
    num_examples: Tensor
    num_steps: Tensor
    label_counts: Tensor


@dataclass(frozen=True)
class Cohort:
    """The clients of one round.

    Attributes:
        ids: [K], client ids within the task, ascending, on the host.
        num_examples, num_steps: [K].
        label_counts: [K, num_classes].
        population: number of clients of the task.
    """

    ids: Tensor
    num_examples: Tensor
    num_steps: Tensor
    label_counts: Tensor
    population: int


class Mapped(NamedTuple):
    """What a function returned on every client of a cohort: leaves [K, ...], and the buffers it left, [K, ...]."""

    result: Tree
    buffers: Tree


@dataclass(frozen=True)
class Task:
    """One federated learning problem.

    Attributes:
        model, settings, federation: what is trained, how, and on whose data.
        seed: of the run; every draw is keyed by it.
        engine: "loop" or "vectorised".
        dtype: of params and inputs.
        members: client ids of the federation that belong to the task, ascending; None for all.
    """

    model: Model
    settings: Settings
    federation: Federation
    seed: int
    engine: str = "loop"
    dtype: torch.dtype = torch.float32
    members: Tensor | None = None

    @property
    def population(self) -> int:
        return len(self.federation.clients) if self.members is None else len(self.members)

    @property
    def device(self) -> torch.device:
        return self.federation.device

    def restrict(self, ids: Tensor) -> "Task":
        """The same problem with a part of the clients; they keep their data and their randomness."""
        return replace(self, members=self.global_ids(ids))

    def global_ids(self, ids: Tensor) -> Tensor:
        """Ids within the federation of clients of this task."""
        return ids if self.members is None else self.members[ids]

    def initial_params(self) -> Params:
        """The initial model, the same for all clients and methods of one seed."""
        params = self.model.init(generator_for(self.seed, "init"))
        return tree.map(lambda leaf: leaf.to(self.device, self.dtype), params)

    def initial_buffers(self) -> Params:
        return tree.map(lambda leaf: leaf.to(self.device), self.model.init_buffers())

    def sample_cohort(self, round: int) -> Cohort:
        """The clients of a round: floor(population * participation) of the whole federation, at least one, without
        replacement. A restricted task gets those of them that are its members, perhaps none."""
        everyone = len(self.federation.clients)
        size = max(1, math.floor(everyone * self.settings.participation + 1e-9))
        drawn = torch.randperm(everyone, generator=generator_for(self.seed, "cohort", round))[:size].sort().values
        if self.members is not None:
            drawn = torch.isin(self.members, drawn).nonzero().flatten()
        return self.cohort(drawn)

    def cohort(self, ids: Tensor) -> Cohort:
        """A cohort of given clients [K] of this task."""
        everywhere = self.global_ids(ids)
        sizes = [len(self.federation.clients[client]) for client in everywhere.tolist()]
        steps = [self.settings.num_steps(size) for size in sizes]
        to_tensor = lambda values: torch.tensor(values, dtype=self.dtype, device=self.device)  # noqa: E731
        counts = self.federation.label_counts[everywhere].to(self.device, self.dtype)
        return Cohort(ids, to_tensor(sizes), to_tensor(steps), counts, self.population)

    def num_trained(self, cohort: Cohort) -> int:
        """Examples that a cohort visits in one round, repetitions included."""
        sizes = [len(self.federation.clients[client]) for client in self.global_ids(cohort.ids).tolist()]
        return sum(sum(map(sum, self.settings.passes(size))) for size in sizes)

    def map_clients(
        self,
        fn: Callable[[ClientData, BatchPlan, ClientView], Tree],
        cohort: Cohort,
        *,
        round: int,
        params: Params,
        buffers: Params,
        server: Tree | None = None,
        client: Tree | None = None,
        own_params: bool = False,
    ) -> Mapped:
        """Runs fn once per client of a cohort, on the task's engine.

        Args:
            fn: (data, plan, view) -> any tree of tensors; traced with a hidden client axis on the vectorised engine.
            cohort: the clients.
            round: names the batches and draws of this round.
            params, buffers: what clients start from, leaves [*p]; leaves [K, *p] if own_params.
            server: broadcast state, the same for all.
            client: state of these clients, leaves [K, ...].
            own_params: whether each client starts from params and buffers of its own.
        """
        per_client = {
            "client": client or {},
            "num_examples": cohort.num_examples,
            "num_steps": cohort.num_steps,
            "label_counts": cohort.label_counts,
        }
        shared = {"settings": self.settings, "round": round, "server": server or {}}
        start = {"params": params, "buffers": buffers}
        (per_client if own_params else shared).update(start)
        return engine.ENGINES[self.engine](self, fn, self.global_ids(cohort.ids).tolist(), shared, per_client)

    def batch_indices(self, client: int, round: int) -> tuple[Tensor, dict[str, Tensor], list[int]]:
        """The examples a client of the federation visits in a round.

        Returns:
            rows [T] and draws (leaves [T]) of all batches one after another, on the device, and the batch sizes.
        """
        rows = self.federation.clients[client]
        passes = self.settings.passes(len(rows))
        order = generator_for(self.seed, "batches", round, client)
        visited = torch.cat([torch.randperm(len(rows), generator=order)[: sum(sizes)] for sizes in passes])
        noisy = self.federation.noise_levels is not None
        draws = self.federation.transform.draw(
            len(visited), generator_for(self.seed, "augment", round, client), noisy=noisy
        )
        draws = tree.map(lambda leaf: leaf.to(self.device), draws)
        return rows[visited].to(self.device), draws, sum(passes, [])

    def data_of(self, client: int) -> ClientData:
        """Access to the examples of a client of the federation."""
        levels = self.federation.noise_levels
        return ClientData(self.federation, None if levels is None else levels[client].to(self.device), self.dtype)


def bind(spec: Model, buffers: Params, generator: Any = None) -> BoundModel:
    """A model in training mode on its own copy of buffers."""
    return BoundModel(spec, {name: leaf.clone() for name, leaf in buffers.items()}, training=True, generator=generator)
