"""The measured tables that a grid may show instead of accuracies."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from bench.errors import ConfigError, unknown
from bench.measurements.specs import Probe, Shown, checked
from bench.results.json_schema import is_integer, is_number, is_text

if TYPE_CHECKING:
    from bench.config.schema import RunConfig
    from bench.measurements.run import FinishedRun

_OF_ENCODERS = {
    "values": {str: {str: (is_number, None)}},
    "clients": [is_integer],
    "label_counts": [[is_integer]],
    "classes": [is_text],
}


class EncoderHeads(Shown):
    """Table of the losses of heads on the frozen encoders of two clients (see `bench.measurements.encoders`).

    Attributes:
        examples: on which heads are trained: "exchange" for those of either client, "pooled" for those of both.
        decoder_width: hidden units of the decoder; 0 is a linear one.
    """

    examples: Literal["exchange", "pooled"]
    decoder_width: int = Field(256, ge=0)

    shape = _OF_ENCODERS

    def probes(self, rounds: int) -> list[Probe]:
        return [Probe(self.kind, rounds, (self.examples, self.decoder_width))]

    def measure(self, run: "FinishedRun", probe: Probe) -> dict[str, Any]:
        from bench.measurements import encoders

        return encoders.head_losses(run.local_task, run.local_models(probe), self.examples, self.decoder_width)


class EncoderInformation(Shown):
    """Table of how much the features of two clients' frozen encoders tell about labels (see `bench.measurements.encoders`).

    Attributes:
        examples: as of `EncoderHeads`.
    """

    examples: Literal["exchange", "pooled"]

    shape = _OF_ENCODERS

    def probes(self, rounds: int) -> list[Probe]:
        return [Probe(self.kind, rounds, self.examples)]

    def measure(self, run: "FinishedRun", probe: Probe) -> dict[str, Any]:
        from bench.measurements import encoders

        return encoders.label_information(run.local_task, run.local_models(probe), self.examples)


class DatasetSizes(Shown):
    """Table of the sizes of datasets, counted in the images that are there, whatever part of them a run uses."""

    shape = {"values": {str: {str: is_integer}}}

    def probes(self, rounds: int) -> list[Probe]:
        return [Probe(self.kind)]

    def is_measurable(self, probe: Probe, config: "RunConfig") -> bool:
        return True

    def measure(self, run: "FinishedRun", probe: Probe) -> dict[str, Any]:
        train, test = (len(split.labels) for split in (run.dataset.train, run.dataset.test))
        return {"values": {"": {"n_train": train, "n_test": test, "n_classes": run.dataset.num_classes}}}


TABLES = {"encoder-heads": EncoderHeads, "encoder-information": EncoderInformation, "dataset-sizes": DatasetSizes}


def table_of(described: Any) -> Shown:
    """A measured table as a grid names it, checked by the class of its kind.

    Raises:
        ConfigError: with all that is wrong.
    """
    if not isinstance(described, dict) or "kind" not in described:
        raise ConfigError([f"The kind of a measured table is missing. Known: {', '.join(TABLES)}."])
    if described["kind"] not in [*TABLES]:
        raise ConfigError([unknown("kind of measured table", described["kind"], TABLES)])
    return checked(TABLES[described["kind"]], described)
