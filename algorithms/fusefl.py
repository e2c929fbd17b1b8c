"""FuseFL: clients train alone, and block by block their networks are fused into one that reads all of them.

Tang, Zhang, Dong, Cheung, Zhou, Han and Chu, FuseFL: One-Shot Federated Learning through the Lens of Causality with Progressive
Model Fusion, NeurIPS 2024. https://openreview.net/forum?id=E7fZOoiEKl
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from algorithms import (
    Batch,
    ClientView,
    Cohort,
    Deployed,
    LocalResult,
    State,
    Task,
    Tree,
    at_least,
    one_of,
    registered,
    tree,
)
from algorithms.oneshot import OneExchange, num_models, side_by_side
from algorithms.shared.checks import linear_classifier
from algorithms.shared.client_states import read_rows
from algorithms.shared.local_sgd import cross_entropy, task_loss
from algorithms.shared.partial import check_classifier, descend_on, pick
from algorithms.shared.types import BatchPlan, ClientData, ClientOutputs, OnClient, Settings
from bench.models.base import Model
from bench.models.calibrated import wrap
from bench.models.concat import classifier_part
from bench.models.fused import Fused, WithAdapters, adapter_of, block_inputs, fuse, is_chain, run_block

Adapter = Literal["mean", "conv1x1"]


@registered("fusefl", symbols={"blocks": "K"})
@dataclass(frozen=True)
class FuseFL(OneExchange):
    """The layers of a model are cut into K blocks of about equally many, the classifier beside the last one. In phase k = 1..K,
    every client trains blocks k..K and its classifier on what the fused blocks before give it; then block k of all m clients is
    exchanged and stays as it is. What goes into block k of client i is the mean of the m outputs of block k - 1, or
    `adapter` "conv1x1": a 1x1 convolution of client i's, trained with its block k, of their concatenation. Momentum starts anew
    in each round. It is no one-shot method: it needs K exchanges.

    A phase has 1/K of `local_epochs` (or `local_steps`), so that a client trains as long as in other methods. Where K does not
    divide them, the first phases have one more. No phase has less than one.

    Deployed are all m networks, fused: the sum of their last features under the mean of their classifiers, or, with
    `multihead`, the sum of the logits of their own. The code then trains the classifier again on Gaussian features: that is
    `ccvr` around this method, with virtual_per_class 5000 and transform_stage none. Before the last phase, later blocks are
    evaluated as they are.

    With K = 1, these are FedConcat's encoders, one cluster per client, under another head, and with `multihead` the ensemble.

    Differs from the paper: it has conv1x1 by default, on ResNet-18; the mean needs no params of its own. Networks have their
    full width, where the paper takes a narrower one, so that all m together have the size of one.
    Differs from the paper's code: frozen blocks are in evaluation mode, there they are in training mode, in which running
    statistics go on moving from client to client. Covariances of the calibration are correct. Models whose layers are no chain,
    such as those with shortcuts, cannot be cut here.

    Attributes:
        blocks: K, >= 1, at most the number of layers.
        phase_rounds: rounds of a phase, >= 1, each with its share of the epochs; a run has K times as many, whatever `rounds`
            says.
        adapter: what fuses outputs, their "mean" or a "conv1x1".
        multihead: whether clients keep their own classifiers.
    """

    version = 2  # 1 trained every phase as long as other methods train in all
    deploys = "fused"
    trains_whole_models = False

    blocks: int = 2
    phase_rounds: int = 1
    adapter: Adapter = "mean"
    multihead: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("blocks", self.blocks, 1)
        at_least("phase_rounds", self.phase_rounds, 1)
        one_of("adapter", self.adapter, get_args(Adapter))

    def cuts(self, model: Model) -> tuple[str, ...]:
        """The first layer of each block but the first one."""
        layers = [*model.layers()]
        return tuple(layers[max(k, k * (len(layers) - 1) // self.blocks)] for k in range(1, self.blocks))

    def num_rounds(self, settings: Settings) -> int:
        return self.blocks * self.phase_rounds

    def in_phase(self, settings: Settings, phase: int) -> Settings:
        """The settings of a round of a phase, from 0: with its share of the epochs or steps."""
        epochs, steps = (
            number and max(1, (number + self.blocks - 1 - phase) // self.blocks)
            for number in (settings.local_epochs, settings.local_steps)
        )
        return replace(settings, local_epochs=epochs, local_steps=steps)

    def training(self, task: Task) -> Task:
        if self.adapter == "mean" or isinstance(task.model, WithAdapters):
            return task
        return replace(task, model=wrap(WithAdapters, task.model, self.cuts(task.model), num_models(task)))

    def init(self, task: Task) -> State:
        kind, layers = type(task.model).__name__, task.model.layers()
        check_classifier(task.model, "fusefl cuts a model")
        linear_classifier("fusefl", "joins", task.model, task.initial_params())
        if self.blocks > len(layers):
            raise ValueError(f"blocks must be at most {len(layers)}, the layers of {kind}, but got {self.blocks}.")
        for cut in self.cuts(task.model):
            if not is_chain(task.model, cut):
                raise ValueError(
                    f"fusefl cuts {kind} before its layer {cut}, but what follows reads more than what goes into it, as "
                    "with shortcuts; use a model whose layers are a chain, such as simple-cnn, or another number of blocks."
                )
        return super().init(task)

    def map_clients(self, task: Task, fn: OnClient, cohort: Cohort, state: State) -> ClientOutputs:
        return super().map_clients(self._shortened(task, state), fn, cohort, state)

    def _shortened(self, task: Task, state: State) -> Task:
        """The task of the round that follows a state."""
        return replace(task, settings=self.in_phase(task.settings, state["round"] // self.phase_rounds))

    # On one client

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        phase, layers = view.round // self.phase_rounds, [*_inner(view.model.spec).layers()]
        if phase:
            first = layers.index(self.cuts(_inner(view.model.spec))[phase - 1])
            layers = [adapter_of(phase - 1).removesuffix(".weight"), *layers[first:]]
        return LocalResult({}, descend_on(layers, self.local_loss, view.client, data, plan, view))

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        phase = view.round // self.phase_rounds
        if not phase:
            return task_loss(params, batch, view)
        cuts, frozen = self.cuts(_inner(view.model.spec))[:phase], view.server["frozen"]
        with torch.no_grad():
            parts = [tree.row(frozen, k) for k in range(len(next(iter(frozen["params"].values()))))]
            models = [replace(view.model, buffers=one["buffers"], training=False) for one in parts]
            outputs = block_inputs(models, [one["params"] for one in parts], batch.x, cuts)
        given = fuse(outputs, params.get(adapter_of(phase - 1)))
        return cross_entropy(view.model.head(params, run_block(view.model, params, batch.x, cuts[-1], given)), batch)

    # On the server

    def received(self, state: State) -> dict[str, Tree]:
        rows = state["clients"]["rows"]
        if not rows:
            return super().received(state)
        models = read_rows(state["clients"], torch.tensor([*rows]))
        return {**super().received(state), "server": {"frozen": models}}

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        cohort, models = self.trained(task, state)
        found, heads = side_by_side(models), classifier_part(models["params"])
        params = {name: leaf for name, leaf in found["params"].items() if ".classifier." not in name}
        if self.multihead:
            weight = torch.cat([*heads["classifier.weight"]], 1)
            params |= {"classifier.weight": weight, "classifier.bias": heads["classifier.bias"].sum(0)}
        else:
            params |= tree.map(lambda leaf: leaf.mean(0), heads)
        ended = min(self.blocks, 1 + max(0, state["round"] - 1) // self.phase_rounds)
        model = self.deployed_model(task)
        return Deployed(replace(model, cuts=model.cuts[: ended - 1]), params, found["buffers"], False)

    def deployed_model(self, task: Task) -> Fused:
        own = self.training(task).model
        members = (own,) * num_models(task)
        return Fused(own.input_shape, own.num_classes, members, self.cuts(task.model), self.multihead)

    # Costs: each block is sent once, and received m times by clients which then train the next one

    def downloads(self, state: State) -> Tree:
        return {}

    def _finished(self, task: Task, state: State, cohort: Cohort, *, bytes_up: int, **new: Tree) -> State:
        after = super()._finished(self._shortened(task, state), state, cohort, bytes_up=0, **new)
        first, phase = state["round"] % self.phase_rounds == 0, state["round"] // self.phase_rounds
        spent = self._phase_bytes(task, phase, len(cohort.ids)) if first else (0, 0)
        down, up = (len(cohort.ids) * number for number in spent)
        before = state["costs"]
        costs = after["costs"] | {"bytes_down": before["bytes_down"] + down, "bytes_up": before["bytes_up"] + up}
        return {**after, "costs": costs}

    def _phase_bytes(self, task: Task, phase: int, m: int) -> tuple[int, int]:
        """Bytes that a client receives and sends in a phase: at first the initial model, then all blocks of the one before; and
        its own block, the classifier with the last one."""
        blocks = self._block_sizes(task)
        return (sum(blocks) if phase == 0 else m * blocks[phase - 1]), blocks[phase] + (
            blocks[-1] if phase == self.blocks - 1 else 0
        )

    def _block_sizes(self, task: Task) -> list[int]:
        """Bytes of each block, its adapter included, and of the classifier."""
        own = self.training(task)
        model = {"params": own.initial_params(), "buffers": own.initial_buffers()}
        layers = [*task.model.layers()][:-1]
        starts = [0, *(([*task.model.layers()]).index(cut) for cut in self.cuts(task.model)), len(layers)]
        parts = [layers[a:b] for a, b in zip(starts, starts[1:], strict=False)]
        names = [[*([f"adapter{k - 1}"] if k else []), *part] for k, part in enumerate(parts)]
        sizes = [tree.num_bytes([pick(leaves, own_names) for leaves in model.values()]) for own_names in names]
        return [*sizes, tree.num_bytes(classifier_part(model["params"]))]

    def deploy_traffic(self, task: Task, model: Model) -> dict[str, int]:
        """Every client receives the blocks of all m clients that it does not have yet, and the classifier, or all of them."""
        m, sizes = num_models(task), self._block_sizes(task)
        known = m * sum(sizes[: self.blocks - 1])
        heads = (m if self.multihead else 1) * sizes[-1]
        everything = task.population * (m * sum(sizes[:-1]) + heads)
        return {"bytes_down": everything - m * known, "bytes_up": 0}

    def traffic(self, task: Task) -> int:
        m = num_models(task)
        trained = m * sum(sum(self._phase_bytes(task, phase, m)) for phase in range(self.blocks))
        return round((trained + self.deploy_traffic(task, task.model)["bytes_down"]) / task.population)

    def workload(self, settings: Settings, num_examples: int) -> int:
        phases = [self.in_phase(settings, phase) for phase in range(self.blocks)]
        return self.phase_rounds * sum(self.visits(own, num_examples) for own in phases)

    def caveats(self, task: Task) -> list[str]:
        settings, several = task.settings, replace(task.settings, rounds=self.phase_rounds)
        number, unit = (settings.local_epochs, "epochs") if settings.local_epochs else (settings.local_steps, "steps")
        longer = (
            f"fusefl: each of its {self.blocks} phases has one of the {number} {unit}, so that clients train longer."
        )
        return super().caveats(replace(task, settings=several)) + ([longer] if (number or 0) < self.blocks else [])


def _inner(model: Model) -> Model:
    """The model without adapters."""
    return model.inner if isinstance(model, WithAdapters) else model
