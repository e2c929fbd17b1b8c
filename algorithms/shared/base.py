"""The common trainable interface: what the harness drives, and what wrappers wrap."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.client_states import no_rows, read_rows, replace_rows, rows_of, write_rows
from algorithms.shared.local_sgd import LocalResult, descend, task_loss
from algorithms.shared.streaming import RunningMean
from algorithms.shared.tree import Tree

if TYPE_CHECKING:
    from bench.simulation.task import Cohort

State = dict[str, Any]  # nested dict of tensors and ints: it is the checkpoint


class Deployed(NamedTuple):
    """The model that clients would use now.

    Attributes:
        model: a `bench.models.base.Model`.
        params, buffers: leaves [*p] if shared, [ids, *p] if per_client.
        per_client: whether each client has its own.
        test_features: [n_test, feature_dim], features of the test images if the method knows them, else None.
        diagnostics: what was found out on the way to it, as in `Algorithm.diagnostics`; None if nothing.
    """

    model: Any
    params: Tree
    buffers: Tree
    per_client: bool
    test_features: Tensor | None = None
    diagnostics: dict[str, Any] | None = None

    def for_each(self, count: int) -> "Deployed":
        """A shared model as that of each of so many clients."""
        params, buffers = (
            tree.map(lambda leaf: leaf.expand(count, *leaf.shape), part) for part in (self.params, self.buffers)
        )
        return Deployed(self.model, params, buffers, per_client=True, diagnostics=self.diagnostics)


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
class Algorithm:
    """A federated learning method as pure functions of a state.

    Attributes:
        version: raised whenever the numbers of the method may change; part of the run id.
        post_hoc: whether the method trains as its `base` does, state and all, and only changes what is deployed.
        cohorts_of_one_size: whether all rounds need as many clients, so that the method cannot train a part of a population.
        brief: options with which the first round takes about as long as any other, for a short trial of what a run needs.
    """

    version: ClassVar[int] = 1
    post_hoc: ClassVar[bool] = False
    cohorts_of_one_size: ClassVar[bool] = False
    brief: ClassVar[dict[str, Any]] = {}

    def version_with(self, buffers: bool) -> int:
        """The version of a run, whose model has buffers or has none: `version`, or a larger one where only the numbers of
        models with buffers have changed."""
        return self.version

    @property
    def personal(self) -> bool:
        """Whether each client deploys a model of its own. A class attribute of that name will do."""
        return False

    def num_rounds(self, settings) -> int:
        """Communication rounds of a run: the setting `rounds`, unless the method has rounds of its own."""
        return settings.rounds

    def init(self, task) -> State:
        """The state before the first round. It has "round" and "costs" (see `no_costs`)."""
        raise NotImplementedError

    def step(self, task, state: State) -> State:
        """The state after exactly one more communication round. Pure."""
        raise NotImplementedError

    def deploy(self, task, state: State, client_ids: Tensor) -> Deployed | None:
        """The model that each of these clients would use now; None while the method has none to offer."""
        raise NotImplementedError

    def finite_check(self, state: State) -> Tree:
        """What must stay finite: a run in which it does not has diverged."""
        raise NotImplementedError

    @property
    def weights_files(self) -> tuple[str, ...]:
        """Names of the files with ImageNet weights that the method reads by `Task.pretrained`."""
        return ()

    @property
    def named_models(self) -> tuple[str, ...]:
        """Names of the models that the method's options name for clients to train (see `bench.models`), repetitions included;
        () if clients train that of the task."""
        return ()

    @property
    def deploy_reads_clients(self) -> bool:
        """Whether `deploy`, `finite_check` or `diagnostics` read client states, so that a run keeps them with its last state:
        no, unless the method is personal. See `algorithms.shared.client_states`."""
        return self.personal

    def metrics(self, state: State) -> dict[str, Any]:
        """What the method has measured in the round that ended in a state: name -> scalar tensor or number."""
        return state.get("metrics", {})

    def has_model(self, config, round: int) -> bool:
        """Whether there is a model to evaluate after so many rounds of a run with these settings (a
        `bench.config.schema.RunConfig`): whether `deploy` gives one."""
        return True

    def deployed_model(self, task) -> Any:
        """The kind of model that is deployed, a `bench.models.base.Model`, before there is any."""
        return task.model

    def deploy_traffic(self, task, model) -> dict[str, int]:
        """Bytes that all clients together receive ("bytes_down") and send ("bytes_up") in order to deploy a model, beside
        those of the rounds."""
        return {"bytes_down": 0, "bytes_up": 0}

    # What is known before a run, and reported after it

    def validate(self, config) -> list[str]:
        """Why the method cannot train a run with these settings (a `bench.config.schema.RunConfig`): sentences, or []."""
        return []

    def traffic(self, task) -> int:
        """Bytes that one client sends and receives in a run of the task, mean over the population."""
        raise NotImplementedError

    @property
    def traffic_is_bound(self) -> bool:
        """Whether `traffic` is an upper bound, because a run may exchange less."""
        return False

    def workload(self, settings, num_examples: int) -> int:
        """Examples that a client with so many trains on in a run, repetitions included, if it always takes part."""
        raise NotImplementedError

    def state_templates(self, task) -> list[State]:
        """A state as large as those of each stage of a run, with the "round" in which the stage ends; the last one is as large
        as the run's last state. Numbers mean nothing, and the task is without images, on the device `meta`.

        Of client states there are only the rows that every run has, whoever takes part. Client states that are there only
        within a round, and in no checkpoint, are "round_only".
        """
        raise NotImplementedError

    def caveats(self, task) -> list[str]:
        """What a reader of the run's numbers must know: sentences for the footnotes of a table."""
        return []

    def diagnostics(self, state: State) -> dict[str, Any]:
        """What the method found out beside a model, as JSON values; goes into the record."""
        return {}


