"""Every dataset is read from small files in its original format, and from image folders."""

import re
import shutil

import numpy as np
import pytest
from PIL import Image

import datasets
from bench.errors import ConfigError
from datasets import DataError, MissingData, load
from datasets.image_size import read_image_size
from tests.support.small_datasets import (
    RNG,
    idx_bytes,
    random_images,
    write_cifar10,
    write_cifar100,
    write_folders,
    write_idx,
    write_pickle,
    write_png,
    write_svhn,
    write_tinyimagenet,
)


@pytest.fixture
def read(tmp_path):
    """Loads a dataset of this test's data directory."""
    return lambda name, **options: load(name, tmp_path, cache_dir=tmp_path / "cache", **options)


@pytest.mark.parametrize("folder", ["cifar-10-batches-py", "cifar10/cifar-10-batches-py"])
def test_cifar10_is_read_from_its_pickles(tmp_path, read, folder):
    images, labels = write_cifar10(tmp_path / folder)
    dataset = read("cifar10")
    assert np.array_equal(dataset.train.images, images[:20])
    assert np.array_equal(dataset.train.labels, labels[:20])
    assert np.array_equal(dataset.test.images, images[20:])
    assert np.array_equal(dataset.test.labels, labels[20:])
    assert (dataset.train.images.dtype, dataset.train.labels.dtype) == (np.uint8, np.int64)
    assert dataset.classes[3] == "class-3"
    assert (dataset.num_classes, dataset.input_shape) == (10, (3, 32, 32))
    assert dataset.source == f"pickles in {tmp_path / folder}"
    assert dataset.note == "20 training images, 4 test images"


def test_cifar100_has_fine_and_coarse_labels(tmp_path, read):
    images, fine, coarse = write_cifar100(tmp_path / "cifar-100-python")
    for name, labels in (("cifar100", fine), ("cifar100-coarse", coarse)):
        dataset = read(name)
        assert np.array_equal(dataset.train.images, images[:20])
        assert np.array_equal(dataset.train.labels, labels[:20])
        assert np.array_equal(dataset.test.labels, labels[20:])
    assert dataset.classes == tuple(f"coarse-{i}" for i in range(20))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST/raw"), ("fmnist", "FashionMNIST/raw"), ("mnist", "mnist")]
)
def test_idx_files_are_read_gzipped_or_not(tmp_path, read, name, folder, zipped):
    images, labels = write_idx(tmp_path / folder, zipped)
    dataset = read(name)
    assert np.array_equal(dataset.train.images, images[:10])
    assert np.array_equal(dataset.train.labels, labels[:10])
    assert np.array_equal(dataset.test.images, images[10:])
    assert np.array_equal(dataset.test.labels, labels[10:])


@pytest.mark.parametrize("folder", ["", "svhn"])
def test_svhn_is_read_from_matlab_files_with_the_digit_0_as_class_0(tmp_path, read, folder):
    images, labels = write_svhn(tmp_path / folder)
    dataset = read("svhn")
    assert np.array_equal(dataset.train.images, images[:20])
    assert np.array_equal(dataset.train.labels, labels[:20])
    assert np.array_equal(dataset.test.images, images[20:])
    assert np.array_equal(dataset.test.labels, labels[20:])


def test_tinyimagenet_keeps_the_classes_with_training_images(tmp_path, read):
    train, validation = write_tinyimagenet(tmp_path / "tiny-imagenet-200")
    dataset = read("tinyimagenet")
    assert dataset.classes == ("n01", "n02")
    assert dataset.note == "2 of 200 classes, 22 training images, 4 test images"
    assert np.array_equal(dataset.train.images, np.concatenate([train["n01"], train["n02"]]))
    assert dataset.train.labels.tolist() == [0] * 11 + [1] * 11
    assert np.array_equal(dataset.test.images, validation[[1, 4, 0, 3]])
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("name", [name for name in datasets.INFO if name != "digits"])
def test_every_dataset_is_read_from_image_folders(tmp_path, read, name):
    channels = datasets.INFO[name].input_shape[0]
    images = random_images(4, channels, 32)
    write_folders(tmp_path / name, ["cat", "dog"], images)
    dataset = read(name)
    assert np.array_equal(dataset.train.images, images)
    assert np.array_equal(dataset.test.images, images)
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    assert dataset.classes == ("cat", "dog")
    assert dataset.source == f"image folders in {tmp_path / name}"


