"""A Ray cluster of several node processes on this machine: `python ray_cluster.py NODES`, one core each, the head included.

Prints its address. A line on its input kills the last node that is left; the end of the input ends the cluster.
"""

import os
import signal
import sys

from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(int(sys.argv[1]) - 1)]
cluster.wait_for_nodes()
print("address", cluster.address, flush=True)
for _ in sys.stdin:
    node = nodes.pop()
    os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
    print("killed", flush=True)
cluster.shutdown()
