"""Nobody but its own processes joins the Ray session of a command that runs on this machine alone."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Driver, as_other, wait_until

pytestmark = pytest.mark.slow
SETTING = ("--algorithm", "fedprox", "--dataset", "digits", "--partition", "label-2", "--seeds", "0")
LONG = ("--set", "clients=10,rounds=5000,local_epochs=1", "--max-concurrent", 1)


@pytest.mark.parametrize(
    ("command", "users_mode"),
    [("run", "disabled"), pytest.param("tune", None, marks=pytest.mark.torture)],  # both start Ray by the same function
    ids=["run-of-a-careless-user", "tune"],
)
def test_strangers_are_refused_while_a_command_runs(command, users_mode, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if users_mode:
        monkeypatch.setenv("RAY_AUTH_MODE", users_mode)
    results = tmp_path / "results"
    driver = Driver(*SETTING, *LONG, "--results-dir", results, command=command)
    wait_until(lambda: any(path.stat().st_size for path in results.glob("runs/*/rounds.jsonl")), driver)
    family = descendants(driver.pid)
    commands = [told(pid, "cmdline") for pid in family]
    inherited = "".join(told(pid, "environ") for pid in family if pid != driver.pid)
    (token,) = set(re.findall(r"\0RAY_AUTH_TOKEN=([^\0]*)", inherited))
    ports = listening(family)

    strangers = {
        "no token": stranger(tmp_path, ports),
        "a wrong token": stranger(tmp_path, ports, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token[::-1]),
        "the token": stranger(tmp_path, ports, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token),
    }
    said = {name: process.communicate(timeout=120)[0].splitlines() for name, process in strangers.items()}
    assert len(said["the token"]) == 2, (tmp_path / "strangers.log").read_text()
    let_in, end = said.pop("the token")
    port, raylet = map(int, let_in.split())
    assert port in ports and raylet in family, "whoever knows the token can run functions"
    assert said == {"no token": [end], "a wrong token": [end]}
    assert driver.poll() is None, "all of this while it runs: " + driver.printed()

    assert len(token) == 64 and token not in driver.printed()
    (session,) = {Path(one) for command in commands for one in re.findall(r"/[^\0=]*/session_\d[\w-]*", command)}
    written = [path for folder in (session, tmp_path) for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "gcs_server.out" for path in written)
    assert not [path for path in written if token.encode() in path.read_bytes()]
    assert not [command for command in commands if token in command]
    assert not (tmp_path / "home" / ".ray").exists()

    private = session.parents[1]
    assert private.stat().st_mode & 0o777 == 0o700 and (session / "sockets" / "raylet").is_socket()
    if os.geteuid() == 0:
        renamed = as_other("mv", session / "sockets" / "raylet", session / "sockets" / "old")
        assert renamed.returncode != 0 and "denied" in renamed.stderr, "no other user comes near its sockets"
    driver.send_signal(signal.SIGINT)
    driver.ended()
    assert not private.exists()


def stranger(folder: Path, ports: list[int], **own: str) -> subprocess.Popen:
    """A process of somebody with an empty home, and nothing in the environment but what is given."""
    (folder / "elsewhere").mkdir(exist_ok=True)
    bare = {"PATH": os.environ["PATH"], "HOME": str(folder / "elsewhere"), "RAY_NUM_REDIS_GET_RETRIES": "1"}
    command = [sys.executable, ROOT / "tests" / "support" / "stranger.py", *map(str, ports)]
    with open(folder / "strangers.log", "a") as log:
        return subprocess.Popen(command, env=bare | own, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)


def descendants(pid: int) -> set[int]:
    """A process and all that descend from it."""
    stats = {int(path.name): told(int(path.name), "stat") for path in Path("/proc").glob("[0-9]*")}
    parents = {child: int(stat.rpartition(")")[2].split()[1]) for child, stat in stats.items() if stat}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def told(pid: int, part: str) -> str:
    """A file of /proc on a process; "" if that has just ended."""
    try:
        return Path(f"/proc/{pid}/{part}").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def listening(pids: set[int]) -> list[int]:
    """TCP ports at which one of these processes waits for others."""
    waiting = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A":
                waiting[f"socket:[{rest[5]}]"] = int(local.rpartition(":")[2], 16)
    opened = set()
    for file in (file for pid in pids for file in Path(f"/proc/{pid}/fd").glob("*")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # closed meanwhile
            opened.add(os.readlink(file))
    return sorted(waiting[one] for one in opened & waiting.keys())
