"""Which code a module depends on."""

import shutil

import pytest

from bench import imports


@pytest.fixture(autouse=True)
def forgotten():
    _forget()
    yield
    _forget()


def _forget():
    """Files are read once per process."""
    for cached in (imports._hash, imports._reached, imports._imported, imports._source, imports._path):
        cached.cache_clear()


@pytest.mark.parametrize(
    "statement",
    [
        "import algorithms.moon",
        "from algorithms import moon",
        "from algorithms.moon import Moon",
        "from . import moon",
        "from .moon import Moon",
        "def late():\n    from algorithms.moon import Moon",
        "import algorithms.inner.deep as deep",
        "from .inner import deep",
    ],
)
def test_every_form_of_an_import_counts(statement, tmp_path, monkeypatch):
    package = tmp_path / "algorithms"
    (package / "inner").mkdir(parents=True)
    (package / "mine.py").write_text(f"import torch\nfrom torch import nn\n{statement}\n")
    (package / "moon.py").write_text("from algorithms import tree, not_a_module\n")
    (package / "inner" / "__init__.py").write_text("")
    (package / "inner" / "deep.py").write_text("from ..moon import Moon\n")
    for name in ("tree", "other"):
        (package / f"{name}.py").write_text("")
    monkeypatch.setattr(imports, "_FOLDERS", {"algorithms": package})
    found = imports._reached(frozenset({"algorithms.mine"}))
    inside = {"algorithms.inner", "algorithms.inner.deep"} if "inner" in statement else set()
    assert found == {"algorithms.mine", "algorithms.moon", "algorithms.tree"} | inside


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("algorithms/divergence.py", True),
        ("algorithms/fedcollab.py", True),
        ("bench/seeding.py", True),
        ("bench/models/base.py", True),
        ("datasets/transforms.py", True),
        ("algorithms/scaffold.py", False),
        ("bench/models/vgg.py", False),
        ("bench/files.py", False),
    ],
)
def test_the_hash_is_that_of_the_code_which_a_module_imports_and_of_no_other(changed, counts, tmp_path, monkeypatch):
    modules = ("algorithms.fedcollab", "bench.simulation.task")
    before = imports.hash_of(modules)
    for package, folder in imports._FOLDERS.items():
        shutil.copytree(folder, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    monkeypatch.setattr(imports, "_FOLDERS", {package: tmp_path / package for package in imports._FOLDERS})
    _forget()
    assert imports.hash_of(modules) == before, "of a copy"
    with (tmp_path / changed).open("a") as file:
        file.write("CHANGED = True\n")
    _forget()
    assert (imports.hash_of(modules) != before) == counts


def test_modules_of_others_have_no_code_of_this_project():
    assert imports.files_of(["torch.nn", "bench.not_there"]) == []
