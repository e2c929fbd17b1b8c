"""Search spaces of hyper-parameters: one YAML file per method, and one with common training settings.

A file maps settings or options to their grids and ranges:

    mu:
      grid: [0.001, 0.01, 0.1, 1]     # values for the searcher `grid`
      low: 0.0001                     # range for `random` and `optuna`; integers if both ends are
      high: 10
      log: true
      source: origin of grid or range; optional in your own space

`extends: NAME` inherits the entries of another file. Where several spaces have an entry of one name, that of a method wins over
that of the space `training`, and that of a user's file wins over both.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator

from bench.errors import ConfigError, sentences, unknown
from bench.files import read_yaml
from bench.registry import Registry

REGISTRY = Registry("space")
"""Name of a space -> its file."""
_END = 0.05  # share of a range at each of its ends
TRAINING = "training"  # the settings of training that any method has


class Parameter(BaseModel):
    """Grid and range of one hyper-parameter.

    Attributes:
        grid: values of a grid search, at least one.
        low, high: ends of the range for other searchers; None if these choose among the grid.
        log: whether the range is searched on a logarithmic scale.
        source: origin of grid or range; "" if a user's space does not name it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    grid: list[Any]
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    source: str = ""

    @field_validator("low", "high", mode="plain")
    @classmethod
    def _is_a_number(cls, value: Any, info: ValidationInfo) -> int | float | None:
        if value is None or (type(value) in (int, float) and abs(value) <= sys.float_info.max):
            return value
        raise ValueError(f"{info.field_name} must be a finite number, but got {value!r}.")

    @model_validator(mode="after")
    def _range_is_one(self) -> "Parameter":
        if not self.grid:
            raise ValueError("the grid must have at least one value, but it is empty.")
        if any(value in self.grid[:i] for i, value in enumerate(self.grid)):
            raise ValueError(f"the grid has a value twice: {self.grid}.")
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high belong together: give both, or none for the grid alone.")
        if self.low is not None and not self.low < self.high:
            raise ValueError(f"the range must not be empty, but low is {self.low:g} and high {self.high:g}.")
        if self.log and not (self.low is not None and self.low > 0):
            raise ValueError(f"a logarithmic range needs low above 0, but got {self.low}.")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether the range is one of integers."""
        return isinstance(self.low, int) and isinstance(self.high, int) and all(isinstance(v, int) for v in self.grid)

    def values(self, searcher: str) -> Sequence[Any]:
        """What a searcher can propose; () for a range of real numbers, which cannot be listed."""
        if searcher == "grid" or self.low is None:
            return self.grid
        return range(int(self.low), int(self.high or 0) + 1) if self.is_whole else ()

    def size(self, searcher: str) -> float:
        """Number of values that a searcher can propose, infinite for a range of real numbers."""
        return len(self.values(searcher)) or math.inf

    def origin(self, searcher: str) -> str:
        """Origin of the values: grids come from papers, ranges around them from this project."""
        if not self.source:
            return "of a space that names no source"
        if searcher == "grid" or self.low is None or self.source.startswith(("ours", "measured here")):
            return self.source
        return f"our range, around the grid {self.describe('grid')} ({self.source})"

    def beyond(self, value: Any, searcher: str) -> list[int | float]:
        """Values just beyond the smallest or the largest that a searcher can propose, if a value is that, or within 5 % of the
        range of it: a whole and a real one. [] for other values, for texts, and if there are fewer than three values."""
        if self.size(searcher) < 3:
            return []
        if searcher == "grid" or self.low is None or self.high is None:
            if not all(type(one) in (int, float) for one in self.grid):
                return []
            low, high = min(self.grid), max(self.grid)
            share = {low: 0.0, high: 1.0}.get(value, 0.5)
        else:
            low, high = self.low, self.high
            start, end, place = (math.log(one) if self.log else one for one in (low, high, value))
            share = (place - start) / (end - start)
        if _END < share < 1 - _END:
            return []
        last, away = (low, -1) if share <= _END else (high, 1)
        return [last + away, last + away * (abs(last) or high - low) / 1000]

    def describe(self, searcher: str) -> str:
        """The values of a searcher: "0.001 to 10 (log)" or "0.1, 1, 5"."""
        if searcher == "grid" or self.low is None:
            return ", ".join(map(str, self.grid))
        return f"{self.low:g} to {self.high:g}{' (log)' * self.log}"


Space = dict[str, Parameter]


def names() -> list[str]:
    """Names of the spaces."""
    return sorted(REGISTRY)


def load(name: str) -> Space:
    """The space of a name or YAML file.

    Raises:
        ConfigError: if it does not exist, or with all its mistakes.
    """
    return _load(name, ())


def _load(name: str, extending: tuple[str, ...]) -> Space:
    """A space; `extending` are the spaces that extend it, which it must not extend itself."""
    content = _content(name)
    space, mistakes = {}, []
    if "extends" in content:
        extended = content.pop("extends")
        if not isinstance(extended, str) or extended in (*extending, name):
            raise ConfigError([f"space {name}: extends must name one other space, but got {extended!r}."])
        space = _load(extended, (*extending, name))
    for key, value in content.items():
        if not isinstance(value, dict):
            mistakes.append(f"space {name}: {key} must be a mapping such as {{grid: [0.1, 1]}}, but got {value!r}.")
            continue
        try:
            space[key] = Parameter.model_validate(value)
        except ValidationError as error:
            mistakes += [f"space {name}: {key}: {line}" for line in sentences(error, lambda _: Parameter.model_fields)]
    if mistakes:
        raise ConfigError(mistakes)
    return space


def _content(name: str) -> dict:
    """The mapping in the file of a space."""
    if not _is_file(name) and name not in REGISTRY:
        raise ConfigError([unknown("space", name, ["own", *names(), "FILE.yaml"])])
    path = Path(name) if _is_file(name) else REGISTRY[name].path
    if not path.exists():
        raise ConfigError([f"There is no file {name}."])
    try:
        content = read_yaml(path)
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    if not (isinstance(content, dict) and content):
        raise ConfigError([f"{path} must map hyper-parameters to their grids and ranges."])
    return content


def merged(wanted: Iterable[str]) -> Space:
    """Several spaces as one, see `combined`."""
    return combined((name, load(name)) for name in wanted)


def combined(parts: Iterable[tuple[str, Space]]) -> Space:
    """Several spaces as one.

    Of equal hyper-parameters the one of a user's file counts, then that of a method, then that of TRAINING; among equals the
    last. Hyper-parameters keep the order in which the spaces name them: searchers draw in that order.

    Args:
        parts: name, or file, and content of each space.
    """
    parts = [*parts]
    ranked = sorted(parts, key=lambda part: _rank(part[0]))
    counting = {key: parameter for _, space in ranked for key, parameter in space.items()}
    return {key: counting[key] for _, space in parts for key in space}


def _rank(name: str) -> int:
    """The entries of spaces of a higher rank count."""
    return 2 if _is_file(name) else int(name != TRAINING)


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def describe(name: str) -> str:
    """First line of a space's file if that is a comment, the ranges and grids of its hyper-parameters, and those that the space
    TRAINING adds."""
    own = load(name)
    first = REGISTRY[name].path.read_text(encoding="utf-8").splitlines()[0]
    about = [first.removeprefix("# ")] if first.startswith("#") else []
    added = {key: parameter for key, parameter in load(TRAINING).items() if key not in own}
    with_training = [f"with training: {_range(key, parameter)}" for key, parameter in added.items()]
    return "\n".join([*about, *(_range(key, parameter) for key, parameter in own.items()), *with_training])


def _range(key: str, parameter: Parameter) -> str:
    """ "mu in 0.0001 to 10 (log); grid 0.001, 0.01"."""
    grid = parameter.describe("grid")
    return f"{key} in {grid}" if parameter.low is None else f"{key} in {parameter.describe('')}; grid {grid}"


def check(space: Mapping[str, Parameter], known: Iterable[str], of: str) -> None:
    """Raises ConfigError if a hyper-parameter is neither a setting nor an option of a method.

    Args:
        known: all settings and options.
        of: name of the method.
    """
    wrong = [unknown(f"hyper-parameter of {of}", key, known) for key in space if key not in known]
    if wrong:
        raise ConfigError(wrong)
