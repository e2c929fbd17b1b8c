"""A program that knows nothing of a Ray session but ports: `python stranger.py PORT...` says at which one it is let in.

Prints that port, and the parent's id of the process that ran a function for it; or the status if an HTTP server takes it in.
"""

import http.client
import logging
import os
import sys

import ray

here = ray.util.get_node_ip_address()
for port in sys.argv[1:]:
    try:
        connection = http.client.HTTPConnection(here, int(port), timeout=5)
        connection.request("POST", "/get_or_create_runtime_env")
        status = connection.getresponse().status
        if status != http.client.UNAUTHORIZED:
            print(port, "HTTP", status)
        continue
    except ConnectionRefusedError:  # its process has ended
        continue
    except (http.client.HTTPException, OSError):
        pass  # it speaks gRPC
    try:
        ray.init(f"{here}:{port}", log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, ray.exceptions.AuthenticationError):
        continue
    print(port, ray.get(ray.remote(num_cpus=0)(lambda: os.getppid()).remote()))
    break
print("at the end")
