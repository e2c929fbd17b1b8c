"""The wheel: what travels in it, and that its command works in a directory without the repository."""

import datetime
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from bench import __version__
from bench.execution.ray_environment import PACKAGES
from tests.support.grid_runs import records
from tests.support.method_files import RUNNABLE
from tests.support.processes import ROOT
from tests.support.ray_cluster import running_cluster

ONLY_THERE = "algorithms/fedwheel.py"  # of the wheel: no process can have run it with the repository's code
METHOD = (
    RUNNABLE.replace("RoundBased, registered", "RoundBased, registered, task_loss")
    + """
    def local_loss(self, params, batch, view):
        return self.strength * task_loss(params, batch, view)
"""
)
WHEEL_METHOD = (
    RUNNABLE.replace("mine", "wheel").replace("Mine", "Wheel")
    + """

with open(__file__.replace("fedwheel.py", "published_divergences.json")) as file:
    assert file.read()
"""
)
MODEL = """from torch import nn

from bench.models import registered_model


@registered_model("perceptron", width=8)
def perceptron(input_shape, num_classes, width):
    size = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, num_classes))
"""
DATASET = """import numpy as np

from datasets import registered_dataset


@registered_dataset("spots", model="perceptron")
def spots():
    labels = np.arange(600) % 10
    images = np.random.default_rng(0).integers(0, 60, (600, 8, 8), dtype=np.uint8)
    images[np.arange(600), labels % 8, labels // 8] += 190
    return images[:500], labels[:500], images[500:], labels[500:]
"""
PARTITION = """import numpy as np

from datasets.partitions import registered_partition


@registered_partition("turns")
def turns(labels, num_classes, num_clients, rng):
    return np.array_split(rng.permutation(len(labels)), num_clients)
"""
LAB = {
    "algorithms/__init__.py": "raise ImportError('a package of the working directory was imported')\n",
    "algorithms/fedmine.py": METHOD,
    "datasets/__init__.py": "raise ImportError('a package of the working directory was imported')\n",
    "models/perceptron.py": MODEL,
    "datasets/spots.py": DATASET,
    "partitions/turns.py": PARTITION,
    "search_spaces/fedmine.yaml": "# FedMine\nstrength: {grid: [1, 2], source: ours}\n",
    "grids/table2.yaml": """# A small grid.
title: Mine
axes: {dataset: [spots], partition: [turns], algorithm: [fedavg, fedmine, fedwheel], seed: [0]}
settings: {clients: 5, rounds: 2, local_epochs: 1, batch_size: 32, lr: 0.1}
report: {rows: [dataset, partition], columns: algorithm, metric: accuracy}
""",
}


