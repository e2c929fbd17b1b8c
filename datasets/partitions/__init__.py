"""Partitions: assignments of training examples to clients, one file per kind; `registered_partition` gives it a name.

The partitions equal those of NIID-Bench and FedConcat index for index, and the shifts those of FedCollab; regions deal groups
of clients as these deal clients; `dirichlet-equal-b` and `shards-s` are readings of papers. All use the global legacy
generators of NumPy and Python. Therefore randomness is sequential here, unlike everywhere else: the order of draws must not
change. Private generator instances produce the same streams without touching the global ones.

Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022.
https://arxiv.org/abs/2102.02079
"""

import difflib
import functools
import importlib
import re
from contextlib import suppress
from dataclasses import MISSING, fields

from bench import references
from bench.errors import ConfigError, unknown
from bench.hooks import require_hooks
from bench.registry import Entry, registered_partition
from datasets.partitions.base import KINDS, Drawn, Partition

__all__ = [
    "KINDS",
    "Drawn",
    "Partition",
    "counts_clients",
    "entry_of",
    "known_kinds",
    "parse",
    "registered_partition",
    "usual_clients",
]

_LARGEST = 2**53  # of a number in a name: floats have all whole numbers up to it

_OF_FILES = "file:PATH"


def known_kinds() -> dict[str, str]:
    """The name of each kind with a letter for each parameter ("dir-b") -> one-line description; imports none of them."""
    described = {pattern: entry.description for pattern, entry in _patterns().items()}
    return described | {_OF_FILES: "Who has which examples, read from a .json or .npz file."}


def _patterns() -> dict[str, Entry]:
    return {"-".join([entry.name, *_parameters(entry).values()]): entry for entry in KINDS.values()}


def _parameters(entry: Entry) -> dict[str, str]:
    """The parameters of a kind in the order of its name, and what stands for each in the list of kinds."""
    symbols = entry.given.get("symbols", {})
    return {key: symbols.get(key, key) for key in (symbols if entry.is_class else entry.options)}


def counts_clients(name: object) -> bool:
    """Whether a partition of that name says how many clients there are if a config does not; budgets leave that to it."""
    if isinstance(name, str) and not references.is_partition(name):
        with suppress(ValueError):  # of a name that is none, which is said elsewhere
            return parse(name).counts_clients
    return references.is_partition(name)


def usual_clients(name: str, num_writers: int | None) -> int | None:
    """The size of the population of a partition that counts its clients; None if it is not known.

    Args:
        num_writers: of the dataset; None if it does not name them.
    """
    with suppress(ValueError):  # of a file that cannot be read, which is said elsewhere
        return parse(name).usual_clients(num_writers)
    return None


def entry_of(text: object) -> Entry | None:
    """The kind of a partition such as "dir-0.1"; None of a file, and where there is no such kind.

    Raises:
        ConfigError: with all that is wrong in how labs register theirs.
    """
    of_labs = [entry for entry in KINDS.values() if entry.lab]
    if mistakes := [f"{entry.place}: {mistake}" for entry in of_labs for mistake in _mistakes(entry)]:
        raise ConfigError(mistakes)
    return KINDS.named_in(text)


def parse(name: str) -> Partition:
    """The partition of a name such as "label-2", "dir-0.1", "iid" or "file:PATH".

    Raises:
        ValueError: no such kind, a parameter out of its range, or a file that cannot be read.
    """
    if references.is_partition(name):
        from datasets.partition_files import parse as parse_file  # extends what is defined here

        return parse_file(name)
    entry = entry_of(name)
    if entry is None:
        raise ValueError(_suggested(name) or unknown("partition", name, [*_patterns(), _OF_FILES]))
    return _of_kind(entry, name)


