"""A Ray cluster of several nodes on this machine: `python -m tests.support.ray_cluster NODES`.

NODES is JSON, a list with the resources of each node, the head first: [{"CPU": 1}, {"GPU": 2, "env": {"NAME": "VALUE"}}]. It
prints its address. A line on its input kills a node: the last one that is left, or the head ("head"); the end of the input ends
the cluster.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

from tests.support.processes import ROOT, family


class RunningCluster:
    """The cluster of a process of its own."""

    def __init__(self, process: subprocess.Popen):
        self._process = process
        self.address = self._hear("address ")

    def kill(self, which: str = "last") -> None:
        """Kills a node, "last" or "head"."""
        self._process.stdin.write(f"{which}\n")
        self._process.stdin.flush()
        self._hear("killed")

    def _hear(self, what: str) -> str:
        said = next((line for line in self._process.stdout if line.startswith(what)), None)
        assert said, f"the cluster has ended without saying: {what}"
        return said.removeprefix(what).strip()


@contextlib.contextmanager
def running_cluster(nodes: Sequence[Mapping], **variables: str) -> Iterator[RunningCluster]:
    """A cluster within the context, without authentication unless the variables say otherwise."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ray_cluster", json.dumps(nodes)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "120"} | variables,
    )
    try:
        yield RunningCluster(process)
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()


def main(nodes: list[dict]) -> None:
    from ray.cluster_utils import Cluster

    def arguments(node: dict) -> dict:
        return {
            "num_cpus": node.get("CPU", 1),
            "num_gpus": node.get("GPU", 0),
            "object_store_memory": 100 * 2**20,
            "env_vars": node.get("env", {}),
        }

    def kill(node) -> None:
        for started in node.all_processes.values():
            for pid in family(started[0].process.pid):  # workers would live on for a while
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    cluster = Cluster(initialize_head=True, head_node_args=arguments(nodes[0]) | {"include_dashboard": False})
    others = [cluster.add_node(**arguments(node)) for node in nodes[1:]]
    cluster.wait_for_nodes()
    print("address", cluster.address, flush=True)
    for line in sys.stdin:
        kill(cluster.head_node if line.strip() == "head" else others.pop())
        print("killed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
