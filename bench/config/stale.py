"""Which finished runs are stale: code on which their numbers depend has changed since, so that they may be others now.

A part of the code is as it was if its hash is (see `bench.config.code_version`). It gives the same numbers, too, if
`known_code.txt` lists both hashes under the version that the part had in the run. A part of a lab, such as its method, is not
listed. It gives the same numbers if its own files are as they were, and each file of the harness that it uses is known to.
`python -m tests.support.known_code` adds the hashes of today, after it has seen that short runs of everything still give the
stored numbers.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.config.code_version import definitions_of, hash_now, versions_of
from bench.imports import Definitions
from bench.registry import KINDS, Registry, place_of
from bench.results.ids import hash_of
from bench.results.records import FINISHED, code_of
from bench.results.store import Store

KNOWN = Path(__file__).parents[1] / "known_code.txt"
_MOST_NAMED = 6  # definitions in one sentence

Known = dict[tuple[str, int], list[str]]
Changes = tuple[tuple[str, str], ...]
"""Parts of the code that have changed since a run, and the hashes that they had then."""


@functools.cache
def known() -> Known:
    """Part and version -> the hashes that give the numbers of this version. "file algorithms/fedavg.py" is a file of the
    harness, and counts how often its numbers moved."""
    return read_known(KNOWN.read_text(encoding="utf-8"))


def read_known(text: str) -> Known:
    """The content of `known_code.txt`: lines such as "algorithm fedavg 1: <hash> <hash>"."""
    found: Known = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, hashes = line.partition(":")
            part, _, version = name.rpartition(" ")
            found[part, int(version)] = hashes.split()
    return found


def changes(record: Mapping[str, Any], config: Any, store: Store) -> Changes:
    """What has changed since a run, and since the one from whose end it started; empty if the run is current.

    Args:
        record: of the run; one of an earlier version does not say what code it had, and is current.
        config: of the run, as it is stored or resolved.
        store: knows the code that it had.
    """
    hashes = dict.fromkeys(code_of(record))
    if not hashes:
        return ()
    versions = versions_of(config)
    # Code that was in the engine when it ran, as that of partitions once was, was what the first hash of its part stands for.
    later = versions.keys() - {part for part, _ in hashes}
    hashes |= dict.fromkeys(
        (part, known()[part, versions[part]][0]) for part in later if (part, versions[part]) in known()
    )
    return tuple((part, then) for part, then in hashes if _has_changed(part, then, versions.get(part, 1), store))


def _has_changed(part: str, then: str, version: int, store: Store) -> bool:
    now = hash_now(part)
    if now in (then, None):  # where a method is not there, nothing is known about it
        return False
    if {then, now} <= {*known().get((part, version), ())}:
        return False
    kind, _, name = part.partition(" ")
    current = Registry(kind).version_of(name)[0] if kind in KINDS and name in Registry(kind) else version
    if version < current or (version > current and (part, version) not in known()):
        return False  # as below, also of what a lab has brought
    of_harness = {other: hashes for (name, other), hashes in known().items() if name == part}
    if of_harness:  # files that are known one by one may give other numbers together
        # The code of another version gives other numbers to other runs: that is no change of this one.
        listed = [other for other, hashes in of_harness.items() if now in hashes]
        return version in listed or not listed
    before = store.code(then)
    return before is None or any(_differences(before, definitions_of(part)))


def stale_runs(ended: Mapping[str, tuple[Mapping[str, Any], Any]], store: Store) -> dict[str, list[str]]:
    """What has changed, for people -> the ids of the finished runs since which it has; of stale runs.

    Args:
        ended: run id -> what `changes` takes; runs whose records say that they have not finished do not count.
    """
    found: dict[str, list[str]] = {}
    for run, (record, config) in ended.items():
        if record.get("status", "done") in FINISHED and (changed := changes(record, config, store)):
            found.setdefault(what_changed(changed, store), []).append(run)
    return found


def why_repeated(changed: Changes, store: Store) -> str:
    """Why runs are repeated since which something has changed; a part of a sentence."""
    return (
        f"the code has changed ({what_changed(changed, store)}); the earlier results will be in superseded/, and --keep-stale "
        "uses them as they are"
    )


def what_changed(changed: Changes, store: Store) -> str:
    """The definitions that have changed: "algorithms/fedmine.py: FedMine.aggregate, FedMine.server_step".

    A part is named itself ("algorithm fedmine") where the store does not know what it was.
    """
    parts: list[str] = []
    files: dict[str, list[str]] = {}
    for part, then in changed:
        before = store.code(then)
        if before is None:
            parts.append(part)
            continue
        for file, names in _differences(before, definitions_of(part)):
            files.setdefault(place_of(file), []).extend(names)
    return _listed([*dict.fromkeys(parts)], {file: [*dict.fromkeys(names)] for file, names in files.items()})


def _differences(before: Definitions, now: Definitions) -> Iterator[tuple[str, list[str]]]:
    """The files that differ and may give other numbers, and the definitions; none of a file that is new or gone."""
    for file in sorted(before.keys() | now.keys()):
        one, other = before.get(file), now.get(file)
        if one == other or _gives_the_same(file, one, other):
            continue
        if one is None or other is None:
            yield file, []
        else:
            yield file, sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _gives_the_same(file: str, *contents: Mapping[str, str] | None) -> bool:
    """Whether a file is one of the harness that gives the same numbers with all of these contents.

    One that is new or gone (None) makes no difference of its own, because what imports it has another content, too. But nobody
    knows which of its numbers that content stands for, if they have moved.
    """
    lines = lines_of(file, known())
    there = {hash_of(content) for content in contents if content is not None}
    if len(there) == 1 and lines.keys() != {1}:
        return False
    return any(there <= {*line} for line in lines.values())


def lines_of(file: str, listed: Known) -> dict[int, list[str]]:
    """Number -> hashes of a file of the harness, in the order of the numbers: those of one number give the same numbers, and
    those of the last the numbers of today."""
    return {number: hashes for (part, number), hashes in sorted(listed.items()) if part == f"file {file}"}


def _listed(parts: Iterable[str], files: Mapping[str, list[str]]) -> str:
    """A list that fits into a sentence."""
    words, left = [*parts], _MOST_NAMED
    more = 0
    for file, names in files.items():
        shown = names[:left]
        more += len(names) - len(shown) if left else max(1, len(names))
        if left:
            words.append(file + (f": {', '.join(shown)}" if shown else ""))
            left -= max(1, len(shown))
    return "; ".join(words) + (f" and {more} more" if more else "")