@dataclass(frozen=True)
class RoundBased(Algorithm):
    """A cohort trains, the server aggregates: FedAvg, unless a hook says otherwise.

    A method overrides the smallest hook that says what its paper says: `local_loss` < `local_update` < `init_client`,
    `init_server`, `weighted_means`, `server_step`, `sample`, `personal_model` < `aggregate` < `run_round`.

    A cohort's results are stacked, unless they are too large (`Task.streams`) and the method overrides neither `aggregate` nor
    `finish_round`: then clients train one after another, and each result is added to the means and freed (`stream_round`).

    Attributes:
        broadcast: entries of the server state that clients receive, beside the params.
        drawn: entries of the server state that clients need not receive, because everyone can draw them from the seed.
        smallest_batch: batches with fewer examples do not count as trained on; the method gives the same number to `descend`.
    """

    broadcast: ClassVar[tuple[str, ...]] = ()
    drawn: ClassVar[tuple[str, ...]] = ()
    smallest_batch: ClassVar[int] = 1

    @property
    def passes_per_example(self) -> int:
        """How often local training computes a gradient of each example that it visits."""
        return 1

    @property
    def weighs_clients(self) -> bool:
        """Whether `cohort.weights` are the weights of a cohort's models on the server: yes, unless the method has a hook in
        which it may take another mean. Such a method says so itself if it reads them there."""
        hooks = ("weighted_means", "aggregate", "aggregate_buffers", "finish_round", "stream_round", "run_round")
        return all(getattr(type(self), hook) is getattr(RoundBased, hook) for hook in hooks)

    @property
    def classifier(self) -> Classifier:
        """What becomes of the model's classifier: it is "trained", stays as it was drawn ("fixed"), or is "replaced" by another
        part, so that the params do not have it."""
        return "trained"

    # On one client

    def local_loss(self, params: Tree, batch, view) -> Tensor:
        """What local SGD minimises on a batch. Scalar."""
        return task_loss(params, batch, view)

    def local_update(self, data, plan, view) -> LocalResult:
        """Local training. The update has "delta" (trained - start), unless the hooks that read it are overridden."""
        trained = descend(self.local_loss, view.params, data, plan, view).params
        return LocalResult({"delta": tree.subtract(trained, view.params)}, view.client)

    def personal_model(self, data, plan, view) -> Tree:
        """What a client deploys, of methods that are `personal`: its "params" and "buffers"."""
        raise NotImplementedError

    # On the server

    def init_client(self, task, params: Tree) -> Tree:
        """State of a client that has not yet taken part."""
        return {}

    def cohort_states(self, task, cohort, state: State) -> Tree:
        """What the clients of a cohort know at the start of a round, leaves [K, ...]: what they kept of their last one."""
        return read_rows(state["clients"], cohort.ids)

    def init_server(self, task, params: Tree) -> Tree:
        """State of the server beside the params."""
        return {}

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

    def weighted_means(self, updates: Tree, cohort) -> dict[str, Average]:
        """Entries of the updates of which the server reads no more than a weighted mean, by name.

        Values and weight of a client depend on that client alone: in a streamed round, the cohort is one client.

        Args:
            updates: stacked updates, leaves [K, ...].
            cohort: the clients that sent them.
        """
        return {"delta": Average(updates["delta"], cohort.weights)}

    def server_step(self, task, params: Tree, server: Tree, update: Tree, cohort) -> tuple[Tree, Tree]:
        """New params and server state from the cohort's update. Entries that `weighted_means` names are means, leaves [...];
        all others are stacked, leaves [K, ...]."""
        return tree.add(params, update["delta"]), server

    def aggregate(self, task, params: Tree, server: Tree, updates: Tree, cohort) -> tuple[Tree, Tree]:
        """New params and server state from stacked updates, leaves [K, ...]: `server_step` with their `weighted_means`."""
        return self.server_step(task, params, server, {**updates, **self._means(updates, cohort)}, cohort)

    def _means(self, updates: Tree, cohort) -> Tree:
        """The entries that `weighted_means` names: their means, leaves [...]."""
        return {name: tree.weighted_mean(*average) for name, average in self.weighted_means(updates, cohort).items()}

    def aggregate_buffers(self, buffers: Tree, trained: Tree, updates: Tree, cohort) -> Tree:
        """New buffers from those that the cohort's training left, leaves [K, ...]: their mean by `cohort.weights`.

        Of the updates, it may only read entries that `weighted_means` does not name: the others are not stacked in every round.
        """
        return average_buffers(trained, cohort.weights)

    def local_models(self, state: State, outputs) -> Tree:
        """Models of a cohort at the end of the local training that started from state: "params" and "buffers", [K, ...]."""
        return {"params": tree.add(state["params"], outputs.result.update["delta"]), "buffers": outputs.buffers}

    def round_metrics(self, task, before: State, after: State, update: Tree, cohort) -> dict[str, Any]:
        """What the server measures of a round, beside the means of what clients have (`LocalResult.metrics`): name -> scalar
        tensor or number. It changes nothing.

        Args:
            before, after: the states around the round.
            update: of the cohort, as `server_step` gets it; stacked, leaves [K, ...], if the method overrides `aggregate` or
                `finish_round`.
        """
        return {}

    def sample(self, task, state: State) -> "Cohort":
        """The cohort of the round that follows a state. Pure: the same for all who ask."""
        return task.sample_cohort(state["round"])

    def run_round(self, task, state: State) -> State:
        """Sample a cohort, train it, aggregate."""
        cohort = self.sample(task, state)
        if not len(cohort.ids):
            return self.idle_round(task, state)
        if self._streamable and task.streams(len(cohort.ids) * tree.num_bytes(self.result_template(state))):
            return self.stream_round(task, state, cohort)
        outputs = self.map_clients(task, self.local_update, cohort, state)
        after, (update, _, measured) = self.finish_round(task, state, cohort, outputs), outputs.result
        if self._streamable and type(self).round_metrics is not RoundBased.round_metrics:
            update = {**update, **self._means(update, cohort)}
        return self._with_metrics(task, state, after, update, measured, cohort)

    def idle_round(self, task, state: State) -> State:
        """The state after a round in which no client takes part: of a few clients, as in a cluster, none may be sampled."""
        return state

    def finish_round(self, task, state: State, cohort, outputs) -> State:
        """What the server does with a cohort's results: store the clients' states, aggregate, account."""
        update, client, _ = outputs.result
        params, server = self.aggregate(task, state["params"], state["server"], update, cohort)
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

    def stream_round(self, task, state: State, cohort) -> State:
        """Train a cohort, one client after another, and `finish_round`: up to rounding the same, in the memory of a few
        clients."""
        received = _Received(self)
        for position in range(len(cohort.ids)):
            alone = cohort.of(position)
            received.add(alone, self.map_clients(task, self.local_update, alone, state))
        update, trained = {**received.stacked(), **received.means()}, received.buffers()
        params, server = self.server_step(task, state["params"], state["server"], update, cohort)
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

    def _finished(self, task, state: State, cohort, *, bytes_up: int, **new: Tree) -> State:
        """The state after a round with these new entries, and what the round has cost."""
        bytes_down = len(cohort.ids) * tree.num_bytes(self.downloads(state))
        examples = self.passes_per_example * task.num_trained(cohort, self.smallest_batch)
        spent = add_costs(state["costs"], bytes_down=bytes_down, bytes_up=bytes_up, examples=examples)
        return {**state, **new, "costs": spent}

    def _with_metrics(self, task, before: State, after: State, update: Tree, measured: Tree, cohort) -> State:
        """The state after a round with what was measured in it, if that is anything; measured has leaves [K]."""
        of_clients = tree.weighted_mean(tree.map(lambda leaf: leaf.double(), measured), cohort.weights)
        found = {**of_clients, **self.round_metrics(task, before, after, update, cohort)}
        return {**after, "metrics": found} if found else after

    @property
    def _streamable(self) -> bool:
        """Whether means are all that the server reads of the entries that `weighted_means` names."""
        own = type(self)
        return own.aggregate is RoundBased.aggregate and own.finish_round is RoundBased.finish_round

    # The interface

    def init(self, task) -> State:
        params = task.initial_params()
        return {
            "round": 0,
            "params": params,
            "buffers": task.initial_buffers(),
            "server": self.init_server(task, params),
            "clients": no_rows(self.init_client(task, params)),
            "costs": no_costs(),
        }

    def step(self, task, state: State) -> State:
        before = {key: part for key, part in state.items() if key != "metrics"}  # of the round before
        return {**self.run_round(task, before), "round": state["round"] + 1}

    def deploy(self, task, state: State, client_ids: Tensor) -> Deployed:
        if not self.personal:
            return Deployed(task.model, state["params"], state["buffers"], False)
        outputs = self.map_clients(task, self.personal_model, task.cohort(client_ids), state)
        return Deployed(task.model, outputs.result["params"], outputs.result["buffers"], True)

    def finite_check(self, state: State) -> Tree:
        own = {"clients": state["clients"]["rows"]} if self.personal else {}
        return {"params": state["params"], "server": state["server"], **own}

    def traffic(self, task) -> int:
        # Sizes do not depend on the data, so one batch at the first client tells what a round exchanges.
        brief = replace(task, settings=replace(task.settings, local_epochs=None, local_steps=1))
        state, cohort = self.init(brief), brief.cohort(torch.tensor([0]))
        outputs = self.map_clients(brief, self.local_update, cohort, state)
        per_round = tree.num_bytes(self.downloads(state)) + tree.num_bytes(
            self.uploads(outputs.result.update, outputs.buffers)
        )
        return round(task.cohort_share * task.settings.rounds * per_round)

    def workload(self, settings, num_examples: int) -> int:
        return self.passes_per_example * settings.rounds * settings.num_visited(num_examples, self.smallest_batch)

    def state_templates(self, task) -> list[State]:
        return [{**self.init(task), "round": self.num_rounds(task.settings)}]

    def map_clients(self, task, fn, cohort, state: State):
        """`Task.map_clients` with everything that a client of this method receives."""
        return task.map_clients(
            fn,
            cohort,
            round=state["round"],
            params=state["params"],
            buffers=state["buffers"],
            server={key: state["server"][key] for key in (*self.broadcast, *self.drawn)},
            client=self.cohort_states(task, cohort, state),
        )


