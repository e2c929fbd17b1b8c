"""What the check has found: a file of JSON that is whole after everything that is noted, and a table."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.files import write_file


class TimeUp(BaseException):
    """The time of a section is up. No Exception, since sections go on after those."""


class Report:
    """The sections of a check, in DIR/gpu_check.json.

    Attributes:
        sections: name -> {"ended": "done", or why it was not; "seconds"; "summary": one line; "found": name -> what was
            measured; "wrong": name -> how numbers differ that should be equal}.
    """

    def __init__(self, folder: Path):
        self.sections: dict[str, dict[str, Any]] = {}
        self._file = folder / "gpu_check.json"
        self._now: dict[str, Any] = {}

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Takes notes of one section, and how it ends; what goes wrong in it stays in it."""
        begin = time.monotonic()
        self._now = self.sections[name] = {"ended": "cut off", "seconds": 0.0, "summary": "", "found": {}, "wrong": {}}
        try:
            yield
            self._now["ended"] = "done"
        except TimeUp:
            self._now["ended"] = "its time was up"
        except Exception as error:
            self._now["ended"] = f"failed: {explained(error)}"
        finally:
            self._now["seconds"] = round(time.monotonic() - begin, 1)
            self.write()

    def skip(self, name: str, why: str) -> None:
        """Notes that a section was not begun."""
        self.sections[name] = {"ended": f"not begun: {why}", "seconds": 0.0, "summary": "", "found": {}, "wrong": {}}
        self.write()

    def note(self, what: str, found: Any) -> None:
        """Adds what the current section has measured; written at once, so that a cut run keeps it."""
        self._now["found"][what] = found
        self.write()

    def wrong(self, what: str, how: str) -> None:
        """Adds numbers of the current section that differ though they should be equal."""
        self._now["wrong"][what] = how
        self.write()

    def summarise(self, sentence: str) -> None:
        """Sets the line of the current section in the table."""
        self._now["summary"] = sentence

    def write(self) -> None:
        """Replaces the file in one step."""
        write_file(self._file, json.dumps(self.sections, indent=1, default=str) + "\n")

    def failed(self, names: tuple[str, ...]) -> bool:
        """Whether a section of these found wrong numbers, or an error kept it from finding any."""
        of = [self.sections[name] for name in names if name in self.sections]
        return any(section["wrong"] or section["ended"].startswith("failed") for section in of)

    def table(self) -> str:
        """A line for each section, and one for each wrong number."""
        lines = ["| section | seconds | ended | found |", "| --- | --- | --- | --- |"]
        for name, section in self.sections.items():
            lines.append(f"| {name} | {section['seconds']:.0f} | {section['ended']} | {section['summary']} |")
        wrong = [
            f"{name}: {what}: {how}"
            for name, section in self.sections.items()
            for what, how in section["wrong"].items()
        ]
        return "\n".join([*lines, *(["", "Wrong:", *wrong] if wrong else [])]) + "\n"


def explained(error: Exception) -> str:
    """An error in one line, with the place that raised it."""
    place, trace = "", error.__traceback__
    while trace:
        place, trace = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}", trace.tb_next
    said = " ".join(str(error).split())[:300]
    return f"{type(error).__name__} at {place}: {said}"
