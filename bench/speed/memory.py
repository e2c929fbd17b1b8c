"""The largest memory of a round: with a cohort's results in a stack, and with the states of many clients.

Each measurement has a process of its own, so that nobody's memory is counted as another's.
"""

from pathlib import Path
from typing import Any

import torch

import datasets
from algorithms.shared import tree
from bench.profiling import peak_memory_mb, reset_peak_memory
from bench.simulation.run import Run
from bench.speed.rows import Row
from bench.speed.workload import Setting, apart, config

_STEP = {"partition": "iid", "local_epochs": None, "local_steps": 1, "rounds": 2, "test_examples": 100}
STACK = {"model": "resnet18", "clients": 20, "batch_size": 4, "train_examples": 80, **_STEP}
STATES = {"algorithm": {"name": "scaffold"}, "batch_size": 1, **_STEP}


def memory(setting: Setting, stack: dict[str, Any] = STACK, population: int = 4000) -> list[Row]:
    """Two rounds of FedAvg whose results are stacked, and of SCAFFOLD with the state of every client."""
    states = {**STATES, "clients": population, "train_examples": population}
    cases = {
        f"fedavg, {stack['model']}, {stack['clients']} clients": stack,
        f"scaffold, {population:,} clients": states,
    }
    rows = []
    for case, changes in cases.items():
        before, peak, states_mb = apart(1, measure, setting.folder, changes)[0]
        note = f"{states_mb:,.0f} MB of client states" if states_mb else ""
        rows += [
            Row(f"memory before the rounds, {case}", before, "MB"),
            Row(f"peak of a round, {case}", peak, "MB", note),
        ]
    return rows


def measure(folder: Path, changes: dict[str, Any]) -> tuple[float, float, float]:
    """Peak memory of W1 with changes, in MB of 10^6 bytes; to be called in a fresh process.

    Returns:
        The memory before the first round, the peak of all rounds, and the size of all client states at the end.
    """
    torch.set_num_threads(1)
    wanted, device = config(**changes), torch.device("cpu")
    run = Run(wanted, datasets.load(wanted.dataset, folder))
    reset_peak_memory(device)
    before = peak_memory_mb(device)
    while not run.finished:
        run.step()
    states = run.state["clients"]["rows"].values()
    return before, peak_memory_mb(device), sum(map(tree.num_bytes, states)) / 1e6
