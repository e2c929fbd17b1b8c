"""Folders of labs: who names them, what they hold, and what is refused."""

import os
import re
import subprocess
import sys

import pytest

import algorithms
import search_spaces
from bench import models, plugins, registry
from bench.cli import options
from bench.cli.console import console
from bench.cli.listing import listing_table
from bench.config.resolve import resolve
from bench.config.unknown_settings import unknown_setting
from bench.errors import ConfigError
from bench.experiments import cost, grid_files
from bench.experiments.cells import to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid, make_grid, single
from bench.experiments.report_schema import Layout
from bench.experiments.stored_grid import styles_of_labs, titles_of_labs
from bench.results.grids import is_style
from reports.tables.names import Names
from tests.support import method_files
from tests.support.processes import ROOT

METHOD = '"""FedMine: clients dig."""\n\n@registered("fedmine", strength=0.5)\nclass FedMine:\n    pass\n'
MODEL = '@registered_model(\n    "tiny",\n    title="Tiny",\n    aliases=("little",),\n)\nclass Tiny:\n    """A tiny one."""\n'
FILES = {
    "algorithms/fedmine.py": METHOD,
    "models/tiny.py": MODEL,
    "search_spaces/fedmine.yaml": "# FedMine\nstrength: {grid: [1, 2]}\n",
    "grids/table2.yaml": "extends: quickstart\ntitle: Mine\n",
}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Makes a folder of these files, and uses it."""

    def make(files=FILES):
        method_files.use(tmp_path / "mylab", monkeypatch, files)
        return tmp_path / "mylab"

    return make


def test_what_a_lab_has_is_found_by_name_beside_what_comes_with_the_harness(lab):
    folder = lab()
    assert algorithms.title_of("fedmine") == "FedMine" and algorithms.presets("fedmine") == {"strength": 0.5}
    assert (models.title_of("tiny"), models.canonical("little"), models.describe("little")) == (
        "Tiny",
        "tiny",
        "A tiny one.",
    )
    assert search_spaces.load("fedmine")["strength"].grid == [1, 2]
    assert load_grid("table2").source == str(folder / "grids" / "table2.yaml")
    assert load_grid("quickstart").source == "" and grid_files.is_ours("quickstart")
    assert registry.held_by(folder) == ["1 algorithm", "1 model", "1 space", "1 grid"]
    assert "fedavg" in algorithms.REGISTRY


def test_without_its_folder_nothing_of_a_lab_is_there(lab, monkeypatch):
    lab()
    assert "fedmine" in algorithms.REGISTRY
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert "fedmine" not in algorithms.REGISTRY and "fedavg" in algorithms.REGISTRY


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (
            {"algorithms/mine.py": METHOD.replace("fedmine", "fedavg")},
            "Two things are registered as 'fedavg', in algorithms/fedavg.py and mylab/algorithms/mine.py; rename one.",
        ),
        (
            {"algorithms/fedavg.py": METHOD},
            r"There are two files fedavg.py, .*/mylab/algorithms/fedavg.py; rename yours.",
        ),
        (
            {"algorithms/mine.py": METHOD.replace("0.5", "half")},
            'mylab/algorithms/mine.py: got @registered("fedmine", strength=half), expected a name and options, all constants',
        ),
        (
            {"algorithms/mine.py": METHOD.replace("strength=0.5", "symbols={1: 2}")},
            "mylab/algorithms/mine.py: symbols of fedmine must be texts by option, but got {1: 2}.",
        ),
        (
            {"callbacks/mine.py": '@registered_callback("mine", percent="low")\nclass Mine(Callback):\n    pass\n'},
            "mylab/callbacks/mine.py: percent of mine must be a tuple of texts, as (\"text\",), but got 'low'.",
        ),
        (
            {"algorithms/mine.py": METHOD.replace("fedmine", "a/../b")},
            "mylab/algorithms/mine.py: a name has at most 100 letters, digits, and between them - _ and ., but got 'a/../b'.",
        ),
        ({"algorithms/mine.py": METHOD.replace("fedmine", 101 * "m")}, "- _ and ., but got 'mm"),
        ({"algorithms/mine.py": METHOD.replace("fedmine", "")}, "- _ and ., but got ''."),
    ],
)
def test_what_would_hide_something_else_is_refused_with_both_files(lab, files, sentence):
    lab(files)
    with pytest.raises(ConfigError, match=sentence if ".*" in sentence else re.escape(sentence)):
        algorithms.title_of("fedavg")
        [*registry.Registry("callback")]


def test_a_file_that_ends_the_program_is_named(lab):
    lab({"algorithms/mine.py": f"import sys\n\nsys.exit(3)\n{METHOD}"})
    with pytest.raises(ValueError, match=r"mylab/algorithms/mine.py, line 3: cannot be imported: SystemExit: 3\."):
        algorithms.load("fedmine")


@pytest.mark.parametrize(
    ("toml", "found"),
    [
        ('[tool.skewbench]\nplugins = [".", "other"]\n', ["", "other"]),
        ("[tool.ruff]\n", []),
        ("[tool.skewbench]\n", []),
        ("no toml\n", []),
        ("tool = 1\n", []),
    ],
)
def test_a_project_names_its_folders_for_all_that_is_below_it(tmp_path, monkeypatch, toml, found):
    for folder in ("", "other"):
        (tmp_path / folder / "algorithms").mkdir(parents=True)
    (tmp_path / "below").mkdir()
    (tmp_path / "pyproject.toml").write_text(toml)
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path / "below")
    assert plugins.folders() == tuple(tmp_path / folder for folder in found)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_project_of_somebody_else_names_no_folders(tmp_path, monkeypatch):
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.skewbench]\nplugins = ["."]\n')
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    os.chown(tmp_path / "pyproject.toml", 12345, -1)
    assert plugins.folders() == ()


def test_a_model_of_the_harness_takes_no_options_from_its_decorator(lab):
    own = "from bench.models import registered_model\nfrom bench.models.mlp import Mlp\n\n\n"
    lab({"models/wide.py": own + '@registered_model("wide", width=3)\nclass Wide(Mlp):\n    pass\n'})
    with pytest.raises(
        ValueError, match=r"mylab/models/wide.py: options of registered_model, here width, .* Wide is a Model"
    ):
        models.load("wide")


NETWORK = """
from torch import nn
from bench.models import registered_model

