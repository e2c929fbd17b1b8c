"""`verify` on the command line: runs that are trained again are equal, or what differs is named."""

import fcntl
import json
import os
import re
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from algorithms.fedprox import FedProx
from algorithms.shared import tree
from bench.config.schema import settings_of
from bench.errors import StoreError
from bench.execution.verification import draw, times_of_first
from bench.results import verified
from bench.results.store import Store
from bench.tuning.study import Study
from datasets import own_data, resized
from tests.support.processes import call_bench
from tests.support.searching import make, try_next
from tests.support.stored_experiments import tamper
from tests.support.trained import from_base, keep, keep_grid, rewrite, trained

PROX = {"algorithm": "fedprox", "mu": 0.1}


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture
def fedprox(monkeypatch):
    return trained(**PROX)


def verify(*words) -> tuple[int, str]:
    return call_bench("verify", *words, SKEWBENCH_DATA="")


def test_runs_that_are_as_stored_are_equal_and_a_seed_draws_the_same_ones(store):
    runs = {keep(store, trained(algorithm="fedavg", seed=seed)) for seed in (0, 1)} | {keep(store, trained(**PROX))}
    code, text = verify(store.folder, "--all")
    assert code == 0 and text.startswith(f"3 of 3 runs of {store.folder}\n") and text.endswith("\n3 equal.\n")
    assert all(f"{run}  digits label-2 fed" in text for run in runs) and text.count(": equal, all 4 rounds\n") == 3
    assert verify(store.folder.parent, "--sample", 1)[1].startswith("1 of 3 runs of ")  # a folder of directories
    assert draw([*runs], 2, 0) == draw([*reversed([*runs])], 2, 0) and len({*draw([*runs], 2, 0)}) == 2
    assert len({str(draw([*map(str, range(50))], 2, seed)) for seed in range(4)}) == 4


def tampered(key: str, value: float, number: int = 2):
    """The rounds of a run with another number in one of them."""
    return lambda rows: [{**row, **({key: value} if row["round"] == number else {})} for row in rows]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(rows=tampered("accuracy", 0.99)), "DIFFERS: its record has"),  # as best accuracy
        (dict(rows=tampered("loss", 0.125)), "DIFFERS in loss of round 2: 0.125 and "),
        (dict(rows=tampered("bytes_up", 7.0)), "DIFFERS in bytes_up of round 2: 7.0 and "),
        (dict(rows=lambda rows: rows[:3], summary={}), "DIFFERS in the last round: 3 and a later one"),
        (dict(status="diverged"), "DIFFERS in status: diverged and done"),
        (dict(partition_digest="0" * 16), "DIFFERS in the partition: its digest is 0000000000000000, that of"),
        (
            dict(partition_digest=None, skew={"hellinger": 0.1}),
            "DIFFERS in the partition: its hellinger is 0.1, that of",
        ),
        (dict(diagnostics={"clusters": [1]}), "DIFFERS in diagnostics"),
    ],
    ids=["accuracy", "loss", "bytes", "end", "status", "digest", "skew", "diagnostics"],
)
def test_a_tampered_run_is_found(store, fedprox, change, said):
    change = dict(change)
    rows = change.pop("rows", list)([*fedprox.run.rows])
    record = {**fedprox.record, **change}
    if "summary" in change:
        record["status"] = "diverged"  # a run that is done has accuracies
    found = replace(fedprox, record={key: value for key, value in record.items() if value is not None})
    keep(store, found, rows)
    code, text = verify(store.folder)
    assert code == 1 and said in text, text


def test_a_file_that_was_changed_without_its_seal_is_named(store, fedprox):
    run = keep(store, fedprox)
    path = store.run_folder(run) / "rounds.jsonl"
    path.write_text(path.read_text().replace('"round": 2', '"round": 2 ', 1))
    code, text = verify(store.folder)
    assert code == 1 and f"runs/{run}/record.json does not fit its digest" in text


def test_another_partition_than_the_config_names_is_found_even_where_its_digest_is_left_out(store, fedprox):
    dealt_otherwise = trained(**PROX, partition="label-3")
    record = {key: value for key, value in dealt_otherwise.record.items() if key not in ("partition_digest", "skew")}
    keep(store, replace(dealt_otherwise, record=record), config=fedprox.config.canonical())
    code, text = verify(store.folder)
    assert code == 1 and "DIFFERS in " in text and " of round 1" in text


