"""What a grid file may say of the settings of its cells: conditions, tuning sets and budgets, checked."""

import itertools
import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from bench import models, references
from bench.config.compatibility import subset
from bench.config.methods import defaults_of, is_method
from bench.config.parts import Part
from bench.config.schema import RunConfig
from bench.errors import ConfigError
from bench.participation import cohort_size
from datasets import DatasetInfo, partitions
from datasets.partitions import counts_clients, usual_clients

MOST_CELLS = 100_000  # of a grid: a few lines of axes can name more than a machine can store
Values = Annotated[list, Field(min_length=1)]


class Condition(Part):
    """Cells whose settings are all among the values of `when` get the settings of `set`."""

    when: dict[str, Any]
    set: dict[str, Any]


class Tuning(Part):
    """A tuning set: one cell for every combination of the options' values.

    Attributes:
        named: the one point that the budget `small` runs; needed where the set has more than one.
        chosen_on: the split on which a point is chosen. Of a set of "validation", cells have the named point until a search on
            validation data has replaced it.
    """

    when: dict[str, Any]
    options: dict[str, Values]
    named: dict[str, Any] = {}
    chosen_on: Literal["test", "validation"] = "test"

    @field_validator("options")
    @classmethod
    def _has_few_points(cls, options: dict) -> dict:
        require_few(options, "A tuning set")
        return options

    @field_validator("named")
    @classmethod
    def _is_a_point(cls, named: dict, info: ValidationInfo) -> dict:
        options = info.data.get("options")
        if named and options is not None and named not in _product(options):
            raise ValueError(f"named must be one point of the options {options}, but got {named}.")
        return named

    @model_validator(mode="after")
    def _names_what_a_search_replaces(self) -> "Tuning":
        if self.is_searched and not self.named:
            raise ValueError(
                f"A point of the tuning set {self.options} is chosen on validation data: set `named` to the one that cells "
                "have without a search."
            )
        return self

    @property
    def is_searched(self) -> bool:
        """Whether a point is chosen on validation data."""
        return self.chosen_on == "validation" and len(_product(self.options)) > 1

    def points(self, which: str) -> list[dict]:
        """All points, the named one, or the first; always the named one of a set that is searched.

        Raises:
            ConfigError: if `which` is "named", there are several points, and none is named.
        """
        points = _product(self.options)
        which = "named" if self.is_searched else which
        if which == "all" or len(points) == 1:
            return points
        if which == "named" and not self.named:
            raise ConfigError([f"The tuning set {self.options} has several points: set `named` to the one to run."])
        return [self.named] if which == "named" else points[:1]


