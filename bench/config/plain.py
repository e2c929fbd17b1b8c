"""The config of a run without Pydantic: of what has been checked before, for processes that only train."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bench.participation import cohort_size
from bench.results.omitted_defaults import spell_out

TRACE = "local-models"  # the callback that the setting trace_local_models is


class Sizes:
    """What follows from the settings of a run."""

    if TYPE_CHECKING:  # Pydantic would take them for fields
        clients: int
        first_clients: int | None
        participation: float
        partition: str

    @property
    def population(self) -> int:
        """Clients that there are."""
        return self.first_clients or self.clients

    @property
    def nearest_cohort(self) -> bool:
        """Whether the size of a cohort is rounded to the nearest integer: only for clients of the data, so that 175 to 184
        writers give 18 per round, as FedCat's 180 do."""
        return self.partition == "natural"

    @property
    def cohort_size(self) -> int:
        """Clients of a round."""
        return cohort_size(self.population, self.participation, self.nearest_cohort)


class PlainConfig(Sizes):
    """A stored config as an object with the attributes of a `bench.config.schema.RunConfig`; nothing is checked."""

    # Settings that a stored config leaves out where they do not apply.
    image_size = local_epochs = local_steps = max_gradient_norm = evaluate_every = validation_share = None
    train_examples = test_examples = dirichlet_seed_override = first_clients = trace_local_models = None

    def __init__(self, stored: Mapping[str, Any]):
        """
        Args:
            stored: what `RunConfig.canonical` returns.
        """
        self._stored = dict(stored)
        vars(self).update(spell_out(stored))

    def canonical(self) -> dict[str, Any]:
        """The stored config."""
        return self._stored
