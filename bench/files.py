"""YAML, names of files, atomic replacement of files, and opening of files that somebody else may have made."""

import ctypes
import functools
import glob
import hashlib
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

MIB = 2**20
_MOST_VALUES = 20_000  # of a YAML text; the largest grid of ours has 600
_LONGEST_NUMBER = 100  # characters of a number in a YAML text
_LONGEST_WRITE = 3600  # seconds without a change of a file that somebody still writes


def path_in_words(path: Path | str) -> str:
    """A path for people: from the current directory on if it lies below it."""
    whole = Path(path).absolute()
    return str(whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else path)


def from_home(path: Path | str) -> Path:
    """A path in which "~" at its beginning is the home directory, and "~ann" that of a user.

    Raises:
        ValueError: if there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"{path} begins with the home directory of a user who is not here; write the whole path."
        ) from error


class UnusableFile(Exception):
    """A file of others that is not opened.

    Attributes:
        what: what is wrong with it; continues a sentence that begins with its path.
    """

    def __init__(self, what: str):
        super().__init__(what)
        self.what = what


def open_foreign(path: Path | str, largest: int, within: Path | None = None) -> BinaryIO:
    """Opens a file that somebody else may have made, for reading. It does not wait for a pipe, and never gets more than memory
    holds.

    Args:
        largest: bytes that a file of its kind may have.
        within: links are followed that stay in this folder; None follows no link.

    Raises:
        UnusableFile: if it is no regular file, is larger, or is a link that leads elsewhere.
        OSError: if it cannot be opened.
    """
    return open(_descriptor(path, largest, within), "rb")


def read_foreign(path: Path | str, largest: int, within: Path | None = None) -> bytes:
    """The content of a file that somebody else may have made; arguments and errors as of `open_foreign`."""
    descriptor = _descriptor(path, largest, within)
    try:
        size = os.fstat(descriptor).st_size
        content = os.read(descriptor, size + 1)
        while len(content) < size and (more := os.read(descriptor, size)):
            content += more
        return content
    finally:
        os.close(descriptor)


def _descriptor(path: Path | str, largest: int, within: Path | None) -> int:
    # A named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (os.O_NOFOLLOW if within is None else 0))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnusableFile("is a folder, not a file" if stat.S_ISDIR(found.st_mode) else "is not a regular file")
        if found.st_size > largest:
            raise UnusableFile(f"has {found.st_size:,} bytes, but such a file has at most {largest:,}")
        if within is not None:
            target = os.path.realpath(path)
            if not (Path(target).is_relative_to(os.path.realpath(within)) and os.path.samestat(found, os.stat(target))):
                raise UnusableFile(f"is a link that leads out of {within}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def file_name(text: str, longest: int = 100) -> str:
    """A text as part of a file name: printable, without slashes; a long text is cut and ends in a hash of all of it."""
    text = "".join(letter if letter.isprintable() and letter not in "/\\" else "_" for letter in text)
    if len(text) <= longest:
        return text
    return f"{text[: longest - 9]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def write_file(path: Path, text: str) -> None:
    """Replaces a file atomically and syncs it to disk, so that it survives a power failure."""
    with replacing(path) as partial, open(partial, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sync_disk(folder: Path) -> None:
    """Waits until all that was written to the file system of a folder is on disk: one wait for any number of files.

    Raises:
        OSError: if the disk has not taken all of it.
    """
    sync = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if sync is None:  # not Linux
        os.sync()
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if sync(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a new file that replaces `path` at the end, or is removed after an error. Several processes may do
    so at once: the last one's file stays.

    Raises:
        OSError: with the name of the file, also if the disk is full (where Python's own error names none).
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):  # by processes that were killed
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > _LONGEST_WRITE:
                left.unlink()
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException as error:
        if isinstance(error, OSError) and str(error.filename or partial) == str(partial):
            error.strerror, error.filename = error.strerror or str(error), str(path)
        with suppress(OSError):
            partial.unlink()
        raise


def make_folder(folder: Path) -> None:
    """Creates a folder that a user named, but not its parents, because a missing parent may be a typing error.

    Raises:
        ValueError: if the folder above it does not exist.
    """
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError as error:
        raise ValueError(
            f"There is no folder {folder.parent}, in which {folder.name} would be made; make it first."
        ) from error


def read_yaml(path: Path) -> Any:
    """The content of a YAML file that a user names; a link to one will do.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is not YAML, no regular file, or has more than 4 MiB.
    """
    import yaml

    try:
        return parse_yaml(read_foreign(path, 4 * MIB, within=Path("/")).decode())
    except UnusableFile as error:
        raise ValueError(f"{path} {error.what}; name a YAML file, as in docs/own-grid.md.") from error
    except yaml.MarkedYAMLError as error:
        begun = f" (in what begins in line {error.context_mark.line + 1})" if error.context_mark else ""
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = "it has a tab; indent with spaces" if r"'\t'" in str(error.problem) else error.problem
        raise ValueError(f"{path}{line}, is not valid YAML: {problem}{begun}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from error


def parse_yaml(text: str) -> Any:
    """The content of a YAML text; reads 1e-3 as a number, unlike YAML 1.1, where it is a string.

    Raises:
        yaml.YAMLError: if it is not YAML, is nested too deeply, has too many values, a value that holds itself, a number
            that is too long, a date that is none, or a key twice in a mapping.
    """
    import yaml  # the benchmark of a machine needs this module, but no YAML

    try:
        return yaml.load(text, _yaml_loader())
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except (ValueError, LookupError, AttributeError) as error:  # for a date such as 2001-99-99, or "!!bool x"
        raise yaml.YAMLError(f"it has a value that cannot be read ({error})") from error


@functools.cache
def _yaml_loader() -> type:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses duplicate keys of a mapping, whose last value PyYAML would take silently, numbers of base 8 or 60, and texts
        of a few lines whose content fills the memory: aliases of aliases stand for 9 values, 81, 729 and so on."""

        def __init__(self, stream):
            super().__init__(stream)
            self._num_values = 0  # so far, with those for which aliases stand
            self._sizes: dict[yaml.Node, int] = {}  # value that is complete -> values in it, with itself

        def compose_node(self, parent, index):
            mark, before = self.peek_event().start_mark, self._num_values
            is_alias = self.check_event(yaml.AliasEvent)
            self._num_values += not is_alias
            node = super().compose_node(parent, index)
            if not is_alias:
                self._sizes[node] = self._num_values - before
                self._check_number(node)
            elif node in self._sizes:
                self._num_values += self._sizes[node]
            else:
                raise yaml.composer.ComposerError(None, None, "a value holds itself by an alias", mark)
            if self._num_values > _MOST_VALUES:
                raise yaml.composer.ComposerError(
                    None,
                    None,
                    f"it has more than {_MOST_VALUES:,} values, where an alias counts as all that it stands for",
                    mark,
                )
            return node

        def _check_number(self, node):
            if node.tag not in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
                return
            wrong = ""
            # The time for a number such as 1:1:1 (sexagesimal in YAML 1.1) grows with the square of its length.
            if len(node.value) > _LONGEST_NUMBER:
                wrong = f"a number has {len(node.value):,} characters"
            elif re.match(r"[-+]?0[0-9_]+$|.*:", node.value):  # YAML 1.1 takes 010 for 8, and 12:30 for 750
                wrong = f"{node.value} is no decimal number; quote it, or write it without zeros in front and colons"
            if wrong:
                raise yaml.composer.ComposerError(None, None, wrong, node.start_mark)

        def construct_mapping(self, node, deep=False):
            keys = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value} is there twice", node.start_mark
                    )
                keys.add(key.value)
            return super().construct_mapping(node, deep)

    exponent = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    return Loader


@contextmanager
def stderr_to(log: BinaryIO) -> Iterator[None]:
    """Within the context, what libraries in C++ print goes to a file: also what they print before they end the process."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
