"""What hooks return that goes into files: what a file cannot hold is told with the hook, and with what to write instead."""

import io
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from algorithms.shared.client_states import are_client_rows
from bench.errors import HookError
from bench.hooks import Hook, place_of, require_returned
from bench.results.records import are_texts, fault_of_diagnostics, is_plain_mapping

_PLAIN = (bool, int, float, str, type(None))


def diagnostics_of(hook: Hook, returned: Any) -> dict[str, Any]:
    """The diagnostics that a hook has returned; raises HookError if no record can hold them."""
    require_returned(hook, returned, isinstance(returned, dict), "a dict", 'return {"name": number}')
    found: dict[str, Any] = json_of(hook, returned, "diagnostics")
    if fault := fault_of_diagnostics(found):
        raise HookError(
            f"{place_of(hook)}, returned what a report cannot read ({fault}); choose another name than those that reports "
            "know, and printable values."
        )
    return found


def caveats_of(hook: Hook, returned: Any) -> list[str]:
    """The caveats that a hook has returned; raises HookError unless they are texts that a report can print."""
    require_returned(hook, returned, isinstance(returned, list | tuple), "a list of sentences", 'return ["..."]')
    if odd := [text for text in returned if not are_texts([text])]:
        raise HookError(
            f"{place_of(hook)}, returned {odd[0]!r} as a caveat, but a text that a terminal can print is expected."
        )
    return [*returned]


def local_models_of(hook: Hook, returned: Any) -> dict[str, list[Any]]:
    """What a callback has returned as `local_models`; raises HookError if no row of a round can hold it."""
    found: dict[str, list[Any]] = json_of(hook, returned, "local_models")
    if not is_plain_mapping(found):
        raise HookError(
            f"{place_of(hook)}, returned what a row cannot hold as local_models; return a dict of lists of numbers."
        )
    return found


def require_counts(whose: str, counts: Mapping[str, Any]) -> None:
    """Raises HookError unless what hooks have counted of a round are numbers of Python.

    Args:
        whose: begins the message: "A hook of fedmine".
        counts: name in the row of the round -> count.
    """
    for name, count in counts.items():
        if not isinstance(count, int | float) or isinstance(count, bool):
            raise HookError(
                f"{whose} has given a {type(count).__name__} as {name} of a round, but a number of Python is expected; write "
                "int(...) or float(...)."
            )


def json_of(hook: Hook, returned: Any, name: str) -> Any:
    """What a hook has returned under a name, as a file gives it back; raises HookError unless it consists of JSON values."""
    if not _is_json(returned):
        odd = ((what, part) for what, part in _parts(returned, name) if not _is_json(part))
        what, part = next(odd, (name, returned))
        raise HookError(
            f"{place_of(hook)}, returned a {type(part).__name__} as {what}, but JSON values are expected; write float(...) or "
            "int(...) of a number, and .tolist() of an array or a tensor."
        )
    return json.loads(json.dumps(returned))


def require_state(hook: Hook, returned: Any, name: str) -> None:
    """Raises HookError unless a checkpoint can hold a state that a hook has returned under a name."""
    for what, part in _parts(returned, name):
        if not _is_read_again(part):
            raise HookError(
                f"{place_of(hook)}, returned a {type(part).__name__} as {what}, but a checkpoint holds tensors, numbers of "
                "Python, texts, and dicts and lists of these; write float(...) or int(...) of a number, torch.from_numpy(...) "
                "of an array, and a dict in place of a NamedTuple."
            )


def _parts(whole: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The parts of nested dicts, lists and tuples, and the keys, each with its name ("own.best")."""
    if type(whole) in (dict, OrderedDict):  # a state_dict() is one
        # The rows of clients are as the fresh one is, and there may be many.
        entries = {"fresh": whole["fresh"]} if are_client_rows(whole) else whole
        for key, part in entries.items():
            yield f"{name}.{key}", key
            yield from _parts(part, f"{name}.{key}")
    elif type(whole) in (list, tuple):
        for index, part in enumerate(whole):
            yield from _parts(part, f"{name}[{index}]")
    else:
        yield name, whole


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_read_again(part: Any) -> bool:
    if type(part) in _PLAIN or isinstance(part, torch.Tensor):
        return True
    file = io.BytesIO()
    try:
        torch.save(part, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # the types that torch reads are its own affair
        return False
    return True
