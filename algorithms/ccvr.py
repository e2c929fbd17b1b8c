"""CCVR: the classifier is calibrated with virtual features, drawn from Gaussians of the clients' features.

Luo et al., No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data, NeurIPS 2021.
https://arxiv.org/abs/2106.05001
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from algorithms import tree
from algorithms.calibration import Calibration, features_of
from algorithms.checks import above, at_least, one_of
from algorithms.class_gaussians import allocate, draw, gaussian_of, pool_classes
from bench.models.calibrated import Transformed, around, tukey
from bench.models.concat import encoder_part
from bench.seeds import seed_for

TransformStage = Literal["before_stats", "on_samples", "none"]


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
        tukey: power of Tukey's transformation, > 0.
        relu: whether negative features become 0 before it.
    """

    virtual_per_class: int = 100
    proportional: bool = False
    transform_stage: TransformStage = "before_stats"
    tukey: float = 0.5
    relu: bool = True

    def __post_init__(self):
        super().__post_init__()
        at_least("virtual_per_class", self.virtual_per_class, 0)
        one_of("transform_stage", self.transform_stage, get_args(TransformStage))
        above("tukey", self.tukey, 0)

    def with_new_classifier(self, task, deployed):
        if not self.virtual_per_class:
            return deployed
        gaussians = self._pooled(task, deployed)
        wanted = self._virtual_counts(gaussians, deployed.model.num_classes)
        drawn = {
            label: draw(one, wanted[label], seed_for(task.seed, "virtual", label) >> 2)
            for label, one in gaussians.items()
        }
        vectors = torch.cat(list(drawn.values()))
        labels = torch.cat([torch.full((len(part),), label) for label, part in drawn.items()]).to(vectors.device)
        if self.transform_stage == "on_samples":
            vectors = tukey(vectors, self.tukey, self.relu)
        params = self.retrain(task, deployed, vectors, labels)
        if self.transform_stage == "none":
            return deployed._replace(params=params)
        tested = deployed.test_features
        return deployed._replace(
            model=around(Transformed, deployed.model, self.tukey, self.relu),
            params=params,
            test_features=None if tested is None else tukey(tested, self.tukey, self.relu),
        )

    def deployment(self, task):
        """Each client receives the encoder, and sends for each class that it holds a count, a mean and half of a symmetric
        covariance."""
        model = self.deployed_model(task)
        width = model.feature_dim
        bytes_per_class = 4 * (width + width * (width + 1) // 2) + 8
        num_held = int((task.federation.label_counts > 0).sum())
        encoder = tree.num_bytes([encoder_part(model.init(task.generator_for("init"))), model.init_buffers()])
        return {"bytes_down": task.population * encoder, "bytes_up": num_held * bytes_per_class}

    def _pooled(self, task, deployed):
        """Gaussian of each class over all clients, of transformed features where the stage says so."""
        federation, held = task.federation, []
        for rows in federation.clients:
            rows = rows.to(federation.device)
            features = features_of(task, deployed, federation.images[rows])
            if self.transform_stage == "before_stats":
                features = tukey(features, self.tukey, self.relu)
            labels = federation.labels[rows]
            held.append({label: gaussian_of(features[labels == label]) for label in labels.unique().tolist()})
        return pool_classes(held)

    def _virtual_counts(self, gaussians, num_classes: int) -> list[int]:
        if not self.proportional:
            return [self.virtual_per_class] * num_classes
        counts = [gaussians[label].count if label in gaussians else 0 for label in range(num_classes)]
        return allocate(counts, self.virtual_per_class * num_classes)
