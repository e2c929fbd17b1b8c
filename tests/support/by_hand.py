"""One client by hand: its examples, a plan, and a view, for hooks that are called without an engine."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from algorithms.shared import tree
from algorithms.shared.types import Batch, BatchIndex, ClientOutputs, ClientView, Cohort, Settings
from bench.models.base import BoundModel, Model

PLAIN = Settings(
    rounds=1,
    local_epochs=1,
    local_steps=None,
    batch_size=100,
    lr=0.1,
    momentum=0.0,
    weight_decay=0.0,
    participation=1.0,
    last_batch="keep",
)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True)
class Given:
    """The examples x [n, ...] and y [n] of a client."""

    x: torch.Tensor
    y: torch.Tensor

    def take(self, index):
        return Batch(self.x[index.rows], self.y[index.rows], index.mask, index.key)

    def batch(self):
        return self.take(self.plan()[0])

    def plan(self, batch_size=100):
        """One pass, in order."""
        rows = torch.arange(len(self.x)).split(batch_size)
        return [BatchIndex(some, None, {}, len(some), torch.tensor(7 + step)) for step, some in enumerate(rows)]

    def view(self, model, params, buffers=None, server=None, client=None, settings=PLAIN):
        buffers = buffers or {}
        labels = self.y.flatten().long().clamp(min=0)
        counts = torch.bincount(labels, minlength=model.num_classes).double()
        size, steps = double(len(self.x)), double(settings.num_steps(len(self.x)))
        bound = BoundModel(model, {name: leaf.clone() for name, leaf in buffers.items()}, training=True)
        return ClientView(bound, settings, 0, params, buffers, server or {}, client or {}, size, steps, counts)


@dataclass(frozen=True)
class Alone:
    """What methods ask of a task, of clients with given examples."""

    model: Model
    clients: list[Given]
    settings: Settings = PLAIN
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float64

    @property
    def population(self):
        return len(self.clients)

    def cohort(self, ids):
        sizes = double([len(self.clients[client].x) for client in ids.tolist()])
        return Cohort(ids, sizes, sizes, sizes[:, None], self.population)

    def map_clients(self, fn, cohort, *, round, params, buffers, server=None, client=None):
        results, left = [], []
        for position, number in enumerate(cohort.ids.tolist()):
            data, kept = self.clients[number], tree.row(client or {}, position)
            view = data.view(self.model, params, buffers, server, kept, self.settings)
            results.append(fn(data, data.plan(self.settings.batch_size), view))
            left.append(view.model.buffers)
        return ClientOutputs(tree.stack(results), tree.stack(left))


@dataclass(frozen=True)
class FromFeatures(Model):
    """A classifier of given features [B, d], to which a param "body.moved" [B, d] is added: it has their gradient."""

    def layers(self):
        return {"body": self.input_shape, "classifier": (self.num_classes, self.input_shape[-1])}

    def features(self, params, x, bound):
        return x + params.get("body.moved", 0)

    def head(self, params, z):
        return F.linear(z, params["classifier.weight"], params.get("classifier.bias"))


@dataclass(frozen=True)
class Pixels(Model):
    """A linear classifier of the pixels."""

    def layers(self):
        return {"classifier": (self.num_classes, math.prod(self.input_shape))}

    def features(self, params, x, bound):
        return x.flatten(1)


@dataclass(frozen=True)
class Point(Model):
    """One parameter, which starts at 1."""

    def init(self, generator):
        return {"w": torch.ones(1)}


def features_of(task, client, params, buffers, training=False):
    """Features of a client's examples, of a toy task without augmentation."""
    images = task.federation.inputs(task.federation.clients[client], {}, None, task.dtype)
    bound = BoundModel(task.model, {name: leaf.clone() for name, leaf in buffers.items()}, training)
    return bound.features(params, images)


def slope_of(task, client, params, buffers):
    """The gradient of the mean cross-entropy of a client's examples, in evaluation mode."""
    labels = task.federation.labels[task.federation.clients[client]]
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    logits = task.model.head(leaves, features_of(task, client, leaves, buffers))
    return dict(zip(leaves, torch.autograd.grad(F.cross_entropy(logits, labels), [*leaves.values()]), strict=True))


def view_of(task, params):
    """What the first client of a task sees, and its first batch."""
    seen = {}

    def look(data, plan, view):
        seen["view"], seen["batch"] = view, data.take(plan[0])
        return {}

    task.map_clients(look, task.cohort(torch.tensor([0])), round=0, params=params, buffers={})
    return seen["view"], seen["batch"]
