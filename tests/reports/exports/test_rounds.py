"""A grid as one table of rounds."""

import csv
import json

import pandas as pd
import pytest

from bench.results.store import Store
from reports.exports.frames import rounds_frame
from reports.exports.rounds import write


@pytest.fixture
def table(store):
    """The table of what was added to a store whose runs have two rounds each."""

    def make() -> pd.DataFrame:
        stored = Store(store.save())
        for path in sorted((store.folder / "runs").iterdir()):
            rows = [
                {"round": 1, "bytes_up": 10.0, "examples": 5, "seconds": 0.5, "loss": 2.0},
                {"round": 2, "bytes_up": 20.0, "examples": 10, "seconds": 1.0, "loss": 1.0, "accuracy": 0.75},
            ]
            rows[1]["local_models"] = {"clients": [0], "accuracies": [[0.5]]}
            (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            record = json.loads((path / "record.json").read_text())
            if record["status"] == "done":
                record["summary"] = dict.fromkeys(("last", "best", "last10"), {"accuracy": 0.75})
            (path / "record.json").write_text(json.dumps(record))
        return rounds_frame(stored, ["small_table@paper"])

    return make


def test_a_run_has_a_line_per_round_with_its_setting(store, table):
    store.add("cifar10 label-2", "fedprox", [0.5, "diverged", None], choice={"mu": 0.1})
    store.add("cifar10 label-2", "fedavg", [0.5], substitute="digits")
    made = table()
    assert len(made) == 6 and list(made["round"]) == [1, 2] * 3 and made.columns.is_unique
    assert set(zip(made["grid"], made["budget"], strict=True)) == {("small_table", "paper")}
    first, second = (made[made["run"] == store.cells[0]["run"]].iloc[row] for row in (0, 1))
    assert (first["dataset"], first["partition"], first["algorithm"]) == ("cifar10", "label-2", "fedprox")
    assert (first["partition_kind"], first["labels_per_client"], first["seed"]) == ("label", 2, 0)
    assert (first["fedprox.mu"], first["status"], first["split"]) == (0.1, "done", "test")
    assert pd.isna(first["accuracy"]) and second["accuracy"] == 0.75
    assert (second["loss"], second["bytes_up"], second["examples"], second["seconds"]) == (1.0, 20.0, 10, 1.0)
    assert sorted(made["status"]) == ["diverged"] * 2 + ["done"] * 4 and "local_models" not in made
    replaced = made[made["substitute_for"].notna()]
    assert set(replaced["algorithm"]) == {"fedavg"} and replaced["fedprox.mu"].isna().all() and len(replaced) == 2
    assert set(zip(replaced["substitute_for"], replaced["dataset"], strict=True)) == {("cifar10", "digits")}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_hold_what_the_table_holds(store, table, tmp_path, suffix):
    for clusters in (5, "elbow"):
        store.add("cifar10 label-2", "fedconcat", [0.5, 0.6], choice={"num_clusters": clusters})
    store.add("cifar10 label-2", "fedprox", [0.5], choice={"mu": 1})
    made, path = table(), tmp_path / "new" / f"rounds{suffix}"
    path.parent.mkdir()
    write(made, path)
    if suffix == ".parquet":
        read = pd.read_parquet(path)
    else:
        read = pd.read_csv(path, dtype={"fedconcat.num_clusters": str})
    texts = {"fedconcat.num_clusters": made["fedconcat.num_clusters"].dropna().map(str).reindex(made.index)}
    pd.testing.assert_frame_equal(read, made.assign(**texts), check_dtype=False)
    assert set(read["fedconcat.num_clusters"].dropna()) == {"5", "elbow"}
    assert [path.name for path in path.parent.iterdir()] == [path.name]


def test_no_text_of_somebody_elses_results_is_a_formula_of_a_spreadsheet(tmp_path):
    """A CSV whose texts do not begin as formulas do; numbers are as they were, and so is everything in Parquet."""
    texts = ["=cmd|' /C calc'!A0", "+1+1", "-x", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1+1", "-inf"]
    harmless = ["a=b", "-5", "+1e-3", "'quoted", " ", "", "elbow", "label-2", '{"mu": -1}']
    made = pd.DataFrame({"text": [*texts, *harmless], "-loss": -1.5, "mixed": [-2, "=2"] * 9})
    write(made, tmp_path / "rounds.csv")
    with open(tmp_path / "rounds.csv", newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == ["text", "'-loss", "mixed"]
    assert [line[0] for line in lines] == [*(f"'{text}".replace("\r", "\n") for text in texts), *harmless]
    assert {line[1] for line in lines} == {"-1.5"} and [line[2] for line in lines] == ["-2", "'=2"] * 9
    assert list(made["text"]) == [*texts, *harmless], "the table itself is as it was"
    write(made[["text"]], tmp_path / "rounds.parquet")
    assert list(pd.read_parquet(tmp_path / "rounds.parquet")["text"]) == [*texts, *harmless]


def test_another_kind_of_file_is_refused(tmp_path):
    for name in ("rounds.cvs", "rounds"):
        with pytest.raises(
            ValueError, match="Unknown kind of file .* Known: .csv, .parquet. Name a file that ends in one"
        ):
            write(pd.DataFrame(), tmp_path / name)
