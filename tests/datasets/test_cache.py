"""Decoded images are written once, found again, and never believed when damaged."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from datasets import cache
from datasets.base import DataError, Decoded, Source

IMAGES = np.arange(6 * 1 * 4 * 4, dtype=np.uint8).reshape(6, 1, 4, 4)
LABELS = np.array([0, 1, 0, 1, 0, 1])


class CountingSource:
    """A source of one file that counts how often it is decoded."""

    def __init__(self, folder, labels=LABELS):
        self.file = folder / "original"
        self.file.write_bytes(b"original")
        self.labels = labels
        self.num_decodes = 0

    def load(self, cache_dir, image_size=None):
        return cache.load("toy", Source("toy files", None, (str(self.file),), self._decode), image_size, cache_dir)

    def _decode(self, image_size):
        self.num_decodes += 1
        return Decoded(IMAGES, self.labels, IMAGES[:2], self.labels[:2], ("a", "b"))


@pytest.fixture
def source(tmp_path):
    return CountingSource(tmp_path)


@pytest.fixture
def cache_dir(tmp_path):
    return tmp_path / "cache"


def entries(cache_dir):
    return sorted(cache_dir.iterdir())


def test_the_second_load_reads_the_cache(source, cache_dir):
    first, second = source.load(cache_dir), source.load(cache_dir)
    assert source.num_decodes == 1
    for decoded in (first, second):
        assert np.array_equal(decoded.train_images, IMAGES)
        assert np.array_equal(decoded.test_labels, LABELS[:2])
        assert decoded.classes == ("a", "b")


def test_the_digest_is_that_of_the_images_and_labels_not_of_the_place(tmp_path):
    digests = []
    for name, labels in (("one", LABELS), ("same", LABELS), ("other", 1 - LABELS)):
        (tmp_path / name).mkdir()
        digests.append(CountingSource(tmp_path / name, labels).load(tmp_path / "cache").digest)
    assert digests[0] == digests[1] != digests[2] and len(digests[0]) == 8


def test_arrays_are_memory_mapped_and_read_only(source, cache_dir):
    decoded = source.load(cache_dir)
    assert isinstance(decoded.train_images, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        decoded.train_images[0] = 0


def test_another_size_or_a_changed_file_is_another_entry(source, cache_dir):
    source.load(cache_dir)
    source.load(cache_dir, image_size=2)
    assert source.num_decodes == 2
    source.file.write_bytes(b"changed!")
    os.utime(source.file, ns=(1, 1))
    source.load(cache_dir)
    assert source.num_decodes == 3
    assert len(entries(cache_dir)) == 3


@pytest.mark.parametrize("name", ["train_images.npy", "train_labels.npy", "meta.json"])
@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "remove"])
def test_a_damaged_entry_is_decoded_again(source, cache_dir, name, damage):
    source.load(cache_dir)
    (entry,) = entries(cache_dir)
    content = (entry / name).read_bytes()
    if damage == "remove":
        (entry / name).unlink()
    else:
        flipped = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
        (entry / name).write_bytes({"truncate": content[:-3], "empty": b"", "flip": flipped}[damage])
    again = source.load(cache_dir)
    assert np.array_equal(again.train_images, IMAGES)
    assert np.array_equal(again.train_labels, LABELS)
    assert source.num_decodes == 2
    assert entries(cache_dir) == [entry]
    source.load(cache_dir)
    assert source.num_decodes == 2


def test_an_entry_whose_header_is_no_python_any_more_is_decoded_again(source, cache_dir):
    source.load(cache_dir)
    (entry,) = entries(cache_dir)
    content = (entry / "train_labels.npy").read_bytes()
    (entry / "train_labels.npy").write_bytes(content.replace(b")", b"(", 1))
    assert np.array_equal(source.load(cache_dir).train_labels, LABELS)
    assert source.num_decodes == 2


def test_an_interrupted_write_leaves_no_entry(source, cache_dir, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(np, "save", interrupt)
        source.load(cache_dir)
    assert entries(cache_dir) == []
    assert np.array_equal(source.load(cache_dir).train_images, IMAGES)


def test_many_writers_at_once_all_get_the_images(source, cache_dir):
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: source.load(cache_dir), range(24)))
    assert all(np.array_equal(decoded.train_images, IMAGES) for decoded in results)
    assert len(entries(cache_dir)) == 1


def test_a_cache_that_cannot_be_written_is_one_sentence(source, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"Cannot write decoded images to .*file.*set SKEWBENCH_CACHE"):
        source.load(tmp_path / "file")


@pytest.mark.parametrize("labels", [[0, 1, 2, 0, 1, 0], [0, -1, 0, 0, 0, 0], []])
def test_labels_outside_the_classes_are_refused(tmp_path, cache_dir, labels):
    with pytest.raises(DataError, match=r"toy files must hold examples, with labels 0\.\.1 only"):
        CountingSource(tmp_path, np.array(labels, dtype=np.int64)).load(cache_dir)
    assert not cache_dir.exists()


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path))
    assert cache.default_dir() == tmp_path
    monkeypatch.delenv("SKEWBENCH_CACHE")
    assert cache.default_dir().parts[-2:] == (".cache", "skewbench")
