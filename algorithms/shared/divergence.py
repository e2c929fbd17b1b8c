"""How much two clients' data differ: discriminators that two clients train together to tell their examples apart.

The C divergence of Bao et al., Optimizing the Collaboration Structure in Cross-Silo Federated Learning, ICML 2023.
https://arxiv.org/abs/2306.06508
"""

import itertools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algorithms.shared.tree import Tree
from algorithms.shared.types import Task
from bench.models.base import uniform_init
from bench.models.pretrained import NUM_FEATURES, Pretrained
from bench.seeding import keys_from, normal_from_keys, seed_for, uniform_from_keys

_WIDTH = 200  # units of the hidden layer
_BATCH = 32  # examples of a client in a step, at most
_INTERVAL = 10  # rounds between evaluations
_PATIENCE = 10  # evaluations without improvement, after which a pair stops
_IMAGES = 500  # of which features are computed at once
_NUMBERS_AT_ONCE = 2**27  # of pairs that train side by side: half a gigabyte in single precision


class Estimated(NamedTuple):
    """What the discriminators have found.

    Attributes:
        divergences: [N, N], float64, symmetric, 0 on the diagonal: 2 a - 1, in [-1, 1], with the best balanced accuracy a of a
            pair's discriminator.
        rounds: [N, N], that a pair has trained.
    """

    divergences: Tensor
    rounds: Tensor


def num_bytes(task: Task, of_features: bool = False) -> int:
    """Size of a discriminator, of pixels or of features."""
    image, labels = _image_width(task, of_features), task.federation.num_classes
    return ((image + 1 + labels + 1) * _WIDTH + _WIDTH + 1) * task.dtype.itemsize


def exchanged(task: Task, rounds: Tensor, of_features: bool = False) -> dict[str, int]:
    """Bytes that clients receive and send for the discriminators of pairs that train so many rounds each [pairs].

    Both clients receive the discriminator before each round, and once more to evaluate the last one. The few bytes of their
    accuracies are not counted.
    """
    both = 2 * num_bytes(task, of_features)
    return {"bytes_down": both * int((rounds + 1).sum()), "bytes_up": both * int(rounds.sum())}


def check_sizes(task: Task) -> None:
    """Raises ValueError if a client's examples cannot be divided into a half for training and one for validation."""
    for client, size in enumerate(task.sizes(torch.arange(task.population))):
        if size < 2:
            raise ValueError(
                "A discriminator needs at least 2 training examples of each client, one to train on and one to be validated "
                f"on, but client {client} has {size}; use fewer clients, more examples or another partition."
            )


