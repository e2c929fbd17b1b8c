"""Which code a module depends on."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

import algorithms
from bench import imports
from bench.results.ids import hash_of as id_of

PACKAGES = ("algorithms", "bench", "datasets")


@pytest.fixture(autouse=True)
def forgotten():
    _forget()
    yield
    _forget()


def _forget():
    """Files are read once per process."""
    for cached in (imports._hash, imports._definitions, imports._reached, imports._path, imports._read):
        cached.cache_clear()


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    """A copy of the packages, which lie there from now on."""
    for package in PACKAGES:
        folder = Path(sys.modules[package].__file__).parent
        shutil.copytree(folder, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    for name, module in [*sys.modules.items()]:
        if name.split(".")[0] in PACKAGES and hasattr(module, "__path__"):
            monkeypatch.setattr(module, "__path__", [str(tmp_path.joinpath(*name.split(".")))])
    return tmp_path


@pytest.mark.parametrize(
    "statement",
    [
        "import algorithms.moon",
        "from algorithms import moon",
        "from algorithms.moon import Moon",
        "from . import moon",
        "from .moon import Moon",
        "def late():\n    from algorithms.moon import Moon",
        "try:\n    pass\nexcept ImportError:\n    from algorithms import moon",
        "match 1:\n    case 1:\n        from algorithms import moon",
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
    monkeypatch.setattr(algorithms, "__path__", [str(package)])
    found = {*imports.definitions_of(["algorithms.mine"])}
    inside = {"algorithms/inner/__init__.py", "algorithms/inner/deep.py"} if "inner" in statement else set()
    assert found == {"algorithms/mine.py", "algorithms/moon.py", "algorithms/tree.py"} | inside


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("algorithms/shared/divergence.py", True),
        ("algorithms/fedcollab.py", True),
        ("bench/seeding.py", True),
        ("bench/models/base.py", True),
        ("datasets/transforms/base.py", True),
        ("algorithms/scaffold.py", False),
        ("bench/models/vgg.py", False),
        ("bench/files.py", False),
    ],
)
def test_the_hash_is_that_of_the_code_which_a_module_imports_and_of_no_other(changed, counts, copied):
    modules = ("algorithms.fedcollab", "bench.simulation.task")
    before = imports.hash_of(modules)
    with (copied / changed).open("a") as file:
        file.write("CHANGED = True\n")
    assert imports.hash_of(modules) == before, "a process reads a file once"
    _forget()
    assert (imports.hash_of(modules) != before) == counts


def test_a_copy_elsewhere_has_the_same_hash(request):
    before = imports.hash_of(["bench.simulation.run"])
    request.getfixturevalue("copied")
    assert imports.hash_of(["bench.simulation.run"]) == before


CODE = '''"""A method."""
import torch

RATE = 0.5  # of learning


class Mine:
    """What it does."""

    rate: float = RATE

    def step(self, x):
        """Says more."""
        return x * self.rate


def late(x, *, y=None):
    return [x, y, "text", b"bytes", 1, 1.0, True, None, ...]
'''
SAME = '''import torch
RATE = (0.5)
class Mine:

    rate : float = RATE
    "Nobody reads this."
    def step(self, x):
        # Another comment.
        return (x
                * self.rate)
def late(x, *, y = None):
    """Now with a docstring."""
    return [ x, y, 'text', b'bytes', 1, 1.0, True, None, ... ]
'''


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module of a folder that was added to the package of methods, and returns what it defines."""
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])

    def write(code: str) -> dict[str, str]:
        (tmp_path / "mine_of_a_lab.py").write_text(code)
        _forget()
        return imports.definitions_of(["algorithms.mine_of_a_lab"])["algorithms/mine_of_a_lab.py"]

    return write


def test_comments_docstrings_and_formatting_change_no_hash(write):
    assert write(CODE) == write(SAME)


def test_what_a_thing_is_called_changes_no_hash_and_its_options_do(write):
    one, same, other = (
        write(CODE.replace("class Mine", f"@registered('mine', {given})\nclass Mine", 1))
        for given in ("rate=1", "rate=1, title='Mine', symbols={'rate': 'r'}, style={'size': 3}", "rate=2")
    )
    assert one == same != other


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("RATE = 0.5", "RATE = 0.25", {"module"}),
        ("rate: float = RATE", "rate: float = 2 * RATE", {"Mine"}),
        ("class Mine", "@registered('mine')\nclass Mine", {"Mine"}),
        ("x * self.rate", "self.rate * x", {"Mine.step"}),
        ("return x *", "print('said')\n        return x *", {"Mine.step"}),
        ("y=None", "y=False", {"late"}),
        ("1.0", "1", {"late"}),
        ("True", "1", {"late"}),
        ("'text', ", "", {"late"}),
        ("None, ...", "...", {"late"}),
        ("b'bytes'", "'bytes'", {"late"}),
        ("def late", "async def late", {"late"}),
    ],
)
def test_a_change_of_the_code_changes_the_hash_of_its_definition_alone(before, after, changed, write):
    code = CODE.replace('"text"', "'text'").replace('b"bytes"', "b'bytes'")
    assert before in code
    one, other = write(code), write(code.replace(before, after, 1))
    assert {*one} == {"module", "Mine", "Mine.step", "late"}
    assert {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)} == changed


def test_the_hash_of_a_definition_is_that_of_a_text_that_no_version_of_python_changes(write):
    text = "FunctionDef(name'f'argsarguments(args[arg(arg'x'),])body[Return(valueBinOp(leftName(id'x')opAdd()rightint 1)),])"
    assert write("def f(x):\n    return x + 1  # one more\n") == {"f": hashlib.sha256(text.encode()).hexdigest()[:12]}


def test_the_hash_is_that_of_the_definitions_as_a_results_directory_stores_them(write):
    write(CODE)
    definitions = imports.definitions_of(["algorithms.mine_of_a_lab"])
    assert imports.hash_of(["algorithms.mine_of_a_lab"]) == id_of(json.loads(json.dumps(definitions)))


def test_modules_lie_in_any_folder_of_their_package_also_in_one_that_was_added_later(tmp_path, monkeypatch):
    assert imports.files_of(["algorithms.mine_of_a_lab"]) == []
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "mine_of_a_lab.py").write_text("from algorithms import fedprox\n")
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(folder)])
    files = imports.files_of(["algorithms.mine_of_a_lab"])
    assert folder / "mine_of_a_lab.py" in files and "fedprox.py" in {path.name for path in files}
    assert folder in imports.folders()


def test_modules_of_others_have_no_code_of_this_project():
    assert imports.files_of(["torch.nn", "bench.not_there"]) == []
    assert imports.hash_of(["torch.nn", "bench.not_there"]) == imports.NO_CODE
