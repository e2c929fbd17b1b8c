"""What may make a round faster, measured beside what it would replace: captured graphs, other convolutions."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from algorithms import make
from bench.gpu_check.report import explained
from bench.gpu_check.session import Session, distance, numerics
from bench.profiling import peak_memory_mb, reset_peak_memory
from bench.simulation.graphs import Capture, Graphs, cuda_graphs
from bench.simulation.task import Task
from bench.speed.candidates import convolutions as ways
from bench.speed.candidates.traced import traced

_ROUNDS = 10  # in runs of so many, blocks are captured in the second
_METHODS = ("fedavg", "scaffold", "moon", "feddyn", "fedsam", "fedgen")
_LAYERS = {
    "conv1": (3, 32, 6),
    "conv2": (6, 14, 16),
}  # of the simple CNN: channels in, pixels of a side, channels out; 5x5
_GRADIENTS = {"weight": (1, 2), "weight and input": (0, 1, 2)}  # the first layer needs none of its input


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


def convolutions(session: Session) -> None:
    """Ways to convolve for 40 clients with a batch each: layers alone, forward and backward, and a round of W1."""
    best = {}
    for layer, gradient, tf32 in itertools.product(_LAYERS, _GRADIENTS, (False, True)):
        with numerics(tf32=tf32):
            took = {name: _ms_of_layer(session, layer, name, _GRADIENTS[gradient]) for name in ways.VARIANTS}
        case = f"{layer}, gradient of {gradient}, TF32 {'on' if tf32 else 'off'}"
        session.report.note(case, took)
        measured = {name: ms for name, ms in took.items() if isinstance(ms, float)}
        best[layer, gradient, tf32] = min(measured, key=measured.get, default="none")
        session.report.summarise(
            f"fastest, first layer: {best['conv1', 'weight', False]}, second: "
            f"{best.get(('conv2', 'weight and input', False), 'not measured')}"
        )
    task, method = session.equal_clients(), make("fedavg")
    state = method.step(task, method.init(task))
    examples = task.num_trained(task.sample_cohort(1))
    expected = method.step(task, state)["params"]
    for name in (None, *ways.VARIANTS):
        session.report.note(
            f"round of W1, {name or 'as it is'}", _round_with(session, task, state, name, expected, examples)
        )


def _beside_eager(session: Session, task: Task, name: str, capture: Capture) -> dict[str, Any]:
    """The second round of a method as the vectorised engine runs it, and captured."""
    method, graphs = make(name), Graphs(capture)
    state = method.step(task, method.init(task))
    expected = method.step(task, state)["params"]
    eager = session.seconds(lambda: method.step(task, state))
    reset_peak_memory(task.device)
    captured = replace(task, graphs=graphs)
    method.step(captured, state)
    first = session.seconds(lambda: method.step(captured, state), 1)
    if not graphs.num_captured:  # else this would be the pace of the usual engine
        raise RuntimeError(", ".join(graphs.not_captured.values()) or "what runs on clients is no hook of the method")
    found = method.step(captured, state)["params"]
    again = session.seconds(lambda: method.step(captured, state), 5)
    return {
        "ms eager": round(1e3 * eager, 3),
        "ms": round(1e3 * again, 3),
        "ms of the blocks alone": round(1e3 * sum(session.seconds(block.replay, 5) for block in graphs.kept), 3),
        "examples per second": round(task.num_trained(task.sample_cohort(1)) / again),
        "s until captured": round(first, 2),
        "blocks": graphs.num_captured,
        "from eager": distance(found, expected),
        "peak MB": round(peak_memory_mb(task.device)),
    }


def _ms_of_layer(session: Session, layer: str, name: str, argnums: tuple[int, ...]) -> float | str:
    """Milliseconds of one layer of all clients, forward and backward; or why it was not measured."""
    channels, side, wide = _LAYERS[layer]
    clients, batch = session.clients, session.w1_changes.get("batch_size", 64)
    rng = torch.Generator(session.device).manual_seed(0)
    x = torch.randn(clients, batch, channels, side, side, device=session.device, generator=rng)
    weight = torch.randn(clients, wide, channels, 5, 5, device=session.device, generator=rng)
    bias = torch.zeros(clients, wide, device=session.device)

    def loss(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ways.conv2d(name, x, weight, bias).square().sum()

    return _measured(session, lambda: torch.func.vmap(torch.func.grad(loss, argnums))(x, weight, bias))


def _measured(session: Session, run: Callable[[], object]) -> float | str:
    try:
        run()
        return round(1e3 * session.seconds(run, 5), 3)
    except Exception as error:
        return explained(error)


def _round_with(
    session: Session, task: Task, state: Any, name: str | None, expected: Any, examples: int
) -> dict[str, Any] | str:
    """A round of FedAvg in which the model convolves in one way; None for its own."""
    method = make("fedavg")
    try:
        if name is None:
            seconds, found = session.seconds(lambda: method.step(task, state)), method.step(task, state)
        else:
            with ways.used(name):
                found = method.step(task, state)
                seconds = session.seconds(lambda: method.step(task, state))
    except Exception as error:
        return explained(error)
    return {"examples per second": round(examples / seconds), "from its own": distance(found["params"], expected)}
