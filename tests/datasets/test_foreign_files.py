"""Files of a dataset come from others: each is a regular file of a bounded size inside the dataset's folder, or is named."""

import gzip
import json
import os
import shutil
import signal

import pytest

from datasets import DataError, download, load
from datasets.loaders import idx
from tests.support import small_datasets as small
from tests.support.leaf import TRAIN, write_femnist

HUGE = 20_000_000_000  # bytes; a file with a hole takes no room on the disk
LAYOUTS = {  # dataset -> what writes it, one of its files
    "cifar10": (small.write_cifar10, "cifar-10-batches-py", "cifar-10-batches-py/data_batch_2"),
    "svhn": (small.write_svhn, "svhn", "svhn/train_32x32.mat"),
    "tinyimagenet": (small.write_tinyimagenet, "tiny-imagenet-200", "tiny-imagenet-200/val/images/val_3.png"),
    "femnist": (write_femnist, "", f"femnist/{TRAIN[1]}"),
    "mnist": (lambda folder: small.write_idx(folder, zipped=True), "mnist", "mnist/train-images-idx3-ubyte.gz"),
}
ANNOTATIONS = "tiny-imagenet-200/val/val_annotations.txt"


@pytest.fixture
def read(tmp_path):
    return lambda name: load(name, tmp_path, cache_dir=tmp_path / "cache")


@pytest.fixture(autouse=True)
def _nothing_waits():
    """Where a loader waits for a pipe, the test fails."""

    def fail(*_):
        raise AssertionError("it waits")

    earlier = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, earlier)


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


def _link_out(path):
    elsewhere = path.parents[len(path.parts) - path.parts.index("data") - 1] / "secret"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


STRANGE = {
    "pipe": (_pipe, "is not a regular file"),
    "huge": (lambda path: os.truncate(path, HUGE), r"has 20,000,000,000 bytes, but such a file has at most \d"),
    "link": (_link_out, "is a link that leads out of"),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("strange", STRANGE)
def test_a_strange_file_is_named_whatever_the_format(tmp_path, name, strange):
    data = tmp_path / "data"
    data.mkdir()
    write, folder, file = LAYOUTS[name]
    write(data / folder)
    make, what = STRANGE[strange]
    make(data / file)
    with pytest.raises(DataError, match=rf"{file} {what}|{file.removesuffix('.gz')} is missing") as caught:
        load(name, data, cache_dir=tmp_path / "cache")
    assert "truncated or corrupt" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_link_that_stays_in_the_folder_is_followed(tmp_path, read):
    small.write_folders(tmp_path / "cinic10", ["a", "b"], small.random_images(4, 3, 32))
    first, second = (tmp_path / "cinic10" / "train" / "a" / f"{number}.png" for number in range(2))
    second.unlink()
    second.symlink_to(first)
    images = read("cinic10").train.images
    assert (images[0] == images[1]).all()


@pytest.mark.parametrize("entry", ["../../../../secret.png", "/etc/hostname", "a\0b.png", "..", ".", "9" * 5000])
def test_annotations_of_tinyimagenet_name_images_of_their_folder_only(tmp_path, read, entry):
    small.write_tinyimagenet(tmp_path / "tiny-imagenet-200")
    small.write_png(tmp_path.parent / "secret.png", small.random_images(1, 3, 64)[0])
    with open(tmp_path / ANNOTATIONS, "a") as file:
        file.write(f"{entry}\tn01\t0\t0\t63\t63\n")
    with pytest.raises(DataError, match="is not the name of an image in val/images"):
        read("tinyimagenet")


def test_an_image_that_tinyimagenet_lists_twice_is_no_second_example(tmp_path, read):
    small.write_tinyimagenet(tmp_path / "tiny-imagenet-200")
    lines = (tmp_path / ANNOTATIONS).read_text().splitlines(keepends=True)
    (tmp_path / ANNOTATIONS).write_text("".join([*lines, lines[0]]))
    with pytest.raises(DataError, match="it names the image .* twice"):
        read("tinyimagenet")


@pytest.mark.parametrize("wnid", ["../../secret", "/etc", "a\0b"])
def test_classes_of_tinyimagenet_lie_in_its_folder(tmp_path, read, wnid):
    small.write_tinyimagenet(tmp_path / "tiny-imagenet-200", listed=("n02", "n01", wnid.replace("\0", "")))
    (tmp_path / "tiny-imagenet-200" / "wnids.txt").write_text(f"n01\n{wnid}\n")
    with pytest.raises(DataError, match="which is not the name of a class; get tiny-imagenet-200.zip"):
        read("tinyimagenet")


@pytest.mark.parametrize("strange", ["pipe", "huge"])
def test_strange_annotations_are_named(tmp_path, read, strange):
    small.write_tinyimagenet(tmp_path / "tiny-imagenet-200")
    STRANGE[strange][0](tmp_path / ANNOTATIONS)
    with pytest.raises(DataError, match=f"{ANNOTATIONS} (is missing|has 20,000,000,000 bytes)"):
        read("tinyimagenet")


@pytest.mark.parametrize("damage", ["deep", "deep image", "label", "grey level"])
def test_json_of_leaf_that_no_image_fits_is_named(tmp_path, read, damage):
    write_femnist(tmp_path)
    path = tmp_path / "femnist" / TRAIN[0]
    content = json.loads(path.read_text())
    own = content["user_data"][content["users"][0]]
    match damage:
        case "deep image":
            own["x"][0][0] = json.loads("[" * 500 + "]" * 500)
        case "label":
            own["y"][0] = 10**30
        case "grey level":
            own["x"][0][0] = 10**400
    path.write_text("[" * 100_000 if damage == "deep" else json.dumps(content))
    with pytest.raises(DataError, match=f"{path.name} is truncated or corrupt"):
        read("femnist")


def test_a_pipe_among_the_files_that_femnist_is_made_from_is_named(tmp_path):
    (tmp_path / "femnist" / "all_data").mkdir(parents=True)
    os.mkfifo(tmp_path / "femnist" / "all_data" / "all_data_0.json")
    with pytest.raises(DataError, match=r"all_data_0\.json is not a regular file; put the file itself there"):
        download.prepare("femnist", tmp_path)


def test_a_packed_file_that_unpacks_without_end_is_named(tmp_path, read, monkeypatch):
    small.write_idx(tmp_path / "mnist", zipped=True)
    monkeypatch.setattr(idx, "LARGEST", 1_000_000)
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(2_000_000)))
    with pytest.raises(DataError, match="it unpacks to more than 1,000,000 bytes"):
        read("mnist")
