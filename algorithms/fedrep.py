"""FedRep: the body is shared, and a client trains its own head before it trains the body.

Collins, Hassani, Mokhtari and Shakkottai, Exploiting Shared Representations for Personalized Federated Learning, ICML 2021.
https://arxiv.org/abs/2102.07078
"""

from dataclasses import dataclass

from algorithms import BatchPlan, ClientData, ClientView, Tree, at_least, registered
from algorithms.shared.partial import PersonalPart, descend_on
from algorithms.shared.types import Settings


@registered("fedrep")
@dataclass(frozen=True)
class FedRep(PersonalPart):
    """FedAvg of the body in two phases: a client trains its head, the body frozen, and then the body, the head frozen.

    The phase of the body is the local training of the settings, and that of the head is `head_passes` times as long, on the
    same batches. Momentum starts at 0 in each phase. In the code of the paper a last round is for heads alone, of all clients:
    `fit_private` "all", which trains a head as long as in any other round, where the code has at least 10 epochs.

    Differs from the paper: the server weights clients by their number of examples, unless `weighting` is "uniform" (the paper's
    clients have equally many), and weight decay is that of the settings, on all params of the part that is trained.

    Attributes:
        head_passes: epochs of the head for each epoch of the body, >= 0. The paper has 10 epochs of the head with 5 of the
            body, and with 1 at two classes per client. 0 leaves heads at their initial values, as FedBABU does.
    """

    head_passes: int = 2

    needs_body = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("head_layers", self.head_layers, 1)
        at_least("head_passes", self.head_passes, 0)

    @property
    def passes_per_example(self) -> int:
        return self.head_passes + 1

    def fitted(self, model: Tree, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return super().fitted(model, data, plan * self.head_passes, view)

    def fit_visits(self, settings: Settings, num_examples: int) -> int:
        return self.head_passes * super().fit_visits(settings, num_examples)

    def trained(self, model: Tree, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        with_head = self.fitted(model, data, plan, view)
        return descend_on(self.shared_layers(view.params), self.local_loss, with_head, data, plan, view)
