"""Views and cohorts that are made up, for hooks that are called without an engine."""

from dataclasses import dataclass, replace

import torch

from algorithms.shared.types import ClientView, Cohort
from bench.models.base import BoundModel, Model
from tests.support.toy import SETTINGS


@dataclass(frozen=True)
class Given(Model):
    """A model whose features are its param z for every example, and whose logits are its param logits."""

    def features(self, params, x, bound):
        return params["z"].expand(len(x), -1)

    def head(self, params, z):
        return params["logits"].expand(len(z), -1)


def view(params, *, round=1, client=None, label_counts=(1.0, 1.0, 1.0), num_steps=4.0, server=None, **settings):
    return ClientView(
        model=BoundModel(Given((1, 1, 1), 3), {}, training=True),
        settings=replace(SETTINGS, **settings),
        round=round,
        params=params,
        buffers={},
        server=server or {},
        client=client or {},
        num_examples=torch.tensor(8.0),
        num_steps=torch.tensor(num_steps),
        label_counts=torch.tensor(label_counts),
    )


def cohort(*examples):
    sizes = torch.tensor(examples, dtype=torch.float64)
    return Cohort(
        torch.arange(len(examples)), sizes, torch.ones(len(examples)), torch.ones(len(examples), 1), len(examples)
    )
