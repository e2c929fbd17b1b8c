"""FedBN against personal_oracle.json, and what it is without batch normalisation."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from algorithms.fedavg import FedAvg
from algorithms.fedbn import FedBN, batch_norm_leaves
from algorithms.shared import tree
from algorithms.shared.local_sgd import LocalResult
from algorithms.shared.types import ClientOutputs
from bench.models.base import BoundModel
from bench.models.modules import model_of
from tests.support.by_hand import FromFeatures, Given, double
from tests.support.oracles import close, oracle
from tests.support.toy import NUM_CLASSES, assert_equal, normalised_task, toy_task, train

ORACLE = oracle("personal")
ENGINES = pytest.mark.parametrize("engine", ["loop", "vectorised"])
EVERYONE = torch.arange(5)
BN = ORACLE["fedbn"]


def leaves_of(client):
    """Params and buffers of one of the oracle's clients; its shortcut has statistics, by which it is found."""
    leaves = {name: double(value) for name, value in client.items()}
    buffers = {name: leaf for name, leaf in leaves.items() if "running" in name}
    params = {name: leaf for name, leaf in leaves.items() if name not in buffers}
    return {"params": params, "buffers": {**buffers, "downsample.1.running_mean": double([0.0])}}


def test_fedbn_averages_all_but_batch_normalisations():
    known = BN["expected"]
    found = [leaves_of(client) for client in BN["inputs"]["clients"]]
    method, start = FedBN(), tree.zeros_like(found[0])
    task = toy_task(sizes=(1, 3))
    cohort = replace(task.cohort(torch.tensor([0, 1])), weights=double(BN["inputs"]["p"]))
    data = Given(torch.zeros(1, 1), torch.zeros(1, dtype=torch.long))
    views = [data.view(FromFeatures((1, 1, 1), 2), start["params"], start["buffers"]) for _ in found]
    updates = [
        LocalResult({"delta": method.sent(one, view)}, method.kept(one)) for one, view in zip(found, views, strict=True)
    ]
    state = {**start, "round": 0, "server": {}, "clients": {"fresh": method.kept(start), "rows": {}}}
    state["costs"] = {"bytes_down": 0, "bytes_up": 0, "examples": 0}
    outputs = ClientOutputs(tree.stack(updates), tree.stack([view.model.buffers for view in views]))
    after = method.finish_round(task, state, cohort, outputs)
    for client, expected in enumerate(known["client_states_by_module_type"]):
        own = data.view(views[0].model.spec, after["params"], after["buffers"], client=after["clients"]["rows"][client])
        model = method.personal_model(data, [], own)
        for name, value in expected.items():
            close({**model["params"], **model["buffers"]}[name], value, BN["tol"])
        by_name = known["client_states_by_name_bn"][client]["downsample.1.weight"]
        assert (model["params"]["downsample.1.weight"] - double(by_name)).abs() > 0.1
    assert not tree.num_bytes(method.downloads(state)) % 3  # conv and fc alone: three numbers
    assert method.downloads(state)["params"].keys() == {"conv.weight", "fc.weight"}


def test_batch_normalisation_follows_the_oracle():
    given, known, tolerance = BN["inputs"], BN["expected"], BN["tol"]
    one = leaves_of(given["clients"][0])
    buffers = {**one["buffers"], "bn1.num_batches_tracked": torch.tensor(3)}
    bound = BoundModel(
        FromFeatures((1, 1, 1), 2), {name: leaf.clone() for name, leaf in buffers.items()}, training=True
    )
    x = double(given["batch_into_bn1_client0"])[:, None]
    close(bound.batch_norm(one["params"], x, "bn1")[:, 0], known["client0_train_output"], tolerance)
    close([bound.buffers[f"bn1.running_{name}"] for name in ("mean", "var")], known["client0_running_after"], tolerance)
    assert bound.buffers["bn1.num_batches_tracked"] == 4
    still = BoundModel(bound.spec, bound.buffers)
    close(still.batch_norm(one["params"], x, "bn1")[:, 0], known["client0_eval_output_own_stats"], tolerance)


class TwoNorms(nn.Module):
    """A convolution with a batch normalisation that no name tells of, and a layer normalisation."""

    def __init__(self, shape, classes):
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 2, 3)
        self.shortcut = nn.BatchNorm2d(2)
        self.bn = nn.LayerNorm(2)
        self.fc = nn.Linear(2, classes)

    def forward(self, x):
        return self.fc(self.bn(self.shortcut(self.conv(x)).mean((2, 3)).relu()))


def test_batch_normalisations_are_found_by_their_type():
    model = model_of("two-norms", TwoNorms)((1, 6, 6), NUM_CLASSES)
    parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    found = batch_norm_leaves(model.init_buffers())
    assert found == {f"conv.norm.shortcut_{part}" for part in parts}
    task = replace(toy_task(dtype=torch.float32, rounds=2), model=model)
    method = FedBN()
    state = train(method, task)
    deployed = method.deploy(task, state, EVERYONE).params
    for name, leaf in deployed.items():
        alike = all(torch.equal(one, leaf[0]) for one in leaf)
        assert alike == (name not in found), name
    assert_equal(
        {name: state["params"][name] for name in found & state["params"].keys()},
        {name: task.initial_params()[name] for name in found & state["params"].keys()},
    )
    counter = "conv.norm.shortcut_num_batches_tracked"
    steps = [2 * task.settings.num_steps(size) for size in task.sizes(EVERYONE)]
    assert method.deploy(task, state, EVERYONE).buffers[counter].tolist() == steps


@ENGINES
def test_without_batch_normalisation_fedbn_is_fedavg_and_says_so(engine):
    task = toy_task(engine=engine, participation=0.6)
    state, expected = train(FedBN(), task), train(FedAvg(), task)
    assert_equal(state["params"], expected["params"])
    deployed = FedBN().deploy(task, state, EVERYONE).params
    assert_equal(deployed, tree.map(lambda leaf: leaf.expand(5, *leaf.shape), expected["params"]))
    assert FedBN().caveats(task)[1:] == ["fedbn: Mlp has no batch normalisation: it is FedAvg."]
    assert len(FedBN().caveats(normalised_task())) == 1


def test_fedbn_scored_after_training_deploys_own_statistics_too():
    task = normalised_task(rounds=2, local_epochs=1)
    before, after = (FedBN(scored=when) for when in ("before", "after"))
    state = train(before, task)
    counts = [one.deploy(task, state, EVERYONE).buffers["stem.norm.num_batches_tracked"] for one in (before, after)]
    assert (counts[1] > counts[0]).all()
