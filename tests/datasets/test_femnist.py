"""FEMNIST is read from the JSON files of LEAF, and made from the files of LEAF or of NIST."""

import errno
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets import DataError, check, femnist, load, prepare
from datasets.loaders import leaf
from datasets.loaders.leaf import CLASSES, FOLDERS
from tests.support.leaf import TEST, TRAIN, write_femnist, write_leaf, write_nist


@pytest.fixture
def read(tmp_path):
    """Loads FEMNIST of this test's data directory."""
    return lambda **options: load("femnist", tmp_path, cache_dir=tmp_path / "cache", **options)


# Reading


def test_images_labels_and_writers_are_those_of_the_files(tmp_path, read):
    written = write_femnist(tmp_path)
    dataset = read()
    for split, names in ((dataset.train, TRAIN), (dataset.test, TEST)):
        writers = [data for name in names for data in written[name].values()]
        grey = np.concatenate([data["x"] for data in writers])
        assert np.array_equal(split.images, np.rint(255 * grey).reshape(-1, 1, 28, 28).astype(np.uint8))
        assert np.array_equal(split.images.reshape(-1, 784) / 255, grey)
        assert split.labels.tolist() == [label for data in writers for label in data["y"]]
        assert split.groups.tolist() == [k for k, data in enumerate(writers) for _ in data["y"]]
    assert (dataset.num_writers, dataset.num_classes, dataset.note) == (4, 62, "")
    assert [dataset.classes[label] for label in (0, 9, 10, 35, 36, 61)] == ["0", "9", "A", "Z", "a", "z"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_it_is_found_where_leaf_leaves_it(tmp_path, read, folder):
    write_leaf(tmp_path / folder, {TRAIN[0]: {"a": 5}, TEST[0]: {"a": 2}})
    assert read().num_writers == 1
    assert check("femnist", tmp_path, cache_dir=tmp_path / "cache").status == "found"


def test_writers_survive_the_cache_and_resizing(tmp_path, read):
    write_femnist(tmp_path)
    first, again, small = read(), read(), read(image_size=14)
    assert first.digest == again.digest != small.digest
    assert np.array_equal(first.train.groups, again.train.groups)
    assert np.array_equal(first.train.groups, small.train.groups) and small.input_shape == (1, 14, 14)


@pytest.mark.parametrize("missing, other", [(TEST[1], TRAIN[1]), (TRAIN[0], TEST[0])])
def test_a_missing_file_is_named_with_its_counterpart(tmp_path, read, missing, other):
    write_femnist(tmp_path)
    (tmp_path / "femnist" / missing).unlink()
    with pytest.raises(
        DataError,
        match=rf"{missing} is missing beside .*{other}; run 'python -m bench data prepare femnist --data-dir DIR'",
    ):
        read()


def change(tmp_path, name, edit):
    """Applies a function to the content of a file."""
    path = tmp_path / "femnist" / name
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "name, edit, said",
    [
        (TRAIN[0], lambda c: c["users"].append("f9"), "names the writer 'f9', but has no images of that writer"),
        (TRAIN[0], lambda c: c["users"].remove("f0000_0"),
         "has images of 'f0000_0', who is not among the writers that it names; run 'python -m bench data prepare"),
        (TEST[0], lambda c: (c["users"].append("f9"), c["user_data"].update(f9=c["user_data"]["f0000_0"])),
         "has the writer 'f9', who has no training images; .* -t sample"),
        (TRAIN[1], lambda c: c["user_data"]["f0001_1"]["x"].__setitem__(2, [0.5] * 1024),
         "has an image of the writer 'f0001_1' with 1024 pixels, but FEMNIST has 28x28 = 784"),
        (TRAIN[1], lambda c: c["user_data"]["f0001_1"]["y"].pop(), "21 images but 20 labels of the writer 'f0001_1'"),
        (TRAIN[1], lambda c: c["user_data"]["f0001_1"]["x"][0].__setitem__(0, 255), r"are outside \[0, 1\]"),
        (TRAIN[1], lambda c: c["user_data"]["f0001_1"]["y"].__setitem__(0, 62), r"labels 0\.\.61 only"),
        (TRAIN[1], lambda c: c["user_data"]["f0001_1"]["y"].__setitem__(0, 3.7), "has the label 3.7, which is no whole number"),
        (TRAIN[1], lambda c: c["user_data"]["f0001_1"]["y"].__setitem__(0, [3]), "has the label .3., which is no whole number"),
        (TRAIN[1], lambda c: c["user_data"]["f0001_1"].update(x=[["0.5"] * 784] * 21), "'f0001_1' are no numbers"),
        (TRAIN[1], lambda c: c.pop("user_data"), "is truncated or corrupt"),
        (TRAIN[1], lambda c: c.update(users=None), "is truncated or corrupt"),
        (TRAIN[1], lambda c: c.update(user_data=[1]), "is truncated or corrupt"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused_in_one_sentence(tmp_path, read, name, edit, said):
    write_femnist(tmp_path)
    change(tmp_path, name, edit)
    with pytest.raises(DataError, match=said):
        read()


def test_a_writer_who_is_there_twice_is_no_silent_choice(tmp_path, read):
    write_femnist(tmp_path)
    path = tmp_path / "femnist" / TRAIN[0]
    path.write_text(path.read_text().replace('"user_data": {', '"user_data": {"f0000_0": {"x": [], "y": []}, ', 1))
    with pytest.raises(DataError, match="it has the key 'f0000_0' twice"):
        read()


def test_files_without_writers_are_damaged(tmp_path, read):
    write_leaf(tmp_path / "femnist", {TRAIN[0]: {}, TEST[0]: {}})
    with pytest.raises(DataError, match="it names no writers"):
        read()


# Making


def test_whole_writers_are_drawn_until_a_twentieth_of_the_images():
    writers = {name: list(range(100)) for name in "abcdefghijklmnopqrstuvwxyz"}  # a twentieth of 2,600 is 130
    drawn = femnist.sample(writers, random.Random(0))
    assert [len(own) for own in drawn.values()] == [100, 30]
    assert all(set(own) <= set(writers[name]) for name, own in drawn.items())
    assert list(drawn) != list(femnist.sample(writers, random.Random(1)))


@pytest.mark.parametrize("size, num_train", [(1, 1), (2, 1), (10, 9), (100, 90), (105, 94)])
def test_nine_tenths_of_a_writer_are_for_training(size, num_train):
    train, test = femnist.split(list(range(size)), random.Random(0))
    assert len(train) == num_train and sorted(train + test) == list(range(size))
    assert train == sorted(train) and test == sorted(test)


def test_leafs_unsampled_files_are_sampled_and_split(tmp_path, monkeypatch, read):
    monkeypatch.setattr(femnist, "SMALLEST_WRITER", 10)
    writers = {f"w{number}": 10 for number in range(60)}
    written = write_leaf(
        tmp_path / "femnist", {"all_data/all_data_0.json": writers, "all_data/all_data_1.json": writers}
    )
    prepare("femnist", tmp_path)
    dataset = read()
    # A twentieth of 60 writers with 10 images are three writers in each file; 9 of their images are for training.
    assert np.bincount(dataset.train.groups).tolist() in ([9] * 6, [18] + [9] * 4, [18] * 2 + [9] * 2, [18] * 3)
    assert len(dataset.train.labels) == 6 * 9 and len(dataset.test.labels) == 6
    known = {tuple(x) for file in written.values() for own in file.values() for x in own["x"]}
    assert {tuple(x) for x in dataset.train.images.reshape(-1, 784)[:50] / 255} <= known


def test_nists_images_get_the_labels_of_by_class_and_leafs_size(tmp_path, monkeypatch, read):
    monkeypatch.setattr(femnist, "SMALLEST_WRITER", 4)
    monkeypatch.setattr(femnist, "FRACTION", 0.5)
    write_nist(tmp_path / "femnist", {"f0001_1": 6, "f0002_2": 6})
    prepare("femnist", tmp_path)
    dataset = read()
    assert (dataset.num_writers, len(dataset.train.labels), len(dataset.test.labels)) == (1, 5, 1)
    assert sorted(dataset.classes[label] for label in [*dataset.train.labels, *dataset.test.labels]) == list("00AAzz")
    expected = set()
    for path in (tmp_path / "femnist" / "by_write").rglob("*.png"):
        image = Image.open(path)
        image.thumbnail((28, 28), Image.Resampling.LANCZOS)
        expected.add(np.asarray(image).tobytes())
    assert {image.tobytes() for image in dataset.train.images} <= expected


@pytest.mark.slow
def test_made_files_are_the_same_each_time_and_are_not_made_again(tmp_path):
    for name in ("one", "two"):
        write_leaf(tmp_path / name / "femnist", {"all_data/all_data_0.json": {f"w{k}": 110 for k in range(40)}})
        prepare("femnist", tmp_path / name)
    (one,), (two,) = ([*(tmp_path / name / "femnist" / "train").iterdir()] for name in ("one", "two"))
    assert one.name == TRAIN[0].partition("/")[2] and one.read_bytes() == two.read_bytes()
    one.write_text("{}")
    prepare("femnist", tmp_path / "one")
    assert one.read_text() == "{}"


@pytest.mark.parametrize("done", [0, 4, 6, 7, 10, 11])
def test_what_an_interruption_has_left_is_not_taken_for_the_whole(tmp_path, monkeypatch, read, done):
    """Six files are written, and then moved to their places."""
    monkeypatch.setattr(femnist, "SMALLEST_WRITER", 2)
    monkeypatch.setattr(femnist, "FRACTION", 1.0)
    raw = {f"all_data/all_data_{part}.json": {f"w{part}-{k}": 10 for k in range(2)} for part in range(3)}
    write_leaf(tmp_path / "femnist", raw)

    def until_full(do):
        def maybe(*arguments, **options):
            nonlocal done
            done -= 1
            if done < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return do(*arguments, **options)

        return maybe

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", until_full(Path.write_text))
        disk.setattr(os, "replace", until_full(os.replace))
        with pytest.raises(DataError, match="Could not write femnist .*No space left"):
            prepare("femnist", tmp_path)
    assert check("femnist", tmp_path, cache_dir=tmp_path / "cache").status != "found"
    prepare("femnist", tmp_path)
    assert read().num_writers == 6


def test_without_files_to_make_it_from_it_is_said_what_to_download(tmp_path):
    with pytest.raises(
        DataError, match=r"download by_class\.zip and by_write\.zip of NIST .* unpack both in .*femnist"
    ):
        prepare("femnist", tmp_path)
    with pytest.raises(DataError, match="femnist needs a data directory"):
        prepare("femnist", None)


def test_an_image_that_has_no_class_is_named(tmp_path):
    write_nist(tmp_path / "femnist", {"f0001_1": 6})
    (tmp_path / "femnist" / "by_class" / "41" / "hsf_0" / "hsf_0_f0001_1_1.png").unlink()
    with pytest.raises(
        DataError, match="df0001_1_1.png is not among the images of .*by_class; unpack both archives again"
    ):
        prepare("femnist", tmp_path)


def test_a_folder_that_is_no_class_is_named(tmp_path):
    write_nist(tmp_path / "femnist", {"f0001_1": 6}, codes=("0x",))
    with pytest.raises(DataError, match="by_class/0x is not the code of a digit or letter"):
        prepare("femnist", tmp_path)


def test_files_with_too_few_images_are_refused(tmp_path):
    write_leaf(tmp_path / "femnist", {"all_data/all_data_0.json": {"a": 110, "b": 110}})
    with pytest.raises(
        DataError, match="No writer of femnist with at least 100 images is among the 5% that LEAF draws"
    ):
        prepare("femnist", tmp_path)


def test_labels_are_in_the_order_of_leaf():
    assert "".join(CLASSES) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def test_grey_levels_are_rounded_to_the_nearest_byte():
    images, _ = leaf._read_writer(Path("file"), "a", {"x": [[0.0, 0.9999] * 392], "y": [0]}, "femnist")
    assert np.unique(images).tolist() == [0, 255]
