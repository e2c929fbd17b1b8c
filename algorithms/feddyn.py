"""FedDyn: a linear and a quadratic term, with a memory per client, make the clients' optima agree with the server's.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.
https://arxiv.org/abs/2111.04263
"""

from dataclasses import dataclass

from algorithms import registered
from algorithms.shared.dynamic_regulariser import DynamicRegulariser


@registered("feddyn")
@dataclass(frozen=True)
class FedDyn(DynamicRegulariser):
    """A client minimises loss - <g_i, x> + alpha_i/2 |x - w|^2 from the model w received; the server adds a memory.

    The gradient of a step is grad loss - g_i + alpha_i (x - w). The memory u_i of a client is the sum of its deltas
    d_i = trained - w, that of the server, u, is their mean over all clients: those of the paper in another unit,
    g_i = -alpha_i u_i and h = -alpha u, in which they suit clients with different alpha_i. The new model is
    w + mean of the cohort's d_i + u, with the new u; all these means are uniform, unless `mean` says otherwise. Clients
    outside of the cohort keep their memories. Running statistics are averaged as in FedAvg.

    Differs from the paper, and follows its code: alpha_i depends on the client's size, and gradients are clipped.
    Differs from the paper's code: the norm that is clipped is that of the whole gradient of a step. There, alpha_i x is
    weight decay, added after clipping, and a clipped -alpha_i w no longer balances it where alpha_i is large.
    Momentum acts on all terms: with it, alpha should be smaller.

    No alpha makes it FedAvg. As alpha goes to 0 clients train as in FedAvg, but the server still adds the mean of the memories,
    which does not depend on alpha: if all clients take part, the first round leads to w + 2 mean of d_i.

    Attributes:
        alpha, weighting, mean: see `DynamicRegulariser`.
        clip: largest norm of the gradient of a step, with both terms, > 0; None does not clip.
    """
