"""One-shot training: what clients hold after it, the mean of their models, and what follows it in the costs."""

from dataclasses import dataclass, replace

import pytest
import torch

import datasets
from algorithms import fedlpa
from algorithms.fedavg import FedAvg
from algorithms.fedlpa import FedLPA
from algorithms.fens import Fens
from algorithms.oneshot import OneShot
from algorithms.shared import tree
from algorithms.shared.base import RoundHooks
from algorithms.shared.hold_out import held_part, num_held, training_part
from bench.cli.costs import costs
from bench.config.methods import options_of
from bench.config.resolve import resolve, trained_by
from bench.config.schema import run_id
from bench.experiments.cells import Cell
from bench.experiments.cost import examples_to_train
from bench.models.base import Model
from bench.results.store import Store
from bench.simulation.run import Run
from tests.support.oracles import close, deployed, oracle
from tests.support.toy import NUM_CLASSES, SIZES, SMALL, assert_equal, normalised_task, toy_task, train

ORACLE = oracle("oneshot")
ENGINES = ["loop", "vectorised"]
EVERYONE = torch.arange(5)


@dataclass(frozen=True)
class Point(Model):
    """One number."""

    def init(self, generator):
        return {"x": torch.tensor([float(ORACLE["oneshot_fedavg"]["inputs"]["x0"])])}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_mean_of_the_models_follows_the_oracle(engine, monkeypatch):
    given, expected = ORACLE["oneshot_fedavg"]["inputs"], ORACLE["oneshot_fedavg"]["expected"]

    def bowl(self, params, batch, view):
        first = view.num_examples == given["n"][0]
        a, c = (torch.where(first, *given[key]) for key in ("a", "c"))
        return (0.5 * a * (params["x"] - c).square()).sum()

    monkeypatch.setattr(OneShot, "local_loss", bowl)
    sizes = tuple(map(int, given["n"]))
    task = toy_task(
        sizes=sizes, engine=engine, lr=given["lr"], local_epochs=None, local_steps=given["steps"], momentum=0.0,
        weight_decay=0.0, rounds=1, batch_size=3,
    )  # fmt: skip
    task = replace(task, model=Point(task.model.input_shape, NUM_CLASSES))
    state = train(OneShot(), task)
    _, locals_ = OneShot().trained(task, state)
    close(locals_["params"]["x"].flatten(), expected["locals"])
    close(deployed(OneShot(), task).params["x"], [expected["size_weighted"]])
    close(deployed(OneShot(weighting="uniform"), task).params["x"], [expected["uniform"]])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("participation", [0.6, 1.0])
def test_one_round_is_fedavg(engine, participation):
    task = toy_task(engine=engine, participation=participation, rounds=1)
    rounding = 0.0 if engine == "loop" else 1e-12  # of products of many clients at once, which depends on the processor
    assert_equal(deployed(OneShot(), task).params, deployed(FedAvg(), task).params, rounding)
    assert train(OneShot(), task)["costs"] == train(FedAvg(), task)["costs"]


def test_running_statistics_are_averaged_as_fedavg_does():
    task = normalised_task(rounds=1)
    assert_equal(deployed(OneShot(), task).buffers, deployed(FedAvg(), task).buffers)


def test_later_rounds_go_on_alone_and_send_nothing():
    task = toy_task(rounds=2, momentum=0.0)
    states = [train(OneShot(), task, rounds) for rounds in (1, 2)]
    keys = ("bytes_down", "bytes_up")
    assert [states[0]["costs"][key] for key in keys] == [states[1]["costs"][key] for key in keys]
    alone = FedAvg()
    own = task.restrict(torch.tensor([3]))
    _, kept = OneShot().trained(task, states[1])
    assert_equal(tree.row(kept["params"], 3), train(alone, own)["params"], 1e-12)
    assert OneShot().caveats(task) == []
    assert "2 rounds" in OneShot().caveats(toy_task(rounds=2))[0]


def test_clients_start_from_models_of_their_own_where_asked():
    task = toy_task(rounds=1, lr=0.0)
    _, kept = OneShot(client_init="independent").trained(task, train(OneShot(client_init="independent"), task))
    for client in range(5):
        own = replace(task, initial_model=client).initial_params()
        assert_equal(tree.row(kept["params"], client), own)