def test_a_changed_method_is_found_and_named(store, fedprox, monkeypatch):
    keep(store, fedprox)
    keep(store, trained(algorithm="fedavg"), code={**fedprox.record["code"], "algorithm fedavg": "0" * 16})
    right = FedProx.local_loss
    monkeypatch.setattr(FedProx, "local_loss", lambda self, *given: 2 * right(self, *given))
    code, text = verify(store.folder)
    assert code == 1 and "fedprox mu=0.1 seed 0: DIFFERS in " in text and " of round 1: " in text
    assert "fedavg seed 0: equal, all 4 rounds; its code has changed since: algorithm fedavg" in text


ELBRUS = {"processor": "Elbrus"}


def lower(gap: float, number: int = 3):
    """Takes something from the accuracy of one round, the best of which stays."""

    def change(rows):
        rows[number - 1]["accuracy"] -= gap

    return change


@pytest.mark.parametrize(
    ("gap", "machine", "code", "said"),
    [
        (0.01, ELBRUS, 0, "all 4 rounds within 1 points, though not bit for bit (processor Elbrus there"),
        (0.01, {"processor": None}, 0, "(the record names no processor; first difference, stored and now"),
        (0.01, {"versions": {"torch": "1.0"}}, 0, "(torch 1.0 there, "),
        (0.01, {}, 1, "DIFFERS in accuracy of round 3"),  # of the same kind of machine
        (0.1, ELBRUS, 1, "DIFFERS in accuracy of round 3: "),
    ],
)
def test_another_kind_of_machine_may_differ_by_a_tolerance(store, fedprox, tmp_path, gap, machine, code, said):
    run, file = rewrite(store, fedprox, lower(gap), **machine), tmp_path / "verified.json"
    found, text = verify(store.folder, "--write", file, "--author", "Ann")
    assert found == code and said in text and run in text, text
    numbers = json.loads(file.read_text())[run]
    assert numbers["result"] == "different" or (numbers["tolerance"], round(numbers["gap"], 6)) == (0.02, gap)


@pytest.mark.parametrize(
    ("number", "machine", "said"),
    [
        (3, ELBRUS, "undecided: accuracy of round 3: "),
        (1, ELBRUS, "DIFFERS in accuracy of round 1"),  # where rounding has not grown yet
        (3, {}, "DIFFERS in accuracy of round 3"),
    ],
)
def test_where_rounding_moves_a_run_as_far_nothing_is_decided(store, tmp_path, monkeypatch, number, machine, said):
    """As in a run whose accuracy falls and rises: what another order of sums changes ends far away."""
    as_it_is, found = FedProx.server_step, trained(**PROX, lr=0.3)

    def step(self, task, *args):
        new, server = as_it_is(self, task, *args)
        return tree.scale(new, -1) if task.engine != found.record["engine"] else new, server

    monkeypatch.setattr(FedProx, "server_step", step)
    run, file = rewrite(store, found, lower(0.1, number), **machine), tmp_path / "verified.json"
    code, text = verify(store.folder, "--write", file, "--author", "Ann")
    assert said in text and code == (2 if "undecided" in said else 1), text
    assert (json.loads(file.read_text())[run]["result"] == verified.UNDECIDED) == ("undecided" in said)


def without_accuracy(*numbers: int):
    return lambda rows: [row.pop("accuracy") for row in rows if row["round"] in numbers] and None


def all_rounds(**given: float):
    return lambda rows: [row.update(given) for row in rows] and None


