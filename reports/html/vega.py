"""Vega, Vega-Lite and Vega-Embed as one script, bundled by the package vl-convert.

Bundling takes seconds of processor time and is deterministic, so the script is cached beside the decoded images.
"""

import contextlib
import functools
import hashlib
from importlib.metadata import version
from pathlib import Path

from bench.files import write_file
from datasets.cache import default_dir

VEGA_LITE = "6.4"  # version of the specifications in `curves` and `bubbles`
_MARK = "\n// sha256 "


@functools.cache
def script() -> str:
    """The text of the script, from the cache if it is there and intact."""
    path = default_dir() / f"vega-lite-{VEGA_LITE}-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text, _, mark = path.read_text(encoding="utf-8").rpartition(_MARK)
        if mark.strip() == _digest(text):
            return text
    import vl_convert

    text = vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # type: ignore[call-arg]  # its stub demands a snippet
    _keep(f"{text}{_MARK}{_digest(text)}\n", path)
    return text


def _digest(text: str) -> str:
    """Checksum by which a damaged file is detected."""
    return hashlib.sha256(text.encode()).hexdigest()


def _keep(text: str, path: Path) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text)
