"""What hooks return: a wrong kind of value is told with the hook, its file and its line."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from algorithms.shared.tree import Tree
from bench.errors import HookError
from bench.hooks import Hook, place_of


def tensors_of(hook: Hook, returned: Tree, kind: str = "results are trees of tensors") -> Tree:
    """What a hook returned, if all its leaves are tensors.

    Raises:
        HookError: naming the first leaf that is none.
    """
    for entry, leaf in _odd_leaves(returned):
        raise HookError(
            f"{place_of(hook)}, returned {_in_words(leaf)} as {entry or 'its result'}, but {kind}; write a tensor, such as "
            "torch.zeros(())."
        )
    return returned


def tensors_from(hook: Hook, *arguments: Any) -> Tree:
    """What a hook returns for these arguments, if all its leaves are tensors; raises HookError as `tensors_of`."""
    return tensors_of(hook, hook(*arguments))


def server_parts_of(hook: Hook, returned: Any) -> tuple[Tree, Tree]:
    """New params and server state, as a hook returned them.

    Raises:
        HookError: if they are no pair, or have something else than tensors.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise HookError(
            f"{place_of(hook)}, returned {_in_words(returned)}, but the pair (params, server) is expected; write return "
            "params, server."
        )
    params, server = returned
    tensors_of(hook, {"params": params, "server": server}, "states are trees of tensors")
    return params, server


def scalars_of(hook: Hook, metrics: Any) -> dict[str, Any]:
    """Metrics of a round, as a hook returned them.

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
    return dict(metrics)


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
