"""One run, from config to rows and kept states."""

import json
import mmap
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithms.shared import row_files, tree
from algorithms.shared.base import Deployed
from bench.config.resolve import resolve
from bench.config.schema import run_id
from bench.errors import ConfigError
from bench.experiments.cost import bytes_per_client, examples_to_train
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.results.artifacts import Folder
from bench.results.json_schema import mismatch, shape_of
from bench.results.metrics import summarise
from bench.simulation.build import build_algorithm, choose_engine
from bench.simulation.checkpoints import on_device
from bench.simulation.data import stratified_subset
from bench.simulation.evaluation import Evaluation, evaluate_clients
from bench.simulation.local_models import local_models
from bench.simulation.retention import StateRetention
from bench.simulation.run import Run
from datasets.partitions import parse
from datasets.show import skew_of, tables
from tests.support.toy import assert_equal
from tests.support.trained import to_end, without_times

DIGITS = {"dataset": "digits", "partition": "label-2", "clients": 10, "rounds": 3, "local_epochs": 1, "batch_size": 16}


def train(digits, folder=None, retention=None, engine="auto", **settings):
    folder = folder and Folder(folder)
    config = resolve({"algorithm": "fedavg", **DIGITS, **settings})
    return to_end(Run(config, digits, folder=folder, retention=retention, engine=engine))


def test_a_personal_run_needs_a_test_example_for_each_client_before_it_trains(digits):
    kept = digits.test.labels != 3
    few = replace(digits.test, images=digits.test.images[kept], labels=digits.test.labels[kept])
    alone = {"partition": "label-1", "rounds": 1}
    with pytest.raises(ValueError, match="Client 3 has only labels of which there is no test example"):
        train(replace(digits, test=few), algorithm="fedper", **alone)
    assert train(replace(digits, test=few), **alone).result()["status"] == "done"


def test_a_record_says_what_a_partition_file_leaves_out(digits, tmp_path):
    dealt = tmp_path / "parts.json"
    dealt.write_text(json.dumps({"train": [[*range(client, 1400, 10)] for client in range(10)]}))
    of_file = {"partition": f"file:{dealt}", "rounds": 1}
    settings = {key: value for key, value in DIGITS.items() if key != "clients"} | of_file
    run = to_end(Run(resolve({"algorithm": "fedavg", **settings}), digits))
    assert run.result()["unused"] == "The partition parts leaves 37 of 1,437 training examples out."
    assert "unused" not in train(digits, rounds=1).result()


@pytest.mark.parametrize(
    ("algorithm", "deploying"),
    [
        ({"name": "finetune", "finetune_length": 2, "finetune_unit": "epochs"}, 2 * 100),
        ({"name": "per-fedavg"}, 10 * 8),
        ({"name": "feddbe", "scored": "after"}, 100),
        ({"name": "fedrep", "fit_private": "all"}, 2 * 100),
        ({"name": "ccvr", "virtual_per_class": 3}, 30 * 1000),
        ({"name": "fedavg"}, 0),
    ],
    ids=lambda given: given["name"] if isinstance(given, dict) else "",
)
def test_gradients_in_order_to_deploy_are_in_the_row_once_and_known_before(digits, algorithm, deploying):
    """10 clients of 10 examples, of which 5 take part in a round, and all deploy."""
    settings = {"partition": "iid", "train_examples": 100, "participation": 0.5, "batch_size": 8, "evaluate_every": 1}
    run = train(digits, algorithm=algorithm, **settings)
    assert [row.get("deploy_examples", 0) for row in run.rows] == [deploying] * 3
    costs = [row["examples"] for row in run.rows]
    assert costs == [costs[0], costs[1], run.state["costs"]["examples"]] and costs[0] < costs[1] < costs[2]
    config = resolve({**DIGITS, "algorithm": algorithm, **settings})
    assert examples_to_train(config) == run.rows[-1]["examples"] + deploying


