"""A dataset partitioned over clients, as tensors on a device."""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.seeding import normal_from_keys
from datasets.transforms import Identity, Transform


@dataclass(frozen=True)
class Federation:
    """The training examples of all clients, and the test examples of the server.

    Clients are lists of indices into one array; images are not copied.

    Attributes:
        images, labels: all training examples, uint8 [n, C, H, W] and int64 [n], on the device.
        test_images, test_labels: likewise.
        clients: rows of each client, int64 [n_i], on the host.
        label_counts: [population, num_classes], float64, examples of each class at each client, on the host.
        transform: converts bytes to model inputs.
        noise_levels: [population], standard deviation of the Gaussian noise on the inputs of client i (partition
            `noise-s`), or None.
        test_clients: rows of the test examples on which each client tests, int64, on the host; None if clients have no
            test data of their own.
        scores_together: whether models are scored on the test examples of all such clients together as well; an example of
            several clients then counts as often.
    """

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    clients: tuple[Tensor, ...]
    label_counts: Tensor
    transform: Transform | Identity
    noise_levels: Tensor | None = None
    test_clients: tuple[Tensor, ...] | None = None
    scores_together: bool = False

    @property
    def num_classes(self) -> int:
        return self.label_counts.shape[1]

    @property
    def one_class_clients(self) -> int:
        """Number of clients whose examples are of one class."""
        return int(((self.label_counts > 0).sum(1) == 1).sum())

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return tuple(self.images.shape[1:])

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def random_inputs(self) -> bool:
        """Whether training inputs are random: augmented or noisy."""
        return self.transform.random or self.noise_levels is not None

    @property
    def digest(self) -> str:
        """Of who has which examples, with their labels, and who tests on which: 16 hex digits."""
        found = hashlib.sha256()
        for labels, clients in ((self.labels, self.clients), (self.test_labels, self.test_clients or ())):
            on_host = labels.cpu()
            for rows in clients:
                found.update(f"/{len(rows)}/".encode() + torch.stack([rows, on_host[rows]]).numpy().tobytes())
        return found.hexdigest()[:16]

    def on_features(self, features: Tensor) -> "Federation":
        """The same clients and labels, with features [n, dim] instead of training images."""
        return replace(self, images=features[:, :, None, None], transform=Identity(), noise_levels=None)

    def inputs(self, rows: Tensor, draws: dict[str, Tensor], noise_level: Tensor | None, dtype, **layout) -> Tensor:
        """Augmented training inputs.

        Args:
            rows: [B], on the device.
            draws: of `Transform.draw` for these examples, leaves [B].
            noise_level: scalar, or None.
            dtype: of the inputs.
            layout: further arguments of `Tensor.to`, such as memory_format.

        Returns:
            [B, C, H, W].
        """
        x = self.transform.scale(self.transform.augment(self.images[rows], draws), dtype, **layout)
        if noise_level is None:
            return x
        noise = normal_from_keys(draws["noise"], self.images[0].numel()).view_as(x)
        return x + noise_level.to(dtype) * noise.to(dtype)


def federate(
    images,
    labels,
    test_images,
    test_labels,
    clients,
    num_classes,
    transform,
    noise=0.0,
    device="cpu",
    test_clients=None,
    scores_together=False,
    num_clients=None,
):
    """Builds a Federation from arrays.

    Args:
        images, labels, test_images, test_labels: NumPy arrays, uint8 [n, C, H, W] and int64 [n]; on a CPU,
            memory-mapped arrays are not copied.
        clients: one array of rows per client.
        noise: sigma of the partition `noise-s`; client i of N gets sigma * i / (N - 1).
        test_clients: one array of rows of the test examples per client; None if clients have no test data of their own.
        scores_together: as in `Federation`.
        num_clients: N, if only the first clients of a partition exist; None for as many as there are.
    """
    import warnings

    with warnings.catch_warnings():  # torch warns about read-only arrays; nothing writes to them
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensors = [torch.from_numpy(array).to(device) for array in (images, labels, test_images, test_labels)]
    rows = tuple(torch.from_numpy(client) for client in clients)
    tested = None if test_clients is None else tuple(torch.from_numpy(client) for client in test_clients)
    on_host = tensors[1].cpu()
    counts = torch.stack([torch.bincount(on_host[client], minlength=num_classes) for client in rows])
    levels = noise * torch.arange(len(rows)) / max((num_clients or len(rows)) - 1, 1) if noise else None
    return Federation(*tensors, rows, counts.double(), transform, levels, tested, scores_together)
