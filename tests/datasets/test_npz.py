"""Arrays of users: layouts that are read, and one sentence for every fault of a file."""

import io
import re
import zipfile

import numpy as np
import pytest

from datasets import DataError, MissingData, check, load
from datasets.transforms import Recipe, recipe

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (9, 6, 5), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (9, 6, 5, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))

    def save(images=GREY, name: str = "data.npz", **changes) -> str:
        arrays = {"x_train": images[:6], "y_train": LABELS, "x_test": images[6:], "y_test": np.array([2, 1, 0])}
        arrays = {key: value for key, value in (arrays | changes).items() if value is not None}
        np.savez(tmp_path / name, **arrays)
        return f"npz:{tmp_path / name}"

    return save


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (GREY, GREY[:, None]),
        (GREY[..., None], GREY[:, None]),
        (COLOUR, COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR.transpose(0, 3, 1, 2)),
        (np.asfortranarray(COLOUR), COLOUR.transpose(0, 3, 1, 2)),
    ],
)
def test_layouts_of_images_are_told_by_their_channels(saved, given, read):
    dataset = load(saved(given), None)
    assert np.array_equal(dataset.train.images, read[:6]) and np.array_equal(dataset.test.images, read[6:])
    assert dataset.train.labels.tolist() == LABELS.tolist() and dataset.test.labels.tolist() == [2, 1, 0]
    assert (dataset.classes, dataset.train.labels.dtype) == (("0", "1", "2"), np.int64)


def test_labels_may_be_a_column_of_any_integers_and_other_arrays_are_left(saved):
    changed = saved(y_train=LABELS[:, None].astype(np.uint8), y_test=np.array([2, 1, 0], np.int16), note=np.arange(3))
    dataset = load(changed, None)
    assert dataset.train.labels.tolist() == LABELS.tolist()
    assert check(changed, None).status == "found"


def test_images_are_resized_and_only_scaled_by_the_usual_transform(saved):
    name = saved(COLOUR)
    assert load(name, None, image_size="8x4").input_shape == (3, 8, 4)
    assert recipe("fedconcat", name) == recipe("none", name) == Recipe()
    with pytest.raises(ValueError, match="The transform moon is defined for cifar10, .* but the dataset is npz:"):
        recipe("moon", name)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"y_test": None},
            "has no array y_test; such a file holds x_train, y_train, x_test, y_test, but this one x_test",
        ),
        (
            {"x_test": GREY[6:].astype(float)},
            r"has float64 of shape \(3, 6, 5\) in x_test; images are uint8 \[n, height",
        ),
        ({"x_test": GREY[6]}, r"has uint8 of shape \(6, 5\) in x_test; images are uint8"),
        ({"images": RNG.integers(0, 9, (9, 4, 6, 5), np.uint8)}, "in which no axis is its channels"),
        ({"images": COLOUR[:, :3]}, "both the first and the last axis of an image may be its channels"),
        ({"images": np.zeros((9, 6, 0), np.uint8)}, "height and width are from 1 to 1024 pixels"),
        (
            {"x_test": GREY[6:] // 255},
            "has no value above 1 in x_test, so that all images would be black; they count from 0 to 255: multiply by 255",
        ),
        ({"y_train": LABELS[:5]}, "has 6 images in x_train and 5 labels in y_train; each image needs one label"),
        ({"x_test": GREY[:0], "y_test": LABELS[:0]}, "has 0 images in x_test and 0 labels in y_test"),
        ({"y_train": LABELS.astype(float)}, r"has float64 of shape \(6,\) in y_train; labels are integers"),
        ({"y_train": np.eye(6, 3, dtype=int)}, r"has int64 of shape \(6, 3\) in y_train; labels are integers"),
        ({"y_train": LABELS - 1}, "has the label -1 in y_train; labels count from 0 without gaps"),
        ({"y_train": LABELS + 2**60}, "in y_train; labels count from 0 without gaps"),
        ({"y_train": LABELS * 2}, "has no training image of label 1, but one of label 4; labels count from 0"),
        ({"y_test": np.array([0, 1, 3])}, "has the label 3 in y_test, but the labels of y_train end at 2"),
        (
            {"y_test": np.array([0, 0, 0])},
            "has training images but no test image of label 1, 2; each label needs both: add some",
        ),
        ({"x_test": GREY[6:, :5]}, "has images of 1x6x5 in x_train and of 1x5x5 in x_test; both need the same"),
        ({"x_test": np.array([None] * 3)}, "has Python objects in the array 'x_test', which are never read"),
    ],
)
def test_each_fault_gets_one_sentence(saved, tmp_path, changes, said):
    changes = dict(changes)
    name = saved(changes.pop("images", GREY), **changes)
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path / 'data.npz'))} .*{said}") as error:
        load(name, None)
    assert "\n" not in str(error.value)


def _with_header(shape: str, size: int = 8) -> bytes:
    """A .npy part whose header says a shape, and that has so many bytes."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.zeros(1, np.int64))
    header = file.getvalue()[:-8].replace(b"(1,)", shape.encode()[:40])
    return header[:8] + (len(header) - 10).to_bytes(2, "little") + header[10:] + bytes(size)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (None, "is no .npz file, or a damaged one"),
        ({"x_train.npy": b"text"}, "has an array 'x_train' that cannot be read"),
        (
            {"x_train.npy": _with_header("(1000000000000,)")},
            "has 8 bytes in the array 'x_train', but its shape .* needs",
        ),
        (
            {"x_train.npy": _with_header("(1,)", 80)},
            r"has 80 bytes in the array 'x_train', but its shape \(1,\) needs 8",
        ),
        *(
            ({"x_train.npy": _with_header(shape)}, "has an array 'x_train' that cannot be read")
            for shape in ("(1,", "(True,)", "(-1, -1)", "'''")
        ),
    ],
)
def test_a_hostile_file_allocates_no_more_than_it_has(tmp_path, parts, said):
    path = tmp_path / "data.npz"
    if parts is None:
        path.write_bytes(b"PK\x03\x04 and nothing")
    else:
        with zipfile.ZipFile(path, "w") as packed:
            for name, content in parts.items():
                packed.writestr(name, content)
    with pytest.raises(DataError, match=said):
        load(f"npz:{path}", None, cache_dir=tmp_path / "cache")


def test_a_file_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("x_train.npy", bytes(3_000_000))
    monkeypatch.setattr("datasets.loaders.npz.LARGEST", 2_000_000)
    with pytest.raises(DataError, match="unpacks to 3,000,000 bytes, but such a file has at most 2,000,000"):
        load(f"npz:{path}", None, cache_dir=tmp_path / "cache")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as packed:
        packed.writestr("x_train.npy", b"x")
    with pytest.raises(DataError, match="is packed by method 14"):
        load(f"npz:{path}", None, cache_dir=tmp_path / "cache")


def test_a_file_that_is_not_there_is_missing_data(tmp_path):
    with pytest.raises(MissingData, match="There is no file .*nowhere.npz: expected an .npz file with x_train"):
        load(f"npz:{tmp_path / 'nowhere.npz'}", None)
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(DataError, match="folder.npz is a folder, not a file"):
        load(f"npz:{tmp_path / 'folder.npz'}", None, cache_dir=tmp_path / "cache")
