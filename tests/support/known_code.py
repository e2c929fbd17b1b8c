"""`python -m tests.support.known_code`: after a change of the code that moves no number, finished runs stay current.

It checks that short runs of everything give the stored numbers (see `tests.support.fingerprints`), and then adds the hashes of
today's code to `bench/known_code.txt`. Without that, runs of the code before count as stale and are repeated.
"""

import sys
from collections.abc import Mapping

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
    files = [
        (f"file {file}", max(1, len(lines)))
        for file, found in files_today().items()
        if not (lines := lines_of(file, known)) or found not in lines[-1]
    ]
    return [f"{part} {version}" for part, version in parts + files]


def added(known: Known) -> str:
    """The content of the file with the hashes of today.

    A file gets a new line if a part that uses it got a new version since it was listed: nobody knows whether it has moved the
    numbers, or another one.
    """
    hashes = {key: [*found] for key, found in known.items()}
    parts = today()
    earlier = {part for part, _ in known}
    moved = {
        file
        for part, version in parts
        if part in earlier and (part, version) not in known
        for file in definitions_of(part)
    }
    for key, found in parts.items():
        hashes[key] = [*dict.fromkeys([*hashes.get(key, ()), found])]
    for file, found in files_today().items():
        lines = lines_of(file, known)
        if not lines or found not in lines[-1]:
            line = len(lines) + (not lines or file in moved)
            hashes.setdefault((f"file {file}", line), []).append(found)
    return _HEAD + "".join(
        f"{part} {version}: {' '.join(found)}\n" for (part, version), found in sorted(hashes.items())
    )


def refusal(computed: Mapping[str, Mapping[str, dict]]) -> str:
    """Why today's code cannot be listed: its numbers are others; "" if it can."""
    complaints = fingerprints.complaints(computed)
    head = ["Nothing was listed: finished runs would pass for those of today's code."]
    return " ".join(head + complaints) if complaints else ""


def main() -> None:
    if reason := refusal(fingerprints.compute()):
        sys.exit(reason)
    known = read_known(KNOWN.read_text(encoding="utf-8")) if KNOWN.exists() else {}
    KNOWN.write_text(added(known), encoding="utf-8")


if __name__ == "__main__":
    main()
