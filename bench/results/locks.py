"""Locked files, and which process holds a lock: whoever may read a file can lock it, and keep drivers out or waiting."""

import errno
import fcntl
import os
import pwd
import stat
import time
from pathlib import Path
from typing import BinaryIO


def holder(descriptor: int, table: Path = Path("/proc/locks")) -> str:
    """ " (process 12, python -m bench run, of the user ada)" for the one that has locked an open file by `flock`; "" where the
    system does not tell it, as of a process on another machine, or where it hides that process."""
    found = os.fstat(descriptor)
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        locks = [line.split() for line in table.read_text().splitlines()]
    except OSError:
        return ""
    for words in locks:  # "1: FLOCK ADVISORY WRITE 12 08:01:345 0 EOF"; "->" stands before those that wait
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == wanted and words[4].isdecimal() and int(words[4]):
            return f" (process {words[4]}{_described(Path('/proc') / words[4])})"
    return ""


def _described(process: Path) -> str:
    """ ", COMMAND, of the user NAME" of a process; "" if it has just ended or is hidden."""
    try:
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        user = process.stat().st_uid
    except OSError:
        return ""
    name = user_name(user)
    printable = "".join(letter if letter.isprintable() else "?" for letter in command)
    shown = printable if len(printable) <= 60 else f"{printable[:57]}..."
    return f", {shown}, of the user {name}" if shown else f", of the user {name}"


def user_name(number: int) -> str:
    """The name of a user, or the number of one without."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def open_regular(path: Path, flags: int) -> BinaryIO:
    """A file that is no link, and no pipe, which would wait for another program.

    Raises:
        OSError: if it is one.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return open(descriptor, "rb" if flags == os.O_RDONLY else "ab")


def lock_within(file: BinaryIO | int, seconds: float) -> bool:
    """Locks an open file, or folder, against all others, unless they keep it locked for so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
