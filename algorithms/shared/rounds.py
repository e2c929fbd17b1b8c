"""Methods that train in rounds: a cohort is sampled and trains, the server aggregates, and what that costs is counted."""

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.accounting import add_costs, no_costs
from algorithms.shared.base import Classifier, Deployed, RoundHooks, State
from algorithms.shared.client_states import no_rows, replace_rows, rows_of, write_rows
from algorithms.shared.returned import (
    averages_from,
    entries_of,
    model_of,
    require_entries,
    scalars_of,
    server_parts_of,
    tensors_from,
    tensors_of,
    update_from,
)
from algorithms.shared.streaming import RunningMean
from algorithms.shared.tree import Tree
from algorithms.shared.types import ClientOutputs, Cohort, OnClient, Settings, Task
from bench.models.base import Model


@dataclass(frozen=True)
class RoundBased(RoundHooks):
    """FedAvg, unless a hook says otherwise.

    A cohort's results are stacked, unless they are too large (`Task.streams`) and the method overrides neither `aggregate` nor
    `finish_round`: then clients train one after another, and each result is added to the means and freed.
    """

    def run_round(self, task: Task, state: State) -> State:
        """Sample a cohort, train it, aggregate."""
        cohort = self.sample(task, state)
        if not len(cohort.ids):
            return state  # of a few clients, as in a cluster, none may be sampled
        if self._streamable and task.streams(len(cohort.ids) * tree.num_bytes(self.result_template(state))):
            return self._stream_round(task, state, cohort)
        return self._after_training(task, state, cohort, self.map_clients(task, self.local_update, cohort, state))

    def _after_training(self, task: Task, state: State, cohort: Cohort, outputs: ClientOutputs) -> State:
        """What `finish_round` makes of a cohort's results, and what was measured."""
        after, (update, _, measured) = self.finish_round(task, state, cohort, outputs), outputs.result
        if self._streamable and type(self).round_metrics is not RoundHooks.round_metrics:
            averaged = averages_from(self.weighted_means, update, cohort)
            update = {**update, **{name: tree.weighted_mean(*average) for name, average in averaged.items()}}
        return self._with_metrics(task, state, after, update, measured, cohort)

    def finish_round(self, task: Task, state: State, cohort: Cohort, outputs: ClientOutputs) -> State:
        """What the server does with a cohort's results: store the clients' states, aggregate, account."""
        update, client, _ = outputs.result
        require_entries(self.local_update, client, state["clients"]["fresh"])
        hook = self.server_step if type(self).aggregate is RoundHooks.aggregate else self.aggregate
        aggregated = self.aggregate(task, state["params"], state["server"], update, cohort)
        params, server = server_parts_of(hook, aggregated, state["params"])
        return self._finished(
            task,
            state,
            cohort,
            params=params,
            buffers=self.aggregate_buffers(state["buffers"], outputs.buffers, update, cohort),
            server=server,
            clients=write_rows(state["clients"], cohort.ids, client),
            bytes_up=tree.num_bytes(self.uploads(update, outputs.buffers)),
        )

    def _stream_round(self, task: Task, state: State, cohort: Cohort) -> State:
        """Train a cohort, one client after another, and `finish_round`: up to rounding the same, in the memory of a few
        clients."""
        received = _Received(self, state["clients"]["fresh"])
        for position in range(len(cohort.ids)):
            alone = cohort.of(position)
            received.add(alone, self.map_clients(task, self.local_update, alone, state))
        update, trained = {**received.stacked(), **received.means()}, received.buffers()
        stepped = self.server_step(task, state["params"], state["server"], update, cohort)
        params, server = server_parts_of(self.server_step, stepped, state["params"])
        after = self._finished(
            task,
            state,
            cohort,
            params=params,
            buffers=self.aggregate_buffers(state["buffers"], trained, received.stacked(), cohort),
            server=server,
            clients=replace_rows(state["clients"], received.rows),
            bytes_up=received.bytes_up,
        )
        return self._with_metrics(task, state, after, update, received.metrics(), cohort)

    def _finished(self, task: Task, state: State, cohort: Cohort, *, bytes_up: int, **new: Tree) -> State:
        """The state after a round with these new entries, and what the round has cost."""
        bytes_down = len(cohort.ids) * tree.num_bytes(self.downloads(state))
        examples = self.visited(task, cohort, state | new)
        spent = add_costs(state["costs"], bytes_down=bytes_down, bytes_up=bytes_up, examples=examples)
        return {**state, **new, "costs": spent}

    def _with_metrics(
        self, task: Task, before: State, after: State, update: Tree, measured: Tree, cohort: Cohort
    ) -> State:
        """The state after a round with what was measured in it, if that is anything; measured has leaves [K]."""
        of_clients = tree.weighted_mean(tree.map(lambda leaf: leaf.double(), measured), cohort.weights)
        of_server = self.round_metrics(task, before, after, update, cohort)
        found = {**scalars_of(self.local_update, of_clients), **scalars_of(self.round_metrics, of_server)}
        return {**after, "metrics": found} if found else after

    @property
    def _streamable(self) -> bool:
        """Whether means are all that the server reads of the entries that `weighted_means` names."""
        own = type(self)
        return own.aggregate is RoundBased.aggregate and own.finish_round is RoundBased.finish_round

    def init(self, task: Task) -> State:
        params = task.initial_params()
        server, client = (
            tensors_of(hook, hook(task, params), "states are trees of tensors")
            for hook in (self.init_server, self.init_client)
        )
        return {
            "round": 0,
            "params": params,
            "buffers": task.initial_buffers(),
            "server": server,
            "clients": no_rows(client),
            "costs": no_costs(),
        }

    def step(self, task: Task, state: State) -> State:
        return {**self.run_round(task, _without_metrics(state)), "round": state["round"] + 1}

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        if not self.personal:
            return Deployed(self.deployed_model(task), state["params"], state["buffers"], False)
        cohort = task.cohort(client_ids)
        models = model_of(self.personal_model, self.map_clients(task, self.personal_model, cohort, state).result)
        examples = self.deploy_visited(task, cohort, models)
        return Deployed(self.deployed_model(task), models["params"], models["buffers"], True, examples=examples)

    def training(self, task: Task) -> Task:
        """The task on which clients train, from that of a run."""
        return task

    def map_clients(self, task: Task, fn: OnClient, cohort: Cohort, state: State) -> ClientOutputs:
        """`Task.map_clients` with everything that a client of this method receives."""
        checked = update_from if fn == self.local_update else tensors_from
        return task.map_clients(
            functools.partial(checked, fn),
            cohort,
            round=state["round"],
            **self.received(state),
            client=self.cohort_states(task, cohort, state),
        )

    def received(self, state: State) -> dict[str, Tree]:
        """The "params", "buffers" and "server" state that every client of a cohort receives."""
        server = entries_of(state["server"], (*self.broadcast, *self.seeded), self.init_server)
        return {"params": state["params"], "buffers": state["buffers"], "server": server}

    # What the harness wants to know

    @property
    def passes_per_example(self) -> int:
        """How often local training computes a gradient of each example that it visits."""
        return 1

    def visits(self, settings: Settings, num_examples: int) -> int:
        """Examples of which a client with so many computes gradients in one round, repetitions included."""
        return self.passes_per_example * settings.num_visited(num_examples, self.smallest_batch)

    def visited(self, task: Task, cohort: Cohort, after: State) -> int:
        """Examples of which a cohort has computed gradients in a round, repetitions included: `visits` of all, unless only the
        state after the round tells."""
        return sum(self.visits(task.settings, size) for size in task.sizes(cohort.ids))

    def deploy_visits(self, settings: Settings, num_examples: int) -> int:
        """Examples of which a client with so many computes gradients in `personal_model`."""
        return 0

    def deploy_visited(self, task: Task, cohort: Cohort, models: Tree) -> int:
        """Examples of which a cohort has computed gradients in `personal_model`: `deploy_visits` of all, unless only what that
        has returned tells, leaves [K, ...]."""
        return sum(self.deploy_visits(task.settings, size) for size in task.sizes(cohort.ids))

    def deploy_workload(self, settings: Settings, num_examples: int) -> int:
        return self.deploy_visits(settings, num_examples)

    @property
    def weighs_clients(self) -> bool:
        """Whether `cohort.weights` are the weights of a cohort's models on the server: yes, unless the method has a hook in
        which it may take another mean. Such a method says so itself if it reads them there."""
        hooks = ("weighted_means", "aggregate", "aggregate_buffers", "finish_round", "run_round")
        return all(getattr(type(self), hook) is getattr(RoundBased, hook) for hook in hooks)

    @property
    def classifier(self) -> Classifier:
        """What becomes of the model's classifier: it is "trained", stays as it was drawn ("fixed"), or is "replaced" by another
        part, so that the params do not have it."""
        return "trained"

    def downloads(self, state: State) -> Tree:
        """Everything that one client of a cohort receives in a round; only its size matters."""
        received = {key: state["server"][key] for key in self.broadcast}
        return {"params": state["params"], "buffers": state["buffers"], **received}

    def uploads(self, update: Tree, buffers: Tree) -> Tree:
        """Everything that a cohort sends in a round; only its size matters."""
        return {"update": update, "buffers": buffers}

    def result_template(self, state: State) -> Tree:
        """As much as one client's update, buffers and new state, known before it trains: what it starts from, as deltas are as
        large as params; only its size matters."""
        return {key: state[key] for key in ("params", "buffers")} | {"client": state["clients"]["fresh"]}

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        """Models of a cohort at the end of the local training that started from state: "params" and "buffers", [K, ...]."""
        return {"params": tree.add(state["params"], outputs.result.update["delta"]), "buffers": outputs.buffers}

    def local_model(self, task: Task) -> Model:
        """The model of which `local_models` gives params."""
        return task.model

    def finite_check(self, state: State) -> Tree:
        own = {"clients": state["clients"]["rows"]} if self.personal else {}
        return {"params": state["params"], "server": state["server"], **own}

    def traffic(self, task: Task) -> int:
        # Sizes do not depend on the data, so one batch at the first client tells what a round exchanges.
        short = replace(task, settings=replace(task.settings, local_epochs=None, local_steps=1))
        state, cohort = self.init(short), short.cohort(torch.tensor([0]))
        outputs = self.map_clients(short, self.local_update, cohort, state)
        per_round = tree.num_bytes(self.downloads(state)) + tree.num_bytes(
            self.uploads(outputs.result.update, outputs.buffers)
        )
        return round(task.cohort_share * task.settings.rounds * per_round)

    def workload(self, settings: Settings, num_examples: int) -> int:
        return settings.rounds * self.visits(settings, num_examples)

    def state_templates(self, task: Task) -> list[State]:
        return [{**self.init(task), "round": self.num_rounds(task.settings)}]


