"""Programs that some tests need beside Python's packages; `make test-tools` installs them."""

import os
import shutil

import pytest


def path_of(program: str) -> str:
    """Where a program is. Without it the test is skipped; with CI=true it fails."""
    found = shutil.which(program)
    if found is None:
        reason = f"{program} is not installed (make test-tools)"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI needs all programs, but {reason}.")
        pytest.skip(reason)
    return found
