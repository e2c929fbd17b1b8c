"""Folders for the files of Ray on this machine: open to nobody else, and removed at the end.

Ray makes its own below /tmp/ray, with mode 0777: another user could rename a socket of a running session there, put one of his
own in its place, and be taken for a part of Ray.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "skewbench-ray-"
# Linux has 107 characters for the path of a socket. Below this folder that is, with a process id of seven digits,
# /ray/session_2026-01-01_12-00-00_000000_1234567/sockets/plasma_store
_LONGEST = 107 - len("/ray/session_2026-01-01_12-00-00_000000_1234567/sockets/plasma_store")
_RANDOM = 8  # characters that `mkdtemp` adds


@contextlib.contextmanager
def private() -> Iterator[Path]:
    """A folder that no other user can enter, for Ray's `_temp_dir` or the files of a `Tuner`, removed at the end. What drivers
    that were killed have left is removed first: the system drops the lock of a folder with its driver.

    Raises:
        ValueError: if none can be made.
    """
    place = _place()
    _remove_left(place)
    folder, lock = _make(place)
    try:
        inner = folder / "ray"  # Ray opens the folder itself to all, so that one around it has to be closed
        inner.mkdir(mode=0o700)
        yield inner
    finally:
        _remove(folder)
        os.close(lock)


def _place() -> Path:
    """Where temporary files belong, if paths of sockets fit there; else /tmp."""
    wanted = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    fits = len(os.fsencode(os.path.join(os.path.abspath(wanted), PREFIX))) + _RANDOM <= _LONGEST
    return Path(os.path.abspath(wanted)) if fits else Path("/tmp")


def _make(place: Path) -> tuple[Path, int]:
    """A new folder, and the descriptor whose lock says that a driver is at work in it."""
    while True:
        try:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))  # mode 0700
        except OSError as error:
            raise ValueError(
                f"Cannot make a folder for Ray in {place} ({error.strerror}); make room there, or set TMPDIR to a folder whose "
                f"path has at most {_LONGEST - _RANDOM - len(PREFIX) - 1} characters."
            ) from error
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # of a file system that locks no folders
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)  # another driver has taken it for one of a killed driver


def _remove_left(place: Path) -> None:
    """Removes folders of this user whose driver is gone."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _remove(folder: Path) -> None:
    """Removes a folder in which processes of Ray that are about to end may still write."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
