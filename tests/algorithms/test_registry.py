"""Methods are found by the files of their folder; mistakes in a file end with one sentence."""

import re
import subprocess
import sys

import pytest

import algorithms
from bench import imports
from tests.support import method_files, methods_page

MINE = '''"""Mine: a method."""

from dataclasses import dataclass

from algorithms import RoundBased, registered


@registered("mine")
@dataclass(frozen=True)
class Mine(RoundBased):
    strength: float = 1.0
'''


WITHOUT_PAPER = """
    apfl co-boosting dense f-dafl fedacg fedala fedamp fedas fedawa fedbn fedcm fedcp feddbe feddc fedgamma fedlesam fedlesam-d
    fedlesam-s fedlpa fedmlb fedmoswa fednh fedov fedpac fedrcl fedsmoo fedsol fedspeed fedswa fens fens-linear gpfl
"""


def test_methods_that_were_written_without_their_paper_say_so():
    """Whoever has read a paper, or words its absence in another way, changes this list."""
    found = [
        name for name, entry in algorithms.REGISTRY.items() if entry.lab is None and algorithms.is_without_paper(name)
    ]
    assert sorted(found) == WITHOUT_PAPER.split()
    assert all(f"`{name}`" in methods_page.without_paper() for name in found)


@pytest.fixture
def register(tmp_path, monkeypatch):
    """Registers methods of files, as if they lay in the folder."""

    return lambda **files: method_files.register(tmp_path, monkeypatch, files)


def test_classes_of_one_name_in_two_files_are_two_methods(register):
    register(first_mine=MINE, second_mine=MINE.replace('"mine"', '"other"'))
    assert [algorithms.name_of(algorithms.make(name)) for name in ("mine", "other")] == ["mine", "other"]


def test_a_class_that_a_decorator_gives_another_name_keeps_that_of_the_method(register):
    renamed = "def renamed(kind):\n    kind.__name__ = 'Renamed'\n    return kind\n\n\n@registered"
    register(fourth_mine=MINE.replace("@registered", renamed).replace("@dataclass", "@renamed\n@dataclass"))
    assert algorithms.name_of(algorithms.make("mine")) == "mine"


def test_a_file_that_is_edited_and_imported_again_is_checked_again(register):
    register(fifth_mine=MINE)
    before = algorithms.make("mine")
    register(fifth_mine=MINE.replace('"mine"', '"other"').replace("= 1.0", "= 2.0"))
    assert algorithms.make("other").strength == 2.0 and algorithms.name_of(algorithms.make("other")) == "other"
    assert algorithms.name_of(before) == "Mine", "its class is registered no more"
    register(fifth_mine=MINE + "    outlines = None\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="has hooks by earlier names: rename outlines to state_templates"):
            algorithms.load("mine")


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (
            "@dataclass(frozen=True)\n",
            "",
            "/algorithms/third_mine.py is no dataclass, so that strength would be no options",
        ),
        (
            "(frozen=True)",
            "",
            "algorithms/third_mine.py, line 9: cannot be imported: TypeError: cannot inherit non-frozen",
        ),
        (
            "import RoundBased",
            "import Rounds",
            "algorithms/third_mine.py, line 5: cannot be imported: ImportError: cannot import",
        ),
        (
            "    strength",
            '    """beta = of\n\n    beta: a rate."""\n\n    LONGEST, _rate, version = 9, 0.1, 2\n    beta = 0.9\n    strength',
            "/algorithms/third_mine.py, line 16: beta has no type, so that it is no option; write beta: float = 0.9.",
        ),
        ("= 1.0", "= = 1.0", "algorithms/third_mine.py, line 11: cannot be imported: SyntaxError: invalid syntax"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line(register, before, after, sentence):
    assert before in MINE
    register(third_mine=MINE.replace(before, after))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        algorithms.load("mine")


@pytest.mark.slow
def test_methods_get_what_they_need_from_the_package_itself():
    """Before it is asked for a name that needs torch, it imports none of them."""
    asked = "import algorithms, sys; assert 'torch' not in sys.modules; algorithms.RoundBased, algorithms.tree.add"
    subprocess.run([sys.executable, "-c", asked], check=True)
    assert all(getattr(algorithms, name) is not None for name in algorithms.__all__)
    assert imports.passed_on("algorithms").keys() <= {*algorithms.__all__}
    with pytest.raises(AttributeError, match="module 'algorithms' has no attribute 'rows'"):
        algorithms.rows  # noqa: B018


@pytest.mark.parametrize("once", ["base", "rows"])
def test_a_module_by_its_earlier_name_is_refused_with_todays(register, once):
    register(sixth_mine=f"from algorithms.{once} import something\n{MINE}")
    now = {"rows": "client_states"}.get(once, once)
    said = rf"No module named 'algorithms.{once}'. Write from algorithms import RoundBased, .* algorithms.shared.{now} now\.$"
    with pytest.raises(ValueError, match=said):
        algorithms.load("mine")


def test_a_file_cannot_have_the_name_of_a_package_of_the_harness(register):
    register(shared=MINE)
    with pytest.raises(ValueError, match="two files shared.py, .*algorithms/shared and "):
        algorithms.load("mine")


def test_a_file_cannot_hide_what_the_package_passes_on(register):
    register(tree=MINE)
    with pytest.raises(ValueError, match="tree is a name in algorithms; rename your file"):
        algorithms.load("mine")


def test_a_file_that_is_no_python_is_named_by_the_list_of_methods(register):
    register(fourth_mine=MINE + "def f(:\n")
    with pytest.raises(ValueError, match=r"/algorithms/fourth_mine.py, line 12: invalid syntax\.$"):
        algorithms.describe("mine")


def test_the_version_that_a_file_says_is_that_of_the_class():
    """Tables read it without importing a method."""
    for name in algorithms.REGISTRY:
        version, comment = algorithms.version_of(name)
        assert version == algorithms.load(name).version, name
        assert bool(comment.startswith(f"{version - 1} ")) == (version > 1), name


@pytest.mark.parametrize(
    ("imported", "base"),
    [
        ("from algorithms.mine import Mine", "Mine"),
        ("from algorithms.mine import (\n    Mine,\n)", "Mine"),
        ("from algorithms.mine import Mine as Base", "Base"),
        ("from .mine import Mine", "Mine"),
        ("from algorithms import mine", "mine.Mine"),
        ("import algorithms.mine", "algorithms.mine.Mine"),
        ("import algorithms.mine as theirs", "theirs.Mine"),
        ("from algorithms.mine import Mine\nfrom algorithms import RoundBased", "Mine, RoundBased"),
        ("from algorithms.mine import Mine as Theirs", "Theirs"),
    ],
)
def test_a_class_has_the_version_of_one_that_it_extends(register, imported, base):
    versioned = MINE.replace("    strength", "    version = 3  # 2 was weaker\n    strength")
    yours = '\n\n@registered("yours")\nclass Yours(Mine):\n    """Mine, too."""\n'
    theirs = f"from algorithms import registered\n{imported}\n"
    theirs += yours.replace("yours", "theirs").replace("Yours(Mine)", f"Theirs({base})")
    register(mine=versioned + yours, theirs=theirs)
    for name in ("mine", "yours", "theirs"):
        assert algorithms.version_of(name) == (3, "2 was weaker") and algorithms.load(name).version == 3
