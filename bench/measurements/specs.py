"""What tables and figures show beside the metrics of runs: measured on states that finished runs have kept, and stored.

A figure, or a measured table, says which probes it needs of a run; a probe says which states it needs. `run` measures what
is not there yet once the runs are done, without training anything; a report reads the numbers and needs neither images nor
torch.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from pydantic import ValidationError

from bench.config.parts import Part, require_defaults
from bench.errors import ConfigError, sentences, unknown
from bench.hooks import require_hooks, require_returned
from bench.registry import Registry, hint
from bench.results.json_schema import Shape, mismatch
from bench.results.records import RunRecord
from bench.results.store import Store

if TYPE_CHECKING:
    from bench.config.schema import RunConfig
    from bench.measurements.run import FinishedRun

REGISTRY = Registry("figure")


class Probe(NamedTuple):
    """One measurement of one run.

    Attributes:
        kind: of the figure or table that needs it, such as "cka".
        round: after whose local training; None for the end of the run.
        option: what else tells it from others of its kind, such as the estimator of "cka"; None for nothing.
    """

    kind: str
    round: int | None = None
    option: str | int | tuple | None = None

    @property
    def name(self) -> str:
        """Under which it is stored: "cka-linear-0100"."""
        number = None if self.round is None else f"{self.round:04d}"
        options = self.option if isinstance(self.option, tuple) else (self.option,)
        return "-".join(str(part) for part in (self.kind, *options, number) if part is not None)


class Shown(Part):
    """A figure or a measured table as a grid lists it: its keys, and what it measures on runs that are done.

    Attributes:
        kind: its name in grids.
        version: raised whenever the numbers of its probes may change.
        shape: of what it measures; what is stored in another one is taken for damaged.
        needed: hooks that every kind has that extends this class.
    """

    kind: str
    version: ClassVar[int] = 1
    shape: ClassVar[Shape] = dict
    needed: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """What it is called in the names of its files; two of one grid must differ."""
        return self.kind

    def check(self, grid: Any) -> None:
        """Raises ValueError if a grid (`bench.experiments.grid_schema.GridSpec`) lacks what this needs."""

    def probes(self, rounds: int) -> Iterable[Probe]:
        """What it needs of a run of so many rounds; nothing for most kinds."""
        return []

    def state_of(self, probe: Probe, config: "RunConfig") -> str | None:
        """The file with the state on which a probe is measured, which a run keeps for it: `local_models(round)`, or
        `bench.simulation.retention.FINAL`. None where there is none to measure.

        Only a method that trains one whole model in rounds has local models.
        """
        import algorithms

        has_models = algorithms.load(config.algorithm["name"]).trains_whole_models
        return local_models(probe.round) if probe.round is not None and has_models else None

    def is_measurable(self, probe: Probe, config: "RunConfig") -> bool:
        """Whether a run of this config has what a probe is measured on."""
        return self.state_of(probe, config) is not None

    def measure(self, run: "FinishedRun", probe: Probe) -> dict[str, Any]:
        """Measures a probe: JSON values, of this `shape`. Whoever needs torch imports it here: reports do without.

        Raises:
            ValueError: with a sentence, if this cannot be measured on the run.
        """
        raise NotImplementedError

    def fault_of(self, result: dict[str, Any]) -> str:
        """In what the parts of a result of this `shape` do not agree, such as "it has 3 points and 2 labels"; "" for nothing. A
        result with a fault is taken for damaged."""
        return ""

    def results(
        self, store: Store, run_id: str, rounds: int, record: RunRecord | None = None
    ) -> dict[Probe, dict[str, Any]]:
        """What was measured of a run of so many rounds, or fewer if a callback has ended it, with the names of the classes;
        without what was not.

        Args:
            record: of the run; None to read it.
        """
        trained = trained_rounds(store, run_id, rounds, record)
        found = {probe: self.result_of(store, run_id, probe) for probe in self.probes(trained)}
        return {probe: result for probe, result in found.items() if result}

    def result_of(self, store: Store, run_id: str, probe: Probe) -> dict[str, Any] | None:
        """What was measured; None if that was not done, or by other code, or is damaged."""
        stored = store.probe(run_id, probe.name)
        if not stored or stored["version"] != self.version:
            return None
        if wrong := mismatch(stored["result"], self.shape, "result") or self.fault_of(stored["result"]):
            path = store.run_folder(run_id) / f"probe-{probe.name}.json"
            store.damaged[path] = f"does not hold what it should: {wrong}"
            return None
        return stored["result"]


def figure_of(described: Any) -> Shown:
    """A figure as a grid lists it, checked by the class of its kind.

    Raises:
        ConfigError: with all that is wrong.
    """
    if not isinstance(described, dict):
        raise ConfigError(
            [f"A figure must be a mapping with its kind, as {{kind: divergences}}, but got {described!r}."]
        )
    if "kind" not in described:
        raise ConfigError([f"The kind of a figure is missing. Known: {', '.join(REGISTRY)}."])
    if described["kind"] not in [*REGISTRY]:
        raise ConfigError([unknown("kind of figure", described["kind"], REGISTRY) + hint("figure")])
    entry = REGISTRY[described["kind"]]
    try:
        kind = entry.load()
        require_hooks(entry, kind, "Figure", *getattr(kind, "needed", ()))
        if getattr(kind, "probes", Shown.probes) is not Shown.probes:
            require_hooks(entry, kind, "Figure", "measure")
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    fields = {key: (field.rebuild_annotation(), field) for key, field in kind.model_fields.items()}
    defaults = {key: field for key, field in fields.items() if not kind.model_fields[key].is_required()}
    require_defaults(f"{entry.target} in {entry.place}", defaults, kind.model_config)
    return checked(kind, entry.options | described)


def probes_of(figure: Shown, rounds: int) -> list[Probe]:
    """What a figure needs of a run of so many rounds.

    Raises:
        ConfigError: if it cannot say so.
    """
    try:
        probes = figure.probes(rounds)
        found = [*probes] if isinstance(probes, Iterable) else [probes]
        fits = all(isinstance(probe, Probe) for probe in found) and not isinstance(probes, Probe)
        require_returned(figure.probes, probes, fits, "a list of Probe", "return [Probe(self.kind, 1)]")
    except Exception as error:  # whatever the code of a lab raises
        raise ConfigError([REGISTRY[figure.kind].failure(error)]) from error
    return found


def checked(kind: type[Shown], described: dict[str, Any]) -> Shown:
    """A figure or a measured table of a kind, from its keys.

    Raises:
        ConfigError: with all that is wrong.
    """
    try:
        return kind.model_validate(described)
    except ValidationError as error:
        lines = sentences(error, lambda _: kind.model_fields)
        raise ConfigError([f"{described['kind']}: {line}" for line in lines]) from error


def rounds_of(wanted: Iterable[int | str], rounds: int) -> list[int]:
    """Numbers of rounds, of which one may be "last", as far as a run has so many; ascending."""
    numbers = {cast(int, rounds if number == "last" else number) for number in wanted}
    return sorted(number for number in numbers if number <= rounds)


def trained_rounds(store: Store, run_id: str, rounds: int, record: RunRecord | None = None) -> int:
    """Of so many rounds, those that a run has trained: a callback may have ended it early. A record that is None is read."""
    record = record or store.record(run_id)
    rows = store.rows(run_id) if record and record["reason"] else []  # why it has ended early, of a run that is done
    return min(rounds, rows[-1]["round"]) if rows else rounds


def local_models(round: int) -> str:
    """The file with the models of a cohort after the local training of a round."""
    return f"local-models-{round:04d}.pt"
