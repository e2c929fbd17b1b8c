"""FedSOL: clients ascend along a proximal loss, to the received model, and take the gradient of their own loss there.

Lee, Jeong, Kim, Oh and Yun, FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning, CVPR
2024. https://arxiv.org/abs/2308.12532
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from algorithms import LocalResult, RoundBased, above, at_least, descend, gradient, one_of, registered, tree
from algorithms.shared.distillation import teacher_logits
from algorithms.shared.sharpness import LEAST_NORM, ascent, two_gradients
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Loss

Form = Literal["adaptive", "fixed"]
Norms = Literal["columns", "tensor"]


@registered("fedsol")
@dataclass(frozen=True)
class FedSOL(RoundBased):
    """FedAvg with the gradient of the cross-entropy at x + e, where e goes up the gradient g_p, at x, of the mean of
    KL(softmax(z_w / 3) || softmax(z_x / 3)), with the logits z_w of the received model w, in evaluation mode, and z_x.

    fixed: e = rho g_p / |g_p|. adaptive: e = rho L * g_p / |g_p|, with L = |x - w| over its norms. Weight decay (at x) and
    momentum act on the second gradient, as in FedAvg. Only the pass at x moves running statistics, and both draw the same
    dropout masks. The teacher costs one more forward pass of each batch.

    At x = w the KL has no gradient but rounding, and e is 0: the first step of each round is that of FedAvg. With rho = 0 all
    are.

    Differs from the paper, where L has one norm per layer, and follows its code: see `norms`. The paper's body was not at hand.
    Differs from the authors' code: "fixed" has no e of length rho at x = w, where its direction would be that of rounding; the
    teacher is always in evaluation mode, where the code has it in training mode for the first client of a run.

    Attributes:
        rho: length of e, >= 0; in "adaptive" up to the factor L, whose entries are between 0 and 1.
        form: of e, "adaptive" or "fixed".
        norms: by which L divides |x - w| in "adaptive": "columns" are norms over the first dimension, the outputs of a layer,
            one for each entry of the others, and one for a vector; "tensor" is one norm for each tensor.
        temperature: of both softmax functions, > 0.
    """

    rho: float = 1.0
    form: Form = "adaptive"
    norms: Norms = "columns"
    temperature: float = 3.0

    def __post_init__(self) -> None:
        at_least("rho", self.rho, 0)
        one_of("form", self.form, get_args(Form))
        one_of("norms", self.norms, get_args(Norms))
        above("temperature", self.temperature, 0)

    @property
    def passes_per_example(self) -> int:
        return 2 if self.rho else 1

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        trained = descend(self.local_loss, view.params, data, plan, view, gradient_of=self._slope).params
        return LocalResult({"delta": tree.subtract(trained, view.params)}, view.client)

    def _slope(self, loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
        """The gradient of the loss at x + e."""
        if not self.rho:
            return gradient(loss, params, batch, view)

        def ascend(slope: Tree) -> Tree:
            e = ascent(slope, self.rho)
            if self.form == "adaptive":
                return tree.map(lambda own, x, w: self._factor(x - w) * own, e, params, view.params)
            moved = torch.stack([(params[name] != w).any() for name, w in view.params.items()]).any()
            return tree.where(moved, e, tree.zeros_like(e))

        return two_gradients(loss, params, batch, view, ascend, self._divergence)[1]

    def _divergence(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        """The proximal loss of a batch. Scalar."""
        teacher = (teacher_logits(view, batch.x) / self.temperature).log_softmax(1)
        student = (view.model(params, batch.x) / self.temperature).log_softmax(1)
        return batch.mean((teacher.exp() * (teacher - student)).sum(1))

    def _factor(self, moved: Tensor) -> Tensor:
        """L of one tensor, from x - w."""
        over = 0 if self.norms == "columns" else tuple(range(moved.ndim))
        return moved.abs() / moved.square().sum(over, keepdim=True).sqrt().clamp(min=LEAST_NORM)
