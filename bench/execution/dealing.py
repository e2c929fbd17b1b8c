"""Deals partitions of labs before any run needs them: what is wrong in them is said then."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bench.errors import ConfigError
from bench.registry import Entry
from bench.simulation.data import divide
from datasets import partitions, resized


def check_partitions_of_labs(configs: Iterable[Any], data_dir: Path | None) -> None:
    """Raises ConfigError with everything that is wrong in what functions and classes of labs deal.

    Args:
        configs: of runs whose images are there.
    """
    dealt: dict[tuple, tuple[Entry, Any]] = {}
    for config in configs:
        if (entry := partitions.entry_of(config.partition)) and entry.lab:
            key = (config.dataset, config.partition, config.clients, config.seed, config.train_examples)
            dealt.setdefault(key, (entry, config))
    mistakes: dict[str, None] = {}
    for entry, config in dealt.values():
        images = resized.of_config(config, data_dir)
        try:
            first, again = divide(config, images).clients, divide(config, images).clients
        except ValueError as error:
            mistakes[str(error)] = None
            continue
        if not all(map(np.array_equal, first, again)):
            mistakes[
                f"{entry.target} in {entry.place} deals other examples when it is called again; take every draw from rng, or "
                "from np.random.default_rng(seed)."
            ] = None
    if mistakes:
        raise ConfigError([*mistakes])
