"""Which processes a process has started."""

import subprocess


def family(pid: int) -> dict[int, str]:
    """A process and all that descend from it: id -> command."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    processes = [line.split(maxsplit=2) for line in listed.splitlines()[1:]]
    found = {pid}
    while more := {int(child) for child, parent, _ in processes if int(parent) in found} - found:
        found |= more
    return {int(child): command for child, _, command in processes if int(child) in found}
