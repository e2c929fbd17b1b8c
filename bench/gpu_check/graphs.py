"""Rounds that are replayed as CUDA graphs, beside rounds that are launched kernel by kernel."""

import time
from dataclasses import replace
from typing import Any

from algorithms import make
from bench.contract.traced import traced
from bench.gpu_check.report import explained
from bench.gpu_check.session import Session, distance
from bench.profiling import peak_memory_mb, reset_peak_memory
from bench.simulation.graphs import Capture, Graphs, cuda_graphs
from bench.simulation.task import Task

_METHODS = ("fedavg", "scaffold", "feddyn", "fedntd", "fedper")
_ROUNDS = 12  # so many that a capture pays


def graphs(session: Session) -> None:
    """A round of clients of the same size as one graph: whether it is captured, whether it is equal, and how fast."""
    capture, short = (cuda_graphs(), {}) if session.on_gpu else (traced, {"local_epochs": None, "local_steps": 1})
    task, faster = session.equal_clients(rounds=_ROUNDS, **short), []
    for name in _METHODS:
        try:
            found = _beside_eager(session, task, name, capture)
        except Exception as error:
            session.report.note(name, explained(error))
            session.wait()
            continue
        session.report.note(name, found)
        faster.append(f"{name} {found['ms eager'] / found['ms']:.1f}")
        session.report.summarise(f"times faster than eager, with all of a round but its test: {', '.join(faster)}")


def _beside_eager(session: Session, task: Task, name: str, capture: Capture) -> dict[str, Any]:
    """The third round of a method, launched kernel by kernel, and replayed."""
    method, kept = make(name), Graphs(capture)
    captured, state = replace(task, graphs=kept), method.init(task)
    begin = time.perf_counter()
    for _ in range(2):  # its capture, and its proof
        state = method.step(captured, state)
    session.wait()
    first = time.perf_counter() - begin
    if not kept.num_proven or kept.num_proven < len(kept.kept):  # else this would be the pace without graphs
        why = [*kept.not_captured.values(), *kept.notes] or ["what runs on clients is no hook of the method"]
        raise RuntimeError(", ".join(why))
    expected = method.step(task, state)["params"]
    eager = session.seconds(lambda: method.step(task, state))
    reset_peak_memory(task.device)
    found = method.step(captured, state)["params"]
    again = session.seconds(lambda: method.step(captured, state), 5)
    return {
        "ms eager": round(1e3 * eager, 3),
        "ms": round(1e3 * again, 3),
        "ms of the blocks alone": round(1e3 * sum(session.seconds(block.replay, 5) for block in kept.kept), 3),
        "examples per second": round(task.num_trained(task.sample_cohort(1)) / again),
        "s of two rounds with the capture": round(first, 2),
        "blocks": kept.num_captured,
        "from eager": distance(found, expected),
        "peak MB": round(peak_memory_mb(task.device)),
    }
