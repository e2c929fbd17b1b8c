"""Somebody edits a method and gives the same command, in a copy of the packages."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from bench import __version__
from bench.execution.ray_environment import PACKAGES, ROOT
from tests.support.alone import WITHOUT_RAY
from tests.support.grid_runs import metrics, records
from tests.support.processes import Driver

pytestmark = pytest.mark.slow
GRID = {
    "axes": {"dataset": ["digits"], "partition": ["iid"], "algorithm": ["fedavg", "fedprox"], "seed": [0, 1]},
    "settings": {"model": "mlp", "clients": 4, "rounds": 2, "local_epochs": 1, "batch_size": 16, "train_examples": 200},
}
PENALTY = "0.5 * self.mu * "


class Checkout:
    """A copy of the packages, and a results directory."""

    def __init__(self, folder: Path):
        for name in (*PACKAGES, "tests/support"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        self.folder, self.results, self.method = folder, folder / "results", folder / "algorithms" / "fedprox.py"
        self.known = folder / "bench" / "known_code.txt"
        (folder / "mine.yaml").write_text(yaml.safe_dump(GRID))

    def __call__(self, command: str, *words: str) -> str:
        """What a command prints, in one line."""
        driver = Driver(*words, "--results-dir", self.results, command=command, root=self.folder, before=WITHOUT_RAY)
        printed = driver.ended()
        assert driver.returncode == 0, printed
        return re.sub(r"\s+", " ", printed)

    def run(self, *words: str) -> str:
        return self("run", "--grid", "mine.yaml", *words)

    def edit(self, before: str, after: str) -> None:
        text = self.method.read_text()
        assert text.count(before) == 1
        self.method.write_text(text.replace(before, after))


def test_runs_of_an_edited_method_are_repeated_and_no_others(tmp_path):
    bench = Checkout(tmp_path)
    assert "0 finished, 4 to run" in bench.run()
    first = records(bench.results)
    said = {record["commit"] for record in first.values()}
    assert said == {f"version {__version__}"}, "there is no repository"
    assert not any("commits" in record for record in first.values())
    numbers = metrics(bench.results)

    text = bench.method.read_text()
    bench.method.write_text(text.replace(".\n", ". More words.\n", 1).replace("\n\n\n", "\n\n\n\n# A comment.\n", 1))
    assert "4 finished, 0 to run" in bench.run("--dry-run"), "comments and docstrings change no number"
    assert "stale" not in bench("status")

    bench.edit(PENALTY, "1.0 * self.mu * ")
    text = bench.run("--dry-run")
    assert "2 finished, 2 to run" in text
    assert (
        "2 runs run again: the code has changed (algorithms/fedprox.py: FedProx.local_loss); the earlier results will be in "
        "superseded/, and --keep-stale uses them as they are" in text
    )
    assert (
        "2 finished runs are stale, because the code has changed since (algorithms/fedprox.py: FedProx.local_loss)"
        in (bench("status"))
    )

    text = bench.run("--keep-stale")
    assert "4 finished, 0 to run" in text and metrics(bench.results) == numbers
    assert "FedProx: 2 runs of earlier code (algorithms/fedprox.py: FedProx.local_loss changed since)" in text
    assert "FedAvg: 2 runs" not in text and text.count("earlier code") == 2, "once in the cell, once below the table"

    assert "2 done, 0 diverged" in bench.run()
    now, after = records(bench.results), metrics(bench.results)
    repeated = {run for run in first if now[run] != first[run]}
    assert len(repeated) == 2 and all(after[run] != numbers[run] for run in repeated)
    assert all((bench.results / "superseded" / f"{run}-1" / "record.json").exists() for run in repeated)
    assert "4 finished, 0 to run" in bench.run("--dry-run") and "earlier code" not in bench("report", "--print")

    # Somebody finds that 0.5 * 2 is 1; the numbers are the same, and the list of known code says so.
    bench.edit("1.0 * self.mu * ", "self.mu * ")
    assert "2 finished, 2 to run" in bench.run("--dry-run")
    script = "from bench.config.code_version import hash_now; print(hash_now('algorithm fedprox'), flush=True)"
    today = Driver(command="list", root=tmp_path, before=script).ended().split()[0]
    lines = bench.known.read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("algorithm fedprox 1: ")]
    then = now[min(repeated)]["code"]["algorithm fedprox"]
    bench.known.write_text("\n".join([*(other for other in lines if other != line), f"{line} {then} {today}"]))
    assert "4 finished, 0 to run" in bench.run("--dry-run") and "earlier code" not in bench("report", "--print")
