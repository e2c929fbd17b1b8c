"""`python -m bench.worker FILE`: trains one run without Ray and Pydantic, also on a machine that has nothing but torch.

FILE is a job that an executor has written (see `bench.execution.job_file`), or the `config.json` of a run, whose rounds and
result are then printed as lines of JSON; SKEWBENCH_DATA names the folder with the images.
"""

import sys
from pathlib import Path

from bench.errors import ConfigError
from bench.execution import job_file
from bench.results.json_files import Damaged


def main(arguments: list[str]) -> int:
    """The exit code: 0, 1 if the run has not ended well, 2 if there is nothing to train."""
    if len(arguments) != 1 or not Path(arguments[0]).is_file():
        sys.stderr.write("error: name one file, the config of a run: python -m bench.worker CONFIG.json\n")
        return 2
    try:
        last = job_file.train(Path(arguments[0]))
    except (Damaged, ConfigError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return int(bool(last) and (not last.result or last.result["status"] == "failed"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
