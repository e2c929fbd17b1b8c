"""Where in a method's file something is: the hooks that it has, and the line that raised an error."""

import dataclasses
import functools
import inspect
import linecache
import re
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import algorithms
import bench
import datasets
from bench.errors import HookError
from bench.registry import Entry

if TYPE_CHECKING:
    from bench.contract.cases import Case

_METHODS, *_OTHERS = (Path(str(package.__file__)).parent for package in (algorithms, bench, datasets))
# What torch says of memory and devices.
_OF_MACHINES = ("allocate memory", "out of memory", "cuda error", "cudnn error", "cublas", "nccl error", "nvml")
_RULE = (
    "numbers of a client are tensors: write formulas, not if, range, int() or .item(), and choose by torch.where, not by "
    "boolean indexing, unique or nonzero"
)

_DRAWS = {
    "algorithm": "what clients draw is a function of a key, so write normal_from_keys(keys_from(key, rows), columns), or "
    "uniform_from_keys, of bench.seeding; the key is batch.key in a loss, and plan[0].key in local_update",
    "model": "a model draws by bound.dropout, and says so by loop_only",
}


def hooks_in_words(case: "Case", *first: str) -> str:
    """The hooks of a method's own class and their file: "local_update and server_step in mylab/algorithms/fedmine.py".

    Args:
        first: hooks that are named alone if the class has any of them; if it has none, all of its own are named.
    """
    return _hooks(algorithms.REGISTRY[case.name], type(case.method), *first)


def error_in_words(case: "Case", error: Exception) -> str:
    """One sentence about an error that a hook raised: where, what, and what to do."""
    entry = algorithms.REGISTRY[case.name]
    if isinstance(error, HookError):
        return str(error)
    last = _last_own([entry], error)
    if not last:
        return _raised_by_results(entry, type(case.method), error)
    if is_refused_by_vmap(error):
        return _refused(entry, last, _shortened(error))
    return f"{_where(entry, last)}: {_shortened(error)}; {_advice([entry], error) or 'correct this line'}."


def failure_in_words(entries: Sequence[Entry], error: Exception) -> str:
    """Why a run has failed, in one sentence; "" for an error that was raised elsewhere than in its method or model, or that is
    a sentence of this project.

    Args:
        entries: the methods of the run, the outermost first, and its model.
    """
    if refused := refusal_in_words(entries, error):
        return refused
    frames, last = traceback.extract_tb(error.__traceback__), _last_own(entries, error)
    methods = [entry for entry in entries if entry.kind == "algorithm"]
    passed = last or any(Path(at.filename).is_relative_to(_METHODS) for at in frames)
    if not methods or not passed or _is_of_machine(error):
        return ""
    if _is_sentence(frames[-1]) and not isinstance(error, HookError):
        return ""
    blamed = next((entry for entry in methods if entry.lab), methods[-1])
    if isinstance(error, HookError):
        said = str(error)
    elif last:
        blamed = next(entry for entry in entries if _is_of(entry, last.filename))
        advice = _advice([blamed], error)
        said = f"{_where(blamed, last)}: {_shortened(error)}{advice and '; '}{advice}."
    else:
        said = _raised_by_results(blamed, blamed.load(), error)
    return f"{said} `python -m bench check {blamed.name}` finds such mistakes." if blamed in methods else said


def refusal_in_words(entries: Sequence[Entry], error: Exception) -> str:
    """One sentence about a line that the vectorised engine cannot run; "" for an error of another kind, or of no such line.

    Args:
        entries: the methods and the model of the run.
    """
    last = _last_own(entries, error) if is_refused_by_vmap(error) else None
    if not last:
        return ""
    entry = next(entry for entry in entries if _is_of(entry, last.filename))
    return _refused(entry, last, _shortened(error))


def is_refused_by_vmap(error: Exception) -> bool:
    """Whether torch says that something cannot be done for many clients at once."""
    return isinstance(error, RuntimeError) and ("vmap" in str(error) or "Batching rule not implemented" in str(error))


def _hooks(entry: Entry, cls: type, *first: str) -> str:
    own = [
        name
        for name, member in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property))
        and any(name in vars(base) for base in cls.__mro__[1:])
    ]
    named = [name for name in first if name in own] or own
    return f"{' and '.join(named)} in {entry.place}" if named else entry.place