def test_few_clients_are_absent_from_all_of_many_rounds(digits):
    """Before a run, heads that are fitted count as often as clients can be expected to be absent from all rounds."""
    settings = {**DIGITS, "partition": "iid", "train_examples": 1000, "participation": 0.5}
    few, many = (
        examples_to_train(
            resolve({**settings, "rounds": rounds, "algorithm": {"name": "fedper", "fit_private": "absent"}})
        )
        for rounds in (2, 20)
    )
    assert few == 2 * 500 + 10 * 25 and many == 20 * 500
    one = {"participation": 0.05, "rounds": 20, "algorithm": {"name": "fedper", "fit_private": "absent"}}
    assert examples_to_train(resolve(settings | one)) == 20 * 100 + 10 * round(0.9**20 * 100), "one client per round"


@pytest.mark.parametrize("algorithm", ["fedavg", "finetune"])
@pytest.mark.parametrize("more", [{"first_clients": 5}, {"split": "validation"}])
def test_the_work_before_a_run_is_that_of_the_clients_and_examples_that_train(digits, algorithm, more):
    settings = {"partition": "iid", "train_examples": 1000, "algorithm": algorithm, "rounds": 1, **more}
    row = train(digits, **settings).rows[-1]
    # Of which classes the examples of a client are decides how many it sets aside.
    near = pytest.approx(row["examples"] + row.get("deploy_examples", 0), rel=0.03 if "split" in more else 0)
    assert examples_to_train(resolve({**DIGITS, **settings})) == near


def test_a_row_per_round_with_accuracy_traffic_and_work(digits):
    run = train(digits)
    assert [row["round"] for row in run.rows] == [1, 2, 3]
    num_bytes = 4 * sum(leaf.numel() for leaf in run.task.initial_params().values())
    assert (
        [row["bytes_down"] for row in run.rows]
        == [row["bytes_up"] for row in run.rows]
        == [num_bytes * i for i in (1, 2, 3)]
    )
    assert [row["examples"] for row in run.rows] == [1437, 2874, 4311]
    assert all(0 <= row["accuracy"] <= 1 and row["loss"] > 0 and row["examples_per_second"] > 0 for row in run.rows)
    assert run.rows[0]["seconds"] < run.rows[2]["seconds"]


@pytest.mark.parametrize("partition", ["label-2", "region-2-0.5"])
def test_the_record_says_how_skewed_the_training_examples_are(digits, partition):
    run = train(digits, partition=partition, rounds=1)
    counts = tables(parse(partition), digits, 10, 0)["training"]
    found = run.result()["skew"]
    assert found == skew_of(counts)._asdict() and {type(number) for number in found.values()} == {float}
    assert 0 < found["hellinger"] < 1 and mismatch({"skew": found}, {"skew": shape_of(dict[str, float])}) == ""


def test_it_learns(digits):
    assert train(digits, rounds=8, local_epochs=5, lr=0.05, partition="iid").rows[-1]["accuracy"] > 0.8


def test_the_same_config_gives_the_same_rows_whatever_the_engine(digits):
    looped, again, vectorised = (train(digits, engine=engine).rows for engine in ("loop", "loop", "vectorised"))
    assert without_times(looped) == without_times(again)
    for row, other in zip(looped, vectorised, strict=True):
        assert row["accuracy"] == pytest.approx(other["accuracy"], abs=1 / 360)  # one test image may tip
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "apfl"])
def test_each_round_has_a_rate_that_falls_by_a_factor(digits, algorithm, engine):
    def at(lr, **settings):
        return Run(resolve({**DIGITS, "algorithm": algorithm, "lr": lr, **settings}), digits, engine=engine)

    falling, state = to_end(at(0.08, lr_decay=0.5)), None
    for lr in (0.08, 0.04, 0.02):
        one = at(lr)
        one.state = state or one.state
        one.step()
        state = one.state
    assert_equal(state, falling.state)
    assert falling.task.settings.lr == 0.08


def test_clients_fine_tune_at_the_rate_of_the_last_round_in_a_run_and_from_that_of_its_base(digits):
    tuned = {"algorithm": "finetune", "lr": 0.08, "lr_decay": 0.5}
    base, trained = train(digits, lr=0.08, lr_decay=0.5), train(digits, **tuned)
    from_base, at_last_rate = (
        Run(resolve({**DIGITS, **tuned, **own}), digits) for own in ({}, {"lr": 0.02, "lr_decay": 1})
    )
    for taken in (from_base, at_last_rate):
        taken.start_from_base(base.state)
        assert without_times(taken.rows) == without_times(trained.rows[-1:])


