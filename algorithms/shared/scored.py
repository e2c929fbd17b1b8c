"""When the models of clients are scored: before local training, or after it."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

import algorithms
from algorithms.shared.base import Deployed, State
from algorithms.shared.checks import one_of
from algorithms.shared.client_states import write_rows
from algorithms.shared.rounds import RoundBased
from algorithms.shared.types import Settings, Task

When = Literal["before", "after"]


@dataclass(frozen=True)
class Scored(RoundBased):
    """A personalised method of which papers score models at different moments, so that a table must say at which.

    Attributes:
        scored: clients deploy their models "before" local training, as soon as they have received the server's, or "after" it:
            each trains for one more round first, which changes no state, but counts in the seconds and examples of a run; or
            it deploys what its last training has left, if the method keeps that.
        keeps_trained: whether a client's state has the model that its last training has left: `personal_model` says which one
            it deploys.
    """

    scored: When = "before"

    personal = True
    keeps_trained: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("scored", self.scored, get_args(When))

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        if self.scored == "before" or self.keeps_trained:
            return super().deploy(task, state, client_ids)
        cohort = task.cohort(client_ids)
        outputs = self.map_clients(task, self.local_update, cohort, state)
        models = self.local_models(state, outputs)
        after = {**state, "clients": write_rows(state["clients"], client_ids, outputs.result.client)}
        examples = self.visited(task, cohort, after)
        return Deployed(self.deployed_model(task), models["params"], models["buffers"], True, examples=examples)

    def deploy_workload(self, settings: Settings, num_examples: int) -> int:
        if self.scored == "before" or self.keeps_trained:
            return super().deploy_workload(settings, num_examples)
        return self.visits(settings, num_examples)

    def caveats(self, task: Task) -> list[str]:
        said = f"{algorithms.name_of(self)}: clients' models are scored {self.scored} local training."
        return [*super().caveats(task), said]
