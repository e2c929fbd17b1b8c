"""FuseFL: networks whose blocks are fused, and the phases that freeze them."""

from dataclasses import dataclass, replace

import pytest
import torch

from algorithms.ccvr import CCVR
from algorithms.ensemble import EnsembleOfClients
from algorithms.fedconcat import FedConcat
from algorithms.fusefl import FuseFL
from algorithms.oneshot import OneShot
from algorithms.shared import partial, tree
from algorithms.shared.local_sgd import task_loss
from algorithms.shared.types import Batch
from bench import models
from bench.models.base import BoundModel, Model
from bench.models.concat import encoder_part
from bench.models.fused import Fused, WithAdapters, adapter_of, block_inputs, fuse, is_chain, run_block
from tests.support.by_hand import double, view_of
from tests.support.oracles import close, deployed, logits_of, oracle, paper_task
from tests.support.toy import assert_equal, normalised_task, toy_task, train

ORACLE = oracle("oneshot")
ENGINES = ["loop", "vectorised"]
BYTES = ORACLE["oneshot_bytes"]["expected"]
FUSE = ORACLE["fusefl_forward"]


@dataclass(frozen=True)
class TwoBlocks(Model):
    """Two layers without bias, ReLU after each, and a classifier."""

    def layers(self):
        return {"block1": (2, 2), "block2": (2, 2), "classifier": (3, 2)}

    def features(self, params, x, bound):
        x = x.flatten(1)
        for name in ("block1", "block2"):
            x = torch.relu(torch.nn.functional.linear(x, params[f"{name}.weight"]))
        return x


TWO, X = TwoBlocks((2, 1, 1), 3), double(FUSE["inputs"]["x"])[:, :, None, None]


def fused_params(adapters=False):
    """Of each client of the oracle: its own params, and those of all of them in one model with the heads' mean."""
    given = FUSE["inputs"]
    own = []
    for k in range(2):
        one = {f"block{n}.weight": double(given[f"block{n}"][k]).T for n in (1, 2)}
        one |= {"classifier.weight": double(given["heads"][k]).T, "classifier.bias": double(given["head_biases"][k])}
        own.append(one | ({adapter_of(0): double(given["adapters_1x1_on_concatenated"][k]).T} if adapters else {}))
    whole = {f"encoder{k}.{n}": leaf for k, one in enumerate(own) for n, leaf in one.items() if "classifier" not in n}
    mean = {name: sum(one[name] for one in own) / 2 for name in ("classifier.weight", "classifier.bias")}
    return own, whole | mean


def test_fused_networks_follow_the_oracle():
    own, whole = fused_params()
    expected = FUSE["expected"]
    bound = BoundModel(TWO, {})
    close(torch.stack([run_block(bound, one, X, end="block2") for one in own]), expected["block1_outputs"])
    mean = Fused(TWO.input_shape, 3, (TWO, TWO), ("block2",), False)
    one = BoundModel(mean, {})
    close(one.features(whole, X), expected["K2_mean_adapter_features_sum"])
    close(one(whole, X), expected["K2_mean_adapter_logits"])
    isolated = replace(mean, cuts=())
    close(BoundModel(isolated, {})(whole, X), expected["K1_isolated_encoders_logits"])
    heads = {"classifier.weight": torch.cat([part["classifier.weight"] for part in own], 1)}
    heads["classifier.bias"] = own[0]["classifier.bias"] + own[1]["classifier.bias"]
    several = replace(isolated, multihead=True)
    close(BoundModel(several, {})(whole | heads, X), expected["K1_multihead_logits_sum"])
    _, whole = fused_params(adapters=True)
    adapted = WithAdapters(TWO.input_shape, 3, TWO, ("block2",), 2)
    close(BoundModel(replace(mean, members=(adapted, adapted)), {})(whole, X), expected["K2_1x1_adapter_logits"])


def test_a_client_trains_on_the_fused_blocks_as_in_the_oracle():
    own, _ = fused_params()
    stacked = tree.stack(own)
    task = toy_task(rounds=1)
    view, batch = view_of(replace(task, model=TWO), own[0])
    view = replace(view, round=1, server={"frozen": {"params": stacked, "buffers": {}}}, settings=task.settings)
    outputs = block_inputs([view.model] * 2, own, X, ["block2"])
    given = fuse(outputs, None)
    logits = view.model.head(own[0], run_block(view.model, own[0], X, "block2", given))
    close(logits, FUSE["expected"]["local_phase2_client0_logits"])
    y = torch.tensor([0, 2])
    loss = FuseFL().local_loss(own[0], Batch(X, y), view)
    close(loss.item(), torch.nn.functional.cross_entropy(logits, y).item())


def test_without_cuts_it_is_the_ensemble_and_fedconcats_encoders():
    task = toy_task(rounds=1)
    multihead = logits_of(task, FuseFL(blocks=1, multihead=True))
    torch.testing.assert_close(multihead, 5 * logits_of(task, EnsembleOfClients()))
    encoders = deployed(FedConcat(num_clusters="none", encoder_rounds=1, classifier_rounds=0), task).params
    found = deployed(FuseFL(blocks=1), task).params
    assert_equal(encoder_part(found), encoder_part(encoders), 1e-12)
    _, kept = OneShot().trained(task, train(OneShot(), task))
    torch.testing.assert_close(found["classifier.weight"], kept["params"]["classifier.weight"].mean(0))


