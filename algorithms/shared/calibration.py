"""A classifier trained again after federated training, on features in one place; the encoder stays as it is."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import algorithms
from algorithms.shared.base import Deployed, State
from algorithms.shared.checks import above, at_least, below_one, noisy_inputs
from algorithms.shared.local_sgd import LocalResult, descend, task_loss
from algorithms.shared.types import BatchPlan, ClientData, ClientView, RunConfig, Task
from algorithms.shared.wrapper import PostHoc
from bench.models.base import BoundModel, Model, Params
from bench.models.calibrated import Transformed, classifier_of, tukey, wrap
from bench.models.concat import classifier_part
from datasets.federation import Federation
from datasets.transforms import Identity

_LEAST_STEPS = 1000


@dataclass(frozen=True)
class Calibration(PostHoc):
    """SGD on the cross-entropy of features, from the federated classifier on.

    Differs from the paper: it says no more than this about the training; the values here are ours.

    Attributes:
        calibration_lr, calibration_momentum, calibration_weight_decay, calibration_batch_size: of SGD, in epochs that are
            newly shuffled, with smaller last batches.
        calibration_epochs: passes over the features, at least; more where 1,000 steps need them.
        tukey, relu: where features are transformed, the power of Tukey's transformation, > 0, and whether negative features
            become 0 before it.
    """

    does = "calibrates"
    takes = ("model", "fused")
    calibration_lr: float = 0.01
    calibration_momentum: float = 0.9
    calibration_weight_decay: float = 1e-5
    calibration_batch_size: int = 64
    calibration_epochs: int = 10
    tukey: float = 0.5
    relu: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        above("calibration_lr", self.calibration_lr, 0)
        below_one("calibration_momentum", self.calibration_momentum)
        at_least("calibration_weight_decay", self.calibration_weight_decay, 0)
        at_least("calibration_batch_size", self.calibration_batch_size, 1)
        at_least("calibration_epochs", self.calibration_epochs, 1)
        above("tukey", self.tukey, 0)

    def validate(self, config: RunConfig) -> list[str]:
        return super().validate(config) + noisy_inputs(algorithms.name_of(self), config.partition)

    def init(self, task: Task) -> State:
        if "classifier" not in task.model.layers():
            raise ValueError(
                f"{algorithms.name_of(self)} trains a classifier again, but {type(task.model).__name__} has none."
            )
        return super().init(task)

    def transformed(self, features: Tensor) -> Tensor:
        """Features [n, feature_dim] after ReLU and Tukey's transformation."""
        return tukey(features, self.tukey, self.relu)

    @property
    def transforms(self) -> bool:
        """Whether the deployed model's classifier reads transformed features."""
        raise NotImplementedError

    def deployed_model(self, task: Task) -> Model:
        model = super().deployed_model(task)
        return wrap(Transformed, model, self.tukey, self.relu) if self.transforms else model

    def retrained_on(self, num_examples: int, num_classes: int) -> tuple[int, int]:
        """Features on which the classifier is trained again, of clients that have so many examples together, of so many
        classes; and passes over them."""
        raise NotImplementedError

    def server_examples(self, num_examples: int, num_classes: int) -> int:
        """One for each feature of which a pass computes a gradient, that of the classifier alone."""
        count, epochs = self.retrained_on(num_examples, num_classes)
        return super().server_examples(num_examples, num_classes) + count * epochs

    def with_classifier(self, deployed: Deployed, params: Params, examples: int) -> Deployed:
        """What is deployed instead, with new params of the classifier, for which so many gradients were computed."""
        deployed = deployed._replace(params=params, examples=deployed.examples + examples)
        if not self.transforms:
            return deployed
        tested = deployed.test_features
        return deployed._replace(
            model=wrap(Transformed, deployed.model, self.tukey, self.relu),
            test_features=None if tested is None else self.transformed(tested),
        )

    def epochs_on(self, count: int) -> int:
        """Passes over so many features."""
        batches = max(1, math.ceil(count / self.calibration_batch_size))
        return max(self.calibration_epochs, math.ceil(_LEAST_STEPS / batches))

    def retrain(self, task: Task, deployed: Deployed, features: Tensor, labels: Tensor, epochs: int) -> Params:
        """The params of a model with its classifier trained again.

        Args:
            features: [n, feature_dim] of the model's classifier.
            labels: [n].
            epochs: passes.
        """
        settings = replace(
            task.settings,
            local_epochs=epochs,
            local_steps=None,
            batch_size=self.calibration_batch_size,
            lr=self.calibration_lr,
            momentum=self.calibration_momentum,
            weight_decay=self.calibration_weight_decay,
            last_batch="keep",
            max_gradient_norm=None,
        )
        # The server as the one client of a federation whose images are features.
        counts = torch.bincount(labels.cpu(), minlength=deployed.model.num_classes)
        inputs = features.to(task.dtype)[:, :, None, None]
        alone = Federation(
            inputs, labels, inputs[:0], labels[:0], (torch.arange(len(labels)),), counts.double()[None], Identity()
        )
        server = replace(
            task, model=classifier_of(deployed.model), settings=settings, federation=alone, members=None, engine="loop"
        )

        def train(data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
            return LocalResult(descend(task_loss, view.params, data, plan, view).params, {})

        start = classifier_part(deployed.params)
        outputs = server.map_clients(train, server.cohort(torch.tensor([0])), round=0, params=start, buffers={})
        return deployed.params | {name: leaf[0] for name, leaf in outputs.result.update.items()}


def features_of(task: Task, deployed: Deployed, images: Tensor) -> Tensor:
    """Features [n, feature_dim] of images as they look in evaluation, under the deployed encoder in evaluation mode."""
    bound = BoundModel(deployed.model, deployed.buffers)
    return task.map_images(lambda x, first: bound.features(deployed.params, x), images)
