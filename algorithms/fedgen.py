"""FedGen: a generator, trained on the clients' classifiers, shows every client features of all labels.

Zhu, Hong and Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021.
https://arxiv.org/abs/2105.10056
"""

from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

import algorithms
from algorithms import RoundBased, State, Tree, above, at_least, between, one_of, registered, tree
from algorithms.shared.generator import Generator, TeacherWeighting, adam_step, diversity_loss, teacher_loss
from algorithms.shared.local_sgd import LocalResult, cross_entropy, descend
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Cohort, Task
from bench.models.base import BoundModel, Model
from bench.models.concat import classifier_part
from bench.seeding import keys_from, normal_from_keys, uniform_from_keys

Noise = Literal["uniform", "gaussian"]
Counted = Literal["data", "batches"]

_LEAST_WEIGHT = 1e-4  # to which A and B decay


@registered("fedgen")
@dataclass(frozen=True)
class FedGen(RoundBased):
    """The method as its reference code (zhuangdizhu/FedGen) has it. h is the classifier of a model f, its last layer, and G the
    generator of its inputs.

    Server: when a cohort S has trained, G takes `generator_steps` steps of Adam on the teacher and the diversity loss
    (`algorithms.shared.generator`), with labels y uniform over those with n_k^y > 1 at a client of S, and
    a_k(y) = n_k^y / sum_S n_j^y. Moments of Adam stay from round to round.

    Client: in round r, from the second on, the loss of a batch is

        CE(f(x), y) + A_r CE(h(G(e', y')), y') + B_r KL(h(G(e, y)) || f(x)),

    with `generated_per_step` labels y' uniform over all classes, noises e and e' of their own for every step and row, no
    gradient through the first argument of KL, and A_r = max(A decay^r, 1e-4), B_r likewise; a weight of 0 stays 0.

    Clients receive the model and the params and running statistics of G in every round, and send the model and one number for
    each class, n_k^y. The classifiers that the server reads are parts of these models.

    As in the code, y' is uniform, so that clients need not know the global label distribution. Its factor of the first
    generated term, the ratio of the sizes of both batches, is 1 there, and left out.

    Differs from the paper's code: the teacher loss judges each classifier on the labels that its client has, which is the
    paper's idea; `teacher_weighting="code"` is what the code computes, each classifier on all labels by its mean share.
    Differs from the paper: the code's rule that the generated terms end after 20 local epochs (of one mini-batch each) is left
    out. Its decay of the clients' learning rate is the setting `lr_decay`, 0.99 there.
    Differs from the paper: the sizes of G and of both batches are those of later code by the authors of FedCat (Hu et al.,
    2022), and labels are counted in all data; Adam goes on from round to round, and weights decay, which they do not in that
    code. FedGen's code has noise_width 32, hidden_width 256, batches of 32 generated features and counted "batches".

    Attributes:
        label_weight: A (generative_alpha of the code), weight of the cross-entropy of generated features, >= 0.
        latent_weight: B (generative_beta of the code), weight of the distance to the predictions for generated features, >= 0;
            FedAvg if both weights are 0.
        decay: factor on A and B per round, and on the generator's learning rate per round in which it is trained (in which some
            label qualifies), in (0, 1].
        generated_per_step: generated features of the first generated term, >= 1.
        noise_width, hidden_width: values of a noise and hidden units of the generator, >= 1.
        noise: "uniform" in [0, 1), as in the code, or "gaussian", standard normal, as in the paper.
        generator_lr: of Adam in the first round, > 0.
        generator_weight_decay: of Adam, >= 0.
        generator_steps: steps of the generator per round, >= 1.
        generator_batch_size: generated features per step of the generator, >= 2.
        counted: n_k^y are a client's examples of class y in all its "data", or 1 + those in the "batches" of its local
            training, as in the code.
        teacher_weighting: of the classifiers in the teacher loss, "per_label" or as in the "code" (see
            `algorithms.shared.generator.teacher_loss`).
    """

    label_weight: float = 10.0
    latent_weight: float = 10.0
    decay: float = 0.98
    generated_per_step: int = 128
    noise_width: int = 100
    hidden_width: int = 512
    noise: Noise = "uniform"
    generator_lr: float = 3e-4
    generator_weight_decay: float = 0.01
    generator_steps: int = 50
    generator_batch_size: int = 128
    counted: Counted = "data"
    teacher_weighting: TeacherWeighting = "per_label"

    version = 2  # 1 multiplied the cross-entropy of generated features by their number over batch_size
    broadcast = ("generator",)

    def __post_init__(self) -> None:
        at_least("label_weight", self.label_weight, 0)
        at_least("latent_weight", self.latent_weight, 0)
        above("decay", self.decay, 0)
        between("decay", self.decay, 0, 1)
        at_least("generated_per_step", self.generated_per_step, 1)
        at_least("noise_width", self.noise_width, 1)
        at_least("hidden_width", self.hidden_width, 1)
        one_of("noise", self.noise, get_args(Noise))
        above("generator_lr", self.generator_lr, 0)
        at_least("generator_weight_decay", self.generator_weight_decay, 0)
        at_least("generator_steps", self.generator_steps, 1)
        at_least("generator_batch_size", self.generator_batch_size, 2)
        one_of("counted", self.counted, get_args(Counted))
        one_of("teacher_weighting", self.teacher_weighting, get_args(TeacherWeighting))

    # On one client

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        logits = view.model(params, batch.x)
        loss = cross_entropy(logits, batch)
        label_weight, latent_weight = (self._weight(of, view.round) for of in (self.label_weight, self.latent_weight))
        if not label_weight and not latent_weight:
            return loss
        labels, features = self._generated(batch, view)
        of_labels, of_batch = features.split([self.generated_per_step, len(batch.y)])
        if label_weight:
            generated = F.cross_entropy(view.model.head(params, of_labels), labels[: len(of_labels)])
            loss = loss + label_weight * generated
        if latent_weight:
            with torch.no_grad():
                taught = F.log_softmax(view.model.head(params, of_batch), 1)
            distances = F.kl_div(F.log_softmax(logits, 1), taught, reduction="none", log_target=True).sum(1)
            loss = loss + latent_weight * batch.mean(distances)
        return loss

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        trained = descend(self.local_loss, view.params, data, plan, view).params
        counts = view.label_counts if self.counted == "data" else 1 + _visited(data, plan, view)
        delta, classifier = tree.subtract(trained, view.params), classifier_part(trained)
        return LocalResult({"delta": delta, "classifier": classifier, "label_counts": counts}, view.client)

    def _weight(self, start: float, round: int) -> float:
        """A or B in a round."""
        return max(start * self.decay**round, _LEAST_WEIGHT) if start and round else 0.0

    @torch.no_grad()
    def _generated(self, batch: Batch, view: ClientView) -> tuple[Tensor, Tensor]:
        """Labels and generated features [generated_per_step + B]: of labels from all classes, then of the batch's."""
        num_classes, count = len(view.label_counts), self.generated_per_step
        of_labels, of_noise = keys_from(cast(Tensor, batch.key), 2).unbind(0)
        drawn = (uniform_from_keys(of_labels[None], count)[0] * num_classes).long()
        labels = torch.cat([drawn, batch.y])
        draw = uniform_from_keys if self.noise == "uniform" else normal_from_keys
        noise = draw(keys_from(of_noise, len(labels)), self.noise_width).to(batch.x.dtype)
        return labels, self._generator(view.model.spec)(**view.server["generator"], noise=noise, labels=labels)

    # On the server

    def init_server(self, task: Task, params: Tree) -> Tree:
        _check_features(algorithms.name_of(self), task, params)
        generator = self._generator(task.model)
        initial = task.place(generator.init(task.generator_for("generator-init")))
        none = tree.zeros_like(initial)
        return {
            "generator": {"params": initial, "buffers": task.place(generator.init_buffers())},
            "moments": {"first": none, "second": none},
            "steps": torch.zeros((), dtype=torch.long, device=task.device),
        }

    def uploads(self, update: Tree, buffers: Tree) -> Tree:
        sent = {name: part for name, part in update.items() if name != "classifier"}  # which is sent with the model
        return super().uploads(sent, buffers)

    def result_template(self, state: State) -> Tree:
        classifier = classifier_part(state["params"])
        return {
            **super().result_template(state),
            "classifier": classifier,
            "counts": classifier["classifier.weight"][:, 0],
        }

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        params, _ = super().server_step(task, params, server, update, cohort)
        return params, self.train_generator(task, server, update["classifier"], update["label_counts"])

    def train_generator(self, task: Task, server: Tree, classifiers: Tree, counts: Tensor) -> Tree:
        """The server state after a round's steps of the generator; the same if no label qualifies.

        Args:
            classifiers: params of the cohort's trained classifiers, leaves [K, ...].
            counts: [K, num_classes], n_k^y.
        """
        qualified = torch.nonzero((counts > 1).any(0).cpu()).flatten()
        if not len(qualified):
            return server
        steps, done, size = self.generator_steps, int(server["steps"]), self.generator_batch_size
        draws = task.generator_for("generator", done)
        labels = qualified[torch.randint(len(qualified), (steps, size), generator=draws)].to(task.device)
        draw = torch.rand if self.noise == "uniform" else torch.randn
        noises = draw(steps, size, self.noise_width, generator=draws).to(task.device, task.dtype)
        shares = counts / counts.sum(0).clamp(min=1)
        classify = torch.func.vmap(task.model.head, in_dims=(0, None))
        generator, lr = self._generator(task.model), self.generator_lr * self.decay ** (done // steps)
        new, moments = server["generator"]["params"], server["moments"]
        buffers = tree.map(Tensor.clone, server["generator"]["buffers"])
        for step in range(steps):
            new = {name: leaf.requires_grad_() for name, leaf in tree.map(Tensor.detach, new).items()}
            features = generator(new, buffers, noises[step], labels[step], training=True)
            loss = teacher_loss(classify(classifiers, features), labels[step], shares, self.teacher_weighting)
            loss = loss + diversity_loss(noises[step], features)
            gradients = dict(zip(new, torch.autograd.grad(loss, list(new.values())), strict=True))
            with torch.no_grad():
                new, moments = adam_step(
                    new, gradients, moments, done + step + 1, lr=lr, weight_decay=self.generator_weight_decay
                )
        return {"generator": {"params": new, "buffers": buffers}, "moments": moments, "steps": server["steps"] + steps}

    def _generator(self, model: Model) -> Generator:
        """The generator for the classifier of a model."""
        return Generator(self.noise_width, self.hidden_width, model.num_classes, model.feature_dim)


def _visited(data: ClientData, plan: BatchPlan, view: ClientView) -> Tensor:
    """Examples of each class in the batches of a plan [num_classes]."""
    classes = torch.arange(len(view.label_counts), device=view.label_counts.device)
    counts = torch.zeros_like(view.label_counts)
    for index in plan:
        labels = data.federation.labels[index.rows]
        real = torch.ones_like(labels, dtype=torch.bool) if index.mask is None else index.mask
        counts = counts + ((labels[:, None] == classes) & real[:, None]).sum(0)
    return counts


def _check_features(name: str, task: Task, params: Tree) -> None:
    """Raises ValueError unless the model's features are what its classifier reads."""
    model, kind = task.model, type(task.model).__name__
    if "classifier" not in model.layers():
        raise ValueError(
            f"{name} generates the input of a classifier, but {kind} has no classifier; use another model."
        )
    weight = params["classifier.weight"]  # shapes alone are computed: on the device `meta`
    params, buffers = (tree.map(lambda leaf: leaf.to("meta"), part) for part in (params, task.initial_buffers()))
    blank = torch.zeros(1, *model.input_shape, dtype=task.dtype, device="meta")
    width = BoundModel(model, buffers).features(params, blank).shape[1]
    if not width == model.feature_dim == weight.shape[1]:
        raise ValueError(
            f"{name} generates features that the classifier reads, but {kind} has features of width {width}, a classifier "
            f"that reads {weight.shape[1]} of them, and feature_dim {model.feature_dim}; use a model in which these are one."
        )
