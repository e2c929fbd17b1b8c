"""Classes of labs that override hooks wrongly: each mistake is told before any work, with its file and line."""

import pytest

from bench.config.methods import build, build_callback
from bench.errors import ConfigError
from bench.measurements.specs import figure_of
from datasets import partitions
from tests.support import method_files

HEADS = {
    "algorithms": 'from algorithms import RoundBased, Wrapper, registered\n\n\n@registered("mine")\n',
    "callbacks": 'from bench.callbacks import Callback, registered_callback\n\n\n@registered_callback("mine")\n',
    "figures": 'from reports.figures import Figure, registered_figure\n\n\n@registered_figure("mine")\n',
    "partitions": 'from datasets.partitions import Partition, registered_partition\n\n\n@registered_partition("mine")\n',
}
LOAD = {
    "algorithms": lambda: build("mine", {}),
    "callbacks": lambda: build_callback("mine", {}),
    "figures": lambda: figure_of({"kind": "mine"}),
    "partitions": lambda: partitions.parse("mine"),
}


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """What is said about a class of a lab with this first line and these functions; the first function is in line 8."""

    def refused(folder: str, head: str, functions: str) -> str:
        frozen = "from dataclasses import dataclass\n" + HEADS[folder] + "@dataclass(frozen=True)\n"
        text = "# of a test\n" + HEADS[folder] if folder == "figures" else frozen
        body = "".join(f"    {line}\n" for line in functions.splitlines())
        method_files.use(tmp_path / "lab", monkeypatch, {f"{folder}/mine_of_a_test.py": f"{text}{head}\n{body}"})
        with pytest.raises((ValueError, ConfigError)) as caught:
            LOAD[folder]()
        return str(caught.value)

    return refused


@pytest.mark.parametrize(
    ("folder", "head", "functions", "meant"),
    [
        ("algorithms", "class Mine(RoundBased):", "def server_stp(self): pass", "server_stp in line 8 (server_step?)"),
        ("algorithms", "class Mine(RoundBased):", "broadcasts = ('c',)", "broadcasts (broadcast?)"),
        (
            "algorithms",
            "class Mine(Wrapper):",
            "@property\ndef weight_files(self): pass",
            "weight_files in line 8 (weights_files?)",
        ),
        ("callbacks", "class Mine(Callback):", "def after_rounds(self): pass", "after_rounds in line 8 (after_round?)"),
        ("figures", "class Mine(Figure):", "def drawn(self): pass", "drawn in line 7 (draw?)"),
        ("figures", "class Mine(Figure):", "def mesure(self): pass", "mesure in line 7 (measure?)"),
        ("partitions", "class Mine(Partition):", "def dealt(self): pass", "dealt in line 8 (deal?)"),
    ],
)
def test_a_name_almost_like_a_hook_is_refused(refused, folder, head, functions, meant):
    """The class would run as its base class does."""
    helper = "\ndef share_of_steps(self): pass"
    place = f"Mine in lab/{folder}/mine_of_a_test.py"
    said = refused(folder, head, functions + helper)
    assert f"{place} has attributes that nothing reads or calls, with names almost like hooks: {meant}." in said
    assert "begin the name of a helper with _." in said


ROUNDED = "    def after_round(self, outcome, own): return own, {}\n"
HELPERS = "    def finished(self): pass\n    def after_training(self): pass\n"
DEPLOYED = "    def deploy(self, task, state, client_ids): raise NotImplementedError\n"
DRAWN = "    def drawings(self, grid, records, store, value=None, widths=None): return {}\n"
ARBITRARY = "    model_config = {'arbitrary_types_allowed': True}\n    window: Window = Window()\n"
ONE = f"@dataclass(frozen=True)\nclass One(Callback):\n    radius: int = 2\n{ROUNDED}\n\n"
PROBED = "    def measure(self, run, probe): return {}\n    def probes(self, rounds): return range(1, rounds + 1, rounds // 2)"


