"""Results directories with a few runs of a grid that were not really trained."""

import functools
from pathlib import Path

from bench.experiments.cells import Cell, ordered, to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.results.schema import SCHEMA
from bench.results.store import Store

GRID = "quickstart"
LABEL = f"{GRID}@paper"
_MADE = {
    "versions": {"python": "3.12.1", "torch": "2.15.0", "skewbench": "0.1.0"},
    "device": "cpu",
    "data_note": "",
    "data": {"kind": "digits", "digest": "0badcafe"},
    "commit": "a" * 40,
    "started": "2026-01-01T12:00:00+0000",
}


@functools.cache
def cells(partition: str | None = None, algorithm: str | None = None) -> tuple[Cell, ...]:
    """Cells of the grid at the budget paper, three seeds each."""
    found = expand(load_grid(GRID), "paper")
    wanted = {"partition": partition, "algorithm": algorithm}
    return tuple(cell for cell in found if all(cell.setting(key) == value for key, value in wanted.items() if value))


def results(folder: Path, asked: tuple[Cell, ...], scores: dict[str, float | None], **record) -> Store:
    """A results directory in which cells were asked for.

    Args:
        scores: run id -> accuracy of the last of two rounds; None for a run that has not ended, absent runs never started.
        record: what records say besides.
    """
    store = Store(folder)
    with store.locked():
        grid = to_json(load_grid(GRID), "paper", {}, list(asked))
        store.write_grid(LABEL, ordered(grid, grid["cells"]))
        for cell in asked:
            if cell.id in scores:
                finish(store, cell, scores[cell.id], **record)
    return store


def finish(store: Store, cell: Cell, score: float | None, status: str = "done", **record) -> None:
    """Plays a cell; accuracies of two rounds, and a final state."""
    store.start(cell.id, cell.config.canonical())
    rows = [] if score is None else [_row(1, score - 0.1), _row(2, score)]
    store.append(cell.id, rows)
    if score is not None:
        (store.unfinished_folder(cell.id) / "final.pt").write_bytes(cell.id.encode())
        summary = dict.fromkeys(("last", "best", "last10"), {"accuracy": score}) if status == "done" else {}
        content = {
            "id": cell.id,
            "schema": SCHEMA,
            "status": status,
            "reason": "",
            "summary": summary,
            "diagnostics": {},
        }
        store.finish(cell.id, rows, content | _MADE | record)


def _row(number: int, accuracy: float) -> dict:
    spent = {"bytes_down": number * 1e6, "bytes_up": number * 2e6, "examples": number * 100}
    return {"round": number, **spent, "accuracy": accuracy, "loss": 1.0 / number, "seconds": 0.5 * number}
