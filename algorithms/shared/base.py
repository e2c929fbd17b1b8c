"""The common trainable interface: what a method is."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.accounting import Accounting
from algorithms.shared.client_states import read_rows
from algorithms.shared.local_sgd import LocalResult, descend, task_loss
from algorithms.shared.returned import averages_from, delta_of
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Cohort, Task
from bench.errors import HookError
from bench.models.base import Model

State = dict[str, Any]  # nested dict of tensors and ints: it is the checkpoint


class Deployed(NamedTuple):
    """The model that clients would use now.

    Attributes:
        model: the network.
        params, buffers: leaves [*p] if shared, [ids, *p] if per_client.
        per_client: whether each client has its own.
        test_features: [n_test, feature_dim], features of the test images if the method knows them, else None.
        diagnostics: what was found out on the way to it, as in `Algorithm.diagnostics`; None if nothing.
        examples: gradients of single examples that clients and the server have computed in order to deploy it, beside those of
            the rounds; known before as `deploy_workload` and `server_examples`.
    """

    model: Model
    params: Tree
    buffers: Tree
    per_client: bool
    test_features: Tensor | None = None
    diagnostics: dict[str, Any] | None = None
    examples: int = 0

    def for_each(self, count: int) -> "Deployed":
        """A shared model as that of each of so many clients."""
        params, buffers = (
            tree.map(lambda leaf: leaf.expand(count, *leaf.shape), part) for part in (self.params, self.buffers)
        )
        return self._replace(params=params, buffers=buffers, per_client=True, test_features=None)


Classifier = Literal["trained", "fixed", "replaced"]
Weighting = Literal["examples", "uniform"]  # how a server weighs clients


class Average(NamedTuple):
    """A weighted mean over the clients of a cohort that the server takes.

    Attributes:
        values: what it is the mean of, leaves [K, ...].
        weights: [K], >= 0, normalised by their sum.
    """

    values: Tree
    weights: Tensor


@dataclass(frozen=True)
class Algorithm(Accounting):
    """A federated learning method as pure functions of a state: `init`, `step` and `deploy`.

    What the harness wants to know about it, such as its traffic, has defaults in `algorithms.shared.accounting`.

    Attributes:
        version: raised whenever the numbers of the method may change; part of the run id.
        trains_whole_models: whether it trains in rounds, and local training ends with a model that could be deployed alone,
            which `RoundHooks.local_models` gives.
    """

    version: ClassVar[int] = 1
    trains_whole_models: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Raises ValueError for options that the method cannot have. A class that overrides it calls that of `super()`."""

    def version_with(self, buffers: bool) -> int:
        """The version of a run, whose model has buffers or has none: `version`, or a larger one where only the numbers of
        models with buffers have changed."""
        return self.version

    def init(self, task: Task) -> State:
        """The state before the first round. It has "round" and "costs" (see `no_costs`)."""
        raise NotImplementedError

    def step(self, task: Task, state: State) -> State:
        """The state after exactly one more communication round. Pure."""
        raise NotImplementedError

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed | None:
        """The model that each of these clients would use now; None while the method has none to offer."""
        raise NotImplementedError


