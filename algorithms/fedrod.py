"""FedRoD: a generic classifier, trained with a balanced softmax, and on top of it one that each client keeps for itself.

Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022.
https://arxiv.org/abs/2107.00778

fedrod: FedRoD's generic model, trained with a balanced softmax.
fedrod-personal: FedRoD, of which each client deploys the generic classifier plus its own.
"""

from dataclasses import dataclass
from typing import get_args

from torch import Tensor

import algorithms
from algorithms import Deployed, LocalResult, RoundBased, at_least, cross_entropy, descend, one_of, registered, tree
from algorithms.shared.balanced_softmax import Vacant, balanced
from algorithms.shared.base import State
from algorithms.shared.checks import linear_classifier
from algorithms.shared.client_states import read_rows
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Task
from bench.models.concat import classifier_part

_OWN = "personal."  # prefix of the personal classifier's params while they train


@registered("fedrod")
@registered("fedrod-personal", title="FedRoD (personal)", personal_head=True)
@dataclass(frozen=True)
class FedRoD(RoundBased):
    """FedAvg with the balanced softmax; if asked for, each client also trains a classifier of its own.

    The shared model minimises the cross-entropy of z + gamma log n_c, with generic logits z and counts n_c. The personal
    classifier v minimises that of z + v(f), where z and the features f are constants: both take a step on each batch, from one
    forward pass. v takes plain steps without momentum and decay, begins as the initial classifier of all, and is kept between
    rounds; it changes nothing of the shared model. Until a client takes part it deploys the generic model.

    Differs from the paper: no hypernetwork that makes v of the class distribution.

    Attributes:
        gamma: strength of the balancing, >= 0; 0 is FedAvg, and so are equal counts. With `vacant` "exclude" any gamma above 0
            leaves out vacant classes, 0 does not.
        vacant: whether classes without an example are left out of a client's softmax ("exclude"), or count as if they had one
            ("clamp"), as in the code of FedETF.
        personal_head: whether clients train v and deploy z + v(f), or the generic model alone is trained and deployed.
    """

    gamma: float = 1.0
    vacant: Vacant = "exclude"
    personal_head: bool = False

    def __post_init__(self) -> None:
        at_least("gamma", self.gamma, 0)
        one_of("vacant", self.vacant, get_args(Vacant))

    @property
    def personal(self) -> bool:
        return self.personal_head

    def init_client(self, task: Task, params: Tree) -> Tree:
        if not self.personal_head:
            return {}
        linear_classifier(algorithms.name_of(self), "adds to", task.model, params)
        return classifier_part(params)

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        features = view.model.features(params, batch.x)
        logits = view.model.head(params, features)
        loss = cross_entropy(balanced(logits, view.label_counts, gamma=self.gamma, vacant=self.vacant), batch)
        if not self.personal_head:
            return loss
        own = {name.removeprefix(_OWN): leaf for name, leaf in params.items() if name.startswith(_OWN)}
        return loss + cross_entropy(logits.detach() + view.model.head(own, features.detach()), batch)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        own = {_OWN + name: leaf for name, leaf in view.client.items()}
        trained = descend(self.local_loss, view.params | own, data, plan, view, plain=tuple(own)).params
        delta = tree.subtract({name: trained[name] for name in view.params}, view.params)
        return LocalResult({"delta": delta}, {name: trained[_OWN + name] for name in view.client})

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        shared = Deployed(self.deployed_model(task), state["params"], state["buffers"], False)
        if not self.personal_head:
            return shared
        nothing = tree.zeros_like(state["clients"]["fresh"])
        own = read_rows({**state["clients"], "fresh": nothing}, client_ids)
        each = shared.for_each(len(client_ids))
        return each._replace(params=each.params | tree.add({name: each.params[name] for name in own}, own))