@pytest.mark.parametrize("client_init", ["common", "independent"])
def test_a_cluster_of_which_nobody_has_trained_has_the_initial_model(client_init):
    task, method = normalised_task(participation=0.2, rounds=1), OneShot(client_init=client_init)
    (trained,) = task.sample_cohort(0).ids.tolist()
    others = task.restrict(torch.tensor([client for client in range(5) if client != trained]))
    found = deployed(method, others)
    assert_equal(found.params, task.initial_params())
    assert_equal(found.buffers, task.initial_buffers())


def test_held_out_examples_are_a_part_of_the_clients_and_not_trained_on():
    task = toy_task(sizes=(1, 4, 20, 8, 11))
    training, held = training_part(task, 0.2), held_part(task, 0.2)
    sizes = [len(rows) for rows in held.federation.clients]
    assert sizes == [0, 1, 4, 1, 2] == [num_held(size, 0.2) for size in (1, 4, 20, 8, 11)]
    for whole, kept, out in zip(
        task.federation.clients, training.federation.clients, held.federation.clients, strict=True
    ):
        assert torch.equal(torch.cat([kept, out]).sort().values, whole)
    counts = training.federation.label_counts + held.federation.label_counts
    assert torch.equal(counts, task.federation.label_counts)
    assert training_part(task, 0.0) is task
    short = toy_task(rounds=1, local_epochs=1)
    assert train(OneShot(hold_out=0.2), short)["costs"]["examples"] == sum(n - num_held(n, 0.2) for n in SIZES)


def counting(monkeypatch, where, name, number):
    """What number says of the arguments of each call of a function, from now on."""
    seen, original = [], getattr(where, name)
    monkeypatch.setattr(where, name, lambda *rest, **named: seen.append(number(*rest)) or original(*rest, **named))
    return seen


def test_gradients_of_the_aggregator_count(monkeypatch):
    task = toy_task(rounds=1, local_epochs=1)
    method = Fens(base=OneShot(hold_out=0.4), aggregator_rounds=3, aggregator_batch_size=4)
    rows = counting(monkeypatch, RoundHooks, "local_loss", lambda method, params, batch, view: len(batch.y))
    state = train(method, task)
    assert sum(method.workload(task.settings, size) for size in SIZES) == state["costs"]["examples"]
    del rows[:]
    assert method.deploy(task, state, EVERYONE).examples == sum(rows) == 3 * (4 + 1 + 4 + 3 + 4)
    assert sum(rows) == sum(method.deploy_workload(task.settings, size) for size in SIZES)


def test_the_pass_for_curvature_counts(monkeypatch):
    task = toy_task(rounds=1, local_epochs=1, participation=0.6)
    method = FedLPA(base=OneShot(hold_out=0.3))
    state = train(method, task)
    rows = counting(monkeypatch, fedlpa, "curvature", lambda batch, *_: len(batch.y))
    cohort = task.sample_cohort(0).ids
    assert (
        method.deploy(task, state, EVERYONE).examples
        == sum(rows)
        == sum(n - num_held(n, 0.3) for n in task.sizes(cohort))
    )


@pytest.mark.parametrize("name", ["fens", "fedlpa", "dense", "co-boosting"])
def test_what_follows_the_training_is_in_the_row_of_a_run_and_known_before(name, tmp_path):
    small = {key: value for key, value in SMALL.items() if key in options_of(name)}
    common = {"dataset": "digits", "partition": "iid", "clients": 10, "rounds": 1, "local_epochs": 1}
    common |= {"model": "mlp", "train_examples": 200, "test_examples": 50}
    config = resolve({"algorithm": name, **common, **small})
    base = trained_by(config)
    run = Run(config, datasets.load("digits", None))
    row = run.step()
    more = row["deploy_examples"]
    assert more == run.deployed.examples > 0
    assert row["examples"] + more == examples_to_train(config) == examples_to_train(base) + more
    cells = [Cell("digits", {}, one, run_id(one)) for one in (base, config)]
    *_, total = costs(cells, Store(tmp_path))
    assert (total["trainings"], total["examples"]) == (1, row["examples"] + more)
