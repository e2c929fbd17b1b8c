"""FedLC: logits are calibrated by the client's label counts, with larger margins for rare classes.

Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022.
https://arxiv.org/abs/2209.00189
"""

from dataclasses import dataclass

from torch import Tensor

from algorithms import Batch, ClientView, RoundBased, Tree, above, at_least, cross_entropy, registered


@registered("fedlc")
@dataclass(frozen=True)
class FedLC(RoundBased):
    """FedAvg with logits shifted by -tau n_c^(-1/4) in local training (Eq. 9 of the paper).

    Differs from the paper: the softmax runs over all classes, the true one included, as in public re-implementations.

    Attributes:
        tau: weight of the margins, >= 0; 0 is FedAvg.
        smallest_count: replaces a count of 0, > 0; at 1e-8 absent classes get a margin of 100 tau, which removes them
            from the softmax, at 1 a margin of tau.
    """

    tau: float = 1.0
    smallest_count: float = 1e-8

    def __post_init__(self) -> None:
        at_least("tau", self.tau, 0)
        above("smallest_count", self.smallest_count, 0)

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        margins = self.tau * view.label_counts.clamp(min=self.smallest_count) ** -0.25
        return cross_entropy(view.model(params, batch.x) - margins, batch)
