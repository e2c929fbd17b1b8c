"""What frozen encoders of two clients know: Tables 6 and 7, Figures 5 and 6 of FedConcat (Diao et al., AAAI 2024).

The first two clients of a cohort have trained one model each from a common start. Their encoders ("fe1", "fe2"), the average
of them ("favg") and both side by side ("fe") are frozen; a linear classifier and a decoder are trained on the features of
the clients' training images (`bench.measurements.heads`). Images are as they are, never augmented.

Values are named after encoders: "fe1-exchange" is the first client's encoder on the second client's images. The paper does not
say whether a row of Table 6 with exchange is of one encoder, or of one client's images:

- By client, which the table shows: row f_e1 is the first client's images, through f_e2, and its numbers are "fe2-exchange". At
  the paper's budget on Fashion-MNIST these are 0.2725 and 0.0650 (published 0.2345, 0.0657), of row f_e2 0.0487 and 0.0810
  (0.0292, 0.0816). So exchanging raises the classification loss tenfold and more ("10 times or even 40 times"), and on MNIST
  the reconstruction loss by 11 % and 7 % ("only 2%"). In Table 7 f_e2 has 0.2456 on the images of both.
- By encoder: row f_e1 would be f_e1 on the second client's images, 0.0487 and 0.0810, and row f_e2 0.2725 and 0.0650: all four
  numbers are far from the published ones. On MNIST exchanging would change the reconstruction loss by -29 % and +66 %.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.base import average_buffers
from bench.measurements import heads
from bench.measurements.features import tsne
from bench.models.base import BoundModel
from bench.seeding import generator_for

_BATCH = 500  # images per forward pass
_BOTH = 2  # as the examples of a head: those of both clients
# Row of a table -> encoder, and the client on whose examples its heads are trained.
_HEADS = {
    "exchange": {"fe1-own": ("fe1", 0), "fe1-exchange": ("fe1", 1), "fe2-own": ("fe2", 1), "fe2-exchange": ("fe2", 0)},
    "pooled": {name: (name, _BOTH) for name in ("fe1", "fe2", "favg", "fe")},
}


class Encoders:
    """Frozen encoders of two clients.

    Attributes:
        ids: of the clients.
        rows: of their training examples, a tensor each.
    """

    def __init__(self, task: Any, models: dict):
        """
        Args:
            task: the run's task.
            models: of `bench.simulation.local_models.local_models`.

        Raises:
            ValueError: if there are fewer than two clients, or images with noise.
        """
        if task.federation.noise_levels is not None:
            raise ValueError("encoders are compared on clean images, but the partition adds noise to them")
        if len(models["ids"]) < 2:
            raise ValueError(f"encoders of two clients are compared, but the cohort has {len(models['ids'])}")
        self.ids = models["ids"][:2].tolist()
        self.rows = [task.federation.clients[client] for client in self.ids]
        self._task = task
        self._models = {part: tree.map(lambda leaf: leaf[:2], models[part]) for part in ("params", "buffers")}
        self.features = functools.cache(self._features)

    def of_images(self, encoder: str, images: Tensor, rows: Tensor) -> Tensor:
        """Features of these rows of images, uint8 [N, C, H, W]: [n, feature_dim]."""
        if encoder == "fe":
            return torch.cat([self.of_images(name, images, rows) for name in ("fe1", "fe2")], 1)
        params, buffers = self._model(encoder)
        bound, scale = BoundModel(self._task.model, buffers), self._task.federation.transform.scale
        with torch.no_grad():
            batches = [bound.features(params, scale(images[part], self._task.dtype)) for part in rows.split(_BATCH)]
        return torch.cat(batches)

    def _features(self, encoder: str) -> Tensor:
        """Features of both clients' training images, the first client's first: [n_0 + n_1, feature_dim]."""
        if encoder == "fe":
            return torch.cat([self.features("fe1"), self.features("fe2")], 1)
        return self.of_images(encoder, self._task.federation.images, torch.cat(self.rows))

    def _model(self, encoder: str) -> tuple[dict, dict]:
        """Params and buffers of one client's model, or of the average weighted by examples."""
        params, buffers = self._models["params"], self._models["buffers"]
        if encoder == "favg":
            sizes = torch.tensor([len(rows) for rows in self.rows])
            return tree.weighted_mean(params, sizes), average_buffers(buffers, sizes)
        client = ("fe1", "fe2").index(encoder)
        return tree.row(params, client), tree.row(buffers, client)


def examples_of_heads(examples: str, sizes: Sequence[int], decoders: bool) -> tuple[int, int]:
    """How many heads `head_losses` trains, or without decoders `label_information`, and how many examples all of them visit.

    Args:
        examples: as there.
        sizes: examples that a head on those of the first client, of the second, and of both visits.
    """
    visited = [sizes[owner] for _, owner in _HEADS[examples].values() for _ in range(1 + decoders)]
    return len(visited), sum(visited)


