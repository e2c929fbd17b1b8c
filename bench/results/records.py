"""What the files of runs in a results directory hold, as types; `bench.results.schema` checks that a file does.

The checks follow from the types (see `bench.results.json_schema.shape_of`). `Annotated` adds what a type cannot say.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

from bench.results.ids import is_metric_name, is_name, is_run_id
from bench.results.json_schema import (
    is_integer,
    is_line,
    is_number,
    is_plain_mapping,
    is_printable_mapping,
    is_text,
    mismatch,
)

CONFIG = {
    "algorithm": {"name": is_text},
    "dataset": is_text,
    "partition": is_text,
    "seed": is_integer,
    "model": is_text,
    "clients": is_integer,
    "rounds": is_integer,
    "participation?": is_number,
    "split": is_text,
    "versions": {str: is_integer},
    "callbacks?": [{"name": is_text}],
}

PARTITION_SETTINGS = (
    *("dataset", "partition", "clients", "first_clients", "split", "validation_share"),
    *("train_examples", "test_examples", "dirichlet_seed_override"),
)
"""Settings of a config: which examples each client trains and tests on, beside the seed."""
DATA_SETTINGS = (*PARTITION_SETTINGS, "transform", "image_size")
"""Settings of a config: what clients see of their data, beside the seed."""


def is_config(value: Any) -> bool:
    """Whether a value is the config of a run, as far as a report reads it."""
    return is_printable_mapping(value) and not mismatch(value, CONFIG)


MOST_METRICS = 10_000  # of a round
_MOST = 50  # parts of the code of a run, and repositories


def is_code(value: Any) -> bool:
    """Whether a value maps parts of the code to their hashes, see `bench.config.code_version`."""
    return (
        isinstance(value, dict)
        and len(value) <= _MOST
        and all(map(is_name, value))
        and all(map(is_run_id, value.values()))
    )


def are_commits(value: Any) -> bool:
    """Whether a value maps folders of repositories to commits."""
    return isinstance(value, dict) and len(value) <= _MOST and all(map(is_line, [*value, *value.values()]))


_DIAGNOSTICS = {
    "clusters?": [is_integer],
    "distributions?": [[is_number]],
    "coalitions?": [is_integer],
    "divergences?": [[is_number]],
    "num_examples?": [is_integer],
    "bound?": {str: [is_number]},
    "models?": [is_text],
}


def fault_of_diagnostics(value: Any) -> str:
    """What is wrong with diagnostics, of which reports read some names ("diagnostics.bound is not a JSON object"); "" if
    nothing is."""
    if not is_plain_mapping(value):
        return "diagnostics is not what it should be"
    if fault := mismatch(value, _DIAGNOSTICS, "diagnostics"):
        return fault
    if "divergences" in value:
        divergences = value["divergences"]
        if {len(divergences), *map(len, divergences)} != {len(value.get("coalitions", divergences))}:
            return "its divergences are not of every two of its clients"
    return ""


def moment(text: str | None) -> float | None:
    """Seconds since the epoch, of a time of any zone as records have it; None of one that is missing or cannot be read."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError, OSError):
        return None


def are_texts(value: Any) -> bool:
    """Whether a value is a list of texts that a terminal can print."""
    return not mismatch(value, [is_text])


def are_distinct_texts(value: Any) -> bool:
    """Whether a value is a list of one text or more, none of them twice."""
    return bool(value) and are_texts(value) and len({*value}) == len(value)


def are_metrics(value: Any) -> bool:
    """Whether a value has metrics of a round: name -> number or None."""
    return (
        isinstance(value, dict)
        and len(value) <= MOST_METRICS
        and all(map(is_metric_name, value))
        and all(one is None or is_number(one) for one in value.values())
    )


Status = Literal["done", "diverged", "failed", "stopped"]
FINISHED: tuple[Status, ...] = ("done", "diverged")
"""Status of runs that have reached their end; others continue from their checkpoint when they are requested again."""
RunId = Annotated[str, is_run_id]
Name = Annotated[str, is_name]  # part of the name of a file
Config = Annotated[dict[str, Any], is_config]  # canonical, see `bench.config.schema.RunConfig.canonical`
Code = Annotated[dict[str, str], is_code]  # part -> hash
Scores = dict[str, float]  # accuracy (`bench.results.metrics.ACCURACIES`), in [0, 1], or metric of a round -> its value


class Summary(TypedDict, total=False):
    """Accuracies of a run, see `bench.results.metrics.summarise`; empty if it failed."""

    last: Scores
    best: Scores
    last10: Scores
    last10_std: Scores


class DataSource(TypedDict):
    """Where a run's images come from, and the digest of all of them."""

    kind: str
    digest: str