def test_a_rate_that_falls_is_part_of_the_run_and_one_that_does_not_is_left_out():
    fixed, falling = (resolve({"algorithm": "fedavg", **DIGITS, "lr_decay": factor}) for factor in (1, 0.5))
    assert "lr_decay" not in fixed.canonical() and falling.canonical()["lr_decay"] == 0.5
    assert run_id(fixed) == run_id(resolve({"algorithm": "fedavg", **DIGITS})) != run_id(falling)


def test_traffic_is_per_client_of_the_population(digits):
    full, half = train(digits, rounds=1), train(digits, rounds=1, participation=0.5)
    assert half.rows[0]["bytes_up"] == full.rows[0]["bytes_up"] / 2


CALIBRATED = {"algorithm": "ccvr", "virtual_per_class": 20}


def test_a_method_that_only_changes_what_is_deployed_needs_no_training_but_its_bases_last_state(digits):
    trained, base = train(digits, **CALIBRATED), train(digits)
    assert [row["round"] for row in trained.rows if "accuracy" in row] == [3], "calibrated once, at the end"
    taken = Run(resolve({**DIGITS, **CALIBRATED}), digits)
    taken.start_from_base(base.state)
    assert taken.finished
    (row,) = taken.rows
    expected = {key: value for key, value in trained.rows[-1].items() if "second" not in key}
    assert {key: value for key, value in row.items() if "second" not in key} == expected
    assert taken.result()["summary"] == trained.result()["summary"]
    assert row["bytes_up"] > base.rows[-1]["bytes_up"], "the statistics are sent, too"


def test_what_each_client_deploys_after_fine_tuning_is_the_same_from_the_finished_run_of_the_base(digits):
    base, trained = train(digits, algorithm="fedprox"), train(digits, algorithm="finetune", base="fedprox")
    taken = Run(resolve({**DIGITS, "algorithm": "finetune", "base": "fedprox"}), digits)
    taken.start_from_base(base.state)
    assert without_times(taken.rows) == without_times(trained.rows[-1:])
    assert taken.result()["summary"]["last"].keys() == {"global_accuracy", "local_accuracy"}


def test_it_is_calibrated_in_every_round_that_is_evaluated_if_that_is_asked_for(digits):
    run = train(digits, **CALIBRATED, evaluate_every=1)
    assert ["accuracy" in row for row in run.rows] == [True] * 3
    assert torch.equal(run.state["params"]["classifier.weight"], train(digits).state["params"]["classifier.weight"])


def test_it_starts_from_what_was_written_and_keeps_what_it_deploys(digits, tmp_path):
    base = train(digits, tmp_path / "base", StateRetention())
    state = Folder(tmp_path / "base").load("final.pt", torch.device("cpu"))
    taken = Run(resolve({**DIGITS, **CALIBRATED}), digits, folder=Folder(tmp_path / "own"), retention=StateRetention())
    taken.start_from_base(state)
    kept = torch.load(tmp_path / "own" / "final.pt", weights_only=True)
    assert kept["round"] == 3 and kept["params"].keys() == base.state["params"].keys()
    assert torch.equal(kept["params"]["linear1.weight"], base.state["params"]["linear1.weight"])
    assert not torch.equal(kept["params"]["classifier.weight"], base.state["params"]["classifier.weight"])


def test_a_state_comes_to_the_device_but_for_the_rows_of_clients(digits):
    moved = on_device(train(digits, algorithm="scaffold").state, torch.device("meta"))
    assert {leaf.device.type for leaf in moved["params"].values()} == {"meta"}
    assert {leaf.device.type for row in moved["clients"]["rows"].values() for leaf in tree.leaves(row)} == {"cpu"}


def test_a_base_that_stopped_early_has_diverged(digits):
    base = Run(resolve({"algorithm": "fedavg", **DIGITS}), digits)
    base.step()
    taken = Run(resolve({**DIGITS, **CALIBRATED}), digits)
    taken.start_from_base(base.state)
    assert taken.finished and taken.result()["reason"] == "the run of its base had diverged after round 1"


