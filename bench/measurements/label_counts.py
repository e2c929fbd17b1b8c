"""How many examples of each class each client holds: counted once per partition, for the bubble plots of reports.

The counts stand beside a run that trained on the partition, as a probe (see `bench.measurements.specs`), so that a
report needs no images. Seeds draw partitions that are alike; the first that is done stands for all.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.results.records import PARTITION_SETTINGS
from bench.results.store import Store

NAME = "label-counts"
VERSION = 1  # raised whenever the counts of the same config may change


def partition_of(config: Mapping[str, Any]) -> tuple:
    """What tells partitions apart, seeds left out; of a resolved config as it is stored."""
    return tuple(config.get(name) for name in PARTITION_SETTINGS)


def measure(cells: Iterable, store: Store, data_dir: Path | None, on_message: Callable[[str], None]) -> None:
    """Counts what is not counted yet for one finished run of each partition; the store must be locked.

    What cannot be counted costs its plot, and nothing else.

    Args:
        cells: `bench.experiments.cells.Cell`s.
        on_message: is told what could not be counted.
    """
    alike: dict[tuple, list] = {}
    for cell in cells:
        if not cell.missing and cell.config.partition != "none":
            alike.setdefault(partition_of(cell.config.canonical()), []).append(cell)
    for found in alike.values():
        if not any((store.probe(cell.id, NAME) or {}).get("version") == VERSION for cell in found):
            done = (cell for cell in found if store.status(cell.id) == "done")
            if first := next(done, None):
                try:
                    _count(first, store, data_dir)
                except Exception as error:  # of damaged images, or a full disk
                    of = f"{first.config.dataset} {first.config.partition} {first.id}"
                    on_message(f"{NAME} of {of}: not counted: {type(error).__name__}: {error}")


def _count(cell, store: Store, data_dir: Path | None) -> None:
    import numpy as np

    from bench.measurements.run import images_of
    from bench.simulation.data import divide

    dataset = images_of(cell, store, data_dir)
    dealt = divide(cell.config, dataset)
    counts = [np.bincount(dealt.labels[rows], minlength=dataset.num_classes).tolist() for rows in dealt.clients]
    result = {"classes": list(dataset.classes), "label_counts": counts}
    store.write_probe(cell.id, NAME, {"version": VERSION, "images": dataset.digest, "result": result})
