"""Label counts: one measurement per partition, of finished runs, the same as what is trained on."""

import pytest
import yaml

from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.measurements import label_counts
from bench.results.store import Store
from bench.simulation.build import build_task
from datasets import load

GRID = {
    "axes": {
        "dataset": ["digits"],
        "partition": ["label-2", "dir-0.5"],
        "algorithm": ["fedavg", "fedprox"],
        "seed": [3, 4],
    },
    "settings": {"clients": 12, "rounds": 1, "local_epochs": 1, "model": "mlp"},
}


@pytest.fixture
def cells(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(GRID))
    return expand(load_grid(str(tmp_path / "mine.yaml")), "paper")


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "results").locked() as found:
        yield found


def end(store, cells, status="done", digest=None) -> None:
    data = {"kind": "digits", "digest": digest or load("digits", None).digest}
    for cell in cells:
        store.start(cell.id, cell.config.canonical())
        summary = dict.fromkeys(("last", "best", "last10"), {})
        store.finish(cell.id, [], {"id": cell.id, "status": status, "summary": summary, "data": data})


@pytest.fixture
def said():
    return []


def counted(store, cells) -> list:
    return [cell for cell in cells if store.probe(cell.id, label_counts.NAME)]


def test_the_first_finished_run_of_each_partition_stands_for_all(store, cells, said):
    end(store, cells[1:])
    label_counts.measure(cells, store, None, said.append)
    found = counted(store, cells)
    assert [(cell.config.partition, cell.config.seed) for cell in found] == [("label-2", 4), ("dir-0.5", 3)]
    digits = load("digits", None)
    for cell in found:
        result = store.probe(cell.id, label_counts.NAME)["result"]
        assert result["label_counts"] == build_task(cell.config, digits).federation.label_counts.tolist()
        assert result["classes"] == list(digits.classes) and len(result["label_counts"]) == 12


def test_nothing_is_counted_twice_or_for_runs_that_are_not_done(store, cells, said):
    end(store, cells[:4], "failed")
    label_counts.measure(cells, store, None, said.append)
    assert counted(store, cells) == []
    end(store, cells[:1])
    label_counts.measure(cells, store, None, said.append)
    end(store, cells[1:2])
    label_counts.measure(reversed(cells), store, None, said.append)
    assert counted(store, cells) == cells[:1] and said == []


def test_images_that_a_run_did_not_see_are_not_counted_and_cost_no_other_partition(store, cells, said):
    for cell in cells:
        end(store, [cell], digest="other" if cell.config.partition == "label-2" else None)
    label_counts.measure(cells, store, None, said.append)
    assert [cell.config.partition for cell in counted(store, cells)] == ["dir-0.5"]
    assert len(said) == 1 and f"digits label-2 {cells[0].id}: not counted" in said[0] and "other images" in said[0]


def test_settings_that_change_a_partition_tell_it_apart_and_others_do_not(cells):
    config = cells[0].config.canonical()
    same = label_counts.partition_of(config)
    assert label_counts.partition_of(config | {"lr": 1.0, "seed": 9}) == same
    for change in (
        {"clients": 13},
        {"partition": "iid"},
        {"train_examples": 100},
        {"first_clients": 2},
        {"validation_share": 0.2},
    ):
        assert label_counts.partition_of(config | change) != same
