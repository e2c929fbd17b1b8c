"""FedBABU: the body is trained and shared, and the head stays at its initial value until clients fine-tune.

Oh, Kim and Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022.
https://arxiv.org/abs/2106.06042
"""

from dataclasses import dataclass

from algorithms import BatchPlan, ClientData, ClientView, Tree, registered
from algorithms.shared.base import Classifier
from algorithms.shared.partial import PartialSharing, descend_on


@registered("fedbabu")
@dataclass(frozen=True)
class FedBabu(PartialSharing):
    """FedAvg of the body under the initial head, which is the same for all clients and which no weight decay shrinks.

    It deploys the body with the initial head. `finetune` around it gives the personal models of the paper.

    With `head_layers` 0 there is no head to freeze, and it is FedAvg.

    Differs from the code of the paper: the server weights clients by their number of examples, unless `weighting` is
    "uniform".
    """

    needs_body = True

    @property
    def classifier(self) -> Classifier:
        return "fixed" if self.head_layers else "trained"

    def trained(self, model: Tree, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return descend_on(self.shared_layers(view.params), self.local_loss, model, data, plan, view)