@registered_model("wide", width=3)
class Wide(nn.Module):
    def __init__(self, input_shape, num_classes, width):
        super().__init__()
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.fc(x)
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (NETWORK, "wide in mylab/models/wide.py, line 12, cannot take images of 1x8x8: RuntimeError"),
        (
            NETWORK.replace("width)", "depth)"),
            "wide in mylab/models/wide.py cannot be built for images of 1x8x8 and 10",
        ),
    ],
)
def test_an_error_in_a_module_is_told_with_its_file_and_line(lab, text, sentence):
    lab({"models/wide.py": text})
    with pytest.raises(ValueError, match=re.escape(sentence)):
        models.load("wide")((1, 8, 8), 10)


def test_an_option_of_a_models_decorator_is_no_setting_but_a_second_name(lab):
    lab({"models/wide.py": NETWORK.replace("width", "hidden")})
    assert unknown_setting("hidden", []) == (
        "Unknown setting 'hidden': hidden is an option of the decorator of the model wide; for another value, give the class a "
        'second name, @registered_model("wide-2", hidden=...), and set model=wide-2.'
    )


def test_an_option_of_a_models_decorator_that_methods_have_too_is_told_as_theirs_first(lab):
    lab({"models/wide.py": NETWORK.replace("width", "tau")})
    assert " Did you mean 'lr_decay'?" in unknown_setting("scheduler", [])
    assert " Did you mean 'max_gradient_norm'?" in unknown_setting("grad_clip", [])
    assert unknown_setting("tau", ["fedprox"]) == (
        "Unknown setting 'tau': options of fedprox: mu; tau is of fedlc. As to models, tau is an option of the decorator of "
        'the model wide; for another value, give the class a second name, @registered_model("wide-2", tau=...), and set '
        "model=wide-2."
    )


def test_an_alias_that_is_the_name_of_another_model_is_refused(lab):
    lab({"models/tiny.py": MODEL.replace("little", "mlp")})
    with pytest.raises(
        ConfigError, match="'mlp', an alias in mylab/models/tiny.py, is a name in bench/models/mlp.py; rename one."
    ):
        models.canonical("mlp")