class Installed(NamedTuple):
    """The wheel, and the command of an environment in which it is installed."""

    wheel: Path
    command: Path

    def run(self, folder: Path, *words: object) -> str:
        """What a command prints that ends well."""
        done = subprocess.run(
            [self.command, *map(str, words)], cwd=folder, env=_clean(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr + done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    """Built and installed as `uv tool install .` does, but offline: other packages are those of this environment, from which
    nothing of this repository can be imported."""
    folder = tmp_path_factory.mktemp("install")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / "source" / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".gitignore", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):  # what git ignores is left out
        shutil.copy(ROOT / name, folder / "source")
    (folder / "source" / ONLY_THERE).write_text(WHEEL_METHOD)
    _uv("build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, folder / "source")
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "environment", with_pip=False)
    (folder / "environment" / ".gitignore").write_text("*\n")  # as uv makes it
    site = sysconfig.get_path("purelib", vars={"base": str(folder / "environment")})
    Path(site, "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "environment" / "bin" / "python"
    _uv("pip", "install", "--no-deps", "--python", python, wheel)
    shutil.rmtree(folder / "source")
    code = "import importlib.util; print(*(importlib.util.find_spec(name).origin for name in ('algorithms', 'bench')))"
    told = subprocess.run([python, "-c", code], cwd=folder, env=_clean(), capture_output=True, text=True, check=True)
    assert all(Path(path).is_relative_to(site) for path in told.stdout.split()), told.stdout
    return Installed(wheel, python.with_name("skewbench"))


@pytest.fixture
def lab(tmp_path) -> Path:
    for name, content in LAB.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def test_all_files_of_the_packages_travel_in_the_wheel(installed):
    there = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {
        "algorithms/py.typed",
        "bench/py.typed",
        "bench/budgets.yaml",
        "bench/known_code.txt",
        "reports/html/page.html.jinja",
    } <= there
    with zipfile.ZipFile(installed.wheel) as wheel:
        sent = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert sent == there | {ONLY_THERE}


def test_the_wheel_the_program_and_the_citation_name_one_version_and_one_licence(installed):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    with zipfile.ZipFile(installed.wheel) as wheel:
        inside = f"skewbench-{__version__}.dist-info"
        metadata = HeaderParser().parsestr(wheel.read(f"{inside}/METADATA").decode())
        for name in project["license-files"]:
            assert wheel.read(f"{inside}/licenses/{name}") == (ROOT / name).read_bytes()
    assert {metadata["Version"], citation["version"]} == {__version__}
    assert (
        f"title   = {{{citation['title']}}},\n  version = {{{__version__}}}"
        in (ROOT / "docs" / "sharing.md").read_text()
    )
    assert {metadata["License-Expression"], citation["license"], project["license"]} == {"Apache-2.0"}
    assert isinstance(citation["date-released"], datetime.date) and project["keywords"] == citation["keywords"]
    assert (
        f"Programming Language :: Python :: {project['requires-python'].removeprefix('>=')}" in project["classifiers"]
    )
    assert metadata.get_all("Classifier") == project["classifiers"]
    assert not any(line.startswith("License ::") for line in project["classifiers"]), "the licence is an expression"
    assert "url" not in citation and "repository-code" not in citation
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()


def test_the_notice_names_every_file_of_published_numbers():
    notice = (ROOT / "NOTICE").read_text()
    named = {*re.findall(r"\w+\.csv", notice)}
    assert named == {path.name for path in (ROOT / "bench" / "published").glob("*.csv")}
    assert all((ROOT / path).exists() for path in ("bench/published", "algorithms/published_divergences.json"))
    benchmarks = {"fedbench.csv", "fedlab.csv", "flower.csv"}
    assert "algorithms/published_divergences.json" in notice
    assert notice.count("https://arxiv.org/abs/") == len(named - benchmarks)


@pytest.mark.slow
def test_an_installed_command_runs_reports_and_checks_what_a_lab_has(installed, lab):
    named = ("--plugins", lab)
    assert "paper_table1" in installed.run(lab, "list", "grids")
    installed.run(lab, "run", "--grid", "table2", *named)
    _assert_trained(lab / "results")
    (lab / "pyproject.toml").write_text('[tool.skewbench]\nplugins = ["."]\n')
    shutil.rmtree(lab / "results" / "reports")
    assert re.search(r"\| FedAvg +\| FedMine +\|", installed.run(lab, "report", "--grid", "table2"))
    assert (lab / "results" / "reports" / "table2@full.html").stat().st_size > 10_000
    assert re.search(r"fedmine: \d+ checks ok, 0 failed", installed.run(lab, "check", "fedmine"))


@pytest.mark.slow
def test_machines_of_a_cluster_get_the_installed_code_and_its_data_files(installed, lab, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with running_cluster([{"CPU": 1}, {"CPU": 1}]) as cluster:
        where = ("--address", cluster.address, "--storage", lab / "shared")
        printed = installed.run(lab, "run", "--grid", "table2", "--plugins", lab, *where)
    assert "2 machines" in printed
    _assert_trained(lab / "results")


def _assert_trained(results: Path) -> None:
    found = records(results).values()
    assert {(one["status"], one["reason"], one["commit"]) for one in found} == {("done", "", f"version {__version__}")}
    assert len(found) == 3


def _uv(*words: object) -> None:
    command: Sequence[str] = [sys.executable, "-m", "uv", "--quiet", "--offline", "--no-cache", *map(str, words)]
    done = subprocess.run(command, env=_clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _clean() -> dict[str, str]:
    """The variables of this process without those that lead to the repository."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SKEWBENCH_PLUGINS")}
