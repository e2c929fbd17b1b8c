"""Methods around a method: everything is the base's but what a subclass says."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

import algorithms
from algorithms.centralized import Centralized
from algorithms.fedavg import FedAvg
from algorithms.shared.accounting import Deploys
from algorithms.shared.base import Algorithm, Deployed, RoundHooks, State
from algorithms.shared.tree import Tree
from algorithms.shared.types import RunConfig, Settings, Task
from bench.models.base import Model


@dataclass(frozen=True)
class Wrapper(Algorithm):
    """A method with the state of its base, which deploys one shared model unless personal bases are welcome.

    Attributes:
        does: what a wrapper does to that model, for its refusal of other bases.
        takes_personal: whether the base may deploy one model per client, also one that each client only fine-tunes.
        takes: what the base may deploy.
        base: the method inside.
    """

    does: ClassVar[str]
    takes_personal: ClassVar[bool] = False
    takes: ClassVar[tuple[Deploys, ...]] = ("model",)
    base: Algorithm = FedAvg()

    def __init_subclass__(cls) -> None:
        """Raises TypeError for hooks of rounds, which only the base has: nothing would call them."""
        of_rounds = {name for name in vars(RoundHooks) if not hasattr(Wrapper, name)} | {"trains_whole_models"}
        if unused := [name for name in vars(cls) if name in of_rounds]:
            raise TypeError(
                f"{cls.__name__} is a wrapper, whose {' and '.join(unused)} nothing calls: subclass RoundBased, or override "
                "step, deploy or inside."
            )

    def __post_init__(self) -> None:
        name, base = algorithms.name_of(self), algorithms.name_of(self.base)
        if isinstance(self.base, Centralized):
            raise ValueError(
                f"{name} goes around methods with several clients, but {base} has only one, which holds everything."
            )
        if self.base.personal and not self.takes_personal:
            raise ValueError(f"{name} {self.does} one shared model, but {base} deploys one model per client.")
        if self.base.deploys not in self.takes:
            raise ValueError(
                f"{name} {self.does} one model as clients train it, but {base} deploys several side by side."
            )
        if self.base.post_hoc and not (self.takes_personal and self.base.personal):
            raise ValueError(f"{name} needs a base that trains, but {base} only changes what another method deploys.")

    def inside(self, task: Task) -> Task:
        """The task as the base sees it."""
        return task

    def for_model(self, has_buffers: bool) -> Self:
        return replace(self, base=self.base.for_model(has_buffers))

    def num_rounds(self, settings: Settings) -> int:
        return self.base.num_rounds(settings)

    def init(self, task: Task) -> State:
        return self.base.init(self.inside(task))

    def step(self, task: Task, state: State) -> State:
        return self.base.step(self.inside(task), state)

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed | None:
        return self.base.deploy(self.inside(task), state, client_ids)

    def metrics(self, state: State) -> dict[str, Any]:
        return self.base.metrics(state)

    def has_model(self, config: RunConfig, round: int) -> bool:
        return self.base.has_model(config, round)

    def deployed_model(self, task: Task) -> Model:
        return self.base.deployed_model(self.inside(task))

    def finite_check(self, state: State) -> Tree:
        return self.base.finite_check(state)

    @property
    def weights_files(self) -> tuple[str, ...]:
        return self.base.weights_files

    @property
    def named_models(self) -> tuple[str, ...]:
        return self.base.named_models

    @property
    def deploy_reads_clients(self) -> bool:
        return self.base.deploy_reads_clients

    def validate(self, config: RunConfig) -> list[str]:
        return self.base.validate(config)

    def deploy_traffic(self, task: Task, model: Model) -> dict[str, int]:
        return self.base.deploy_traffic(self.inside(task), model)

    def deploy_workload(self, settings: Settings, num_examples: int) -> int:
        return self.base.deploy_workload(settings, num_examples)

    def server_examples(self, num_examples: int, num_classes: int) -> int:
        return self.base.server_examples(num_examples, num_classes)

    def traffic(self, task: Task) -> int:
        return self.base.traffic(self.inside(task))

    @property
    def traffic_is_bound(self) -> bool:
        return self.base.traffic_is_bound

    def workload(self, settings: Settings, num_examples: int) -> int:
        return self.base.workload(settings, num_examples)

    @property
    def workload_is_bound(self) -> bool:
        return self.base.workload_is_bound

    def state_templates(self, task: Task) -> list[State]:
        return self.base.state_templates(self.inside(task))

    def caveats(self, task: Task) -> list[str]:
        return self.base.caveats(self.inside(task))

    def diagnostics(self, state: State) -> dict[str, Any]:
        return self.base.diagnostics(state)


def refuse_wrapper(name: str, base: Algorithm) -> None:
    """Raises ValueError if the base of a method of this name is around another one, so that it has no hooks of rounds."""
    if isinstance(base, Wrapper):
        raise ValueError(
            f"{name} goes around a method that is around no other, but {algorithms.name_of(base)} is a wrapper."
        )


@dataclass(frozen=True)
class PostHoc(Wrapper):
    """A wrapper that changes only what is deployed: a finished run of the base need not be trained again."""

    post_hoc = True

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed | None:
        deployed = super().deploy(task, state, client_ids)
        return deployed and self.changed(task, deployed, state, client_ids)

    def changed(self, task: Task, deployed: Deployed, state: State, client_ids: Tensor) -> Deployed:
        """What these clients deploy instead of the base's shared model, after a state of the base. Its `examples` are those of
        the base's and of the change."""
        raise NotImplementedError

    def change_traffic(self, task: Task, model: Model) -> dict[str, int]:
        """Bytes that all clients together receive ("bytes_down") and send ("bytes_up") for the change, beside those of the
        base."""
        return {"bytes_down": 0, "bytes_up": 0}

    def deploy_traffic(self, task: Task, model: Model) -> dict[str, int]:
        own = self.change_traffic(task, model)
        return {key: of_base + own[key] for key, of_base in super().deploy_traffic(task, model).items()}

    def traffic(self, task: Task) -> int:
        model = self.deployed_model(task)
        own = sum(self.deploy_traffic(task, model).values()) - sum(super().deploy_traffic(task, model).values())
        return super().traffic(task) + own // task.population
