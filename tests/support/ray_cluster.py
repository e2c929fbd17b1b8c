"""A Ray cluster of several nodes on this machine, one core each: `python -m tests.support.ray_cluster NODES`, the head
included.

Prints its address. A line on its input kills the last node that is left; the end of the input ends the cluster.
"""

import contextlib
import os
import signal
import sys

from ray.cluster_utils import Cluster

from tests.support.processes import family

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(int(sys.argv[1]) - 1)]
cluster.wait_for_nodes()
print("address", cluster.address, flush=True)
for _ in sys.stdin:
    raylet = nodes.pop().all_processes["raylet"][0].process.pid
    for pid in family(raylet):  # its workers would live on for a while
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    print("killed", flush=True)
cluster.shutdown()