def test_an_alias_that_is_one_of_another_model_is_refused(lab):
    other = MODEL.replace('"tiny"', '"small"').replace("Tiny", "Small")
    lab({"models/tiny.py": MODEL, "models/small.py": other})
    with pytest.raises(
        ConfigError, match="'little', an alias in mylab/models/tiny.py, is a name in mylab/models/small.py"
    ):
        models.canonical("little")


PEOPLE = "title latex description symbols aliases style percent more_is_better less_is_better"


@pytest.mark.parametrize("key", PEOPLE.split())
def test_what_a_decorator_says_for_people_has_its_type_and_is_no_option(key, lab):
    lab({"algorithms/mine.py": METHOD.replace("strength=0.5", f"{key}=0.5")})
    with pytest.raises(ConfigError, match=f"mine.py: {key} of fedmine must be a .*, but got 0.5"):
        algorithms.title_of("fedavg")


def test_a_failure_is_told_with_the_innermost_line_of_its_file(tmp_path):
    lab = tmp_path / "mylab"
    path = lab / "datasets" / "pollen.py"
    source = "def load(data_dir):\n    return read(data_dir)\n\n\ndef read(folder):\n    return folder['pollen']\n"
    names = {}
    exec(compile(source, str(path), "exec"), names)
    entry = registry.Entry("dataset", "pollen", path, "datasets.loaders.pollen", "load", {}, lab)
    with pytest.raises(KeyError) as raised:
        names["load"]({})
    assert entry.failure(raised.value) == "load in mylab/datasets/pollen.py failed in line 6: KeyError: 'pollen'."


RUN = {"algorithm": "fedkey", "dataset": "digits", "partition": "iid"}
CALLBACK = """from bench.callbacks import Callback, registered_callback


@registered_callback("looks")
class Looks(Callback):
    def after_round(self, outcome, own):
        return None

    def validate(self, config, method):
        return [config.nothing]
"""


def test_what_a_lab_s_code_raises_before_training_is_one_sentence(lab):
    own = method_files.RUNNABLE.replace("fedmine", "fedkey")
    lab({"algorithms/fedkey.py": own + "\n    def validate(self, config):\n        return [config.nothing]\n"})
    said = r"failed in line \d+: AttributeError: 'RunConfig' object has no attribute 'nothing'\.$"
    with pytest.raises(ConfigError, match=f"^FedMine in mylab/algorithms/fedkey.py {said}"):
        resolve(RUN)
    lab({"callbacks/looks.py": CALLBACK})
    with pytest.raises(ConfigError, match=f"^Looks in mylab/callbacks/looks.py {said}"):
        resolve(RUN | {"algorithm": "fedavg", "callbacks": ["looks"]})
    lab({"algorithms/fedkey.py": own + "\n    def init_server(self, task, params):\n        return {}['key']\n"})
    (line,) = cost.refusals([resolve(RUN)])
    assert re.fullmatch(r"FedMine in mylab/algorithms/fedkey.py failed in line \d+: KeyError: 'key'\.", line)
    lab({"algorithms/fedkey.py": own + "\n    def traffic(self, task):\n        return {}['key']\n"})
    cost._method.cache_clear()
    with pytest.raises(ConfigError, match="FedMine in mylab/algorithms/fedkey.py failed in line"):
        cost.bytes_per_client(resolve(RUN))
    cost._method.cache_clear()


@pytest.mark.parametrize("read", [lambda: listing_table("grids"), lambda: load_grid("odd"), lambda: load_grid("mine")])
def test_a_grid_that_is_no_mapping_is_named(lab, read):
    lab({"grids/odd.yaml": "[1, 2]\n", "grids/mine.yaml": "extends: odd\n"})
    with pytest.raises(ValueError, match=r"^\S*grids/odd.yaml must hold a mapping with axes and settings\.$"):
        read()


def test_grids_that_extend_each_other_in_a_circle_are_told(lab):
    lab(
        {"grids/one.yaml": "extends: other\n", "grids/other.yaml": "extends: one\n", "grids/own.yaml": "extends: own\n"}
    )
    with pytest.raises(ConfigError, match="^grid one: extends: other would extend itself; name a grid that does not"):
        load_grid("one")
    with pytest.raises(ConfigError, match="^grid own: extends: own would extend itself"):
        load_grid("own")
    assert grid_files.version_of("one") == grid_files.version_of("own") == 1


