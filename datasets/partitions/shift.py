"""What the shifts share."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from datasets import shifts
from datasets.partitions.base import Drawn, Partition


@dataclass(frozen=True)
class Shift(Partition):
    """Training and test images are dealt together, and each client has test data of its own (see `datasets.shifts`).

    Of each client's examples the same share is for testing as of all images; the second half of the clients keeps few of the
    others for training.

    Attributes:
        decay: these clients keep the share e^-decay.
        needed_classes: for which it is defined; None for any number.
    """

    decay: ClassVar[float]
    needed_classes: ClassVar[int | None] = None
    has_own_tests = True
    scores_together = False
    counts_clients = True

    def usual_clients(self, num_writers):
        return 20

    def validate(self, num_clients, num_classes, num_train, num_test):
        mistakes = []
        if num_clients % shifts.GROUPS:
            mistakes.append(
                f"{self.name} has {shifts.GROUPS} groups of equally many clients: clients must be a multiple of "
                f"{shifts.GROUPS}, but got {num_clients}."
            )
        if self.needed_classes not in (None, num_classes):
            mistakes.append(
                f"{self.name} is defined for {self.needed_classes} classes, but the dataset has {num_classes}; use another "
                "dataset, or feature-shift."
            )
        if num_test == 0:
            mistakes.append(
                f"{self.name} deals training and test images together, but the dataset has no test images; use another "
                "dataset or partition."
            )
        return mistakes

    def counts(self, class_counts: np.ndarray, num_clients: int, test_share: float) -> np.ndarray:
        """Examples of each class at each client, [2, clients, classes]: for training, and for testing.

        Args:
            class_counts: [classes], training and test examples together.
            test_share: share of the test examples in them.
        """
        kept = shifts.kept_shares(num_clients, self.decay)
        return shifts.count(class_counts, self._shares(num_clients, len(class_counts)), kept, test_share)

    def _shares(self, num_clients: int, num_classes: int) -> np.ndarray:
        return shifts.equal_shares(num_clients, num_classes)

    def deal(self, labels, num_clients, num_classes, seed, *, num_test, **others):
        shares, kept = self._shares(num_clients, num_classes), shifts.kept_shares(num_clients, self.decay)
        train, test = shifts.deal(labels, shares, kept, num_test / len(labels), seed)
        return Drawn(train, 1, test)
