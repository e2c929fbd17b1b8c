"""What a run costs, known before it is played."""

import datasets
from bench.config import RunConfig


def examples_to_train(config: RunConfig) -> int:
    """Training examples of a run, summed over clients, epochs and rounds; 0 where the size of the dataset is unknown.

    Under partial participation the mean over cohorts.
    """
    if config.local_steps:
        per_round = config.clients * config.local_steps * config.batch_size
    else:
        info = datasets.INFO.get(config.dataset)
        per_round = (config.train_examples or (info.train_size if info else 0)) * config.local_epochs
    return round(config.rounds * config.participation * per_round)
