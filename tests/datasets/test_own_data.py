"""Datasets of users: the same name for the same content, and a split of folders that have none."""

import os
import shutil

import numpy as np
import pytest

from bench import references
from datasets import DataError, MissingData, check, digests, facts_of_loaded, load, own_data, partitions
from datasets.info import title_of
from datasets.own_data import canonical
from tests.support.small_datasets import random_images, write_folders, write_png


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def leaves(tmp_path):
    write_folders(tmp_path / "leaves", ["a", "b"], random_images(4, 3, 8))
    return tmp_path / "leaves"


def forget(monkeypatch) -> None:
    """As if this were another process."""
    monkeypatch.setattr(own_data, "_PATHS", {})
    monkeypatch.setattr(own_data, "_KNOWN", {})


def test_a_folder_has_one_reference_wherever_it_lies(leaves, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = canonical(f"imagefolder:{leaves}")
    assert references.read(name) == ("imagefolder", "leaves", name[-16:])
    assert canonical("imagefolder:leaves") == canonical("imagefolder:./leaves/") == canonical(name) == name
    moved = shutil.copytree(leaves, tmp_path / "elsewhere" / "leaves")
    assert canonical(f"imagefolder:{moved}") == name
    renamed = canonical(f"imagefolder:{shutil.copytree(leaves, tmp_path / 'blades')}")
    assert renamed != name and references.hashed(renamed) == references.hashed(name) != name
    assert np.array_equal(load(name, None).train.images, load(f"imagefolder:{leaves}", None).train.images)


def test_another_image_name_or_class_is_another_reference(leaves, monkeypatch):
    found = [canonical(f"imagefolder:{leaves}")]
    for change in (
        lambda: write_png(leaves / "train" / "a" / "0.png", np.full((3, 8, 8), 7, np.uint8)),
        lambda: (leaves / "train" / "a" / "0.png").rename(leaves / "train" / "a" / "00.png"),
        lambda: [(leaves / split / "b").rename(leaves / split / "c") for split in ("train", "test")],
    ):
        change()
        forget(monkeypatch)
        found.append(canonical(f"imagefolder:{leaves}"))
    assert len({*found}) == 4


def test_files_whose_names_differ_in_zeros_only_have_one_order_on_every_disk(leaves, monkeypatch):
    write_png(leaves / "train" / "a" / "00.png", np.full((3, 8, 8), 7, np.uint8))
    found, scandir = [canonical(f"imagefolder:{leaves}")], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: reversed([*scandir(folder)]))
    forget(monkeypatch)
    assert canonical(f"imagefolder:{leaves}") == found[0]


def test_an_image_whose_name_is_no_text_is_one_as_others_are(leaves):
    os.rename(leaves / "train" / "a" / "0.png", os.fsencode(leaves / "train" / "a") + b"/caf\xe9.png")
    assert len(load(f"imagefolder:{leaves}", None).train.images) == 4


@pytest.mark.parametrize("of", [canonical, partitions.parse, lambda text: load("mnist", text.partition(":")[2])])
def test_the_home_directory_of_a_user_who_is_not_there_is_told(of):
    kind = "file" if of is partitions.parse else "npz"
    with pytest.raises(ValueError, match="~nosuch/x.npz begins with the home directory of a user who is not here"):
        of(f"{kind}:~nosuch/x.npz")


def test_files_are_read_once_as_long_as_their_sizes_and_times_stay(leaves, monkeypatch):
    name, read = canonical(f"imagefolder:{leaves}"), []
    of_file = digests._of_file
    monkeypatch.setattr(digests, "_of_file", lambda file, *others: read.append(file) or of_file(file, *others))
    forget(monkeypatch)
    assert canonical(f"imagefolder:{leaves}") == name and read == []
    os.utime(leaves / "train" / "a" / "0.png", (1, 1))
    forget(monkeypatch)
    assert canonical(f"imagefolder:{leaves}") == name and len(read) == len(list(leaves.glob("*/*/*.png")))


def test_a_damaged_entry_of_the_cache_is_made_again(leaves, tmp_path, monkeypatch):
    name = canonical(f"imagefolder:{leaves}")
    (entry,) = (tmp_path / "cache" / "digests").glob("*.json")
    for damage in ("", "[]", '{"digest": 3}', '{"digest": "../../../etc/pass"}'):
        entry.write_text(damage)
        forget(monkeypatch)
        assert canonical(f"imagefolder:{leaves}") == name


def test_arrays_are_named_by_the_bytes_of_their_file_and_not_by_its_name(tmp_path):
    images, labels = np.zeros((4, 2, 2), np.uint8), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "one.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    shutil.copy(tmp_path / "one.npz", tmp_path / "two.npz")
    one, two = (canonical(f"npz:{tmp_path / name}.npz") for name in ("one", "two"))
    assert (title_of(one), title_of(two)) == ("one", "two") and references.hashed(one) == references.hashed(two)


def test_the_images_of_a_folder_are_counted_once_it_is_loaded(leaves):
    name = canonical(f"imagefolder:{leaves}")
    assert facts_of_loaded(name) is None and facts_of_loaded("mnist").train_size == 60_000
    loaded = load(name, None)
    assert facts_of_loaded(name) == loaded.facts and loaded.facts.train_size > 0


