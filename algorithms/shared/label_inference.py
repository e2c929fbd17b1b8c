"""What a server can tell about the labels of clients: from what they report, or from models that they trained.

FedConcat-ID and FedConcat-IB: Diao, Li and He, Exploiting Label Skews in Federated Learning with Model Concatenation,
AAAI 2024, Stage 1-B. https://arxiv.org/abs/2312.06290
"""

from typing import NamedTuple

import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.tree import Tree
from algorithms.shared.types import Task
from bench.models.base import BoundModel

IMAGES_PER_BATCH = 100


def label_shares(task: Task) -> Tensor:
    """The true label distribution of every client: [N, num_classes], rows sum to 1."""
    counts = task.cohort(torch.arange(task.population)).label_counts.cpu()
    return counts / counts.sum(1, keepdim=True)


def noisy_label_shares(task: Task, epsilon: float) -> Tensor:
    """Label distributions with Laplace noise of scale 1/epsilon on each entry, neither clipped nor normalised."""
    shares = label_shares(task)
    noise = [_laplace(shares.shape[1], task.generator_for("privacy", client)) for client in everyone(task)]
    return shares + torch.stack(noise).to(shares) / epsilon


class Answers(NamedTuple):
    """What models said of noise images.

    Attributes:
        shares: mean softmax outputs [N, num_classes], rows sum to 1, on the host.
        buffers: of the models after the last image, leaves [N, ...]: running statistics move in training mode.
    """

    shares: Tensor
    buffers: Tree


def answers_to_noise(task: Task, models: Tree, num_images: int, training: bool = True) -> Answers:
    """Mean softmax output of each client's model on images of uniform noise (inference by dataset, ID).

    A model answers with the labels that it was trained on. It sees batches of 100 images with pixels in [0, 1), which are not
    normalised.

    Args:
        models: "params" and "buffers", leaves [N, ...].
        num_images: images per client, a multiple of 100.
        training: whether models run in training mode, as in the reference code: with dropout and batch statistics.
    """
    answers = [
        _mean_answer(task, tree.row(models, position), client, num_images, training)
        for position, client in enumerate(everyone(task))
    ]
    return Answers(torch.stack([one.shares for one in answers]), tree.stack([one.buffers for one in answers]))


def bias_answers(task: Task, biases: Tensor, start: Tensor, form: str) -> Tensor:
    """Label distributions read from the bias of the classifier after one round (initialised bias, IB).

    Args:
        biases: [N, num_classes], of the trained models.
        start: [num_classes], of the initial model.
        form: "intended": (trained - start) / (lr steps) + softmax(start); "released": softmax(trained), which the
            reference code computes because its start is an alias of the trained bias.

    Returns:
        [N, num_classes], on the host.
    """
    if form == "released":
        return biases.softmax(1).cpu()
    steps = task.cohort(torch.arange(task.population)).num_steps
    return ((biases - start) / (task.settings.lr * steps[:, None]) + start.softmax(0)).cpu()


def everyone(task: Task) -> list[int]:
    """Ids within the federation of all clients of a task."""
    return task.global_ids(torch.arange(task.population)).tolist()


@torch.no_grad()
def _mean_answer(task: Task, model: Tree, client: int, num_images: int, training: bool) -> Answers:
    """`Answers` of one model, without the first axis."""
    buffers = {name: leaf.clone() for name, leaf in model["buffers"].items()}
    bound = BoundModel(task.model, buffers, training, task.generator_for("inference", client, 1))
    images = task.generator_for("inference", client)
    total = torch.zeros(task.federation.num_classes, dtype=torch.float64, device=task.device)
    # One copy to a GPU, not one per batch; a CPU would only leave its cache. The pixels are the same.
    at_once = IMAGES_PER_BATCH if task.device.type == "cpu" else num_images
    for _ in range(num_images // at_once):
        drawn = torch.rand(at_once, *task.model.input_shape, generator=images)
        drawn = drawn.to(task.device, task.dtype, memory_format=torch.channels_last)
        for x in drawn.split(IMAGES_PER_BATCH):
            total += bound(model["params"], x).softmax(1).sum(0)
    return Answers((total / num_images).cpu(), buffers)


def _laplace(count: int, generator: torch.Generator) -> Tensor:
    """Standard Laplace numbers: the difference of two exponential ones."""
    first, second = torch.empty(2, count, dtype=torch.float64).exponential_(generator=generator)
    return first - second