def _raised_by_results(entry: Entry, cls: type, error: Exception) -> str:
    """About an error in the code of this project around the hooks of a method."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((at for at in reversed(frames) if _is_of_project(at)), frames[-1])
    return (
        f"{_shortened(error)} ({Path(last.filename).name}, line {last.lineno}), raised by what the method's hooks returned; "
        f"compare {_hooks(entry, cls)} with the tables of hooks in docs/own-method.md and docs/hooks.md."
    )


def _is_sentence(last: traceback.FrameSummary) -> bool:
    """Whether an error was raised on purpose by this project: then its message says all."""
    return _is_of_project(last) and (last.line or "").startswith("raise ")


def _is_of_project(at: traceback.FrameSummary) -> bool:
    return any(Path(at.filename).is_relative_to(folder) for folder in (_METHODS, *_OTHERS))


def _is_of_machine(error: Exception) -> bool:
    """Whether an error says that a machine has failed or lacks something, wherever it was raised."""
    said = str(error).lower()
    return isinstance(error, OSError | MemoryError) or any(part in said for part in _OF_MACHINES)


def _refused(entry: Entry, last: traceback.FrameSummary, said: str) -> str:
    if "random" in said:
        return f"{_where(entry, last)}: the vectorised engine refuses this line ({said}); {_DRAWS[entry.kind]}."
    return (
        f"{_where(entry, last)}: the vectorised engine refuses this line ({said}); {_RULE}. Until then --engine loop trains "
        "the method, one client after another."
    )


def _last_own(entries: Sequence[Entry], error: Exception) -> traceback.FrameSummary | None:
    """The innermost line of the files of these things, or of the labs that bring them, that an error has passed."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((at for at in reversed(frames) if any(_is_of(entry, at.filename) for entry in entries)), None)


def _advice(entries: Sequence[Entry], error: Exception) -> str:
    """What to do about an error that many make; "" if it is another one."""
    if isinstance(error, dataclasses.FrozenInstanceError):
        return "methods keep nothing between rounds: return it as state, from init_server or init_client on"
    said = str(error).lower()
    if isinstance(error, RuntimeError) and ("same dtype" in said or "same device" in said):
        what = "type" if "same dtype" in said else "device"
        return (
            f"make a tensor with the {what} of those that it meets, as leaf.new_zeros(...), mask.to(leaf.dtype) or "
            "torch.arange(count, device=batch.y.device)"
        )
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    frame, line = [at for at in frames if any(_is_of(entry, at[0].f_code.co_filename) for entry in entries)][-1]
    if isinstance(error, TypeError) and "converted to an index" in said:
        return (
            "numbers of a client, such as view.num_steps, are tensors: write for index in plan, a step for each batch"
        )
    if re.search(r"\.backward\(|\.grad\b|requires_grad|autograd", linecache.getline(frame.f_code.co_filename, line)):
        return "take gradients by gradient(loss, params, batch, view), on both engines"
    if not isinstance(error, KeyError) or not error.args:
        return ""
    for read, key in re.findall(
        r"([A-Za-z_][\w.]*)\[(?:[\"']([^\"']*))?", linecache.getline(frame.f_code.co_filename, line)
    ):
        if key and key != error.args[0]:  # another lookup of the line
            continue
        first, *others = read.split(".")
        found = functools.reduce(lambda part, name: getattr(part, name, None), others, frame.f_locals.get(first))
        if isinstance(found, Mapping) and error.args[0] not in found:
            there = f"{read} has {', '.join(map(str, found)) or 'nothing'}"
            if read.endswith(".server"):
                there += f": of the server state, clients get what the class names, as broadcast = ({error.args[0]!r},)"
            return there
    return ""


def _where(entry: Entry, at: traceback.FrameSummary) -> str:
    place = Path(at.filename).relative_to(entry.lab.parent) if entry.lab else entry.place
    code = linecache.getline(at.filename, at.lineno or 0).strip()
    return f"{place}, line {at.lineno}, in {at.name} ({code})"


def _shortened(error: Exception) -> str:
    # torch gives advice of its own
    return textwrap.shorten(f"{type(error).__name__}: {error}", 160, placeholder=" ...")


def _is_of(entry: Entry, filename: str) -> bool:
    return filename == str(entry.path) or _is_within(filename, entry.lab)


def _is_within(filename: str, lab: Path | None) -> bool:
    return lab is not None and Path(filename).is_relative_to(lab)
