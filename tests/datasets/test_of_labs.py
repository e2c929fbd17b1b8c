"""Datasets that are functions of labs."""

import json
import sys

import numpy as np
import pytest

import datasets
from bench import plugins, references, registry
from bench.config.code_version import code_version
from bench.config.resolve import resolve
from bench.config.schema import run_id
from bench.errors import ConfigError
from bench.experiments import cost
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import make_grid, single
from bench.experiments.images import locate
from bench.experiments.selection import fit_to_images, select_cells
from bench.experiments.spec import ExperimentSpec
from bench.experiments.stored_grid import titles_of_labs
from datasets import of_labs, own_data, resized
from reports.tables.names import Names
from tests.support import method_files
from tests.support.lab_files import POLLEN
from tests.support.processes import call_bench

FROM_FILES = """import numpy as np

from datasets import registered_dataset


@registered_dataset("pollen", model="mlp", files="pollen/*.npy")
def load_pollen(data_dir):
    with open(data_dir / "calls", "a") as calls:
        calls.write("x")
    images = np.load(data_dir / "pollen" / "images.npy")
    return images, np.arange(len(images)) % 2, images, np.arange(len(images)) % 2
"""
SETTINGS = {"algorithm": "fedavg", "dataset": "pollen", "partition": "iid", "clients": 3, "rounds": 1}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Writes and uses a folder with one dataset; the cache is a folder of its own."""
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SKEWBENCH_DATA", raising=False)

    def make(content=POLLEN, **others):
        forget(monkeypatch)
        method_files.use(tmp_path / "mylab", monkeypatch, {"datasets/pollen.py": content, **others})
        return tmp_path / "mylab"

    return make


def forget(monkeypatch):
    """As in a new process."""
    monkeypatch.setattr(of_labs, "_KNOWN", {})
    monkeypatch.setattr(of_labs, "_PLACE", [])
    resized._load.cache_clear()
    sys.modules.pop("datasets.loaders.pollen", None)


def test_it_is_known_by_its_name_before_its_file_is_imported(lab):
    folder = lab()
    assert datasets.names()[-1] == "pollen" and datasets.usual_model("pollen") == "mlp"
    assert of_labs.entry_of("pollen").description == "Pollen of three plants."
    assert registry.held_by(folder) == ["1 dataset"]
    assert "datasets.loaders.pollen" not in sys.modules
    with pytest.raises(ValueError, match="Unknown dataset 'polen'. Did you mean 'pollen'"):
        datasets.load("polen", None)


def test_its_images_are_those_that_the_function_returns(lab):
    lab()
    found = datasets.load("pollen", None)
    assert found.train.images.shape == (48, 3, 8, 8) and found.num_classes == 3
    assert found.test.labels.tolist() == [*range(3)] * 4
    assert datasets.load("pollen", None, image_size=4).input_shape == (3, 4, 4)
    assert datasets.check("pollen", None) == ("pollen", "found", "arrays")


def test_a_config_has_the_digest_and_the_usual_model(lab):
    lab()
    config = resolve(SETTINGS)
    reference = references.read(config.dataset)
    assert (reference.kind, reference.name, config.model) == ("lab", "pollen", "mlp")
    assert datasets.load(config.dataset, None).digest == datasets.load("pollen", None).digest


def test_code_that_returns_the_same_images_is_the_same_run_and_other_images_are_another_one(lab):
    lab()
    before = resolve(SETTINGS)
    lab(POLLEN.replace("images = images.astype", "unused = 1\n    images = images.astype"))
    after = resolve(SETTINGS)
    assert run_id(after) == run_id(before) and code_version(after) == code_version(before)
    lab(POLLEN.replace('"pollen"', '"spores"'))
    assert run_id(resolve(SETTINGS | {"dataset": "spores"})) == run_id(before)
    lab(POLLEN.replace("50 *", "51 *"))
    assert run_id(resolve(SETTINGS)) != run_id(before)


def test_what_a_run_costs_is_known_before_it_starts(lab):
    lab()
    config = resolve(SETTINGS | {"rounds": 2, "local_epochs": 3})
    assert datasets.facts_of(config.dataset).input_shape == (3, 8, 8)
    assert cost.examples_to_train(config) == 2 * 3 * 48
    assert cost.bytes_per_client(config) > 0
    assert datasets.facts_of("lab:pollen@0123456789abcdef") is None


def test_a_grid_names_it_as_any_dataset(lab):
    lab()
    content = {"title": "t", "axes": {k: [SETTINGS[k]] for k in ("algorithm", "dataset", "partition")}}
    grid = make_grid("mine", content | {"settings": {"clients": 3}})
    (cell,) = expand(grid, "smoke", facts=None)
    assert cell.config.dataset == own_data.canonical("pollen") and cell.config.model == "mlp"
    assert (cell.config.train_examples, cell.config.test_examples) == (48, 12)  # a budget wants no more than there are
    assert single(SETTINGS, [0]).axes["dataset"] == [cell.config.dataset]


def test_describe_finds_its_files_in_the_data_directory(lab, tmp_path):
    (tmp_path / "pollen").mkdir()
    np.save(tmp_path / "pollen" / "images.npy", np.zeros((30, 8, 8), np.uint8))
    lab(FROM_FILES)
    words = "describe --algorithm fedavg --dataset pollen --partition iid --budget smoke --json --data-dir".split()
    text = call_bench(*words, tmp_path)[1]
    (row, _) = json.loads(text[text.index("{") :])["costs"]
    assert row["dataset"].startswith("lab:pollen@") and row["examples"] == 2 * 30 and row["bytes_per_client"] != [None]


def test_it_may_replace_an_absent_dataset(lab):
    lab()
    grid = single(SETTINGS | {"dataset": "svhn"}, [0])
    spec = ExperimentSpec(grid, overrides={"model": "mlp"}, substitutes={"svhn": "pollen"})
    images = locate(spec, select_cells(spec).selected, None)
    assert images.substitutes == {"svhn": own_data.canonical("pollen")}
    (cell,) = fit_to_images(select_cells(spec), spec, images).selected
    assert cell.config.dataset in images.found and cell.substitute == cell.config.dataset


def test_its_title_is_stored_so_that_others_report_without_the_folder(lab, monkeypatch):
    lab()
    name = own_data.canonical("pollen")
    cell = {"dataset": name, "substitute": None, "config": resolve(SETTINGS).canonical()}
    titles = titles_of_labs([cell])
    assert titles == {"dataset": {name: "Pollen"}}
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert Names(titles=titles).value("dataset", name).plain == "Pollen"
    assert Names().value("dataset", name).plain == "pollen"


def test_where_the_images_are_in_the_cache_the_folder_is_not_needed(lab, monkeypatch):
    lab()
    name = own_data.canonical("pollen")
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert datasets.load(name, None).num_classes == 3
    with pytest.raises(datasets.MissingData, match="come from a function of a lab, whose folder is not in use"):
        of_labs.find(name, None).decode(None)


def test_files_tell_when_the_function_has_to_be_called_again(lab, tmp_path, monkeypatch):
    lab(FROM_FILES)
    data_dir = tmp_path / "data"
    (data_dir / "pollen").mkdir(parents=True)
    images = np.zeros((6, 8, 8), np.uint8)
    np.save(data_dir / "pollen" / "images.npy", images)
    of_labs.look_in(data_dir)
    first = resolve(SETTINGS).dataset
    datasets.load(first, data_dir)
    forget(monkeypatch)
    assert datasets.load("pollen", data_dir).input_shape == (1, 8, 8)
    assert (data_dir / "calls").read_text() == "x"
    np.save(data_dir / "pollen" / "images.npy", np.full((8, 8, 8), 9, np.uint8))
    forget(monkeypatch)
    of_labs.look_in(data_dir)
    assert resolve(SETTINGS).dataset != first
    assert (data_dir / "calls").read_text() == "xx"


def test_without_its_files_it_is_missing(lab, tmp_path):
    lab(FROM_FILES)
    assert resolve(SETTINGS).dataset == "pollen"  # nobody knows the content
    finding = datasets.check("pollen", None)
    assert finding.status == "missing" and "pollen needs a data directory" in finding.detail
    finding = datasets.check("pollen", tmp_path)
    assert finding.status == "missing" and "load_pollen in mylab/datasets/pollen.py found no images" in finding.detail


def test_a_link_to_nothing_beside_its_files_hinders_nothing(lab, tmp_path):
    lab(FROM_FILES)
    (tmp_path / "pollen").mkdir()
    np.save(tmp_path / "pollen" / "images.npy", np.zeros((8, 4, 4, 3), np.uint8))
    (tmp_path / "pollen" / "gone.npy").symlink_to("nothing")
    assert of_labs.canonical(of_labs.entry_of("pollen"), tmp_path).startswith("lab:pollen@")


def test_messages_about_it_say_what_helps(lab, tmp_path):
    lab(FROM_FILES)
    with pytest.raises(datasets.MissingData, match="There is no dataset lab:pollen: write pollen"):
        of_labs.find("lab:pollen", tmp_path)
    with pytest.raises(datasets.DataError, match="pollen is a dataset of a lab, whose function finds its files"):
        datasets.prepare("pollen", tmp_path)


def test_a_machine_where_the_function_returns_others_does_not_train_on_them(lab, tmp_path, monkeypatch):
    lab()
    name = own_data.canonical("pollen")
    lab(POLLEN.replace("50 *", "51 *"))
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "elsewhere"))
    with pytest.raises(datasets.DataError, match=r"load_pollen in mylab/datasets/pollen.py returned other images"):
        datasets.load(name, None)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("return images[:48]", "return images", "has 60 images in x_train and 48 labels"),
        (", images[48:], labels[48:]", "", r"must return \(x_train, y_train, x_test, y_test\), but returned 2 values"),
        ("return images[:48], labels[:48], images[48:], labels[48:]", "return None", "but returned a NoneType"),
        ("images[:48],", "images[:48].tolist(),", "has a list in x_train; all four are arrays of NumPy"),
        ("images[:48],", "images[:48] / 255,", r"load_pollen in mylab/datasets/pollen.py has float64 of shape"),
        ("labels[:48],", "labels[:48] + 1,", "has no training image of label 0"),
        ("np.arange(60) % 3", "np.arange(60) % zero", "failed in line 9: NameError: name 'zero' is not defined"),
        ("import numpy as np\n", "import numpyy as np\n", "datasets/pollen.py, line 1: cannot be imported"),
        ("load_pollen()", "load_pollen(one, two)", "must be a function of the data directory, or of nothing"),
    ],
)
def test_what_is_no_dataset_gets_a_sentence(lab, before, after, sentence):
    assert before in POLLEN
    lab(POLLEN.replace(before, after, 1))
    with pytest.raises(ConfigError, match=sentence):
        resolve(SETTINGS)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ('"pollen"', '"cifar10"', "'cifar10', in datasets/loaders/cifar.py and mylab/datasets/pollen.py; rename one"),
        ("model=", "modell=", "Unknown argument of registered_dataset 'modell'. Did you mean 'model'"),
        ('model="mlp"', "files=3", "files must be a pattern or a tuple of patterns"),
    ],
)
def test_a_decorator_that_says_something_else_is_refused(lab, before, after, sentence):
    lab(POLLEN.replace(before, after, 1))
    with pytest.raises(ConfigError, match=sentence):
        datasets.names()


def test_a_cluster_gets_the_code_and_no_images(lab, tmp_path):
    lab(**{"datasets/pollen/images.bin": "much", "datasets/notes.txt": "few"})
    sent = plugins.copy_to(tmp_path / "sent")
    assert [path.name for path in sent.rglob("*") if path.is_file()] == ["pollen.py"]
