"""`check`: whether a method does what every method must do."""

import time
from typing import Annotated

import typer

from bench.cli import options as given
from bench.cli.console import explained, say


def check(
    method: Annotated[str, typer.Argument(help="A method, as `list algorithms` names it.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Options of the method, and settings as rounds, of the toy tasks it is checked on: KEY=VALUE,...",
        ),
    ] = None,
    no_effect: Annotated[
        str | None,
        typer.Option(help="Options whose effect no toy task shows, and that tests of your own cover: NAME,..."),
    ] = None,
) -> None:
    """Check in seconds whether a method does what every method must do, on both engines. Needs no data."""
    with explained():
        case = _case(method, set_, no_effect)
        import torch

        from bench.contract.checks import CHECKS
        from bench.contract.report import outcomes

        torch.set_num_threads(1)  # tensors are tiny: a second thread only waits for the first
        start, counts = time.perf_counter(), {True: 0, False: 0}
        for outcome in outcomes(case):
            counts[outcome.failed] += 1
            say(str(outcome))
        seconds = time.perf_counter() - start
        left = len(CHECKS) - sum(counts.values())
        others = f", {left} not tried, which rest on it" if left else ""
        say(f"{method}: {counts[False]} checks ok, {counts[True]} failed{others}, in {seconds:.0f} s.")
    if counts[True]:
        raise typer.Exit(1)


def _case(method: str, set_: list[str] | None, no_effect: str | None):
    """The method to be checked.

    Raises:
        ValueError: for a method, an option or a setting that does not exist, or a value that does not hold.
    """
    import dataclasses

    import algorithms
    from bench.config.methods import build, options_of
    from bench.errors import require_known

    entry, values = algorithms.REGISTRY.find(method), given.read_set(set_)
    from algorithms.shared.types import Settings
    from bench.contract.cases import Case, said_by

    known, settings = options_of(method), [field.name for field in dataclasses.fields(Settings)]
    require_known(f"setting or option of {method}", values, [*known, *settings])
    without = [name.strip() for name in no_effect.split(",")] if no_effect else []
    require_known(f"option of {method}", without, known)
    built = build(method, {key: value for key, value in values.items() if key in known})
    return Case(
        method,
        built,
        special=said_by(built),
        chosen={key: value for key, value in values.items() if key not in known},
        no_effect=without,
        reports_idle=entry.lab is None,  # tests of this project show the effect of its methods' options
    )
