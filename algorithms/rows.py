"""Client states: one row for each client that has taken part; all others are as new.

Rows live on the host, and rows of large models in memory-mapped files, so that what a run needs at once is bounded by the
cohort: only the cohort's rows are read and written.
"""

import os
import tempfile
from typing import Any

import torch
from torch import Tensor

from algorithms import tree
from algorithms.tree import Tree
from datasets.cache import default_dir

MAPPED_BYTES = 32 * 2**20  # rows of at least this size live in files


def no_rows(fresh: Tree) -> dict:
    """Client states before anyone has taken part; fresh is the state of a new client."""
    return {"fresh": fresh, "rows": {}}


def read_rows(clients: dict, ids: Tensor) -> Tree:
    """States of some clients, leaves [len(ids), ...], on the device of the fresh state."""
    rows = [clients["rows"].get(client) for client in ids.tolist()]
    if all(row is None for row in rows):
        return tree.map(lambda leaf: leaf.expand(len(rows), *leaf.shape), clients["fresh"])

    def pick(fresh: Tensor, *stored: Tensor | None) -> Tensor:
        new = fresh.cpu() if any(leaf is None for leaf in stored) else fresh
        return torch.stack([new if leaf is None else leaf for leaf in stored]).to(fresh.device)

    nothing = tree.map(lambda leaf: None, clients["fresh"])
    return tree.map(pick, clients["fresh"], *(nothing if row is None else row for row in rows))


def read_models(state: dict, ids: Tensor) -> Tree:
    """Models that some clients keep as their states: "params" and "buffers", leaves [len(ids), ...]. For a client that has not
    taken part, it is the shared model of the method's state."""
    shared = {"params": state["params"], "buffers": state["buffers"]}
    return read_rows({**state["clients"], "fresh": shared}, ids)


def write_rows(clients: dict, ids: Tensor, new: Tree) -> dict:
    """Client states in which those of ids are replaced by new, leaves [len(ids), ...]. Pure: other rows are shared."""
    return replace_rows(clients, rows_of(ids, new))


def rows_of(ids: Tensor, new: Tree) -> dict[int, Tree]:
    """Client id -> its state, a private copy on the host, from leaves [len(ids), ...]."""
    on_host = tree.map(lambda leaf: leaf.cpu(), new)
    return {client: own(tree.row(on_host, position)) for position, client in enumerate(ids.tolist())}


def replace_rows(clients: dict, rows: dict[int, Tree]) -> dict:
    """Client states with other rows for some clients. Pure: all other rows are shared."""
    return {**clients, "rows": dict(sorted((clients["rows"] | rows).items()))}


def are_client_rows(content: dict) -> bool:
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
    """A private copy of a row; of a large one in files that the system frees with their last tensor."""
    if tree.num_bytes(row) < MAPPED_BYTES:
        return tree.map(torch.Tensor.clone, row)
    # One file per type of numbers, not per leaf: the number of mappings of a process is limited.
    leaves = tree.leaves(row)
    parts = {}
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        sizes = [leaf.numel() for leaf in leaves if leaf.dtype == dtype]
        parts[dtype] = iter(_mapped(sum(sizes), dtype).split(sizes))
    return tree.map(lambda leaf: next(parts[leaf.dtype]).view(leaf.shape).copy_(leaf), row)


def _mapped(size: int, dtype: torch.dtype) -> Tensor:
    """Numbers [size] in a file that has no name any more; beside the decoded datasets, which is no memory disk."""
    folder = default_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix=".client-", dir=folder) as file:
        num_bytes = max(1, size * dtype.itemsize)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full disk is an error now, not a crash later
        else:
            file.truncate(num_bytes)
        return torch.from_file(file.name, shared=True, size=size, dtype=dtype)
