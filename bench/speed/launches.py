"""What a GPU would be asked for: kernels, waits and bytes of local training, counted on a pretended one."""

from collections import Counter
from dataclasses import dataclass

import torch

import algorithms
from bench.contract import pretended_gpu
from bench.contract.toy import toy_task
from bench.simulation.engines import ENGINES
from bench.speed.rows import Row, not_measured
from bench.speed.workload import Setting

_METHODS = ("fedavg", "moon", "scaffold", "feddyn", "fedsam", "fedconcat", "fedconcat-id")
_CLIENTS, _BATCH = 10, 32
_OPTIONS = {"num_clusters": 5, "encoder_rounds": 2, "inference_images": 1000}  # of methods that have them


@dataclass(frozen=True)
class Counted:
    """What one round asks for.

    Attributes:
        launches: kernels.
        megabytes: that they read and write.
        waits: how often the host waits for the device, copies included.
        copies: between the host and the device.
    """

    launches: int
    megabytes: float
    waits: int
    copies: int

    @classmethod
    def of(cls, gpu: pretended_gpu.Session) -> "Counted":
        """What a session has counted."""
        copies = sum(event.num_bytes > 0 for event in gpu.events)
        return cls(gpu.launches.total(), gpu.moved / 1e6, len(gpu.events), copies)


def launches(setting: Setting) -> list[Row]:
    """Kernels, waits and bytes per step and round of 10 clients with the simple CNN, on a pretended GPU."""
    return [_counted(name, engine) for name in setting.methods or _METHODS for engine in ENGINES]


def _counted(name: str, engine: str) -> Row:
    """One method: the difference of a step more, and what a round has beside its steps."""
    case = f"kernels of a local step, {name}, {engine}"
    try:
        first, few, many = (*_rounds(name, engine, 1), _rounds(name, engine, 3)[1])
    except (ImportError, AttributeError, ValueError) as error:
        return not_measured(case, error)
    step = (many.launches - few.launches) / 2
    clients = _CLIENTS if engine == "loop" else 1  # a step of one client, or of all at once
    note = (
        f"{(many.megabytes - few.megabytes) / 2 / clients:.1f} MB; beside its steps, a round has "
        f"{many.launches - 3 * step:,.0f} kernels and {many.waits} waits ({many.copies} of them copies), the first "
        f"{first.waits} ({first.copies})"
    )
    return Row(case, step / clients, "kernels", note)


def _rounds(name: str, engine: str, steps: int) -> tuple[Counted, Counted]:
    """The first round and the second one, in which each client takes so many steps."""
    options = {key: value for key, value in _OPTIONS.items() if key in algorithms.load(name).__dataclass_fields__}
    method = algorithms.make(name, **options)
    counts = []
    with pretended_gpu.session() as gpu:
        task = toy_task(
            device=pretended_gpu.NAME,
            engine=engine,
            dtype=torch.float32,
            sizes=(_BATCH * steps,) * _CLIENTS,
            model="simple-cnn",
            shape=(3, 32, 32),
            dataset="cifar10",
            transform="fedconcat",
            batch_size=_BATCH,
            local_epochs=None,
            local_steps=steps,
        )
        state = method.init(task)
        for _ in range(2):
            gpu.launches, gpu.moved, gpu.events = Counter(), 0, []
            state = method.step(task, state)
            counts.append(Counted.of(gpu))
    return counts[0], counts[1]