def test_the_state_of_a_base_that_diverged_has_diverged(digits):
    state = train(digits).state
    state = {**state, "params": {name: leaf / 0 for name, leaf in state["params"].items()}}
    taken = Run(resolve({**DIGITS, **CALIBRATED}), digits)
    taken.start_from_base(state)
    assert taken.result()["status"] == "diverged"


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    "method, down, up",
    [("fedavg", 1, 1), ("fedprox", 1, 1), ("moon", 1, 1), ("fedrs", 1, 1), ("fedlc", 1, 1), ("fedavgm", 1, 1)]
    + [("scaffold", 2, 2), ("local", 0, 0)]
    + [("ditto", 1, 1), ("per-fedavg", 1, 1), ("pfedme", 1, 1), ("finetune", 1, 1)],
)
def test_traffic_of_each_method_in_models(digits, method, down, up):
    run = train(digits, algorithm=method, rounds=1)
    num_bytes = 4 * sum(leaf.numel() for leaf in run.task.initial_params().values())
    assert (run.rows[0]["bytes_down"], run.rows[0]["bytes_up"]) == (down * num_bytes, up * num_bytes)


def test_traffic_of_fednova_is_a_model_and_one_number(digits):
    run = train(digits, algorithm="fednova", rounds=1)
    assert run.rows[0]["bytes_up"] - run.rows[0]["bytes_down"] == 4


def test_centralized_sends_nothing_and_has_one_client(digits):
    run = train(digits, algorithm="centralized", partition="none", clients=1)
    assert run.rows[-1]["bytes_down"] == run.rows[-1]["bytes_up"] == 0
    assert run.rows[-1]["examples"] == 3 * 1437


def test_shared_models_are_evaluated_every_round_and_personal_ones_at_the_end(digits):
    assert all("accuracy" in row for row in train(digits).rows)
    assert ["local_accuracy" in row for row in train(digits, algorithm="local").rows] == [False, False, True]
    assert ["accuracy" in row for row in train(digits, evaluate_every=2).rows] == [False, True, True]


def test_divergence_ends_a_run_and_is_named(digits):
    run = train(digits, lr=1e30, rounds=5)
    result = run.result()
    assert result["status"] == "diverged" and "not all params were finite after round" in result["reason"]
    assert run.round < 5 and run.finished


def test_a_test_loss_that_overflows_is_divergence_too(digits, monkeypatch):
    scores = Evaluation({"accuracy": 0.1, "loss": float("inf")})
    monkeypatch.setattr("bench.simulation.run.measure", lambda task, deployed: scores)
    run = train(digits)
    assert run.result()["reason"] == "the test loss was not finite after round 1"
    assert "loss" not in run.rows[0] and run.deployed is None


def test_peak_memory_is_that_of_the_run_not_of_the_process(digits):
    def touch_200_mb():
        with mmap.mmap(-1, 200_000_000) as ballast:  # new to the process, whatever it has freed before
            for start in range(0, len(ballast), mmap.PAGESIZE):
                ballast[start] = 1

    touch_200_mb()
    before = train(digits).result()["peak_memory_mb"]
    run = train(digits)
    touch_200_mb()
    assert run.result()["peak_memory_mb"] > before + 150


def test_result_describes_the_run(digits):
    result = train(digits, engine="loop").result()
    assert (result["status"], result["reason"], result["rounds"], result["engine"], result["device"]) == (
        "done",
        "",
        3,
        "loop",
        "cpu",
    )
    assert result["peak_memory_mb"] > 50 and result["seconds"] > 0
    assert result["data"]["kind"] == "images that come with scikit-learn" and len(result["data"]["digest"]) == 8
    assert result["versions"].keys() == {"python", "torch", "numpy", "skewbench"}
    assert set(result["summary"]) == {"last", "best", "last10", "last10_std"}
    assert result["processor"].endswith(torch.backends.cpu.get_cpu_capability())


def test_the_digest_of_a_partition_is_of_who_has_which_examples_with_which_labels(digits):
    whole = train(digits).task.federation
    moved = replace(whole, clients=(whole.clients[1], whole.clients[0], *whole.clients[2:]))
    tested = replace(whole, test_clients=(torch.arange(3),) * 10)
    renamed = replace(whole, labels=whole.labels.flip(0))
    assert len({one.digest for one in (whole, moved, tested, renamed)}) == 4
    assert whole.digest == train(digits).task.federation.digest


