"""A running Ray cluster: joined or refused within seconds, in one sentence, and watched while a command uses it."""

import contextlib
import logging
import os
import queue
import re
import shlex
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, NoReturn

from bench import plugins
from bench.execution import ray_environment
from bench.files import stderr_to

import ray  # isort: skip
from ray._private import services  # isort: skip
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled  # isort: skip
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # isort: skip

ANSWER_SECONDS = 5.0  # a head that takes longer is not there
LOST_SECONDS = 30.0  # without an answer of the head, which Ray itself gives 60 s
_LOOK_SECONDS = 3.0
# The first bytes of an HTTP/2 connection, which every gRPC server answers with its settings.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_SETTINGS = 4


def join(
    address: str,
    threads: int,
    log: BinaryIO,
    on_message: Callable[[str], None],
    wait_seconds: float = 0.0,
) -> None:
    """Connects this process to a running cluster.

    Args:
        address: HOST:PORT of its head, or "auto" for the one that runs on this machine.
        threads: of each worker.
        log: a file, which gets what Ray prints meanwhile.
        on_message: gets a line if the head is waited for.
        wait_seconds: how long the head may take to start.

    Raises:
        ValueError: if none answers, it refuses this machine, or it has another Ray or Python.
    """
    deadline, is_said = time.monotonic() + wait_seconds, False
    while isinstance(found := _find(address), ValueError):
        if time.monotonic() >= deadline:
            raise found
        if not is_said:
            on_message(f"No Ray cluster answers at {address} yet; waits {wait_seconds:g} s for it.")
            is_said = True
        time.sleep(1)
    with stderr_to(log), tempfile.TemporaryDirectory() as nothing, tempfile.TemporaryDirectory() as sent:
        try:
            # Without a token the next line ends the process.
            ensure_token_if_auth_enabled(None, create_token_if_missing=False)
            with contextlib.suppress(ray.exceptions.RpcError):  # `ray.init` says more
                GcsClient(address=found)  # refuses within a moment, where `ray.init` tries again for half a minute
            labs = plugins.copy_to(Path(sent))
            runtime_env = ray_environment.cluster_runtime_env(threads, nothing, str(labs or ""))
            ray.init(address=found, runtime_env=runtime_env, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.AuthenticationError) as error:
            raise ValueError(_refusal(error, address)) from error


def _find(address: str) -> str | ValueError:
    """HOST:PORT of a cluster that answers at an address of the command line; an error says why none does.

    Raises:
        ValueError: if the address is none.
    """
    try:
        found = services.canonicalize_bootstrap_address_or_die(address)
        int(found.rpartition(":")[2])
    except ConnectionError:
        return ValueError(
            f"No Ray cluster runs on this machine (--address {address}): start one by `ray start --head`, or give the "
            "HOST:PORT of another machine's."
        )
    except (ValueError, OSError) as error:
        raise ValueError(
            f"--address must be HOST:PORT of a running cluster, or auto, but got {address} ({error})."
        ) from error
    if not (why := _silence(found)):
        return found
    where = address if found == address else f"{address}, which is {found}"
    return ValueError(
        f"No Ray cluster answers at --address {where}: {why}. Is its head running (`ray start --head`), and may this machine "
        "reach that port?"
    )


def _silence(found: str) -> str:
    """Why no gRPC server answers at HOST:PORT; "" if one does."""
    host, _, port = found.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
                return ""  # its first words are encrypted; `ray.init` says the rest
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(_HELLO)
            answer = connection.recv(9)
    except TimeoutError:
        return f"nothing came back within {ANSWER_SECONDS:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "" if len(answer) > 3 and answer[3] == _SETTINGS else "something else than Ray answers"


