"""What a partition is: the class that each kind extends."""

import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from bench.registry import Entry, Registry

KINDS = Registry("partition")
"""Name without parameters -> the kind of partition: a subclass of `Partition`, or a function of a lab."""


class Drawn(NamedTuple):
    """A partition and its number of draws.

    Attributes:
        indices: one int64 array of training indices per client.
        num_draws: Dirichlet draws until every client was large enough; 1 for other kinds.
        test_indices: likewise, the indices that clients test on; None if they have no test data of their own.
    """

    indices: list[np.ndarray]
    num_draws: int = 1
    test_indices: list[np.ndarray] | None = None


@dataclass(frozen=True)
class Partition:
    """A rule that assigns training examples to clients; a subclass per kind, whose fields are its parameters.

    Attributes:
        parameter: the condition on the parameters, for messages.
        noise: standard deviation of the last client's pixel noise, in units of the [0, 1] pixel range.
        also: what it does to examples beside dealing them ("rotates images"); "" for nothing.
        has_own_tests: whether clients have test data of their own.
        scores_together: whether models are scored on the test data of all these clients together as well.
        counts_clients: whether it says how many clients there are, see `usual_clients`.
        takes_seed_override: whether `dirichlet_seed_override` replaces the seed.
    """

    version: ClassVar[int] = 1
    parameter: ClassVar[str] = "numbers of at least 0"
    noise: ClassVar[float] = 0.0
    also: ClassVar[str] = ""
    has_own_tests: ClassVar[bool] = False
    scores_together: ClassVar[bool] = True
    counts_clients: ClassVar[bool] = False
    takes_seed_override: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The canonical name: "dir-0.1" for "dir-0.10"."""
        return "-".join([self.entry.name, *self._values])

    @property
    def for_people(self) -> tuple[str, str]:
        """What tables and figures call it, "#C = 2", and the same in LaTeX, "" where it is no formula."""
        title, latex = (str(self.entry.given.get(key, "")) for key in ("title", "latex"))
        return title.format(*self._values) or self.name, latex % tuple(self._values) if latex else ""

    @property
    def entry(self) -> Entry:
        """Where its kind is registered."""
        return next(entry for entry in KINDS.values() if entry.loaded is type(self))

    @property
    def _values(self) -> list[str]:
        return [np.format_float_positional(value, trim="-") for value in astuple(self)]

    @staticmethod
    def accepts(*values: float) -> bool:
        """Whether the parameters may have these values, as many as there are fields; text that is not a number is passed as
        NaN."""
        return all(value >= 0 for value in values)

    def version_with(self, first_clients: int | None) -> int:
        """The version of a run, in which only the first clients exist or all: `version`, or a larger one where only the
        numbers of the first have changed."""
        return self.version

    def usual_clients(self, num_writers: int | None) -> int | None:
        """The size of the population if a config does not say it; None if that is not known.

        Args:
            num_writers: of the dataset; None if it does not name them.
        """
        return None

    def validate(self, num_clients: int, num_classes: int, num_train: int | None, num_test: int | None) -> list[str]:
        """Why it cannot be drawn, as sentences.

        Args:
            num_clients, num_classes: as in `draw`.
            num_train, num_test: examples of the dataset; None where that is not known.
        """
        if num_train is None or num_clients <= num_train:
            return []
        return [f"clients must be at most the number of training examples ({num_train}), but got {num_clients}."]

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
        """Assigns every index to one client at most; no client is empty.

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
        for mistake in self.validate(num_clients, num_classes, len(labels) - num_test, num_test):
            raise ValueError(mistake)
        if dirichlet_seed_override is not None and self.takes_seed_override:
            seed = dirichlet_seed_override
        before = _global_states()
        try:
            drawn = self.deal(np.array(labels), num_clients, num_classes, seed, groups=groups, num_test=num_test)
            sides = [drawn.indices, drawn.test_indices or ()] if self.has_own_tests else [drawn.indices]
            fits = all(_are_dealt(parts, num_clients, len(labels)) for parts in sides) and _differ(sides)
        except Exception as error:  # whatever the code of a lab raises
            if isinstance(error, ValueError) and not self.entry.lab:
                raise
            raise ValueError(self.entry.failure(error)) from error
        if _global_states() != before:
            raise ValueError(
                f"{self.entry.target} in {self.entry.place} draws from a generator that all code shares, np.random or random, "
                "and so changes the draws of all other code; take every draw from rng, or from np.random.default_rng(seed)."
            )
        if not fits:
            raise ValueError(
                f"{self.name} must deal each of the {len(labels)} examples to one client at most: {num_clients} integer arrays "
                f"of indices from 0{', and as many for testing' * self.has_own_tests}, but {self.entry.target} in "
                f"{self.entry.place} returned something else."
            )
        for parts in sides:
            if mistake := self.empty_client([len(indices) for indices in parts], len(labels)):
                raise ValueError(mistake)
        indices, *tests = [[part.astype(np.int64, copy=False) for part in parts] for parts in sides]
        return drawn._replace(indices=indices, test_indices=tests[0] if tests else drawn.test_indices)

    def empty_client(self, sizes: Sequence[int], num_examples: int) -> str:
        """Why the first client without examples cannot be, as a sentence; "" if there is none."""
        if 0 not in sizes:
            return ""
        return (
            f"{self.name} of {num_examples} examples leaves client {list(sizes).index(0)} of {len(sizes)} without "
            "examples; use fewer clients or more examples."
        )

    def deal(
        self,
        labels: np.ndarray,
        num_clients: int,
        num_classes: int,
        seed: int,
        *,
        groups: np.ndarray | None,
        num_test: int,
    ) -> Drawn:
        """`draw` after its checks; what each kind defines."""
        raise NotImplementedError

    def client_images(self, images: np.ndarray, client: int, num_clients: int) -> np.ndarray:
        """What a client sees of images, uint8 [n, C, H, W]."""
        return images

    def client_labels(self, labels: np.ndarray, client: int, num_clients: int) -> np.ndarray:
        """What a client calls examples of these labels, [n]."""
        return labels

    def describe_groups(self, num_clients: int) -> str:
        """What sets groups of clients apart beside their numbers of examples, as one sentence; "" for nothing."""
        return ""


def _global_states() -> tuple:
    """Where the generators are that NumPy and Python share with all code."""
    _, keys, *rest = np.random.get_state()
    return random.getstate(), keys.tobytes(), *rest


def _are_dealt(parts: Sequence[np.ndarray], num_clients: int, num_examples: int) -> bool:
    """Whether these are rows of examples for each client."""
    arrays = [part for part in parts if isinstance(part, np.ndarray) and part.ndim == 1 and part.dtype.kind == "i"]
    rows = np.concatenate([*arrays, np.empty(0, dtype=np.int64)])
    return len(arrays) == len(parts) == num_clients and bool(((rows >= 0) & (rows < num_examples)).all())


def _differ(sides: Sequence[Sequence[np.ndarray]]) -> bool:
    """Whether no row is there twice, also not for training and for testing."""
    rows = np.concatenate([part for parts in sides for part in parts])
    return len(np.unique(rows)) == len(rows)
