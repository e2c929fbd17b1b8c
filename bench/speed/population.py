"""What clients cost that do not take part: 10,000 against 100, of 6 images each, with 10 of them in a round.

Each measurement has a process of its own, so that nobody's memory is counted as another's.
"""

import itertools
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch

import datasets
from algorithms.shared import tree
from bench.profiling import peak_memory_mb, reset_peak_memory
from bench.simulation.run import Run
from bench.speed.rows import Row
from bench.speed.workload import Setting, apart, config

METHODS = ("fedavg", "moon", "scaffold")
POPULATIONS = (100, 10_000)
COHORT = 10
IMAGES_PER_CLIENT = 6
TARGET = "target: 0.8 to 1.2"


@dataclass(frozen=True)
class Measured:
    """One run on a population.

    Attributes:
        round_seconds: median of a round, its test included.
        training_seconds: median of the training in it.
        added_mb: memory that the rounds added to the process, which by then held the data and the index lists.
        states_mb: memory of all clients' states.
        num_states: clients that have a state.
        num_trained: clients that have taken part.
    """

    round_seconds: float
    training_seconds: float
    added_mb: float
    states_mb: float
    num_states: int
    num_trained: int


def population(setting: Setting, rounds: int = 20, populations: tuple[int, int] = POPULATIONS) -> list[Row]:
    """Rounds of a small cohort in a small and a large population of MNIST clients."""
    data_dir = setting.data_dir
    datasets.load("mnist", data_dir)  # decoded now, or missing
    rows = []
    for method in METHODS:
        small, large = (apart(1, measure, data_dir, method, size, rounds)[0] for size in populations)
        few, many = (f"{method}, {size:,} clients" for size in populations)
        for what, unit, key in (
            ("round", "s", "round_seconds"),
            ("training of a round", "s", "training_seconds"),
            ("memory beyond the data", "MB", "added_mb"),
        ):
            before, after = getattr(small, key), getattr(large, key)
            note = f"{after / before:.2f} of {populations[0]:,} clients; {TARGET}" if before else ""
            rows += [Row(f"{what}, {few}", before, unit), Row(f"{what}, {many}", after, unit, note)]
        if large.states_mb:
            note = f"{large.num_states:,} states; {large.num_trained:,} clients have taken part"
            rows.append(Row(f"client states, {many}", large.states_mb, "MB", note))
    return rows


def measure(data_dir: Path, method: str, size: int, rounds: int) -> Measured:
    """Rounds on so many clients of MNIST; to be called in a fresh process."""
    torch.set_num_threads(1)
    mnist = datasets.load("mnist", data_dir)
    examples = size * IMAGES_PER_CLIENT
    wanted = config(
        algorithm={"name": method},
        dataset="mnist",
        clients=size,
        participation=COHORT / size,
        rounds=rounds,
        local_epochs=None,
        local_steps=5,
        train_examples=None if examples == len(mnist.train.labels) else examples,
    )
    run = Run(wanted, mnist)
    for split in (mnist.train, mnist.test):
        split.images.max()  # maps every page: from here on the images are part of the process
    device = torch.device("cpu")
    reset_peak_memory(device)
    held = peak_memory_mb(device)
    while not run.finished:
        run.step()
    added = peak_memory_mb(device) - held
    both = list(itertools.pairwise([{"examples": 0, "seconds": 0.0}, *run.rows]))
    states = run.state["clients"]["rows"]
    trained = {client for round in range(rounds) for client in run.task.sample_cohort(round).ids.tolist()}
    return Measured(
        statistics.median(after["seconds"] - before["seconds"] for before, after in both),
        statistics.median(
            (after["examples"] - before["examples"]) / after["examples_per_second"] for before, after in both
        ),
        added,
        sum(map(tree.num_bytes, states.values())) / 1e6,
        len(states) if any(map(tree.num_bytes, states.values())) else 0,
        len(trained),
    )
