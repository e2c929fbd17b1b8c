"""`python -m tests.support.known_code`: after a change of the code that moves no number, finished runs stay current.

It checks that short runs of everything give the stored numbers (see `tests.support.fingerprints`), and then adds the hashes of
today's code to `bench/known_code.txt`. Without that, runs of the code before count as stale and are repeated.

A change can move numbers of labs alone: of a default, say, where every caller that comes with the harness names the value.
`--moved FILE` says so, and runs of labs that use this file are repeated.
"""

import argparse
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

import algorithms
from bench import callbacks, imports, models
from bench.config.code_version import ENGINE, ENGINE_VERSION, definitions_of, hash_now
from bench.config.stale import KNOWN, Known, lines_of, read_known
from bench.results.ids import hash_of
from datasets import partitions
from tests.support import fingerprints
from tests.support.manual import ROOT
from tests.support.toy import toy_method

COMMAND = "python -m tests.support.known_code"
_HEAD = """\
# Hashes of the code of each part that are known to give the numbers of its version: "PART VERSION: HASH HASH". A finished run
# of one of them is not repeated when the code has become another one of the same line. The lines of files say the same of what
# methods, models and others of labs use: a number counts how often the numbers of a file moved. This file is written by
# `python -m tests.support.known_code`, which checks the numbers first.
"""
_FOR_LABS = ("algorithms", "bench/callbacks", "bench/models", "datasets/partitions", "datasets/transforms")


def today() -> dict[tuple[str, int], str]:
    """Part and version -> the hash of today's code, of everything that comes with the harness."""
    keys = {(ENGINE, ENGINE_VERSION)}
    for name, entry in algorithms.REGISTRY.items():
        if entry.lab:
            continue
        method = toy_method(name)
        keys |= {(f"algorithm {name}", method.version_with(buffers)) for buffers in (False, True)}
    keys |= {(f"model {name}", models.load(name).version) for name, entry in models.REGISTRY.items() if not entry.lab}
    keys |= {(f"callback {name}", entry.load().version) for name, entry in callbacks.REGISTRY.items() if not entry.lab}
    kinds = {name: entry.load() for name, entry in partitions.KINDS.items() if not entry.lab}
    for name, kind in kinds.items():  # a version depends on no parameter
        keys |= {(f"partition {name}", kind.version_with(kind, first_clients)) for first_clients in (None, 1)}
    found = {key: hash_now(key[0]) for key in sorted(keys)}
    return {key: digest for key, digest in found.items() if digest}  # all code of ResNets is part of the engine


def files_today() -> dict[str, str]:
    """File -> hash of its code of today, of the files outside the engine that the code of a lab can use."""
    paths = (path.relative_to(ROOT) for folder in _FOR_LABS for path in (ROOT / folder).rglob("*.py"))
    modules = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    of_engine = definitions_of(ENGINE)
    found = imports.definitions_of(modules)
    return {file: hash_of(content) for file, content in found.items() if file not in of_engine}


def unlisted(known: Known) -> list[str]:
    """The parts whose hash of today is not listed under their version, and the files whose hash is not in their last line."""
    parts = [key for key, found in today().items() if found not in known.get(key, ())]
    files = []
    for file, found in files_today().items():
        last, hashes = _last_line(file, known)
        if found not in hashes:
            files.append((f"file {file}", last))
    return [f"{part} {version}" for part, version in parts + files]


def added(known: Known, moved: Collection[str] = ()) -> str:
    """The content of the file with the hashes of today.

    A file gets a new line if a part that uses it has got another version: nobody knows whether it has moved the numbers, or
    another one. For the same reason the first line of a new file is then its second.

    Args:
        moved: files that give other numbers to labs alone, such as "algorithms/shared/tree.py".
    """
    hashes = {key: [*found] for key, found in known.items()}
    parts = today()
    others = {*moved, *_files_of_other_versions(parts, known)}
    for key, found in parts.items():
        hashes[key] = [*dict.fromkeys([*hashes.get(key, ()), found])]
    for file, found in files_today().items():
        last, of_line = _last_line(file, known)
        if file in moved and found in of_line[1:]:  # listed before somebody saw it
            hashes[f"file {file}", last].remove(found)
            of_line = of_line[:1]
        if found not in of_line:
            hashes.setdefault((f"file {file}", last + (file in others)), []).append(found)
    return _HEAD + "".join(
        f"{part} {version}: {' '.join(found)}\n" for (part, version), found in sorted(hashes.items())
    )


def _last_line(file: str, known: Known) -> tuple[int, list[str]]:
    """Its number, 1 if there is none, and its hashes."""
    lines = lines_of(file, known)
    last = max(lines, default=1)
    return last, lines.get(last, [])


def _files_of_other_versions(parts: Iterable[tuple[str, int]], known: Known) -> set[str]:
    """The files of parts that have a version that was not listed, or have gone back to an earlier one."""
    highest, before = dict(sorted(parts)), dict(sorted(known))
    other = {part for part, version in parts if part in before and (part, version) not in known}
    other |= {part for part, version in highest.items() if version < before.get(part, version)}
    return {file for part in other for file in definitions_of(part)}


def refusal(computed: Mapping[str, Mapping[str, dict]]) -> str:
    """Why today's code cannot be listed: its numbers are others; "" if it can."""
    complaints = fingerprints.complaints(computed)
    head = ["Nothing was listed: finished runs would pass for those of today's code."]
    return " ".join(head + complaints) if complaints else ""


def main(words: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument(
        "--moved", metavar="FILE", action="append", default=[], help="gives other numbers to labs alone"
    )
    moved = parser.parse_args(words).moved
    if wrong := {*moved} - files_today().keys():
        parser.error(f"labs use no file {', '.join(sorted(wrong))}; name files as bench/known_code.txt does.")
    if reason := refusal(fingerprints.compute()):
        sys.exit(reason)
    known = read_known(KNOWN.read_text(encoding="utf-8")) if KNOWN.exists() else {}
    KNOWN.write_text(added(known, moved), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