@pytest.mark.parametrize(
    ("folder", "before", "text"),
    [
        ("algorithms", "", f"class Mine(RoundBased):\n{HELPERS}{DEPLOYED}"),
        ("callbacks", "", f"class Mine(Callback):\n{ROUNDED}"),
        ("callbacks", ONE, "class Mine(One):\n    pass"),
        ("figures", "class Window: pass\n", f"class Mine(Figure):\n{ARBITRARY}{DRAWN}{PROBED}"),
    ],
)
def test_a_class_that_is_right_is_not_refused(tmp_path, monkeypatch, folder, before, text):
    head = (
        HEADS[folder]
        .replace("\n\n", f"\n\n{before}", 1)
        .replace('mine"', 'mine", radius=1' if before == ONE else 'mine"')
    )
    files = {f"{folder}/mine_of_a_test.py": f"from dataclasses import dataclass\n{head}{text}"}
    method_files.use(tmp_path / "lab", monkeypatch, files)
    made = LOAD[folder]()
    assert getattr(made, "radius", 1) == 1


@pytest.mark.parametrize(
    ("folder", "head", "option"),
    [
        ("algorithms", "class Mine(RoundBased):", "step: float = 0.1"),
        ("algorithms", "class Mine(RoundBased):", "sample: int = 3"),
        ("callbacks", "class Mine(Callback):", "validate: bool = True"),
    ],
)
def test_an_option_with_the_name_of_a_hook_is_refused(refused, folder, head, option):
    """Else the harness calls a number, and the message is that a float cannot be called."""
    name = option.partition(":")[0]
    said = refused(folder, head, f"{option}\ndef after_round(self, outcome, own): return own, {{}}")
    assert (
        f"Mine in lab/{folder}/mine_of_a_test.py has an option called {name}, but a hook has this name; rename it."
        in said
    )


def test_an_option_with_the_name_of_a_setting_is_refused(refused):
    """Else a command would set the setting, and the option would stay at its default."""
    said = refused(
        "algorithms", "class Mine(RoundBased):", "lr_decay: float = 0.9\nstrength: float = 1\nclients: int = 3"
    )
    assert said.count("Mine in lab/algorithms/mine_of_a_test.py has an option called") == 2 and "strength" not in said
    for name in ("lr_decay", "clients"):
        assert (
            f"has an option called {name}, but a setting of all methods has this name: rename the option, or use the setting; "
            "view.settings has those of training."
        ) in said


@pytest.mark.parametrize(
    ("folder", "head", "option", "write"),
    [
        ("algorithms", "class Mine(RoundBased):", "version: int = 2", "version = 2"),
        ("algorithms", "class Mine(RoundBased):", "personal: bool = True", "personal = True"),
        ("algorithms", "class Mine(RoundBased):", "version: int", "version = ..."),
        ("callbacks", "class Mine(Callback):", "version: int = 2", "version = 2"),
    ],
)
def test_an_attribute_with_a_type_would_be_an_option_and_is_refused(refused, folder, head, option, write):
    """Else a version would be an option that nothing reads, and old runs would be those of the new code."""
    said = refused(folder, head, f"{option}\ndef after_round(self, outcome, own): return own, {{}}")
    name = option.partition(":")[0]
    assert f"mine_of_a_test.py gives {name} a type, which makes it an option; write {write}." in said


@pytest.mark.parametrize(
    ("folder", "head", "functions", "said"),
    [
        (
            "algorithms",
            "class Mine:",
            "pass",
            "lab/algorithms/mine_of_a_test.py is no algorithm; write class Mine(RoundBased).",
        ),
        ("callbacks", "class Mine:", "pass", "is no callback; write class Mine(Callback)."),
        (
            "callbacks",
            "class Mine(Callback):",
            "def look(self): pass",
            "has no after_round, which every callback needs; add it.",
        ),
        (
            "figures",
            "class Mine(Figure):",
            "def measure(self, run, probe): pass",
            "has no collect and no draw, which every figure needs; add it.",
        ),
        ("partitions", "class Mine(Partition):", "pass", "has no deal, which every partition needs; add it."),
    ],
)
def test_a_class_without_what_its_kind_needs_is_refused(refused, folder, head, functions, said):
    assert said in refused(folder, head, functions)


