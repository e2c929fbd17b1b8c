"""Groups of clients that differ in their labels."""

from dataclasses import dataclass

from bench.registry import registered_partition
from datasets import shifts
from datasets.partitions.shift import Shift


@registered_partition("label-shift", title="label shift")
@dataclass(frozen=True)
class LabelShift(Shift):
    """Groups of clients with other labels; each client has test data of its own."""

    decay = 5
    needed_classes = 10

    def _shares(self, num_clients, num_classes):
        return shifts.label_shares(num_clients)
