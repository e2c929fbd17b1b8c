"""Finetune: after federated training, each client trains the shared model for a little on its own data.

As a baseline of FedCollab (Bao et al., ICML 2023) and of most other work on personalised federated learning.

finetune-head: Each client trains the classifier of the shared model for a little on its own data.
finetune-body: Each client trains all of the shared model but its classifier for a little on its own data.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

import algorithms
from algorithms import Deployed, PostHoc, State, Tree, at_least, one_of, registered, task_loss
from algorithms.shared.accounting import Deploys
from algorithms.shared.partial import check_classifier, descend_on, layers_of
from algorithms.shared.types import BatchPlan, ClientData, ClientView, Settings, Task

Unit = Literal["steps", "epochs"]
Part = Literal["full", "head", "body"]


@registered("finetune")
@dataclass(frozen=True)
class Finetune(PostHoc):
    """Local SGD in training mode on the cross-entropy, with the settings of the rounds, whatever loss the base has.

    Its mini-batches are those of a round of their own, after the last one of the base.

    Attributes:
        finetune_length: steps or epochs of each client, >= 0; 0 leaves the shared model as it is. A client with fewer batches
            than steps begins another pass.
        finetune_unit: whether the length is in "steps", as in FedCollab, or in "epochs".
        part: what is trained: the "full" model, the "head", which is the classifier, or the "body", which is the rest. The name
            of the method says it, so that it is no option.
    """

    does = "fine-tunes"
    takes: ClassVar[tuple[Deploys, ...]] = ("model", "fused", "several")
    personal = True
    part: ClassVar[Part] = "full"

    finetune_length: int = 2
    finetune_unit: Unit = "steps"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("finetune_length", self.finetune_length, 0)
        one_of("finetune_unit", self.finetune_unit, get_args(Unit))

    def init(self, task: Task) -> State:
        if self.part != "full":
            check_classifier(task.model, f"{algorithms.name_of(self)} trains a part of the model")
        return super().init(task)

    def changed(self, task: Task, deployed: Deployed, state: State, client_ids: Tensor) -> Deployed:
        if not self.finetune_length:
            return deployed.for_each(len(client_ids))
        own = self._trained(task, deployed, state["round"], client_ids)
        visited = sum(self._tuning(task.settings).num_visited(size) for size in task.sizes(client_ids))
        return deployed.for_each(len(client_ids))._replace(**own, examples=deployed.examples + visited)

    def deploy_workload(self, settings: Settings, num_examples: int) -> int:
        own = self._tuning(settings).num_visited(num_examples) if self.finetune_length else 0
        return super().deploy_workload(settings, num_examples) + own

    def _tuning(self, settings: Settings) -> Settings:
        """The settings of a run, for as long as clients train afterwards."""
        length: dict[str, Any] = {
            "local_steps": None,
            "local_epochs": None,
            f"local_{self.finetune_unit}": self.finetune_length,
        }
        return replace(settings, **length)

    def _trained(self, task: Task, deployed: Deployed, round: int, client_ids: Tensor) -> Tree:
        """Each client's model: "params" and "buffers", leaves [K, ...]."""
        own = replace(task, model=deployed.model, settings=self._tuning(task.settings))
        *body, head = layers_of(deployed.params)
        layers = {"full": [*body, head], "head": [head], "body": body}[self.part]

        def train(data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
            return descend_on(layers, task_loss, {"params": view.params, "buffers": view.buffers}, data, plan, view)

        return own.map_clients(
            train, own.cohort(client_ids), round=round, params=deployed.params, buffers=deployed.buffers
        ).result


@registered("finetune-head", title="Finetune (head)")
@dataclass(frozen=True)
class FinetuneHead(Finetune):
    """The same for the classifier alone."""

    takes = ("model", "fused")
    part = "head"


@registered("finetune-body", title="Finetune (body)")
@dataclass(frozen=True)
class FinetuneBody(Finetune):
    """The same for all but the classifier."""

    takes = ("model", "fused")
    part = "body"
