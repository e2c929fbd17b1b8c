"""Where in a method's file something is: the hooks that it has, and the line that raised an error."""

import inspect
import linecache
import textwrap
import traceback
from pathlib import Path

import algorithms
from bench.contract.cases import Case

_RULE = (
    "numbers of a client are tensors: write formulas, not if, range, int() or .item(), and choose by torch.where, not by "
    "boolean indexing, unique or nonzero"
)


def hooks_in_words(case: Case, *first: str) -> str:
    """The hooks of a method's own class and their file: "local_update and server_step in mylab/algorithms/fedmine.py".

    Args:
        first: hooks that are named alone if the class has any of them; if it has none, all of its own are named.
    """
    cls = type(case.method)
    own = [
        name
        for name, member in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property))
        and any(name in vars(base) for base in cls.__mro__[1:])
    ]
    named = [name for name in first if name in own] or own
    place = algorithms.REGISTRY[case.name].place
    return f"{' and '.join(named)} in {place}" if named else place


def error_in_words(case: Case, error: Exception) -> str:
    """One sentence about an error that a hook raised: where, what, and what to do."""
    said = textwrap.shorten(
        f"{type(error).__name__}: {error}", 160, placeholder=" ..."
    )  # torch gives advice of its own
    frames = traceback.extract_tb(error.__traceback__)
    entry = algorithms.REGISTRY[case.name]
    own = [frame for frame in frames if frame.filename == str(entry.path) or _is_within(frame.filename, entry.lab)]
    if not own:
        last = frames[-1]
        return (
            f"{said} ({Path(last.filename).name}, line {last.lineno}), raised by what the method's hooks returned; compare "
            f"{hooks_in_words(case)} with the tables of hooks in docs/own-method.md and docs/hooks.md."
        )
    last = own[-1]
    place = Path(last.filename).relative_to(entry.lab.parent) if entry.lab else entry.place
    code = linecache.getline(last.filename, last.lineno or 0).strip()
    where = f"{place}, line {last.lineno}, in {last.name} ({code})"
    if "vmap" in str(error):
        return (
            f"{where}: the vectorised engine refuses this line ({said}); {_RULE}. Until then --engine loop trains the method, "
            "one client after another."
        )
    return f"{where}: {said}; correct this line."


def _is_within(filename: str, lab: Path | None) -> bool:
    return lab is not None and Path(filename).is_relative_to(lab)
