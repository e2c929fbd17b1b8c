"""FedCollab: clients find out who should train with whom, and train in these coalitions.

Bao et al., Optimizing the Collaboration Structure in Cross-Silo Federated Learning, ICML 2023.
https://arxiv.org/abs/2306.06508
"""

import functools
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

import algorithms
import datasets
from algorithms import Algorithm, Deployed, RoundBased, State, Tree, Wrapper, above, at_least, one_of, registered, tree
from algorithms.shared.accounting import no_costs
from algorithms.shared.coalitions import bound, solve
from algorithms.shared.divergence import check_sizes, estimate, exchanged, is_estimate
from algorithms.shared.groups import step_groups
from algorithms.shared.metrics import mean_over_groups
from algorithms.shared.types import RunConfig, Task
from bench.models.pretrained import CHANNELS

Divergence = Literal["estimated", "published"]

PIXELS = "pixels"
_PUBLISHED = Path(__file__).with_name("published_divergences.json")


@registered("fedcollab", symbols={"capacity": "C"})
@dataclass(frozen=True)
class FedCollab(Wrapper):
    """A method in every coalition of clients, on its own; all coalitions start from one initial model.

    Before the first round of the base, every pair of clients estimates how much their data differ: once for all runs with the
    same data, partition and seed (`algorithms.shared.divergence.estimate`). The server searches for the coalitions that
    minimise the bound of the paper (`algorithms.shared.coalitions.objective`). They stay as they are. Each client deploys
    what its coalition trains: with one coalition that is what the base trains, with clients that are all alone what each
    would train by itself.

    A cohort is drawn from all clients, so that in a round a coalition may have few clients, or none.

    What a run exchanges includes the discriminators of all pairs, which come with the first round; `traffic` is an upper
    bound, because their training may stop early. Examples are counted for the base alone.

    The record has the bound of Theorem 3.3 for each client in the coalitions that were found, without the irreducible error,
    which nobody knows (`algorithms.shared.coalitions.bound`).

    Differs from the paper: it calls the search greedy; that it is repeated, that D is the best balanced accuracy of all
    evaluations, and that it is clipped at 0, is from its code.

    Attributes:
        base: trains the model, or the models, of a coalition.
        capacity: C of the paper, > 0, the weight of what a client gains from more examples; the more, the larger the
            coalitions. The scripts of its code have 10 for label and feature shift and 8 for concept shift.
        restarts: searches for coalitions, >= 1, of which the best counts.
        divergence: "estimated" by discriminators, or "published": the numbers of its code for the 20 clients of the paper's
            three settings and its seed 0, for which nothing is exchanged.
        discriminator_lr: learning rate of the discriminators, > 0; the code has 0.01, and 0.05 for concept shift.
        discriminator_rounds: rounds of the discriminator of a pair, at most, >= 1.
        features: what discriminators see of an image: its "pixels", or what a frozen ResNet-18 makes of them, with the ImageNet
            weights of a file (see `bench.models.pretrained.load`), as the code has for CIFAR.
        delta: of the bound in the record, see `algorithms.shared.coalitions.bound`, in (0, 0.5). The sources name no value.
        dimension: d of the bound in the record, VC dimension of the models, >= 1. The authors' poster prints the bound with 1;
            that of a network is not known, and so large that the bound says nothing.
    """

    version = 2  # 1 evaluated discriminators after the rounds 0, 10, 20 and so on
    does = "divides clients into coalitions and trains in each"
    takes_personal = True
    personal = True
    profile_options = {"discriminator_rounds": 1}

    capacity: float = 10.0
    restarts: int = 100
    divergence: Divergence = "estimated"
    discriminator_lr: float = 0.01
    discriminator_rounds: int = 2000
    features: str = PIXELS
    delta: float = 0.05
    dimension: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_base(self.base)
        above("capacity", self.capacity, 0)
        at_least("restarts", self.restarts, 1)
        one_of("divergence", self.divergence, get_args(Divergence))
        above("discriminator_lr", self.discriminator_lr, 0)
        at_least("discriminator_rounds", self.discriminator_rounds, 1)
        if not (self.features and self.features.isprintable()):
            raise ValueError(f"features must be {PIXELS} or the name of a file, but got {self.features!r}.")
        if self.divergence == "published" and self.features != PIXELS:
            raise ValueError(
                f"features must be {PIXELS} with published divergences, which read none, but got {self.features}."
            )
        if not 0 < self.delta < 0.5:
            raise ValueError(f"delta must be greater than 0 and less than 0.5, but got {self.delta}.")
        at_least("dimension", self.dimension, 1)
        if self.dimension > 10**15:
            raise ValueError(f"dimension must be at most 10^15, but got {self.dimension}.")

    def validate(self, config: RunConfig) -> list[str]:
        mistakes = super().validate(config)
        if self.divergence == "published":
            mistakes = [*mistakes, *_unpublished(config)]
        if self.features != PIXELS and (info := datasets.INFO.get(config.dataset)):
            mistakes = [*mistakes, *_grey(config.dataset, info.input_shape)]
        return mistakes

    @property
    def weights_files(self) -> tuple[str, ...]:
        own = () if self.features == PIXELS else (self.features,)
        return (*super().weights_files, *own)

    # Rounds

    def init(self, task: Task) -> State:
        if self.divergence == "published":
            _published(task)
        else:
            check_sizes(task)
            if self.features != PIXELS and (mistakes := _grey("the dataset", task.federation.input_shape)):
                raise ValueError(mistakes[0])
        return {"round": 0, "costs": no_costs()}

    def step(self, task: Task, state: State) -> State:
        if "models" not in state:
            state = self._divided(task, state)
        return step_groups(self.base, {name: _coalition(task, state, name) for name in state["models"]}, state)

    def _divided(self, task: Task, state: State) -> State:
        """The state before the first round of the base."""
        num_examples = torch.tensor(task.sizes(torch.arange(task.population))).double()
        if self.divergence == "published":
            divergences, num_bytes = _published(task), {}
        else:
            options = (self.discriminator_lr, self.discriminator_rounds)
            network = None if self.features == PIXELS else task.pretrained(self.features)
            found = task.cached(
                "divergences",
                (self.version, *options, network.digest if network else PIXELS),
                lambda: estimate(task, *options, network)._asdict(),
                lambda found: is_estimate(found, task.population, self.discriminator_rounds),
            )
            divergences, rounds = found["divergences"], found["rounds"]
            num_bytes = exchanged(task, rounds[torch.ones_like(rounds).triu(1) > 0], network is not None)
        coalitions, objective = solve(
            divergences, num_examples, self.capacity, self.restarts, task.generator_for("coalitions")
        )
        found = {"divergences": divergences, "coalitions": coalitions, "num_examples": num_examples}
        state = {**state, **found, "objective": objective}
        names = map(str, range(int(coalitions.max()) + 1))
        return {
            **state,
            "discriminator_bytes": sum(num_bytes.values()),
            "models": {name: self.base.init(_coalition(task, state, name)) for name in names},
            "costs": state["costs"] | num_bytes,
        }

    # What is deployed

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed | None:
        if "models" not in state:
            return None
        coalitions, part, examples = state["coalitions"].cpu(), None, 0
        whole: tree.Tree = {}
        for name, model in state["models"].items():
            members = torch.nonzero(coalitions == int(name)).flatten()
            rows = torch.nonzero(torch.isin(client_ids, members)).flatten()
            if not len(rows):
                continue
            own = torch.searchsorted(members, client_ids[rows])
            part = self.base.deploy(_coalition(task, state, name), model, own)
            if part is None:
                return None
            examples += part.examples
            part = part if part.per_client else part.for_each(len(rows))  # of which nothing is copied
            found = {"params": part.params, "buffers": part.buffers}
            whole = whole or tree.map(lambda leaf: leaf.new_empty(len(client_ids), *leaf.shape[1:]), found)
            for into, leaf in zip(tree.leaves(whole), tree.leaves(found), strict=True):
                into[rows] = leaf
        return part and Deployed(part.model, **whole, per_client=True, examples=examples)

    def finite_check(self, state: State) -> Tree:
        return {name: self.base.finite_check(model) for name, model in state.get("models", {}).items()}

    def metrics(self, state: State) -> dict[str, Any]:
        models = state.get("models", {})
        return models and mean_over_groups(
            {name: self.base.metrics(model) for name, model in models.items()}, state["coalitions"]
        )

    # What is known before a run, and reported after it

    def traffic(self, task: Task) -> int:
        if self.divergence == "published":
            return super().traffic(task)
        pairs = torch.full((task.population * (task.population - 1) // 2,), self.discriminator_rounds)
        of_all = exchanged(task, pairs, self.features != PIXELS)
        return super().traffic(task) + round(sum(of_all.values()) / task.population)

    @property
    def traffic_is_bound(self) -> bool:
        return self.divergence == "estimated" or super().traffic_is_bound

    def state_templates(self, task: Task) -> list[State]:
        """As large as with clients that are all alone, the most that there can be."""
        clients = task.population
        found = {
            "divergences": torch.empty(clients, clients, dtype=torch.float64),
            "coalitions": torch.empty(clients, dtype=torch.long),
            "num_examples": torch.empty(clients, dtype=torch.float64),
            "objective": torch.empty((), dtype=torch.float64),
            "discriminator_bytes": 0,
            "costs": no_costs(),
        }
        names = list(map(str, range(clients)))
        return [
            {**found, "round": alone["round"], "models": dict.fromkeys(names, alone)}
            for alone in self.base.state_templates(task.restrict(torch.tensor([0])))
        ]

    def caveats(self, task: Task) -> list[str]:
        published, in_colour = self.divergence == "published", task.federation.input_shape[0] == CHANNELS
        own = {
            "published divergences are those of the clients of seed 0; at other seeds, clients are others": (
                published and task.seed != 0
            ),
            "discriminators read pixels; on images in colour, those of the paper read ImageNet features": (
                not published and self.features == PIXELS and in_colour
            ),
        }
        return super().caveats(task) + [f"fedcollab: {said}." for said, holds in own.items() if holds]

    def diagnostics(self, state: State) -> dict[str, Any]:
        if "models" not in state:
            return {}
        of_bases = {name: self.base.diagnostics(model) for name, model in state["models"].items()}
        parts = ("coalitions", "divergences", "num_examples")
        coalitions, divergences, num_examples = (state[name].cpu() for name in parts)
        limit = bound(coalitions, divergences, num_examples, self.delta, self.dimension)
        return {
            "coalitions": state["coalitions"].tolist(),
            "divergences": [_rounded(row) for row in state["divergences"]],
            "num_examples": [int(number) for number in state["num_examples"]],
            "objective": state["objective"].item(),
            "bound": {name: _rounded(getattr(limit, name)) for name in ("quantity", "divergence", "excess")},
            "discriminator_bytes": state["discriminator_bytes"],
            **({"of_coalitions": of_bases} if any(of_bases.values()) else {}),
        }


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


def _coalition(task: Task, state: State, name: str) -> Task:
    """The task of one coalition."""
    return task.restrict(torch.nonzero(state["coalitions"].cpu() == int(name)).flatten())


def _check_base(base: Algorithm) -> None:
    """Raises ValueError unless a method can be trained by the clients of any coalition."""
    *around, innermost = _layers(base)
    name = algorithms.name_of(innermost)
    if any(isinstance(layer, FedCollab) for layer in (*around, innermost)):
        raise ValueError("fedcollab divides clients into coalitions, and cannot go around itself.")
    if innermost.cohorts_of_one_size:
        raise ValueError(
            f"fedcollab trains its base within coalitions, whose cohorts differ in size, but {name} needs cohorts of one size."
        )
    if not isinstance(innermost, RoundBased):
        raise ValueError(
            f"fedcollab needs a base that trains in rounds with any number of clients, but {name} does not."
        )


def _layers(method: Algorithm) -> Iterator[Algorithm]:
    """A method, and what it is around, from the outside."""
    yield method
    if isinstance(method, Wrapper):
        yield from _layers(method.base)


def _grey(dataset: str, shape: tuple[int, ...]) -> list[str]:
    """Why a ResNet-18 cannot read images of a shape: one sentence, or none."""
    if shape[0] == CHANNELS:
        return []
    return [
        f"ImageNet features need images of {CHANNELS} channels, but {dataset} has {shape[0]}; use features {PIXELS}."
    ]


@functools.cache
def _settings() -> list[dict[str, Any]]:
    """The published divergences, each with its "dataset", "partition", and "num_examples" of each client."""
    return json.loads(_PUBLISHED.read_text())["settings"]


def _unpublished(config: RunConfig) -> list[str]:
    """Why there are no published divergences for a config: one sentence, or none."""
    known = [(one["dataset"], one["partition"], len(one["num_examples"])) for one in _settings()]
    if (got := (config.dataset, config.partition, config.population)) in known:
        info = datasets.INFO[config.dataset]
        whole = {
            "split": "test",
            "train_examples": info.train_size,
            "test_examples": info.test_size,
            "first_clients": None,
        }
        given = {key: getattr(config, key) for key in whole}
        other = ", ".join(f"{key} {value}" for key, value in given.items() if value not in (None, whole[key]))
        sentence = (
            f"Divergences are published for clients with all their examples, but got {other}; use split test and all examples "
            "and clients, or --set divergence=estimated."
        )
        return [sentence] if other else []
    settings = ", ".join(f"{dataset} with {partition}" for dataset, partition, _ in known)
    return [
        f"Divergences are published for {known[0][2]} clients of {settings}, but got {got[2]} clients of {got[0]} with "
        f"{got[1]}; use --set divergence=estimated."
    ]


def _published(task: Task) -> Tensor:
    """The published divergences of the clients of a task [N, N]: those of clients with as many examples.

    Raises:
        ValueError: if there are none.
    """
    sizes = task.sizes(torch.arange(task.population))
    for one in _settings():
        if one["num_examples"] == sizes:
            return torch.tensor(one["divergences"], dtype=torch.float64)
    known = "; ".join(_listed(one["num_examples"]) for one in _settings())
    raise ValueError(
        f"Divergences are published for clients with these numbers of training examples: {known}. This run has "
        f"{_listed(sizes)}; use all training examples, or --set divergence=estimated."
    )


def _listed(sizes: list[int]) -> str:
    """Sizes of clients, equal ones in a row together: "10 x 2100 and 10 x 14"."""
    return " and ".join(f"{len(list(of))} x {size}" for size, of in itertools.groupby(sizes))
