"""SCAFFOLD: control variates correct the drift of local training.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020.
https://arxiv.org/abs/1910.06378
"""

from dataclasses import dataclass

from algorithms import registered
from algorithms.shared.control_variates import ControlVariates


@registered("scaffold")
@dataclass(frozen=True)
class Scaffold(ControlVariates):
    """Algorithm 1 of the paper, with Option II for the client's control variate.

    Differs from the paper, which has no momentum: inside the momentum buffer the correction is amplified until the control
    variates diverge. `momentum_mode` has rules against it, and "inside" for those who follow codes without one. All are the
    paper at momentum 0.

    Attributes:
        server_lr, weighting, momentum_mode: see `ControlVariates`.
    """

    def version_with(self, buffers: bool) -> int:
        # 1 averaged the buffers by number of examples, whatever the weighting.
        return 2 if buffers and self.weighting == "uniform" else super().version_with(buffers)
