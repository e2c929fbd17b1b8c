"""What a grid file says, checked."""

import itertools
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

import datasets
from bench import grid_files
from bench.mistakes import ConfigError, sentences
from bench.names import unknown


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Condition(Part):
    """Cells whose settings are all among the values of `when` get the settings of `set`."""

    when: dict[str, Any]
    set: dict[str, Any]

    def holds(self, flat: Mapping[str, Any]) -> bool:
        return matches(self.when, flat)


class Tuning(Part):
    """A tuning set: one cell for every combination of the options' values.

    Attributes:
        named: the one point that the budget `small` plays; needed where the set has more than one.
    """

    when: dict[str, Any]
    options: dict[str, list]
    named: dict[str, Any] = {}

    def points(self, which: str) -> list[dict]:
        points = [dict(zip(self.options, values, strict=True)) for values in itertools.product(*self.options.values())]
        if which == "named" and self.named:
            return [self.named]
        return points if which == "all" else points[:1]


class Budget(Part):
    """How much of a grid is played.

    Attributes:
        tuning: which points of the tuning sets: all, the named one, or the first.
        seeds: replaces the grid's seeds.
        min_clients: the population becomes max(min_clients, number of classes).
        train_examples_per_client: trains on a stratified subset of this many examples per client.
    """

    tuning: Literal["all", "named", "first"] = "all"
    seeds: list[int] | None = None
    min_clients: int | None = None
    train_examples_per_client: int | None = None
    settings: dict[str, Any] = {}
    conditions: list[Condition] = []

    def apply(self, flat: dict[str, Any]) -> None:
        flat |= self.settings
        for condition in self.conditions:
            if condition.holds(flat):
                flat |= condition.set
        if self.min_clients:
            info = datasets.INFO.get(flat["dataset"])
            flat["clients"] = max(self.min_clients, info.num_classes if info else 0)
        if self.train_examples_per_client:
            flat["train_examples"] = self.train_examples_per_client * flat["clients"]


class Mirrors(Part):
    """The published table that a grid repeats."""

    paper: str
    table: int


class Layout(Part):
    """How the report lays out the cells, and by which rule of the paper's digest it judges a difference."""

    rows: list[str] = ["dataset", "partition"]
    columns: str = "algorithm"
    metric: str = "accuracy"
    std: Literal["population", "sample"] = "population"
    verdict: str | None = None


class GridSpec(Part):
    """A grid as it stands in its file.

    Attributes:
        save_rounds, save_local_models: rounds whose state, or whose cohort's models, every run keeps on disk.
    """

    name: str
    title: str = ""
    mirrors: Mirrors | None = None
    axes: dict[str, list]
    settings: dict[str, Any] = {}
    conditions: list[Condition] = []
    tuning: list[Tuning] = []
    budgets: dict[str, Budget]
    report: Layout = Layout()
    save_rounds: list[int] = []
    save_local_models: list[int] = []


def load_grid(name: str) -> GridSpec:
    """The grid of that name, or of that YAML file.

    Raises:
        ConfigError: if there is none, or with everything that is wrong in the file.
    """
    path = grid_files.find(name)
    try:
        content = grid_files.read(name)
    except FileNotFoundError as error:
        given_as_file = path.parent != grid_files.FOLDER
        known = grid_files.names()
        raise ConfigError(
            [f"There is no grid file {name}." if given_as_file else unknown("grid", name, known)]
        ) from error
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    if not isinstance(content, dict):
        raise ConfigError([f"{path} must hold a mapping with axes and settings."])
    return make_grid(path.stem, content)


def single(settings: Mapping[str, Any], seeds: list[int]) -> GridSpec:
    """A grid of one setting: algorithm, dataset and partition as on the command line."""
    axes = {key: [settings[key]] for key in ("dataset", "partition", "algorithm")}
    name = "-".join(str(settings[key]) for key in ("algorithm", "dataset", "partition"))
    return make_grid(name.replace("/", "_"), {"title": name, "axes": axes | {"seed": seeds}})


def make_grid(name: str, content: Mapping[str, Any]) -> GridSpec:
    """A grid from the content of its file and what all grids share."""
    shared = grid_files.read_shared()
    own = content.get("budgets") or {}
    merged = {budget: shared["budgets"].get(budget, {}) | own.get(budget, {}) for budget in shared["budgets"] | own}
    conditions = [*shared["conditions"], *(content.get("conditions") or [])]
    try:
        return GridSpec(**{**content, "name": name, "budgets": merged, "conditions": conditions})
    except ValidationError as error:
        raise ConfigError([f"grid {name}: {line}" for line in sentences(error, _keys_beside)]) from error


def matches(when: Mapping[str, Any], flat: Mapping[str, Any]) -> bool:
    return all(flat.get(key) in (value if isinstance(value, list) else [value]) for key, value in when.items())


def _keys_beside(location: tuple) -> list[str]:
    """Valid keys at the place in a grid file where an unknown one stands."""
    part = GridSpec
    nested = {
        "conditions": Condition,
        "tuning": Tuning,
        "budgets": Budget,
        "report": Layout,
        "mirrors": Mirrors,
    }
    for key in location[:-1]:
        part = nested.get(key, part)
    return list(part.model_fields)
