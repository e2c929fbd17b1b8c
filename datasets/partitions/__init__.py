"""Partitions: assignments of training examples to clients.

The partitions equal those of NIID-Bench and FedConcat index for index, and the shifts those of FedCollab; regions deal groups
of clients as these deal clients; `dirichlet-equal-b` and `shards-s` are readings of papers. All use the global legacy
generators of NumPy and Python. Therefore randomness is sequential here, unlike everywhere else: the order of draws must not
change. Private generator instances produce the same streams without touching the global ones.

Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022.
https://arxiv.org/abs/2102.02079
"""

import difflib
import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import ClassVar, NamedTuple

import numpy as np

from bench import references
from bench.errors import unknown
from bench.registry import Registry
from bench.registry import registered_partition as registered_partition
from datasets import shifts

MIN_EXAMPLES = 10  # smallest client that a Dirichlet draw may produce
MAX_DRAWS = 10_000  # the published partitions need up to 1,166


class Drawn(NamedTuple):
    """A partition and its number of draws.

    Attributes:
        indices: one int64 array of training indices per client.
        num_draws: Dirichlet draws until every client was large enough; 1 for other kinds.
        test_indices: likewise, the indices that clients test on; None if they have no test data of their own.
    """

    indices: list[np.ndarray]
    num_draws: int
    test_indices: list[np.ndarray] | None = None


