"""Groups of clients that differ in their images."""

from dataclasses import dataclass

from bench.registry import registered_partition
from datasets import shifts
from datasets.partitions.shift import Shift


@registered_partition("feature-shift", title="feature shift")
@dataclass(frozen=True)
class FeatureShift(Shift):
    """Groups of clients that see images rotated by other angles; each client has test data of its own."""

    decay = 2
    also = "rotates images"

    def client_images(self, images, client, num_clients):
        return shifts.rotate(images, shifts.group_of(client, num_clients))

    def describe_groups(self, num_clients):
        return shifts.describe_rotations(num_clients)