@pytest.mark.parametrize(
    ("change", "record", "said"),
    [
        (without_accuracy(3, 4), {}, "DIFFERS in accuracy of round 3: None and "),
        (without_accuracy(1, 2, 3), ELBRUS, "DIFFERS in accuracy of round 1: None and "),
        (lower(0.015, 1), ELBRUS, "DIFFERS in accuracy of round 1: "),  # where rounding has not grown
        (lower(-0.3, 4), ELBRUS, "DIFFERS in accuracy of round 4: "),
        (all_rounds(loss=0.001), ELBRUS, "DIFFERS in loss of round 1: 0.001 and "),
        (lambda rows: rows[:3], {}, "DIFFERS in the last round: it has 3 rounds, but its config 4"),
        (lambda rows: rows[:3], {"seconds": 1e6}, "DIFFERS in the last round: it has 3 rounds, but its config 4"),
        (lambda rows: rows[:3], {"status": "stopped"}, "only searches on validation data stop runs"),
        (
            lambda rows: rows[:3],
            {"status": "diverged", "reason": "inf"},
            "DIFFERS in the last round: 3 and a later one",
        ),
        (list, {"diagnostics": {"clusters": [1]}, **ELBRUS}, "DIFFERS in diagnostics"),
        (list, {"bytes_per_client": 1.0}, "DIFFERS: its record has 1.0 as bytes_per_client, but its rounds "),
    ],
    ids=["last", "best", "first", "up", "loss", "short", "long", "stopped", "diverged", "diagnostics", "bytes"],
)
def test_a_run_that_was_rewritten_with_all_that_follows_from_it_is_found(store, fedprox, change, record, said):
    rewrite(store, fedprox, change, **record)
    code, text = verify(store.folder)
    assert code == 1 and said in text, text


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            {"client_accuracies": lambda found: [1.0 - one for one in found], **ELBRUS},
            "as mean of client_accuracies, but",
        ),
        ({"client_accuracies": lambda found: found[::-1], **ELBRUS}, "DIFFERS in client_accuracies (stored and now"),
        ({"client_accuracies": lambda found: found[::-1]}, "DIFFERS in client_accuracies (stored and now)"),
        ({"loss": 1e-9, "client_accuracies": lambda found: found[::-1], **ELBRUS}, "client_accuracies, on average by "),
    ],
)
def test_accuracies_of_clients_are_compared_on_every_machine(store, record, said):
    found = trained(algorithm="local", partition="feature-shift", clients=4, lr=0.5)
    more, change = record.get("loss", 0.0), record["client_accuracies"]
    record = {**record, "client_accuracies": change(found.record["client_accuracies"]), "loss": None}
    rewrite(store, found, lambda rows: rows[-1].update(loss=rows[-1]["loss"] + more), **record)
    code, text = verify(store.folder)
    assert code == 1 and said in text, text


def test_an_accuracy_that_is_no_number_ends_nothing(store, fedprox):
    rewrite(store, fedprox, list)
    broken = trained(algorithm="fedavg")
    keep(store, broken, tampered("accuracy", float("nan"))(broken.run.rows))
    code, text = verify(store.folder)
    assert code == 1 and "DIFFERS: its accuracy of round 2 is nan, but must be a number" in text and "1 equal" in text


def test_what_a_record_leaves_out_is_said(store, fedprox):
    keep(store, fedprox, code=None, partition_digest=None)
    code, text = verify(store.folder)
    assert code == 0 and "equal, all 4 rounds; its record does not say: code, partition_digest\n" in text


def test_runs_are_drawn_by_a_new_seed_that_is_printed_and_written(store, tmp_path):
    file = tmp_path / "verified.json"
    for seed in range(2):
        keep(store, trained(algorithm="fedavg", seed=seed))
    texts = [verify(store.folder, "--sample", 1, "--write", file, "--author", "Ann")[1] for _ in range(2)]
    seeds = [int(re.search(r"drawn by --seed (\d+)\n", text)[1]) for text in texts]
    assert seeds[0] != seeds[1] and {one["seed"] for one in json.loads(file.read_text()).values()} <= {*seeds}
    assert re.search(
        r"1 of 2 runs of .* \(a single changed one is among them with probability 50 %\), drawn by --seed 7\n",
        verify(store.folder, "--sample", 1, "--seed", 7)[1],
    )
    assert "drawn by --seed 7\n" in verify(store.folder, "--sample", 1, "--seed", 7)[1]


