"""What is one client's own: its examples, and its copy of the model."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algorithms.shared.types import Batch, BatchIndex
from bench.models.base import BoundModel, Model, Params
from datasets.federation import Federation


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


def bind(spec: Model, buffers: Params, generator: Any = None) -> BoundModel:
    """A model in training mode on its own copy of buffers."""
    return BoundModel(spec, {name: leaf.clone() for name, leaf in buffers.items()}, training=True, generator=generator)