def test_odd_parts_of_a_grid_that_is_extended_are_told(lab):
    odd = "axes: {algorithm: [fedavg]}\nreport: {names: [a], columns: [b]}\nreproduces: [c]\n"
    lab({"grids/odd.yaml": odd, "grids/mine.yaml": "extends: odd\n"})
    with pytest.raises(ConfigError, match=r"report.names must be a valid dictionary, but got \['a'\]"):
        load_grid("mine")


def test_a_file_that_is_no_python_is_told_where_its_text_is_wanted(lab):
    lab({"models/tiny.py": MODEL + "def broken(:\n"})
    with pytest.raises(ValueError, match=r"^mylab/models/tiny.py: cannot be parsed: invalid syntax"):
        models.describe("tiny")
    folder = lab()
    (folder / "models" / "tiny.py").write_bytes(b"# \xe9\n" + MODEL.encode())
    registry.forget()
    with pytest.raises(ConfigError, match="^mylab/models/tiny.py is no text in UTF-8"):
        models.describe("tiny")


def test_brackets_in_a_description_are_listed_as_they_are(lab, capsys):
    lab({"models/tiny.py": MODEL.replace("A tiny one.", "Heads [classes] of [/one] net.")})
    console.print(listing_table("models"))
    assert "Heads [classes] of [/one] net." in capsys.readouterr().out


def test_a_project_that_names_its_folders_wrongly_is_told(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[tool.skewbench]\nplugins = "."\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"plugins under \[tool.skewbench\] must be a list of folders"):
        plugins.folders()


def test_a_folder_that_is_none_or_holds_nothing_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "two:parts" / "algorithms").mkdir(parents=True)
    with pytest.raises(
        ConfigError, match=r"two:parts, which --plugins names, has ':' in its path, which separates folders"
    ):
        plugins.use([tmp_path / "two:parts"])
    with pytest.raises(ConfigError) as caught:
        plugins.use([tmp_path / "none", tmp_path / "empty"])
    assert [re.sub(r"^.*/(\w+), which --plugins names", r"\1", line) for line in caught.value.mistakes] == [
        "none; make it, or name another one.",
        f"empty, has none of the folders {', '.join(plugins.PARTS)}; make the one that you need.",
    ]


def test_the_option_may_stand_before_and_behind_the_command():
    given = options.plugins_first
    assert given(["run", "--plugins", "a", "--grid", "g", "--plugins=b"]) == [
        "--plugins",
        "a",
        "--plugins=b",
        "run",
        "--grid",
        "g",
    ]
    assert given(["--plugins", "a", "list"]) == ["--plugins", "a", "list"]
    assert given(["speed", "--", "--plugins", "a"]) == ["speed", "--", "--plugins", "a"]


@pytest.mark.slow
def test_workers_of_a_cluster_import_what_was_sent_and_look_nowhere_else(lab, tmp_path):
    """There the folders of the command do not exist, or are others."""
    lab({"algorithms/fedmine.py": method_files.RUNNABLE})
    sent = plugins.copy_to(tmp_path / "sent")
    (tmp_path / "pyproject.toml").write_text('[tool.skewbench]\nplugins = ["missing"]\n')
    code = "import algorithms; print(algorithms.load('fedmine').__module__, algorithms.REGISTRY['fedmine'].path)"
    environment = {"PYTHONPATH": f"{ROOT}:{sent.parent}", plugins.VARIABLE: ""}
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["algorithms.fedmine", str(sent / "00" / "mylab" / "algorithms" / "fedmine.py")]


def test_nothing_is_sent_where_no_folder_is_used(tmp_path, monkeypatch):
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    assert plugins.folders() == () and plugins.copy_to(tmp_path) is None


