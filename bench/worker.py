"""`python -m bench.worker PATH`: trains runs without Ray and Pydantic, also on a machine that has nothing but torch.

PATH is the `config.json` of a run, whose rounds and result are then printed as lines of JSON; a job that an executor has
written (see `bench.execution.job_file`); or a results directory whose runs wait (see `bench.execution.waiting`): all of these
are trained, and their records are written there. SKEWBENCH_DATA, or --data-dir, names the folder with the images.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from bench import plugins
from bench.errors import ConfigError, StoreError, exit_code_when_stopped, terminate
from bench.execution import job_file
from bench.results.json_files import Damaged


def main(arguments: list[str]) -> int:
    """The exit code: 0, 1 if a run has not ended well, 2 if there is nothing to train, 130 and 143 if it was stopped."""
    given = _parser().parse_args(arguments)
    try:
        plugins.use(given.plugins)
        if given.path.is_dir():
            return int(not _train_all(given))
        if not given.path.is_file():
            raise ConfigError([f"There is no {given.path}; name the config of a run, or a results directory."])
        if given.gpus_per_trial or given.max_concurrent or given.data_dir:
            raise ConfigError(["Options are for a results directory, not for one config."])
        last = job_file.train(given.path)
    except (Damaged, ConfigError, StoreError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return int(bool(last) and (not last.result or last.result["status"] == "failed"))


def _train_all(given: argparse.Namespace) -> bool:
    from bench.execution import submitted, waiting  # which the process of one job does not need

    data_dir = given.data_dir or (Path(named) if (named := os.environ.get("SKEWBENCH_DATA")) else None)
    machines = submitted.machines("local", 1.0, given.gpus_per_trial or "auto", given.max_concurrent, {})
    signal.signal(signal.SIGTERM, terminate)
    try:
        return waiting.train(given.path, machines, data_dir and data_dir.absolute())
    except KeyboardInterrupt:
        sys.stderr.write("Stopped. The same command continues.\n")
        raise SystemExit(exit_code_when_stopped()) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.worker",
        description="Train runs without Ray, on a machine that may have nothing but torch.",
    )
    parser.add_argument("path", type=Path, help="config.json of a run, or a folder that describe --configs has written")
    shares = "of a folder: 0.25 trains four runs at once on each GPU, 0 on the CPU; a whole GPU if left out"
    parser.add_argument("--gpus-per-trial", default="", metavar="SHARE", help=shares)
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="of a folder: where the images are")
    parser.add_argument("--plugins", type=Path, action="append", default=[], metavar="DIR", help="a lab's folder")
    parser.add_argument("--max-concurrent", type=int, default=0, metavar="N", help="of a folder: runs at once, at most")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
