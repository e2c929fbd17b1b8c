"""Ensemble: the models of all clients, trained alone, predict together by the mean of their logits.

ensemble-vote: The models of all clients, trained alone, predict by majority.
ensemble-weighted: The models of all clients, trained alone, predict by probabilities weighed by class counts.

A baseline of all one-shot methods, such as DENSE (Zhang et al., NeurIPS 2022), FENS (Allouah et al., NeurIPS 2024) and FuseFL
(Tang et al., NeurIPS 2024).
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

import algorithms
from algorithms import Cohort, Deployed, Task, Tree, one_of, registered, tree
from algorithms.oneshot import Combination, bytes_to_all, num_models, side_by_side
from algorithms.shared.checks import noisy_inputs
from algorithms.shared.hold_out import held_part
from algorithms.shared.types import RunConfig
from bench.models.base import BoundModel, Model
from bench.models.ensemble import RULES, ByRule

Combined = Literal["logits", "probabilities", "votes", "weighted-logits", "weighted-probabilities", "polychotomous"]


@registered("ensemble")
@registered("ensemble-vote", title="Ensemble (vote)", rule="votes")
@registered("ensemble-weighted", title="Ensemble (weighted)", rule="weighted-probabilities")
@dataclass(frozen=True)
class EnsembleOfClients(Combination):
    """With logits z_i of client i's model, s the softmax, and a_i[c] = n_i[c] / sum_j n_j[c] from the numbers of examples of
    class c that clients have trained on, the score of class c is

        logits                  mean_i z_i[c] ("ensemble" in DENSE and FuseFL, "averaging" in FENS)
        probabilities           mean_i s(z_i)[c]
        votes                   number of models whose largest logit is c; ties: the larger mean s(z_i)[c], then the lower class
        weighted-logits         sum_i a_i[c] z_i[c], FENS's "weighted"; a class that a client lacks adds 0, which is more than a
                                negative logit
        weighted-probabilities  sum_i a_i[c] s(z_i)[c]
        polychotomous           prod_i M_i[c, argmax z_i]

    M_i[c, k] is the share of the examples of class c which client i holds out (`base.hold_out`) that its model calls k; where
    it has none, 1 over the number of classes that it holds out, for each of these. The deployed model's logits are the
    logarithms of scores that are probabilities. A client sends its class counts, or M_i, where the rule needs them, and
    receives all m models.

    Differs from the paper's code: FENS's polychotomous voting is known from its description only, so that the examples that M_i
    is taken on are ours.

    Attributes:
        rule: the score: "logits", "probabilities", "votes", "weighted-logits", "weighted-probabilities" or "polychotomous".
    """

    rule: Combined = "logits"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("rule", self.rule, get_args(Combined))
        if self.rule == "polychotomous" and not self.oneshot.hold_out:
            raise ValueError(
                "The rule polychotomous needs examples that clients hold out; set base.hold_out, such as 0.1."
            )

    def combined(self, task: Task, deployed: Deployed, cohort: Cohort, models: Tree) -> Deployed:
        found = side_by_side(models)
        if self.rule == "polychotomous":
            found["params"]["knowledge"] = self._confusions(task, cohort, models)
        elif RULES[self.rule].knows:
            counts = cohort.label_counts
            found["params"]["knowledge"] = counts / counts.sum(0).clamp(min=1)
        return Deployed(self.deployed_model(task), found["params"], found["buffers"], False)

    def deployed_model(self, task: Task) -> Model:
        return ByRule(task.model.input_shape, task.model.num_classes, self.members(task), self.rule)

    def change_traffic(self, task: Task, model: Model) -> dict[str, int]:
        m, num_classes = num_models(task), task.model.num_classes
        numbers = {
            "polychotomous": num_classes**2,
            "weighted-logits": num_classes,
            "weighted-probabilities": num_classes,
        }
        plain = ByRule(model.input_shape, num_classes, self.members(task))
        return {"bytes_down": bytes_to_all(task, plain), "bytes_up": 4 * m * numbers.get(self.rule, 0)}

    def validate(self, config: RunConfig) -> list[str]:
        own = noisy_inputs(self.rule, config.partition) if self.rule == "polychotomous" else []
        return super().validate(config) + own

    def caveats(self, task: Task) -> list[str]:
        said = (
            f"{algorithms.name_of(self)}: each client has one class, so that its model predicts that class with confidence "
            "near 1 whatever it sees, and rules without training are near to ties."
        )
        alone = task.federation.one_class_clients == len(task.federation.clients)
        return [*super().caveats(task), *[said] * alone]

    def _confusions(self, task: Task, cohort: Cohort, models: Tree) -> Tensor:
        held = held_part(task, self.oneshot.hold_out).federation

        def of_one(k: int, client: int) -> Tensor:
            rows, model = held.clients[client].to(task.device), BoundModel(task.model, tree.row(models["buffers"], k))
            params = tree.row(models["params"], k)
            logits = task.map_images(lambda x, first: model(params, x), held.images[rows])
            return confusion(logits.argmax(1), held.labels[rows], task.model.num_classes)

        return torch.stack([of_one(k, client) for k, client in enumerate(task.global_ids(cohort.ids).tolist())]).to(
            task.dtype
        )


def confusion(called: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """M [C, C]: the share of the examples of class c that are called k; of a class without examples, 1 over the number of
    classes with some, for each of these."""
    counts = torch.bincount(labels * num_classes + called, minlength=num_classes**2).view(num_classes, -1).double()
    totals = counts.sum(1, keepdim=True)
    seen = (totals > 0).flatten().double()
    return torch.where(totals > 0, counts / totals.clamp(min=1), seen / seen.sum().clamp(min=1))
