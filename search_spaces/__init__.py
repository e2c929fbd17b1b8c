"""Search spaces of hyper-parameters: one YAML file per method, and one of common training settings.

A file maps settings or options to where they are searched:

    mu:
      grid: [0.001, 0.01, 0.1, 1]     # what the searcher `grid` tries
      low: 0.0001                     # where `random` and `optuna` look; whole numbers if both ends are
      high: 10
      log: true
      source: whose grid or range it is; in a space of your own it may be left out

and `extends: NAME` takes over what another file has.
"""

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator

from bench import yaml_text
from bench.errors import ConfigError, sentences, unknown

FOLDER = Path(__file__).parent


class Parameter(BaseModel):
    """Where one hyper-parameter is searched.

    Attributes:
        grid: values that a grid search tries, at least one.
        low, high: ends of the range for other searchers; without them these choose among the grid.
        log: whether the range is searched on a logarithmic scale.
        source: whose grid or range it is; "" where somebody has not said it of a space of their own.
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
        if any(value in self.grid[:place] for place, value in enumerate(self.grid)):
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
        """Whether the range is one of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int) and all(isinstance(v, int) for v in self.grid)

    def size(self, searcher: str) -> float:
        """Number of values among which a searcher chooses, infinite for a range of real numbers."""
        if searcher == "grid" or self.low is None:
            return len(self.grid)
        return self.high - self.low + 1 if self.is_whole else math.inf

    def origin(self, searcher: str) -> str:
        """Whose values these are: ranges are this project's, around the grids of papers."""
        if not self.source:
            return "of a space that names no source"
        if searcher == "grid" or self.low is None or self.source.startswith("ours"):
            return self.source
        return f"our range, around the grid {self.describe('grid')} ({self.source})"

    def describe(self, searcher: str) -> str:
        """Where a searcher looks: "0.001 to 10 (log)" or "0.1, 1, 5"."""
        if searcher == "grid" or self.low is None:
            return ", ".join(map(str, self.grid))
        return f"{self.low:g} to {self.high:g}{' (log)' * self.log}"


Space = dict[str, Parameter]


def names() -> list[str]:
    """Names of the spaces."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Space:
    """The space of that name, or of that YAML file.

    Raises:
        ConfigError: if there is none, or with everything that is wrong in it.
    """
    return _load(name, ())


def _load(name: str, inside: tuple[str, ...]) -> Space:
    """`load`, of a space that those inside extend."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.exists():
        raise ConfigError(
            [
                f"There is no file {name}."
                if path.parent != FOLDER
                else unknown("space", name, ["own", *names(), "FILE.yaml"])
            ]
        )
    try:
        content = yaml_text.parse(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path} is not valid YAML: {' '.join(str(error).split())}."]) from error
    if not (isinstance(content, dict) and content):
        raise ConfigError([f"{path} must map hyper-parameters to where they are searched."])
    space, mistakes = {}, []
    if "extends" in content:
        extended = content.pop("extends")
        if not isinstance(extended, str) or extended in (*inside, name):
            raise ConfigError([f"space {name}: extends must name one other space, but got {extended!r}."])
        space = _load(extended, (*inside, name))
    for key, value in content.items():
        if not isinstance(value, dict):
            mistakes.append(
                f"space {name}: {key} must say where it is searched, as {{grid: [0.1, 1]}}, but got {value!r}."
            )
            continue
        try:
            space[key] = Parameter.model_validate(value)
        except ValidationError as error:
            mistakes += [f"space {name}: {key}: {line}" for line in sentences(error, lambda _: Parameter.model_fields)]
    if mistakes:
        raise ConfigError(mistakes)
    return space


def merged(wanted: Iterable[str]) -> Space:
    """Several spaces as one; a later one wins where they name the same hyper-parameter."""
    return {key: parameter for name in wanted for key, parameter in load(name).items()}


def describe(name: str) -> str:
    """First line of a space's file, and where its hyper-parameters are searched."""
    about = (FOLDER / f"{name}.yaml").read_text().splitlines()[0].removeprefix("# ")
    ranges = (
        f"{key} in {parameter.describe('')}; grid {parameter.describe('grid')}"
        if parameter.low is not None
        else f"{key} in {parameter.describe('grid')}"
        for key, parameter in load(name).items()
    )
    return "\n".join([about, *ranges])


def check(space: Mapping[str, Parameter], known: Iterable[str], of: str) -> None:
    """Raises ConfigError if a hyper-parameter is no setting and no option of a method.

    Args:
        known: settings and options that there are.
        of: name of the method.
    """
    wrong = [unknown(f"hyper-parameter of {of}", key, known) for key in space if key not in known]
    if wrong:
        raise ConfigError(wrong)
