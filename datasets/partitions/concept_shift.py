"""Groups of clients that differ in their names of labels."""

from dataclasses import dataclass

from bench.registry import registered_partition
from datasets import shifts
from datasets.partitions.shift import Shift


@registered_partition("concept-shift", title="concept shift")
@dataclass(frozen=True)
class ConceptShift(Shift):
    """Groups of clients that name the same labels otherwise; each client has test data of its own."""

    decay = 3
    also = "renames labels"
    needed_classes = 20

    def client_labels(self, labels, client, num_clients):
        return shifts.rename(labels, shifts.group_of(client, num_clients))

    def describe_groups(self, num_clients):
        return shifts.describe_names(num_clients)