def test_summary_by_hand():
    rows = [{"accuracy": value, "loss": 1.0} for value in (0.9, *[0.1] * 5, *[0.3] * 5)] + [{"round": 12}]
    summary = summarise(rows)
    assert summary["last"] == {"accuracy": 0.3} and summary["best"] == {"accuracy": 0.9}
    assert summary["last10"]["accuracy"] == pytest.approx(0.2)
    assert summary["last10_std"]["accuracy"] == pytest.approx(0.1)
    once = summarise([{"round": 1}, {"round": 2, "accuracy": 0.5}])
    assert once["last10"] == {"accuracy": 0.5} and once["last10_std"] == {}, "one number has no std"
    assert summarise([{"round": 1}]) == {"last": {}, "best": {}, "last10": {}, "last10_std": {}}


def test_kept_states_are_readable_and_change_no_number(digits, tmp_path):
    retention = StateRetention(final="deployed", rounds=(2,), local_models=(1, 3))
    run = train(digits, tmp_path, retention)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(retention.files())
    assert without_times(run.rows) == without_times(train(digits).rows)
    final = torch.load(tmp_path / "final.pt", weights_only=True)
    assert final["round"] == 3 and torch.equal(
        final["params"]["classifier.bias"], run.state["params"]["classifier.bias"]
    )
    assert torch.load(tmp_path / "round-0002.pt", weights_only=True)["round"] == 2


@pytest.mark.parametrize("lr_decay", [1, 0.5])
def test_kept_local_models_are_those_that_were_aggregated(digits, tmp_path, lr_decay):
    run = train(digits, tmp_path, StateRetention(final="deployed", local_models=(3,)), lr_decay=lr_decay)
    locals_ = torch.load(tmp_path / "local-models-0003.pt", weights_only=True)
    sizes = torch.tensor([len(run.task.federation.clients[client]) for client in locals_["ids"]])
    mean = tree.weighted_mean(locals_["params"], sizes)
    for name, leaf in run.state["params"].items():
        torch.testing.assert_close(mean[name], leaf, rtol=1e-5, atol=1e-6)


def summed_up(digits, folder=None, retention=None, **settings):
    """A run of which no round may stack its clients' results."""
    flat = {"algorithm": "moon", **DIGITS, **settings}
    run = Run(resolve(flat), digits, engine="loop", folder=folder and Folder(folder), retention=retention)
    run.task = replace(run.task, largest_stack=0)
    return run


def test_a_run_of_streamed_rounds_goes_on_from_its_checkpoint_bit_for_bit(digits):
    uninterrupted, interrupted, resumed = (summed_up(digits) for _ in range(3))
    to_end(uninterrupted)
    interrupted.step()
    resumed.restore(interrupted.checkpoint())
    to_end(resumed)
    assert without_times(resumed.rows) == without_times(uninterrupted.rows)
    assert_equal(resumed.state, uninterrupted.state)