def test_results_of_a_lab_are_reported_with_their_titles_where_its_folder_is_not(lab, tmp_path, monkeypatch):
    lab({"algorithms/fedmine.py": method_files.RUNNABLE})
    spec, settings = load_grid("quickstart"), {"dataset": "digits", "partition": "label-2", "clients": 5}
    single_grid = single({**settings, "algorithm": "fedmine"}, [0])
    stored = to_json(single_grid, "paper", {}, expand(single_grid, "paper"))
    titles = titles_of_labs(stored["cells"])
    assert titles == {"algorithm": {"fedmine": "FedMine"}}
    assert titles_of_labs(to_json(spec, "smoke", {}, expand(spec, "smoke"))["cells"]) == {}
    monkeypatch.setenv(plugins.VARIABLE, "")
    with pytest.raises(ValueError, match="Unknown algorithm 'fedmine'"):
        algorithms.title_of("fedmine")
    names = Names.of_grid({**stored, "titles": titles})
    assert names.value("algorithm", "fedmine").plain == "FedMine"
    assert names.value("algorithm", "fedmine strength=2").plain == "FedMine, strength=2"
    assert Names.of_grid(stored).value("algorithm", "fedmine").plain == "fedmine"


STYLED = method_files.RUNNABLE.replace('"fedmine"', '"fedmine", style={"colour": "#BD1F01", "marker": "D", "size": 6}')


def test_how_a_method_is_drawn_is_stored_and_a_grid_wins_over_the_method(lab, monkeypatch):
    lab({"algorithms/fedmine.py": STYLED})
    setting = {"dataset": "digits", "partition": "label-2", "algorithm": "fedmine"}
    grid = make_grid("mine", {"title": "t", "axes": {key: [value] for key, value in setting.items()}})
    stored = to_json(grid, "paper", {}, expand(grid, "paper"))
    assert algorithms.presets("fedmine") == {} and "styles" not in stored["report"]
    style = {"colour": "#bd1f01", "marker": "D", "size": 6.0}
    assert styles_of_labs(stored["cells"]) == {"fedmine": style}
    styled = grid.model_copy(update={"report": Layout(styles={"fedmine": {"size": 3}, "fedavg": {"marker": "*"}})})
    stored = to_json(styled, "paper", {}, expand(grid, "paper"))
    titles, styles = titles_of_labs(stored["cells"]), styles_of_labs(stored["cells"])
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert styles_of_labs(stored["cells"]) == {}
    assert Names.of_grid({**stored, "titles": titles}).styles["fedavg"] == {"marker": "*"}
    found = Names.of_grid({**stored, "titles": titles, "styles": styles}).styles
    assert found == {"fedmine": style | {"size": 3.0}, "fedavg": {"marker": "*"}}


@pytest.mark.parametrize(
    ("style", "sentence"),
    [
        ('{"colour": "red"}', "style: colour"),
        ('{"marker": "O"}', "style: Unknown marker 'O'. Did you mean 'o'? Known: o, s"),
        ('{"size": 99}', "style: size"),
        ('{"color": "#bd1f01"}', "'color'. Did you mean 'colour'"),
    ],
)
def test_a_style_that_nobody_can_draw_is_refused(lab, style, sentence):
    lab({"algorithms/fedmine.py": method_files.RUNNABLE.replace('"fedmine"', f'"fedmine", style={style}')})
    with pytest.raises(ConfigError, match=r"mylab/algorithms/fedmine.py: style: .*") as caught:
        styles_of_labs([{"config": {"algorithm": {"name": "fedmine"}}}])
    assert sentence in str(caught.value)
    for hostile in ({"colour": "red"}, {"marker": "O"}, {"size": 99}, {"size": "2"}, {"color": "#000000"}, []):
        assert not is_style(hostile)
    assert is_style({}) and is_style({"colour": "#bd1f01", "marker": "D", "size": 6})


def test_a_style_of_a_method_that_there_is_not_is_refused():
    content = {"title": "t", "axes": {"dataset": ["digits"], "partition": ["iid"], "algorithm": ["fedavg"]}}
    with pytest.raises(ConfigError, match="Unknown method in styles 'fedvag'. Did you mean 'fedavg'"):
        make_grid("mine", content | {"report": {"styles": {"fedvag": {"colour": "#bd1f01"}}}})


def test_a_folder_that_the_command_names_comes_before_those_of_the_variable(tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        (folder / "grids").mkdir(parents=True)
    monkeypatch.setenv(plugins.VARIABLE, str(one))
    plugins.use([two])
    assert plugins.folders()[:2] == (two, one)