@functools.lru_cache(1024)  # a grid names each partition in many cells
def _of_kind(entry: Entry, name: str) -> Partition:
    """The partition of a name that begins with that of a kind; errors as in `parse`."""
    behind = name.removeprefix(entry.name).removeprefix("-")
    given = [_number(part) for part in behind.split("-", max(0, len(_parameters(entry)) - 1))] if behind else []
    if not entry.is_class:
        return importlib.import_module("datasets.partitions.of_labs").of_function(entry, given, name)
    kind = _class_of(entry)
    usual = {field.name: field.default for field in fields(kind)} | entry.options
    values = [*given, *[*usual.values()][len(given) :]]
    if len(values) == len(usual) and MISSING not in values and kind.accepts(*values):
        return kind(*values)
    whole = [pattern for pattern, entry in _patterns().items() if pattern == entry.name]
    if not usual or difflib.get_close_matches(name, whole, n=1, cutoff=0.8):
        raise ValueError(unknown("partition", name, [*_patterns(), _OF_FILES]))
    pattern = next(pattern for pattern, other in _patterns().items() if other is entry)
    raise ValueError(f"{pattern} needs {kind.parameter}, but got {name!r}.")


def _class_of(entry: Entry) -> type[Partition]:
    """The class of a kind.

    Raises:
        ValueError: if it is no partition, or has other fields than its decorator says.
    """
    kind = entry.load()
    require_hooks(entry, kind, "Partition", "deal")
    if (found := [field.name for field in fields(kind)]) != [*_parameters(entry)]:
        raise ValueError(
            f"{entry.target} in {entry.place} must be a @dataclass(frozen=True) whose fields are the symbols of its decorator, "
            f"as symbols={{'share': 's'}}, but has the fields {found} and the symbols {[*_parameters(entry)]}."
        )
    return kind


def _mistakes(entry: Entry) -> list[str]:
    """What is wrong in how a lab registers a kind."""
    mistakes = []
    if ":" in entry.name or any(entry.name.startswith(f"{own.name}-") for own in KINDS.values() if not own.lab):
        mistakes.append(f"{entry.name} is read as a partition of the harness; give yours another name.")
    odd = {key: value for key, value in entry.options.items() if type(value) not in (int, float) or value < 0}
    mistakes += [f"{key} must be a number of at least 0, but got {value!r}." for key, value in odd.items()]
    count = len(_parameters(entry))
    try:
        entry.given.get("title", "").format(*range(count))
        _ = entry.given.get("latex", "%s" * count) % (*range(count),)
    except (IndexError, KeyError, ValueError, AttributeError, TypeError):
        texts = " and ".join(f"{key} {entry.given[key]!r}" for key in ("title", "latex") if key in entry.given)
        mistakes.append(
            f"title must have at most one {{}}, and latex one %s, for each of the {count} parameters, but got {texts}."
        )
    return mistakes


_ELSEWHERE = {
    "dir": "dir", "dirichlet": "dir", "lda": "dir", "alpha": "dir", "beta": "dir", "labeldir": "dir", "noniidlabeldir": "dir",
    "label": "label", "labels": "label", "class": "label", "classes": "label", "pathological": "label", "pat": "label",
    "noniidlabel": "label", "shard": "shards", "shards": "shards", "quantity": "quantity", "noise": "noise",
}  # fmt: skip
"""What other frameworks call a kind of partition, letters only -> what it is called here."""


def _suggested(name: str) -> str:
    """The sentence for a misspelt name, or one that other frameworks have for a partition with one parameter; "" for others."""
    number = re.search(r"\d+(\.\d+)?|\.\d+", name)
    kind = _ELSEWHERE.get(re.sub(r"[^a-z]", "", name.lower()))
    if not number:
        return ""
    beginning = name[: number.start()].rstrip("-")
    if kind is None and (near := difflib.get_close_matches(beginning, KINDS, n=1, cutoff=0.75)):
        kind, number = near[0], re.search(r"\S+", name[number.start() :])
    if not (kind and number):
        return ""
    try:
        meant = parse(f"{kind}-{number[0]}").name
    except ValueError:
        return ""
    return f"Unknown partition {name!r}. Did you mean {meant!r}? Known: {', '.join([*_patterns(), _OF_FILES])}."


def _number(text: str) -> float:
    """A number in the name of a partition; NaN for another text, and for a number that is too large for a float."""
    if not re.fullmatch(r"(\d+\.?\d*|\.\d+)(e-?\d+)?", text) or float(text) > _LARGEST:
        return float("nan")
    return int(text) if text.isdigit() else float(text)
