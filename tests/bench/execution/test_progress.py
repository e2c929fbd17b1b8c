"""Progress where there is no terminal: how far it is, and how long the rest takes."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from bench.execution import progress
from bench.execution.job import CONTINUES
from bench.execution.progress import Display, Lines, RoundsBar


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    own = Clock()
    monkeypatch.setattr(progress, "Lines", lambda bar, say: Lines(bar, say, own))
    return own


def plain() -> Console:
    return Console(file=io.StringIO(), width=200, force_terminal=False)


def shown(console: Console) -> list[str]:
    text = console.file.getvalue().splitlines()
    console.file.seek(0)
    console.file.truncate()
    return text


def job(name: str):
    return SimpleNamespace(id=name)


def test_a_line_tells_of_each_tenth_and_each_minute(clock):
    console = plain()
    display = Display(console, {"a": ("digits fedavg", 1000), "b": ("digits fedprox", 1000)})
    display.on_start(job("a"))
    found = []
    for seconds, examples in ((1, 50), (10, 100), (20, 200), (40, 250), (79, 250), (80, 250), (90, 300)):
        clock.now = seconds
        display.on_progress(job("a"), examples)
        display._lines.look()
        found.append(shown(console))
    assert found == [
        [],  # no tenth of the whole
        [],
        ["10 % trained (0/2 done, 1 running, 0 failed), about 3 min left"],
        [],
        [],
        ["12 % trained (0/2 done, 1 running, 0 failed), about 9 min left"],  # a minute after the line before
        [],
    ]


def test_lines_do_not_come_in_a_burst_nor_after_the_end(clock):
    console = plain()
    bar = RoundsBar(console, configurations=3, rounds=100)
    for seconds, rounds in ((0, 0), (2, 50), (4, 80), (6, 90), (12, 100)):
        clock.now = seconds
        bar.update("one", rounds)
        bar._lines.look()
    assert shown(console) == ["90 % trained (3 configurations), about 1 s left"]


def test_rounds_before_an_interruption_say_nothing_about_speed(clock):
    console = plain()
    display = Display(console, {"a": ("digits fedavg", 1000)})
    clock.now = 100  # until Ray has started
    display.on_start(job("a"))
    display.on_note(job("a"), f"{CONTINUES} 10")
    shown(console)
    clock.now = 101
    display.on_progress(job("a"), 500)
    clock.now = 110
    display._lines.look()
    assert shown(console) == ["50 % trained (0/1 done, 1 running, 0 failed), time left not known yet"]
    clock.now = 120
    display.on_progress(job("a"), 600)
    display._lines.look()
    assert shown(console) == ["60 % trained (0/1 done, 1 running, 0 failed), about 1 min left"]


@pytest.mark.slow
def test_lines_come_of_themselves_while_a_round_lasts_and_only_without_a_terminal(monkeypatch):
    monkeypatch.setattr(progress, "_SELDOM", 0.0)
    monkeypatch.setattr(progress, "_OFTEN", 0.0)
    for is_terminal, expected in ((False, True), (True, False)):
        console = Console(file=io.StringIO(), width=200, force_terminal=is_terminal)
        with Display(console, {"a": ("digits fedavg", 1000)}).shown() as display:
            display._lines._ended.wait(1.5)
        assert ("time left not known yet" in console.file.getvalue()) is expected
        assert not display._lines._thread.is_alive()


def test_runs_that_fail_for_one_reason_give_it_once():
    console = plain()
    display = Display(console, {name: (f"digits fedavg seed {name}", 1) for name in "012"})
    for name, reason in (("0", "NameError: x"), ("1", "NameError: x"), ("2", "KeyError: y")):
        display.on_end(job(name), {"status": "failed", "reason": reason})
    assert shown(console) == [
        "[1/3] digits fedavg seed 0: failed: NameError: x",
        "[2/3] digits fedavg seed 1: failed for the same reason as digits fedavg seed 0",
        "[3/3] digits fedavg seed 2: failed: KeyError: y",
    ]