def test_a_grid_whose_cells_are_runs_of_other_settings_differs_though_each_run_is_equal(store, fedprox):
    keep(store, fedprox)
    label = keep_grid(store, fedprox)
    code, text = verify(store.folder)
    assert code == 0 and f"{label}: its stored cell follows\n" in text
    other = trained(**PROX, lr=0.1)
    run = keep(store, other)
    tamper(store, label, lambda grid: grid["cells"][0].update(run=run, config=other.config.canonical()))
    code, text = verify(store.folder)
    assert (
        code == 1
        and f"{label}: DIFFERS in digits label-2 fedprox seed 0: lr is 0.1, but " in text
        and "2 equal" in text
    )


def test_what_cannot_be_compared_is_named_and_is_no_success(store, fedprox):
    config = fedprox.config.canonical()
    keep(store, fedprox, config=config | {"versions": config["versions"] | {"algorithm": 0}})
    keep(store, fedprox, config=config | {"algorithm": {"name": "fedmine"}})
    keep(store, fedprox, config=config | {"dataset": "imagefolder:/etc"})
    keep(store, fedprox, config=config | {"dataset": "imagefolder:leaves@0123456789abcdef"})
    keep(store, fedprox, data={"kind": "digits", "digest": "0badcafe"})
    code, text = verify(store.folder)
    assert code == 2 and text.endswith("; no run of fedmine, fedprox was confirmed.\n")
    keep(store, trained(algorithm="fedavg"))  # which is equal, and no excuse for the others
    code, text = verify(store.folder)
    assert code == 2 and "1 equal" in text and text.endswith("; no run of fedmine, fedprox was confirmed.\n")
    assert "Known:" not in text and "No folder of your own is in use: --plugins DIR" in text  # not all methods
    for said in (
        "cannot be compared: version 0 of the algorithm, now 1",
        "cannot be trained here: Unknown algorithm 'fedmine'.",
        "its dataset is a path, 'imagefolder:/etc', which may lead to any file of this machine.",
        "cannot be trained here: The place of the files of imagefolder:leaves@0123456789abcdef is not known",
        "its images of digits have the digest 0badcafe, those here ",
        "1 of an earlier version",
    ):
        assert said in text, (said, text)


