"""The machines of a session of Ray: their names, which of them take runs, and waiting for those that are still to come.

A machine that cannot train, because images are not there or torch does not see its GPU, would fail one run after another in a
moment. It is taken out instead, and its runs go to the others.
"""

import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from bench.execution import ray_environment  # noqa: F401
from bench.execution.resources import Resources
from bench.execution.worker import NO_GPU

import ray  # isort: skip
from ray import tune  # isort: skip
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # isort: skip

_NODE_ID = "ray.io/node-id"  # a label that Ray gives every node
_LOOK_SECONDS = 120.0  # how long a machine may take to say whether torch sees its GPUs
_GPU_TO_LOOK = 0.001  # of one GPU: a task without any sees none


class Fleet:
    """The machines of the session of Ray that this process is connected to.

    Attributes:
        unfit: node id of a machine that takes no more runs -> why.
    """

    def __init__(self, address: str | None, on_message: Callable[[str], None]):
        """
        Args:
            address: of a running cluster; None for a session on this machine alone.
            on_message: gets a line for each machine that is taken out, or has gone.
        """
        self.address, self._on_message = address, on_message
        self.unfit: dict[str, str] = {}

    @property
    def alive(self) -> list[dict[str, Any]]:
        """Ray's description of each machine that is there, whether it takes runs or not."""
        return [node for node in ray.nodes() if node["Alive"]]

    def name_of(self, node_id: str) -> str:
        """A machine for people: its host name, and the beginning of Ray's id where several have that name."""
        names = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
        name = names.get(node_id, node_id[:8])
        return f"{name} ({node_id[:8]})" if Counter(names.values())[name] > 1 else name

    def host_of(self, node_id: str) -> str:
        """The host name of a machine."""
        if not self.address:
            return platform.node()
        return next((node["NodeManagerHostname"] for node in ray.nodes() if node["NodeID"] == node_id), "")

    def lose(self, node_id: str) -> None:
        """A machine has gone."""
        self._on_message(f"The machine {self.name_of(node_id)} has gone; what it trained continues on others.")

    def take_out(self, node_id: str, why: str) -> None:
        """A machine takes no more runs; said once."""
        if node_id in self.unfit:
            return
        self.unfit[node_id] = why
        if self.address:
            self._on_message(f"The machine {self.name_of(node_id)} takes no more runs: {why.rstrip('.')}.")

    def require_fit(self) -> None:
        """Raises ValueError if no machine is left that takes runs."""
        if not self.unfit or any(node["NodeID"] not in self.unfit for node in self.alive):
            return
        if not self.address:
            why = next(iter(self.unfit.values()))
            raise ValueError(
                f"This machine cannot go on: {why.rstrip('.')}. Nothing is lost: the same command continues."
            )
        names = ", ".join(map(self.name_of, self.unfit))
        raise ValueError(
            f"No machine of the cluster is left that takes runs ({names}: see above). Nothing is lost: mend them, and the same "
            "command continues."
        )

    def request(self, resources: Resources) -> tune.PlacementGroupFactory:
        """What Ray is asked for to place a trial: its share of a machine that takes runs."""
        bundle, selector = {"CPU": resources.cpus, "GPU": resources.gpus}, self.selector()
        others: dict[str, Any] = {"bundle_label_selector": [selector]} if selector else {}
        return tune.PlacementGroupFactory([bundle], **others)

    def selector(self) -> dict[str, str] | None:
        """The labels that Ray is to look for: those of all machines but the unfit ones; None for any machine."""
        return {_NODE_ID: f"!in({','.join(sorted(self.unfit))})"} if self.unfit else None

    def check_gpus(self) -> None:
        """Takes out the machines of a cluster whose GPUs Ray counts, but torch does not see; says so before any run starts."""
        with_gpus = {node["NodeID"]: node["Resources"]["GPU"] for node in self.alive if node["Resources"].get("GPU")}
        look: Any = ray.remote(num_cpus=0, num_gpus=_GPU_TO_LOOK, max_retries=0)(sees_gpu)
        asked = {
            look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(): node_id
            for node_id in with_gpus
        }
        answered, _ = ray.wait([*asked], num_returns=len(asked), timeout=_LOOK_SECONDS) if asked else ([], [])
        for answer in answered:
            try:
                if not ray.get(answer):
                    self.take_out(asked[answer], NO_GPU)
            except ray.exceptions.RayError:
                continue  # its first run says more
        self.require_fit()

    def describe(self, source: str = "") -> str:
        """What trials can use: a cluster may be another one than was meant, and a GPU may not be there.

        Args:
            source: what named the cluster, if not the command: "RAY_ADDRESS".
        """
        total, free = ray.cluster_resources(), ray.available_resources()
        cpus, gpus = (f"{free.get(key, 0):g} of {total.get(key, 0):g} {key}s free" for key in ("CPU", "GPU"))
        count = len(self.alive)
        named = f" ({source})" if source else ""
        cluster = (
            f"The Ray cluster at {ray.get_runtime_context().gcs_address}{named}: {count} machine{'s' * (count != 1)}"
        )
        return f"{cluster if self.address else 'This machine'}, {cpus}, {gpus}."

    def wait_for(self, resources: Resources, seconds: float, *, storage: str | None) -> None:
        """Returns when a machine has what a trial needs, or when the cluster's autoscaler will start one for the first trial.

        Args:
            seconds: how long a cluster without an autoscaler may take.
            storage: where workers of several machines write; None for the results directory.

        Raises:
            ValueError: if no machine has what a trial needs, for which Ray would wait without end, or if several machines
                have no storage that all of them see.
        """
        grows = bool(self.address) and has_autoscaler()
        deadline, is_said = time.monotonic() + seconds, False
        while not self._has_room(resources):
            amounts = {key: amount for key, amount in self._needed(resources).items() if amount}
            needed = " and ".join(f"{amount:g} {key}{'s' * (amount != 1)}" for key, amount in amounts.items())
            if grows:
                self._on_message(f"No machine has {needed} for a trial yet: the cluster's autoscaler is asked for one.")
                break
            if time.monotonic() >= deadline:
                raise ValueError(self._lacks(needed, seconds))
            if not is_said:
                self._on_message(f"No machine has {needed} for a trial yet; waits {seconds:g} s for one.")
                is_said = True
            time.sleep(1)
        count = len(self.alive)
        if self.address and storage is None and (count > 1 or grows):
            has = f"has {count} machines" if count > 1 else "has an autoscaler, which starts machines"
            raise ValueError(
                f"The cluster {has}: name by --storage where all of them can write, a shared folder or an object store."
            )

    def _has_room(self, resources: Resources) -> bool:
        """Whether a machine has what a trial needs, in use or free."""
        needed = self._needed(resources)
        return any(
            all(node["Resources"].get(key, 0) >= amount for key, amount in needed.items()) for node in self.alive
        )

    def _needed(self, resources: Resources) -> dict[str, float]:
        """What a trial needs of one machine; a share that is still to be measured may be a whole GPU."""
        has_gpus = any(node["Resources"].get("GPU") for node in self.alive)
        return {"CPU": resources.cpus, "GPU": float(has_gpus) if resources.auto else resources.gpus}

    def _lacks(self, needed: str, seconds: float) -> str:
        count = len(self.alive)
        if not self.address:
            return f"A trial needs {needed}, but this machine does not have them; ask for less."
        among = (
            "the only machine of the cluster does not have them"
            if count == 1
            else f"none of the {count} machines has them"
        )
        waited = f" after {seconds:g} s" if seconds else ""
        return (
            f"A trial needs {needed} of one machine, but {among}{waited}; ask for less, or wait for one by "
            "--wait-for-machines SECONDS."
        )


def sees_gpu() -> bool:
    """Whether torch sees the GPU that Ray has given this process; runs on each machine."""
    import torch

    return torch.cuda.is_available()


def has_autoscaler() -> bool:
    """Whether machines of the cluster are started when trials wait for them.

    The head of a cluster without an autoscaler describes every node as a type of its own, "node_<id>"; an autoscaler has types
    with names.
    """
    from ray.autoscaler.v2.sdk import get_cluster_status

    head: Any = ray._private.worker.global_worker
    written = head.gcs_client.internal_kv_get(b"__autoscaling_status", None)
    types = _node_types(json.loads(written)) if written else {}
    status = get_cluster_status(ray.get_runtime_context().gcs_address)
    names = [*types.values(), *(node.ray_node_type_name for node in [*status.active_nodes, *status.idle_nodes])]
    return any(name and not name.startswith("node_") for name in names)


def _node_types(status: Mapping[str, Any]) -> dict[str, str]:
    """Node -> its type, of what the autoscaler of the first version writes."""
    return (status.get("autoscaler_report") or {}).get("node_type_mapping") or {}
