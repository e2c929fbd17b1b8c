"""From a command to a table on real images."""

import subprocess
import sys
from pathlib import Path

import pytest

import datasets
from bench.config import resolve
from bench.run import Run
from datasets import transforms

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_table_1_at_its_smallest_budget_on_real_cifar10(real_data, tmp_path):
    command = [sys.executable, "-m", "bench", "run", "--grid", "paper_table1", "--budget", "smoke"]
    where = ["--data-dir", str(real_data), "--results-dir", str(tmp_path)]
    cells = ["--only", "dataset=cifar10|fmnist,partition=label-2|none"]
    done = subprocess.run([*command, *cells, *where], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "reports" / "paper_table1@smoke.md").read_text()
    cifar10, fmnist = (
        next(line for line in table.splitlines() if f"| {name} " in line) for name in ("cifar10", "fmnist")
    )
    assert cifar10.count("(53.") >= 3 and cifar10.count("±") >= 5  # published values beside the measured ones
    assert fmnist.count("no data: fmnist") == 6
    assert "Budget smoke is not the paper's" in table and "Data: cifar10 from image folders" in table


@pytest.mark.parametrize(
    "dataset, settings",
    [
        ("mnist", {"partition": "dir-0.5", "clients": 20, "train_examples": 2000}),
        ("tinyimagenet", {"partition": "iid", "clients": 20, "train_examples": 400, "model_width": 0.125}),
        ("cifar10", {"partition": "noise-0.1", "clients": 3, "train_examples": 600}),
    ],
)
def test_other_real_images_train_too(real_data, dataset, settings):
    common = {"algorithm": "fedavg", "rounds": 1, "local_epochs": 1, "batch_size": 16, "test_examples": 200}
    size = transforms.recipe("fedconcat", dataset).image_size
    images = datasets.load(dataset, real_data, image_size=size)
    config = resolve({"dataset": dataset, **common, **settings})
    run = Run(config, images)
    row = run.step()
    assert row["examples"] == settings["train_examples"] and 0 < row["accuracy"] < 1
    assert run.task.federation.input_shape == ((1, 28, 28) if dataset == "mnist" else (3, 32, 32))


def test_a_model_learns_real_handwriting(real_data):
    settings = {"dataset": "mnist", "partition": "iid", "clients": 5, "rounds": 3, "local_epochs": 2, "lr": 0.05}
    config = resolve({"algorithm": "fedavg", **settings, "train_examples": 5000, "test_examples": 1000})
    run = Run(config, datasets.load("mnist", real_data))
    while not run.finished:
        row = run.step()
    assert row["accuracy"] > 0.9
