"""Transforms that are functions of labs."""

import sys

import pytest
import torch

from bench import plugins, registry
from bench.cli.listing import listing
from bench.config import stale
from bench.config.code_version import code_version, files_of
from bench.config.resolve import resolve
from bench.config.schema import run_id
from bench.errors import ConfigError
from bench.results.store import Store
from datasets import transforms
from tests.support import method_files

TURNED = '''from datasets.transforms import ALL, Recipe, registered_transform


@registered_transform("turned")
def turned():
    """Images are turned."""
    return {"pollen": Recipe(flip=True), ALL: Recipe(rotation=30.0)}
'''
SETTINGS = {"algorithm": "fedavg", "dataset": "digits", "partition": "iid", "rounds": 1, "transform": "turned"}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Writes and uses a folder with one transform."""

    def make(content=TURNED):
        method_files.use(tmp_path / "mylab", monkeypatch, {"transforms/turned.py": content})
        return tmp_path / "mylab"

    return make


def test_it_is_known_before_its_file_is_imported(lab):
    assert registry.held_by(lab()) == ["1 transform"]
    assert ("turned", "Images are turned.") in listing("transforms")
    assert "datasets.transforms.turned" not in sys.modules
    with pytest.raises(ConfigError, match="Unknown transform 'turnd'. Did you mean 'turned'"):
        resolve(SETTINGS | {"transform": "turnd"})


def test_a_dataset_of_a_lab_has_the_recipe_of_its_name_whatever_its_images(lab):
    lab()
    of_pollen = transforms.Recipe(flip=True)
    assert transforms.recipe("turned", "pollen") == transforms.recipe("turned", f"lab:pollen@{'0' * 16}") == of_pollen
    assert transforms.recipe("turned", "digits") == transforms.Recipe(rotation=30.0)
    images = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    turned = transforms.build("turned", "digits", (1, 8, 8))
    assert not turned.augment(images, {"angle": torch.tensor([0.5])}).equal(images)


def test_an_edited_transform_makes_its_runs_stale_and_a_raised_version_makes_other_runs(lab, tmp_path):
    folder = lab()
    config = resolve(SETTINGS)
    record = {"code": code_version(config)}
    assert "transform turned" in record["code"] and stale.changes(record, config, Store(tmp_path / "store")) == ()
    assert folder / "transforms" / "turned.py" in files_of(config)
    others = resolve(SETTINGS | {"transform": "none"})
    assert (
        record["code"].items() - {("transform turned", record["code"]["transform turned"])}
        == code_version(others).items()
    )
    lab(TURNED.replace("30.0", "20.0"))
    edited = resolve(SETTINGS)
    assert run_id(edited) == run_id(config)
    assert [part for part, _ in stale.changes(record, edited, Store(tmp_path / "store"))] == ["transform turned"]
    lab(TURNED.replace('"turned"', '"turned", version=2'))
    assert resolve(SETTINGS).versions["transform"] == 2 and run_id(resolve(SETTINGS)) != run_id(config)


def test_without_the_folder_nothing_is_known_about_its_code(lab, monkeypatch, tmp_path):
    lab()
    config = resolve(SETTINGS)
    record = {"code": code_version(config)}
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert stale.changes(record, config, Store(tmp_path / "store")) == ()


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("flip=True", "flop=True", "turned in mylab/transforms/turned.py failed in line 7: TypeError"),
        ("flip=True", 'padding="mirror"', 'padding must be "reflect", "zero" or "", but got \'mirror\''),
        ("flip=True", "mean=(0.5,)", "mean and std need one number for each channel"),
        (
            "flip=True",
            "mean=(127.5,), std=(60.0,)",
            r"are those of images scaled to \[0, 1\], but got the mean \(127.5,\)",
        ),
        (
            "flip=True",
            'rotation="30"',
            "failed in line 7: ValueError: rotation, mean and std are numbers, but got '30'",
        ),
        ("flip=True", "mean=(float('nan'),), std=(1.0,)", "rotation, mean and std are numbers, but got nan"),
        ("flip=True", "image_size=-3", "image_size must be a whole number of at least 1, but got -3"),
        ("flip=True", 'padding="zero", pad=1.5', "pad must be a whole number of at least 0, but got 1.5"),
        ("Recipe(flip=True)", "3", "turned in mylab/transforms/turned.py must return a Recipe for each dataset"),
        ("ALL: Recipe(", '"mnist": Recipe(', "turned is defined for pollen, mnist, but the dataset is digits"),
        (
            '"turned"',
            '"turned", versoin=2',
            "Unknown argument of registered_transform 'versoin'. Did you mean 'version'",
        ),
        ('"turned"', '"turned", version=0', "version must be a whole number from 1 on, but got 0"),
        (
            "ALL: Recipe(",
            '"minst": Recipe(), ALL: Recipe(',
            "^turned in mylab/transforms/turned.py, line 4: Unknown dataset 'minst'. Did you mean 'mnist'",
        ),
        (
            "def turned():",
            "@functools.cache\ndef turned():",
            "^turned in mylab/transforms/turned.py, line 6: Unknown dataset 'minst'",
        ),
        ('"turned"', '"moon"', "Two things are registered as 'moon'"),
    ],
)
def test_what_is_no_transform_gets_a_sentence(lab, before, after, sentence):
    text = TURNED.replace(before, after, 1)
    if "functools" in after:
        text = "import functools\n\n" + text.replace('"pollen": Recipe', '"minst": Recipe')
    lab(text)
    with pytest.raises(ConfigError, match=sentence):
        resolve(SETTINGS)


def test_a_recipe_for_other_channels_than_those_of_the_images_is_refused():
    with pytest.raises(ValueError, match="A transform normalises 3 channels, but the images have 1"):
        transforms.build("fedcat", "cifar10", (1, 8, 8))


def test_a_recipe_that_reflects_more_pixels_than_the_images_have_is_refused():
    recipe = transforms.Recipe(padding="reflect", pad=8)
    with pytest.raises(ValueError, match="A transform reflects 8 pixels, but the images have 8x9"):
        transforms.base.prepare(recipe, (1, 8, 9))
    assert transforms.base.prepare(recipe, (1, 9, 9))
