"""What an algorithm gets: the clients, the model, the settings, and a way to run a function on every client of a cohort."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.tree import Tree
from algorithms.shared.types import ClientOutputs, Cohort, OnClient, Settings
from bench.models import pretrained
from bench.models.base import Model, Params
from bench.models.pretrained import Pretrained
from bench.seeding import generator_for
from bench.simulation.cached import digest_of, kept
from bench.simulation.client import ClientData
from bench.simulation.engines import ENGINES, LARGEST_STACK, BlockRunner
from datasets.federation import Federation

# Images per forward pass without training: as many as fit into the cache of a CPU, and of small images and models as many as
# keep a GPU busy. Those that normalise by batches or drop out are large: with 5000, ResNet-50 would need 17 GB.
_AT_ONCE, _ON_GPU, _SMALL = 500, 5000, 3 * 32 * 32


def images_at_once(model: Model, device: torch.device) -> int:
    """Images that go through a model at once without training."""
    is_small = math.prod(model.input_shape) <= _SMALL
    return _ON_GPU if device.type == "cuda" and is_small and not model.loop_only else _AT_ONCE


@dataclass(frozen=True)
class Task:
    """One federated learning problem.

    Attributes:
        model, settings, federation: what is trained, how, and on whose data.
        seed: of the run; every draw is keyed by it.
        engine: "loop" or "vectorised".
        dtype: of params, running statistics and inputs.
        members: client ids of the federation that belong to the task, ascending; None for all.
        initial_model: which of the seed's independent initial models `initial_params` draws; 0 is everybody's.
        max_clients_per_vmap: clients that train at once on the vectorised engine, at most; None for no bound.
        graphs: launches blocks of the vectorised engine that come again as a whole; None for kernel by kernel.
        largest_stack: bytes of a cohort's results that the loop engine holds at once, at most, if their means are enough.
        cache_dir: where `cached` keeps what it computes; None for nowhere.
        weights: of the encoder of every initial model; None for random ones.
        data_dir: where `pretrained` looks for files with weights.
        weigh: the weights of a cohort's clients on the server [K], from the cohort; None for their numbers of examples.
    """

    model: Model
    settings: Settings
    federation: Federation
    seed: int
    engine: str = "loop"
    dtype: torch.dtype = torch.float32
    members: Tensor | None = None
    initial_model: int = 0
    max_clients_per_vmap: int | None = None
    graphs: BlockRunner | None = None
    largest_stack: int = LARGEST_STACK
    cache_dir: Path | None = None
    weights: Pretrained | None = None
    data_dir: Path | None = None
    weigh: Callable[[Cohort], Tensor] | None = None

    @property
    def population(self) -> int:
        return len(self.federation.clients) if self.members is None else len(self.members)

    @property
    def cohort_share(self) -> float:
        """Share of all clients that trains in a round: the participation, in whole clients."""
        everyone = len(self.federation.clients)
        return self.settings.cohort_size(everyone) / everyone

    @property
    def device(self) -> torch.device:
        return self.federation.device

    def in_round(self, round: int) -> "Task":
        """The same problem with the settings of a round, from 0 (see `Settings.in_round`); this task has those of the first
        one."""
        return replace(self, settings=self.settings.in_round(round))

    def restrict(self, ids: Tensor) -> "Task":
        """The same problem with a part of the clients; they keep their data and their randomness."""
        return replace(self, members=self.global_ids(ids))

    def global_ids(self, ids: Tensor) -> Tensor:
        """Ids within the federation of clients of this task."""
        return ids if self.members is None else self.members[ids]

    def generator_for(self, purpose: str, *ids: int) -> torch.Generator:
        """A generator of this task's seed, on the host (see `bench.seeding`)."""
        return generator_for(self.seed, purpose, *ids)

    def cached(self, purpose: str, key: tuple, compute: Callable[[], Tree], is_valid: Callable[[Any], bool]) -> Tree:
        """What compute returns, computed once for all runs on a machine with the same data, partition and seed.

        Args:
            purpose: a name of what is computed.
            key: numbers and texts on which it depends, beside the data, seed, precision and kind of device of this task.
            compute: returns nested dicts of tensors on the host; may depend on nothing else, and not on `settings` or `model`.
                The code of its module counts, with all that this imports.
            is_valid: whether something of any type, read from a file that others may have written, may be what compute returns;
                if not, it is computed anew.
        """
        if self.cache_dir is None:
            return compute()
        name = f"{purpose}-{digest_of(self, purpose, key, compute.__module__)}.pt"
        return kept(self.cache_dir, name, compute, is_valid)

    def initial_params(self) -> Params:
        """The initial model, the same for all clients and methods of one seed."""
        which = [self.initial_model] if self.initial_model else []
        params = self.model.init(self.generator_for("init", *which))
        return self.place(params | (self.weights.params if self.weights else {}))

    def place(self, params: Params) -> Params:
        """Params on the device and in the precision of the task."""
        return tree.map(lambda leaf: leaf.to(self.device, self.dtype), params)

    def initial_buffers(self) -> Params:
        buffers = self.model.init_buffers() | (self.weights.buffers if self.weights else {})
        # Counters stay integers.
        return tree.map(lambda leaf: leaf.to(self.device, self.dtype if leaf.is_floating_point() else None), buffers)

    def pretrained(self, name: str) -> Pretrained:
        """A network with the ImageNet weights in a file, which a method may use beside the model; see
        `bench.models.pretrained.load`."""
        return pretrained.load(name, self.data_dir)

    def sample_cohort(self, round: int) -> Cohort:
        """The clients of a round: as many of the whole federation as `Settings.cohort_size` says, without replacement. A
        restricted task gets those of them that are its members, perhaps none."""
        everyone = len(self.federation.clients)
        size = self.settings.cohort_size(everyone)
        drawn = torch.randperm(everyone, generator=self.generator_for("cohort", round))[:size].sort().values
        if self.members is not None:
            drawn = torch.isin(self.members, drawn).nonzero().flatten()
        return self.cohort(drawn)

    def cohort(self, ids: Tensor) -> Cohort:
        """A cohort of given clients [K] of this task."""
        sizes = self.sizes(ids)
        steps = [self.settings.num_steps(size) for size in sizes]
        to_tensor = lambda values: torch.tensor(values, dtype=self.dtype, device=self.device)  # noqa: E731
        counts = self.federation.label_counts[self.global_ids(ids)].to(self.device, self.dtype)
        cohort = Cohort(ids, to_tensor(sizes), to_tensor(steps), counts, self.population)
        return replace(cohort, weights=self.weigh(cohort)) if self.weigh else cohort

    def sizes(self, ids: Tensor) -> list[int]:
        """Number of examples of clients of this task."""
        return [len(self.federation.clients[client]) for client in self.global_ids(ids).tolist()]

    def require_batches(self, models: Sequence[Model], drops: bool = True) -> None:
        """Raises ValueError if a client has a batch that is too small for one of the models in training mode.

        Args:
            drops: whether `last_batch` can drop such a batch.
        """
        least = max(model.smallest_batch for model in models)
        sizes = self.sizes(torch.arange(self.population)) if least > 1 else []
        for client, size in enumerate(sizes):
            if size and min(map(min, self.settings.passes(size))) < least:
                dropping = "last_batch drop-if-full, " if drops else ""
                raise ValueError(
                    f"The model takes batch statistics of at least {least} examples, but client {client} with {size} has a "
                    f"smaller batch; use another batch_size, {dropping}larger images, or more examples."
                )

    def num_trained(self, cohort: Cohort, smallest_batch: int = 1) -> int:
        """Examples that a cohort visits in one round, repetitions included; without batches of fewer than smallest_batch."""
        return sum(self.settings.num_visited(size, smallest_batch) for size in self.sizes(cohort.ids))

    def streams(self, num_bytes: int) -> bool:
        """Whether clients train one after another, and means of their results are added up as they finish, where all results
        together are that large: only on the loop engine. The vectorised one is bounded by
        `max_clients_per_vmap`."""
        return self.engine == "loop" and num_bytes > self.largest_stack

    @property
    def trains_models_at_once(self) -> bool:
        """Whether clients that start from different models train at once: on the vectorised engine on a GPU, where launches are
        the limit. On a CPU they do not, so that numbers stay: products with params of each client's own are added up in another
        order than products with params that all share."""
        return self.engine == "vectorised" and self.device.type != "cpu"

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
    ) -> ClientOutputs:
        """Runs fn once per client of a cohort, on the task's engine.

        Args:
            fn: (data, plan, view) -> any tree of tensors; traced with a hidden client axis on the vectorised engine.
            cohort: the clients.
            round: names the batches and draws of this round.
            params, buffers: what clients start from, leaves [*p].
            server: broadcast state, leaves [...].
            client: state of these clients, leaves [K, ...].
            own_params: whether each client has params, buffers and a broadcast state of its own: all their leaves are [K, ...].
        """
        per_client = {
            "client": client or {},
            "num_examples": cohort.num_examples,
            "num_steps": cohort.num_steps,
            "label_counts": cohort.label_counts,
        }
        shared = {"settings": self.settings, "round": round}
        received = {"params": params, "buffers": buffers, "server": server or {}}
        (per_client if own_params else shared).update(received)
        return ENGINES[self.engine](self, fn, self.global_ids(cohort.ids).tolist(), shared, per_client)

    @torch.no_grad()
    def map_images(self, fn: Callable[[Tensor, int], Tensor], images: Tensor) -> Tensor:
        """fn of all images, scaled as in evaluation, batch by batch.

        Args:
            fn: (inputs [B, C, H, W], index of the first of them) -> [B, ...].
            images: uint8 [n, C, H, W].

        Returns:
            [n, ...].
        """
        scale, size = self.federation.transform.scale, images_at_once(self.model, self.device)
        outputs = [
            fn(scale(batch, self.dtype, memory_format=torch.channels_last), position * size)
            for position, batch in enumerate(images.split(size))
        ]
        return torch.cat(outputs)

    def batch_indices(self, client: int, round: int) -> tuple[Tensor, dict[str, Tensor], list[int]]:
        """The examples a client of the federation visits in a round.

        Returns:
            rows [T] and draws (leaves [T]) of all batches one after another, on the host, and the batch sizes.
        """
        rows = self.federation.clients[client]
        passes = self.settings.passes(len(rows))
        order = self.generator_for("batches", round, client)
        visited = torch.cat([torch.randperm(len(rows), generator=order)[: sum(sizes)] for sizes in passes])
        noisy = self.federation.noise_levels is not None
        draws = self.federation.transform.draw(len(visited), self.generator_for("augment", round, client), noisy=noisy)
        return rows[visited], draws, sum(passes, [])

    def data_of(self, client: int) -> ClientData:
        """Access to the examples of a client of the federation."""
        levels = self.federation.noise_levels
        return ClientData(self.federation, None if levels is None else levels[client].to(self.device), self.dtype)