def head_losses(task: Any, models: dict, examples: str, decoder_width: int) -> dict[str, Any]:
    """Losses of heads on frozen features after their training, which is that of the encoders: as many epochs, the same SGD.

    Args:
        task, models: as in `Encoders`.
        examples: "exchange" for those of either client, "pooled" for those of both.
        decoder_width: hidden units of the decoder; 0 is a linear one.

    Returns:
        "values": row -> "cls_loss", cross-entropy in nats, and "rec_loss", squared error per pixel; None if not finite.
        "clients": ids of the two. "label_counts": their training examples of each class.
    """
    encoders, federation = Encoders(task, models), task.federation
    first, rows = len(encoders.rows[0]), torch.cat(encoders.rows)
    parts = {0: slice(first), 1: slice(first, None), _BOTH: slice(None)}
    values = {}
    for name, (encoder, owner) in _HEADS[examples].items():
        features, chosen = encoders.features(encoder)[parts[owner]], rows[parts[owner]]
        pixels = federation.images[chosen].flatten(1).to(features.dtype) / 255
        known = heads.Examples(features, federation.labels[chosen])
        seen = heads.Examples(features, pixels)
        losses = {
            "cls_loss": heads.classification_loss(known, federation.num_classes, task.settings, task.seed, owner),
            "rec_loss": heads.reconstruction_loss(seen, decoder_width, task.settings, task.seed, owner),
        }
        values[name] = {metric: loss if math.isfinite(loss) else None for metric, loss in losses.items()}
    counts = federation.label_counts[encoders.ids].long().tolist()
    return {"values": values, "clients": encoders.ids, "label_counts": counts}


def label_information(task: Any, models: dict, examples: str) -> dict[str, Any]:
    """How much frozen features tell about labels: `heads.information`, with test images as held-out examples.

    Neither the encoders nor the classifiers have seen these images. They are all test images of the classes of a classifier's
    examples, or where clients have test images of their own, those of its clients.

    Args:
        task, models, examples: as in `head_losses`.

    Returns:
        "values": row -> "information", a lower bound of I(Z; Y), and "entropy", H(Y), in nats; None if not finite. "clients"
        and "label_counts" as there.
    """
    encoders, federation = Encoders(task, models), task.federation
    first, rows = len(encoders.rows[0]), torch.cat(encoders.rows)
    parts = {0: slice(first), 1: slice(first, None), _BOTH: slice(None)}
    values = {}
    for name, (encoder, owner) in _HEADS[examples].items():
        known = heads.Examples(encoders.features(encoder)[parts[owner]], federation.labels[rows[parts[owner]]])
        tested = _tested(federation, encoders.ids if owner == _BOTH else encoders.ids[owner : owner + 1])
        held_out = heads.Examples(
            encoders.of_images(encoder, federation.test_images, tested), federation.test_labels[tested]
        )
        bound, entropy = heads.information(known, held_out, federation.num_classes, task.settings, task.seed, owner)
        values[name] = {"information": bound if math.isfinite(bound) else None, "entropy": entropy}
    counts = federation.label_counts[encoders.ids].long().tolist()
    return {"values": values, "clients": encoders.ids, "label_counts": counts}


def _tested(federation: Any, ids: Sequence[int]) -> Tensor:
    """Rows of the test images of clients: their own, or if they have none, all of the classes that they train on."""
    if federation.test_clients is not None:
        return torch.cat([federation.test_clients[client] for client in ids])
    counts = federation.label_counts[list(ids)].sum(0).to(federation.test_labels.device)
    return (counts[federation.test_labels] > 0).nonzero().flatten()


def plane(task: Any, models: dict, names: Sequence[str], view: str, points: int) -> dict[str, Any]:
    """Features of training images of both clients in the plane.

    Args:
        task, models: as in `Encoders`.
        names: of the encoders.
        view: as in `project`.
        points: images of each client, at most; the same for all encoders and rounds.

    Returns:
        "panels": encoder -> "points" [n][2] and "axes", what to write at them. "labels", "owners" (ids): [n].

    Raises:
        ValueError: if features are not finite.
    """
    encoders = Encoders(task, models)
    shown = []
    for client, rows in enumerate(encoders.rows):
        order = torch.randperm(len(rows), generator=generator_for(task.seed, "points", client))
        shown.append(order[:points].sort().values + client * len(encoders.rows[0]))
    chosen, panels = torch.cat(shown), {}
    for name in names:
        features = encoders.features(name)[chosen].numpy()
        if not np.isfinite(features).all():
            raise ValueError("features are not finite")
        found, axes = project(features, view, task.seed)
        panels[name] = {"points": found.astype(float).round(6).tolist(), "axes": list(axes)}
    labels = task.federation.labels[torch.cat(encoders.rows)[chosen]].tolist()
    owners = np.repeat(encoders.ids, [len(part) for part in shown]).tolist()
    return {"panels": panels, "labels": labels, "owners": owners}


def project(features: np.ndarray, view: str, seed: int) -> tuple[np.ndarray, tuple[str, str]]:
    """Features in the plane.

    Args:
        features: [n, feature_dim], n >= 2.
        view: "pca" keeps distances as far as two directions can; "tsne" keeps neighbourhoods only.
        seed: of the start of t-SNE.

    Returns:
        [n, 2], and what to write at the axes.
    """
    if view == "pca":
        from sklearn.decomposition import PCA

        pca = PCA(2, svd_solver="full")
        with np.errstate(invalid="ignore"):  # features that are all alike have no variance to share
            points = pca.fit_transform(features)
        return points, tuple(
            f"component {number} ({share:.0%} of variance)"
            for number, share in enumerate(np.nan_to_num(pca.explained_variance_ratio_), start=1)
        )
    return tsne(features, seed % 2**32), ("t-SNE dimension 1", "t-SNE dimension 2")
