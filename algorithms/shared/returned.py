"""What hooks return: a wrong kind of value is told with the hook, its file and its line."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from algorithms.shared.local_sgd import LocalResult
from algorithms.shared.tree import Tree
from algorithms.shared.types import Cohort
from bench.errors import HookError
from bench.hooks import Hook, place_of


def tensors_of(hook: Hook, returned: Tree, kind: str = "results are trees of tensors") -> Tree:
    """What a hook returned, if all its leaves are tensors.

    Raises:
        HookError: naming the first leaf that is none.
    """
    if not _has_only_tensors(returned):
        entry, leaf = next(_odd_leaves(returned))
        raise HookError(
            f"{place_of(hook)}, returned {_in_words(leaf)} as {entry or 'its result'}, but {kind}; write a tensor on the "
            "device of the others, such as params[name].new_zeros(())."
        )
    return returned


def tensors_from(hook: Hook, *arguments: Any) -> Tree:
    """What a hook returns for these arguments, if all its leaves are tensors; raises HookError as `tensors_of`."""
    return tensors_of(hook, hook(*arguments))


def update_from(hook: Hook, *arguments: Any) -> LocalResult:
    """What `local_update` returns for these arguments.

    Raises:
        HookError: if it is no `LocalResult`, its update is no dict, or a leaf is no tensor.
    """
    returned = hook(*arguments)
    for what, value, kind in (("", returned, LocalResult), (" as the update", getattr(returned, "update", {}), dict)):
        if not isinstance(value, kind):
            raise HookError(
                f"{place_of(hook)}, returned {_in_words(value)}{what}, but a {kind.__name__} is expected; write return "
                'LocalResult(update, client): what it sends, as {"delta": delta}, and its new state, or view.client.'
            )
    return tensors_of(hook, returned)


def delta_of(hook: Hook, update: Tree, params: Tree | None = None) -> Tree:
    """The "delta" of the updates that `local_update` returned, for a hook that reads it.

    Args:
        params: what it is added to; None if it is not.

    Raises:
        HookError: if there is none, or it does not fit the params.
    """
    if "delta" not in update:
        raise HookError(
            f'{place_of(hook)}, returned an update with {_listed(update)}, but "delta" is expected; send trained params - '
            'view.params as "delta", or override weighted_means and server_step, which read it.'
        )
    if params is not None:
        _require_fit(hook, "a delta", update["delta"], params, is_added=True)
    return update["delta"]


def averages_from(hook: Hook, updates: Tree, cohort: Cohort) -> dict[str, tuple[Tree, Tensor]]:
    """What `weighted_means` returns for the updates of a cohort: an `Average` by each name.

    Raises:
        HookError: if it returns something else.
    """
    returned = hook(updates, cohort)
    for name, average in returned.items() if isinstance(returned, dict) else [("its result", returned)]:
        if not (isinstance(average, tuple) and len(average) == 2):
            raise HookError(
                f"{place_of(hook)}, returned {_in_words(average)} as {name}, but an Average is expected for each name; write "
                'return {"delta": Average(updates["delta"], cohort.weights)}.'
            )
    return returned


def server_parts_of(hook: Hook, returned: Any, params: Tree) -> tuple[Tree, Tree]:
    """New params and server state, as a hook returned them.

    Args:
        params: those before, of which the new ones have the names, shapes and types.

    Raises:
        HookError: if they are no pair, have something else than tensors, or are not like the params before.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise HookError(
            f"{place_of(hook)}, returned {_in_words(returned)}, but the pair (params, server) is expected; write return "
            "params, server."
        )
    new, server = returned
    if isinstance(new, dict) and isinstance(server, dict) and new.keys() != params.keys() == server.keys():
        raise HookError(
            f"{place_of(hook)}, returned the pair (server, params), but (params, server) is expected; write return params, "
            "server."
        )
    tensors_of(hook, {"params": new, "server": server}, "states are trees of tensors")
    _require_fit(hook, "params", new, params)
    return new, server


def require_entries(hook: Hook, client: Tree, fresh: Tree) -> None:
    """Raises HookError unless the new states of clients have the entries of that of a client that has not yet taken part, which
    `init_client` has returned: others would be lost, or lacking in the next round."""
    found, wanted = ({*_paths(one)} for one in (client, fresh))
    if found != wanted:
        what = (
            f"without {_listed(sorted(wanted - found))}"
            if wanted - found
            else f"with {_listed(sorted(found - wanted))}"
        )
        raise HookError(
            f"{place_of(hook)}, returned the new state of a client {what}, but init_client returns "
            f"{_listed(sorted(wanted))}; return the same entries from both, such as {{**view.client, ...}}."
        )


