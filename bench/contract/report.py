"""The contract of one method, check by check, in sentences."""

from collections.abc import Iterator
from typing import NamedTuple

from bench.contract.cases import Case
from bench.contract.checks import CHECKS, inputs_are_left_as_they_are, is_trained
from bench.contract.places import error_in_words
from bench.contract.rules import Check, Violation

_NEEDED = (is_trained, inputs_are_left_as_they_are)  # what all others rest on: they share states


class Outcome(NamedTuple):
    """What a check found.

    Attributes:
        failed: whether the method broke the rule.
        sentence: why, or what to know all the same; "" for nothing.
    """

    check: Check
    failed: bool
    sentence: str

    def __str__(self) -> str:
        if not self.failed:
            return f"ok: {self.check.rule}" + (f"; {self.sentence}." if self.sentence else ".")
        return f"FAILED: {self.check.rule}: {self.sentence}"


def outcomes(case: Case) -> Iterator[Outcome]:
    """The outcome of each check, one after another; none after one on which all others rest has failed."""
    seen: dict[str, str] = {}
    for check in CHECKS:
        outcome = outcome_of(check, case)
        if outcome.failed:
            rule = seen.setdefault(outcome.sentence, check.rule)
            if rule != check.rule:
                outcome = outcome._replace(sentence=f"for the same reason as {rule!r}.")
        yield outcome
        if outcome.failed and check.function in _NEEDED:
            return


def outcome_of(check: Check, case: Case) -> Outcome:
    """What one check finds; an error in the code of the method is a failure of the check."""
    try:
        return Outcome(check, False, check(case) or "")
    except Violation as violation:
        return Outcome(check, True, str(violation))
    except Exception as error:  # whatever the code of a method raises
        return Outcome(check, True, error_in_words(case, error))
