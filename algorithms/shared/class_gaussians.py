"""Gaussians of the features of each class: at one client, of all clients together, and vectors drawn from them.

Luo et al., No Fear of Heterogeneity, NeurIPS 2021, Equations 2 to 4. Everything is float64.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from bench.seeding import generator_for, normal_from_keys

_DIRECTIONS = 1000  # of sliced Wasserstein distances
_ROUNDING = 1e-6  # negative eigenvalues up to this share of the largest are rounding errors of a covariance


class Gaussian(NamedTuple):
    """Of the features of one class.

    Attributes:
        size: number of features, at least 1.
        mean: [d].
        covariance: [d, d], unbiased (divided by size - 1); zero for a single feature.
    """

    size: int
    mean: Tensor
    covariance: Tensor


def gaussian_of(features: Tensor) -> Gaussian:
    """Equation 2, of features [n, d], n >= 1."""
    features = features.double()
    mean = features.mean(0)
    centred = features - mean
    return Gaussian(len(features), mean, centred.T @ centred / max(len(features) - 1, 1))


def pool(parts: Sequence[Gaussian]) -> Gaussian:
    """The Gaussian of all clients' features of a class from those of the clients that hold it: exactly that of the features
    put together.

    Equations 3 and 4 in their centred form: no large products cancel, and the covariance is positive semidefinite.
    """
    size = sum(part.size for part in parts)
    mean = cast(Tensor, sum(part.size / size * part.mean for part in parts))
    scatter = torch.zeros_like(parts[0].covariance)
    for part in parts:
        shift = part.mean - mean
        scatter += (part.size - 1) * part.covariance + part.size * torch.outer(shift, shift)
    return Gaussian(size, mean, scatter / max(size - 1, 1))


def pool_classes(held: Iterable[dict[int, Gaussian]]) -> dict[int, Gaussian]:
    """The pooled Gaussian of each class that any client holds, in ascending order of classes; one client after another, so
    that no more than what is pooled is kept.

    A class with a single feature anywhere has no covariance; it gets the mean covariance of those that have one.

    Args:
        held: class -> Gaussian, for each client.
    """
    found: dict[int, Gaussian] = {}
    for client in held:
        for label, own in client.items():
            found[label] = pool([found[label], own]) if label in found else own
    pooled = dict(sorted(found.items()))
    known = [one.covariance for one in pooled.values() if one.size > 1]
    if known:
        usual = cast(Tensor, sum(known)) / len(known)
        pooled = {label: one if one.size > 1 else one._replace(covariance=usual) for label, one in pooled.items()}
    return pooled


def draw(gaussian: Gaussian, count: int, key: int) -> Tensor:
    """Vectors [count, d]; a function of key and position, so that fewer of them are the first of more.

    A covariance need not have full rank: where there are fewer features than dimensions it never has. Features of a model
    that has diverged give vectors that are not finite.

    Raises:
        ValueError: if the covariance has a negative eigenvalue that is no rounding error.
    """
    if not (gaussian.mean.isfinite().all() and gaussian.covariance.isfinite().all()):
        return gaussian.mean.new_full((count, len(gaussian.mean)), torch.nan)
    keys = key + torch.arange(count, device=gaussian.mean.device)
    noise = normal_from_keys(keys, len(gaussian.mean)).double()
    return gaussian.mean + noise @ root(gaussian.covariance)


def root(covariance: Tensor) -> Tensor:
    """The symmetric square root [d, d]. Unlike eigenvectors, whose signs and order are arbitrary, it hardly changes where the
    covariance hardly does.

    Raises:
        ValueError: if there is a negative eigenvalue that is no rounding error.
    """
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    if values[0] < -_ROUNDING * values[-1].abs():
        raise ValueError(f"A covariance has the eigenvalue {values[0]:.3g} beside {values[-1]:.3g}: it is none.")
    return vectors * values.clamp(min=0).sqrt() @ vectors.T


def separability(gaussians: Sequence[Gaussian]) -> dict[str, float]:
    """How far apart classes are: the mean sliced Wasserstein distance over all pairs of them; and the same relative to the
    spread within a class, so that it does not depend on the scale of the features. What is not finite is left out.

    Differs from the paper: it does not say which order the distance has, nor how many directions; here 2, and 1,000.
    """
    directions = torch.randn(
        _DIRECTIONS, len(gaussians[0].mean), generator=generator_for(0, "directions"), dtype=torch.double
    )
    directions = torch.nn.functional.normalize(directions).to(gaussians[0].mean.device)
    first, second = torch.triu_indices(len(gaussians), len(gaussians), offset=1)
    distance = sliced_wasserstein(gaussians, directions)[first, second].mean()
    spread = torch.stack([one.covariance.diagonal().mean() for one in gaussians]).mean().sqrt()
    found = {"sliced_wasserstein": distance.item(), "relative_sliced_wasserstein": (distance / spread).item()}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def sliced_wasserstein(gaussians: Sequence[Gaussian], directions: Tensor) -> Tensor:
    """Sliced Wasserstein distance of order 2 of each two of C Gaussians: [C, C].

    Args:
        directions: [T, d], of length 1; along each of them the distance is known in closed form.
    """
    means = torch.stack([directions @ one.mean for one in gaussians])
    # A direction in which all features are alike has no variance, but for rounding.
    variances = torch.stack([((directions @ one.covariance) * directions).sum(1).clamp(min=0) for one in gaussians])
    squared = cast(Tensor, sum((part[:, None] - part).square() for part in (means, variances.sqrt())))
    return squared.mean(2).sqrt()


def allocate(class_counts: Sequence[int], total: int) -> list[int]:
    """A total divided among classes in proportion to their counts: largest remainders first, ties to the lower class."""
    num_examples = sum(class_counts)
    shares = [divmod(total * count, num_examples) for count in class_counts]
    given = [quotient for quotient, _ in shares]
    by_remainder = sorted(range(len(shares)), key=lambda label: (-shares[label][1], label))
    for label in by_remainder[: total - sum(given)]:
        given[label] += 1
    return given
