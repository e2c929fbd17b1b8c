"""Things that lie in a lab's folder of a test."""

import sys
from pathlib import Path

import pytest

from bench import imports, plugins, registry

RUNNABLE = '''"""FedMine: clients dig."""

from dataclasses import dataclass

from algorithms import RoundBased, registered


@registered("fedmine")
@dataclass(frozen=True)
class FedMine(RoundBased):
    strength: float = 1.0
'''


def register(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Writes files of methods, module -> content, into a lab's folder, and uses it."""
    use(folder, monkeypatch, {f"algorithms/{module}.py": content for module, content in files.items()})


def use(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Writes files, path -> content, into a lab's folder, and uses it until the end of the test."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    # Python takes what it has compiled for a file that was changed within a second and is as long as before.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv(plugins.VARIABLE, str(folder))
    registry.forget()
    for kept in (imports._read, imports._hash, imports._definitions):
        kept.cache_clear()
    for kind in registry.KINDS.values():
        for path in (folder / kind.folder).glob("*.py"):
            monkeypatch.delitem(sys.modules, f"{kind.package}.{path.stem}", raising=False)