def _paths(tree: Tree, path: str = "") -> Iterator[str]:
    """The keys that lead to each tensor of a tree, as "momentum.conv1.weight"."""
    if isinstance(tree, dict):
        for key, part in tree.items():
            yield from _paths(part, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, tuple):
        for position, part in enumerate(tree):
            yield from _paths(part, f"{path}.{position}")
    else:
        yield path


def entries_of(server: Tree, names: Iterable[str], hook: Hook) -> Tree:
    """The entries of the server state that clients get.

    Raises:
        HookError: if `init_server`, the hook, has not returned one of them.
    """
    names = tuple(names)
    if lacking := [name for name in names if name not in server]:
        raise HookError(
            f"{place_of(hook)}, returned {_listed(server) or 'nothing'}, but clients get {_listed(lacking)} of the server "
            "state, as broadcast or seeded says; return it, or correct the name."
        )
    return {name: server[name] for name in names}


def model_of(hook: Hook, returned: Tree) -> Tree:
    """What `personal_model` returned, on one client or on all; raises HookError unless it has "params" and "buffers"."""
    fits = isinstance(returned, dict) and returned.keys() >= {"params", "buffers"}
    if not fits:
        got = _listed(returned) if isinstance(returned, dict) else _in_words(returned)
        raise HookError(
            f'{place_of(hook)}, returned {got}, but "params" and "buffers" are expected; write return '
            '{"params": params, "buffers": view.buffers}.'
        )
    return returned


def scalars_of(hook: Hook, metrics: Any) -> dict[str, Any]:
    """Metrics of a round, as a hook returned them; numbers of NumPy as those of Python, which a checkpoint can hold.

    Raises:
        HookError: unless they are scalar tensors or numbers, by name.
    """
    if not isinstance(metrics, Mapping):
        raise HookError(
            f"{place_of(hook)}, returned {_in_words(metrics)}, but a dict of names and scalars is expected; write "
            '{"drift": tree.norm(...)}.'
        )
    for name, value in metrics.items():
        if not isinstance(value, int | float) and not (isinstance(value, Tensor) and not value.ndim):
            raise HookError(
                f"{place_of(hook)}, returned {_in_words(value)} as the metric {name}, but a metric is a scalar tensor or a "
                "number; reduce it, by .mean() or tree.norm(...)."
            )
    return {name: value if isinstance(value, Tensor) else float(value) for name, value in metrics.items()}


def _require_fit(hook: Hook, what: str, new: Any, params: Tree, is_added: bool = False) -> None:
    """Raises HookError unless a hook returned tensors with the names, shapes and types of the params; of what is added to them,
    in half precision say, with types that leave theirs as they are."""
    if not isinstance(new, dict):
        found, advice = f"{_in_words(new)} as {what}", "return a dict of tensors"
    elif lacking := [name for name in params if name not in new]:
        found, advice = f"{what} without {_listed(lacking)}", "return all of them"
    elif len(new) > len(params):
        found, advice = (
            f"{what} with {_listed(name for name in new if name not in params)} beside them",
            "leave this out",
        )
    else:
        odd = next((name for name, leaf in params.items() if _is_other(new[name], leaf, is_added)), None)
        if odd is None:
            return
        found = f"{what} whose {odd} is {_kind_in_words(new[odd])}"
        advice = f"return it as {_kind_in_words(params[odd])}"
    raise HookError(
        f"{place_of(hook)}, returned {found}, but the names, shapes and types of the round's params are expected; {advice}."
    )


def _is_other(value: Any, leaf: Tensor, is_added: bool) -> bool:
    if not isinstance(value, Tensor) or value.shape != leaf.shape:
        return True
    return (torch.result_type(leaf, value) if is_added else value.dtype) is not leaf.dtype


def _kind_in_words(value: Any) -> str:
    return f"{value.dtype} {[*value.shape]}" if isinstance(value, Tensor) else _in_words(value)


def _listed(names: Iterable[str]) -> str:
    first = [*itertools.islice(names, 4)]
    return ", ".join([*map(str, first[:3]), *["..."] * (len(first) > 3)]) or "nothing"


def _has_only_tensors(tree: Any) -> bool:
    if isinstance(tree, Tensor):
        return True
    if isinstance(tree, dict):
        return all(map(_has_only_tensors, tree.values()))
    return isinstance(tree, tuple) and all(map(_has_only_tensors, tree))


def _odd_leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree that are no tensors, by the keys that lead to them: ("metrics.drift", 0.5)."""
    if isinstance(tree, dict | tuple):
        parts = (
            tree if isinstance(tree, dict) else tree._asdict() if hasattr(tree, "_asdict") else dict(enumerate(tree))
        )
        for key, part in parts.items():
            yield from _odd_leaves(part, f"{path}.{key}" if path else str(key))
    elif not isinstance(tree, Tensor):
        yield path, tree


def _in_words(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {[*value.shape]}"
    if value is None:
        return "None"
    return f"the {type(value).__name__} {value}" if isinstance(value, int | float) else f"a {type(value).__name__}"
