"""FedAS against personal_oracle.json, and what it is at special values."""

from dataclasses import dataclass, replace

import pytest
import torch

from algorithms.fedas import FedAS, alignment_loss
from algorithms.fedper import FedPer
from algorithms.shared import tree
from algorithms.shared.passes import first_pass
from algorithms.shared.types import Batch
from bench.models.base import Model
from tests.support.by_hand import PLAIN, Given, double, slope_of
from tests.support.oracles import close, oracle
from tests.support.parts import assert_same_deployed, bodies_and_heads
from tests.support.toy import assert_equal, kinds_of_tasks, normalised_task, toy_task, train

ORACLE = oracle("personal")
ENGINES = pytest.mark.parametrize("engine", ["loop", "vectorised"])
EVERYONE = torch.arange(5)
AS = ORACLE["fedas_align"]


@dataclass(frozen=True)
class Linear(Model):
    """Features x B, and logits without a bias."""

    def layers(self):
        return {"body": (2, 2), "classifier": (2, 2)}

    def features(self, params, x, bound):
        return x @ params["body.weight"]

    def head(self, params, z):
        return z @ params["classifier.weight"]


LINEAR = Linear((1, 1, 2), 2)
HEAD = double(ORACLE["fedas_fisher"]["inputs"]["head_both"])


def of_base(base):
    return {"body.weight": double(base), "classifier.weight": HEAD}


def aligning():
    given = AS["inputs"]
    data = Given(double(given["x"]), torch.tensor(given["y"]))
    old = {"params": of_base(given["previous_local_base"]), "buffers": {}}
    return data, data.view(LINEAR, of_base(given["global_base"]), client=old)


def test_alignment_follows_the_oracle():
    data, view = aligning()
    known, tolerance = AS["expected"], AS["tol"]
    means = double([known["prototypes"][label] for label in "01"])
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in view.params.items()}
    loss = alignment_loss(leaves, data.batch(), replace(view, server={"means": means}))
    close(loss.detach(), known["loss"], tolerance)
    loss.backward()
    close(leaves["body.weight"].grad, known["grad"], tolerance)
    assert abs(loss.item() - known["loss_batch_means_fl_bench"]) > 0.01
    same = alignment_loss(view.client["params"], data.batch(), replace(view, server={"means": means}))
    close(same, known["loss_when_global_equals_local"], tolerance)
    # Momentum, decay and learning rate of the settings are not those of the alignment.
    view = replace(view, settings=replace(PLAIN, lr=9.0, momentum=0.9, weight_decay=0.5))
    found = FedAS(alignment_lr=AS["inputs"]["lr"]).aligned(data, data.plan(), view)["params"]
    close(found["body.weight"], known["aligned_base"], tolerance)
    close(view.params["body.weight"], known["server_base_after"], 0)
    assert torch.equal(found["classifier.weight"], HEAD)


def test_alignment_counts_real_rows_alone():
    data, view = aligning()
    means = double([AS["expected"]["prototypes"][label] for label in "01"])
    padded = Batch(torch.cat([data.x, data.x[:2]]), torch.cat([data.y, data.y[:2]]), torch.arange(5) < 3)
    close(
        alignment_loss(view.params, padded, replace(view, server={"means": means})), AS["expected"]["loss"], AS["tol"]
    )


def test_weights_by_fisher_information_follow_the_oracle():
    known = ORACLE["fedas_fisher"]
    expected, tolerance, method = known["expected"], known["tol"], FedAS()
    clients = [known["inputs"][f"client{number}"] for number in (0, 1)]
    found = {3: [], 1: []}
    for given in clients:
        data = Given(double(given["x"]), torch.tensor(given["y"]))
        for size, traces in found.items():
            view = data.view(LINEAR, of_base(given["base"]), settings=replace(PLAIN, batch_size=size))
            model = {"params": view.params, "buffers": {}}
            traces.append(method.fisher(model, data, data.plan(size), view))
    close(torch.stack(found[3]), expected["trace_batch_3"], tolerance)
    close(torch.stack(found[1]), expected["trace_batch_1"], tolerance)

    task, zero = (
        toy_task(sizes=(3, 2)),
        {"body.weight": torch.zeros(2, 2, dtype=torch.float64), "classifier.weight": HEAD},
    )
    cohort = task.cohort(torch.tensor([0, 1]))
    bases = {"body.weight": double([given["base"] for given in clients])}
    update = {"delta": bases, "fisher": torch.stack(found[3])}
    weights = method.weighted_means(update, cohort)["delta"].weights
    close(weights / weights.sum(), expected["weights"], tolerance)
    close(method.aggregate(task, zero, {}, update, cohort)[0]["body.weight"], expected["base_new"], tolerance)
    entropy = -sum(w * torch.log(double(w)) for w in expected["weights"])
    close(method.round_metrics(task, {}, {}, update, cohort)["effective_clients"], entropy.exp().item(), 1e-9)
    for dtype in (torch.float32, torch.float64):
        none = method.weighted_means({**update, "fisher": torch.zeros(2, dtype=dtype)}, cohort)["delta"].weights.to(
            dtype
        )
        close(none / none.sum(), expected["size_weights"], 1e-6)
        measured = method.round_metrics(task, {}, {}, {**update, "fisher": torch.zeros(2, dtype=dtype)}, cohort)
        sized = -sum(w * torch.log(double(w)) for w in expected["size_weights"])
        close(measured["effective_clients"], sized.exp().item(), 1e-9)
    by_size = FedAS(weighting="examples").weighted_means(update, cohort)["delta"].weights
    close(by_size / by_size.sum(), expected["size_weights"], tolerance)


