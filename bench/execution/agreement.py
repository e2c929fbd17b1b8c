"""What two results of one run have in common, and what a record says that cannot be: comparisons that train nothing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from bench.config.schema import RunConfig
from bench.results.equality import same
from bench.results.metrics import ACCURACIES, summarise
from bench.results.records import Config, RoundRow, RunRecord
from bench.simulation.run import Run
from datasets import Dataset, skew

_COUNTED = ("round", "bytes_down", "bytes_up", "examples", "deploy_examples")  # equal on every processor
_SCORES = (*ACCURACIES, "loss")
_LATER = ("metrics", "deploy_examples", "weighted_accuracy")  # of rows, which the rows of earlier versions lack
# Of a record: a reviewer relies on them, and those of earlier versions lack them.
_SAID = ("code", "data", "partition_digest")
FIRST_ROUND = 0.005  # of an accuracy: 0.2 points were seen after 1,500 steps of training on another kind of processor
_FIRST_LOSS, _LATER_LOSS = 0.02, 0.5  # shares of a loss
_LEAST_LOSS = 0.1  # below which they are shares of this


class Gap(NamedTuple):
    """How far rounds of another kind of machine are from those of here.

    Attributes:
        too_far: the first number that is further than the tolerance; "" if none is.
        largest: difference of an accuracy so far.
        may_be_rounding: whether it is a score of a later round than the first, which rounding moves where it grows.
    """

    too_far: str
    largest: float
    may_be_rounding: bool = False


def contradiction(record: RunRecord, rows: Sequence[RoundRow], config: Config) -> str:
    """What a record says that does not follow from its own rounds; "" if all does."""
    for row in rows:
        for key, value in row.items():
            if key in (*_COUNTED, *_SCORES) and not (isinstance(value, int | float) and math.isfinite(value)):
                return f"its {key} of round {row['round']} is {value}, but must be a number"
    follows, summary = (cast(Mapping[str, Mapping[str, float]], one) for one in (summarise(rows), record["summary"]))
    for key, scores in summary.items():
        for name, value in scores.items():
            if name not in ACCURACIES:  # whether less of a metric of a lab is better, only its folder knows
                continue
            found = follows.get(key, {}).get(name)
            if (key, found, value) == ("last10_std", None, 0.0):  # of a single round: earlier versions have one
                continue
            if not _close(found, value):
                return f"its record has {value} as {key} {name}, but its rounds {found}"
    last = rows[-1]
    exchanged = last.get("bytes_down", 0) + last.get("bytes_up", 0)
    if not _close(record.get("bytes_per_client", exchanged), exchanged):
        return f"its record has {record['bytes_per_client']} as bytes_per_client, but its rounds {exchanged}"
    own = [row["own_accuracy"] for row in rows if "own_accuracy" in row]
    of_clients = record.get("client_accuracies")
    if own and of_clients and not math.isclose(mean := sum(of_clients) / len(of_clients), own[-1], abs_tol=1e-5):
        return f"its record has {mean} as mean of client_accuracies, but its rounds {own[-1]} as last own_accuracy"
    if record["status"] == "stopped" and config["split"] != "validation":
        return "its status is stopped, but only searches on validation data stop runs, and it is on test data"
    return ""


def _close(found: float | None, value: float) -> bool:
    return found is not None and math.isclose(found, value, rel_tol=1e-9, abs_tol=1e-12)


def wrong_end(record: RunRecord, rows: Sequence[RoundRow], config: RunConfig, rounds: int) -> str:
    """Why a record ends earlier than its config, though nothing can have ended it, or not where it says; "" if all can be.

    Args:
        rounds: that a run of the config has.
    """
    if record["status"] == "stopped" and len(rows) >= rounds:
        return f"the end: its status is stopped, but it has all {rounds} rounds"
    if record["status"] != "done" or config.callbacks or len(rows) == rounds:
        return ""
    return f"the last round: it has {len(rows)} rounds, but its config {rounds}"


def other_images(record: RunRecord, images: Dataset) -> str:
    """In what the images of a record are others than those here."""
    there = record.get("data", {}).get("digest")
    if there is None and (found := other_note(record, images)):
        return f"its record does not say the digest of its images, and other things of them: {found}"
    if there in (None, images.digest):
        return ""
    return f"its images of {images.name} have the digest {there}, those here {images.digest}"


def other_note(record: RunRecord, images: Dataset) -> str:
    """What a record says of how its images differ from the complete dataset, where that is not so of those here."""
    there = record.get("data_note", images.note)
    return "" if there == images.note else f"its data_note is {there!r}, that of the images here {images.note!r}"


def other_partition(record: RunRecord, run: Run) -> str:
    """In what the partition of a record is another one than that of the run here."""
    federation = run.task.federation
    there, here = record.get("partition_digest"), federation.digest
    if there not in (None, here):
        return f"the partition: its digest is {there}, that of the one dealt here {here}"
    dealt = skew.measure(federation.label_counts.numpy())._asdict()
    for name, value in record.get("skew", {}).items():
        if name in dealt and not math.isclose(dealt[name], value, rel_tol=1e-6, abs_tol=1e-9):
            return f"the partition: its {name} is {value}, that of the one dealt here {dealt[name]}"
    return ""


def unsaid(record: RunRecord) -> str:
    """ "; its record does not say: ..." of what `verify` would have compared."""
    lacking = [key for key in _SAID if not record.get(key)]
    return f"; its record does not say: {', '.join(lacking)}" if lacking else ""


def comparable(
    here: Sequence[Mapping[str, Any]], there: Sequence[RoundRow], ended: Mapping[str, Any], known: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rounds and end of a run of today without what earlier versions did not know: metrics, if no round there has some, and
    what the record there does not have. All other accuracies are always compared."""
    lacking = {key for key in _LATER if not any(key in row for row in there)}
    rows = [{key: value for key, value in row.items() if key not in lacking} for row in here]
    record = {key: value for key, value in ended.items() if key in known}
    if "diagnostics" in record:
        record["diagnostics"] = {key: one for key, one in record["diagnostics"].items() if key in known["diagnostics"]}
    return rows, record


