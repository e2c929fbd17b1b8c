"""Vega, Vega-Lite and Vega-Embed as one script, from the package vl-convert, which carries them.

Bundling them takes seconds of processor time and always gives the same text, so it is kept beside the decoded images.
"""

import contextlib
import functools
import os
from importlib.metadata import version
from pathlib import Path

from bench.store import write_file
from datasets.cache import default_dir

VEGA_LITE = "6.4"  # for which `curves` and `bubbles` write


@functools.cache
def script() -> str:
    """The text of the script; where it cannot be kept, it is made anew each time."""
    path = default_dir() / f"vega-lite-{VEGA_LITE}-{version('vl-convert-python')}.js"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        import vl_convert

        text = vl_convert.javascript_bundle(vl_version=VEGA_LITE)
        _keep(text, path)
        return text


def _keep(text: str, path: Path) -> None:
    own = path.with_name(f"{path.name}.{os.getpid()}")  # several processes may get here at once
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(own, text)
        os.replace(own, path)
