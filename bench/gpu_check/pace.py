"""How fast W1 trains, by what it depends on, and where the time of a round goes."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from algorithms import make
from bench.gpu_check.session import Session, numerics
from bench.simulation import engines
from bench.speed import runs
from bench.speed.engines import method_round, padding_of
from bench.speed.rows import Row
from bench.speed.workload import take_turns

_PARTITIONS = ("label-2", "dir-0.1")
_AT_ONCE = (5, 10, 20, 40, 80, 160)  # clients
_METHODS = ("scaffold", "moon", "feddyn", "fedgen", "fedsam", "fednova")
_LARGEST_KERNELS = 25


def speed(session: Session) -> None:
    """Examples per second: W1 as `bench.speed` has it, then a round of it and its test under one change at a time."""
    whole = runs.measure(session.folder, session.w1_changes, session.device)
    session.report.note(
        "W1, one trial", {"examples per second": round(whole.examples / (whole.end - whole.begin)), "MB": whole.peak_mb}
    )
    one = session.w1()
    fast = _turns(session, {"vectorised": method_round(one, "fedavg")})["vectorised"]
    slow = _turns(session, {"loop": method_round(session.w1("loop"), "fedavg")}, 1)["loop"]
    session.report.summarise(f"{fast:,.0f} examples per second vectorised, {fast / slow:.1f} times those of the loop")
    settings: dict[str, dict[str, Any]] = {
        "as workers": {},
        "not deterministic, fastest convolutions": {"deterministic": False},
        "new tensors filled": {"fill": True},
        "TF32": {"tf32": True},
    }
    _turns(session, {name: _under(method_round(one, "fedavg"), **how) for name, how in settings.items()})
    for partition in _PARTITIONS:
        task = session.w1(partition=partition)
        divisions = {"least fill": engines._blocks, "cheapest blocks": engines._cheapest_blocks}
        cases = {
            f"{name}, {partition}": _divided(method_round(task, "fedavg"), divide) for name, divide in divisions.items()
        }
        _turns(session, cases)
        session.report.note(f"padding with least fill, {partition}", padding_of(task))
    for clients in _AT_ONCE if session.on_gpu else _AT_ONCE[:1]:
        task = session.equal_clients(clients=clients, local_epochs=None, local_steps=10)
        _turns(session, {f"{clients} clients at once, 10 steps": method_round(task, "fedavg")})
    for name in _METHODS:
        _turns(session, {f"vectorised, {name}": method_round(one, name)}, 1)


def profile(session: Session) -> None:
    """Kernels of one round of clients of the same size: how many, which, and the share of time in which the device works."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if session.on_gpu else []
    task, method = session.equal_clients(), make("fedavg")
    state = method.step(task, method.init(task))
    alone = session.seconds(lambda: method.step(task, state))
    with torch.profiler.profile(activities=activities) as profiled:
        method.step(task, state)
        session.wait()
    kind = torch.autograd.DeviceType.CUDA if session.on_gpu else torch.autograd.DeviceType.CPU
    found = [event for event in profiled.key_averages() if event.device_type == kind]
    took = {event.key: event.self_device_time_total if session.on_gpu else event.self_cpu_time_total for event in found}
    busy, count = sum(took.values()) / 1e3, sum(event.count for event in found)
    steps = max(map(task.settings.num_steps, task.sizes(torch.arange(task.population))))
    whole = {"ms of a round": 1e3 * alone, "ms of its kernels": busy, "kernels": count, "steps": steps}
    session.report.note("round", whole)
    for event in sorted(found, key=lambda event: -took[event.key])[:_LARGEST_KERNELS]:
        session.report.note(event.key[:150], {"ms": round(took[event.key] / 1e3, 3), "count": event.count})
    session.report.summarise(
        f"{count / steps:.0f} kernels per step, {busy:.0f} of {1e3 * alone:.0f} ms of a round at work"
    )


def _turns(session: Session, cases: dict[str, Callable[[], int]], repeats: int = 3) -> dict[str, float]:
    """Notes the pace of cases, which take turns; returns their examples per second."""
    rows = take_turns(cases, repeats, torch.device(session.device), session.gpu)
    for name, row in rows.items():
        session.report.note(name, _found(row))
    return {name: row.value or 0.0 for name, row in rows.items()}


def _found(row: Row) -> dict[str, float | None]:
    return {"examples per second": round(row.value or 0), "peak MB": row.peak_mb, "GPU use": row.gpu_use}


def _under(run: Callable[[], int], **how: bool) -> Callable[[], int]:
    """A run for which torch is set up otherwise."""

    def changed() -> int:
        with numerics(**how):
            return run()

    return changed


def _divided(run: Callable[[], int], divide: Callable) -> Callable[[], int]:
    """A run in which clients are divided into blocks in one way, whatever the device."""

    def changed() -> int:
        with mock.patch.multiple(engines, _blocks=divide, _cheapest_blocks=divide):
            return run()

    return changed