@pytest.mark.parametrize("adapter", ["mean", "conv1x1"])
@pytest.mark.parametrize("engine", ENGINES)
def test_blocks_freeze_one_after_another(adapter, engine):
    task = toy_task(
        engine=engine, rounds=2, local_epochs=1, model="simple-cnn", shape=(1, 16, 16), dataset="mnist", sizes=(6, 4)
    )
    method = FuseFL(blocks=3, adapter=adapter, phase_rounds=2)
    assert method.cuts(task.model) == ("conv2", "linear1")
    states = [train(method, task, rounds) for rounds in range(7)]
    found = [method.trained(task, state)[1]["params"] for state in states]
    moved = [{name for name in a if not torch.equal(a[name], b[name])} for a, b in zip(found, found[1:], strict=False)]
    parts = [{name.rpartition(".")[0] for name in one} for one in moved]
    own = [{"adapter0"}, {"adapter1"}] if adapter == "conv1x1" else [set(), set()]
    whole = {"conv1", "conv2", "linear1", "linear2", "classifier"}
    last = {"linear1", "linear2", "classifier"}
    assert parts == [whole] * 2 + [last | {"conv2"} | own[0]] * 2 + [last | own[1]] * 2
    model = deployed(method, task).model
    assert model.cuts == ("conv2", "linear1") and deployed(method, task, 2).model.cuts == ()


def test_one_client_is_local_training_with_blocks_that_freeze():
    task = toy_task(sizes=(13,), rounds=1)
    state = train(FuseFL(), task)
    alone = toy_task(sizes=(13,), rounds=2, local_epochs=1)
    first = train(OneShot(), alone, 1)["clients"]["rows"][0]["params"]

    def second(data, plan, view):
        return partial.descend_on(
            ["linear2", "classifier"], task_loss, {"params": first, "buffers": {}}, data, plan, view
        )

    own = alone.map_clients(second, alone.cohort(torch.tensor([0])), round=1, params=first, buffers={}).result["params"]
    assert_equal(tree.row(own, 0), state["clients"]["rows"][0]["params"], 1e-12)
    image = task.map_images(
        lambda x, first: BoundModel(task.model, {})(tree.row(own, 0), x), task.federation.test_images
    )
    torch.testing.assert_close(logits_of(task, FuseFL()), image)


@pytest.mark.parametrize(
    ("blocks", "setting", "number", "shares"),
    [(2, "local_epochs", 4, [2, 2]), (3, "local_epochs", 5, [2, 2, 1]), (3, "local_steps", 2, [1, 1, 1])],
)
def test_phases_share_the_epochs_of_a_round(blocks, setting, number, shares):
    task = toy_task(sizes=(7, 7), rounds=1, **{"local_epochs": None, setting: number})
    method = FuseFL(blocks=blocks)
    assert [getattr(method.in_phase(task.settings, phase), setting) for phase in range(blocks)] == shares
    state, found = method.init(task), []
    for _ in range(blocks):
        before, state = state["costs"]["examples"], method.step(task, state)
        found.append((state["costs"]["examples"] - before) // 2)
    expected = [replace(task.settings, **{setting: share}).num_visited(7) for share in shares]
    assert found == expected and sum(found) == method.workload(task.settings, 7)
    assert bool(method.caveats(task)) == (number < blocks)


def test_running_statistics_of_frozen_blocks_stay():
    task = normalised_task(rounds=1)
    kept = [FuseFL().trained(task, train(FuseFL(), task, rounds))[1]["buffers"] for rounds in (0, 1, 2)]
    assert not torch.equal(kept[0]["stem.norm.running_mean"], kept[1]["stem.norm.running_mean"])
    assert_equal(kept[1], kept[2])


def test_the_classifier_can_be_calibrated():
    task = toy_task(rounds=1)
    method = CCVR(base=FuseFL(), virtual_per_class=20, transform_stage="none")
    before, after = (deployed(one, task).params for one in (FuseFL(), method))
    assert not torch.equal(before["classifier.weight"], after["classifier.weight"])
    assert_equal(encoder_part(before), encoder_part(after))


def test_a_model_whose_layers_are_no_chain_is_not_cut():
    task = replace(toy_task(shape=(3, 32, 32), dataset="cifar10"), model=models.load("resnet18")((3, 32, 32), 3))
    with pytest.raises(ValueError, match="but what follows reads more than what goes into it, as with shortcuts"):
        FuseFL().init(task)
    with pytest.raises(ValueError, match="blocks must be at most 3, the layers of Mlp, but got 4"):
        FuseFL(blocks=4).init(toy_task())
    vgg = models.load("vgg9")((3, 32, 32), 3)
    assert all(is_chain(vgg, cut) for cut in FuseFL(blocks=4).cuts(vgg))


def test_bytes_of_fusefl():
    task, model = paper_task(), 4 * BYTES["params"]
    head = 4 * (84 * 10 + 10)
    for blocks, adapters in ((1, 0), (3, 0), (3, 4 * (6 * 60 + 400 * 4000))):
        method = FuseFL(blocks=blocks, adapter="conv1x1" if adapters else "mean")
        down_and_up = 2 * (model + adapters) + 10 * (model - head + adapters) + head
        assert method.traffic(task) == down_and_up
