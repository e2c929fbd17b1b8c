"""How alike the outputs of several models on the same examples are: centred kernel alignment (CKA) with a linear kernel.

Kornblith et al., Similarity of Neural Network Representations Revisited, ICML 2019 (https://arxiv.org/abs/1905.00414). The
estimator from minibatches is that of Nguyen et al., Do Wide and Deep Networks Learn the Same Things?, ICLR 2021
(https://arxiv.org/abs/2010.15327), by the unbiased HSIC of Song et al., JMLR 2012. Both are in [0, 1] for large samples, but
they are not estimates of one number: never put them into one figure.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def linear_cka(outputs: Sequence[Tensor]) -> Tensor:
    """CKA of each two of K models, by the biased HSIC of all examples at once; NaN where all outputs of a model are alike.

    Args:
        outputs: K of [n, p].

    Returns:
        [K, K], float64.
    """
    hsic = torch.zeros(len(outputs), len(outputs), dtype=torch.double)
    for i in range(len(outputs)):
        first = _centred(outputs[i])  # two at a time: in double precision all of them would fill the memory
        for j in range(i + 1):
            hsic[i, j] = hsic[j, i] = (first.T @ _centred(outputs[j])).square().sum()
    return _normalised(hsic)


def minibatch_cka(batches: Iterable[Tensor]) -> Tensor:
    """CKA of each two of K models, by the mean over batches of the unbiased HSIC.

    Args:
        batches: outputs [K, n, p] of n >= 4 examples each.

    Returns:
        [K, K], float64.
    """
    return _normalised(torch.stack([unbiased_hsic(batch) for batch in batches]).mean(0))


def unbiased_hsic(outputs: Tensor) -> Tensor:
    """HSIC_1 (Song et al., JMLR 2012, Equation 5) of each two of K models, with linear kernels.

    Args:
        outputs: [K, n, p], n >= 4.

    Returns:
        [K, K], float64.
    """
    count = outputs.shape[1]
    # Changes nothing but for rounding, in which outputs that are all alike would seem to differ.
    centred = _centred(outputs)
    grams = centred @ centred.mT
    grams.diagonal(dim1=1, dim2=2).zero_()
    rows = grams.sum(2)
    totals = rows.sum(1)
    traces = torch.einsum("iab,jab->ij", grams, grams)
    products = torch.outer(totals, totals) / ((count - 1) * (count - 2))
    return (traces + products - 2 / (count - 2) * (rows @ rows.T)) / (count * (count - 3))


def _centred(outputs: Tensor) -> Tensor:
    """[..., n, p] in double precision, with mean 0 over the examples; exactly 0 where all are alike."""
    moved = outputs.double() - outputs[..., :1, :].double()
    return moved - moved.mean(-2, keepdim=True)


def _normalised(hsic: Tensor) -> Tensor:
    scale = hsic.diagonal().sqrt()
    return hsic / torch.outer(scale, scale)
