"""What tables and figures show beside the metrics of runs: measured on states that finished runs have kept, and stored.

A figure, or a measured table, says which probes it needs of a run; a probe says which states it needs. `run` measures what
is not there yet once the runs are done, without training anything; a report reads the numbers and needs neither images nor
torch.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bench.results.store import Store

VERSION = 1  # raised whenever the numbers of a probe may change


class Probe(NamedTuple):
    """One measurement of one run.

    Attributes:
        kind: of the figure or table that needs it, such as "cka".
        round: after whose local training; None for the end of the run.
        option: estimator of "cka", number of points of "embedding", arguments of the measurements of encoders, ends of
            the range of "coalitions-by-capacity"; None for others.
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


def probes_of(figure: Mapping[str, Any], rounds: int) -> list[Probe]:
    """What a figure or a measured table needs of each run; nothing for most kinds.

    Args:
        figure: as its grid lists it.
        rounds: of the run.
    """
    match figure["kind"]:
        case "cka":
            return [Probe("cka", number, figure["estimator"]) for number in rounds_of([figure["round"]], rounds)]
        case "weight-norms":
            return [Probe("weight-norms", number) for number in rounds_of(figure["rounds"], rounds)]
        case "embedding":
            return [Probe("embedding", option=figure["points"])]
        case "encoder-features":
            option = (figure["view"], *figure["encoders"], figure["points"])
            return [Probe("encoder-features", number, option) for number in rounds_of(figure["rounds"], rounds)]
        case "coalitions-by-capacity":
            return [Probe("coalitions-by-capacity", option=(figure["smallest"], figure["largest"]))]
        case "encoder-heads":
            return [Probe("encoder-heads", rounds, (figure["examples"], figure["decoder_width"]))]
        case "encoder-information":
            return [Probe("encoder-information", rounds, (figure["examples"],))]
        case "dataset-sizes":
            return [Probe("dataset-sizes")]
    return []


def rounds_of(wanted: Iterable[int | str], rounds: int) -> list[int]:
    """Numbers of rounds, of which one may be "last", as far as a run has so many; ascending."""
    numbers = {rounds if number == "last" else number for number in wanted}
    return sorted(number for number in numbers if number <= rounds)


def is_measurable(probe: Probe, config: Any) -> bool:
    """Whether a run of this config has what a probe is measured on: the state that it needs, for sizes its images, for
    coalitions the divergences of its clients."""
    if probe.kind == "coalitions-by-capacity":
        return config.algorithm["name"] == "fedcollab"
    return probe.kind == "dataset-sizes" or needed_state(probe, config) is not None


def needed_state(probe: Probe, config: Any) -> str | None:
    """The file with the state on which a probe is measured; None where there is none to measure.

    Only a method that trains one model in rounds has local models; only one that starts from the end of another run has
    predictions before and after it.

    Args:
        config: a `bench.config.schema.RunConfig`.
    """
    import algorithms
    from algorithms.shared.rounds import RoundBased
    from bench.simulation.retention import FINAL

    method = algorithms.load(config.algorithm["name"])
    if probe.kind == "embedding":
        return FINAL if method.post_hoc and config.evaluate_every is None else None
    of_round = probe.round is not None and issubclass(method, RoundBased)
    return f"local-models-{probe.round:04d}.pt" if of_round else None


def result_of(store: Store, run_id: str, probe: Probe) -> dict | None:
    """What was measured, with the names of the classes; None if that was not done, or by other code."""
    stored = store.probe(run_id, probe.name)
    return stored["result"] if stored and stored["version"] == VERSION else None
