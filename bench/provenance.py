"""The version of the code that produces a result, as git knows it, or as it was installed."""

import functools
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bench import __version__

_HERE = Path(__file__).resolve()


def commits_of(files: Iterable[Path], folders: Iterable[Path]) -> dict[str, Any]:
    """The commits of the files that a run used.

    git is asked once per repository and process, which reads its code once, too.

    Args:
        files: of the run.
        folders: in which files of any run lie; of these git is asked.

    Returns:
        `commit`: of this code, with "-dirty" if one of the files in its repository is changed or not committed; where it is
        installed, that of the clone in which its wheel was built; "version 0.1.0" where neither is known.
        `commits`: name of the folder of each other repository with files of the run -> its commit, in the same way; missing if
        there is none.
    """
    packages = tuple(sorted({folder.resolve() for folder in (*folders, _HERE.parent)}))
    home = _home(packages)
    by_repository: dict[Path | None, list[Path]] = {home: []}
    for file in sorted({path.resolve() for path in files}):
        is_installed = home is None and file.is_relative_to(_HERE.parents[1])
        by_repository.setdefault(None if is_installed else _repository_of(file.parent), []).append(file)
    own, *others = (_commit(root, used, packages) for root, used in by_repository.items())
    named: dict[str, str] = {}
    for root, found in zip([*by_repository][1:], others, strict=True):
        if root and found:
            name = "".join(letter if letter.isprintable() else "?" for letter in root.name)
            named[f"{name} {len(named) + 1}" if name in named else name or "/"] = found
    return {"commit": own or _of_wheel() or f"version {__version__}"} | ({"commits": named} if named else {})


def _of_wheel() -> str:
    """The commit that `bench.commit_in_wheel` has written; "" if it has not."""
    try:
        return (_HERE.parent / "commit.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _home(packages: tuple[Path, ...]) -> Path | None:
    """The repository of this code; None if there is none, or it only surrounds the environment in which this is installed."""
    root = _repository_of(_HERE.parent)
    found = _status_of(root, packages)
    return root if found and not found.unknown.intersection([_HERE, *_HERE.parents]) else None


def _commit(root: Path | None, files: list[Path], packages: tuple[Path, ...]) -> str | None:
    found = _status_of(root, packages)
    if not found:
        return None
    differing = found.changed | found.unknown
    is_dirty = any(differing.intersection([file, *file.parents]) for file in files)
    return found.commit + "-dirty" * is_dirty


def _status_of(root: Path | None, packages: tuple[Path, ...]) -> "_Status | None":
    return _status(root, tuple(folder for folder in packages if folder.is_relative_to(root))) if root else None


class _Status(NamedTuple):
    """What git says of a repository.

    Attributes:
        commit: that is checked out.
        changed: files that differ from it.
        unknown: files that are not in it; of folders that are not in it as a whole, the folder.
    """

    commit: str
    changed: frozenset[Path]
    unknown: frozenset[Path]


@functools.cache
def _status(root: Path, folders: tuple[Path, ...]) -> _Status | None:
    # Ignored files are named, too: a method that is not committed is not, for whatever reason.
    options = ["--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--ignored=matching", "--no-renames"]
    written = _git(["git", "status", *options, "--", *map(str, folders)], root)
    lines = (written or "").split("\0")
    commits = [line.removeprefix("# branch.oid ") for line in lines if line.startswith("# branch.oid ")]
    if not commits or commits[0].startswith("("):  # "(initial)": nothing is committed
        return None
    # "1 .M N... 100644 100644 100644 <hash> <hash> <path>", "u ..." with two fields more, "? <path>", "! <path>"
    fields = {"1": 8, "u": 10, "?": 1, "!": 1}
    names = [(line[0], line.split(" ", fields[line[0]])[-1]) for line in lines if line[:1] in fields]
    changed, unknown = (
        frozenset(root / name.rstrip("/") for kind, name in names if kind in kinds) for kinds in ("1u", "?!")
    )
    return _Status(commits[0], changed, unknown)


@functools.cache
def _repository_of(folder: Path) -> Path | None:
    """The root of the repository in which a folder lies."""
    return next((root for root in (folder, *folder.parents) if (root / ".git").exists()), None)


def _git(command: list[str], folder: Path) -> str | None:
    """What git prints; None if it fails, or there is none."""
    try:
        told = subprocess.run(
            command, cwd=folder, capture_output=True, encoding="utf-8", errors="surrogateescape", check=True
        )
        return told.stdout
    except (OSError, subprocess.CalledProcessError):
        return None
