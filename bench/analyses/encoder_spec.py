"""What the analysis of encoders trains: its file, checked, and resolved at a budget."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import datasets
from bench import yaml_text
from bench.config.compatibility import subset
from bench.config.resolve import resolve
from bench.config.schema import SETTINGS, RunConfig
from bench.errors import ConfigError, sentences, unknown
from bench.experiments.cells import budget_label

FILE = Path(__file__).parent / "encoders.yaml"
_FIXED = {"algorithm", "rounds", "local_steps", "participation", "evaluate_every", "split", "test_examples"}
TRAINING = tuple(key for key in SETTINGS if key not in _FIXED)


class Options(BaseModel):
    """What the analysis adds to the training of the encoders.

    Attributes:
        head_epochs: passes of a classifier or decoder over its data.
        head_lr: their learning rate.
        decoder_width: hidden units of the decoder; 0 is a linear one.
        fedavg_rounds, fedavg_local_epochs: of the averaged encoders of Figure 6.
        points: examples of each client in a figure, at most.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    head_epochs: int = Field(gt=0)
    head_lr: float = Field(gt=0, allow_inf_nan=False)
    decoder_width: int = Field(ge=0)
    fedavg_rounds: int = Field(gt=0)
    fedavg_local_epochs: int = Field(gt=0)
    points: int = Field(gt=1)


class File(BaseModel):
    """The file of the analysis; a budget is a set of settings that win over the others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: dict[str, Any]
    budgets: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class EncoderSpec:
    """The analysis at one budget.

    Attributes:
        label: "smoke", or "smoke+seed=2" with what was overridden.
        local: training of the two local models.
        fedavg: training of their average, round by round.
        options: of the heads and the figures.
        given: the settings that `local` was made of, and those that came from `--set`.
        overridden: names of the latter.
    """

    label: str
    local: RunConfig
    fedavg: RunConfig
    options: Options
    given: Mapping[str, Any]
    overridden: frozenset[str]

    def on(self, dataset: str) -> "EncoderSpec":
        """The same analysis on another dataset, which stands in for its own."""
        return _resolve(self.label, {**self.given, "dataset": dataset}, self.overridden)


def load(budget: str = "paper", overrides: Mapping[str, Any] | None = None, file: Path = FILE) -> EncoderSpec:
    """The analysis at a budget.

    Args:
        overrides: settings that win over file and budget.

    Raises:
        ConfigError: with everything that is wrong with the file or the overrides.
    """
    content = _read(file)
    if budget not in content.budgets:
        raise ConfigError([unknown("budget", budget, content.budgets)])
    settings = content.settings | content.budgets[budget]
    changed = {key: value for key, value in (overrides or {}).items() if (key, value) not in settings.items()}
    return _resolve(budget_label(budget, changed), settings | changed, frozenset(changed))


def _read(file: Path) -> File:
    try:
        return File.model_validate(yaml_text.parse(file.read_text()))
    except yaml.YAMLError as error:
        raise ConfigError([f"{file} is not valid YAML: {' '.join(str(error).split())}."]) from error
    except ValidationError as error:
        raise ConfigError([f"{file.name}: {line}" for line in sentences(error, lambda _: File.model_fields)]) from error


def _resolve(label: str, settings: Mapping[str, Any], overridden: frozenset[str]) -> EncoderSpec:
    known = (*TRAINING, *Options.model_fields)
    mistakes = [unknown("setting", key, known) for key in settings if key not in known]
    training = {key: value for key, value in settings.items() if key in TRAINING}
    info = datasets.INFO.get(str(training.get("dataset")))
    if info and "train_examples" in training and "train_examples" not in overridden:
        training["train_examples"] = subset(training["train_examples"], info.train_size, info.num_classes)
    own = {key: value for key, value in settings.items() if key in Options.model_fields}
    options = local = fedavg = None
    try:
        options = Options(**own)
    except ValidationError as error:
        mistakes += sentences(error)
    try:
        local = resolve({**training, "algorithm": "local", "rounds": 1})
        if options:
            averaged = {"local_epochs": options.fedavg_local_epochs, "rounds": options.fedavg_rounds}
            fedavg = resolve({**training, **averaged, "algorithm": "fedavg"})
    except ConfigError as error:
        mistakes += error.mistakes
    if local and local.clients < 2:
        mistakes.append(f"clients must be at least 2, the first two are compared, but got {local.clients}.")
    if mistakes:
        raise ConfigError(mistakes)
    return EncoderSpec(label, local, fedavg, options, settings, overridden)
