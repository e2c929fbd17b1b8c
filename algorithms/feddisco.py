"""FedDisco: clients whose labels are far from uniform weigh less in the mean of the models.

Ye, Xu, Wang, Xu, Chen and Wang, FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023.
https://arxiv.org/abs/2305.19229
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args, get_type_hints

import torch
from torch import Tensor

import algorithms
from algorithms import Algorithm, Cohort, RoundBased, State, Task, Wrapper, at_least, one_of, registered
from algorithms.shared.accounting import add_costs
from algorithms.shared.wrapper import refuse_wrapper

Metric = Literal["kl", "l1", "l2", "cosine"]

_BYTES_PER_COUNT = 4
_LEAST = 1e-12  # smaller discrepancies are rounding, which must not be divided by its sum


@registered("feddisco")
@dataclass(frozen=True)
class FedDisco(Wrapper):
    """A method with the weights ReLU(p_i - a d_i + b) instead of p_i, each client's share of the cohort's examples; d_i is the
    discrepancy between its label distribution and the uniform one. Weights are normalised over the cohort.

    Everything else of the base is as without: local training, and means that do not weigh clients by their examples. With a
    and b 0, it is the base; the larger b, the more equal the weights. Where all discrepancies are equal and above 0,
    normalised ones are 1/K with K clients, and b - a/K is added to each weight; where all are 0, b is. Every client sends its
    label counts once, with the first round.

    Where all weights of a round are 0, which its authors' code does not provide for, they are p_i; a run's diagnostics count
    such rounds as "all_clipped".

    Attributes:
        base: takes one weighted mean of the cohort's models, by number of examples.
        a: weight of the discrepancy, >= 0.
        b: what is added to each weight, >= 0. It is to be compared with p_i: 0.1 is as much as the share of one of ten
            clients, and outweighs the shares of a hundred.
        metric: of the discrepancy: "kl", the divergence of the client's distribution from the uniform one; "l1" or "l2", the
            norm of the difference; "cosine", 1 - cosine similarity.
        normalise: divide discrepancies by their sum over the cohort; the authors' code does so with "kl" only.
    """

    does = "weighs the clients of"

    a: float = 0.5
    b: float = 0.1
    metric: Metric = "kl"
    normalise: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_wrapper("feddisco", self.base)
        if not (isinstance(self.base, RoundBased) and self.base.weighs_clients):
            name, option = algorithms.name_of(self.base), _that_weighs(self.base)
            raise ValueError(
                "feddisco needs a base whose server averages models in rounds by number of examples, but "
                f"{name} {f'does so with {option}=examples only' if option else 'does not'}."
            )
        at_least("a", self.a, 0)
        at_least("b", self.b, 0)
        one_of("metric", self.metric, get_args(Metric))

    def inside(self, task: Task) -> Task:
        return replace(task, weigh=self._weights)

    def init(self, task: Task) -> State:
        return {**super().init(task), "all_clipped": torch.zeros((), dtype=torch.long, device=task.device)}

    def step(self, task: Task, state: State) -> State:
        cohort = cast(RoundBased, self.base).sample(task, state)
        clipped = (self._adjusted(cohort) <= 0).all() if len(cohort.ids) else False
        after = super().step(task, state)
        reports = 0 if state["round"] else task.population * _report_bytes(task)
        spent = add_costs(after["costs"], bytes_up=reports)
        return {**after, "costs": spent, "all_clipped": state["all_clipped"] + clipped}

    def traffic(self, task: Task) -> int:
        return super().traffic(task) + _report_bytes(task)

    def diagnostics(self, state: State) -> dict[str, Any]:
        return {**super().diagnostics(state), "all_clipped": int(state["all_clipped"])}

    def _weights(self, cohort: Cohort) -> Tensor:
        """The clients' weights in means [K], in units of examples; their numbers of examples if all are clipped."""
        weights = self._adjusted(cohort)
        return torch.where((weights > 0).any(), weights, cohort.num_examples.double())

    def _adjusted(self, cohort: Cohort) -> Tensor:
        """ReLU(p_i - a d_i + b) times the cohort's examples [K]: at a = b = 0 exactly the numbers of examples."""
        examples = cohort.num_examples.double()
        apart = discrepancies(cohort.label_counts.double(), self.metric)
        if self.normalise:
            total = apart.sum()
            apart = apart / torch.where(total > 0, total, 1)  # all 0 stay 0
        return torch.relu(examples - examples.sum() * (self.a * apart - self.b))


def discrepancies(label_counts: Tensor, metric: Metric) -> Tensor:
    """Distance of label distributions from the uniform one [K], >= 0; label_counts: [K, num_classes], no row of which is 0."""
    shares = label_counts / label_counts.sum(1, keepdim=True)
    uniform = torch.full_like(shares, 1 / shares.shape[1])
    if metric == "kl":
        apart = (torch.xlogy(shares, shares) - torch.xlogy(shares, uniform)).sum(1)
    elif metric == "cosine":
        apart = 1 - torch.cosine_similarity(shares, uniform, dim=1)
    else:
        apart = torch.linalg.vector_norm(shares - uniform, ord=1 if metric == "l1" else 2, dim=1)
    return torch.where(apart > _LEAST, apart, 0)


def _report_bytes(task: Task) -> int:
    """Size of a client's label counts."""
    return _BYTES_PER_COUNT * task.federation.num_classes


def _that_weighs(base: Algorithm) -> str | None:
    """The option with which a method's server weighs clients by number of examples; None if there is none."""
    if not isinstance(base, RoundBased):
        return None
    able = (name for name, hint in get_type_hints(type(base)).items() if "examples" in get_args(hint))
    return next((name for name in able if replace(base, **{name: "examples"}).weighs_clients), None)
