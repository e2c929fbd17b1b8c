"""The encoders of two clients, their features, and what heads reach on them; see `bench.analyses.encoders`."""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from algorithms import tree
from algorithms.base import average_buffers
from bench.analyses import encoder_heads
from bench.analyses.cache import Parts
from bench.analyses.encoder_heads import Examples
from bench.analyses.encoder_spec import EncoderSpec
from bench.models.base import BoundModel
from bench.seeding import generator_for
from bench.simulation.build import build_algorithm, build_task
from datasets import Dataset
from reports.figures import encoder_scatter

VERSION = 1  # raised whenever the numbers of the analysis may change
CLIENTS = torch.arange(2)
_EXAMPLES = {"client 0": 0, "client 1": 1, "both": 2}  # on which heads are trained, and the key of their batches
_BATCH = 500  # examples per forward pass


class Analysis:
    """The encoders, their features and the losses on them, each made when it is first asked for.

    Encoders are "fe1" and "fe2" (of the local models), "favg" (their average), "fe" (both side by side) and "fedavg-1",
    "fedavg-2"... (after rounds of FedAvg). Examples are those of "client 0", "client 1" or "both".

    Attributes:
        spec, dataset: what is analysed.
        task: the two clients.
        rows: rows of their examples.
    """

    def __init__(self, spec: EncoderSpec, dataset: Dataset, parts: Parts):
        self.spec, self.dataset, self._parts = spec, dataset, parts
        self.task = build_task(spec.local, dataset).restrict(CLIENTS)
        federation = self.task.federation
        if federation.noise_levels is not None:
            raise ValueError(f"Encoders are compared on clean images, but {spec.local.partition} adds noise to them.")
        self.rows = [federation.clients[client] for client in CLIENTS.tolist()]
        self._trained_on = {"version": VERSION, "digest": dataset.digest, "clients": CLIENTS.tolist()}
        self._features = functools.cache(self._compute_features)

    def loss(self, metric: str, encoder: str, examples: str) -> float | None:
        """The loss of a head on frozen features after its training; None if it is not finite."""
        head = {"head_epochs": self.spec.options.head_epochs, "head_lr": self.spec.options.head_lr}
        if metric == "rec_loss":
            head["decoder_width"] = self.spec.options.decoder_width
        of = {**self._of(self.spec.local), "encoder": encoder, "examples": examples, "metric": metric, **head}
        return self._parts.number(
            f"{metric} of {encoder} on {examples}", of, lambda: self._loss(metric, encoder, examples)
        )

    def draw(self, number: int, view: str, stem: Path) -> list[Path]:
        """Figure 5 or 6 as pictures.

        Raises:
            ValueError: if features are not finite.
        """
        shown = [self._shown(client) for client in CLIENTS.tolist()]
        names = {"fe1": "$f_{e1}$: client 0 alone", "fe2": "$f_{e2}$: client 1 alone", "fe": "$f_e$: both concatenated"}
        if number == 6:
            rounds = range(1, self.spec.options.fedavg_rounds + 1)
            names = {f"fedavg-{round}": f"FedAvg, round {round}" for round in rounds}
        chosen = torch.cat([shown[0], shown[1] + len(self.rows[0])])
        panels = [encoder_scatter.Panel(title, self._features(name)[chosen].numpy()) for name, title in names.items()]
        if not all(np.isfinite(panel.features).all() for panel in panels):
            raise ValueError(f"Figure {number} cannot be drawn: training diverged, and features are not finite.")
        local = self.spec.local
        return encoder_scatter.draw(
            panels,
            self.task.federation.labels[torch.cat(self.rows)[chosen]].numpy(),
            np.repeat(CLIENTS.numpy(), [len(part) for part in shown]),
            self.dataset.classes,
            stem,
            title=f"Features of both clients' images: {local.dataset}, {local.partition}, seed {local.seed}",
            view=view,
            seed=local.seed,
        )

    def _loss(self, metric: str, encoder: str, examples: str) -> float:
        first = len(self.rows[0])
        part = {"client 0": slice(first), "client 1": slice(first, None), "both": slice(None)}[examples]
        rows = torch.cat(self.rows)[part]
        features = self._features(encoder)[part]
        options, seed = self.spec.options, self.spec.local.seed
        settings = replace(self.task.settings, local_epochs=options.head_epochs, lr=options.head_lr)
        federation, key = self.task.federation, _EXAMPLES[examples]
        if metric == "cls_loss":
            known = Examples(features, federation.labels[rows])
            return encoder_heads.classification_loss(known, federation.num_classes, settings, seed, key)
        pixels = federation.images[rows].flatten(1).to(features.dtype) / 255
        width = options.decoder_width
        return encoder_heads.reconstruction_loss(Examples(features, pixels), width, settings, seed, key)

    def _compute_features(self, encoder: str) -> Tensor:
        """Features of both clients' examples, client 0's first: [n_0 + n_1, feature_dim]."""
        if encoder == "fe":
            return torch.cat([self._features("fe1"), self._features("fe2")], 1)
        model = self._model(encoder)
        bound, federation = BoundModel(self.task.model, model["buffers"]), self.task.federation
        with torch.no_grad():
            batches = [
                bound.features(model["params"], federation.transform.scale(federation.images[rows], self.task.dtype))
                for rows in torch.cat(self.rows).split(_BATCH)
            ]
        return torch.cat(batches)

    def _model(self, encoder: str) -> dict:
        """Params and buffers of a trained model."""
        if encoder in ("fe1", "fe2"):
            return self._local_model(int(encoder[2:]) - 1)
        if encoder == "favg":
            both = tree.stack([self._local_model(client) for client in CLIENTS.tolist()])
            sizes = torch.tensor([len(rows) for rows in self.rows])
            return {
                "params": tree.weighted_mean(both["params"], sizes),
                "buffers": average_buffers(both["buffers"], sizes),
            }
        return self._fedavg_models()[encoder]

    def _local_model(self, client: int) -> dict:
        def train():
            alone = self.task.restrict(torch.tensor([client]))
            local = build_algorithm(self.spec.local.algorithm)
            deployed = local.deploy(alone, local.step(alone, local.init(alone)), torch.arange(1))
            return {"params": tree.row(deployed.params, 0), "buffers": tree.row(deployed.buffers, 0)}

        return self._parts.model(f"fe{client + 1}", {**self._of(self.spec.local), "client": client}, train)

    def _fedavg_models(self) -> dict[str, dict]:
        def train():
            together = build_task(self.spec.fedavg, self.dataset).restrict(CLIENTS)
            fedavg = build_algorithm(self.spec.fedavg.algorithm)
            state, models = fedavg.init(together), {}
            for round in range(1, self.spec.options.fedavg_rounds + 1):
                state = fedavg.step(together, state)
                deployed = fedavg.deploy(together, state, CLIENTS)
                models[f"fedavg-{round}"] = {"params": deployed.params, "buffers": deployed.buffers}
            return models

        return self._parts.model("FedAvg", self._of(self.spec.fedavg), train)

    def _shown(self, client: int) -> Tensor:
        """Positions of the examples of a client that figures show, ascending."""
        order = torch.randperm(len(self.rows[client]), generator=generator_for(self.spec.local.seed, "points", client))
        return order[: self.spec.options.points].sort().values

    def _of(self, config) -> dict:
        return {**self._trained_on, "config": config.canonical()}
