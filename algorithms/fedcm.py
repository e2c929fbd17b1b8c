"""FedCM: the steps of all clients follow the server's last mean update, too.

Xu, Wang, Wang and Yao, FedCM: Federated Learning with Client-level Momentum, 2021. https://arxiv.org/abs/2106.10874
"""

from dataclasses import dataclass, replace

from algorithms import BatchPlan, ClientData, ClientView, LocalResult, registered
from algorithms.shared.last_update import FollowsLastUpdate


@registered("fedcm")
@dataclass(frozen=True)
class FedCM(FollowsLastUpdate):
    """FedAvg with steps along alpha g + (1 - alpha) D, with the gradient g on a batch; D = -(last mean update) / (K lr).

    K is the number of steps of the client itself: with any K, the second part moves it by (1 - alpha) times the last mean
    update, which all clients of a cohort receive. D is 0 in the first round, and not sent. With alpha 1 it is FedAvg, but for
    clipping; `mofedsam` with rho 0 takes the same steps at twice the cost.

    Momentum acts on alpha g alone, because D within it would move a client by several times the last update, and more in every
    round. Weight decay is not multiplied by alpha: it comes back with each update, and acts as one of weight_decay / alpha
    does in FedAvg, unless `scale_decay` is set.

    Differs from FL-Simulator (woodenchild95), which clips the whole step, takes K of the client with the first id for all
    clients, rounded down, and with a falling rate (`lr_decay`) the lr of the round before: here, as in GHBM, it is that of the
    round, so that the second part does not shrink with it. The paper's body was not at hand, and its authors have published
    no code: formulas are those of two ports, FL-Simulator and GHBM (RickZack).

    Attributes:
        alpha: weight of the gradient, in [0, 1]; 1 is FedAvg.
        scale_decay: whether weight decay is multiplied by alpha, so that it acts as strongly as in FedAvg.
        clip: largest norm of g, > 0; None does not clip.
    """

    scale_decay: bool = False

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        if self.scale_decay:
            decay = self.alpha * view.settings.weight_decay
            view = replace(view, settings=replace(view.settings, weight_decay=decay))
        return super().local_update(data, plan, view)
