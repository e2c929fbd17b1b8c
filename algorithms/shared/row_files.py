"""Room for client states: memory up to a limit, and pieces of files that have no name beyond it.

Where a row lies changes no number, so that the limit may depend on what else the process has. A file holds many rows, because
the number of mappings of a process is limited; a piece is used again once its row is gone.
"""

import contextlib
import mmap
import os
import tempfile
import weakref

from datasets.cache import default_dir

MEMORY_BYTES = 128 * 2**20  # rows of a process beyond this sum lie in files
_FILE_BYTES = 64 * 2**20  # of one file, or a single row if that is larger
_PAGES_BYTES = 64 * 2**20  # of rows in files that are read or written between two calls of madvise

_in_memory = 0  # bytes of rows
_touched = 0  # bytes of rows that were read or written since the last call of madvise
_files: dict[int, list["_File"]] = {}  # bytes of a row -> files for rows of this size


class _File:
    """A mapped file for rows of one size, beside the decoded datasets, which is no memory disk.

    Attributes:
        free: numbers of the pieces that hold no row.
    """

    def __init__(self, size: int) -> None:
        self.size, self.count = size, max(1, _FILE_BYTES // size)
        self.free = list(range(self.count))
        folder, num_bytes = default_dir(), size * self.count
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(prefix=".client-", dir=folder) as file:
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full disk is an error now, not a crash later
                else:
                    file.truncate(num_bytes)
            except OSError as error:  # the system does not say where, and the disk of the results may be another one
                error.filename = str(folder)
                raise
            self.map = mmap.mmap(file.fileno(), num_bytes)

    def take(self) -> memoryview:
        number = self.free.pop()
        place = memoryview(self.map)[number * self.size : (number + 1) * self.size]
        weakref.finalize(place, self._release, number).atexit = False
        return place

    def _release(self, number: int) -> None:
        self.free.append(number)
        if len(self.free) == self.count:
            with contextlib.suppress(ValueError):
                _files[self.size].remove(self)  # the system frees the file with the last reference to its mapping


def take_place(size: int) -> memoryview:
    """Writable room of so many bytes, at least 1, free again when nothing refers to it.

    Raises:
        OSError: if the disk is full.
    """
    global _in_memory
    if _in_memory + size <= MEMORY_BYTES:
        _in_memory += size
        place = memoryview(bytearray(size))
        weakref.finalize(place, _forget, size).atexit = False
        return place
    free_pages(size)
    files = _files.setdefault(size, [])
    file = next((file for file in files if file.free), None)
    if file is None:
        file = _File(size)
        files.append(file)
    return file.take()


def free_pages(num_bytes: int) -> None:
    """Is told how many bytes of rows are read or written. Now and then it takes the pages of all files out of this process's
    memory: the system counts them as resident otherwise, though they are in its cache and on the disk."""
    global _touched
    _touched += num_bytes
    if _touched >= _PAGES_BYTES and hasattr(mmap, "MADV_DONTNEED"):
        _touched = 0
        for files in _files.values():
            for file in files:
                file.map.madvise(mmap.MADV_DONTNEED)  # of a shared mapping: what was written is kept


def _forget(size: int) -> None:
    global _in_memory
    _in_memory -= size