def _refusal(error: Exception, address: str) -> str:
    """Why a cluster could not be joined, and what to do."""
    causes = f"{error} {error.__cause__}"
    if isinstance(error, ray.exceptions.AuthenticationError) or "InvalidAuthToken" in causes:
        return (
            f"The Ray cluster at --address {address} asks for its token, which this machine does not give: set "
            "RAY_AUTH_MODE=token, and have the cluster's token in ~/.ray/auth_token or RAY_AUTH_TOKEN."
        )
    if "Version mismatch" in causes:
        rays, pythons = (re.findall(rf"^ *{name}: (\S+)", str(error), re.MULTILINE) for name in ("Ray", "Python"))
        if len(rays) == len(pythons) == 2:
            return (
                f"The Ray cluster at --address {address} has Ray {rays[0]} on Python {pythons[0]}, this command Ray {rays[1]} "
                f"on Python {pythons[1]}. Both must be the same everywhere, Python to the last number: install the packages "
                "of requirements.lock there, in an environment of the same Python."
            )
    return f"The Ray cluster at --address {address} cannot be joined ({first_line(error)})."


def first_line(error: Exception) -> str:
    """The first line of what an error says, as those of Ray may have pages; its kind if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class Watch(threading.Thread):
    """Looks every few seconds whether the head of the cluster and its machines are there.

    Without its head a driver cannot end in an orderly way: Ray waits for it for a minute and then kills the process. Results on
    disk survive that at any moment, so this thread says what happened and ends the process. It asks nothing of Ray, whose
    answers may never come then; another thread asks for the machines.
    """

    def __init__(self, on_message: Callable[[str], None], before_end: Callable[[], None]):
        """
        Args:
            on_message: gets a line where the head does not answer, or answers again.
            before_end: is called before this thread ends the process.
        """
        super().__init__(name="watch of the head of the Ray cluster", daemon=True)
        self._address, self._on_message = ray.get_runtime_context().gcs_address, on_message
        self._before_end = before_end
        self._ended = threading.Event()
        self._gone: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._machines = threading.Thread(target=self._look_at_machines, name="watch of its machines", daemon=True)

    def __enter__(self) -> "Watch":
        self.start()
        self._machines.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    def take_gone(self) -> list[str]:
        """Node ids of machines that have gone since the last call."""
        gone = []
        with contextlib.suppress(queue.Empty):
            while True:
                gone.append(self._gone.get_nowait())
        return gone

    def run(self) -> None:
        silent_since = None
        while not self._ended.wait(_LOOK_SECONDS):
            if not _silence(self._address):
                if silent_since is not None:
                    self._on_message("The head of the Ray cluster answers again.")
                silent_since = None
            elif silent_since is None:
                silent_since = time.monotonic()
                self._on_message(
                    f"The head of the Ray cluster at {self._address} does not answer; waits {LOST_SECONDS:g} s for it."
                )
            elif time.monotonic() > silent_since + LOST_SECONDS:
                self._end_process()

    def _look_at_machines(self) -> None:
        known: set[str] = set()
        while not self._ended.wait(_LOOK_SECONDS):
            with contextlib.suppress(Exception):  # where the head has gone, the other thread says so
                alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
                for node in sorted(known - alive):
                    self._gone.put(node)
                known = alive

    def _end_process(self) -> None:
        if self._ended.is_set():
            return
        self._before_end()
        end_process(
            f"The head of the Ray cluster at {self._address} has gone.",
            "Start a cluster, then continue by",
            # RAY_ADDRESS may have named it.
            () if "--address" in shlex.join(sys.argv[1:]) else ("--address", self._address),
        )


def end_process(what: str, do: str, more: Iterable[str] = ()) -> NoReturn:
    """Ends this process from any thread with a sentence on what has happened.

    Args:
        do: what to do, before the command that continues.
        more: words that this command needs.
    """
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a bar on the screen hides it
    words = shlex.join(["python", "-m", "bench", *(word for word in sys.argv[1:] if word != "--rerun"), *more])
    os.write(
        2,
        f"{show_cursor}error: {what} Nothing is lost: finished runs are kept, the others continue from their checkpoints. "
        f"{do}: {words}\n".encode(),
    )
    os._exit(1)