def test_cinic10_is_read_from_its_own_folder_without_valid(tmp_path, read):
    images = random_images(4, 3, 32)
    write_folders(tmp_path / "CINIC-10", ["cat", "dog"], images)
    write_png(tmp_path / "CINIC-10" / "valid" / "elk" / "0.png", images[0])
    assert read("cinic10").classes == ("cat", "dog")


def test_an_image_folder_anywhere_is_a_dataset(tmp_path):
    images = random_images(4, 3, 20)
    write_folders(tmp_path / "mine", ["a", "b"], images)
    dataset = load(f"imagefolder:{tmp_path / 'mine'}", None, cache_dir=tmp_path / "cache")
    assert np.array_equal(dataset.train.images, images)
    assert (dataset.input_shape, dataset.note) == ((3, 20, 20), "")


def test_names_are_in_natural_order_and_other_files_are_ignored(tmp_path, read):
    images = random_images(24, 1, 8)
    write_folders(tmp_path / "mnist", ["2", "10"], images, per_class=12)
    (tmp_path / "mnist" / "train" / "2" / "Thumbs.db").write_text("not an image")
    (tmp_path / "mnist" / "train" / "2" / "._0.png").write_text("not an image")
    (tmp_path / "mnist" / "train" / ".hidden").mkdir()
    dataset = read("mnist")
    assert dataset.classes == ("2", "10")
    assert np.array_equal(dataset.train.images, images)


def test_grey_images_in_a_colour_dataset_become_colour(tmp_path, read):
    write_folders(tmp_path / "cinic10", ["a", "b"], grey := random_images(4, 1, 32))
    assert np.array_equal(read("cinic10").train.images, grey.repeat(3, axis=1))


@pytest.mark.parametrize(("pixels", "suffix", "mode"), [(np.uint16, "png", "I;16"), (np.float32, "tiff", "F")])
def test_images_of_more_than_8_bits_are_refused(tmp_path, read, pixels, suffix, mode):
    write_folders(tmp_path / "cinic10", ["a", "b"], random_images(4, 3, 32))
    deep = RNG.integers(2000, 60000, (32, 32)).astype(pixels)
    Image.fromarray(deep).save(tmp_path / "cinic10" / "train" / "b" / f"2.{suffix}")
    said = rf"b/2\.{suffix} has pixels of more than 8 bits \(Pillow's mode {mode}\); convert the images to 8 bits"
    with pytest.raises(DataError, match=said):
        read("cinic10")


def test_image_size_resizes_image_files_of_any_size(tmp_path, read):
    write_folders(tmp_path / "cinic10", ["a", "b"], images := random_images(4, 3, 64))
    write_png(tmp_path / "cinic10" / "train" / "a" / "1.png", np.full((3, 10, 20), 7, dtype=np.uint8))
    dataset = read("cinic10", image_size=32)
    assert dataset.input_shape == (3, 32, 32)
    assert (dataset.train.images[1] == 7).all()
    resized = Image.fromarray(images[0].transpose(1, 2, 0)).resize((32, 32), Image.Resampling.BILINEAR)
    assert np.array_equal(dataset.train.images[0], np.asarray(resized).transpose(2, 0, 1))


