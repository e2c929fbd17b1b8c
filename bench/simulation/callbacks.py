"""Callbacks: what looks at a run after each round, and changes nothing. Those with names lie in `bench.callbacks`."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from bench.errors import HookError
from bench.hooks import Hook, place_of, require_returned
from bench.registry import Registry
from bench.results.ids import is_metric_name
from bench.results.records import MOST_METRICS

if TYPE_CHECKING:  # who lists callbacks does not wait for torch
    from torch import Tensor

    from algorithms.shared.base import Algorithm, Deployed, State
    from bench.simulation.task import Task

REGISTRY = Registry("callback")
"""Name of a callback -> where it is, and the options that the name sets."""

Metrics = Mapping[str, "Tensor | float"]


class RoundOutcome(NamedTuple):
    """What a callback sees of a round.

    Attributes:
        task, algorithm: of the run.
        before, after: the states around the round.
        metrics: accuracies and "loss" if the round is evaluated, then "method/<name>", then those of the callbacks that
            were named before this one; a number each, None for one that is not finite.
        deployed: what clients would use after the round; None unless the round is evaluated and there is a model.
    """

    task: "Task"
    algorithm: "Algorithm"
    before: "State"
    after: "State"
    metrics: dict[str, float | None]
    deployed: "Deployed | None"

    @property
    def round(self) -> int:
        """Number of the round, from 1."""
        return self.after["round"]

    @property
    def is_evaluated(self) -> bool:
        """Whether there are accuracies of this round."""
        return self.deployed is not None


class Noted(NamedTuple):
    """What a callback hands back after a round; a plain tuple (own, metrics) will do.

    Attributes:
        own: its own state, for the next round.
        metrics: name -> scalar tensor or number, stored with the round as "<callback>/<name>".
        stop: why the run is to end with this round; "" if it goes on.
        local_models: how each local model of the cohort got on, for the figure `local-models`; None for nothing.
    """

    own: Any
    metrics: Metrics = {}
    stop: str = ""
    local_models: dict[str, list] | None = None


@dataclass(frozen=True)
class Callback:
    """What looks at a run after each of its rounds; its fields are its options. It changes neither states nor numbers of the
    run, keeps nothing on itself, and draws from `Task.generator_for` if it has to. What it takes is not part of the seconds
    of the run.

    Attributes:
        version: raised whenever its numbers may change; part of the run id.
    """

    version: ClassVar[int] = 1

    def validate(self, config: Any, algorithm: "Algorithm") -> list[str]:
        """Why it cannot look at a run with these settings (a `bench.config.schema.RunConfig`) and method: sentences, or []."""
        return []

    def init(self, task: "Task", state: "State") -> Any:
        """Its own state before the first round: nested dicts of tensors and numbers, a part of the checkpoint."""
        return {}

    def after_round(self, outcome: RoundOutcome, own: Any) -> "Noted | tuple[Any, Metrics]":
        """What it has found after a round, and its own state for the next one. Pure: where a callback ends the run in a round
        that was not to be evaluated, the round is, and all callbacks are called again; what they returned first is dropped."""
        raise NotImplementedError


def build_callbacks(specs: Iterable[Mapping[str, Any]]) -> dict[str, Callback]:
    """The callbacks of a resolved config, by name: {"name": ..., field: value}."""
    found = {}
    for spec in specs:
        options = {key: value for key, value in spec.items() if key != "name"}
        found[spec["name"]] = REGISTRY.find(spec["name"]).load()(**options)
    return found


def noted_of(hook: Hook, returned: Any) -> Noted:
    """What the hook `after_round` has returned; raises HookError if that is something else than a pair, or a `Noted`."""
    fits = isinstance(returned, tuple) and 2 <= len(returned) <= len(Noted._fields)
    require_returned(hook, returned, fits, "the pair (own, metrics)", "return own, {}")
    noted = Noted(*returned)
    require_returned(hook, noted.stop, isinstance(noted.stop, str), "a sentence as stop", 'stop="..."')
    return noted


def as_numbers(metrics: Any, source: str, hook: Hook | None = None, beside: int = 0) -> dict[str, float | None]:
    """Metrics as numbers of the host, by "<source>/<name>", all copied at once; None for those that are not finite.

    Args:
        metrics: name -> scalar tensor or number.
        source: METHOD, or the name of a callback.
        hook: of the callback, for messages.
        beside: how many metrics of other sources the round has.

    Raises:
        HookError: if they are something else, or too many.
    """
    where = f"{place_of(hook)}: " if hook else ""
    import torch

    if not isinstance(metrics, Mapping):
        raise HookError(
            f"{where}The metrics of {source} are a dict of names and scalars, but got {type(metrics).__name__}."
        )
    if beside + len(metrics) > MOST_METRICS:
        others = f" beside {beside:,} of others" if beside else ""
        raise HookError(
            f"{where}{source} gives {len(metrics):,} metrics in a round{others}, but at most {MOST_METRICS:,} are stored."
        )
    tensors, found = {}, {}
    for name, value in metrics.items():
        if not (is_metric_name(f"{source}/{name}")):
            raise HookError(
                f"{where}A metric of {source} needs a name of letters, digits, and . _ + -, but got {name!r}."
            )
        if isinstance(value, torch.Tensor) and not value.ndim:
            tensors[name] = value
        elif not isinstance(value, int | float):
            got = repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
            got = f"the shape {[*value.shape]}" if isinstance(value, torch.Tensor) else got
            raise HookError(f"{where}The metric {name} of {source} must be a scalar tensor or a number, but got {got}.")
        found[name] = value
    host = torch.stack([tensor.detach().double() for tensor in tensors.values()]).tolist() if tensors else []
    found |= dict(zip(tensors, host, strict=True))
    return {f"{source}/{name}": float(value) if math.isfinite(value) else None for name, value in found.items()}
