"""Which states of a run are kept."""

from dataclasses import dataclass
from typing import Literal

FINAL = "final.pt"  # the state after the last round
Final = Literal["deployed", "all", "none"]  # how much of it is kept


@dataclass(frozen=True)
class StateRetention:
    """Which states a run leaves in its folder, beside its metrics; it changes neither numbers nor the run id.

    Attributes:
        final: how much of the state after the last round, as `final.pt`: what is "deployed" (all but client states that
            nobody needs in order to deploy it, see `algorithms.shared.base.Algorithm.deploy_reads_clients`), "all" or "none".
        rounds: states after these rounds, as `round-0005.pt`.
        local_models: the cohort's models before they are aggregated in these rounds, as `local-models-0005.pt`.
    """

    final: Final = "deployed"
    rounds: tuple[int, ...] = ()
    local_models: tuple[int, ...] = ()

    def files(self, until: int | None = None) -> list[str]:
        """Names of the files that a finished run has, or that one has after so many rounds."""
        wanted = [("round", number) for number in self.rounds]
        wanted += [("local-models", number) for number in self.local_models]
        found = [f"{kind}-{number:04d}.pt" for kind, number in wanted if until is None or number <= until]
        return [*([FINAL] if self.final != "none" and until is None else []), *found]
