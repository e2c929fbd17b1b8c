"""Trains the long trials of docs/examples/queue.yaml, one after another: `python -m tests.support.trial_queue DIR`.

Each entry runs the code of its own commit, from a clone in DIR, with one trial at once at the lowest priority, and keeps its
results in DIR, apart from this checkout. After an interruption the same call continues. What has ended goes into docs/examples
by `python -m bench import DIR/results/NAME`.
"""

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
QUEUE = ROOT / "docs" / "examples" / "queue.yaml"
_INTERRUPTED = (130, 143)  # by the keyboard, by SIGTERM


def read_queue(path: Path = QUEUE) -> list[dict]:
    """The entries of a queue: `name`, `command` (words of `python -m bench`), `into` (the folder of docs/examples that its
    results belong to), `core_hours`, `commit`.

    Raises:
        ValueError: for an entry with other keys, or a name that is there twice.
    """
    entries = yaml.safe_load(path.read_text())
    wrong = [entry for entry in entries if set(entry) != {"name", "command", "into", "core_hours", "commit"}]
    names = [entry.get("name") for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if wrong or twice:
        raise ValueError(f"{path}: entries with other keys: {wrong}; names that are there twice: {twice}.")
    return entries


def code_of(commit: str, folder: Path) -> Path:
    """A clone of this repository at a commit, made once."""
    clone = folder / "code" / commit
    if not (clone / ".git" / "ready").exists():
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(clone)], check=True)
        subprocess.run(["git", "checkout", "--quiet", "--detach", commit], cwd=clone, check=True)
        (clone / ".git" / "ready").touch()
    return clone


def run(entry: dict, folder: Path, data_dir: Path) -> int:
    """Runs what is left of an entry; returns its exit code. Records that have been committed are there from the start."""
    results, bench = folder / "results" / entry["into"], [sys.executable, "-m", "bench"]
    code, committed = code_of(entry["commit"], folder), ROOT / "docs" / "examples" / entry["into"]
    if (committed / "runs").is_dir():  # a lab has none
        taken = subprocess.run([*bench, "import", committed, "--results-dir", results], cwd=code)
        if taken.returncode:  # another command writes there
            return taken.returncode
    options = ["--results-dir", results, "--data-dir", data_dir, "--keep-state", "none", "--max-concurrent", 1]
    return subprocess.run([*bench, *shlex.split(entry["command"]), *map(str, options)], cwd=code).returncode


def _give_way() -> None:
    """Lowest priority. Linux compares sessions before processes, so that `nice` alone does little from another terminal."""
    os.nice(19)
    with contextlib.suppress(OSError):  # no Linux, or not compiled in
        Path("/proc/self/autogroup").write_text("19")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", type=Path, help="where code, results and what has ended are kept, outside the checkout"
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="where the images are")
    parser.add_argument("--list", action="store_true", help="say which entries have ended, and run nothing")
    args = parser.parse_args()
    folder, data_dir = args.folder.absolute(), args.data_dir.absolute()
    _give_way()
    left = []
    for entry in read_queue():
        ended = folder / "ended" / entry["name"]
        if args.list or ended.exists():
            print(f"{'ended' if ended.exists() else 'to run':6}  {entry['name']}  ({entry['core_hours']} core-hours)")
            continue
        print(f"begins  {entry['name']}: {entry['command']}", flush=True)
        code = run(entry, folder, data_dir)
        if code == 0:
            ended.parent.mkdir(parents=True, exist_ok=True)
            ended.touch()
            continue
        left.append(entry["name"])
        if code < 0 or code in _INTERRUPTED:
            break
    if left:
        sys.exit(f"{', '.join(left)} not ended; the same call continues with {'it' if len(left) == 1 else 'them'}.")


if __name__ == "__main__":
    main()
