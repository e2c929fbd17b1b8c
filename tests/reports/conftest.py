"""A result store made of a few JSON files, as `run` leaves it behind."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.results.ids import hash_of
from reports import api
from reports.tables.report import Report

LIBRARIES = {"python": "3.12.1", "torch": "2.15.0", "numpy": "2.3.0", "ray": "2.60.0", "skewbench": "0.1.0"}
ROUNDS = 4
SEEN = range(1, ROUNDS + 1)


@dataclass
class Store:
    """Collects the cells of one grid and writes them, with the records of the runs that have ended."""

    folder: Path
    budget: str = "paper"
    reproduces: dict | None = field(default_factory=lambda: {"paper": "fedconcat", "table": 1})
    std: str = "population"
    verdict: str | None = "fedconcat"
    report: dict = field(
        default_factory=lambda: {
            "rows": ["dataset", "partition"],
            "columns": "algorithm",
            "metric": "accuracy",
        }
    )
    title: str = "Small table"
    source: str = ""
    row_order: list = field(default_factory=list)
    column_order: list = field(default_factory=list)
    cells: list = field(default_factory=list)
    ruleset: dict = field(default_factory=dict)

    def add(
        self,
        row: str,
        algorithm: str,
        scores: list,
        *,
        choice=None,
        personal=False,
        own=None,
        versions=None,
        device="cpu",
        data_note="",
        data="0badcafe",
        **changes,
    ):
        """One cell entry per score, seeds from 0: a share, "diverged", "failed", None (not run yet).

        Args:
            row: "dataset partition".
            own: for each seed, the accuracies of clients on their own test data; the score must be their mean. None for
                clients without such data.
            versions: library versions that differ from LIBRARIES.
            data_note: what the records say about incomplete data.
            data: checksum of the images.
            changes: cell fields that differ from the usual ones (missing, clients, config...).
        """
        dataset, partition = row.split()
        for seed, score in enumerate(scores):
            cell = {
                "dataset": dataset,
                "partition": partition,
                "algorithm": algorithm,
                "model": "simple-cnn",
                "clients": 1 if partition == "none" else 40,
                "participation": 1.0,
                "seed": seed,
                "choice": choice or {},
                "run": None,
                "missing": None,
                "substitute": None,
            } | {key: value for key, value in changes.items() if key != "config"}
            cell["config"] = {
                "algorithm": {"name": algorithm, **cell["choice"]},
                "dataset": cell["substitute"] or dataset,
                "partition": partition,
                "model": cell["model"],
                "transform": "fedconcat",
                **{key: cell[key] for key in ("clients", "participation")},
                "rounds": ROUNDS,
                "split": "test",
                "seed": seed,
                "versions": {"algorithm": 1, "partition": 1, "transform": 1, "model": 1},
            } | changes.get("config", {})
            while any(other["run"] == hash_of(cell["config"]) for other in self.cells):  # a run of each cell's own
                cell["config"]["fixture"] = cell["config"].get("fixture", 0) + 1
            cell["run"] = None if cell["missing"] else hash_of(cell["config"])
            self.cells.append(cell)
            if score is not None and cell["run"]:
                accuracies = own[seed] if own else None
                self._record(cell, score, personal, accuracies, versions or {}, device, data_note, data)
        return self

    def save(self) -> Path:
        """Writes the expanded grid and returns the store's folder."""
        grid = {
            "grid": "small_table",
            "digest": "0123456789abcdef",
            **{name: getattr(self, name) for name in ("budget", "title", "source", "reproduces", "std")},
            **{name: getattr(self, name) for name in ("verdict", "report")},
            **{name: getattr(self, name) for name in ("row_order", "column_order", "cells")},
            **({"ruleset": self.ruleset} if self.ruleset else {}),
        }
        path = self.folder / "grids" / f"small_table@{self.budget}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(grid))
        return self.folder

    def grid_report(self) -> api.GridReport:
        """What reports show of the grid, as it is now."""
        return api.GridReport(self.save(), "small_table", self.budget)

    def build(self, **options) -> Report:
        """The tables of the grid."""
        return self.grid_report().build(**options)

    def render(self, **options) -> str:
        """The tables of the grid as text."""
        return self.grid_report().render(**options)

    def _record(
        self,
        cell: dict,
        score: float | str,
        personal: bool,
        own: list[float] | None,
        versions: dict,
        device: str,
        data_note: str,
        data: str,
    ) -> None:
        status, reason, summary = "done", "", {}
        if isinstance(score, str):
            status, reason = score, "The loss is not finite in round 3."
        else:
            names = ["global_accuracy", "local_accuracy"] if personal else ["own_accuracy" if own else "accuracy"]
            shift = {"last": 0.0, "best": 0.02, "last10": -0.01}
            # The two accuracies of per-client models differ by ten points, so that a mix-up shows.
            summary = {
                value: {name: score + move + (0.1 if name == "local_accuracy" else 0) for name in names}
                for value, move in shift.items()
            }
            summary["last10_std"] = dict.fromkeys(names, 0.004)
        record = {
            "id": cell["run"],
            "status": status,
            "reason": reason,
            "summary": summary,
            "versions": LIBRARIES | versions,
            "device": device,
            "data_note": data_note,
            "data": {"kind": "pickles", "digest": data},
        }
        if own and not isinstance(score, str):
            record["client_accuracies"] = own
        folder = self.folder / "runs" / cell["run"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(cell["config"]))
        (folder / "record.json").write_text(json.dumps(record))
        last = summary.get("last", {})
        rows = [
            self._round(number, {name: accuracy * (number / max(SEEN)) for name, accuracy in last.items()})
            for number in SEEN
        ]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    @staticmethod
    def _round(number: int, accuracies: dict) -> dict:
        spent = {
            "bytes_down": 1e6 * number,
            "bytes_up": 2e6 * number,
            "examples": 1000 * number,
            "seconds": 7.0 * number,
        }
        return {"round": number, **spent, **accuracies}


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path)
