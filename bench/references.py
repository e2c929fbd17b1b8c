"""How configs name the data of users: by kind, a name for people, and a digest of the content.

"imagefolder:/home/me/leaves" is a path, and "imagefolder:leaves@0123456789abcdef" the reference to what lies there. Configs,
stored grids and names of files have references, so that a run is the same wherever its files lie. The id of a run counts the
kind and the digest of a reference, and not the name.
"""

import re
from pathlib import Path
from typing import NamedTuple

from bench.files import file_name

LAB = "lab"  # a function of a lab, see `datasets.of_labs`; people write its name alone
DATASETS = ("imagefolder", "npz", LAB)
PARTITION = "file"
_REFERENCE = re.compile(rf"({'|'.join((*DATASETS, PARTITION))}):([^/\\]+)@([0-9a-f]{{16}})")
_LONGEST = 40  # characters of a name for people
_LONGEST_IN_FILES = 12


class Reference(NamedTuple):
    """A reference to data of users.

    Attributes:
        kind: one of DATASETS, or PARTITION.
        name: for people: that of a folder, or of a file without its suffix.
        digest: of the content, 16 hex digits.
    """

    kind: str
    name: str
    digest: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}@{self.digest}"


def make(kind: str, name: str, digest: str) -> Reference:
    """A reference; characters of the name that files or tables cannot have are replaced."""
    return Reference(kind, file_name(name, _LONGEST) or kind, digest)


def read(text: object) -> Reference | None:
    """The reference that a text is; None if it is a path, or no data of users."""
    found = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
    return Reference(*found.groups()) if found else None


def is_dataset(text: object) -> bool:
    """Whether a text names a dataset of a user, by its path or by a reference; the name of a function of a lab is not among
    these."""
    return isinstance(text, str) and text.startswith(tuple(f"{kind}:" for kind in DATASETS))


def is_partition(text: object) -> bool:
    """Whether a text names a partition file, by its path or by a reference."""
    return isinstance(text, str) and text.startswith(f"{PARTITION}:")


def is_path(text: object) -> bool:
    """Whether a text names data of a user by a path, which may lead to any file of this machine."""
    return (is_dataset(text) or is_partition(text)) and read(text) is None


def name_of(text: str) -> str:
    """The name for people of a dataset or partition of a user, never a path."""
    if reference := read(text):
        return reference.name
    kind, _, path = text.partition(":")
    path = path if kind == "imagefolder" else path.removesuffix(Path(path).suffix)
    return Path(path).name or kind


def without_digest(text: str) -> str:
    """A dataset or partition in lines for people: of a reference its name, all others as they are."""
    reference = read(text)
    return reference.name if reference else text


def hashed(text: object) -> object:
    """What the id of a run counts of a dataset or partition: of a reference all but its name."""
    reference = read(text)
    return f"{reference.kind}@{reference.digest}" if reference else text


def in_file_names(text: str) -> str:
    """A dataset or partition as part of the name of a file: "leaves-01234567" for a reference, all others as they are."""
    reference = read(text)
    if reference is None:
        return text
    name = re.sub(r"[^\w.-]", "_", reference.name)[:_LONGEST_IN_FILES]
    return f"{name}-{reference.digest[:8]}"
