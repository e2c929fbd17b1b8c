"""Methods that lie in a folder of a test, as if their files lay in `algorithms`."""

import sys
from pathlib import Path

import pytest

import algorithms


def register(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Writes files of methods, module -> content, and registers what they hold."""
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(folder)])
    for module, content in files.items():
        (folder / f"{module}.py").write_text(content)
        monkeypatch.delitem(sys.modules, f"algorithms.{module}", raising=False)
    for name, place in algorithms.discover(folder).items():
        monkeypatch.setitem(algorithms.REGISTRY, name, place)