@kinds_of_tasks
def test_without_alignment_and_by_examples_fedas_is_fedper(task_of):
    task, method = task_of(participation=0.4), FedAS(alignment_lr=0.0, weighting="examples", scored="before")
    found, expected = train(method, task), train(FedPer(), task)
    assert_equal(bodies_and_heads(found), bodies_and_heads(expected))
    assert_same_deployed(task, method, found, FedPer(), expected)
    assert found["costs"]["examples"] == expected["costs"]["examples"]


def test_fedas_counts_its_passes_and_deploys_what_training_left():
    task = toy_task(participation=0.6)
    plain, found = (train(method, task) for method in (FedPer(), FedAS()))
    assert found["costs"]["examples"] == 2 * plain["costs"]["examples"]  # two epochs, and two passes
    deployed = FedAS().deploy(task, found, EVERYONE).params
    for client, row in found["clients"]["rows"].items():
        assert_equal(tree.row(deployed, client), row["params"])
    assert found["metrics"].keys() == {"effective_clients"}
    before = FedAS(scored="before").deploy(task, found, EVERYONE).params
    assert not torch.equal(before["linear1.weight"], deployed["linear1.weight"])
    assert torch.equal(before["classifier.weight"], deployed["classifier.weight"])


def test_fisher_information_is_that_of_the_trained_model_in_evaluation_mode():
    task, method = normalised_task(batch_size=20), FedAS()
    state = train(method, task, rounds=1)
    outputs = method.map_clients(task, method.local_update, task.cohort(EVERYONE), state)
    for client in range(5):
        params, buffers = (tree.row(outputs.result.client[key], client) for key in ("params", "buffers"))
        slope = slope_of(task, client, params, buffers)
        squares = sum(leaf.square().sum() for leaf in slope.values())
        torch.testing.assert_close(outputs.result.update["fisher"][client], squares, rtol=1e-4, atol=1e-8)


def test_a_footnote_tells_of_clients_of_one_class():
    task = toy_task()  # of which the second client holds one
    said = FedAS().caveats(task)
    assert said == [
        "fedas: clients' models are scored after local training.",
        "fedas: 1 of 5 clients hold one class, which they fit at once: their weights are near 0.",
    ]
    assert len(FedAS(weighting="examples").caveats(task)) == 1


@ENGINES
@pytest.mark.parametrize(
    "settings",
    [
        {"local_epochs": 2},
        {"local_epochs": None, "local_steps": 5},
        {"local_epochs": None, "local_steps": 2},
        {"last_batch": "drop-if-full"},
    ],
    ids=str,
)
def test_a_first_pass_has_every_example_that_a_pass_has_once(engine, settings):
    task = toy_task(engine=engine, **settings)

    def visited(data, plan, view):
        rows = torch.zeros(sum(task.sizes(EVERYONE)))
        for index in first_pass(plan, view):
            real = torch.ones_like(index.rows, dtype=torch.bool) if index.mask is None else index.mask
            rows = rows + ((index.rows[:, None] == torch.arange(len(rows))) & real[:, None]).sum(0)
        return {"rows": rows}

    rows = task.map_clients(visited, task.cohort(EVERYONE), round=0, params={}, buffers={}).result["rows"]
    expected = [sum(task.settings.passes(size)[0]) for size in task.sizes(EVERYONE)]
    assert rows.max() == 1 and rows.sum(1).tolist() == expected
