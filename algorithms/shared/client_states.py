"""Client states: one row for each client that has taken part; all others are as new.

Rows live on the host; those that do not fit into a bounded memory lie in files (see `algorithms.shared.row_files`). So what a
run needs at once is bounded by the cohort: only the cohort's rows are read and written.
"""

import itertools
from typing import Any

import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.row_files import free_pages, take_place
from algorithms.shared.tree import Tree

_ALIGNED = 64  # bytes at whose multiples leaves begin, as those that torch allocates


def no_rows(fresh: Tree) -> dict[str, Any]:
    """Client states before anyone has taken part; fresh is the state of a new client."""
    return {"fresh": fresh, "rows": {}}


def read_rows(clients: dict[str, Any], ids: Tensor) -> Tree:
    """States of some clients, leaves [len(ids), ...], on the device of the fresh state."""
    rows = [clients["rows"].get(client) for client in ids.tolist()]
    if all(row is None for row in rows):
        return tree.map(lambda leaf: leaf.expand(len(rows), *leaf.shape), clients["fresh"])

    def pick(fresh: Tensor, *stored: Tensor | None) -> Tensor:
        new = fresh.cpu() if any(leaf is None for leaf in stored) else fresh
        return torch.stack([new if leaf is None else leaf for leaf in stored]).to(fresh.device)

    nothing = tree.map(lambda leaf: None, clients["fresh"])
    read = tree.map(pick, clients["fresh"], *(nothing if row is None else row for row in rows))
    free_pages(tree.num_bytes(read))
    return read


def read_models(state: dict[str, Any], ids: Tensor) -> Tree:
    """Models that some clients keep as their states: "params" and "buffers", leaves [len(ids), ...]. For a client that has not
    taken part, it is the shared model of the method's state."""
    shared = {"params": state["params"], "buffers": state["buffers"]}
    return read_rows({**state["clients"], "fresh": shared}, ids)


def write_rows(clients: dict[str, Any], ids: Tensor, new: Tree) -> dict[str, Any]:
    """Client states in which those of ids are replaced by new, leaves [len(ids), ...]. Pure: other rows are shared."""
    return replace_rows(clients, rows_of(ids, new))


def rows_of(ids: Tensor, new: Tree) -> dict[int, Tree]:
    """Client id -> its state, a private copy on the host, from leaves [len(ids), ...]."""
    on_host = tree.map(lambda leaf: leaf.cpu(), new)
    return {client: own(tree.row(on_host, position)) for position, client in enumerate(ids.tolist())}


def replace_rows(clients: dict[str, Any], rows: dict[int, Tree]) -> dict[str, Any]:
    """Client states with other rows for some clients. Pure: all other rows are shared."""
    return {**clients, "rows": dict(sorted((clients["rows"] | rows).items()))}


def are_client_rows(content: dict[str, Any]) -> bool:
    """Whether a part of a state is client states."""
    return content.keys() == {"fresh", "rows"}


def without_clients(state: Any) -> Any:
    """A state of which client states are left out; the same object if there are none, or none of a client has a tensor."""
    if not isinstance(state, dict):
        return state
    if are_client_rows(state):
        return no_rows({}) if tree.leaves(state) else state
    parts = {key: without_clients(part) for key, part in state.items()}
    return parts if any(parts[key] is not part for key, part in state.items()) else state


def own(row: Tree) -> Tree:
    """A private copy of a row on the host, in memory or in a file, freed with its last tensor."""
    leaves = tree.leaves(row)
    if not leaves:
        return row
    sizes = [-(-leaf.nbytes // _ALIGNED) * _ALIGNED or _ALIGNED for leaf in leaves]
    place, offsets = take_place(sum(sizes)), itertools.accumulate([0, *sizes])
    copies = iter([_copy_into(place, offset, leaf) for offset, leaf in zip(offsets, leaves, strict=False)])
    return tree.map(lambda leaf: next(copies), row)


def _copy_into(place: memoryview, offset: int, leaf: Tensor) -> Tensor:
    """A copy of a leaf in a part of a place. It has a storage of its own, as long as the leaf, so that `torch.save` writes no
    more than the leaf, and is no view, which would cost more memory than a small leaf itself."""
    if not leaf.numel():
        return leaf.clone()
    there = torch.frombuffer(place, dtype=leaf.dtype, count=leaf.numel(), offset=offset)
    stored: Any = torch.empty(0, dtype=leaf.dtype)  # its type knows only `set_` with a stride
    return stored.set_(there.untyped_storage(), 0, leaf.shape).copy_(leaf)
