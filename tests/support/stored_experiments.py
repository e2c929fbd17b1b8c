"""Stored grids as a driver writes them, without its runs."""

from collections.abc import Mapping
from typing import Any

from bench.experiments.planning import Plan, store_grid
from bench.experiments.selection import select_cells, with_chosen
from bench.experiments.spec import ExperimentSpec
from bench.results.store import Store


def store_cells(store: Store, spec: ExperimentSpec, chosen: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Stores all cells of an experiment with the choices of its searches, and returns the name of the stored grid."""
    found = with_chosen(select_cells(spec), spec, chosen or {})
    with store.locked():
        store_grid(spec, Plan(*found, todo=[], reasons={}, bases={}, retention={}), store)
    return spec.label


def tamper(store: Store, label: str, change) -> None:
    """Changes a stored grid, and seals it as its author could."""
    grid = store.grid(label)
    change(grid)
    with store.locked():
        store.write_grid(label, grid)
