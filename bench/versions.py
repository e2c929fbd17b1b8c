"""The versions that classes say in their files, which are read without importing them."""

import ast
import functools
from collections.abc import Mapping
from pathlib import Path

Version = tuple[int, str]
"""A version, and the comment beside it on what the one before did, "" without one."""


def version_of(name: str, modules: Mapping[str, Path]) -> Version:
    """The version that a class says, or that one which it extends; 1 if none does.

    Args:
        name: of the class, as "algorithms.fedprox.FedProx".
        modules: those in which classes are looked for -> their files.
    """
    wanted, seen = [name], set()
    while wanted:
        class_name = wanted.pop(0)
        module = class_name.rpartition(".")[0]
        if module not in modules or class_name in seen:
            continue
        seen.add(class_name)
        version, bases = _classes(module, modules[module]).get(class_name, (None, []))
        if version:
            return version
        wanted = [*bases, *wanted]
    return 1, ""


@functools.cache
def _classes(module: str, path: Path) -> dict[str, tuple[Version | None, list[str]]]:
    """Classes of a file, by their names -> the version that each says, if it says one, and its bases; none if the file is no
    Python."""
    text, names, found = path.read_text(encoding="utf-8"), dict[str, str](), {}
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return {}
    for node in body:
        if isinstance(node, ast.Import):
            imported = [(one.asname or one.name.partition(".")[0], one) for one in node.names]
            names |= {name: one.name if one.asname else name for name, one in imported}
        elif isinstance(node, ast.ImportFrom):
            package = f"{module.rsplit('.', node.level)[0]}." * (node.level > 0) + (node.module or "")
            names |= {one.asname or one.name: f"{package.rstrip('.')}.{one.name}" for one in node.names}
        elif isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).partition(".") for base in node.bases]
            names_of_bases = [names.get(first, first) + dot + rest for first, dot, rest in bases]
            names[node.name] = f"{module}.{node.name}"
            found[names[node.name]] = _version_in(node, text), names_of_bases
    return found


def _version_in(node: ast.ClassDef, text: str) -> Version | None:
    for line in node.body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(line.value, ast.Constant):
            target = line.targets[0] if isinstance(line, ast.Assign) else line.target
            if ast.unparse(target) == "version" and isinstance(line.value.value, int):
                return line.value.value, text.splitlines()[line.lineno - 1].partition("#")[2].strip()
    return None