def test_images_of_the_author_are_found_where_they_are_here(store, tmp_path, monkeypatch):
    images, labels = np.arange(48 * 64, dtype=np.uint8).reshape(48, 8, 8), np.arange(48) % 3
    np.savez(tmp_path / "own.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    keep(store, trained(algorithm="fedavg", dataset=f"npz:{tmp_path}/own.npz", model="mlp"))
    shutil.move(tmp_path / "own.npz", tmp_path / "theirs.npz")
    monkeypatch.setattr(own_data, "_PATHS", {})
    monkeypatch.setattr(own_data, "_KNOWN", {})
    resized._load.cache_clear()
    code, text = verify(store.folder)
    assert code == 2 and "name the dataset by its path, as --dataset npz:PATH" in text
    code, text = verify(store.folder, "--dataset", f"npz:{tmp_path}/theirs.npz")
    assert code == 0 and "equal, all 4 rounds" in text
    for wrong, said in (("digits", "--dataset is npz:PATH or imagefolder:PATH here"), ("npz:no.npz", "no file")):
        code, text = verify(store.folder, "--dataset", wrong)
        assert code == 2 and said in text


def test_of_a_run_that_takes_long_here_the_first_rounds_are_trained_and_said(store, fedprox, tmp_path):
    file = tmp_path / "verified.json"
    run = rewrite(store, fedprox, lambda rows: rows[-1].update(seconds=1e6))
    assert "equal, all 4 rounds" in verify(store.folder)[1]  # whatever its record says
    code, text = verify(store.folder, "--minutes", 0, "--write", file, "--author", "Ann")
    assert code == 0 and "equal, the first 3 of 4 rounds" in text and text.endswith("\n1 first rounds equal.\n")
    written = json.loads(file.read_text())[run]
    assert (written["result"], written["rounds"], written["of"]) == ("first rounds equal", 3, 4)
    assert "equal, the first 1 of 4 rounds" in verify(store.folder, "--minutes", 0, "--rounds", 1)[1]
    assert "equal, all 4 rounds" in verify(store.folder, "--whole")[1]
    rewrite(store, fedprox, lower(0.01, 1), **ELBRUS | {"versions": {"torch": "1.0"}})
    assert verify(store.folder, "--minutes", 0)[0] == 1


def test_later_rounds_may_take_less_than_the_first_ones_and_no_record_makes_them_take_more():
    """Those of FedConcat train a classifier alone."""
    rows = [{"round": number, "seconds": 30.0 * min(number, 7) + max(0, number - 7)} for number in range(1, 73)]
    assert times_of_first(3, 72, rows) == pytest.approx((210 + 65) / 90)
    for lie in (
        [{**rows[0], "seconds": 1e9}] * 72,
        [],
        [{"round": 1}] * 72,
        [{**row, "seconds": -1.0} for row in rows],
    ):
        assert 1 <= times_of_first(3, 72, lie) <= 24
    assert times_of_first(3, 72, [*rows[:-1], {**rows[-1], "seconds": 1e9}]) == 24


def test_rounds_without_an_accuracy_are_no_success(store):
    keep(store, trained(algorithm="local"))
    code, text = verify(store.folder, "--minutes", 0)
    assert (
        code == 2 and "bytes and examples of the first 3 of 4 rounds equal, but none of these has an accuracy" in text
    )
    keep(store, trained(algorithm="fedavg"))
    code, text = verify(store.folder, "--minutes", 0)
    assert code == 2 and text.endswith("1 no accuracy compared, 1 first rounds equal; no run of local was confirmed.\n")


def test_rows_of_before_examples_in_order_to_deploy_counted_are_equal(store):
    def without(rows):
        for row in rows:
            row.pop("deploy_examples", None)

    found = trained(algorithm="per-fedavg", partition="iid")
    assert found.run.rows[-1]["deploy_examples"] > 0
    rewrite(store, found, without)
    assert verify(store.folder)[1].endswith("\n1 equal.\n")


@pytest.mark.slow
def test_a_run_that_a_search_stopped_and_one_that_starts_from_another_are_trained_again(store):
    search = make(
        "fedavg", {"clients": 5, "rounds": 9}, searcher="random", scheduler="asha", samples=1, space="training"
    )
    with store.locked():
        params = try_next(Study(search, store), store)
    config = next(iter(search.runs(params).values()))
    stopped = trained(**settings_of(config))
    rewrite(store, stopped, lambda rows: rows[:3], status="stopped")
    after, summary = from_base(algorithm="ccvr", base="fedavg")
    keep(store, after, base_summary=summary, base_seconds=1e6)
    code, text = verify(store.folder)
    assert code == 0 and re.search(r"ccvr .*base=fedavg.* seed 0: equal, all 1 rounds", text), text
    assert re.search(r"fedavg seed 0 on validation data: equal, the first 3 of 9 rounds", text), text
    code, text = verify(store.folder, "--minutes", 0)
    assert code == 2 and "not compared: it starts from the end of " in text and "no run of ccvr was" in text


def test_runs_that_start_from_one_base_are_each_compared_on_the_engine_of_their_record(store):
    for count, engine in ((100, "loop"), (200, "vectorised")):
        after, summary = from_base(engine, algorithm="ccvr", base="fedavg", virtual_per_class=count, lr=0.1)
        keep(store, after, base_summary=summary)
    code, text = verify(store.folder, "--all")
    assert code == 0 and text.endswith("\n2 equal.\n"), text


@pytest.mark.parametrize(
    ("rounds", "code", "said"),
    [
        (
            3,
            2,
            "undecided: equal, the first 3 of 4 rounds, but no stored search that could have stopped it has proposed it",
        ),
        (4, 1, "DIFFERS in the end: its status is stopped, but it has all 4 rounds"),
    ],
)
def test_a_run_that_no_search_has_stopped_is_not_confirmed(store, rounds, code, said):
    stopped = trained(algorithm="fedavg", split="validation")
    rewrite(store, stopped, lambda rows: rows[:rounds], status="stopped")
    found, text = verify(store.folder)
    assert found == code and said in text, text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 1, "DIFFERS: its record says that it failed: out of memory, but it trains here to its end"),
        (
            ["--minutes", 0, "--rounds", 1],
            2,
            "not compared: its record says that it failed: out of memory, and it takes over 0 minutes here; --whole trains it",
        ),
    ],
)
def test_a_run_that_has_failed_by_its_record_is_trained_again(store, fedprox, words, code, said):
    keep(store, fedprox, status="failed", reason="out of memory")
    found, text = verify(store.folder, *words)
    assert found == code and said in text, text


