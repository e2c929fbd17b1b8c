"""FedLPA: clients train alone, and layer by layer the server finds the most likely model by Kronecker-factored curvature.

Liu, Liu, Ye, Shen, Li, Jiang and Li, FedLPA: One-shot Federated Learning with Layer-Wise Posterior Aggregation, NeurIPS 2024.
https://arxiv.org/abs/2310.00339
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms import Cohort, Deployed, Task, Tree, above, at_least, one_of, registered, tree
from algorithms.oneshot import Combination, num_models
from algorithms.shared.hold_out import num_held
from algorithms.shared.local_sgd import value_of
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Settings
from bench.models.base import BoundModel, Model
from bench.models.taps import Call, Taps

Solver = Literal["cg", "expectation", "gradient"]
_MOST_BYTES = 2**30  # of the factors that are held at a time


@registered("fedlpa")
@dataclass(frozen=True)
class FedLPA(Combination):
    """Layer by layer, with M_i [out, in + 1] the weights of client i, the bias as last column, and p_i as in `oneshot`, by
    default its share of examples:

        A_i = E[x x^T] + r I, of the layer's inputs x, with 1 appended
        B_i = E[g g^T] + r I, of the gradients g of an example's loss, with its true label, by the layer's outputs
        Z = sum_i p_i B_i M_i A_i,    and M solves    sum_i p_i B_i M A_i = Z.

    Of a convolution, x are patches: A sums over positions and divides by their number squared, B sums over them and multiplies
    by their number. All other params, those of grouped convolutions, and buffers are means by p_i. Each client sends its model
    and, after one more pass over its data in evaluation mode, one triangle of each factor. That pass is no round of the run,
    but its examples count. The server solves in double precision. Where the factors of all layers and clients take more than
    1 GiB, some layers come at a time, and the simulation passes over the data again for each such part.

    A client whose model has converged on one class has gradients near 0, so that only r speaks for it.

    Differs from the paper's code: it takes 10,000 gradient steps on the mean squared residual from the first approximation
    M0 = (sum_i p_i B_i)^-1 Z (sum_i p_i A_i)^-1, which is `solver` "gradient", and reports M0 or the result, whichever is
    better on the test data. Here conjugate gradients, preconditioned by the factors of M0, find the solution itself, and
    nothing is chosen. The paper's body was not at hand. Its term in the local loss acts from the second round on, so that one
    round has none.

    Attributes:
        damping: r, what is added to the diagonals of both factors, > 0; 0.0316 is sqrt(1 - 0.999) of the code's coor 0.999.
        solver: of the linear system: "cg", conjugate gradients; "expectation", none but the first approximation M0; or
            "gradient", as in the code.
        cg_iterations: most iterations, >= 1; fewer once the residual is 1e-10 of the right side Z.
        gradient_steps: of the solver "gradient", with the learning rate 1, >= 0.
    """

    damping: float = 0.0316
    solver: Solver = "cg"
    cg_iterations: int = 200
    gradient_steps: int = 10000

    def __post_init__(self) -> None:
        super().__post_init__()
        above("damping", self.damping, 0)
        one_of("solver", self.solver, get_args(Solver))
        at_least("cg_iterations", self.cg_iterations, 1)
        at_least("gradient_steps", self.gradient_steps, 0)

    def combined(self, task: Task, deployed: Deployed, cohort: Cohort, models: Tree) -> Deployed:
        weights = self.oneshot.client_weights(cohort).double()
        shares = weights / weights.sum()
        params, used = dict(deployed.params), dict[str, int]()
        for layers in groups_of(sides_of(task.model), _MOST_BYTES // len(cohort.ids)):
            for layer, (a, b) in self.factors(task, cohort, models, layers).items():
                weights, bias = models["params"][f"{layer}.weight"], models["params"].get(f"{layer}.bias")
                m = _joined(weights, bias).double()
                if not (m.isfinite().all() and a.isfinite().all() and b.isfinite().all()):
                    continue  # of training that has diverged
                solved, used[layer] = self.solved(m, a, b, shares)
                found = solved.to(weights.dtype)
                if bias is not None:
                    found, params[f"{layer}.bias"] = found[:, :-1], found[:, -1]
                params[f"{layer}.weight"] = found.reshape(weights.shape[1:])
        return deployed._replace(params=params, diagnostics={"solver_iterations": used})

    def factors(
        self, task: Task, cohort: Cohort, models: Tree, layers: Collection[str]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Of each of these layers, A [K, in + 1, in + 1] and B [K, out, out] of the clients, without r."""
        once = task.settings.one_pass(last_batch="keep")
        own = replace(self.oneshot.training(task), settings=once, engine="loop")

        def measure(data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
            sums: dict[str, Any] = {}
            for index in plan:
                found = curvature(data.take(index), view, layers)
                for layer, pair in found.items():
                    known = sums.get(layer)
                    sums[layer] = pair if known is None else Factors(known.a + pair.a, known.b + pair.b)
            return tree.map(lambda leaf: leaf / sum(index.least for index in plan), sums)

        found = own.map_clients(measure, own.cohort(cohort.ids), round=0, **models, own_params=True).result
        return {layer: (pair.a, pair.b) for layer, pair in found.items()}

    def solved(self, m: Tensor, a: Tensor, b: Tensor, shares: Tensor) -> tuple[Tensor, int]:
        """M of one layer, and how many iterations it took.

        Args:
            m: [K, out, in], the clients' weights; a, b: [K, in, in] and [K, out, out], without r; shares: [K], sum 1.
        """
        a, b = (one + self.damping * torch.eye(one.shape[1], dtype=one.dtype, device=one.device) for one in (a, b))

        def apply(x: Tensor) -> Tensor:
            return torch.einsum("k,koi->oi", shares, b @ x @ a)

        z = torch.einsum("k,koi->oi", shares, b @ m @ a)
        mean_a, mean_b = (torch.linalg.cholesky(torch.einsum("k,kij->ij", shares, one)) for one in (a, b))

        def precondition(residual: Tensor) -> Tensor:
            half = torch.cholesky_solve(residual, mean_b)
            return torch.cholesky_solve(half.T, mean_a).T

        start = precondition(z)
        if self.solver == "expectation":
            return start, 0
        if self.solver == "gradient":
            x = start
            for _ in range(self.gradient_steps):
                x = x - 2 / x.numel() * apply(apply(x) - z)
            return x, self.gradient_steps
        return conjugate_gradients(apply, precondition, z, start, self.cg_iterations)

    def deploy_workload(self, settings: Settings, num_examples: int) -> int:
        return num_examples - num_held(num_examples, self.oneshot.hold_out)

    def change_traffic(self, task: Task, model: Model) -> dict[str, int]:
        numbers = sum(side * (side + 1) // 2 for pair in sides_of(task.model).values() for side in pair)
        return {"bytes_down": 0, "bytes_up": 4 * num_models(task) * numbers}


class Factors(NamedTuple):
    """Sums over examples of the factors of one layer."""

    a: Tensor
    b: Tensor


def curvature(batch: Batch, view: ClientView, layers: Collection[str]) -> dict[str, Factors]:
    """Layer -> sums of its factors over a batch, in double precision, of some of those that `sides_of` names."""
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in view.params.items()}
    with torch.enable_grad(), Taps(leaves) as taps:
        loss = value_of(_sum_of_losses, leaves, batch, view)
    calls = {layer: taps.calls[layer][0] for layer in layers}
    slopes = torch.autograd.grad(loss, [call.output for call in calls.values()])
    return {
        layer: layer_factors(*rows_of(call, slope.detach(), f"{layer}.bias" in leaves))
        for (layer, call), slope in zip(calls.items(), slopes, strict=True)
    }


def _sum_of_losses(params: Tree, batch: Batch, view: ClientView) -> Tensor:
    """Of the model in evaluation mode."""
    return F.cross_entropy(BoundModel(view.model.spec, view.model.buffers)(params, batch.x), batch.y, reduction="sum")


def sides_of(model: Model) -> dict[str, tuple[int, int]]:
    """Sides of A and B, of those linear layers and convolutions that a model uses once."""
    params = model.init(torch.Generator())
    with Taps(params) as taps:
        BoundModel(model, model.init_buffers())(params, torch.zeros(1, *model.input_shape))
    calls = {layer: uses[0] for layer, uses in taps.calls.items() if len(uses) == 1 and _is_plain(uses[0])}
    return {
        layer: (call.weight[0].numel() + (f"{layer}.bias" in params), len(call.weight)) for layer, call in calls.items()
    }


def groups_of(sides: Mapping[str, tuple[int, int]], most: int) -> list[list[str]]:
    """The layers, in their order, in groups whose factors of one client take at most so many bytes, or that have one layer."""
    groups: list[list[str]] = []
    left = 0
    for layer, (a, b) in sides.items():
        size = 8 * (a**2 + b**2)
        if not groups or size > left:
            groups.append([])
            left = most
        groups[-1].append(layer)
        left -= size
    return groups


def rows_of(call: Call, slope: Tensor, has_bias: bool) -> tuple[Tensor, Tensor]:
    """Inputs [n, positions, in] of a layer, with 1 appended if it has a bias, and gradients [n, positions, out]."""
    inputs = call.input.detach()
    if call.function is F.linear:
        x, g = inputs[:, None], slope[:, None]
    else:
        stride, padding, dilation, _ = call.options
        x = F.unfold(inputs, call.weight.shape[2:], dilation=dilation, padding=padding, stride=stride).transpose(1, 2)
        g = slope.flatten(2).transpose(1, 2)
    return (F.pad(x, (0, 1), value=1.0) if has_bias else x), g


def layer_factors(x: Tensor, g: Tensor) -> Factors:
    """Sums over examples [n] of the factors, from inputs [n, positions, in] and gradients [n, positions, out]."""
    positions = x.shape[1]
    x, g = x.double().flatten(0, 1), g.double().flatten(0, 1)
    return Factors(x.T @ x / positions**2, g.T @ g * positions)


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor],
    precondition: Callable[[Tensor], Tensor],
    z: Tensor,
    start: Tensor,
    most: int,
    tolerance: float = 1e-10,
) -> tuple[Tensor, int]:
    """The solution of apply(x) = z, for a symmetric positive definite apply, and the iterations that it took."""
    x, residual = start, z - apply(start)
    direction = precondition(residual)
    steepness, enough = (residual * direction).sum(), tolerance * z.norm()
    for iteration in range(most):
        if residual.norm() <= enough:
            return x, iteration
        image = apply(direction)
        length = steepness / (direction * image).sum()
        x, residual = x + length * direction, residual - length * image
        towards = precondition(residual)
        before, steepness = steepness, (residual * towards).sum()
        direction = towards + steepness / before * direction
    return x, most


def _is_plain(call: Call) -> bool:
    """Whether there are factors of a layer: a linear one on rows, or a convolution without groups."""
    if call.function is F.linear:
        return call.input.ndim == 2
    return call.options[3] == 1 and not isinstance(call.options[1], str)


def _joined(weights: Tensor, bias: Tensor | None) -> Tensor:
    """Weights [K, out, ...] of clients as matrices [K, out, in], their biases as last column."""
    rows = weights.flatten(2)
    return rows if bias is None else torch.cat([rows, bias[:, :, None]], 2)
