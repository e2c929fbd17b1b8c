"""Calibration with real features: what one could reach with the data of all clients in one place.

Luo et al., No Fear of Heterogeneity, NeurIPS 2021, Section 3.3 and Figure 4. https://arxiv.org/abs/2106.05001
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms import Deployed, State, Task, between, registered
from algorithms.shared.calibration import Calibration, features_of

_MOST_EPOCHS = 100


@registered("oracle", title="Oracle")
@dataclass(frozen=True)
class Oracle(Calibration):
    """The classifier is trained again on features of the clients' training images, or of a stratified part of them.

    No bytes are accounted for it: it is a bound that no federation reaches.

    Attributes:
        fraction: of the training images of each class, in [0, 1]; 0 leaves the classifier as it is. With fewer images
            there are more epochs (those on all images / fraction), so that the number of steps stays alike; but at most
            100, so that it is smaller below a tenth of the images.
        transform_features: whether the features are transformed; the paper says so of virtual ones only.
    """

    version = 2  # 1 had no least number of steps

    fraction: float = 1.0
    transform_features: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        between("fraction", self.fraction, 0, 1)

    @property
    def transforms(self) -> bool:
        return bool(self.fraction) and self.transform_features

    def changed(self, task: Task, deployed: Deployed, state: State, client_ids: Tensor) -> Deployed:
        if not self.fraction:
            return deployed
        rows = self._rows(task).to(task.federation.device)
        features = features_of(task, deployed, task.federation.images[rows])
        if self.transform_features:
            features = self.transformed(features)
        epochs = self._epochs(sum(task.sizes(torch.arange(task.population))))
        params = self.retrain(task, deployed, features, task.federation.labels[rows], epochs)
        return self.with_classifier(deployed, params, len(rows) * epochs)

    def retrained_on(self, num_examples: int, num_classes: int) -> tuple[int, int]:
        """As if a share of all was the same share of each class."""
        return (round(self.fraction * num_examples), self._epochs(num_examples)) if self.fraction else (0, 0)

    def _epochs(self, num_examples: int) -> int:
        """Passes over the images that are used, of so many."""
        of_all = self.epochs_on(num_examples)
        return max(of_all, min(_MOST_EPOCHS, math.ceil(of_all / self.fraction)))

    def _rows(self, task: Task) -> Tensor:
        """Rows of the training images that are used: of each class the same share, at least one image."""
        held = torch.cat(task.federation.clients)
        if self.fraction == 1:
            return held
        labels, chosen = task.federation.labels.cpu()[held], []
        for label in labels.unique().tolist():
            of_class = held[labels == label]
            order = torch.randperm(len(of_class), generator=task.generator_for("fraction", label))
            chosen.append(of_class[order[: max(1, round(self.fraction * len(of_class)))]])
        return torch.cat(chosen)
