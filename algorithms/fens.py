"""FENS: clients train alone, and then train one small aggregator of the logits of all models in rounds.

fens-linear: Clients train alone, and then train one linear layer on the logits of all models in rounds.

Allouah, Dhasade, Guerraoui, Gupta, Kermarrec, Pinot, Pires and Sharma, Revisiting Ensembling in One-Shot Federated Learning,
NeurIPS 2024. https://arxiv.org/abs/2411.07182
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

import algorithms
from algorithms import Algorithm, Cohort, Deployed, Task, Tree, above, at_least, one_of, registered, tree
from algorithms.fedopt import FedAdam
from algorithms.oneshot import Combination, OneShot, num_models, side_by_side
from algorithms.shared.checks import noisy_inputs
from algorithms.shared.hold_out import held_part, num_held
from algorithms.shared.types import RunConfig, Settings
from bench.models.base import BoundModel, Model
from bench.models.ensemble import Aggregated, HiddenLayer, Linear, Weights
from datasets.federation import Federation
from datasets.transforms import Identity

Aggregator = Literal["mlp", "linear", "class-weights", "client-weights"]
Quantise = Literal["none", "int8"]


@registered("fens")
@registered("fens-linear", title="FENS (linear)", aggregator="linear")
@dataclass(frozen=True)
class Fens(Combination):
    """Clients hold out a share of their examples and train alone on the others; every model goes to every client; then the
    aggregator h is trained in rounds on the logits v = [z_1; ..; z_m] of the examples that were held out, as they look in
    evaluation:

        mlp             W2 relu(W1 v + b1) + b2, with m d hidden units
        linear          W v + b, which is FedConcat's classifier at rank C for each client
        class-weights   sum_i w_i[c] z_i[c]
        client-weights  sum_i w_i z_i + b, with one number b

    In a round every client takes one SGD step on the cross-entropy of a batch, and the server a step of FedAdam along the mean
    change, weighed by numbers of held-out examples: m = beta1 m + (1 - beta1) D, v = beta2 v + (1 - beta2) D^2 from 0, and
    h + server_lr m / (sqrt(v) + adaptivity). These rounds are not rounds of the run: they take place when the model is
    deployed, and their bytes and examples count then. A client with one example holds out none, and trains no aggregator.

    The paper's body was not at hand, so that defaults are those of the scripts of its code. How the code rounds to eight bits
    was not read either: here each tensor of weights is rounded to multiples of its largest magnitude / 127.

    Differs from the paper's code: models are not rounded by default; `quantise` "int8" does so before they are sent, as in the
    code, whose communication costs rest on it. Its aggregators by a gate on the image are left out.
    Differs from the paper's code: the last local model is used and the last aggregator; the code also logs the best by half of
    the test data.

    Attributes:
        base: `oneshot`; its `hold_out` is the share for the aggregator.
        aggregator: h: "mlp", "linear", "class-weights" or "client-weights".
        hidden_per_client: d, hidden units of the mlp for each client, >= 1; the code's class has 4, its scripts 2.
        aggregator_rounds: rounds in which h is trained, >= 0.
        aggregator_lr: of the clients' SGD step, > 0.
        aggregator_batch_size: examples of that step, >= 1.
        server_lr, beta1, beta2, adaptivity: of FedAdam.
        quantise: whether models are rounded to eight bits, "int8", or not, "none".
    """

    base: Algorithm = OneShot(client_init="independent", hold_out=0.1)
    aggregator: Aggregator = "mlp"
    hidden_per_client: int = 2
    aggregator_rounds: int = 500
    aggregator_lr: float = 1.0
    aggregator_batch_size: int = 128
    server_lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.99
    adaptivity: float = 0.001
    quantise: Quantise = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.oneshot.hold_out:
            raise ValueError(
                f"{algorithms.name_of(self)} trains its aggregator on examples that clients hold out, but with hold_out 0 of "
                "oneshot there are none; set base.hold_out, such as 0.1."
            )
        one_of("aggregator", self.aggregator, get_args(Aggregator))
        at_least("hidden_per_client", self.hidden_per_client, 1)
        at_least("aggregator_rounds", self.aggregator_rounds, 0)
        above("aggregator_lr", self.aggregator_lr, 0)
        at_least("aggregator_batch_size", self.aggregator_batch_size, 1)
        one_of("quantise", self.quantise, get_args(Quantise))
        self.server()

    def server(self) -> FedAdam:
        """What trains the aggregator."""
        return FedAdam(
            server_lr=self.server_lr,
            beta1=self.beta1,
            beta2=self.beta2,
            adaptivity=self.adaptivity,
            initial_second_moment="zero",
        )

    def validate(self, config: RunConfig) -> list[str]:
        return super().validate(config) + noisy_inputs(algorithms.name_of(self), config.partition)

    def combined(self, task: Task, deployed: Deployed, cohort: Cohort, models: Tree) -> Deployed:
        if self.quantise == "int8":
            models = {**models, "params": tree.map(in_eight_bits, models["params"])}
        found, model = side_by_side(models), self.deployed_model(task)
        bound, held = BoundModel(model, found["buffers"]), held_part(task, self.oneshot.hold_out).federation
        rows = [held.clients[client].to(task.device) for client in task.global_ids(cohort.ids).tolist()]
        rows = [own for own in rows if len(own)]
        inputs = [
            task.map_images(lambda x, first: bound.features(found["params"], x), held.images[own]).to(task.dtype)
            for own in rows
        ]
        trained = self.trained_aggregator(task, model.aggregator, inputs, [held.labels[own] for own in rows])
        found["params"] |= {f"aggregator.{name}": leaf for name, leaf in trained.items()}
        return Deployed(model, found["params"], found["buffers"], False)

    def trained_aggregator(self, task: Task, aggregator: Model, inputs: list[Tensor], labels: list[Tensor]) -> Tree:
        """Params of the aggregator after its rounds.

        Args:
            inputs: of each client, logits of all models for the examples that it has held out, [n_i, m C].
            labels: of each client, [n_i].
        """
        start = task.place(aggregator.init(task.generator_for("classifier")))
        if not inputs:
            return start
        x, y = torch.cat(inputs)[:, :, None, None], torch.cat(labels)
        clients = torch.arange(len(y)).split([len(own) for own in labels])
        counts = torch.stack([torch.bincount(own.cpu(), minlength=aggregator.num_classes) for own in labels]).double()
        settings = replace(
            task.settings,
            rounds=self.aggregator_rounds,
            local_epochs=None,
            local_steps=1,
            batch_size=self.aggregator_batch_size,
            lr=self.aggregator_lr,
            momentum=0.0,
            weight_decay=0.0,
            participation=1.0,
        )
        held = Federation(x, y, x[:0], y[:0], clients, counts, Identity())
        own = replace(task, model=aggregator, settings=settings, federation=held, members=None, weights=None)
        server = self.server()
        state = {**server.init(own), "params": start}
        for _ in range(self.aggregator_rounds):
            state = server.step(own, state)
        return state["params"]

    def deployed_model(self, task: Task) -> Aggregated:
        members, classes = self.members(task), task.model.num_classes
        inputs = (len(members) * classes, 1, 1)
        aggregator = {
            "mlp": HiddenLayer(inputs, classes, len(members) * self.hidden_per_client),
            "linear": Linear(inputs, classes),
            "class-weights": Weights(inputs, classes, True),
            "client-weights": Weights(inputs, classes, False),
        }[self.aggregator]
        return Aggregated(task.model.input_shape, classes, members, aggregator)

    def deploy_workload(self, settings: Settings, num_examples: int) -> int:
        return self.aggregator_rounds * min(self.aggregator_batch_size, num_held(num_examples, self.oneshot.hold_out))

    def change_traffic(self, task: Task, model: Model) -> dict[str, int]:
        """Every client receives all models once, and exchanges the aggregator in each of its rounds."""
        own = self.deployed_model(task)
        params = own.aggregator.init(torch.Generator())
        rounds = num_models(task) * self.aggregator_rounds * tree.num_bytes(task.place(params))
        member, buffers = task.place(task.model.init(torch.Generator())), task.model.init_buffers()
        one = sum(leaf.numel() for leaf in tree.leaves(member)) if self.quantise == "int8" else tree.num_bytes(member)
        models = task.population * num_models(task) * (one + tree.num_bytes(buffers))
        return {"bytes_down": models + rounds, "bytes_up": rounds}


def in_eight_bits(stacked: Tensor) -> Tensor:
    """Tensors [K, ...], each rounded to multiples of its largest magnitude / 127."""
    step = stacked.flatten(1).abs().amax(1).view(-1, *[1] * (stacked.ndim - 1)) / 127
    return torch.where(step > 0, (stacked / step).round() * step, stacked)
