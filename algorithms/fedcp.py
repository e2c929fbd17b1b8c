"""FedCP: a gate splits the features of each image between a client's own head and the received one.

Zhang, Hua, Wang, Song, Xue, Ma and Guan, FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy, KDD 2023. https://arxiv.org/abs/2307.01217
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

import algorithms
from algorithms import LocalResult, State, at_least, cross_entropy, descend, one_of, registered, tree
from algorithms.shared.checks import linear_classifier
from algorithms.shared.partial import FitsPrivate, descend_on
from algorithms.shared.scored import Scored
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientOutputs, ClientView, Settings, Task
from bench.models.base import Model
from bench.models.calibrated import wrap
from bench.models.concat import classifier_part
from bench.models.conditional import Gated, context, gate, gumbel, init_gate

Gate = Literal["learned", "personal", "global"]
_BANDWIDTHS = (10, 15, 20, 50)


@registered("fedcp", title="FedCP")
@dataclass(frozen=True)
class FedCP(Scored, FitsPrivate):
    """FedAvg of body, gate and head, where each client also has a head of its own, h_p, beside the received one, h_g.

    v is the sum of h_p's weights over the classes, divided by its length, a constant of a round. With features f of a batch,
    a = ReLU(LN(linear(f v))) has two values for each feature, r is the first of softmax((a + noise) / 1) over the two, with
    Gumbel noise in training, and the logits are h_p(r f) + h_g((1 - r) f). Clients minimise CE + lambda MMD(f, f'), where f'
    are the features of the received body, in training mode and with the same masks of dropout: at the first step of a round,
    f' is f. MMD is the mean over all pairs of examples of sum_s [k_s(f, f) + k_s(f', f') - 2 k_s(f, f')],
    k_s(a, b) = exp(-|a - b|^2 / (2 s)), s in 10, 15, 20, 50. Body, gate and h_p are trained, h_g and the received body are
    constants. A client sends h_p / 2 + h_g / 2 as its head. It keeps h_p, which at first is the initial head, and deploys h_p
    with the new body, gate and h_g, without noise.

    Differs from the authors' code: there noise is drawn in tests, too (`test_noise`), which makes accuracies random; v starts
    as random numbers; absent clients combine the new body with an old gate and h_g; and f' has masks of its own.
    The paper's body was not at hand: formulas and defaults are those of the authors' code.

    Attributes:
        mmd_weight: lambda, >= 0; 0 is without. The authors take 5 on MNIST.
        gate: what r is: "learned", 1 ("personal"), so that h_p reads all features, or 0 ("global"), so that h_p is idle, and
            the head stays as it was drawn; only "learned" has a gate. "personal" without MMD is FedPer, whose server does not
            have the heads.
        test_noise: whether a learned gate has noise in tests; image i of each batch of a test gets the same.
        scored: when clients' models are scored; "before" is the authors' code.
    """

    version = 3  # 2 drew infinite noise once in hundreds or thousands of batches, after which a run diverged

    mmd_weight: float = 5.0
    gate: Gate = "learned"
    test_noise: bool = False

    seeded = ("noise",)  # the key of noise in tests

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("mmd_weight", self.mmd_weight, 0)
        one_of("gate", self.gate, get_args(Gate))

    # What there is

    def init(self, task: Task) -> State:
        linear_classifier(
            algorithms.name_of(self), "splits features between this one and", task.model, task.initial_params()
        )
        state = super().init(task)
        if self.gate != "learned":
            return state
        own = init_gate(task.model.feature_dim, task.generator_for("fedcp", task.initial_model))
        return {**state, "params": state["params"] | task.place(own)}

    def init_client(self, task: Task, params: Tree) -> Tree:
        return classifier_part(params)

    def init_server(self, task: Task, params: Tree) -> Tree:
        drawn = torch.empty((), dtype=torch.long).random_(generator=task.generator_for("fedcp-noise"))
        return {"noise": drawn.to(task.device)}

    # On one client

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        """On params whose classifier is h_p; `view.params` has h_g."""
        with torch.no_grad():  # before the others, whose masks of dropout a twin draws
            received = view.model.twin().features(view.params, batch.x) if self.mmd_weight else None
        features = view.model.features(params, batch.x)
        loss = cross_entropy(self._logits(params, features, batch, view), batch)
        return loss if received is None else loss + self.mmd_weight * mmd(features, received, batch.mask)

    def _logits(self, params: Tree, features: Tensor, batch: Batch, view: ClientView) -> Tensor:
        if self.gate == "personal":
            return view.model.head(params, features)
        if self.gate == "global":
            return view.model.head(view.params, features)
        assert batch.key is not None
        noise = gumbel(batch.key, features)
        share = gate(params, features, context(view.client["classifier.weight"]), noise)
        return view.model.head(params, share * features) + view.model.head(view.params, (1 - share) * features)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        start = view.params | view.client
        moving = {name: leaf for name, leaf in start.items() if self._is_trained(name)}
        trained = start | descend(self.local_loss, moving, data, plan, view).params
        own = classifier_part(trained)
        half = tree.map(lambda mine, received: (mine + received) / 2, own, classifier_part(view.params))
        sent = trained | (half if self.gate != "global" else classifier_part(view.params))
        return LocalResult({"delta": tree.subtract(sent, view.params)}, own)

    def _is_trained(self, name: str) -> bool:
        return self.gate != "global" or not name.startswith("classifier.")

    # What is deployed

    def deployed_model(self, task: Task) -> Model:
        return wrap(Gated, task.model, self.test_noise) if self.gate == "learned" else task.model

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        params = self._deployed(view.params, view.client, view.params, view.server)
        return {"params": params, "buffers": view.buffers}

    def fitted_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        start = {"params": view.params | view.client, "buffers": view.buffers}
        layers = ["classifier"] if self.gate != "global" else []
        trained = descend_on(layers, self.local_loss, start, data, plan, view)["params"]
        return self.personal_model(data, plan, replace(view, client=classifier_part(trained)))

    def fit_visits(self, settings: Settings, num_examples: int) -> int:
        return 0 if self.gate == "global" else super().fit_visits(settings, num_examples)

    def local_model(self, task: Task) -> Model:
        return self.deployed_model(task)

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        models, own = super().local_models(state, outputs), outputs.result.client
        received = tree.map(lambda leaf, one: leaf.expand_as(one), classifier_part(state["params"]), own)
        noise = {name: leaf.expand(len(tree.leaves(own)[0])) for name, leaf in state["server"].items()}
        return {**models, "params": self._deployed(models["params"], own, received, noise)}

    def _deployed(self, params: Tree, own: Tree, received: Tree, noise: Tree) -> Tree:
        if self.gate != "learned":
            return params | (own if self.gate == "personal" else classifier_part(received))
        other = {f"received.{name}": received[f"classifier.{name}"] for name in ("weight", "bias")}
        return params | own | other | (noise if self.test_noise else {})


def mmd(features: Tensor, received: Tensor, mask: Tensor | None) -> Tensor:
    """Squared maximum mean discrepancy of features [B, d] and [B, d], over the rows of mask [B]. Scalar."""
    pairs = _kernels(features, features) + _kernels(received, received) - 2 * _kernels(features, received)
    if mask is None:
        return pairs.mean()
    both = mask[:, None] & mask
    return torch.where(both, pairs, 0).sum() / both.sum().clamp(min=1)


def _kernels(rows: Tensor, columns: Tensor) -> Tensor:
    """Sums of the kernels of all bandwidths [B, B]."""
    distances = (rows[:, None] - columns).square().sum(2)
    return torch.stack([torch.exp(-distances / (2 * width)) for width in _BANDWIDTHS]).sum(0)