def test_images_need_not_become_square(tmp_path):
    write_folders(tmp_path / "mine", ["a", "b"], images := random_images(4, 3, 40))
    write_png(tmp_path / "mine" / "test" / "b" / "1.png", RNG.integers(0, 256, (3, 17, 60), dtype=np.uint8))
    found = {
        size: load(f"imagefolder:{tmp_path / 'mine'}", None, cache_dir=tmp_path / "cache", image_size=size)
        for size in ("24x32", "32x24", 24)
    }
    assert [one.input_shape for one in found.values()] == [(3, 24, 32), (3, 32, 24), (3, 24, 24)]
    assert len({one.digest for one in found.values()}) == 3
    resized = Image.fromarray(images[0].transpose(1, 2, 0)).resize((32, 24), Image.Resampling.BILINEAR)  # width, height
    assert np.array_equal(found["24x32"].train.images[0], np.asarray(resized).transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("given", "read"),
    [(32, 32), ("32x32", 32), ([32, 32], 32), ("24x32", "24x32"), ([24, 32], "24x32"), ((1, 2), "1x2")],
)
def test_a_size_of_images_has_one_name(given, read):
    assert read_image_size(given) == read


@pytest.mark.parametrize(
    "given", [0, -3, 1025, 100_000, 32.5, True, "32", "24x", "0x3", "24 x 32", [24], [24, 32, 3], [0, 3], [1.5, 2], {}]
)
def test_what_is_no_size_of_images_is_told(given):
    with pytest.raises(
        ValueError, match=f"^image_size must be a number of pixels.* but got {re.escape(repr(given))}.$"
    ):
        read_image_size(given)