def test_what_is_not_there_keeps_its_path_and_an_unknown_reference_is_told(tmp_path):
    nowhere = f"imagefolder:{tmp_path / 'nowhere'}"
    assert canonical(nowhere) == nowhere and canonical("cifar10") == "cifar10"
    with pytest.raises(
        MissingData, match="The place of the files of npz:x@0123456789abcdef is not known: .*--dataset npz:PATH"
    ):
        load("npz:x@0123456789abcdef", None)


def test_a_job_takes_the_place_of_files_and_the_indices_to_another_process(leaves, tmp_path, monkeypatch):
    from types import SimpleNamespace

    from datasets import partition_files

    (tmp_path / "parts.json").write_text('{"train": [[0, 1], [2]]}')
    config = SimpleNamespace(
        dataset=canonical(f"imagefolder:{leaves}"),
        partition=partition_files.parse(f"file:{tmp_path / 'parts.json'}").name,
    )
    sent = own_data.of_config(config)
    forget(monkeypatch)
    monkeypatch.setattr(partition_files, "_CONTENTS", {})
    (tmp_path / "parts.json").unlink()
    with pytest.raises(MissingData):
        load(config.dataset, None)
    own_data.remember(sent, config.dataset)
    assert load(config.dataset, None).num_classes == 2
    assert [rows.tolist() for rows in partition_files.parse(config.partition).content.train] == [[0, 1], [2]]


def test_a_folder_without_a_split_is_split_by_class_the_same_way_everywhere(tmp_path):
    for name, count in (("a", 10), ("b", 25), ("c", 2)):
        for number, image in enumerate(random_images(count, 3, 4)):
            write_png(tmp_path / "mine" / name / f"{number}.png", image)
    dataset = load(f"imagefolder:{tmp_path / 'mine'}?test=0.2", None)
    assert np.bincount(dataset.test.labels).tolist() == [2, 5, 1]
    assert np.bincount(dataset.train.labels).tolist() == [8, 20, 1]
    assert dataset.note == "0.2 of each class, drawn by file names, are the test images"
    everything = np.concatenate([dataset.train.images, dataset.test.images])
    assert len({image.tobytes() for image in everything}) == 37, "each image is on one side"
    copied = load(f"imagefolder:{shutil.copytree(tmp_path / 'mine', tmp_path / 'copy')}?test=.20", None)
    assert copied.digest == dataset.digest
    finding = check(f"imagefolder:{tmp_path / 'mine'}?test=0.2", None)
    assert finding.status == "found" and finding.detail.endswith(dataset.note)
    shares = [canonical(f"imagefolder:{tmp_path / 'mine'}?test={share}") for share in ("0.2", ".20", "0.5")]
    assert shares[0] == shares[1] and references.hashed(shares[0]) != references.hashed(shares[2])
    assert title_of(shares[0]) == "mine?test=0.2"
    most = load(f"imagefolder:{tmp_path / 'mine'}?test=0.9", None)
    assert np.bincount(most.train.labels).tolist() == [1, 3, 1], "one of each class is trained on"
    assert references.name_of("imagefolder:/data/leaves.v2") == "leaves.v2", "a folder has no suffix"
    assert references.name_of("npz:/data/leaves.npz") == "leaves"


def test_one_more_image_moves_at_most_one_other(tmp_path):
    for number, image in enumerate(random_images(20, 3, 4)):
        write_png(tmp_path / "mine" / "a" / f"{number}.png", image)
    name = f"imagefolder:{tmp_path / 'mine'}?test=0.3"
    before = {image.tobytes() for image in load(name, None).test.images}
    write_png(tmp_path / "mine" / "a" / "99.png", np.full((3, 4, 4), 9, np.uint8))
    after = {image.tobytes() for image in load(name, None).test.images}
    assert len(before) == 6 and len(before - after) <= 1


def test_what_cannot_be_split_is_told(leaves, tmp_path):
    with pytest.raises(DataError, match="leaves has a folder train of its own, and a folder test; leave .test=0.2 out"):
        load(f"imagefolder:{leaves}?test=0.2", None)
    shutil.rmtree(leaves / "test")
    with pytest.raises(DataError, match="to split the images in it, name imagefolder:.*leaves/train.test=0.2"):
        load(f"imagefolder:{leaves}?test=0.2", None)
    assert len(load(f"imagefolder:{leaves / 'train'}?test=0.5", None).test.labels) == 2
    write_png(leaves / "train" / "c" / "0.png", np.zeros((3, 8, 8), np.uint8))
    with pytest.raises(DataError, match="train/c has 1 image, but a split needs 2 of each class"):
        load(f"imagefolder:{leaves / 'train'}?test=0.5", None)
    for wrong in ("test=0", "test=1", "test=1.5", "test=nan", "test=-0.1", "tset=0.2"):
        with pytest.raises(ValueError, match=rf"takes \?test=SHARE, .* between 0 and 1, but got \?{wrong}\."):
            load(f"imagefolder:{leaves}?{wrong}", None)
    with pytest.raises(MissingData, match=r"or <class>/<image> and .*imagefolder:PATH\?test=0\.2"):
        load(f"imagefolder:{leaves / 'train' / 'a'}", None)
