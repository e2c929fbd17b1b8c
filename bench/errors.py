"""Errors of users: collected into one message, in sentences that suggest the nearest valid name."""

import difflib
import itertools
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pydantic import ValidationError


_MOST_LISTED = 30  # names in a message that has a better one


class ConfigError(ValueError):
    """Everything that is wrong with a config, in one message.

    Attributes:
        mistakes: one sentence each, without duplicates.
    """

    def __init__(self, mistakes: list[str]):
        self.mistakes = list(dict.fromkeys(mistakes))
        if len(self.mistakes) == 1:
            message = self.mistakes[0]
        else:
            message = f"{len(self.mistakes)} mistakes:\n" + "\n".join(f"  - {line}" for line in self.mistakes)
        super().__init__(message)


class HookError(ValueError):
    """A hook has returned what it must not; the message is one sentence."""


# Signals that have ended the command; Ray raises a KeyboardInterrupt of its own, which does not say by what.
_signals: list[int] = []


def terminate(number: int, frame: object) -> NoReturn:
    """A handler of SIGTERM, which then ends a command as Ctrl-C does, but with another exit code."""
    _signals.append(number)
    raise KeyboardInterrupt


def exit_code_when_stopped() -> int:
    """The exit code after a KeyboardInterrupt, as shells have it: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (_signals.pop() if _signals else signal.SIGINT)


def sentences(
    error: "ValidationError",
    known: Callable[[tuple], Iterable[str]] = lambda loc: (),
    renamed: Mapping[str, str] = MappingProxyType({}),
    located: bool = False,
) -> list[str]:
    """The errors that pydantic found, one sentence each.

    Args:
        known: location of an unknown key -> the valid keys there.
        renamed: keys of earlier versions -> what they are called now.
        located: whether sentences about values begin with their keys.
    """
    found = []
    for item in _without_alternatives(error.errors()):
        where = ".".join(str(part) for part in item["loc"])
        if item["type"] == "missing":
            found.append(f"{where} is missing.")
        elif item["type"] == "extra_forbidden":
            *outer, key = map(str, item["loc"])
            inside = f"{'.'.join(outer)}: " if outer else ""
            now = f"{key} is called {renamed[key]} now; rename the key." if key in renamed else ""
            found.append(inside + (now or unknown("key", key, known(item["loc"]))))
        elif item["type"] == "value_error":
            cause = item["ctx"]["error"]
            inside = f"{where}: " if located and where else ""
            found += [inside + line for line in (cause.mistakes if isinstance(cause, ConfigError) else [str(cause)])]
        elif item["type"] == "list_type":
            got = item["input"]
            instead = f"; write [{got}]" if isinstance(got, str | int | float) else ""
            found.append(f"{where} must be a list, but got {got!r}{instead}.")
        elif item["type"] == "too_short":
            found.append(f"{where} is too short: give at least {item['ctx']['min_length']}, but got {item['input']!r}.")
        else:
            rule = item["msg"].replace("Input should be", "must be", 1)
            found.append(f"{where} {rule[0].lower() + rule[1:]}, but got {item['input']!r}.")
    return found


def _place_of_value(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Where a value stands: without the type of a union, behind the name of a field or the number in a list."""
    return loc[:-1] if len(loc) > 1 and isinstance(loc[-1], str) else loc


def _without_alternatives(items: list[dict]) -> Iterator[dict]:
    """One item per value: pydantic reports one for each type of a union."""
    kinds = {"int_type": "a number", "int_parsing": "a number", "float_type": "a number"}
    kinds |= {"string_type": "a text", "list_type": "a list"}
    for _, group in itertools.groupby(items, key=lambda item: (_place_of_value(item["loc"]), id(item["input"]))):
        group = list(group)
        if len(group) > 1 and all(item["type"] in kinds or item["type"] == "literal_error" for item in group):
            allowed = [kinds.get(item["type"]) or item["ctx"]["expected"] for item in group]
            message = "Input should be " + ", ".join(allowed)
            yield {**group[0], "type": "alternatives", "loc": group[0]["loc"][:-1], "msg": message}
        else:
            yield from group


def unknown(kind: str, got: object, known: Iterable[str]) -> str:
    """One sentence: "Unknown algorithm 'fedporx'. Did you mean 'fedprox'? Known: fedavg, fedprox." Where one of very many names
    is meant, these are not listed.

    Args:
        kind: kind of the name, singular ("algorithm", "setting").
        got: the unknown name.
        known: all valid names, in printing order.
    """
    known = list(known)
    near = suggestion(got, known)
    listed = "" if near and len(known) > _MOST_LISTED else f" Known: {', '.join(known)}."
    return f"Unknown {kind} {str(got)!r}.{near}{listed}"


def in_short(error: BaseException) -> str:
    """What an error says, in one line, without the names that are known: there may be over a hundred."""
    return re.sub(r" Known: .*?\.(?= |$)", "", " ".join(str(error).split()))


def named_in_short(error: BaseException) -> str:
    """ "TypeError: ...": the kind of an error that nobody expected, and what it says, in one line."""
    return f"{type(error).__name__}: {in_short(error)[:300]}"


def suggestion(got: object, known: Iterable[str]) -> str:
    """ " Did you mean 'fedprox'?" for the nearest of the names, whatever their capitals and hyphens; "" if none is near.

    Up to three that are equally near are all named, first what begins alike: " Did you mean 'fedams' or 'fedsam'?"
    """
    known, text = list(dict.fromkeys(known)), str(got)
    by_plain: dict[str, str] = {}
    for name in known:
        by_plain.setdefault(_plain(name), name)
    if _plain(text) in by_plain:
        near = [by_plain[_plain(text)]]
    else:
        near = _nearest(text, known) or [by_plain[one] for one in _nearest(_plain(text), [*by_plain])]
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def _nearest(text: str, known: list[str]) -> list[str]:
    """The nearest of the names, up to three equally near ones; [] if none is near."""
    near = difflib.get_close_matches(text, known, n=10, cutoff=0.5)
    closeness = [difflib.SequenceMatcher(None, name, text).ratio() for name in near]
    equal = [name for name, ratio in zip(near, closeness, strict=True) if ratio == closeness[0]]
    return sorted(equal, key=lambda name: -len(os.path.commonprefix([name, text])))[:3]


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def require_known(kind: str, names: Iterable[object], known: Iterable[object]) -> None:
    """Raises ValueError with the sentence of `unknown` for each name that is not known; names are any values of YAML."""
    known = list(known)
    mistakes = [unknown(kind, name, map(str, known)) for name in names if name not in known]
    if mistakes:
        raise ValueError(" ".join(mistakes))


class StoreError(RuntimeError):
    """The results directory cannot be used; the message is one sentence."""