def step_after(method: RoundBased, task: Task, state: State, cohort: Cohort, outputs: ClientOutputs) -> State:
    """As `RoundBased.step`, with what the local training of the cohort has returned."""
    after = method._after_training(task, _without_metrics(state), cohort, outputs)
    return {**after, "round": state["round"] + 1}


def _without_metrics(state: State) -> State:
    """A state as it goes into the next round: metrics are of the round before."""
    return {key: part for key, part in state.items() if key != "metrics"}


class _Received:
    """What the server keeps of those clients of a streamed round that have finished.

    Attributes:
        rows: client id -> new state.
        bytes_up: size of everything that was sent.
    """

    def __init__(self, method: RoundBased, fresh: Tree) -> None:
        """
        Args:
            fresh: state of a client that has not yet taken part.
        """
        self._method, self._fresh = method, fresh
        self._means: dict[str, RunningMean] = {}
        self._stacks: list[Tree] = []
        self.rows: dict[int, Tree] = {}
        self.bytes_up = 0

    def add(self, cohort: Cohort, outputs: ClientOutputs) -> None:
        """Takes the results of a cohort, leaves [k, ...]; keeps no reference to what is averaged."""
        update, client, measured = outputs.result
        require_entries(self._method.local_update, client, self._fresh)
        self.rows |= rows_of(cohort.ids, client)  # merged once: all clients' rows are sorted then
        self.bytes_up += tree.num_bytes(self._method.uploads(update, outputs.buffers))
        averaged = averages_from(self._method.weighted_means, update, cohort)
        for name, average in averaged.items():
            self._means.setdefault(name, RunningMean()).add(*average)
        stacked = {name: part for name, part in update.items() if name not in averaged}
        self._stacks.append({"update": stacked, "buffers": outputs.buffers, "metrics": measured})

    def means(self) -> Tree:
        """The entries of the update that the method averages: their means, leaves [...]."""
        return {name: mean.mean() for name, mean in self._means.items()}

    def stacked(self) -> Tree:
        """All other entries of the update, leaves [K, ...]."""
        return tree.concatenate([stack["update"] for stack in self._stacks])

    def metrics(self) -> Tree:
        """What clients have measured, leaves [K]."""
        return tree.concatenate([stack["metrics"] for stack in self._stacks])

    def buffers(self) -> Tree:
        """The buffers that training left, leaves [K, ...]."""
        return tree.concatenate([stack["buffers"] for stack in self._stacks])