def gap(
    there: Sequence[Mapping[str, Any]],
    here: Sequence[Mapping[str, Any]],
    clients: tuple[Sequence[float], Sequence[float]],
    tolerance: float,
    one_image: float,
) -> Gap:
    """How far rounds there and here, which are equally many, are from each other.

    Args:
        clients: accuracies of clients there and here; none where they are not compared.
        tolerance: of an accuracy in [0, 1]. In the first round it is `FIRST_ROUND`, or one test image if that is more.
        one_image: how much an accuracy changes by one test image.
    """
    largest, first = 0.0, min(tolerance, max(FIRST_ROUND, one_image))
    for before, now in zip(there, here, strict=True):
        number = before["round"]
        for key in (*_COUNTED, *_SCORES):
            one, other = before.get(key), now.get(key)
            if (one is None) != (other is None) or (key in _COUNTED and not same(one, other)):
                return Gap(f"{key} of round {number}: {one} and {other}", largest)
            if one is None or key in _COUNTED:
                continue
            apart, bound = abs(one - other), first if number == 1 else tolerance
            if key == "loss":
                bound = (_FIRST_LOSS if number == 1 else _LATER_LOSS) * max(one, other, _LEAST_LOSS)
            else:
                largest = max(largest, apart)
            if not apart <= bound + 1e-9:
                return Gap(f"{key} of round {number}: {one} and {other}", largest, number > 1)
    apart = sum(abs(one - other) for one, other in zip(*clients, strict=False)) / max(len(clients[0]), 1)
    if len(clients[0]) != len(clients[1]) or apart > tolerance:
        return Gap(f"client_accuracies, on average by {100 * apart:.2g} points", largest)
    return Gap("", largest)


def furthest(some: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> float:
    """The largest difference of an accuracy, in [0, 1], of the same round."""
    pairs = ((one.get(key), other.get(key)) for one, other in zip(some, others, strict=True) for key in ACCURACIES)
    return max((abs(one - other) for one, other in pairs if one is not None and other is not None), default=0.0)


def one_image(run: Run) -> float:
    """How much the accuracy of a run changes, at most, if one test image is classified otherwise."""
    federation = run.task.federation
    if federation.test_clients is None:
        return 1 / len(federation.test_labels)
    return 1 / (len(federation.test_clients) * min(map(len, federation.test_clients)))
