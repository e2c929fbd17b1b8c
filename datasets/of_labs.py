"""Datasets of labs: functions that return arrays, in the folder `datasets` of a lab (see `bench.plugins`).

    @registered_dataset("pollen", title="Pollen", model="simple-cnn", files="pollen/*.npy")
    def load_pollen(data_dir): return x_train, y_train, x_test, y_test

A config has the reference "lab:pollen@0123456789abcdef", with the digest of the arrays: these are the identity of the dataset,
whatever code makes them. Every process finds the function by the name, and the arrays, once decoded, by the digest.
"""

import hashlib
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench import imports, references
from bench.errors import ConfigError, unknown
from bench.files import from_home
from bench.registry import Entry
from datasets import cache, digests
from datasets.base import DataError, Decoded, MissingData, Source
from datasets.image_size import ImageSize
from datasets.info import REGISTRY
from datasets.loaders import npz
from datasets.loaders.images import resize_splits

_OPTIONS = ("model", "files")
# What this process knows of a function and its data directory: digest, or what is wrong.
_KNOWN: dict[Any, str | DataError] = {}
_PLACE: list[Path] = []  # the data directory of this process, see `look_in`


def entries() -> Mapping[str, Entry]:
    """Name -> the function of a lab.

    Raises:
        ConfigError: with all that is wrong in how they are registered.
    """
    of_labs = {name: entry for name, entry in REGISTRY.items() if entry.lab}
    mistakes = []
    for entry in of_labs.values():
        mistakes += [
            f"{entry.place}: {unknown('argument of registered_dataset', key, [*_OPTIONS, 'title', 'description'])}"
            for key in entry.options
            if key not in _OPTIONS
        ]
        if not _are_texts(entry.options.get("files", "")):
            mistakes.append(f"{entry.place}: files must be a pattern or a tuple of patterns below the data directory.")
    if mistakes:
        raise ConfigError(mistakes)
    return of_labs


def entry_of(dataset: object) -> Entry | None:
    """The function of a dataset by its name, "pollen", or by a reference; None if it is none of a lab, or the folder of the lab
    is not in use."""
    reference = references.read(dataset)
    name = reference.name if reference and reference.kind == references.LAB else dataset
    return entries().get(name) if isinstance(name, str) else None


def look_in(data_dir: Path | None) -> None:
    """Says where this process has its data, for names that are turned into references before their images are asked for."""
    _PLACE[:] = [data_dir] if data_dir else []


def canonical(entry: Entry, data_dir: Path | None = None) -> str:
    """The reference to what a function returns.

    The function is called once in a process. With `files` in its decorator it is called again by the next process only if its
    code or one of these files has changed.

    Args:
        data_dir: None for that of `look_in`, or else $SKEWBENCH_DATA.

    Raises:
        MissingData: the function finds no files.
        DataError: it fails, or returns something else than images and labels.
    """
    data_dir = _absolute(data_dir)
    state = _state(entry, data_dir)
    key = (entry.path, entry.name, data_dir, state)
    if key not in _KNOWN:
        kept = state and digests.known(state)
        try:
            _KNOWN[key] = kept or _keep(entry, _call(entry, data_dir))
        except MissingData:  # which may be there the next time
            raise
        except DataError as error:
            _KNOWN[key] = error
        if state and not kept and isinstance(found := _KNOWN[key], str):
            digests.keep(state, found, data_dir)
    if isinstance(found := _KNOWN[key], DataError):
        raise found
    return _reference(entry.name, found)


def find(dataset: str, data_dir: Path | None) -> Source:
    """The arrays behind a reference, not yet made: those of an earlier call of the function if they are in the cache."""
    reference = references.read(dataset)
    if reference is None:
        name = dataset.partition(":")[2]
        instead = f"write {name}" if name in entries() else "the folder of its lab is not in use; name it by --plugins"
        raise MissingData(f"There is no dataset {dataset}: {instead}.")

    def decode(image_size: ImageSize | None) -> Decoded:
        if image_size is not None:
            return resize_splits(cache.load(dataset, source, None), image_size)
        entry = entry_of(dataset)
        if entry is None:
            raise MissingData(
                f"The images of {dataset} come from a function of a lab, whose folder is not in use; name it by --plugins."
            )
        arrays = _call(entry, _absolute(data_dir))
        if (digest := _digest_of(arrays)) != reference.digest:
            raise DataError(
                f"{_place(entry)} returned other images ({digest}) than those of {dataset}: it must return the same ones "
                "whenever it is called, and on each machine."
            )
        return _decoded(arrays)

    source = Source("arrays", None, (), decode)
    return source


