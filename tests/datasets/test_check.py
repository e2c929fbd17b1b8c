"""`check` tells what is there; `prepare` fetches what torchvision has."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image

import datasets
from datasets import DataError, Finding, check, prepare


def test_digits_are_always_found(tmp_path):
    found = Finding("digits", "found", "images that come with scikit-learn")
    assert check("digits", None, cache_dir=tmp_path) == found


def test_missing_data_is_reported_with_the_remedy(tmp_path):
    finding = check("svhn", tmp_path)
    assert finding.status == "missing"
    assert finding.detail.endswith("run 'python -m bench data prepare svhn --data-dir DIR'.")
    assert check("svhn", tmp_path / "nowhere").status == "missing"
    assert "CS231n" in check("tinyimagenet", tmp_path).detail


def test_real_images_are_found_and_complete(real_data):
    for name, detail in (("cifar10", "image folders in"), ("mnist", "IDX files in")):
        finding = check(name, real_data)
        assert finding.status == "found"
        assert finding.detail.startswith(detail)


def test_a_part_of_tinyimagenet_is_named_as_such(real_data):
    finding = check("tinyimagenet", real_data)
    assert finding.status == "incomplete"
    assert "20 of 200 classes, 2,000 training images, 1,000 test images; usable" in finding.detail


def test_real_cifar10_has_the_original_classes_and_counts(real_data):
    dataset = datasets.load("cifar10", real_data)
    assert (dataset.num_classes, dataset.input_shape, dataset.note) == (10, (3, 32, 32), "")
    assert dataset.classes[:4] == ("airplane", "automobile", "bird", "cat")
    assert np.bincount(dataset.train.labels).tolist() == [5000] * 10
    assert np.bincount(dataset.test.labels).tolist() == [1000] * 10
    # Means of the channels of CIFAR-10 as everybody quotes them: 0.491, 0.482, 0.447.
    means = dataset.train.images[::10].mean(axis=(0, 2, 3)) / 255
    assert np.abs(means - [0.491, 0.482, 0.447]).max() < 0.005


def test_real_mnist_has_the_original_counts(real_data):
    dataset = datasets.load("mnist", real_data)
    assert tuple(np.bincount(dataset.train.labels)) == datasets.INFO["mnist"].class_counts
    assert dataset.test.images.shape == (10_000, 1, 28, 28)
    assert dataset.train.labels[:5].tolist() == [5, 0, 4, 1, 9]


def test_real_tinyimagenet_is_decoded_at_the_size_asked_for(real_data):
    dataset = datasets.load("tinyimagenet", real_data, image_size=32)
    assert dataset.train.images.shape == (2000, 3, 32, 32)
    assert np.bincount(dataset.train.labels).tolist() == [100] * 20
    assert np.bincount(dataset.test.labels).tolist() == [50] * 20


@pytest.mark.parametrize(
    ("name", "class_name", "root", "splits"),
    [
        ("cifar10", "CIFAR10", "", [{"train": True}, {"train": False}]),
        ("cifar100-coarse", "CIFAR100", "", [{"train": True}, {"train": False}]),
        ("svhn", "SVHN", "svhn", [{"split": "train"}, {"split": "test"}]),
        ("fmnist", "FashionMNIST", "", [{"train": True}, {"train": False}]),
    ],
)
def test_prepare_asks_torchvision_for_both_splits(tmp_path, monkeypatch, name, class_name, root, splits):
    asked = []
    monkeypatch.setattr(torchvision.datasets, class_name, lambda **options: asked.append(options))
    prepare(name, tmp_path / "new")
    assert asked == [{"root": str(tmp_path / "new" / root), "download": True} | split for split in splits]
    assert (tmp_path / "new" / root).is_dir()


def test_a_failed_download_is_one_sentence(tmp_path, monkeypatch):
    def fail(**_):
        raise RuntimeError("no route to host")

    monkeypatch.setattr(torchvision.datasets, "MNIST", fail)
    with pytest.raises(DataError, match=r"Could not download mnist to .* \(no route to host\); check the connection"):
        prepare("mnist", tmp_path)


@pytest.mark.parametrize("name", ["tinyimagenet", "cinic10", "imagefolder:somewhere"])
def test_prepare_says_what_torchvision_lacks(tmp_path, name):
    with pytest.raises(DataError, match=f"torchvision does not download {name}; .*expected .*train"):
        prepare(name, tmp_path)


def test_prepare_needs_a_data_directory_except_for_digits():
    prepare("digits", None)
    with pytest.raises(DataError, match="--data-dir"):
        prepare("cifar10", None)


@pytest.mark.slow
def test_loading_imports_neither_torch_nor_torchvision(tmp_path):
    code = (
        "import sys, pathlib, datasets, datasets.partitions, datasets.show\n"
        f"datasets.load('digits', None, cache_dir=pathlib.Path({str(tmp_path)!r}))\n"
        "print([name for name in ('torch', 'torchvision', 'matplotlib') if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_images_of_several_sizes_are_complete_in_one_size(tmp_path):
    for split in ("train", "test"):
        for name, side in (("a", 8), ("b", 9)):
            path = tmp_path / "mine" / split / name / "0.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (side, side)).save(path)
    name, cache = f"imagefolder:{tmp_path / 'mine'}", tmp_path / "cache"
    assert check(name, None, cache_dir=cache).status == "incomplete"
    assert check(name, None, cache_dir=cache, image_size="8x9").status == "found"
