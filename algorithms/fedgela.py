"""FedGELA: the classifier is a fixed simplex, whose vectors clients scale by how often they have each class.

Fan, Zhang, Yao, Han, Zhang and Wang, Federated Learning with Bilateral Curation for Partially Class-Disjoint Data, NeurIPS
2023. https://arxiv.org/abs/2405.18972

fedgela-personal: FedGELA, of which each client deploys the simplex scaled by its own class frequencies.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from algorithms import Deployed, RoundBased, State, Tree, above, cross_entropy, registered
from algorithms.shared.etf import etf_of
from algorithms.shared.types import Batch, ClientOutputs, ClientView, Task
from bench.models.concat import encoder_part


@registered("fedgela")
@registered("fedgela-personal", title="FedGELA (personal)", personal_head=True)
@dataclass(frozen=True)
class FedGELA(RoundBased):
    """FedAvg on the encoder alone; with features h of length 1, label shares and the fixed matrix M, clients minimise the
    cross-entropy of E_c (M^T h)_c / T, where E_c is the number of classes times the client's share of class c.

    A vacant class has the logit 0, with which it competes. M follows from the seed, is part of the state and is never sent.
    Deployed are encoder and M, as one linear classifier without a bias; neither the length of h nor T changes a prediction.

    Differs from the paper: its code has batch normalisation of the features instead of unit length, clips gradients, and
    weights clients by their number of batches; here nothing is clipped, and they are weighted by their number of examples.

    Attributes:
        temperature: T of the paper, > 0.
        normalise: whether features are scaled to length 1 in training.
        personal_head: whether each client deploys its own M diag(E), which takes no further training, or all deploy M.
    """

    temperature: float = 0.2
    normalise: bool = True
    personal_head: bool = False

    seeded = ("etf",)
    classifier = "replaced"

    def __post_init__(self) -> None:
        above("temperature", self.temperature, 0)

    @property
    def personal(self) -> bool:
        return self.personal_head

    def init(self, task: Task) -> State:
        state = super().init(task)
        return {**state, "params": encoder_part(state["params"])}

    def init_server(self, task: Task, params: Tree) -> Tree:
        source = f"the number of features of {type(task.model).__name__}"
        return {"etf": etf_of(self, task, params, width=task.model.feature_dim, source=source)}

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        features = view.model.features(params, batch.x)
        features = F.normalize(features, dim=1) if self.normalise else features
        logits = features @ view.server["etf"] * class_weights(view.label_counts)
        return cross_entropy(logits / self.temperature, batch)

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        models, etf = super().local_models(state, outputs), state["server"]["etf"]
        count = len(next(iter(models["params"].values())))
        return {**models, "params": models["params"] | _classifier(etf.expand(count, *etf.shape))}

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        etf = state["server"]["etf"]
        shared = Deployed(self.deployed_model(task), state["params"] | _classifier(etf), state["buffers"], False)
        if not self.personal_head:
            return shared
        each, counts = shared.for_each(len(client_ids)), task.cohort(client_ids).label_counts
        return each._replace(params=each.params | _classifier(etf * class_weights(counts)[:, None]))


def class_weights(counts: Tensor) -> Tensor:
    """C n_c / n from counts [..., C]: 1 for all classes if a client has as many examples of each."""
    return counts.shape[-1] * counts / counts.sum(-1, keepdim=True)


def _classifier(matrix: Tensor) -> Tree:
    """Params of a linear classifier with logits matrix^T h, from a matrix [..., width, num_classes]."""
    return {"classifier.weight": matrix.mT, "classifier.bias": matrix.new_zeros(*matrix.shape[:-2], matrix.shape[-1])}