def test_a_run_that_fails_here_too_is_confirmed(store, fedprox, monkeypatch):
    keep(store, fedprox, rows=[], summary={}, status="failed", reason="it broke", engine="none")
    monkeypatch.setattr(FedProx, "server_step", lambda *_: 1 / 0)
    code, text = verify(store.folder)
    assert code == 0 and text.endswith("\n1 failed again.\n")
    assert "fails here, too: ZeroDivisionError: division by zero (its record says that it failed: it broke)" in text


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        ({}, 1, "DIFFERS: its data_note is 'half of them', that of the images here ''"),
        ({"data": None}, 2, "cannot be compared: its record does not say the digest of its images, and other things"),
    ],
)
def test_what_a_record_says_of_its_images_is_compared(store, fedprox, data, code, said):
    keep(store, fedprox, data_note="half of them", **data)
    found, text = verify(store.folder)
    assert found == code and said in text, text


def test_of_a_pool_each_copy_with_other_files_is_compared_and_trained_once(tmp_path, fedprox, monkeypatch):
    stores = [Store(tmp_path / "pool" / name) for name in ("ann", "bob", "eve", "zoe")]
    run = [keep(store, fedprox, seconds=seconds) for store, seconds in zip(stores, (1.0, 1.0, 2.0, 3.0), strict=True)][
        0
    ]
    keep(stores[3], fedprox, tampered("loss", 0.125)(fedprox.run.rows))
    steps, as_it_is, file = [], FedProx.server_step, tmp_path / "verified.json"
    monkeypatch.setattr(FedProx, "server_step", lambda *given: steps.append(1) or as_it_is(*given))
    code, text = verify(tmp_path / "pool", "--write", file, "--author", "Ann")
    assert code == 1 and text.startswith("1 of 1 runs of ") and len(steps) == 4
    assert re.findall(r" in (\w+): (\w+)", text) == [("ann", "equal"), ("eve", "equal"), ("zoe", "DIFFERS")]
    assert verified.current(stores[3], verified.read(file))[run]["result"] == verified.DIFFERS


def test_a_damaged_file_that_is_read_late_is_named_and_no_success(store, fedprox):
    keep(store, fedprox)
    (store.folder / "partitions").mkdir(exist_ok=True)
    (store.folder / "partitions" / "mine@0123456789abcdef.npz").write_bytes(b"no partition")
    code, text = verify(store.folder)
    assert code == 1 and "partitions/mine@0123456789abcdef.npz is no .npz file" in text
    assert text.endswith("\n1 equal, 1 damaged.\n")


def test_a_grid_that_cannot_be_expanded_here_is_no_success(store, fedprox):
    keep(store, fedprox)
    label = keep_grid(store, fedprox)
    tamper(store, label, lambda grid: grid.update(digest="0" * 16))
    code, text = verify(store.folder)
    assert code == 2 and "cannot be expanded here: the file of its grid has changed since" in text
    assert text.endswith("\n1 equal, 1 grid not confirmed.\n")


def test_what_came_out_is_written_with_who_and_holds_for_these_files_only(store, fedprox, tmp_path):
    run, file = keep(store, fedprox), tmp_path / "verified.json"
    assert verify(store.folder, "--write", file, "--author", "Jane Doe")[0] == 0
    written = json.loads(file.read_text())[run]
    assert (written["result"], written["by"], written["rounds"], written["of"]) == ("equal", "Jane Doe", 4, 4)
    assert {*verified.current(store, verified.read(file))} == {run}
    keep(store, fedprox, tampered("loss", 0.125)(fedprox.run.rows))
    assert verified.current(store, verified.read(file)) == {}
    file.write_text('{"x": 1}')
    code, text = verify(store.folder, "--write", file, "--author", "Jane Doe")
    assert code == 2 and "does not say which runs are verified" in text and run not in text, (
        "before anything is trained"
    )