def test_a_run_of_streamed_rounds_has_the_rows_of_any_other_and_keeps_local_models(digits, tmp_path):
    run = summed_up(digits, tmp_path, StateRetention(final="deployed", local_models=(3,)))
    to_end(run)
    for row, stacked in zip(run.rows, train(digits, algorithm="moon", engine="loop").rows, strict=True):
        assert row["accuracy"] == pytest.approx(stacked["accuracy"], abs=1 / 360)  # one test image may tip
        assert row["loss"] == pytest.approx(stacked["loss"], rel=1e-4)
        assert all(row[key] == stacked[key] for key in ("bytes_down", "bytes_up", "examples"))
    models = torch.load(tmp_path / "local-models-0003.pt", weights_only=True)
    sizes = torch.tensor(run.task.sizes(models["ids"]))
    for name, leaf in tree.weighted_mean(models["params"], sizes).items():
        torch.testing.assert_close(leaf, run.state["params"][name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    "method, kept", [("fedavg", "all"), ("moon", "deployed"), ("scaffold", "deployed"), ("local", "all")]
)
def test_client_states_are_kept_where_they_are_deployed_or_asked_for(digits, tmp_path, monkeypatch, method, kept):
    monkeypatch.setattr(row_files, "MEMORY_BYTES", 0)  # as those of large models, in files
    run = train(digits, tmp_path / "deployed", StateRetention(), algorithm=method)
    whole = train(digits, tmp_path / "all", StateRetention(final="all"), algorithm=method)
    assert (run.result()["kept"], whole.result()["kept"]) == (kept, "all")
    assert train(digits, algorithm=method).result()["kept"] == "none"
    few, all_ = (torch.load(tmp_path / name / "final.pt", weights_only=True) for name in ("deployed", "all"))
    assert len(all_["clients"]["rows"]) == 10
    assert (
        few["clients"] == {"fresh": {}, "rows": {}}
        if kept == "deployed"
        else few["clients"].keys() == {"fresh", "rows"}
    )
    others = [{key: part for key, part in state.items() if key != "clients"} for state in (few, all_)]
    assert_equal(*others)
    if kept == "deployed":
        small, large = ((tmp_path / name / "final.pt").stat().st_size for name in ("deployed", "all"))
        assert small < large / 5, "ten clients"


@pytest.mark.slow_but_first
@pytest.mark.parametrize("method", ["moon", "scaffold", "fednova", "local"])
def test_local_models_can_be_kept_for_every_kind_of_method(digits, tmp_path, method):
    train(digits, tmp_path, StateRetention(final="none", local_models=(2,)), algorithm=method)
    kept = torch.load(tmp_path / "local-models-0002.pt", weights_only=True)
    assert kept["params"]["classifier.bias"].shape == (10, 10)
    assert not torch.equal(kept["params"]["classifier.bias"][0], kept["params"]["classifier.bias"][1])


def test_a_stratified_subset_keeps_class_shares_and_depends_on_the_seed():
    labels = np.repeat(np.arange(4), (100, 100, 200, 400))
    rows = stratified_subset(labels, 80, seed=0)
    assert np.bincount(labels[rows]).tolist() == [10, 10, 20, 40] and (np.diff(rows) > 0).all()
    assert not np.array_equal(rows, stratified_subset(labels, 80, seed=1))
    assert stratified_subset(labels, None, 0) is None and stratified_subset(labels, 800, 0) is None
    with pytest.raises(ValueError, match=r"at most as many examples as there are \(800\), but got 801"):
        stratified_subset(labels, 801, 0)


def test_subsets_of_the_config_are_used(digits):
    run = train(digits, train_examples=500, test_examples=100)
    assert run.rows[-1]["examples"] == 1500 and len(run.task.federation.test_labels) == 100


def test_nested_methods_are_built_from_nested_options():
    assert build_algorithm({"name": "fedprox", "mu": 0.5}).mu == 0.5


def test_engine_is_the_loop_on_a_cpu_for_convolutions_and_whatever_a_model_needs():
    from bench import models

    cnn, mlp, resnet = (models.load(name)((3, 32, 32), 10) for name in ("simple-cnn", "mlp", "resnet50"))
    assert [choose_engine(model, "cpu") for model in (cnn, mlp, resnet)] == ["loop", "vectorised", "loop"]
    assert [choose_engine(model, "cuda") for model in (cnn, mlp, resnet)] == ["vectorised", "vectorised", "loop"]


@pytest.mark.slow
def test_a_run_imports_neither_ray_nor_pydantic_nor_torchvision():
    script = (
        "import sys; import datasets; from bench.simulation.run import Run; from bench.speed.workload import config\n"
        "Run(config(dataset='digits', partition='iid', model='mlp'), datasets.load('digits', None)).step()\n"
        "from bench.speed import engines, fedconcat, main, runs\n"
        "print([m for m in ('ray', 'pydantic', 'torchvision', 'optuna', 'sklearn', 'matplotlib') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_only_the_first_clients_of_a_partition_may_exist(digits):
    flat = {"algorithm": "fedavg", "dataset": "digits", "partition": "label-2", "clients": 20, "rounds": 1}
    everyone, two = (Run(resolve(flat | more), digits).task for more in ({}, {"first_clients": 2}))
    assert two.population == 2
    for some, every in zip(two.federation.clients, everyone.federation.clients, strict=False):
        assert torch.equal(some, every)
    noisy = flat | {"partition": "noise-0.5", "clients": 10}
    everyone, five = (Run(resolve(noisy | more), digits).task.federation for more in ({}, {"first_clients": 5}))
    assert torch.equal(five.noise_levels, everyone.noise_levels[:5])
    versions = [resolve(noisy | more).versions["partition"] for more in ({}, {"first_clients": 5})]
    assert versions == [1, 2], "the first five clients had the noise of a population of five"
    with pytest.raises(ConfigError, match=r"first_clients must be less than clients \(20\) or left out, but got 20"):
        resolve(flat | {"first_clients": 20})
    with pytest.raises(ConfigError, match=r"num_clusters must be at most the number of clients \(2\), but got 5"):
        resolve(flat | {"algorithm": "fedconcat", "first_clients": 2})


def test_the_quickstart_exchanges_no_more_with_fedconcat_than_with_fedavg():
    cells = expand(load_grid("quickstart"), "paper")
    found = {cell.setting("algorithm"): bytes_per_client(cell.config) for cell in cells}
    for name in ("fedconcat", "fedconcat-id"):
        assert 0.95 * found["fedavg"] <= found[name] <= found["fedavg"]


def test_local_models_are_traced_from_epoch_to_epoch_up_to_what_is_averaged(digits):
    flat = {
        "algorithm": "fedavg",
        **DIGITS,
        "local_epochs": 3,
        "trace_local_models": True,
        "participation": 0.4,
        "lr": 0.1,
    }
    run = Run(resolve(flat), digits)
    before, row = run.state, run.step()
    ids = run.task.sample_cohort(0).ids
    assert row["local_models"]["clients"] == ids.tolist()
    traced = torch.tensor(row["local_models"]["accuracies"], dtype=torch.double)
    assert traced.shape == (4, 3 + 1)
    trained = local_models(run.task, run.algorithm, before)
    own = Deployed(run.task.model, trained["params"], trained["buffers"], True)
    shared = run.algorithm.deploy(run.task, run.state, ids)
    stacked = tree.map(lambda leaf: torch.stack([leaf] * 4), shared.params)
    torch.testing.assert_close(traced[:, 2], evaluate_clients(run.task, own, ids)[1])
    averaged = Deployed(run.task.model, stacked, {}, True)
    torch.testing.assert_close(traced[:, 3], evaluate_clients(run.task, averaged, ids)[1])
    one_epoch = Run(resolve(flat | {"local_epochs": 1}), digits)
    one_epoch.step()
    assert traced[:, 0].tolist() == [curve[0] for curve in one_epoch.rows[0]["local_models"]["accuracies"]]
    assert (traced[:, 2] > 0.7).all() and traced[:, 3].mean() < traced[:, 2].mean()  # averaging forgets classes
    untraced = Run(resolve(flat | {"trace_local_models": None}), digits)
    assert "local_models" not in untraced.step() and untraced.rows[0]["accuracy"] == row["accuracy"]


@pytest.mark.parametrize("algorithm", ["gpfl", "fedcp"])
def test_local_models_are_traced_in_the_model_that_clients_use(digits, algorithm):
    """The last point before the mean is that of what each client has just trained, with its own valve or gate."""
    flat = {"algorithm": algorithm, **DIGITS, "local_epochs": 2, "trace_local_models": True, "evaluate_every": 1}
    run = Run(resolve(flat), digits)
    run.step()
    before = run.state
    traced = [curve[-2] for curve in run.step()["local_models"]["accuracies"]]
    models = local_models(run.task, run.algorithm, before, 2)
    deployed = Deployed(run.algorithm.deployed_model(run.task), models["params"], models["buffers"], True)
    assert evaluate_clients(run.task, deployed, models["ids"])[1].tolist() == traced


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"algorithm": "fusefl"}, "fusefl does not train one whole model in rounds"),
        (
            {"algorithm": "fedconcat"},
            "fedconcat does not train one whole model in rounds, so trace_local_models has no local models of a round",
        ),
        ({"local_steps": 5}, r"set local_epochs, not local_steps \(5\)"),
        ({"trace_local_models": False}, "trace_local_models"),
    ],
)
def test_what_cannot_be_traced_is_refused(more, said):
    flat = {"algorithm": "fedavg", **DIGITS, "trace_local_models": True}
    if "local_steps" in more:
        del flat["local_epochs"]
    with pytest.raises(ConfigError, match=said):
        resolve(flat | more)