def _keep(entry: Entry, arrays: list[np.ndarray]) -> str:
    """Puts arrays into the cache, so that the function is not called again for them, and returns their digest."""
    digest = _digest_of(arrays)
    cache.load(_reference(entry.name, digest), Source("arrays", None, (), lambda _: _decoded(arrays)), None)
    return digest


def _reference(name: str, digest: str) -> str:
    return str(references.make(references.LAB, name, digest))


def _call(entry: Entry, data_dir: Path | None) -> list[np.ndarray]:
    """What a function returns, checked: images and labels for training, then for testing."""
    place = _place(entry)
    try:
        function = entry.load()
    except ValueError as error:
        raise DataError(str(error)) from error
    takes = len(inspect.signature(function).parameters) if callable(function) else None
    if takes not in (0, 1):
        raise DataError(f"{place} must be a function of the data directory, or of nothing; give it no other arguments.")
    if takes and data_dir is None:
        raise MissingData(f"{entry.name} needs a data directory; name it with --data-dir, or set SKEWBENCH_DATA.")
    try:
        returned = function(data_dir) if takes else function()
    except FileNotFoundError as error:
        raise MissingData(f"{place} found no images: {error}.") from error
    except Exception as error:  # whatever the code of a lab raises
        raise DataError(entry.failure(error)) from error
    if not (isinstance(returned, tuple | list) and len(returned) == len(npz.NAMES)):
        what = f"{len(returned)} values" if isinstance(returned, tuple | list) else f"a {type(returned).__name__}"
        raise DataError(f"{place} must return ({', '.join(npz.NAMES)}), but returned {what}.")
    arrays = dict(zip(npz.NAMES, returned, strict=True))
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise DataError(f"{place} has a {type(array).__name__} in {name}; all four are arrays of NumPy.")
    return npz.checked(place, arrays)


def _place(entry: Entry) -> str:
    """The function in messages: "load_pollen in mylab/datasets/pollen.py"."""
    return f"{entry.target} in {entry.place}"


def _decoded(arrays: list[np.ndarray]) -> Decoded:
    return Decoded(*arrays, tuple(map(str, range(int(arrays[1].max()) + 1))))


def _digest_of(arrays: list[np.ndarray]) -> str:
    """16 hex digits of images [n, C, H, W] and labels [n], contiguous."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.newbyteorder('<').str}{array.shape}".encode())
        digest.update(array)
    return digest.hexdigest()[:16]


def _absolute(data_dir: Path | None) -> Path | None:
    named = data_dir or next(iter(_PLACE), None) or os.environ.get("SKEWBENCH_DATA")
    return from_home(named).absolute() if named else None


def _state(entry: Entry, data_dir: Path | None) -> str:
    """What tells that a function may return other arrays: its code, and names, sizes and times of the files that its decorator
    names; "" if that names none, so that nobody knows."""
    patterns = entry.options.get("files")
    if patterns is None or data_dir is None:
        return ""
    state = hashlib.sha256(f"{entry.name}\0{imports.hash_of([entry.module])}\0{data_dir}\n".encode())
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        for path in sorted(data_dir.glob(pattern)):
            try:
                status = path.stat()
                told = f"{status.st_size}\0{status.st_mtime_ns}"
            except OSError:  # a link to nothing, of which the function may know nothing
                told = "absent"
            state.update(f"{path}\0{told}\n".encode(errors="surrogateescape"))
    return state.hexdigest()[:32]


def _are_texts(files: object) -> bool:
    """Whether files are a relative pattern, or several."""
    texts = files if isinstance(files, tuple) else (files,)
    return all(isinstance(text, str) and not text.startswith("/") for text in texts)
