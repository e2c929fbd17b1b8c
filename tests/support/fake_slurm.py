"""Slurm's programs as far as submitit uses them: jobs are processes of this machine, their states files of one folder.

`programs` writes them into a folder for PATH. Each is this file with the name of the program as its first argument.
"""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

VARIABLE = "FAKE_SLURM"  # the folder of the states
PROGRAMS = ("sbatch", "srun", "sacct", "squeue", "scancel", "scontrol")
NO_ACCOUNTS = "FAKE_SLURM_NO_ACCOUNTS"


def programs(folder: Path) -> Path:
    """Writes the programs; returns the folder for PATH."""
    folder.mkdir()
    for name in PROGRAMS:
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        path.chmod(0o755)
    return folder


def pid_of(states: Path, job: str) -> int:
    """The process of a job that trains: what `srun` has become."""
    return int((states / f"{job}.srun").read_text())


def _sbatch(states: Path, file: str) -> None:
    number = str(101 + len([*states.glob("*.sh")]))
    (states / f"{number}.sh").write_text(Path(file).read_text())
    array = re.search(r"--array=0-(\d+)%(\d+)", Path(file).read_text())
    names = [f"{number}_{task}" for task in range(int(array[1]) + 1)] if array else [number]
    for name in names:
        (states / f"{name}.state").write_text("PENDING")
    subprocess.Popen(
        [sys.executable, __file__, "controller", number, array[2] if array else "1", *names],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    print(f"Submitted batch job {number}")


def _controller(states: Path, number: str, at_once: str, *names: str) -> None:
    with ThreadPoolExecutor(int(at_once)) as pool:
        list(pool.map(lambda name: _run(states, number, name), names))


def _run(states: Path, number: str, name: str) -> None:
    state, requeue = states / f"{name}.state", states / f"{name}.requeue"
    array = {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": name.partition("_")[2]} if "_" in name else {}
    alone = {"SLURM_JOB_ID": name, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", **array}
    while state.read_text() != "CANCELLED":
        state.write_text("RUNNING")
        ended = subprocess.run(["bash", states / f"{number}.sh"], env=os.environ | alone, start_new_session=True)
        if state.read_text() != "CANCELLED":
            state.write_text("COMPLETED" if ended.returncode == 0 else "FAILED")
        if not requeue.exists():
            break
        requeue.unlink()


def _srun(states: Path, *words: str) -> None:
    number, options = os.environ["SLURM_JOB_ID"], list(words)
    for stream, option in ((1, "--output"), (2, "--error")):
        place = options.index(option)
        path = re.sub("%A_%a|%j", number, options[place + 1]).replace("%t", "0")
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        del options[place : place + 2]
    options.remove("--unbuffered")
    (states / f"{number}.srun").write_text(str(os.getpid()))
    if os.environ.get("FAKE_SLURM_KILLS"):
        os.kill(os.getpid(), signal.SIGKILL)
    os.execvp(options[0], options)


def _sacct(states: Path, *words: str) -> None:
    if os.environ.get(NO_ACCOUNTS):
        sys.exit("Slurm accounting storage is disabled")
    print("JobID|State|NodeList")
    for path in sorted(states.glob("*.state")):
        if path.stem.partition("_")[0] in words:
            print(f"{path.stem}|{path.read_text()}|fake")


def _squeue(states: Path, *options: str) -> None:
    assert "--array" in options and "--format=%i|%T" in options
    for path in sorted(states.glob("*.state")):
        if (state := path.read_text()) in ("PENDING", "RUNNING"):  # what has ended is listed no longer
            print(f"{path.stem}|{state}")


def _scancel(states: Path, *names: str) -> None:
    for name in names:
        (states / f"{name}.state").write_text("CANCELLED")
        if (states / f"{name}.srun").exists():
            try:
                os.kill(pid_of(states, name), signal.SIGKILL)
            except ProcessLookupError:
                continue


def _scontrol(states: Path, verb: str, name: str) -> None:
    assert verb == "requeue"
    (states / f"{name}.requeue").touch()
    time.sleep(0.1)


if __name__ == "__main__":
    globals()[f"_{sys.argv[1]}"](Path(os.environ[VARIABLE]), *sys.argv[2:])
