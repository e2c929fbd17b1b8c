"""Partitions from files: who has which examples, as another program has dealt them.

A JSON file holds an object:

    {"train": [[0, 5, 7], [1, 2]], "test": [[0], [3, 4]], "pooled": false}

`train` has the indices of the training examples of each client. `test`, which may be left out, has the test examples on
which each client tests. Either is a list with an item per client, or an object whose keys are the numbers of the clients, "0",
"1", .... With `pooled` true all indices count through the training file and then the test file. An .npz file has the same as
arrays: train_0, train_1, ..., test_0, test_1, ..., and pooled.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bench import references
from bench.errors import unknown
from bench.files import MIB, UnusableFile, from_home, open_foreign, write_file
from datasets.npz_files import read_arrays, write_arrays
from datasets.partitions.base import Drawn, Partition

LARGEST = 128 * MIB  # bytes of a file; 60,000 indices as JSON are 0.4 MiB
SUFFIXES = (".json", ".npz")
FOLDER = "partitions"  # of a results directory, where `keep` puts files
_KEYS = ("train", "test", "pooled")


class Content(NamedTuple):
    """What a partition file says.

    Attributes:
        train: one int64 array of indices per client, in the order of the file.
        test: likewise; None if clients have no test examples of their own.
        pooled: whether indices count through the training file and then the test file; else those of test count through the
            test file.
    """

    train: list[np.ndarray]
    test: list[np.ndarray] | None = None
    pooled: bool = False

    @property
    def digest(self) -> str:
        """Of everything that it says, 16 hex digits, whatever the format of the file."""
        digest = hashlib.sha256(f"{len(self.train)} {self.test is not None} {self.pooled}".encode())
        for rows in (*self.train, *(self.test or ())):
            digest.update(f"/{len(rows)}/".encode() + rows.astype("<i8").tobytes())
        return digest.hexdigest()[:16]


_CONTENTS: dict[str, Content] = {}  # digest -> what this process has read or been sent
_READ: dict[tuple[str | int, ...], "FilePartition"] = {}  # absolute path, and what tells that the file has changed
_IN_PLACE: dict[str, "FilePartition"] = {}  # name of a file -> what is read where it is not there


@dataclass(frozen=True)
class FilePartition(Partition):
    """Who has which examples, read from a file.

    Its name is a reference, and what the file says is looked up by its digest. Two partitions of equal names are equal.

    Attributes:
        label: the file's stem.
        digest: of `Content`.
        sent: the content, where the partition goes to another process; None where that is looked up.
    """

    counts_clients: ClassVar[bool] = True
    label: str
    digest: str
    sent: Content | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return str(references.Reference(references.PARTITION, self.label, self.digest))

    @property
    def for_people(self) -> tuple[str, str]:
        return self.label, ""

    @property
    def content(self) -> Content:
        """What the file says.

        Raises:
            ValueError: this process has neither read the file nor been sent what it says.
        """
        found = self.sent or _CONTENTS.get(self.digest)
        if found is None:
            raise ValueError(
                f"The indices of {self.name} are not known: a config has their digest only. Name the file, as file:PATH; a "
                f"results directory keeps it as {FOLDER}/{_kept_name(self)}."
            )
        return found

    def with_content(self) -> "FilePartition":
        """The same, which takes its content along to another process."""
        return FilePartition(self.label, self.digest, self.content)

    @property
    def has_own_tests(self) -> bool:
        return self.content.test is not None

    def usual_clients(self, num_writers: int | None = None) -> int:
        return len(self.content.train)

    def validate(self, num_clients: int, num_classes: int, num_train: int | None, num_test: int | None) -> list[str]:
        train, test, pooled = self.content
        if num_clients != len(train):
            return [
                f"The partition {self.label} has {len(train)} clients: set clients to {len(train)} or leave it out, but got "
                f"{num_clients}."
            ]
        if num_train is None or num_test is None:
            return []
        where = {"train": ("training", num_train), "test": ("test", num_test)}
        if pooled:
            where = dict.fromkeys(where, ("training and test", num_train + num_test))
        for key, clients in (("train", train), ("test", test or [])):
            what, size = where[key]
            highest = [int(rows.max()) for rows in clients]
            largest = max(highest, default=-1)
            if largest >= size:
                hint = (
                    ' If indices count through the training file and then the test file, the file needs "pooled": true.'
                    if not pooled and largest < num_train + num_test
                    else ""
                )
                return [
                    f"The partition {self.label} has the index {largest} in {key} of client {highest.index(largest)}, but the "
                    f"dataset has {size} {what} examples, which count from 0.{hint}"
                ]
        return []

    def draw(self, labels, num_clients, num_classes, seed, *, num_test=0, **others) -> Drawn:
        """Who has which examples: the same for every seed.

        Args:
            labels: [examples], of the training examples; where clients have test data of their own, those of the test examples
                follow.
            num_test: test examples among the labels.
            others: of the other partitions, not read.

        Raises:
            ValueError: the number of clients is another one, or the dataset has fewer examples.
        """
        num_train = len(labels) - num_test
        if mistakes := self.validate(num_clients, num_classes, num_train, num_test):
            raise ValueError(mistakes[0])
        train, test, pooled = self.content
        if test is not None and not pooled:
            test = [rows + num_train for rows in test]
        return Drawn(list(train), 1, test)

    def describe_unused(self, num_train: int, num_test: int) -> str:
        """How many examples no client has, as one sentence; "" if there are none.

        Args:
            num_train, num_test: examples of the dataset.
        """
        train, test, pooled = self.content
        tested = {*()} if test is None else {*np.concatenate(test).tolist()}
        trained = sum(map(len, train))
        if pooled:
            unused = {"training and test": num_train + num_test - trained - len(tested)}
        else:
            unused = {"training": num_train - trained} | ({} if test is None else {"test": num_test - len(tested)})
        total = {"training": num_train, "test": num_test, "training and test": num_train + num_test}
        parts = [f"{count:,} of {total[what]:,} {what} examples" for what, count in unused.items() if count]
        return f"The partition {self.label} leaves {' and '.join(parts)} out." if parts else ""


def parse(text: str) -> FilePartition:
    """The partition of "file:PATH", whose file is read, or of a reference, whose content is looked up when it is needed.

    Raises:
        ValueError: if the file is not there, or not a partition.
    """
    if reference := references.read(text):
        return FilePartition(reference.name, reference.digest)
    path = from_home(text.partition(":")[2]).absolute()
    try:
        status = path.stat()
    except OSError as error:
        if found := _IN_PLACE.get(references.make(references.PARTITION, path.stem, "").name):
            return found
        raise ValueError(
            f"There is no partition file {path}; name a .json or .npz file, as in docs/data.md."
        ) from error
    key = (str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    if key not in _READ:
        content = read(path)
        label = path.stem.removesuffix(f"@{content.digest}")  # of a file that `keep` has written
        found = FilePartition(references.make(references.PARTITION, label, content.digest).name, content.digest)
        _CONTENTS[content.digest], _READ[key] = content, found
    return _READ[key]


def remember(partition: FilePartition) -> None:
    """Makes known to this process what another one has sent."""
    _CONTENTS.setdefault(partition.digest, partition.content)


def read(path: Path) -> Content:
    """What a partition file says, checked: no index is negative, no training example is there twice, no client is empty.

    A test example may be that of several clients, and examples may be left out. `FilePartition.validate` checks whether a
    dataset has the indices.

    Raises:
        ValueError: if it cannot be read, or is no partition; says what was found and what is expected.
    """
    try:
        with open_foreign(path, LARGEST, within=Path("/")) as file:
            if path.suffix == ".npz":
                found = _of_arrays(read_arrays(file, LARGEST))
            else:
                found = json.loads(file.read(), object_pairs_hook=_once)
    except UnusableFile as error:
        raise ValueError(f"{path} {error.what}; name a .json or .npz file, as in docs/data.md.") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError, MemoryError) as error:
        what = str(error) if path.suffix == ".npz" or isinstance(error, _Twice) else f"is not valid JSON ({error})"
        raise ValueError(f"{path} {what}; a partition file is described in docs/data.md.") from error
    try:
        return checked(found)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write(path: Path, content: Content) -> None:
    """Writes a partition file, JSON or .npz by its suffix.

    Raises:
        ValueError: another suffix, or the file cannot be written.
    """
    check_suffix(path)
    try:
        if path.suffix == ".npz":
            _write_arrays(path, content)
        else:
            parts = {"train": content.train} | ({} if content.test is None else {"test": content.test})
            lists = {key: [rows.tolist() for rows in clients] for key, clients in parts.items()}
            write_file(path, json.dumps({**lists, "pooled": content.pooled}) + "\n")
    except OSError as error:
        raise ValueError(f"Cannot write {path}: {error.strerror}.") from error


def check_suffix(path: Path) -> None:
    """Raises ValueError if a partition is not written to a file of that name."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"A partition is saved to a file ending in .json or .npz, but got {str(path)!r}.")


