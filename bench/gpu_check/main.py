"""One command for the first minutes on a GPU; the sections are in the order of what must be known first.

It needs Python, torch, NumPy, SciPy, scikit-learn and this repository: neither Ray nor the libraries of the command line, nor
images (random ones in the shape of CIFAR-10 do).
"""

import argparse
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import require_known
from bench.gpu_check.report import Report, TimeUp

SECTIONS = {  # name of a section and of its function -> module, and its part of the time
    "facts": ("facts", 1),
    "right": ("correctness", 30),
    "rounding": ("correctness", 3),
    "captured": ("correctness", 8),
    "waits": ("correctness", 6),
    "graphs": ("graphs", 12),
    "speed": ("pace", 25),
    "profile": ("pace", 3),
    "resumed": ("correctness", 6),
}
MUST_HOLD = ("right", "captured", "resumed")


def main(arguments: list[str]) -> int:
    """The exit code: 0; 1 if numbers differ that should be equal; 2, with a sentence, where an option makes no sense."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        named = [*dict.fromkeys(given.only.split(","))] if given.only else [*SECTIONS]
        require_known("section", named, SECTIONS)
        if not given.budget > 0:
            raise ValueError(f"--budget must be more than 0 seconds, but got {given.budget:g}.")
        _require_device(given.device)
        given.out.mkdir(parents=True, exist_ok=True)
        report = Report(given.out)
        report.write()
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    check(report, [name for name in SECTIONS if name in named], given.device, given.budget, given.data_dir)
    sys.stdout.write(report.table())
    return int(report.failed(MUST_HOLD))


def check(report: Report, names: list[str], device: str, budget: float, data_dir: Path | None = None) -> None:
    """Runs sections one after another. What one leaves of its time, those after it have.

    Args:
        names: of sections.
        device: "cuda" or "cpu".
        budget: seconds for all.
        data_dir: where CIFAR-10 is; random images if it is not there.
    """
    import torch

    from bench.gpu_check.session import Session, numerics
    from bench.simulation.engines import warm_up

    end = time.monotonic() + budget
    torch.set_num_threads(1)
    with Session(device, report, data_dir) as session, numerics():
        warm_up("vectorised")
        for position, name in enumerate(names):
            module, part = SECTIONS[name]
            left = end - time.monotonic()
            if left <= 0:
                report.skip(name, "no time was left")
                continue
            print(f"{name} ...", file=sys.stderr, flush=True)
            share = part / sum(SECTIONS[other][1] for other in names[position:])
            with report.section(name), _limit(left * share):
                getattr(importlib.import_module(f"bench.gpu_check.{module}"), name)(session)


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raises TimeUp in the main thread when the time is up, wherever that is in Python; a kernel is waited for."""

    def stop(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _require_device(name: str) -> None:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch sees no GPU here, but --device is cuda; use --device cpu for a dry run.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu_check", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    add, own = parser.add_argument, "(default: %(default)s)"
    add("--out", type=Path, required=True, help="Folder of gpu_check.json, which is whole after each step.")
    add("--budget", type=float, default=540, help=f"Seconds for all sections {own}.")
    add("--device", choices=("cuda", "cpu"), default="cuda", help=f"cpu is a dry run with a small workload {own}.")
    add("--only", help=f"NAME,... of {', '.join(SECTIONS)}; all if left out.")
    add("--data-dir", type=Path, default=os.environ.get("SKEWBENCH_DATA"), help=f"Where the images are {own}.")
    return parser