def estimate(task: Task, lr: float, rounds: int, network: Pretrained | None = None) -> Estimated:
    """Divergences of all pairs of clients of a task, each by a discriminator of its own.

    Each client sets aside half as many examples as the smallest client has, with its own label shares; on these it trains, all
    others are for validation. A discriminator takes an image x, as its normalised pixels or as what a frozen network makes of
    them, and its label y among L classes:

        logit = v . relu(A x + a + 2 (B onehot(y) L / sqrt(L - 1) + b)) + c,

    with 200 hidden units and PyTorch's initialisation, the same for all pairs. In a round both clients of a pair start from
    their discriminator and take one step of SGD on one random batch of up to 32 examples, with the binary cross-entropy and
    target 0 for the first and 1 for the second; the new discriminator is the mean of the two. After the rounds 1, 11, 21 and so
    on, and after the last, it is evaluated: the sum of its accuracies on the two validation sets. A pair stops after ten
    evaluations in a row without a strictly larger sum; the largest one, less 1, is the divergence. Nothing is augmented; under
    the partition noise-s an image has the same noise in all rounds.

    On CIFAR, the discriminators of the paper read the features of a ResNet-18 with ImageNet weights, frozen and in evaluation
    mode; on Fashion-MNIST they read pixels.

    Differs from the paper's code: a discriminator is evaluated once more, after its last round.
    Differs from the paper: without such a network, images are given as pixels in all settings.

    Pairs train side by side, in blocks that memory allows. What a block has found is kept (see `Task.cached`): of a run that
    is interrupted, only the block that it was at is computed again. The inputs of all clients are in memory at once, in
    single precision 5 GB for 100,000 images of 64 x 64 pixels in colour.

    Args:
        lr: of SGD.
        rounds: of a pair, at most.
        network: of whose features images consist; None for pixels. It computes them once.
    """
    clients = range(task.population)
    half = min(task.sizes(torch.arange(task.population))) // 2
    start = _initial(task, network is not None)
    inputs = [_inputs(task, client, half, network) for client in clients]
    hidden = [of_client @ start["hidden"] for of_client in inputs]
    pairs = list(itertools.combinations(clients, 2))
    # What training adds to the weights is a combination of the inputs of the training examples.
    dual = 2 * half < len(start["hidden"])
    largest, size = max(map(len, inputs)), 2 * half if dual else len(start["hidden"])
    at_once = max(1, _NUMBERS_AT_ONCE // (size * (2 * largest + 2 * half + _WIDTH)))
    found = Estimated(
        torch.zeros(len(inputs), len(inputs), dtype=torch.float64), torch.zeros(len(inputs), len(inputs)).long()
    )

    def found_by(block: list[tuple[int, int]]) -> Tree:
        def train() -> Tree:
            own = _Block(task, block, inputs, hidden, half, start, dual, lr, rounds)
            return dict(zip(Estimated._fields, own.train(rounds), strict=True))

        key = (lr, rounds, network.digest if network else None, block)
        return task.cached("discriminators", key, train, lambda of: _are_of_pairs(of, (len(block),), rounds))

    for first in range(0, len(pairs), at_once):
        block = pairs[first : first + at_once]
        of_block, (i, j) = found_by(block), torch.tensor(block).T
        for name, of in found._asdict().items():
            of[i, j] = of[j, i] = of_block[name]
    return found


def is_estimate(found: Any, clients: int, rounds: int) -> bool:
    """Whether something of any type may be what `estimate` finds for so many clients and at most so many rounds, as a dict."""
    if not _are_of_pairs(found, (clients, clients), rounds):
        return False
    return all(torch.equal(of, of.T) and not of.diagonal().any() for of in found.values())


def _are_of_pairs(found: Any, shape: tuple[int, ...], rounds: int) -> bool:
    """Whether something of any type may be divergences and rounds of pairs, each of this shape, in a dict as `Estimated`."""
    if not isinstance(found, dict) or found.keys() != {*Estimated._fields}:
        return False
    if any(not isinstance(of, Tensor) or of.shape != shape for of in found.values()):
        return False
    found = Estimated(**found)
    if (found.divergences.dtype, found.rounds.dtype) != (torch.float64, torch.int64):
        return False
    return bool((found.divergences.abs() <= 1).all() and ((found.rounds >= 0) & (found.rounds <= rounds)).all())


def stratified(label_counts: Tensor, size: int) -> Tensor:
    """How many of so many examples have each label, in proportion to label_counts [L], int64: largest remainders, of equals the
    first labels."""
    total = label_counts.sum()
    quotas, remainders = label_counts * size // total, label_counts * size % total
    largest = remainders.argsort(descending=True, stable=True)
    quotas[largest[: size - int(quotas.sum())]] += 1
    return quotas


class _Block:
    """Discriminators of some pairs, trained side by side.

    The first layer of a discriminator is linear in its input u (see `_inputs`): W_0 u + W z, with the common initial weights
    W_0, so that W_0 u is computed once, and what training has added, W. Inputs are given by coordinates z: u itself, or, if the
    pair has fewer training examples than u has entries, the scalar products of u and all of these: gradients are combinations
    of their inputs, and W are the coefficients. Both are the same SGD, up to rounding.

    Attributes:
        pairs: indices of those that still train, as a tensor [P].
        coordinates: of each pair, those of each client's examples, [2][n, size]; training examples are the first.
        weights: W of each pair, [P, size, hidden].
        head, bias: v and c, [P, hidden] and [P].
    """

    def __init__(
        self,
        task: Task,
        pairs: list[tuple[int, int]],
        inputs: list[Tensor],
        hidden: list[Tensor],
        half: int,
        start: Tree,
        dual: bool,
        lr: float,
        rounds: int,
    ) -> None:
        self.half, self.dual, self.lr = half, dual, lr
        ends = [[inputs[client] for client in pair] for pair in pairs]
        self.coordinates = [
            [of @ torch.cat([u[:half] for u in both]).T for of in both] if dual else both for both in ends
        ]
        self.initial = [[hidden[client] for client in pair] for pair in pairs]
        self.training = self._of_training(self.coordinates), self._of_training(self.initial)
        count, device = len(pairs), task.device
        self.pairs = torch.arange(count, device=device)
        self.weights = start["hidden"].new_zeros(count, self.training[0].shape[2], _WIDTH)
        self.head, self.bias = start["head"].expand(count, -1).clone(), start["bias"].expand(count).clone()
        everywhere = task.global_ids(torch.arange(task.population)).tolist()
        self.keys = torch.stack(
            [
                keys_from(torch.tensor(seed_for(task.seed, "discriminators", everywhere[i], everywhere[j])), 2 * rounds)
                for i, j in pairs
            ]
        ).to(device)  # [pairs, 2 * rounds]

    def train(self, rounds: int) -> tuple[Tensor, Tensor]:
        """Divergences and rounds of the pairs, each [pairs], on the host."""
        count = len(self.pairs)
        best, idle = torch.full((count,), -math.inf, dtype=torch.float64), torch.zeros(count, dtype=torch.long)
        trained = torch.full((count,), rounds)
        for round in range(rounds + 1):
            if round % _INTERVAL == 1 or round == rounds:
                going = self.pairs.cpu()
                accuracies = self._evaluate(going.tolist())
                better = accuracies > best[going]
                idle[going] = torch.where(better, 0, idle[going] + 1)
                best[going] = torch.maximum(accuracies, best[going])
                stops = idle[going] == _PATIENCE
                trained[going[stops]] = round
                if stops.any():
                    self._keep(~stops.to(self.pairs.device))
            if round == rounds or not len(self.pairs):
                break
            self._step(round)
        return best - 1, trained

    def _of_training(self, ends: list[list[Tensor]]) -> Tensor:
        """The rows of the training examples of each pair, [pairs, 2 half, ...]."""
        return torch.stack([torch.cat([of[: self.half] for of in both]) for both in ends])

    def _evaluate(self, pairs: list[int]) -> Tensor:
        """Sums of the accuracies on the two validation sets, float64 [P], on the host."""
        sums = []
        for position, pair in enumerate(pairs):
            first, second = (
                torch.addmm(initial[self.half :], of[self.half :], self.weights[position]).relu_() @ self.head[position]
                + self.bias[position]
                >= 0
                for initial, of in zip(self.initial[pair], self.coordinates[pair], strict=True)
            )
            sums.append((~first).double().mean() + second.double().mean())
        return torch.stack(sums).cpu()

    def _keep(self, going: Tensor) -> None:
        """Only these pairs go on."""
        self.training = self.training[0][going], self.training[1][going]
        self.pairs, self.weights, self.head, self.bias = (
            of[going] for of in (self.pairs, self.weights, self.head, self.bias)
        )

    def _step(self, round: int) -> None:
        """One round. The mean of two models that took one step each from the same one is one step along their mean gradient."""
        rows = self._batches(round)
        z, before = (of.gather(1, rows[..., None].expand(-1, -1, of.shape[2])) for of in self.training)
        hidden = torch.baddbmm(before, z, self.weights).relu_()
        batch = rows.shape[1] // 2
        target = (torch.arange(2 * batch, device=rows.device) >= batch).to(z.dtype)
        logits = torch.einsum("pbh,ph->pb", hidden, self.head) + self.bias[:, None]
        error = (logits.sigmoid() - target) / (2 * batch)
        slope = error[..., None] * self.head[:, None] * (hidden > 0)
        if self.dual:
            self.weights.scatter_add_(1, rows[..., None].expand_as(slope), -self.lr * slope)
        else:
            self.weights.baddbmm_(z.mT, slope, alpha=-self.lr)
        self.head = self.head - self.lr * torch.einsum("pb,pbh->ph", error, hidden)
        self.bias = self.bias - self.lr * error.sum(1)

    def _batches(self, round: int) -> Tensor:
        """Rows of the training examples of each pair that make a batch, [P, 2 batch]: as many of either client."""
        keys = self.keys[self.pairs, 2 * round : 2 * round + 2]
        draws = uniform_from_keys(keys.flatten(), self.half).view(*keys.shape, self.half)
        rows = draws.argsort(stable=True)[..., :_BATCH]
        return (rows + self.half * torch.arange(2, device=rows.device)[:, None]).flatten(1)


def _image_width(task: Task, of_features: bool) -> int:
    """Numbers of which an image consists."""
    return NUM_FEATURES if of_features else math.prod(task.federation.input_shape)


def _initial(task: Task, of_features: bool = False) -> Tree:
    """The discriminator with which all pairs begin: "hidden" [input, hidden], whose rows are those of A, a, B and b, "head"
    [hidden], and "bias", a scalar."""
    draws = task.generator_for("discriminator")
    image, labels = _image_width(task, of_features), task.federation.num_classes
    params: dict[str, Tensor] = {}
    for name, shape in {"image": (_WIDTH, image), "labels": (_WIDTH, labels), "head": (1, _WIDTH)}.items():
        params |= task.place(uniform_init(name, shape, draws))
    columns = [params[f"{name}.{part}"].view(_WIDTH, -1) for name in ("image", "labels") for part in ("weight", "bias")]
    return {"hidden": torch.cat(columns, 1).T, "head": params["head.weight"][0], "bias": params["head.bias"][0]}


def _inputs(task: Task, client: int, half: int, network: Pretrained | None = None) -> Tensor:
    """What the first layer reads of each example of a client, [n, input]: pixels or features, 1, the scaled one-hot label, and
    2; the first `half` examples are for training."""
    federation, everywhere = task.federation, int(task.global_ids(torch.tensor([client])))
    rows = _divided(task, everywhere, half).to(task.device)
    x = federation.transform.scale(federation.images[rows], task.dtype).flatten(1)
    if federation.noise_levels is not None:
        keys = keys_from(torch.tensor(seed_for(task.seed, "discriminator-noise", everywhere)), len(rows)).to(
            task.device
        )
        x = x + federation.noise_levels[everywhere].to(x) * normal_from_keys(keys, x.shape[1]).to(x)
    if network:
        x = torch.cat([network.features(part.unflatten(1, federation.input_shape)) for part in x.split(_IMAGES)])
    classes = torch.arange(federation.num_classes, device=task.device)
    scale = 2 * len(classes) / math.sqrt(max(1, len(classes) - 1))
    labels = scale * (federation.labels[rows][:, None] == classes).to(x)
    ones = x.new_ones(len(x), 1)
    return torch.cat([x, ones, labels, 2 * ones], 1)


def _divided(task: Task, client: int, half: int) -> Tensor:
    """Rows of a client of the federation in random order, but the first `half` of them have its label shares."""
    rows = task.federation.clients[client]
    rows = rows[torch.randperm(len(rows), generator=task.generator_for("discriminator-data", client))]
    labels = task.federation.labels.cpu()[rows]
    quotas = stratified(torch.bincount(labels, minlength=task.federation.num_classes), half)
    chosen = torch.zeros(len(rows), dtype=torch.bool)
    for label, quota in enumerate(quotas.tolist()):
        chosen[torch.nonzero(labels == label).flatten()[:quota]] = True
    return torch.cat([rows[chosen], rows[~chosen]])