def keep(partition: FilePartition, folder: Path) -> Path:
    """Puts the content of a partition into a folder, unless it is there, and returns its file; `parse` of that file is the same
    partition."""
    path = folder / _kept_name(partition)
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _write_arrays(path, partition.content)
    return path


def kept(results: Path) -> list[Path]:
    """The files that `keep` has put into a results directory."""
    return sorted((results / FOLDER).glob("[!.]*.npz"))


@contextmanager
def in_place_of_absent(results: Path, named: Iterable[references.Reference]) -> Iterator[None]:
    """Within the context, of a partition file that is not there the copy in a results directory is read: the path that a grid
    names is that of its author.

    Args:
        named: the references to partitions that may be meant; names that several of them have are left out.
    """
    wanted = {reference for reference in named if reference.kind == references.PARTITION}
    names = Counter(reference.name for reference in wanted)
    for path in kept(results):
        if any(path.stem == f"{reference.name}@{reference.digest}" for reference in wanted):
            with suppress(ValueError):  # of a damaged file, of which others tell
                parse(f"{references.PARTITION}:{path}")
    known = {reference.name: parse(str(reference)) for reference in wanted if names[reference.name] == 1}
    before = {**_IN_PLACE}
    _IN_PLACE.update(known)
    try:
        yield
    finally:
        _IN_PLACE.clear()
        _IN_PLACE.update(before)


