"""The machines of a session of Ray: their names, which of them take runs, and waiting for those that are still to come.

A machine that cannot train, because images are not there or torch does not see its GPU, would fail one run after another in a
moment. It is taken out instead, and its runs go to the others. Of a machine with several GPUs only those are taken out that
torch cannot use.
"""

import json
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.execution import ray_environment  # noqa: F401
from bench.execution.gpus import NO_GPU, HeldGpu, mps_runs, trials_on_each
from bench.execution.resources import Resources

import ray  # isort: skip
from ray import tune  # isort: skip
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # isort: skip

_NODE_ID = "ray.io/node-id"  # a label that Ray gives every node
_LOOK_SECONDS = 60.0  # how long machines may take to say whether they can train
_GPU_TO_LOOK = 0.001  # of one GPU: a task without any sees none
_RAY_UNITS = 10_000  # of a GPU: Ray rounds shares to them, and six times 0.1667 do not fit
_FALSE_ALARMS = 2  # of a machine whose GPUs work when they are looked at, although runs have lost them


class Fleet:
    """The machines of the session of Ray that this process is connected to.

    Attributes:
        unfit: node id of a machine that takes no more runs -> why.
    """

    def __init__(self, address: str | None, on_message: Callable[[str], None], wait_seconds: float = 0.0):
        """
        Args:
            address: of a running cluster; None for a session on this machine alone.
            on_message: gets a line for each machine that is taken out, or has gone.
            wait_seconds: how long a cluster without an autoscaler may take until a machine has what a trial needs.
        """
        self.address, self._on_message, self._wait_seconds = address, on_message, wait_seconds
        self.unfit: dict[str, str] = {}
        self._inspected: set[str] = set()
        self._asked_for: set[str] = set()  # of an autoscaler
        self._doubted: dict[str, str] = {}  # node id of a machine on which a run has lost its GPU -> what the run said
        self._alarms: Counter[str] = Counter()
        self._held: defaultdict[str, list[Any]] = defaultdict(list)  # node id -> actors, each of which holds a lost GPU

    @property
    def alive(self) -> list[dict[str, Any]]:
        """Ray's description of each machine that is there, whether it takes runs or not."""
        return [node for node in ray.nodes() if node["Alive"]]

    @property
    def fit(self) -> list[dict[str, Any]]:
        """Those that take runs, without the GPUs that do not."""
        machines = [{**node, "Resources": {**node["Resources"]}} for node in self.alive]
        for node in machines:
            if held := self._held.get(node["NodeID"]):
                node["Resources"]["GPU"] -= len(held)
        return [node for node in machines if node["NodeID"] not in self.unfit]

    @property
    def _with_gpus(self) -> list[dict[str, float]]:
        """Resources of the machines that take runs and have GPUs."""
        return [node["Resources"] for node in self.fit if node["Resources"].get("GPU")]

    @property
    def gpus(self) -> float:
        """GPUs of the machines that take runs."""
        return sum(machine["GPU"] for machine in self._with_gpus)

    @property
    def cores_per_gpu(self) -> float:
        """Cores for each GPU, on the machine that takes runs and has the fewest; 0 without GPUs."""
        return min((machine.get("CPU", 0) / machine["GPU"] for machine in self._with_gpus), default=0.0)

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

    def lose(self, node_id: str, was_training: bool) -> None:
        """A machine has gone."""
        what = "; what it trained waits for another one" if was_training else ""
        self._on_message(f"The machine {self.name_of(node_id)} has gone{what}.")

    def take_out(self, node_id: str, why: str) -> None:
        """A machine takes no more runs; said once."""
        if node_id in self.unfit:
            return
        self.unfit[node_id] = why
        if self.address:
            self._on_message(f"The machine {self.name_of(node_id)} takes no more runs: {why.rstrip('.')}.")

    def blame(self, node_id: str, why: str) -> None:
        """A machine cannot train: it is taken out. If it is for a GPU, its GPUs are looked at before the next trials begin."""
        if why.startswith(NO_GPU):
            self._doubted[node_id] = why
        else:
            self.take_out(node_id, why)

    def spread(self, share: Resources, trials: int) -> Resources:
        """A larger share if all GPUs are used only then: Ray fills one GPU with shares before it uses the next one.

        Args:
            share: what a trial needs.
            trials: at once, at most.
        """
        with_gpus = self._with_gpus
        if not with_gpus or not 0 < share.gpus < 1:
            return share
        fit = int(1 / share.gpus + 1e-6)  # on one GPU

        def places(on_each: int) -> int:
            return sum(min(int(one.get("CPU", 0) / share.cpus), int(one["GPU"]) * on_each) for one in with_gpus)

        wanted, gpus = min(trials, places(fit)), int(self.gpus)
        # Machines with few cores leave more to the GPUs of others.
        least = next(count for count in range(1, fit + 1) if places(count) >= wanted)
        count = trials_on_each(wanted, gpus, least)
        return replace(share, gpus=_RAY_UNITS // count / _RAY_UNITS)

    def request(self, resources: Resources) -> tune.PlacementGroupFactory:
        """What Ray is asked for to place a trial: its share of a machine that takes runs."""
        bundle, selector = {"CPU": resources.cpus, "GPU": resources.gpus}, self.selector()
        others: dict[str, Any] = {"bundle_label_selector": [selector]} if selector else {}
        return tune.PlacementGroupFactory([bundle], **others)

    def selector(self) -> dict[str, str] | None:
        """The labels that Ray is to look for: those of all machines but the unfit ones; None for any machine."""
        return {_NODE_ID: f"!in({','.join(sorted(self.unfit))})"} if self.unfit else None

    def inspect(self, look: Callable[[str], str], on_gpus: bool) -> None:
        """Asks the machines of a cluster that have not been asked yet, all at once, and takes out those that cannot train. One
        that does not answer is kept: its first run says more.

        Args:
            look: runs on each machine, which gets the device of its runs; returns why it cannot train, or "".
            on_gpus: whether trials have GPUs, so that only machines with GPUs train.
        """
        if not self.address:
            return
        asked: dict[Any, str] = {}
        for node in self.fit:
            node_id, has_gpu = node["NodeID"], on_gpus and bool(node["Resources"].get("GPU"))
            if node_id in self._inspected or (on_gpus and not has_gpu):
                continue
            here = NodeAffinitySchedulingStrategy(node_id, soft=False)
            task: Any = ray.remote(look)
            task = task.options(
                num_cpus=0, num_gpus=_GPU_TO_LOOK if has_gpu else 0, max_retries=0, scheduling_strategy=here
            )
            asked[task.remote("cuda" if has_gpu else "cpu")] = node_id
        answers, silent = ray.wait([*asked], num_returns=len(asked), timeout=_LOOK_SECONDS) if asked else ([], [])
        for answer in answers:
            self._inspected.add(asked[answer])
            try:
                if why := ray.get(answer):
                    self.blame(asked[answer], why)
            except ray.exceptions.NodeDiedError:
                continue
            except ray.exceptions.RayError as error:
                self.take_out(asked[answer], f"it cannot start a worker ({str(error).strip().splitlines()[-1]})")
        for task in silent:
            ray.cancel(task)

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
        mps = ", which trials share by MPS" if not self.address and mps_runs() else ""
        return f"{cluster if self.address else 'This machine'}, {cpus}, {gpus}{mps}."

    def wait_for(self, resources: Resources, storage: str | None) -> None:
        """Returns when a machine that takes runs has what a trial needs, or when the cluster's autoscaler will start one for
        the first trial.

        Args:
            storage: where workers of several machines write; None for the results directory.

        Raises:
            ValueError: if no machine has what a trial needs, for which Ray would wait without end, or if several machines
                have no storage that all of them see.
        """
        self._look_at_gpus()
        deadline, is_said = time.monotonic() + self._wait_seconds, False
        while not self.has_room(resources):
            needed = self._in_words(resources)
            if self.address and has_autoscaler():  # a head that has just started reports it after some seconds
                if needed not in self._asked_for:
                    self._on_message(
                        f"No machine has {needed} for a trial yet: the cluster's autoscaler is asked for one."
                    )
                self._asked_for.add(needed)
                break
            if time.monotonic() >= deadline:
                raise ValueError(self._lacks(needed))
            if not is_said:
                self._on_message(f"No machine has {needed} for a trial yet; waits {self._wait_seconds:g} s for one.")
                is_said = True
            time.sleep(1)
        count = len(self.alive)
        if self.address and storage is None and (count > 1 or has_autoscaler()):
            has = f"has {count} machines" if count > 1 else "has an autoscaler, which starts machines"
            raise ValueError(
                f"The cluster {has}: name by --storage where all of them can write, a shared folder or an object store."
            )

    def has_room(self, resources: Resources) -> bool:
        """Whether a machine that takes runs has what a trial needs, in use or free."""
        needed = self._needed(resources)
        return any(all(node["Resources"].get(key, 0) >= amount for key, amount in needed.items()) for node in self.fit)

    def _look_at_gpus(self) -> None:
        """Holds the GPUs that torch cannot use, of machines on which a run has lost its GPU, so that Ray gives them to no run.
        A machine of which none works is taken out."""
        gpus = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in self.fit}
        while self._doubted:
            node_id, why = self._doubted.popitem()
            here = NodeAffinitySchedulingStrategy(node_id, soft=False)
            hold: Any = ray.remote(HeldGpu)
            hold = hold.options(num_cpus=0, num_gpus=1, scheduling_strategy=here)
            held = [hold.remote() for _ in range(gpus.get(node_id, 0))]
            asked = {one.works.remote(): one for one in held}
            answers, _ = ray.wait([*asked], num_returns=len(asked), timeout=_LOOK_SECONDS) if asked else ([], [])
            working = [asked[answer] for answer in answers if _is_true(answer)]
            lost = [one for one in held if one not in working]  # also a GPU that hangs, or that others use
            self._alarms[node_id] += not lost
            is_unfit = not working or self._alarms[node_id] > _FALSE_ALARMS
            for one in held if is_unfit else working:
                ray.kill(one)
            if node_id in gpus and is_unfit:
                self.take_out(node_id, why)
            elif node_id in gpus:
                self._held[node_id] += lost
                where = f"the machine {self.name_of(node_id)}" if self.address else "this machine"
                what = f"Of the {len(held)} GPUs of {where}, {len(lost)} get{'s' * (len(lost) == 1)} no more runs"
                again = f"The GPUs of {where} work again, so runs go on there, after this"
                self._on_message(f"{what if lost else again}: {why.rstrip('.')}.")

    def _needed(self, resources: Resources) -> dict[str, float]:
        """What a trial needs of one machine; a share that is still to be measured may be a whole GPU."""
        return {"CPU": resources.cpus, "GPU": float(self.gpus > 0) if resources.auto else resources.gpus}

    def _in_words(self, resources: Resources) -> str:
        amounts = {key: amount for key, amount in self._needed(resources).items() if amount}
        return " and ".join(f"{amount:g} {key}{'s' * (amount != 1)}" for key, amount in amounts.items())

    def _lacks(self, needed: str) -> str:
        """Why no machine is there for a trial, and what to do."""
        if self.unfit and not self.address:
            why = next(iter(self.unfit.values()))
            return f"This machine cannot go on: {why.rstrip('.')}. Nothing is lost: the same command continues."
        if self.unfit:
            names = ", ".join(map(self.name_of, self.unfit))
            return (
                f"No machine of the cluster is left that takes runs and has {needed} for a trial (see above: {names}). Nothing "
                "is lost: mend them, and the same command continues."
            )
        if not self.address:
            return f"A trial needs {needed}, but this machine does not have them; ask for less."
        count = len(self.alive)
        among = "the only machine does not have them" if count == 1 else f"none of the {count} machines has them"
        if self._wait_seconds:
            what = f"{among} after {self._wait_seconds:g} s; ask for less, or wait longer"
        else:
            what = f"{among}; ask for less, or wait for one by --wait-for-machines SECONDS"
        return f"A trial needs {needed} of one machine of the cluster, but {what}."


def _is_true(answer: Any) -> bool:
    """Whether an actor has answered so; one that has died has not."""
    try:
        return bool(ray.get(answer))
    except ray.exceptions.RayError:
        return False


def has_autoscaler() -> bool:
    """Whether machines of the cluster are started when trials wait for them, as its autoscaler reports.

    A head without an autoscaler reports, too: every node as a type of its own, "node_<id>", in the version 0 of its state.
    """
    from ray.autoscaler.v2.sdk import get_cluster_status

    head: Any = ray._private.worker.global_worker
    written = head.gcs_client.internal_kv_get(b"__autoscaling_status", None)
    report = (json.loads(written) if written else {}).get("autoscaler_report") or {}
    types = (report.get("node_type_mapping") or {}).values()
    version = get_cluster_status(ray.get_runtime_context().gcs_address).stats.autoscaler_version
    return any(not name.startswith("node_") for name in types) or int(version or 0) > 0