class _Received:
    """What the server keeps of those clients of a streamed round that have finished.

    Attributes:
        rows: client id -> new state.
        bytes_up: size of everything that was sent.
    """

    def __init__(self, method: RoundBased) -> None:
        self._method = method
        self._means: dict[str, RunningMean] = {}
        self._stacks: list[Tree] = []
        self.rows: dict[int, Tree] = {}
        self.bytes_up = 0

    def add(self, cohort, outputs) -> None:
        """Takes the results of a cohort, leaves [k, ...]; keeps no reference to what is averaged."""
        update, client, measured = outputs.result
        self.rows |= rows_of(cohort.ids, client)  # merged once: all clients' rows are sorted then
        self.bytes_up += tree.num_bytes(self._method.uploads(update, outputs.buffers))
        averaged = self._method.weighted_means(update, cohort)
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


# Accounting: totals over all clients, so that a resumed run goes on counting where it stopped.


def no_costs() -> dict[str, int]:
    """Bytes that clients received and sent, and examples that they trained on, summed over clients and rounds."""
    return {"bytes_down": 0, "bytes_up": 0, "examples": 0}


def add_costs(spent: dict[str, int], **more: int) -> dict[str, int]:
    """The totals after one more round."""
    return {key: total + more.get(key, 0) for key, total in spent.items()}


def average_buffers(stacked: Tree, weights: Tensor) -> Tree:
    """Weighted mean of the cohort's buffers, leaves [K, ...]; counters are averaged as float, then truncated."""
    mean = tree.weighted_mean(tree.map(lambda leaf: leaf.double(), stacked), weights)
    return tree.map(_restore_type, mean, stacked)


def _restore_type(averaged: Tensor, leaf: Tensor) -> Tensor:
    # Shares sum to 1 up to rounding, which must not turn a mean of equal counters into the integer below.
    return averaged.to(leaf.dtype) if leaf.is_floating_point() else (averaged + 1e-6).to(leaf.dtype)
