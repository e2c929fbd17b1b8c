"""What commands cost as a results directory grows: `python -m tests.support.growth 100 1000 5000 20000`.

Prints a table with one line per number of runs N: CPU seconds (user and system, of the process and its children) of a `run`
with nothing to do, of `report`, `export` and `import`, and the size of the page. A second table compares a grid of 100 runs
alone with the same one beside as many others as the largest N. `import` also has its wall time, which waits for the disk.

Runs are not trained. `write_runs` writes what a finished run leaves on disk, without waiting for the disk. The module needs
nothing that an earlier version of the code lacks: copy it to a checkout to measure that one.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from bench.experiments.cells import Cell, to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.results.json_files import seal
from bench.results.metrics import summarise
from bench.results.records import RoundRow, RunRecord
from bench.results.schema import SCHEMA
from bench.results.store import Store

METHODS = ("fedavg", "fedprox", "fedrs", "fedlc", "moon")
SEEDS = 5
PER_PARTITION = len(METHODS) * SEEDS
ROUNDS = 20
SMALL = 100  # runs of the grid beside others


def grid_file(folder: Path, name: str, num_runs: int, **settings) -> Path:
    """Writes a grid of so many runs: a partition has five methods with five seeds each.

    Args:
        num_runs: rounded up to a whole partition.
        settings: of all cells, by which two grids have no run in common.
    """
    partitions = [f"dir-{(index + 1) / 100:g}" for index in range(-(-num_runs // PER_PARTITION))]
    axes = {"dataset": ["digits"], "partition": partitions, "algorithm": [*METHODS], "seed": [*range(SEEDS)]}
    content = {"title": f"Growth, {name}", "axes": axes, "settings": {"clients": 10, "rounds": ROUNDS} | settings}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def write_store(folder: Path, grids: Iterable[Path], rounds: int = ROUNDS) -> int:
    """A results directory as if these grids had run; returns the number of its runs."""
    store, count = Store(folder), 0
    with store.locked():
        for path in grids:
            spec = load_grid(str(path))
            cells = expand(spec, "paper")
            store.write_grid(f"{spec.stored_name}@paper", to_json(spec, "paper", {}, cells))
            write_runs(store, cells, rounds)
            count += len(cells)
    return count


def write_runs(store: Store, cells: Sequence[Cell], rounds: int = ROUNDS) -> None:
    """Writes finished runs as `Store.finish` does, sealed, but without a sync, which would take minutes for thousands."""
    digest = _digest()
    for cell in cells:
        rows = rows_of(cell.config.seed, len(str(cell.config.algorithm)), rounds)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        folder = store.run_folder(cell.id)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(cell.config.canonical(), indent=1) + "\n")
        (folder / "rounds.jsonl").write_text(lines)
        record = json.dumps(record_of(cell.id, rows, digest), indent=1) + "\n"
        (folder / "record.json").write_text(seal(record, lines.encode()))


def rows_of(seed: int, level: int, rounds: int) -> list[RoundRow]:
    """Rounds of a run that learns; `level` and the seed shift its accuracies."""
    return [
        {
            "round": number,
            "bytes_down": 41640.5 * number,
            "bytes_up": 41640.5 * number,
            "examples": 1437 * number,
            "examples_per_second": 20000.0 + 17.3 * number,
            "seconds": 0.0731 * number + 0.001 * seed,
            "loss": 2.3 / number,
            "accuracy": 0.9 - 0.7 / (number + 1) + (seed * 7 + level * 3 + number * 5) % 11 / 360,
        }
        for number in range(1, rounds + 1)
    ]


def record_of(run_id: str, rows: Sequence[RoundRow], digest: str) -> RunRecord:
    """The record of a run with these rounds."""
    return {
        "id": run_id,
        "schema": SCHEMA,
        "status": "done",
        "reason": "",
        "summary": summarise(rows),
        "rounds": len(rows),
        "seconds": rows[-1]["seconds"],
        "bytes_per_client": int(2 * rows[-1]["bytes_up"]),
        "data": {"kind": "digits", "digest": digest},
        "data_note": "",
        "caveats": [],
        "diagnostics": {},
        "device": "cpu",
        "started": "2026-01-01T12:00:00+0000",
        "finished": "2026-01-01T12:00:09+0000",
        "commit": "a" * 40,
        "versions": {"python": "3.12", "torch": "2.9", "numpy": "2.3", "ray": "2.50", "skewbench": "0"},
        "kept": "none",
    }


def _digest() -> str:
    """Of the images, so that a run with nothing to do can count the labels of each partition."""
    from datasets import resized

    return resized.load("digits", "none", None, None).digest


class Cost(NamedTuple):
    """What a command has taken, in seconds."""

    cpu: float
    wall: float


def cost_of(*words: object) -> Cost:
    """Runs a command of this checkout and measures it.

    Raises:
        RuntimeError: with what it printed, if it fails.
    """
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "bench", *map(str, words)], capture_output=True, text=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stdout}{done.stderr}")
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def measure(folder: Path, count: int) -> dict[str, str]:
    """Costs of the commands on a directory of one grid of so many runs."""
    grid, results = grid_file(folder, f"growth{count}", count), folder / f"store{count}"
    write_store(results, [grid])
    run = ("run", "--grid", grid, "--results-dir", results)
    first, again = cost_of(*run), cost_of(*run)
    page = results / "reports" / f"{grid.stem}@paper.html"
    size = page.stat().st_size
    unchanged = cost_of("report", "--results-dir", results)
    shutil.rmtree(results / "reports")
    report = cost_of("report", "--results-dir", results)
    export = cost_of("export", "--grid", grid.stem, "--to", folder / "rounds.csv", "--results-dir", results)
    imported = cost_of("import", results, "--results-dir", folder / f"import{count}")
    return {
        "runs": f"{count:,}",
        "run, first page": f"{first.cpu:.1f}",
        "run, nothing to do": f"{again.cpu:.1f}",
        "report": f"{report.cpu:.1f}",
        "report, unchanged": f"{unchanged.cpu:.1f}",
        "export": f"{export.cpu:.1f}",
        "import": f"{imported.cpu:.1f}",
        "import, wall": f"{imported.wall:.1f}",
        "page, MB": f"{size / 1e6:.1f}",
    }


def measure_beside(folder: Path, count: int) -> list[dict[str, str]]:
    """Costs of a small grid in a directory of its own, and in one that holds so many other runs."""
    small = grid_file(folder, "small", SMALL, batch_size=32)
    others = grid_file(folder, f"others{count}", count)
    lines = []
    for name, grids in (("alone", [small]), (f"beside {count:,}", [small, others])):
        results = folder / f"beside-{len(grids)}"
        write_store(results, grids)
        costs = {
            "export": cost_of("export", "--grid", "small", "--to", folder / "small.csv", "--results-dir", results),
            "report": cost_of("report", "--grid", "small", "--results-dir", results),
            "run, nothing to do": (
                cost_of("run", "--grid", small, "--results-dir", results),
                cost_of("run", "--grid", small, "--results-dir", results),
            )[1],
        }
        lines.append({"100 runs": name} | {command: f"{cost.cpu:.1f}" for command, cost in costs.items()})
    return lines


def table(lines: Sequence[dict[str, str]]) -> str:
    """Lines of one shape as a table of Markdown."""
    rows = [[*lines[0]], ["---"] * len(lines[0]), *([*line.values()] for line in lines)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("counts", nargs="*", type=int, default=[100, 1000, 5000], help="numbers of runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        folder = Path(name)
        os.environ["RAY_ADDRESS"] = ""
        lines = []
        for count in arguments.counts:
            lines.append(measure(folder, count))
            print(lines[-1], file=sys.stderr, flush=True)
        print(table(lines))
        print(table(measure_beside(folder, max(arguments.counts))))


if __name__ == "__main__":
    main()
