"""The version of the code that produces a result."""

import subprocess
from pathlib import Path


def commit() -> str | None:
    """The git commit of this code, with "-dirty" if it was changed; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    folder = Path(__file__).parent
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