@dataclass(frozen=True)
class Partition:
    """A rule that assigns training examples to clients; a subclass per kind, whose fields are its parameters."""

    pattern: ClassVar[str]  # of the name: the kind, and a letter for each parameter
    parameter: ClassVar[str] = ""  # the condition on the parameters, for messages
    title: ClassVar[str]  # what tables and figures call it, with {} for each parameter
    latex: ClassVar[str] = ""  # the same in LaTeX, with %s for each parameter; "" where it is no formula
    version: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """The canonical name: "dir-0.1" for "dir-0.10"."""
        return "-".join([self.kind(), *self._values])

    @classmethod
    def kind(cls) -> str:
        """The name without parameters: "dir" of "dir-b"."""
        parts = cls.pattern.split("-")
        return "-".join(parts[: len(parts) - len(fields(cls))])

    @property
    def for_people(self) -> tuple[str, str]:
        """What tables and figures call it, "#C = 2", and the same in LaTeX, "" where it is no formula."""
        return self.title.format(*self._values), self.latex % tuple(self._values) if self.latex else ""

    @property
    def _values(self) -> list[str]:
        return [np.format_float_positional(value, trim="-") for value in astuple(self)]

    @property
    def noise(self) -> float:
        """Standard deviation of the last client's pixel noise, in units of the [0, 1] pixel range."""
        return 0.0

    @property
    def has_own_tests(self) -> bool:
        """Whether clients have test data of their own."""
        return False

    @staticmethod
    def accepts(*values: float) -> bool:
        """Whether the parameters may have these values, as many as there are fields; text that is not a number is passed as
        NaN."""
        return False

    def split(self, labels, num_clients, num_classes, seed, **options) -> list[np.ndarray]:
        """One int64 array of indices per client; see `draw`."""
        return self.draw(labels, num_clients, num_classes, seed, **options).indices

    def draw(
        self,
        labels: np.ndarray,
        num_clients: int,
        num_classes: int,
        seed: int,
        *,
        dirichlet_seed_override: int | None = None,
        groups: np.ndarray | None = None,
        num_test: int = 0,
    ) -> Drawn:
        """Assigns every index to exactly one client; no client is empty. A shift leaves some of them out.

        Args:
            labels: [examples], class of each training example, 0..num_classes-1; for a shift of each training example, then
                of each test example.
            num_clients: size of the population.
            num_classes: classes of the dataset, also those that `labels` lacks.
            seed: the run's seed.
            dirichlet_seed_override: replaces the seed for `dir-b` only. 2020 reproduces the partition that the authors'
                code drew for every seed before February 2023.
            groups: [examples], number of the writer of each example, read by `natural` only.
            num_test: test examples among the labels, read by shifts only.

        Raises:
            ValueError: these clients and labels cannot be split this way.
        """
        if num_clients < 1:
            raise ValueError(f"clients must be at least 1, but got {num_clients}.")
        if dirichlet_seed_override is not None and isinstance(self, Dirichlet):
            seed = dirichlet_seed_override
        if isinstance(self, Natural):
            labels = _require_groups(groups, num_clients)
        own = {"num_test": num_test} if isinstance(self, Shift) else {}
        drawn = self._draw(np.asarray(labels), num_clients, num_classes, seed, **own)
        for parts in (drawn.indices, drawn.test_indices or ()):
            if mistake := self.empty_client([len(indices) for indices in parts], len(labels)):
                raise ValueError(mistake)
        return drawn

    def empty_client(self, sizes: Sequence[int], num_examples: int) -> str:
        """Why the first client without examples cannot be, as a sentence; "" if there is none."""
        if 0 not in sizes:
            return ""
        return (
            f"{self.name} of {num_examples} examples leaves client {list(sizes).index(0)} of {len(sizes)} without "
            "examples; use fewer clients or more examples."
        )

    def _draw(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> Drawn:
        raise NotImplementedError


@dataclass(frozen=True)
class LabelsPerClient(Partition):
    """k labels per client, each class shared equally by its owners.

    Attributes:
        labels_per_client: k, at least 1 and at most the number of classes.
    """

    pattern: ClassVar[str] = "label-k"
    title: ClassVar[str] = "#C = {}"
    latex: ClassVar[str] = r"$\#C=%s$"
    parameter: ClassVar[str] = "a whole number k of at least 1"
    labels_per_client: int

    @staticmethod
    def accepts(value: float) -> bool:
        return isinstance(value, int) and value >= 1

    def _draw(self, labels, num_clients, num_classes, seed):
        if self.labels_per_client > num_classes:
            raise ValueError(
                f"label-k needs k to be at most the number of classes ({num_classes}), but got {self.name}."
            )
        if num_clients < self.fewest_clients(num_classes):
            raise ValueError(
                f"{self.name} needs at least {self.fewest_clients(num_classes)} clients to hold all {num_classes} classes, "
                f"but got {num_clients}."
            )
        owned = self._draw_labels(num_clients, num_classes, seed)
        rng = np.random.RandomState(seed)
        parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        for label in range(num_classes):
            indices = np.flatnonzero(labels == label)
            rng.shuffle(indices)
            owners = [client for client in range(num_clients) if label in owned[client]]
            for owner, part in zip(owners, np.array_split(indices, len(owners)), strict=True):
                parts[owner].append(part)
        return Drawn([np.concatenate(client_parts) for client_parts in parts], 1)

    def fewest_clients(self, num_classes: int) -> int:
        """With how many clients every class has an owner."""
        return -(-num_classes // self.labels_per_client)

    def _draw_labels(self, num_clients: int, num_classes: int, seed: int) -> list[list[int]]:
        """Labels of each client: the first ones round-robin, so that every class has an owner, the others at random. One is
        dealt if there are as many clients as classes."""
        rng = random.Random(seed)
        owned = []
        for client in range(num_clients):
            mine = [*range(client % num_classes, num_classes, num_clients)]
            while len(mine) < self.labels_per_client:
                label = rng.randint(0, num_classes - 1)
                if label not in mine:
                    mine.append(label)
            owned.append(mine)
        return owned


class _Redrawn(Partition):
    """A Dirichlet draw that is repeated until every client is large enough; a field of subclasses is the concentration b (beta
    of the papers), > 0; smaller is more skewed."""

    parameter: ClassVar[str] = "a number b above 0"
    concentration: float

    @staticmethod
    def accepts(value: float) -> bool:
        return 0 < value < float("inf")

    def _draw(self, labels, num_clients, num_classes, seed):
        condition = (
            f"{len(labels)} examples over {num_clients} clients with concentration {self.concentration:g} "
            f"and a minimum size of {MIN_EXAMPLES}"
        )
        if num_clients * MIN_EXAMPLES > len(labels):
            raise ValueError(f"{self.name} cannot split {condition}; use fewer clients or more examples.")
        attempts = self._attempts(labels, num_clients, num_classes, np.random.RandomState(seed))
        for num_draws, indices in zip(range(1, MAX_DRAWS + 1), attempts, strict=False):
            if indices is not None:
                return Drawn(indices, num_draws)
        raise ValueError(
            f"{self.name} found no split of {condition} in {MAX_DRAWS:,} draws; use fewer clients or a "
            "larger concentration."
        )

    def _attempts(self, labels, num_clients, num_classes, rng) -> Iterator[list[np.ndarray] | None]:
        """One item per draw: the clients' indices, or None if a client is too small."""
        raise NotImplementedError


@dataclass(frozen=True)
class Dirichlet(_Redrawn):
    """Each class split in Dirichlet proportions; smaller b is more skewed."""

    pattern: ClassVar[str] = "dir-b"
    title: ClassVar[str] = "Dir({})"
    latex: ClassVar[str] = r"$p_k \sim \mathrm{Dir}(%s)$"
    concentration: float

    def _attempts(self, labels, num_clients, num_classes, rng):
        class_indices = [np.flatnonzero(labels == label) for label in range(num_classes)]
        while True:
            smallest = np.full(num_clients, MIN_EXAMPLES)
            clients = _split_classes(class_indices, smallest, len(labels) / num_clients, self.concentration, rng)
            for indices in clients or ():
                rng.shuffle(indices)
            yield clients


@dataclass(frozen=True)
class EqualDirichlet(Partition):
    """Label shares of clients of equal size drawn from a Dirichlet distribution; smaller b is more skewed.

    Client after client, in the order of their numbers: its size is that of all others (up to one example, the first clients
    have more), its label shares q are a draw of Dir(b, ..., b), one b for each class of the dataset. Each of its examples in
    turn has a label drawn by q among the labels of which examples are left, and is drawn among these examples, without
    replacement. Where q is 0 for all labels that are left, the label is drawn by how many examples of each are left. All
    examples are dealt: the last clients get what others have left, and may have other shares than q.

    This is the partition of Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, 2019 (https://arxiv.org/abs/1909.06335), to which papers refer that write Dir(b). Its own parameter is the
    concentration of all classes together: b times the number of classes, where these have as many examples each.

    Attributes:
        concentration: b, > 0, the same for all classes.
    """

    pattern: ClassVar[str] = "dirichlet-equal-b"
    title: ClassVar[str] = "Dir({}), equal sizes"
    latex: ClassVar[str] = r"$p_k \sim \mathrm{Dir}(%s)$, equal sizes"
    parameter: ClassVar[str] = "a number b above 0"
    concentration: float

    @staticmethod
    def accepts(value: float) -> bool:
        return _Redrawn.accepts(value)

    def _draw(self, labels, num_clients, num_classes, seed):
        rng = np.random.RandomState(seed)
        pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(num_classes)]
        sizes, taken = np.array([len(pool) for pool in pools]), np.zeros(num_classes, dtype=np.int64)
        each, more = divmod(len(labels), num_clients)
        clients = []
        for client in range(num_clients):
            counts = _draw_counts(each + (client < more), self._draw_shares(num_classes, rng), sizes - taken, rng)
            parts = zip(pools, taken, counts, strict=True)
            clients.append(rng.permutation(np.concatenate([pool[start : start + own] for pool, start, own in parts])))
            taken += counts
        return Drawn(clients, 1)

    def _draw_shares(self, num_classes: int, rng) -> np.ndarray:
        """q, [classes]."""
        for _ in range(MAX_DRAWS):
            shares = rng.dirichlet(np.full(num_classes, self.concentration))
            if np.isfinite(shares).all() and shares.sum() > 0:  # a tiny concentration underflows to 0 or NaN
                return shares
        raise ValueError(f"{self.name} found no label shares in {MAX_DRAWS:,} draws; use a larger concentration.")


@dataclass(frozen=True)
class Shards(Partition):
    """s shards of the examples sorted by label, dealt at random.

    The n training examples are sorted by label; examples of one label keep the order of the training file. They are cut into
    N s consecutive shards of n div (N s) examples, for N clients; the first n mod (N s) shards have one example more. A random
    permutation of the shards, of NumPy's legacy generator with the run's seed, is dealt in order: client i gets the s shards at
    positions i s to i s + s - 1 and has their examples in that order. A shard may span two labels or more, so that a client may
    have more than s labels.

    This is the pathological partition of McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
    Data, AISTATS 2017 (https://arxiv.org/abs/1602.05629): 100 clients with 2 shards of 300 examples of MNIST.

    Attributes:
        shards_per_client: s, at least 1.
    """

    pattern: ClassVar[str] = "shards-s"
    title: ClassVar[str] = "{} shards"
    parameter: ClassVar[str] = "a whole number s of at least 1"
    shards_per_client: int

    @staticmethod
    def accepts(value: float) -> bool:
        return isinstance(value, int) and value >= 1

    def validate(self, num_clients: int, num_examples: int) -> list[str]:
        """Why so many examples cannot be dealt to so many clients, as sentences."""
        if (num_shards := num_clients * self.shards_per_client) <= num_examples:
            return []
        return [
            f"{self.name} cuts the examples into clients times {self.shards_per_client} = {num_shards} shards, but there are "
            f"{num_examples} training examples; use fewer clients or shards."
        ]

    def _draw(self, labels, num_clients, num_classes, seed):
        for mistake in self.validate(num_clients, len(labels)):
            raise ValueError(mistake)
        num_shards = num_clients * self.shards_per_client
        shards = np.array_split(np.argsort(labels, kind="stable").astype(np.int64), num_shards)
        dealt = np.random.RandomState(seed).permutation(num_shards).reshape(num_clients, self.shards_per_client)
        return Drawn([np.concatenate([shards[shard] for shard in own]) for own in dealt], 1)


@dataclass(frozen=True)
class Iid(Partition):
    """A random permutation cut into nearly equal parts."""

    pattern: ClassVar[str] = "iid"
    title: ClassVar[str] = "IID"

    def _draw(self, labels, num_clients, num_classes, seed):
        rng = np.random.RandomState(seed)
        return Drawn(np.array_split(rng.permutation(np.arange(len(labels), dtype=np.int64)), num_clients), 1)


@dataclass(frozen=True)
class Quantity(_Redrawn):
    """Sizes in Dirichlet proportions, classes mixed as in the full dataset; smaller b is more skewed."""

    pattern: ClassVar[str] = "quantity-b"
    title: ClassVar[str] = "q ~ Dir({})"
    latex: ClassVar[str] = r"$q \sim \mathrm{Dir}(%s)$"
    concentration: float

    def _attempts(self, labels, num_clients, num_classes, rng):
        permuted = rng.permutation(np.arange(len(labels), dtype=np.int64))
        while True:
            shares = rng.dirichlet(np.full(num_clients, self.concentration))
            shares = shares / shares.sum()
            large_enough = shares.min() * len(labels) >= MIN_EXAMPLES
            yield np.split(permuted, _cut(shares, len(labels))) if large_enough else None


@dataclass(frozen=True)
class Noise(Iid):
    """Split as iid; client i of N has Gaussian pixel noise of standard deviation s i/(N-1).

    Attributes:
        sigma: s, >= 0, in units of the [0, 1] pixel range.
    """

    pattern: ClassVar[str] = "noise-s"
    title: ClassVar[str] = "Gau({})"
    latex: ClassVar[str] = r"$\hat{x} \sim Gau(%s)$"
    parameter: ClassVar[str] = "a number s of at least 0"
    sigma: float

    @property
    def noise(self) -> float:
        return self.sigma

    @staticmethod
    def accepts(value: float) -> bool:
        return 0 <= value < float("inf")


@dataclass(frozen=True)
class SingleClient(Partition):
    """One client holds everything, for centralized training."""

    pattern: ClassVar[str] = "none"
    title: ClassVar[str] = "pooled"

    def _draw(self, labels, num_clients, num_classes, seed):
        if num_clients != 1:
            raise ValueError(f"Partition none gives everything to 1 client, but got {num_clients} clients.")
        return Drawn([np.arange(len(labels), dtype=np.int64)], 1)


@dataclass(frozen=True)
class Natural(Partition):
    """Each writer is a client, for datasets that name them."""

    version: ClassVar[int] = 2  # cohorts are rounded to the nearest size, see `bench.config.schema`
    pattern: ClassVar[str] = "natural"
    title: ClassVar[str] = "by writer"

    def _draw(self, labels, num_clients, num_classes, seed):
        # `draw` passes the numbers of the writers as the labels.
        return Drawn([np.flatnonzero(labels == writer) for writer in range(num_clients)], 1)


@dataclass(frozen=True)
class Region(_Redrawn):
    """Groups of clients, each class split over the g groups in Dirichlet proportions; within a group clients are alike.

    The groups are dealt as `dir-b` deals as many clients. Client i of N is in group floor(i g / N), and all clients of a group
    have as many examples of each class, up to one.

    Skew by region is that of ProFed (https://arxiv.org/abs/2503.20618).

    Attributes:
        num_groups: g, at least 2 and at most the number of clients.
        concentration: b, > 0; smaller is more skewed.
    """

    pattern: ClassVar[str] = "region-g-b"
    title: ClassVar[str] = "{} regions, Dir({})"
    latex: ClassVar[str] = r"%s regions, $p_k \sim \mathrm{Dir}(%s)$"
    parameter: ClassVar[str] = "a whole number g of at least 2 and a number b above 0"
    num_groups: int
    concentration: float

    @staticmethod
    def accepts(num_groups: float, concentration: float) -> bool:
        return isinstance(num_groups, int) and num_groups >= 2 and _Redrawn.accepts(concentration)

    def validate(self, num_clients: int) -> list[str]:
        """Why it cannot be drawn for so many clients, as sentences."""
        if num_clients >= self.num_groups:
            return []
        return [
            f"{self.name} has {self.num_groups} groups of clients: clients must be at least {self.num_groups}, but got "
            f"{num_clients}."
        ]

    def _draw(self, labels, num_clients, num_classes, seed):
        for mistake in self.validate(num_clients):
            raise ValueError(mistake)
        return super()._draw(labels, num_clients, num_classes, seed)

    def _attempts(self, labels, num_clients, num_classes, rng):
        class_indices = [np.flatnonzero(labels == label) for label in range(num_classes)]
        members = np.bincount(np.arange(num_clients) * self.num_groups // num_clients)
        while True:
            smallest = members * MIN_EXAMPLES
            groups = _split_classes(class_indices, smallest, len(labels) / self.num_groups, self.concentration, rng)
            # Rows of a group are in the order of their classes, so that dealing in turn shares each class equally.
            clients = groups and [
                rows[first::count] for rows, count in zip(groups, members, strict=True) for first in range(count)
            ]
            for indices in clients or ():
                rng.shuffle(indices)
            yield clients


@dataclass(frozen=True)
class Shift(Partition):
    """Training and test images are dealt together, and each client has test data of its own (see `datasets.shifts`).

    Of each client's examples the same share is for testing as of all images; the second half of the clients keeps few of the
    others for training.

    Attributes:
        decay: these clients keep the share e^-decay.
        needed_classes: for which it is defined; None for any number.
    """

    decay: ClassVar[float]
    needed_classes: ClassVar[int | None] = None
    usual_clients: ClassVar[int] = 20

    @property
    def has_own_tests(self) -> bool:
        return True

    def validate(self, num_clients: int, num_classes: int, num_test: int) -> list[str]:
        """Why it cannot be drawn, as sentences; arguments as in `draw`."""
        mistakes = []
        if num_clients % shifts.GROUPS:
            mistakes.append(
                f"{self.name} has {shifts.GROUPS} groups of equally many clients: clients must be a multiple of "
                f"{shifts.GROUPS}, but got {num_clients}."
            )
        if self.needed_classes not in (None, num_classes):
            mistakes.append(
                f"{self.name} is defined for {self.needed_classes} classes, but the dataset has {num_classes}; use another "
                "dataset, or feature-shift."
            )
        if not num_test:
            mistakes.append(
                f"{self.name} deals training and test images together, but the dataset has no test images; use another "
                "dataset or partition."
            )
        return mistakes

    def counts(self, class_counts: np.ndarray, num_clients: int, test_share: float) -> np.ndarray:
        """Examples of each class at each client, [2, clients, classes]: for training, and for testing.

        Args:
            class_counts: [classes], training and test examples together.
            test_share: share of the test examples in them.
        """
        kept = shifts.kept_shares(num_clients, self.decay)
        return shifts.count(class_counts, self._shares(num_clients, len(class_counts)), kept, test_share)

    def client_images(self, images: np.ndarray, client: int, num_clients: int) -> np.ndarray:
        """What a client sees of images, uint8 [n, C, H, W]."""
        return images

    def client_labels(self, labels: np.ndarray, client: int, num_clients: int) -> np.ndarray:
        """What a client calls examples of these labels, [n]."""
        return labels

    def describe_groups(self, num_clients: int) -> str:
        """What sets the groups apart beside their numbers of examples, as one sentence; "" for nothing."""
        return ""

    def _shares(self, num_clients: int, num_classes: int) -> np.ndarray:
        return shifts.equal_shares(num_clients, num_classes)

    def _draw(self, labels, num_clients, num_classes, seed, num_test=0):
        for mistake in self.validate(num_clients, num_classes, num_test):
            raise ValueError(mistake)
        shares, kept = self._shares(num_clients, num_classes), shifts.kept_shares(num_clients, self.decay)
        train, test = shifts.deal(labels, shares, kept, num_test / len(labels), seed)
        return Drawn(train, 1, test)


@dataclass(frozen=True)
class LabelShift(Shift):
    """Groups of clients with other labels; each client has test data of its own."""

    pattern: ClassVar[str] = "label-shift"
    title: ClassVar[str] = "label shift"
    decay = 5
    needed_classes = 10

    def _shares(self, num_clients, num_classes):
        return shifts.label_shares(num_clients)


@dataclass(frozen=True)
class FeatureShift(Shift):
    """Groups of clients that see images rotated by other angles; each client has test data of its own."""

    pattern: ClassVar[str] = "feature-shift"
    title: ClassVar[str] = "feature shift"
    decay = 2

    def client_images(self, images, client, num_clients):
        return shifts.rotate(images, shifts.group_of(client, num_clients))

    def describe_groups(self, num_clients):
        return shifts.describe_rotations(num_clients)


@dataclass(frozen=True)
class ConceptShift(Shift):
    """Groups of clients that name the same labels otherwise; each client has test data of its own."""

    pattern: ClassVar[str] = "concept-shift"
    title: ClassVar[str] = "concept shift"
    decay = 3
    needed_classes = 20

    def client_labels(self, labels, client, num_clients):
        return shifts.rename(labels, shifts.group_of(client, num_clients))

    def describe_groups(self, num_clients):
        return shifts.describe_names(num_clients)


def _require_groups(groups: np.ndarray | None, num_clients: int) -> np.ndarray:
    if groups is None:
        raise ValueError("Partition natural needs a dataset that names its writers, such as femnist.")
    if (writers := int(groups.max()) + 1) != num_clients:
        raise ValueError(
            f"Partition natural of {writers} writers has {writers} clients, but got {num_clients} clients."
        )
    return groups


_CLASSES = {
    cls.pattern: cls
    for cls in (
        *(LabelsPerClient, Dirichlet, Iid, Quantity, Noise, SingleClient, Natural, Region, EqualDirichlet),
        Shards,
        *(LabelShift, FeatureShift, ConceptShift),
    )
}

KINDS: dict[str, str] = {pattern: cls.__doc__.splitlines()[0] for pattern, cls in _CLASSES.items()} | {
    "file:PATH": "Who has which examples, read from a .json or .npz file."
}
"""Pattern of the name -> one-line description, of those that come with the harness."""


NAMES = [cls.kind() for cls in _CLASSES.values()]
"""Names without parameters, "dir" of "dir-b"."""

_WITH_CLIENTS = ("natural", "label-shift", "feature-shift", "concept-shift")


def counts_clients(name: object) -> bool:
    """Whether a partition of that name says how many clients there are if a config does not; budgets leave that to it."""
    return name in _WITH_CLIENTS or references.is_partition(name)


def usual_clients(name: str, num_writers: int | None) -> int | None:
    """The size of the population of a partition that counts its clients; None if it is not known.

    Args:
        num_writers: of the dataset; None if it does not name them.
    """
    if references.is_partition(name):
        try:
            return parse(name).num_clients
        except ValueError:  # of a file that cannot be read, which is said elsewhere
            return None
    return num_writers if name == Natural.pattern else Shift.usual_clients


OF_LABS = Registry("partition")
"""Name -> function of a lab, see `datasets.partitions.of_labs`, which checks them."""


def known_kinds() -> dict[str, str]:
    """`KINDS`, and those of labs."""
    return KINDS | {"-".join([name, *entry.options]): entry.description for name, entry in OF_LABS.items()}


READERS: list[Callable[[str], Partition | None]] = []
"""What makes partitions of further names, or None of others; modules with further classes add theirs."""


def parse(name: str) -> Partition:
    """The partition of a name such as "label-2", "dir-0.1" or "iid".

    Raises:
        ValueError: no such kind, a parameter out of its range, or a file that cannot be read.
    """
    return next(filter(None, (read(name) for read in READERS)), None) or _parse(name)


@functools.lru_cache(1024)  # a grid names each partition in many cells
def _parse(name: str) -> Partition:
    if name in _CLASSES and not fields(_CLASSES[name]):
        return _CLASSES[name]()
    near = difflib.get_close_matches(name, [own for own, cls in _CLASSES.items() if not fields(cls)], n=1, cutoff=0.8)
    if near:
        raise ValueError(unknown("partition", name, known_kinds()))
    for pattern, cls in _CLASSES.items():
        if (count := len(fields(cls))) and name.startswith(f"{cls.kind()}-"):
            values = [number(part) for part in name.removeprefix(f"{cls.kind()}-").split("-", count - 1)]
            if len(values) != count or not cls.accepts(*values):
                raise ValueError(f"{pattern} needs {cls.parameter}, but got {name!r}.")
            return cls(*values)
    raise ValueError(_suggested(name) or unknown("partition", name, known_kinds()))


_ELSEWHERE = {
    "dir": "dir", "dirichlet": "dir", "lda": "dir", "alpha": "dir", "beta": "dir", "labeldir": "dir", "noniidlabeldir": "dir",
    "label": "label", "labels": "label", "class": "label", "classes": "label", "pathological": "label", "pat": "label",
    "noniidlabel": "label", "shard": "shards", "shards": "shards", "quantity": "quantity", "noise": "noise",
}  # fmt: skip
"""What other frameworks call a kind of partition, letters only -> what it is called here."""


def _suggested(name: str) -> str:
    """The sentence for a name that other frameworks might have for a partition with one parameter; "" for others."""
    number = re.search(r"\d+(\.\d+)?|\.\d+", name)
    kind = _ELSEWHERE.get(re.sub(r"[^a-z]", "", name.lower()))
    if not (kind and number):
        return ""
    try:
        meant = _parse(f"{kind}-{number[0]}").name
    except ValueError:
        return ""
    return f"Unknown partition {name!r}. Did you mean {meant!r}? Known: {', '.join(known_kinds())}."


def _draw_counts(size: int, shares: np.ndarray, left: np.ndarray, rng) -> np.ndarray:
    """How many of size examples have each label [classes], drawn one after another as `EqualDirichlet` says.

    A label of which none is left is drawn again, which is the same as to draw among the others.

    Args:
        shares: q, [classes].
        left: examples of each label, [classes], in all at least size.
    """
    counts = np.zeros_like(left)
    while missing := size - counts.sum():
        odds = np.where(counts < left, shares, 0)
        if not odds.sum() > 0:
            odds = left - counts
        counts = np.minimum(counts + rng.multinomial(missing, odds / odds.sum()), left)
    return counts


def number(text: str) -> float:
    """A number in the name of a partition; NaN for another text."""
    if re.fullmatch(r"\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"(\d+\.?\d*|\.\d+)(e-?\d+)?", text) else float("nan")


def _split_classes(
    class_indices: list[np.ndarray], smallest: np.ndarray, capacity: float, concentration: float, rng
) -> list[np.ndarray] | None:
    """The rows of each part, class after class, where each class is split in Dirichlet proportions; None if a part is too
    small.

    Args:
        class_indices: the rows of each class, ascending.
        smallest: [parts], the least number of rows of each part.
        capacity: a part with this many rows receives none of the following classes.
    """
    sizes = np.zeros(len(smallest), dtype=np.int64)
    shuffled, cuts = [], []
    for indices in class_indices:
        indices = indices.copy()
        rng.shuffle(indices)
        shares = rng.dirichlet(np.full(len(smallest), concentration)) * (sizes < capacity)
        if not shares.sum() > 0:  # a tiny concentration underflows to 0 or NaN
            return None
        cut = _cut(shares / shares.sum(), len(indices))
        sizes += np.diff(cut, prepend=0, append=len(indices))
        shuffled.append(indices)
        cuts.append(cut)
    if (sizes < smallest).any():
        return None
    split = [np.split(indices, cut) for indices, cut in zip(shuffled, cuts, strict=True)]
    return [np.concatenate(parts) for parts in zip(*split, strict=True)]


def _cut(shares: np.ndarray, size: int) -> np.ndarray:
    """Cut positions [parts - 1] that divide `size` items by shares [parts], which sum to 1."""
    return (np.cumsum(shares) * size).astype(np.int64)[:-1]
