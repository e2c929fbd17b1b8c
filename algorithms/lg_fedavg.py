"""LG-FedAvg: the head is shared, and every client has a body of its own.

Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020.
https://arxiv.org/abs/2001.01523
"""

from dataclasses import dataclass, replace

from torch import Tensor

from algorithms import Cohort, RunConfig, State, Task, Tree, at_least, registered
from algorithms.shared.client_states import no_rows, read_rows
from algorithms.shared.partial import PartialSharing, PersonalPart
from algorithms.shared.types import Settings


@registered("lg-fedavg")
@dataclass(frozen=True)
class LGFedAvg(PersonalPart):
    """FedAvg of the head; a client trains its body and the head together.

    With all layers in the head it is FedAvg; with `head_layers` 0 and `fit_private` "none", local training.

    Differs from the code of the paper: it starts from a model that FedAvg has trained (`warm_start_rounds`), averages
    uniformly (`weighting`), and reports each client's best model on the test set, which selects by test data; here a client
    deploys its present model.

    Attributes:
        warm_start_rounds: rounds of FedAvg before, >= 0. They count as rounds of the run and exchange the whole model, and with
            their model every client begins. 0 begins with the initial model.
    """

    warm_start_rounds: int = 0

    shared_part = "head"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("warm_start_rounds", self.warm_start_rounds, 0)

    def validate(self, config: RunConfig) -> list[str]:
        if config.rounds > self.warm_start_rounds:
            return []
        return [
            f"lg-fedavg shares heads after warm_start_rounds ({self.warm_start_rounds}) rounds of FedAvg: rounds must be "
            f"larger than that, but got {config.rounds}."
        ]

    def warm_start(self) -> PartialSharing:
        """FedAvg: everything is body, and shared."""
        return PartialSharing(head_layers=0, weighting=self.weighting)

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        fresh = self.kept({"params": state["params"], "buffers": state["buffers"]})
        return read_rows({**state["clients"], "fresh": fresh}, cohort.ids)

    def run_round(self, task: Task, state: State) -> State:
        if state["round"] >= self.warm_start_rounds:
            return super().run_round(task, state)
        shared = self.warm_start().run_round(task, {**state, "clients": no_rows({})})
        return {**shared, "clients": state["clients"]}

    def to_fit(self, state: State, client_ids: Tensor) -> list[int]:
        # Before there are private parts, the model of the warm start is everyone's.
        return super().to_fit(state, client_ids) if state["round"] > self.warm_start_rounds else []

    def deploy_workload(self, settings: Settings, num_examples: int) -> int:
        # Clients have private parts only after the warm start.
        rest = max(0, settings.rounds - self.warm_start_rounds)
        return super().deploy_workload(replace(settings, rounds=rest), num_examples)

    def traffic(self, task: Task) -> int:
        warm, rest = self.warm_start_rounds, task.settings.rounds - self.warm_start_rounds
        before, after = (replace(task, settings=replace(task.settings, rounds=rounds)) for rounds in (warm, rest))
        return self.warm_start().traffic(before) + super().traffic(after)
