"""Arrays of .npz files that somebody else has made, and .npz files that can be read so.

`numpy.load` allocates whatever the header of an array asks for. Here an array is as large as its part of the file, before and
after it is unpacked.
"""

import io
import math
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bench.files import replacing


def read_arrays(file: BinaryIO, largest: int, wanted: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Name -> array of the arrays of an .npz file.

    Args:
        wanted: names of the arrays to read, of those that are there; None for all.
        largest: bytes of these arrays together.

    Raises:
        ValueError: if it is no .npz file, holds Python objects, is damaged, or unpacks to more; continues a sentence that
            begins with "it".
        OSError: if it cannot be read.
    """
    try:
        with zipfile.ZipFile(file) as packed:
            parts = [
                part for part in packed.infolist() if wanted is None or part.filename.removesuffix(".npy") in wanted
            ]
            names = [part.filename.removesuffix(".npy") for part in parts]
            if len({*names}) < len(names):
                raise ValueError("has two arrays of one name")
            if (size := sum(part.file_size for part in parts)) > largest:
                raise ValueError(f"unpacks to {size:,} bytes, but such a file has at most {largest:,}")
            return {name: _array(name, _unpacked(packed, part)) for name, part in zip(names, parts, strict=True)}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, MemoryError) as error:
        raise ValueError(f"is no .npz file, or a damaged one ({error})") from error


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Replaces an .npz file by one with these arrays, compressed."""
    with replacing(path) as partial, open(partial, "xb") as file:
        np.savez_compressed(file, **arrays)


def _unpacked(packed: zipfile.ZipFile, part: zipfile.ZipInfo) -> bytes:
    """The bytes of one part, never more than it says to have."""
    if part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack without a bound
        raise ValueError(f"is packed by method {part.compress_type}, but numpy.savez does not compress, or deflates")
    with packed.open(part) as file:
        return file.read(part.file_size)


def _array(name: str, content: bytes) -> np.ndarray:
    """The array of one .npy part."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, is_fortran, dtype = read_header(file)
        if odd := [size for size in shape if type(size) is not int or size < 0]:
            raise ValueError(f"{odd[0]!r} is no size")
        expected = math.prod(shape) * dtype.itemsize
    except Exception as error:  # NumPy reads a header as Python, which raises almost anything
        raise ValueError(f"has an array {name!r} that cannot be read ({error})") from error
    if dtype.hasobject:
        raise ValueError(f"has Python objects in the array {name!r}, which are never read")
    if (found := len(content) - file.tell()) != expected:
        raise ValueError(f"has {found:,} bytes in the array {name!r}, but its shape {shape} needs {expected:,}")
    flat = np.frombuffer(content, dtype, offset=file.tell())
    return flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)