def test_image_size_resizes_arrays_like_image_files(tmp_path, read):
    images, _ = write_cifar10(tmp_path / "cifar-10-batches-py")
    resized = Image.fromarray(images[0].transpose(1, 2, 0)).resize((16, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(read("cifar10", image_size=16).train.images[0], np.asarray(resized).transpose(2, 0, 1))


def test_digits_are_split_80_to_20_by_class(tmp_path):
    dataset = load("digits", None, cache_dir=tmp_path)
    info = datasets.INFO["digits"]
    assert dataset.train.images.shape == (1437, 1, 8, 8)
    assert dataset.test.images.shape == (360, 1, 8, 8)
    assert tuple(np.bincount(dataset.train.labels)) == info.class_counts
    assert np.bincount(dataset.test.labels).tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]
    assert (dataset.train.images.min(), dataset.train.images.max()) == (0, 255)
    assert dataset.note == ""


def test_digits_scale_grey_levels_by_255_over_16():
    from datasets.loaders import digits

    levels = np.unique(digits.find("digits", None).decode(None).train_images)
    assert levels.tolist() == [int(np.rint(level * 255 / 16)) for level in range(17)]


@pytest.mark.parametrize("name", list(datasets.INFO))
def test_the_facts_agree_with_each_other(name):
    info = datasets.INFO[name]
    if info.train_size is None:
        assert info.class_counts == ()
        return
    assert len(info.class_counts) == info.num_classes
    assert sum(info.class_counts) == info.train_size


# Bad input: one sentence that names the file and the remedy.


def truncate(path, keep=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


@pytest.mark.parametrize("keep", [0, 0.02, 0.5, 0.99])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_truncated_image_is_named(tmp_path, read, suffix, keep):
    write_folders(tmp_path / "cifar10", ["a", "b"], random_images(4, 3, 32))
    image = tmp_path / "cifar10" / "test" / "b" / f"7.{suffix}"
    write_png(image, random_images(1, 3, 32)[0])
    truncate(image, keep)
    with pytest.raises(DataError, match=rf"7\.{suffix} is truncated or corrupt \(.*\); delete it and run 'python -m b"):
        read("cifar10")


@pytest.mark.parametrize("keep", [0, 0.001, 0.5, 0.99])
@pytest.mark.parametrize("file", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_truncated_pickle_is_named(tmp_path, read, file, keep):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    truncate(tmp_path / "cifar-10-batches-py" / file, keep)
    with pytest.raises(DataError, match=rf"{file} is truncated or corrupt \(.*data prepare cifar10 --data-dir DIR'"):
        read("cifar10")


def test_a_pickle_that_runs_code_is_refused(tmp_path, read):
    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm"), "w"))

    write_cifar10(tmp_path / "cifar-10-batches-py")
    write_pickle(tmp_path / "cifar-10-batches-py" / "data_batch_1", {"data": Attack()})
    with pytest.raises(DataError, match=r"data_batch_1 is truncated or corrupt \(it contains \w+\.open\)"):
        read("cifar10")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("content", [["no dict"], {"labels": [0]}, {"data": np.zeros((2, 3072)), "labels": [1]}])
def test_a_pickle_of_something_else_is_named(tmp_path, read, content):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    write_pickle(tmp_path / "cifar-10-batches-py" / "data_batch_2", content)
    with pytest.raises(DataError, match="data_batch_2 is truncated or corrupt"):
        read("cifar10")


@pytest.mark.parametrize("keep", [0, 0.001, 0.5, 0.99])
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("part", ["train-images-idx3", "t10k-labels-idx1"])
def test_a_truncated_idx_file_is_named(tmp_path, read, part, zipped, keep):
    write_idx(tmp_path / "MNIST" / "raw", zipped)
    truncate(tmp_path / "MNIST" / "raw" / (f"{part}-ubyte" + ".gz" * zipped), keep)
    with pytest.raises(
        DataError, match=rf"{part}-ubyte.* is truncated or corrupt .*data prepare mnist --data-dir DIR'"
    ):
        read("mnist")


def test_images_and_labels_of_different_length_are_refused(tmp_path, read):
    write_idx(tmp_path / "MNIST" / "raw", zipped=False)
    (tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(3)))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte is .*\(10, 28, 28\) beside labels of shape \(3,\)"):
        read("mnist")


@pytest.mark.parametrize("keep", [0, 0.001, 0.5, 0.99])
def test_a_truncated_matlab_file_is_named(tmp_path, read, keep):
    write_svhn(tmp_path)
    truncate(tmp_path / "test_32x32.mat", keep)
    with pytest.raises(DataError, match=r"test_32x32\.mat is truncated or corrupt .*data prepare svhn --data-dir DIR'"):
        read("svhn")


def test_labels_outside_the_classes_are_refused(tmp_path, read):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    write_pickle(tmp_path / "cifar-10-batches-py" / "batches.meta", {"label_names": ["a", "b"]})
    with pytest.raises(DataError, match=r"labels 0\.\.1 only"):
        read("cifar10")


@pytest.mark.parametrize(
    ("name", "write", "file"),
    [
        (
            "cifar10",
            lambda folder: write_cifar10(folder / "cifar-10-batches-py"),
            "cifar-10-batches-py/data_batch_4",
        ),
        ("cifar100", lambda folder: write_cifar100(folder / "cifar-100-python"), "cifar-100-python/meta"),
        ("fmnist", lambda folder: write_idx(folder / "fmnist", True), "fmnist/t10k-labels-idx1-ubyte.gz"),
        ("svhn", write_svhn, "train_32x32.mat"),
        (
            "tinyimagenet",
            lambda folder: write_tinyimagenet(folder / "tiny-imagenet-200"),
            "tiny-imagenet-200/val/val_annotations.txt",
        ),
        (
            "tinyimagenet",
            lambda folder: write_tinyimagenet(folder / "tiny-imagenet-200"),
            "tiny-imagenet-200/val/images/val_3.png",
        ),
    ],
)
def test_a_missing_file_is_named(tmp_path, read, name, write, file):
    write(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(DataError, match=file.removesuffix(".gz")) as caught:
        read(name)
    assert not isinstance(caught.value, MissingData)
    assert datasets.check(name, tmp_path, cache_dir=tmp_path / "cache").status == "incomplete"


def test_damaged_annotations_of_tinyimagenet_are_named(tmp_path, read):
    write_tinyimagenet(tmp_path / "tiny-imagenet-200")
    truncate(tmp_path / "tiny-imagenet-200" / "val" / "val_annotations.txt", keep=0.1)
    with pytest.raises(DataError, match=r"val_annotations\.txt is truncated|names no image of class n01"):
        read("tinyimagenet")


def test_different_classes_in_train_and_test_are_refused(tmp_path, read):
    write_folders(tmp_path / "cinic10", ["a", "b"], random_images(4, 3, 32))
    (tmp_path / "cinic10" / "test" / "b").rename(tmp_path / "cinic10" / "test" / "c")
    with pytest.raises(DataError, match="must have the same classes, but 'b' is only in train"):
        read("cinic10")


def test_a_class_without_images_is_refused(tmp_path, read):
    write_folders(tmp_path / "cinic10", ["a", "b"], random_images(4, 3, 32))
    for split in ("train", "test"):
        (tmp_path / "cinic10" / split / "empty").mkdir()
    with pytest.raises(DataError, match="train/empty has no images"):
        read("cinic10")


@pytest.mark.parametrize("place", [".", "a/sub"])
def test_images_that_would_not_be_read_are_refused(tmp_path, read, place):
    write_folders(tmp_path / "cinic10", ["a", "b"], random_images(4, 3, 32))
    train = tmp_path / "cinic10" / "train"
    (train / "a" / ".thumbnails").mkdir()
    shutil.copy(next((train / "b").iterdir()), train / "a" / ".thumbnails" / "1.png")
    read("cinic10")
    (train / place).mkdir(exist_ok=True)
    shutil.copy(next((train / "b").iterdir()), train / place / "1.png")
    with pytest.raises(DataError, match="1.png would not be read, as images lie directly in the folder of their class"):
        read("cinic10")


def test_image_folders_need_a_test_folder_with_classes(tmp_path, read):
    write_folders(tmp_path / "cinic10", ["a", "b"], random_images(4, 3, 32))
    (tmp_path / "cinic10" / "test").rename(tmp_path / "cinic10" / "elsewhere")
    with pytest.raises(DataError, match="a folder train but no folder test"):
        read("cinic10")
    (tmp_path / "cinic10" / "test").mkdir()
    with pytest.raises(DataError, match="test has no folder per class"):
        read("cinic10")


def test_images_of_different_sizes_need_an_image_size(tmp_path, read):
    write_folders(tmp_path / "cinic10", ["a", "b"], random_images(4, 3, 32))
    write_png(tmp_path / "cinic10" / "train" / "b" / "0.png", np.zeros((3, 16, 24), np.uint8))
    said = r"b/0\.png has 16x24 pixels and .*a/0\.png has 32x32 \(height x width\); set a common size, such as image_size=32"
    with pytest.raises(DataError, match=said):
        read("cinic10")


@pytest.mark.parametrize("name", [name for name in datasets.INFO if name != "digits"])
def test_missing_data_is_one_sentence_with_the_expected_files(tmp_path, read, name):
    with pytest.raises(MissingData, match=rf"No {name} in .*: expected .* or {name}/{{train,test}}/<class>/"):
        read(name)
    with pytest.raises(MissingData, match="data directory .*nowhere does not exist; .*, or name another"):
        load(name, tmp_path / "nowhere")
    with pytest.raises(MissingData, match=f"{name} needs a data directory; name it with --data-dir"):
        load(name, None)
    with pytest.raises(MissingData, match="There is no folder .*nowhere: expected"):
        load(f"imagefolder:{tmp_path / 'nowhere'}", None)


@pytest.mark.parametrize("call", [load, datasets.check, datasets.prepare])
def test_an_unknown_dataset_gets_the_nearest_name(tmp_path, call):
    with pytest.raises(ValueError, match=r"Unknown dataset 'cifar01'\. Did you mean 'cifar10'\? Known: cifar10, "):
        call("cifar01", tmp_path)


def test_a_file_of_the_harness_that_registers_other_facts_is_named(monkeypatch):
    entry = datasets.info.REGISTRY["digits"]
    monkeypatch.setitem(entry.given, "modell", "mlp")
    with pytest.raises(ConfigError, match=r"^datasets/loaders/digits.py: .* DatasetInfo: .*'modell'"):
        datasets.facts_of("digits")