@pytest.mark.parametrize(
    ("folder", "head", "functions", "said"),
    [
        (
            *("algorithms", "class Mine(RoundBased):", "def init_server(self, task): return {}"),
            "init_server in lab/algorithms/mine_of_a_test.py, line 8, takes (self, task), but it gets (self, task, params); "
            "write these arguments.",
        ),
        (
            *("algorithms", "class Mine(RoundBased):", "def weights_files(self): return ()"),
            "weights_files in lab/algorithms/mine_of_a_test.py, line 8, is read, not called; write @property above it.",
        ),
        (
            *("callbacks", "class Mine(Callback):", "def after_round(self, outcome): pass\ndef init(self, task): pass"),
            "after_round in lab/callbacks/mine_of_a_test.py, line 8, takes (self, outcome), but it gets (self, outcome, own); "
            "write these arguments. init in lab/callbacks/mine_of_a_test.py, line 9, takes (self, task), but it gets (self, "
            "task, state); write these arguments.",
        ),
        (
            *("figures", "class Mine(Figure):", "def draw(self, found): pass\ndef collect(self, *all): pass"),
            "draw in lab/figures/mine_of_a_test.py, line 7, takes (self, found), but it gets (self, found, widths); write "
            "these arguments.",
        ),
        (
            *("partitions", "class Mine(Partition):", "def deal(self, labels, num_clients, num_classes, seed): pass"),
            "takes (self, labels, num_clients, num_classes, seed), but it gets (self, labels, num_clients, num_classes, seed, "
            "groups, num_test); write these arguments.",
        ),
    ],
)
def test_a_hook_with_other_arguments_than_it_gets_is_refused(refused, folder, head, functions, said):
    assert refused(folder, head, functions).endswith(said)


WRONG_DEFAULT = "the default of radius must be a valid integer, but got 'a'. Correct it, or the type."


@pytest.mark.parametrize(
    ("folder", "head", "line", "said"),
    [
        ("algorithms", "class Mine(RoundBased):", 'radius: int = "a"', WRONG_DEFAULT),
        (
            "algorithms",
            "class Mine(RoundBased):",
            "radius: 'Raduis' = 1",
            "the type of an option is unknown: name 'Raduis' is",
        ),
        ("callbacks", "class Mine(Callback):", 'radius: int = "a"', WRONG_DEFAULT),
        (
            "algorithms",
            "class Mine(RoundBased):",
            "betas: tuple[float, float] = (0.9, 0.99)",
            "configs cannot hold the option betas (tuple[float, float]); write an option for each of its values, as beta1 and",
        ),
        (
            "callbacks",
            "class Mine(Callback):",
            "rounds: tuple[int, ...] = ()",
            "configs cannot hold the option rounds (tuple[int, ...]); write an option for each of its values",
        ),
        (
            "figures",
            "class Mine(Figure):",
            "radius: int = None",
            "the default of radius must be a valid integer, but got None.",
        ),
    ],
)
def test_an_option_whose_default_is_of_another_type_is_refused(refused, folder, head, line, said):
    hooks = {"callbacks": "def after_round(self, outcome, own): return own, {}"}
    hooks |= {"figures": "def collect(self, *all): pass\ndef draw(self, *all): pass"}
    assert f"Mine in lab/{folder}/mine_of_a_test.py: {said}" in refused(
        folder, head, f"{line}\n{hooks.get(folder, '')}"
    )


def test_a_decorator_that_sets_an_option_that_there_is_not_is_refused(tmp_path, monkeypatch):
    text = method_files.RUNNABLE.replace('"fedmine"', '"fedmine", strenght=2.0')
    method_files.use(tmp_path / "lab", monkeypatch, {"algorithms/fedmine.py": text})
    with pytest.raises(
        ConfigError, match="^FedMine in lab/algorithms/fedmine.py: Unknown option 'strenght'. Did you mean"
    ):
        build("fedmine", {})


def test_a_text_in_place_of_a_tuple_is_refused(refused):
    """Its letters would be taken for names."""
    said = refused("algorithms", "class Mine(RoundBased):", "broadcast = ('momentum')")
    assert "has broadcast = 'momentum', but a tuple is expected; write broadcast = ('momentum',)." in said