def test_two_who_verify_at_the_same_time_write_to_one_file(tmp_path):
    file, about = tmp_path / "verified.json", {"result": "equal", "rounds": 1, "of": 1, "by": "Ann", "when": "now"}

    def write(first: int) -> None:
        for number in range(first, first + 20):
            verified.write(file, {f"{number:016x}": {**about, "code": "x", "files": "x"}})

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, (0, 20)))
    assert len(verified.read(file)) == 40


def test_what_was_verified_is_not_written_while_another_program_has_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(verified, "_PATIENCE", 0.1)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(StoreError, match=r"Another program has kept .* locked for 0.1 s, .* end that program"):
        verified.write(tmp_path / "verified.json", {})
    os.close(other)
    verified.write(tmp_path / "verified.json", {})
    assert verified.read(tmp_path / "verified.json") == {}


def test_a_bundle_is_made_moved_verified_in_an_empty_directory_and_imported(store, fedprox, tmp_path, monkeypatch):
    run, bundle, moved = keep(store, fedprox), tmp_path / "mine.zip", tmp_path / "empty" / "theirs.zip"
    label = keep_grid(store, fedprox)
    (store.run_folder(run) / "final.pt").write_bytes(b"a state, which stays at home")
    words = ["export", "--bundle", bundle, "--author", "Jane Doe", "--results-dir", store.folder]
    assert call_bench(*words)[0] == 0
    first = bundle.read_bytes()
    assert call_bench(*words)[0] == 0 and bundle.read_bytes() == first
    assert b"a state" not in first and len(first) < 20_000
    moved.parent.mkdir()
    moved.write_bytes(first)
    monkeypatch.chdir(moved.parent)
    line = f"{run}  digits label-2 fedprox mu=0.1 seed 0: equal, all 4 rounds"
    lines = [f"{label}: its stored cell follows", "1 of 1 runs of theirs.zip", line, "1 equal.", ""]
    assert verify("theirs.zip", "--all") == (0, "\n".join(lines))
    for named in ([run], [f"{run} {run}"], [f"{run},", run]):
        words = [word for text in named for word in ("--run", text)]
        assert verify("theirs.zip", *words)[1].splitlines()[1:3] == lines[1:3]
    code, text = verify("theirs.zip", "--run", " ")
    assert code == 2 and "--run names runs by their ids, but got none" in text
    code, text = verify("theirs.zip", "--run", f"0123456789abcdef, {run}")
    assert code == 2 and "theirs.zip has no run 0123456789abcdef that has ended" in text
    with zipfile.ZipFile(moved) as packed:
        content = {name: packed.read(name) for name in packed.namelist()}
    with zipfile.ZipFile("forged.zip", "w") as packed:
        for name, data in content.items():
            packed.writestr(
                name, data.replace(b'"accuracy": 0.', b'"accuracy": 0.9') if name.endswith("rounds.jsonl") else data
            )
    code, text = verify("forged.zip", "--all")
    assert code == 1 and "is not what its manifest says" in text
    os.remove("forged.zip")
    assert os.listdir() == ["theirs.zip"]
    code, text = call_bench("import", "theirs.zip", "--results-dir", "here")
    assert code == 0 and "1 run taken" in text
    here = Store("here")
    assert here.rows(run) == store.rows(run) and here.grids() == store.grids()
    assert json.loads(Path("here/authors.json").read_text()) == {"runs": {run: "Jane Doe"}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none"], "There is no results directory"),
        (["{store}", "--all", "--sample", "3"], "--all takes all runs; leave out --sample and --seed."),
        (["{store}", "--all", "--seed", "3"], "--all takes all runs; leave out --sample and --seed."),
        (
            ["{store}", "--whole", "--minutes", "3"],
            "--whole trains every run to its end; leave out --minutes and --rounds.",
        ),
        (["{store}", "--rounds", "0"], "--rounds must be at least 1, but got 0."),
        (["{store}", "--write", "v.json"], "--write and --author go together"),
        (["{store}", "--grid", "other"], "No run of other has ended in "),
        (["{store}", "--tolerance", "-1"], "--tolerance is in points, between 0 and 100, but got -1."),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(store, fedprox, words, said):
    keep(store, fedprox)
    code, text = verify(*(word.format(store=store.folder) for word in words))
    assert code == 2 and said in text and "Traceback" not in text
