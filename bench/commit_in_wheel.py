"""A hook of hatchling: what is built in a clone holds its commit, which records of the installed command then name."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitInWheel(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        packages = self.metadata.config["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        commit = commit_of(Path(self.root), packages)
        if commit and version != "editable":
            self._folder = tempfile.TemporaryDirectory()
            file = Path(self._folder.name, "commit.txt")
            file.write_text(f"{commit}\n", encoding="utf-8")
            build_data["force_include"][str(file)] = "bench/commit.txt"


def commit_of(root: Path, packages: Sequence[str]) -> str:
    """The commit of a clone, with "-dirty" where one of the packages is changed or not committed; "" if there is none."""

    def git(*words: str) -> str:
        try:
            return subprocess.run(
                ["git", "-C", root, *words], capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    if Path(git("rev-parse", "--show-toplevel") or "/").resolve() != root.resolve():
        return ""  # a repository that only surrounds it
    commit = git("rev-parse", "--verify", "HEAD")
    return commit and commit + "-dirty" * bool(git("status", "--porcelain", "--", *packages))