class Budget(Part):
    """How much of a grid is run.

    Attributes:
        tuning: which points of the tuning sets: all, the named one, or the first.
        seeds: replaces the grid's seeds.
        axes: replaces the values of these axes of the grid.
        min_clients: the population becomes max(min_clients, number of classes).
        train_examples_per_client: trains on a stratified subset of this many examples per client.
        first_clients: where the clients are those of the data (partition `natural`), only the first so many, if there are more.
        whole_cycles: rounds, and evaluate_every where it is set, become the next multiple of the number of clients of a round:
            FedCat has a model only then, and all methods of a table train and are evaluated alike.
    """

    tuning: Literal["all", "named", "first"] = "all"
    seeds: list[int] | None = None
    axes: dict[str, Values] = {}
    min_clients: int | None = None
    train_examples_per_client: int | None = None
    first_clients: int | None = None
    whole_cycles: bool = False
    settings: dict[str, Any] = {}
    conditions: list[Condition] = []

    def apply(
        self,
        flat: dict[str, Any],
        fixed: Collection[str],
        axes: Collection[str],
        info: DatasetInfo | None,
        cell: Mapping[str, Any],
    ) -> None:
        """Puts the settings of the budget into those of a cell.

        Args:
            fixed: settings that the budget leaves as they are: those of axes, tuning sets and `--set`.
            axes: those among them that are axes; on an axis over clients, `min_clients` is the least.
            info: what is known about the cell's dataset.
            cell: the settings that the cell would have without a budget: with the conditions of its grid.
        """
        partition = str(cell.get("partition"))
        of_partition, natural = counts_clients(partition), partition == "natural"
        is_fixed = of_partition and not natural  # of fewer images, most clients of a shift would have none
        left = ["clients"] if of_partition else []
        # A validation run reads no test example.
        left += ["test_examples"] if flat.get("split") == "validation" or is_fixed else []
        settings = without(self.settings, left + (["train_examples"] if is_fixed else []))
        flat |= without(settings, fixed)
        changes: dict[str, Any] = {}
        for condition in self.conditions:
            if matches(condition.when, flat):
                changes |= condition.set
                flat |= without(condition.set, fixed)
        of_data = {"clients": None} if of_partition and cell.get("clients") is None else {}
        clients = _clients({**flat, "partition": partition, **of_data}, info)
        if clients is not None and not of_partition and self.min_clients:
            if "clients" in axes or "clients" not in fixed:
                wanted = clients if "clients" in axes else 0
                flat["clients"] = clients = max(self.min_clients, info.num_classes if info else 0, wanted)
        own = dict(settings)
        if clients is not None and self.train_examples_per_client and not is_fixed:
            own["train_examples"] = self.train_examples_per_client * clients
        own |= changes
        for key, size in (("train_examples", "train_size"), ("test_examples", "test_size")):
            if key in own and key not in fixed:
                of = getattr(info, size, None)
                flat[key] = subset(own[key], of, info.num_classes) if info and of and own[key] is not None else own[key]

    def fit_to_clients(self, flat: dict[str, Any], fixed: Collection[str], info: DatasetInfo | None) -> None:
        """Puts what depends on the number of clients into the settings of a cell, which have all conditions: the first of the
        clients of the data, and whole cycles; arguments as in `apply`."""
        clients, natural = _clients(flat, info), flat.get("partition") == "natural"
        if clients is None:
            return
        if natural and self.first_clients and self.first_clients < clients and "first_clients" not in fixed:
            flat["first_clients"] = self.first_clients
        population, share = flat.get("first_clients") or clients, _setting(flat, "participation")
        if not (self.whole_cycles and isinstance(population, int) and isinstance(share, int | float)):
            return
        cohort = cohort_size(population, share, to_nearest=natural)
        numbers = {key: _setting(flat, key) for key in ("rounds", "evaluate_every") if key not in fixed}
        flat |= {key: -(-number // cohort) * cohort for key, number in numbers.items() if isinstance(number, int)}


def matches(when: Mapping[str, Any], flat: Mapping[str, Any]) -> bool:
    """Whether settings, or options of the method (its defaults included), are among the values of a condition."""
    algorithm: Any = flat.get("algorithm")
    defaults = defaults_of(algorithm) if is_method(algorithm) and not when.keys() <= flat.keys() else {}
    seen = {**defaults, **flat}
    return all(is_among(key, seen.get(key), value) for key, value in when.items())


def is_among(setting: str, own: Any, values: Any) -> bool:
    """Whether the value of a setting is one of those of a condition. Of a model and a partition any name will do."""
    one_of = as_list(values)
    return own in one_of or canonical_value(setting, own) in [canonical_value(setting, one) for one in one_of]


def canonical_value(setting: str, value: Any) -> Any:
    """A model or a partition under the name that runs have; other values as they are, and names that nobody knows, which are
    refused where the config is checked."""
    if setting == "model" and isinstance(value, str):
        return models.REGISTRY.aliases.get(value, value)
    if setting == "partition" and not references.is_partition(value) and partitions.entry_of(value):
        with suppress(ValueError):
            return partitions.parse(value).name
    return value


def as_list(value: Any) -> list:
    """The values of a condition on one setting: one, or a list of them."""
    return value if isinstance(value, list) else [value]


def without(settings: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Settings but for those of the keys."""
    return {key: value for key, value in settings.items() if key not in keys}


def _setting(flat: Mapping[str, Any], name: str) -> Any:
    """A setting of a cell, or its default."""
    return flat.get(name, RunConfig.model_fields[name].default)


def _clients(flat: Mapping[str, Any], info: DatasetInfo | None) -> int | None:
    """The number of clients of a cell; None where that is known to the data alone, or no number, which `resolve` refuses."""
    clients, partition = _setting(flat, "clients"), flat.get("partition")
    if counts_clients(partition) and flat.get("clients") is None:
        clients = usual_clients(str(partition), info.num_writers if info else None)
    return clients if isinstance(clients, int) else None


def _product(options: Mapping[str, list]) -> list[dict]:
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


def require_few(axes: Mapping[str, Collection[Any]], what: str) -> None:
    """Raises ValueError if values have more combinations than a grid has cells."""
    count = math.prod(map(len, axes.values()))
    if count > MOST_CELLS:
        raise ValueError(f"{what} has {count:,} combinations of {', '.join(axes)}, but there may be {MOST_CELLS:,}.")