class RunRecord(TypedDict):
    """How a run ended: `runs/<id>/record.json`. Keys that are not required are missing from records of earlier versions, or of
    runs that failed.

    Attributes:
        schema: version of the keys; records without one are of the first.
        reason: why the run failed, diverged or was stopped, or why a callback has ended one that is done; else "".
        cpu_seconds: time of processors that its process has taken for training and evaluation, over all cores; what else ran on
            the machine is not in it. Missing from records of earlier versions, and of runs that these have begun.
        bytes_per_client: sent and received, mean over the population.
        data_note: how the images differ from the complete dataset; "" if they do not.
        unused: how many examples a partition file leaves out, as one sentence; missing where it leaves out none, and from
            records of earlier versions.
        skew: of the partition's training examples, see `datasets.skew.Skew`.
        partition_digest: of who has which examples; missing from records of earlier versions.
        weights: name of each file with weights that the run has read -> its sha256; missing where there are none.
        diagnostics: what the method tells of its last state, as JSON values.
        processor: of the machine, see `bench.profiling.processor_name`; missing from records of earlier versions.
        block: the largest number of clients that the engine trained at once; None for no bound.
        tf32: whether the GPU rounded to that type; missing where a CPU trained, and from records of earlier versions.
        kept: how much of the last state is on disk.
        code: part of the code that the run executed -> its hash; the definitions behind it are in `code/<hash>.json`.
        commit: of this code, with "-dirty" if a file that the run used was changed or not committed; "version 0.1.0" where
            it is installed, or git knows no commit; None in records of earlier versions.
        commits: the same of other repositories with files that the run used, by the names of their folders; missing where
            there are none.
        base_summary, base_seconds, base_cpu_seconds, base_code: those of the run from whose end this one started; all are
            missing where there is none, and those but the first from records of earlier versions.
        host: name of the machine on which the run was trained; missing where the user did not want it there.
        client_accuracies: of the model that each client uses on the client's own test data, at the last evaluated round;
            missing where clients have no test data of their own.
    """

    id: RunId
    status: Status
    summary: Summary
    schema: NotRequired[int]
    reason: NotRequired[Annotated[str, str]]  # any characters: it quotes errors
    traceback: NotRequired[Annotated[str, str]]
    rounds: NotRequired[int]
    seconds: NotRequired[float]
    cpu_seconds: NotRequired[float]
    bytes_per_client: NotRequired[float]
    data: NotRequired[DataSource]
    data_note: NotRequired[str]
    unused: NotRequired[str]
    skew: NotRequired[dict[str, float]]
    partition_digest: NotRequired[RunId]
    weights: NotRequired[dict[str, str]]
    host: NotRequired[str]
    caveats: NotRequired[list[str]]
    diagnostics: NotRequired[Annotated[dict[str, Any], is_plain_mapping]]
    engine: NotRequired[str]
    block: NotRequired[int | None]
    threads: NotRequired[int]
    device: NotRequired[str]
    processor: NotRequired[str]
    tf32: NotRequired[bool]
    peak_memory_mb: NotRequired[float]
    unique_memory_mb: NotRequired[float]
    versions: NotRequired[dict[str, str]]
    kept: NotRequired[Literal["deployed", "all", "none"]]
    code: NotRequired[Code]
    commit: NotRequired[str | None]
    commits: NotRequired[Annotated[dict[str, str], are_commits]]
    started: NotRequired[str | None]
    finished: NotRequired[str | None]
    base_summary: NotRequired[Summary | None]
    base_seconds: NotRequired[float]
    base_cpu_seconds: NotRequired[float]
    base_code: NotRequired[Code]
    client_accuracies: NotRequired[list[float]]


class RoundRow(TypedDict, total=False):
    """One round of a run: a line of `runs/<id>/rounds.jsonl`. Scores are there for evaluated rounds only.

    Attributes:
        round: from 1 on.
        bytes_down, bytes_up: received and sent since the first round, mean over the population.
        examples: trained on since the first round, by all clients.
        deploy_examples: trained on besides, in order to deploy the evaluated model; missing if there are none, and in rows of
            earlier versions.
        seconds: since the first round.
        loss: mean cross-entropy.
        metrics: what the method and callbacks have measured, "method/<name>" or "<callback>/<name>"; None where that is not
            finite.
        local_models: how each local model of the cohort got on, epoch by epoch, see `bench.callbacks.local_models`.
    """

    round: Required[int]
    bytes_down: float
    bytes_up: float
    examples: float
    deploy_examples: float
    examples_per_second: float
    seconds: float
    loss: float
    accuracy: float
    global_accuracy: float
    local_accuracy: float
    own_accuracy: float
    weighted_accuracy: float
    metrics: dict[str, float | None]
    local_models: dict[str, list[Any]]


class StoredProbe(TypedDict):
    """A measurement on the states of a run: `runs/<id>/probe-<name>.json`.

    Attributes:
        version: of the code that measured.
        images: digest of the images on which it was measured.
        result: depends on the kind, see `bench.measurements.specs.Shown`.
    """

    version: int
    images: NotRequired[str]
    result: dict[str, Any]


def code_of(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each part of the code of a run, and of the run from whose end it started, with its hash; none where it does not say."""
    return [pair for key in ("code", "base_code") for pair in record.get(key, {}).items()]


def methods_in(algorithm: Any) -> list[str]:
    """Names of a method and of those inside it, from the outermost."""
    names = []
    while isinstance(algorithm, Mapping):
        names.append(algorithm["name"])
        algorithm = algorithm.get("base")
    return names
