"""A lab's folder with a method, a dataset and a partition: run, edited, and reported without it."""

import json
import re

import pytest
import yaml

from tests.support.alone import WITHOUT_RAY
from tests.support.grid_runs import records
from tests.support.lab_files import FILES, HOSPITAL, POLLEN
from tests.support.processes import Driver

pytestmark = pytest.mark.slow
GRID = {
    "axes": {"dataset": ["pollen"], "partition": ["hospital", "hospital-0.7", "iid"], "algorithm": ["fedmine"]},
    "settings": {"clients": 4, "rounds": 1, "local_epochs": 1},
}


def test_a_grid_of_a_lab_runs_notices_what_was_edited_and_is_reported_without_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    lab, results = tmp_path / "mylab", tmp_path / "results"
    for name, content in (FILES | {"grids/mine.yaml": yaml.safe_dump(GRID)}).items():
        (lab / name).parent.mkdir(parents=True, exist_ok=True)
        (lab / name).write_text(content)

    def bench(command, *words):
        driver = Driver(*words, "--results-dir", results, command=command, before=WITHOUT_RAY)
        printed = driver.ended()
        assert driver.returncode == 0, printed
        return re.sub(r"\s+", " ", printed)

    run = ("run", "--grid", "mine", "--plugins", lab)
    printed = bench(*run)
    assert "1 algorithm, 1 dataset, 1 partition, 1 grid" in printed and "3 done, 0 diverged, 0 failed" in printed
    assert all("skew" in record for record in records(results).values())
    assert {"partition hospital" in record["code"] for record in records(results).values()} == {True, False}

    (lab / "datasets" / "pollen.py").write_text(POLLEN.replace("labels = np", "unused, labels = 0, np"))
    assert "3 finished, 0 to run" in bench(*run)
    (lab / "partitions" / "hospital.py").write_text(HOSPITAL.replace("round(", "int("))
    printed = bench(*run, "--dry-run")
    assert "1 finished, 2 to run" in printed
    assert "2 runs run again: the code has changed (mylab/partitions/hospital.py: hospital)" in printed
    (lab / "datasets" / "pollen.py").write_text(POLLEN.replace("50 *", "51 *"))
    assert "0 finished, 3 to run" in bench(*run, "--dry-run")

    (stored,) = (json.loads(path.read_text()) for path in results.glob("grids/*.json"))
    assert stored["styles"] == {"fedmine": {"colour": "#bd1f01"}}
    printed = bench("report", "--figure", "rounds", "--format", "md,html")
    assert all(("#bd1f01" in path.read_text()) for path in results.glob("reports/*.html"))
    assert "FedMine" in printed and "| Pollen | Hospitals(0.7, 2) |" in printed and "lab:" not in printed
