"""CCVR: the classifier is calibrated with virtual features, drawn from Gaussians of the clients' features.

Luo et al., No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data, NeurIPS 2021.
https://arxiv.org/abs/2106.05001
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from algorithms import Deployed, State, Task, at_least, one_of, registered, tree
from algorithms.shared.calibration import Calibration, features_of
from algorithms.shared.class_gaussians import Gaussian, allocate, draw, gaussian_of, pool_classes, separability
from bench.models.base import Model
from bench.models.concat import encoder_part
from bench.seeding import seed_for

TransformStage = Literal["before_stats", "on_samples", "none"]


@registered("ccvr", symbols={"virtual_per_class": "M_c"})
@dataclass(frozen=True)
class CCVR(Calibration):
    """Algorithm 1 of the paper, once, after training: all clients send count, mean and covariance of the features of each of
    their classes, and the server trains the classifier again on vectors drawn from the pooled Gaussians.

    Differs from the paper: it does not say what ReLU and Tukey's transformation apply to, nor what happens in evaluation.
    By default clients transform features before they take statistics, and the deployed model transforms them, too.

    Attributes:
        virtual_per_class: M_c of the paper, virtual features of each class, >= 0; 0 leaves the classifier as it is.
        proportional: divides the same total among classes in proportion to their training examples.
        transform_stage: features are transformed "before_stats", vectors are transformed "on_samples", or "none".
    """

    virtual_per_class: int = 100
    proportional: bool = False
    transform_stage: TransformStage = "before_stats"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("virtual_per_class", self.virtual_per_class, 0)
        one_of("transform_stage", self.transform_stage, get_args(TransformStage))

    @property
    def transforms(self) -> bool:
        return bool(self.virtual_per_class) and self.transform_stage != "none"

    def changed(self, task: Task, deployed: Deployed, state: State, client_ids: Tensor) -> Deployed:
        if not self.virtual_per_class:
            return deployed
        gaussians = self._pooled(task, deployed)
        wanted = self._virtual_counts(gaussians, deployed.model.num_classes)
        drawn = {
            label: draw(one, wanted[label], seed_for(task.seed, "virtual", label) >> 2).to(task.dtype)
            for label, one in gaussians.items()
        }
        vectors = torch.cat(list(drawn.values()))
        labels = torch.cat([torch.full((len(part),), label) for label, part in drawn.items()]).to(vectors.device)
        if self.transform_stage == "on_samples":
            vectors = self.transformed(vectors)
        epochs = self.epochs_on(len(labels))
        params = self.retrain(task, deployed, vectors, labels, epochs)
        found = self.with_classifier(deployed, params, len(labels) * epochs)
        return found._replace(diagnostics=separability(list(gaussians.values())))

    def retrained_on(self, num_examples: int, num_classes: int) -> tuple[int, int]:
        """As if clients have examples of every class."""
        count = self.virtual_per_class * num_classes
        return count, self.epochs_on(count)

    def change_traffic(self, task: Task, model: Model) -> dict[str, int]:
        """Each client receives the encoder, and sends the statistics of each class that it holds."""
        if not self.virtual_per_class:
            return super().change_traffic(task, model)
        num_held = int((task.federation.label_counts > 0).sum())
        encoder = tree.num_bytes([encoder_part(model.init(task.generator_for("init"))), model.init_buffers()])
        return {"bytes_down": task.population * encoder, "bytes_up": upload_size(model.feature_dim, num_held)}

    def traffic(self, task: Task) -> int:
        # Who holds which classes is not known before the images are: as if each client held every class.
        absent = int((task.federation.label_counts == 0).sum()) if self.virtual_per_class else 0
        more = upload_size(self.deployed_model(task).feature_dim, absent)
        return super().traffic(task) + math.ceil(more / task.population)

    @property
    def traffic_is_bound(self) -> bool:
        return bool(self.virtual_per_class) or super().traffic_is_bound

    def caveats(self, task: Task) -> list[str]:
        absent = (task.federation.label_counts.sum(0) == 0).nonzero().flatten().tolist()
        own = [
            f"ccvr: no client has an example of {', '.join(map(str, absent))}, so there are no virtual features of it."
        ]
        return super().caveats(task) + (own if absent else [])

    def _pooled(self, task: Task, deployed: Deployed) -> dict[int, Gaussian]:
        """Gaussian of each class over all clients, of transformed features where the stage says so."""
        federation = task.federation

        def held_by(rows: Tensor) -> dict[int, Gaussian]:
            rows = rows.to(federation.device)
            features = features_of(task, deployed, federation.images[rows])
            if self.transform_stage == "before_stats":
                features = self.transformed(features)
            labels = federation.labels[rows]
            return {label: gaussian_of(features[labels == label]) for label in labels.unique().tolist()}

        return pool_classes(map(held_by, federation.clients))

    def _virtual_counts(self, gaussians: dict[int, Gaussian], num_classes: int) -> list[int]:
        if not self.proportional:
            return [self.virtual_per_class] * num_classes
        counts = [gaussians[label].size if label in gaussians else 0 for label in range(num_classes)]
        return allocate(counts, self.virtual_per_class * num_classes)


def upload_size(feature_dim: int, num_classes: int) -> int:
    """Bytes of the statistics of some classes: mean and half of a symmetric covariance in single precision, and a count."""
    return num_classes * (4 * (feature_dim + feature_dim * (feature_dim + 1) // 2) + 8)
