"""What the harness wants to know about a method, before a run and after it. The defaults fit nearly all methods."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from algorithms.shared.tree import Tree
from algorithms.shared.types import RunConfig, Settings, Task
from bench.models.base import Model

if TYPE_CHECKING:
    from algorithms.shared.base import State


Deploys = Literal["model", "fused", "several"]


class Accounting:
    """Costs, limits and remarks of a method.

    Attributes:
        post_hoc: whether the method trains as its `base` does, state and all, and only changes what is deployed.
        deploys: what is deployed: a "model" of the kind that clients train; several of them under one classifier, "fused"; or
            several with classifiers of their own, "several".
        cohorts_of_one_size: whether all rounds need as many clients, so that the method cannot train a part of a population.
        profile_options: options with which the first round takes about as long as any other, for a short trial of what a run
            needs.
    """

    post_hoc: ClassVar[bool] = False
    deploys: ClassVar[Deploys] = "model"
    cohorts_of_one_size: ClassVar[bool] = False
    profile_options: ClassVar[dict[str, Any]] = {}

    @property
    def personal(self) -> bool:
        """Whether each client deploys a model of its own. A class attribute of that name will do."""
        return False

    def for_model(self, has_buffers: bool) -> Self:
        """The method with those options decided that it leaves to the model, which has buffers or none."""
        return self

    def num_rounds(self, settings: Settings) -> int:
        """Communication rounds of a run: the setting `rounds`, unless the method has rounds of its own."""
        return settings.rounds

    def finite_check(self, state: "State") -> Tree:
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

    def has_model(self, config: RunConfig, round: int) -> bool:
        """Whether there is a model to evaluate after so many rounds of such a run: whether `deploy` gives one."""
        return True

    def deployed_model(self, task: Task) -> Model:
        """The kind of model that is deployed, before there is any."""
        return task.model

    def deploy_traffic(self, task: Task, model: Model) -> dict[str, int]:
        """Bytes that all clients together receive ("bytes_down") and send ("bytes_up") in order to deploy a model, beside
        those of the rounds."""
        return {"bytes_down": 0, "bytes_up": 0}

    # A gradient of one example counts as 1, whatever it goes through: a whole model, some of its layers, the models of all
    # clients, or a classifier alone, of which the examples are features. What deploying has cost is in `Deployed.examples`.
    # The row of an evaluated round has it beside what the rounds so far have cost, as if the run had ended there: models that
    # earlier rows are of are not counted again.

    def deploy_workload(self, settings: Settings, num_examples: int) -> int:
        """Examples of which a client with so many computes gradients in order to deploy a model, beside those of the rounds:
        each client of a personal method, and each one of the cohort of any other. Where only some clients do, their mean."""
        return 0

    def server_examples(self, num_examples: int, num_classes: int) -> int:
        """Examples of which the server computes gradients in order to deploy a model, such as images of a generator, of clients
        that have so many examples together, of so many classes."""
        return 0

    def validate(self, config: RunConfig) -> list[str]:
        """Why the method cannot train a run with these settings: sentences, or []."""
        return []

    def traffic(self, task: Task) -> int:
        """Bytes that one client sends and receives in a run of the task, mean over the population."""
        raise NotImplementedError

    @property
    def traffic_is_bound(self) -> bool:
        """Whether `traffic` is an upper bound, because a run may exchange less."""
        return False

    def workload(self, settings: Settings, num_examples: int) -> int:
        """Examples that a client with so many trains on in the rounds of a run, repetitions included, if it always takes
        part: the mean over clients is `settings.participation` times that, the share of a cohort."""
        raise NotImplementedError

    @property
    def workload_is_bound(self) -> bool:
        """Whether `workload` and `deploy_workload` are upper bounds, because clients may train on fewer examples."""
        return False

    def state_templates(self, task: Task) -> "list[State]":
        """A state as large as those of each stage of a run, with the "round" in which the stage ends; the last one is as large
        as the run's last state. Numbers mean nothing, and the task is without images, on the device `meta`.

        Of client states there are only the rows that every run has, whoever takes part. Client states that are there only
        within a round, and in no checkpoint, are "round_only".
        """
        raise NotImplementedError

    def caveats(self, task: Task) -> list[str]:
        """What a reader of the run's numbers must know: sentences for the footnotes of a table."""
        return []

    def metrics(self, state: "State") -> dict[str, Any]:
        """What was measured in the round that ended in a state: name -> scalar tensor or number."""
        return state.get("metrics", {})

    def diagnostics(self, state: "State") -> dict[str, Any]:
        """What the method found out beside a model, as JSON values; goes into the record."""
        return {}


# Totals over all clients, so that a resumed run goes on counting where it stopped.


def no_costs() -> dict[str, int]:
    """Bytes that clients received and sent, and examples that they trained on, summed over clients and rounds."""
    return {"bytes_down": 0, "bytes_up": 0, "examples": 0}


def add_costs(costs: dict[str, int], **more: int) -> dict[str, int]:
    """The totals after one more round."""
    return {key: total + more.get(key, 0) for key, total in costs.items()}