def _kept_name(partition: FilePartition) -> str:
    return f"{partition.label}@{partition.digest}.npz"


def _write_arrays(path: Path, content: Content) -> None:
    arrays = {f"train_{client}": rows for client, rows in enumerate(content.train)}
    arrays |= {f"test_{client}": rows for client, rows in enumerate(content.test or ())}
    write_arrays(path, arrays | {"pooled": np.array(content.pooled)})


class _Twice(ValueError):
    """An object has a key twice."""


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise _Twice(f"has the key {counts.most_common(1)[0][0]!r} twice")
    return found


def _of_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The arrays of an .npz file as a JSON file has them."""
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        part = re.fullmatch(r"(train|test)_(\d+)", name)
        if part:
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise ValueError(
                    f"has {array.dtype} of shape {array.shape} in {name}; indices are integers of shape [n]"
                )
            found.setdefault(part[1], {})[part[2]] = array
        elif name == "pooled" and array.shape == () and array.dtype == bool:
            found[name] = bool(array)
        else:
            raise ValueError(
                f"has an array {name!r}; it holds train_0, train_1, ..., test_0, test_1, ... and pooled, a bool"
            )
    return found


def checked(found: object) -> Content:
    """The partition that an object of a JSON file is, or one of arrays; raises ValueError if it is none."""
    if not isinstance(found, dict):
        raise ValueError(f"a partition is an object with the keys train, test and pooled, but got {_short(found)}.")
    for key in found:
        if key not in _KEYS:
            raise ValueError(unknown("key", key, _KEYS))
    if "train" not in found:
        raise ValueError("it has no key train, the indices of the training examples of each client.")
    pooled = found.get("pooled", False)
    if type(pooled) is not bool:
        raise ValueError(f"pooled must be true or false, but got {_short(pooled)}.")
    train = _clients("train", found["train"])
    test = None if found.get("test") is None else _clients("test", found["test"])
    if pooled and test is None:
        raise ValueError("with pooled true clients have test examples of their own, but it has no key test.")
    if test is not None and len(test) != len(train):
        raise ValueError(f"train has {len(train)} clients and test {len(test)}; each client needs both.")
    _check_duplicates(train, test, pooled)
    return Content(train, test, pooled)


def _clients(key: str, given: object) -> list[np.ndarray]:
    """One int64 array per client."""
    if isinstance(given, dict):
        numbers = [str(number) for number in range(len(given))]
        if odd := [*(given.keys() - {*numbers})]:
            raise ValueError(
                f"the clients of {key} are numbered from 0 to {len(given) - 1}, but it has the client {_short(min(odd))}; "
                "number them without gaps."
            )
        given = [given[number] for number in numbers]
    if not isinstance(given, list) or not given:
        raise ValueError(
            f'{key} must be a list with the indices of each client, or an object with the clients "0", "1", ..., but got '
            f"{_short(given)}."
        )
    return [_indices(key, client, own) for client, own in enumerate(given)]


def _indices(key: str, client: int, given: object) -> np.ndarray:
    if isinstance(given, list):
        odd = next((item for item in given if type(item) is not int), None)
        if odd is not None:
            raise ValueError(f"an index is a whole number, but {key} of client {client} has {_short(odd)}.")
        outside = next((item for item in given if not 0 <= item < 2**62), None)
    elif isinstance(given, np.ndarray):
        ends = (int(given.min()), int(given.max())) if len(given) else ()
        outside = next((item for item in ends if not 0 <= item < 2**62), None)
    else:
        raise ValueError(f"{key} of client {client} must be a list of indices, but got {_short(given)}.")
    if outside is not None:
        raise ValueError(f"indices count from 0, but {key} of client {client} has {_short(outside)}.")
    if not len(given):
        raise ValueError(f"client {client} has no examples in {key}; leave the client out, or give it some.")
    return np.array(given, dtype=np.int64)


def _check_duplicates(train: list[np.ndarray], test: list[np.ndarray] | None, pooled: bool) -> None:
    if (twice := _first_twice(np.concatenate(train))) is not None:
        owners = [client for client, rows in enumerate(train) for index in rows if index == twice][:2]
        where = f"client {owners[0]} twice" if owners[0] == owners[1] else f"clients {owners[0]} and {owners[1]}"
        raise ValueError(f"the index {twice} is in train of {where}; one client has each training example, once.")
    for client, rows in enumerate(test or ()):
        if (twice := _first_twice(rows)) is not None:
            raise ValueError(f"test of client {client} has the index {twice} twice; name it once.")
    if pooled and test is not None:
        both = np.intersect1d(np.concatenate(train), np.concatenate(test))
        if len(both):
            raise ValueError(f"the index {both[0]} is in train and in test; no client trains on a test example.")


def _first_twice(rows: np.ndarray) -> int | None:
    """The smallest index that is there twice."""
    indices, counts = np.unique(rows, return_counts=True)
    twice = indices[counts > 1]
    return int(twice[0]) if len(twice) else None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