@dataclass(frozen=True)
class RoundHooks(Algorithm):
    """What a method that trains in rounds may change: a cohort trains, the server aggregates. The defaults are FedAvg.

    A method extends `algorithms.shared.rounds.RoundBased` and overrides the smallest hook that says what its paper says. Five
    do for most: `local_loss` < `local_update` < `init_client`, `init_server`, `server_step`. Then come `weighted_means`,
    `sample`, `personal_model` < `aggregate` < `run_round`.

    Attributes:
        broadcast: entries of the server state that clients receive, beside the params.
        seeded: entries of the server state that clients need not receive, because everyone can draw them from the seed.
        smallest_batch: batches with fewer examples do not count as trained on; the method gives the same number to `descend`.
    """

    broadcast: ClassVar[tuple[str, ...]] = ()
    seeded: ClassVar[tuple[str, ...]] = ()
    smallest_batch: ClassVar[int] = 1
    trains_whole_models = True

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        """What local SGD minimises on a batch. Scalar."""
        return task_loss(params, batch, view)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        """Local training. The update has "delta" (trained - start), unless the hooks that read it are overridden."""
        trained = descend(self.local_loss, view.params, data, plan, view).params
        return LocalResult({"delta": tree.subtract(trained, view.params)}, view.client)

    def init_client(self, task: Task, params: Tree) -> Tree:
        """State of a client that has not yet taken part."""
        return {}

    def init_server(self, task: Task, params: Tree) -> Tree:
        """State of the server beside the params."""
        return {}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        """New params and server state from the cohort's update. Entries that `weighted_means` names are means, leaves [...];
        all others are stacked, leaves [K, ...]."""
        is_sent = type(self).weighted_means is RoundHooks.weighted_means or "delta" not in update
        hook = self.local_update if is_sent else self.weighted_means
        return tree.add(params, delta_of(hook, update, params)), server

    # For methods that need more

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        """What a client deploys, of methods that are `personal`: its "params" and "buffers"."""
        raise HookError(
            f"{type(self).__name__} says that it is personal, but has no hook personal_model; write one that returns "
            '{"params": params, "buffers": view.buffers}, or override deploy.'
        )

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        """What the clients of a cohort know at the start of a round, leaves [K, ...]: what they kept of their last one."""
        return read_rows(state["clients"], cohort.ids)

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        """Entries of the updates of which the server reads no more than a weighted mean, by name.

        Values and weight of a client depend on that client alone: in a streamed round, the cohort is one client.

        Args:
            updates: stacked updates, leaves [K, ...].
            cohort: the clients that sent them.
        """
        return {"delta": Average(delta_of(self.local_update, updates), cohort.weights)}

    def aggregate(self, task: Task, params: Tree, server: Tree, updates: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        """New params and server state from stacked updates, leaves [K, ...]: `server_step` with their `weighted_means`."""
        averages = averages_from(self.weighted_means, updates, cohort)
        means = {name: tree.weighted_mean(*average) for name, average in averages.items()}
        return self.server_step(task, params, server, {**updates, **means}, cohort)

    def aggregate_buffers(self, buffers: Tree, trained: Tree, updates: Tree, cohort: Cohort) -> Tree:
        """New buffers from those that the cohort's training left, leaves [K, ...]: their mean by `cohort.weights`.

        Of the updates, it may only read entries that `weighted_means` does not name: the others are not stacked in every round.
        """
        return average_buffers(trained, cohort.weights)

    def round_metrics(self, task: Task, before: State, after: State, update: Tree, cohort: Cohort) -> dict[str, Any]:
        """What the server measures of a round, beside the means of what clients have (`LocalResult.metrics`): name -> scalar
        tensor or number. It changes nothing.

        Args:
            before, after: the states around the round.
            update: as `server_step` gets it; stacked, leaves [K, ...], where `aggregate` or `finish_round` is overridden.
        """
        return {}

    def sample(self, task: Task, state: State) -> "Cohort":
        """The cohort of the round that follows a state. Pure: the same for all who ask."""
        return task.sample_cohort(state["round"])


def average_buffers(stacked: Tree, weights: Tensor) -> Tree:
    """Weighted mean of the cohort's buffers, leaves [K, ...]; counters are averaged as float, then truncated."""
    mean = tree.weighted_mean(tree.map(lambda leaf: leaf.double(), stacked), weights)
    return tree.map(_restore_type, mean, stacked)


def _restore_type(averaged: Tensor, leaf: Tensor) -> Tensor:
    # Shares sum to 1 up to rounding, which must not turn a mean of equal counters into the integer below.
    return averaged.to(leaf.dtype) if leaf.is_floating_point() else (averaged + 1e-6).to(leaf.dtype)
