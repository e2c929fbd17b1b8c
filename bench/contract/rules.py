"""The rules that every method must keep: what a rule is, and what a method that breaks it gets."""

from collections.abc import Callable
from typing import Any, NamedTuple

from bench.contract.cases import Case


class Violation(AssertionError):
    """A method does not do what every method must do; the message is one sentence."""


class Check(NamedTuple):
    """A rule, and one of the circumstances in which it must hold.

    Attributes:
        function: takes a `Case` and the circumstances; raises `Violation`; may return what a reader should know.
        given: the circumstances, name -> value.
    """

    function: Callable[..., str | None]
    given: dict[str, Any]

    @property
    def rule(self) -> str:
        """What the method must do, in one sentence."""
        text = " ".join((self.function.__doc__ or "").split("\n\n")[0].split()).removesuffix(".")
        shown = ", ".join(f"{key} {value}" for key, value in self.given.items() if isinstance(value, str | float))
        return text + (f" ({shown})" if shown else "")

    def __call__(self, case: Case) -> str | None:
        return self.function(case, **self.given)


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise Violation(sentence)
