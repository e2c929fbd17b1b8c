"""What each setting of each method is searched in by `run --tuned validation`, as lines of `searched.txt`.

`python -m tests.support.searched` writes the file anew after a change of `search_spaces`.
"""

from pathlib import Path

import algorithms
from bench.config.methods import options_of
from tests.support.searching import STAGES, make
from tests.support.toy import toy

FILE = Path(__file__).with_suffix(".txt")


def searched(method: str, spaces: str = "own,training") -> list[str]:
    """A line per setting: method, setting, range, grid."""
    stages = STAGES if "encoder_rounds" in options_of(method) else {}
    space = make(method, stages | toy(method).search, space=spaces, searcher="random", samples=1).space
    return [
        f"{method}: {key} in {parameter.describe('')}; grid {parameter.describe('grid')}"
        for key, parameter in space.items()
    ]


def searched_methods() -> list[str]:
    """The methods that can be searched."""
    return [name for name in sorted(algorithms.REGISTRY) if name != "centralized"]


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for name in searched_methods() for line in searched(name)))
