"""Names of files, and files that are replaced in one step."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def file_name(text: str, longest: int = 100) -> str:
    """A text as part of a file name: one printable line without slashes, and where it is too long cut, with a hash of the
    whole."""
    text = "".join(letter if letter.isprintable() and letter not in "/\\" else "_" for letter in text)
    if len(text) <= longest:
        return text
    return f"{text[: longest - 9]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def write_file(path: Path, text: str) -> None:
    """Replaces a file in one step that survives a power cut."""
    with replacing(path) as partial, open(partial, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """What is written to the file that it yields takes the place of `path` at the end, and is removed if that fails. Nothing
    is there at the beginning, not even a link.

    Raises:
        OSError: which names a file: by itself a full disk names none.
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
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
    """Makes a folder for files of the user, but none above it, whose name may be mistyped.

    Raises:
        ValueError: if the folder above it does not exist.
    """
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError as error:
        raise ValueError(
            f"There is no folder {folder.parent}, in which {folder.name} would be made; make it first."
        ) from error
