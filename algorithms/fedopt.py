"""FedOpt: the server takes adaptive steps along the mean update.

fedadagrad: FedAdagrad: the server steps by Adagrad along the mean update.
fedadam: FedAdam: the server steps by Adam along the mean update.
fedyogi: FedYogi: the server steps by Yogi along the mean update.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, Adaptive Federated Optimization, ICLR 2021.
https://arxiv.org/abs/2003.00295
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from algorithms import Cohort, RoundBased, Task, Tree, above, one_of, registered, tree
from algorithms.shared.checks import below_one

SecondMoment = Literal["squared-adaptivity", "zero"]


@dataclass(frozen=True)
class FedOpt(RoundBased):
    """FedAvg with an adaptive server step along the mean delta D: with first moment m and second moment v of each param,
    m = beta1 m + (1 - beta1) D; v as the subclass says; params + server_lr m / (sqrt(v) + adaptivity).

    There is no bias correction, as in the paper. Buffers are averaged as in FedAvg.

    With beta1 0, initial_second_moment "zero", and server_lr and adaptivity equal and large, it approaches FedAvg; with
    "squared-adaptivity" the denominator is about twice as large.

    Attributes:
        server_lr: step size of the server (eta), > 0; to be searched together with the setting `lr`.
        beta1: decay of the first moment, in [0, 1).
        adaptivity: tau of the paper, > 0; the smaller, the more equal the steps of all params.
        initial_second_moment: v before the first round: "squared-adaptivity", tau^2, the least that the paper allows; "zero",
            as in most public re-implementations.
    """

    server_lr: float = 0.1
    beta1: float = 0.9
    adaptivity: float = 1e-3
    initial_second_moment: SecondMoment = "squared-adaptivity"

    def __post_init__(self) -> None:
        above("server_lr", self.server_lr, 0)
        below_one("beta1", self.beta1)
        above("adaptivity", self.adaptivity, 0)
        one_of("initial_second_moment", self.initial_second_moment, get_args(SecondMoment))

    def second_moment(self, v: Tensor, d: Tensor) -> Tensor:
        """The new second moment of a leaf from the old one and the mean delta."""
        raise NotImplementedError

    def step_size(self, steps: Tensor) -> float | Tensor:
        """The server's learning rate in its step number `steps`, from 1."""
        return self.server_lr

    def init_server(self, task: Task, params: Tree) -> Tree:
        start = self.adaptivity**2 if self.initial_second_moment == "squared-adaptivity" else 0.0
        return {
            "first": tree.zeros_like(params),
            "second": tree.map(lambda leaf: torch.full_like(leaf, start), params),
            "steps": torch.zeros((), dtype=torch.long, device=task.device),
        }

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        delta, steps = update["delta"], server["steps"] + 1
        first = tree.map(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, server["first"], delta)
        second = tree.map(self.second_moment, server["second"], delta)
        step = tree.map(lambda m, v: m / (v.sqrt() + self.adaptivity), first, second)
        new = tree.add(params, tree.scale(step, self.step_size(steps)))
        return new, {"first": first, "second": second, "steps": steps}


@registered("fedadagrad", title="FedAdagrad")
@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    """v = v + D^2.

    Attributes:
        beta1: as in `FedOpt`; 0, as in the paper's experiments.
    """

    beta1: float = 0.0

    def second_moment(self, v: Tensor, d: Tensor) -> Tensor:
        return v + d.square()


@registered("fedadam", title="FedAdam")
@dataclass(frozen=True)
class FedAdam(FedOpt):
    """v = beta2 v + (1 - beta2) D^2.

    Attributes:
        beta2: decay of the second moment, in [0, 1).
        bias_correction: multiplies the learning rate in step t, from 1, by sqrt(1 - beta2^(t+1)) / (1 - beta1^(t+1)), as
            Flower's FedAdam does (with `initial_second_moment` zero).
    """

    beta2: float = 0.99
    bias_correction: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        below_one("beta2", self.beta2)

    def second_moment(self, v: Tensor, d: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * d.square()

    def step_size(self, steps: Tensor) -> float | Tensor:
        if not self.bias_correction:
            return self.server_lr
        power = steps.double() + 1
        return self.server_lr * (1 - self.beta2**power).sqrt() / (1 - self.beta1**power)


@registered("fedyogi", title="FedYogi")
@dataclass(frozen=True)
class FedYogi(FedOpt):
    """v = v - (1 - beta2) D^2 sign(v - D^2): unlike Adam's, v changes by no more than D^2, however large it is.

    Attributes:
        beta2: decay of the second moment, in [0, 1).
    """

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        below_one("beta2", self.beta2)

    def second_moment(self, v: Tensor, d: Tensor) -> Tensor:
        squared = d.square()
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)
