"""Methods that train one model per client: their formulas, the values at which they become others, and what they keep."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms.ccvr import CCVR
from algorithms.ditto import Ditto
from algorithms.fedavg import FedAvg
from algorithms.fedconcat import FedConcat
from algorithms.fedprox import FedProx
from algorithms.finetune import Finetune
from algorithms.local_training import LocalTraining
from algorithms.per_fedavg import PerFedAvg
from algorithms.pfedme import PFedMe
from algorithms.shared import tree
from algorithms.shared.local_sgd import LocalResult, descend, gradient, task_loss, unless_padding
from algorithms.shared.rounds import RoundBased
from algorithms.shared.types import Batch, BatchIndex
from algorithms.shared.wrapper import Wrapper
from bench.models.base import BoundModel
from tests.support.by_hand import Pixels
from tests.support.refusals import refused
from tests.support.toy import NUM_CLASSES, assert_equal, normalised_task, toy_task, train

ENGINES = ("loop", "vectorised")
EVERYONE = torch.arange(5)


def linear_task(**settings):
    task = toy_task(**settings)
    return replace(task, model=Pixels(task.model.input_shape, NUM_CLASSES))


# The same in NumPy: params are one array [num_classes, 37], whose last column is the bias


def as_array(params) -> np.ndarray:
    return np.column_stack([params["classifier.weight"].numpy(), params["classifier.bias"].numpy()])


def batches(task, client: int, round: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs with a column of ones, and labels."""
    rows, draws, sizes = task.batch_indices(client, round)
    x = task.federation.inputs(rows, draws, None, torch.float64).flatten(1).numpy()
    x, y = np.column_stack([x, np.ones(len(x))]), task.federation.labels[rows].numpy()
    cuts = np.cumsum(sizes)[:-1]
    return list(zip(np.split(x, cuts), np.split(y, cuts), strict=True))


def slope(params, x, y):
    """Gradient of the mean cross-entropy: (softmax - one-hot) x, mean over examples."""
    odds = np.exp(x @ params.T)
    residual = odds / odds.sum(1, keepdims=True) - np.eye(NUM_CLASSES)[y]
    return residual.T @ x / len(x)


def shortened(gradient, most):
    """A gradient of at most that norm; None is no bound."""
    return gradient if most is None else gradient * min(1, most / np.linalg.norm(gradient))


def sgd(start, steps, settings, direction=slope):
    """SGD with momentum and weight decay from start."""
    params, velocity = start, 0
    for x, y in steps:
        velocity = settings.momentum * velocity + direction(params, x, y) + settings.weight_decay * params
        params = params - settings.lr * velocity
    return params


def averaged(task, trained: list[np.ndarray]) -> np.ndarray:
    return np.average(trained, axis=0, weights=task.sizes(EVERYONE))


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def deployed_arrays(method, task, state) -> list[np.ndarray]:
    deployed = method.deploy(task, state, EVERYONE)
    return [as_array(tree.row(deployed.params, client)) for client in range(task.population)]


@pytest.mark.parametrize("engine", ENGINES)
def test_ditto_in_numpy(engine):
    task = linear_task(engine=engine)
    method = Ditto(proximal_weight=0.7)
    shared = as_array(task.initial_params())
    own = [shared] * task.population
    for round in range(2):
        plans, start = [batches(task, client, round) for client in range(task.population)], shared

        def near(params, x, y, start=start):
            return slope(params, x, y) + 0.7 * (params - start)

        own = [sgd(model, plan, task.settings, near) for model, plan in zip(own, plans, strict=True)]
        shared = averaged(task, [sgd(start, plan, task.settings) for plan in plans])
    state = train(method, task, rounds=2)
    close(as_array(state["params"]), shared)
    for found, expected in zip(deployed_arrays(method, task, state), own, strict=True):
        close(found, expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("most", [None, 0.2])
def test_pfedme_in_numpy(engine, most):
    task = linear_task(engine=engine, max_gradient_norm=most)
    lr, decay = task.settings.lr, task.settings.weight_decay
    method = PFedMe(proximal_weight=0.7, inner_steps=3, personal_lr=0.2)
    shared = as_array(task.initial_params())
    for round in range(2):
        locals_, thetas = [], []
        for client in range(task.population):
            w = shared
            for x, y in batches(task, client, round):
                theta = w
                for _ in range(3):
                    theta = theta - 0.2 * (shortened(slope(theta, x, y), most) + decay * theta + 0.7 * (theta - w))
                w = w - lr * 0.7 * (w - theta)
            locals_.append(w)
            thetas.append(theta)
        shared = averaged(task, locals_)
    state = train(method, task, rounds=2)
    close(as_array(state["params"]), shared)
    for found, expected in zip(deployed_arrays(method, task, state), thetas, strict=True):
        close(found, expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("inner_lr, most", [(None, None), (0.3, None), (0.3, 0.2)])
def test_per_fedavg_in_numpy(engine, inner_lr, most):
    task = linear_task(engine=engine, max_gradient_norm=most)
    alpha = task.settings.lr if inner_lr is None else inner_lr

    def meta(params, x, y):
        middle = len(x) // 2
        adapted = params - alpha * shortened(slope(params, x[:middle], y[:middle]), most)
        return shortened(slope(adapted, x[middle:], y[middle:]), most)

    shared = as_array(task.initial_params())
    for round in range(2):
        plans = [batches(task, client, round) for client in range(task.population)]
        assert {len(y) for plan in plans for _, y in plan} >= {1, 2, 4, 5, 6}, (
            "some batches are skipped, some are uneven"
        )
        kept = [[(x, y) for x, y in plan if len(y) >= 4] for plan in plans]
        shared = averaged(task, [sgd(shared, plan, task.settings, meta) for plan in kept])
    method = PerFedAvg(inner_lr)
    state = train(method, task, rounds=2)
    close(as_array(state["params"]), shared)
    for client, found in enumerate(deployed_arrays(method, task, state)):
        close(found, shared - alpha * shortened(slope(shared, *batches(task, client, 2)[0]), most))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("unit, length", [("steps", 3), ("epochs", 2)])
def test_finetune_in_numpy(engine, unit, length):
    task = linear_task(engine=engine)
    own = {"local_epochs": None, "local_steps": None, f"local_{unit}": length}
    plans = [batches(linear_task(**own), client, 3) for client in range(task.population)]
    wanted = [3] * 5 if unit == "steps" else [2 * steps for steps in (3, 1, 4, 2, 2)]
    assert [len(plan) for plan in plans] == wanted
    method = Finetune(finetune_length=length, finetune_unit=unit)
    state = train(method, task)
    for plan, found in zip(plans, deployed_arrays(method, task, state), strict=True):
        close(found, sgd(as_array(state["params"]), plan, task.settings))


# Identities


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_shared_model_of_ditto_is_that_of_fedavg_bit_for_bit(engine, weight):
    task = toy_task(engine=engine, participation=0.6)
    ditto, fedavg = train(Ditto(weight), task), train(FedAvg(), task)
    for part in ("params", "buffers"):
        assert_equal(ditto[part], fedavg[part])


@pytest.mark.parametrize("engine", ENGINES)
def test_without_its_proximal_term_ditto_is_local_training_beside_fedavg(engine):
    task = toy_task(engine=engine)
    ditto, local = Ditto(proximal_weight=0), LocalTraining()
    (own, alone) = (method.deploy(task, train(method, task), EVERYONE) for method in (ditto, local))
    assert_equal(own.params, alone.params)
    other = Ditto(proximal_weight=1).deploy(task, train(Ditto(proximal_weight=1), task), EVERYONE)
    assert not torch.equal(other.params["classifier.weight"], alone.params["classifier.weight"])


def test_a_strong_proximal_term_keeps_the_models_of_ditto_near_the_one_they_received():
    task = toy_task(rounds=1, lr=0.001, momentum=0.0)
    weak, strong = (
        train(method, task)["clients"]["rows"][2]["params"] for method in (Ditto(0.0), Ditto(proximal_weight=900.0))
    )
    start = task.initial_params()
    assert tree.squared_distance(strong, start) < 0.1 * tree.squared_distance(weak, start)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [Ditto(proximal_weight=0), PFedMe()], ids=["ditto", "pfedme"])
def test_a_client_begins_with_the_model_that_it_receives_at_its_first_participation(engine, method):
    task = toy_task(engine=engine, participation=0.4)
    first, second = (set(task.sample_cohort(round).ids.tolist()) for round in (0, 1))
    late, absent = min(second - first), min(set(range(5)) - first - second)
    before = method.step(task, method.init(task))
    after = method.step(task, before)
    assert_equal(
        tree.row(method.deploy(task, before, EVERYONE).params, late), before["params"]
    )  # not the initial model, which the first cohort has changed
    assert not torch.equal(before["params"]["classifier.weight"], task.initial_params()["classifier.weight"])
    assert_equal(tree.row(method.deploy(task, after, EVERYONE).params, absent), after["params"])
    if isinstance(method, Ditto):
        alone = task.cohort(torch.tensor([late]))
        trained = FedAvg().local_models(before, FedAvg().map_clients(task, FedAvg().local_update, alone, before))
        assert_equal(after["clients"]["rows"][late]["params"], tree.row(trained["params"], 0), tolerance=1e-12)


def test_without_its_proximal_term_the_shared_model_of_pfedme_does_not_move():
    task = linear_task(rounds=1)
    state = train(PFedMe(proximal_weight=0, inner_steps=4, personal_lr=0.2), task)
    assert_equal(state["params"], task.initial_params())
    plain = SimpleNamespace(lr=0.2, momentum=0, weight_decay=task.settings.weight_decay)
    for client, row in state["clients"]["rows"].items():
        last = batches(task, client, 0)[-1]
        close(as_array(row["params"]), sgd(as_array(task.initial_params()), [last] * 4, plain))


@pytest.mark.parametrize("engine", ENGINES)
def test_with_one_inner_step_pfedme_is_fedavg_with_the_product_of_its_rates(engine):
    task = toy_task(engine=engine)
    pfedme = train(PFedMe(proximal_weight=1.5, inner_steps=1, personal_lr=0.4), task)
    plain = replace(task, settings=replace(task.settings, lr=task.settings.lr * 1.5 * 0.4, momentum=0.0))
    assert_equal(pfedme["params"], train(FedAvg(), plain)["params"], tolerance=1e-12)


def test_many_inner_steps_of_pfedme_end_at_the_proximal_point():
    """There the gradient of the loss is lambda (w - theta), which is that of the Moreau envelope at w."""
    task = linear_task(weight_decay=0.0)
    method, w = PFedMe(proximal_weight=2.0, inner_steps=400), task.initial_params()
    local = {"params": w, "buffers": {}}

    def at_proximal_point(data, plan, view):
        batch = data.take(plan[0])
        theta = method.proximal_point(local, batch, view)["params"]
        return gradient(task_loss, theta, batch, view), tree.map(lambda a, b: 2.0 * (a - b), w, theta)

    found = task.map_clients(
        lambda *given: dict(zip("ab", at_proximal_point(*given), strict=True)),
        task.cohort(EVERYONE),
        round=0,
        params=w,
        buffers={},
    ).result
    assert_equal(found["a"], found["b"], tolerance=1e-10)
    assert found["a"]["classifier.weight"].abs().max() > 1e-3


class OnSecondHalves(RoundBased):
    """FedAvg on the second halves of the batches that Per-FedAvg does not skip."""

    def local_update(self, data, plan, view):
        trained = descend(self.local_loss, view.params, data, plan, view, smallest_batch=4).params
        return LocalResult({"delta": tree.subtract(trained, view.params)}, {})

    def local_loss(self, params, batch, view):
        return task_loss(params, batch.halves()[1], view)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_its_inner_step_per_fedavg_is_fedavg_on_second_halves(engine):
    task, method = toy_task(engine=engine), PerFedAvg(inner_lr=0)
    state = train(method, task)
    # vmap multiplies by params that are the same for all clients in another order.
    assert_equal(state["params"], train(OnSecondHalves(), task)["params"], tolerance=0 if engine == "loop" else 1e-12)
    deployed = method.deploy(task, state, EVERYONE).params
    assert_equal(deployed, tree.map(lambda leaf: leaf.expand(5, *leaf.shape), state["params"]))


@pytest.mark.parametrize("base", [FedAvg(), FedConcat(num_clusters=2, encoder_rounds=1, classifier_rounds=1)])
def test_without_steps_finetune_is_its_base(base):
    task, method = toy_task(), Finetune(base, finetune_length=0)
    state = train(method, task)
    assert_equal(state, train(base, task))
    shared, own = (one.deploy(task, state, EVERYONE) for one in (base, method))
    assert own.per_client and own.model == shared.model
    assert_equal(own.params, tree.map(lambda leaf: leaf.expand(5, *leaf.shape), shared.params))


@pytest.mark.parametrize("engine", ENGINES)
def test_finetune_for_the_epochs_of_a_round_is_local_training_in_one_more_round(engine):
    task = toy_task(engine=engine)
    method = Finetune(finetune_length=task.settings.local_epochs, finetune_unit="epochs")
    state = train(method, task)
    next_round = FedAvg().map_clients(task, FedAvg().local_update, task.cohort(EVERYONE), state)
    expected = FedAvg().local_models(state, next_round)["params"]
    assert_equal(method.deploy(task, state, EVERYONE).params, expected, tolerance=1e-12)


def test_finetune_trains_the_concatenated_model_of_fedconcat_on_both_engines():
    method = Finetune(FedConcat(num_clusters=2, encoder_rounds=1, classifier_rounds=1))
    (looped, vectorised) = (
        method.deploy(task, train(method, task), EVERYONE) for task in (toy_task(engine=engine) for engine in ENGINES)
    )
    assert looped.test_features is None
    assert_equal(looped.params, vectorised.params, tolerance=1e-8)


# Running statistics


@pytest.fixture
def normalised():
    """Clients with one and two batches of four, and a model with batch normalisation."""
    task = toy_task(sizes=(4, 8), model="resnet50", shape=(3, 8, 8), local_epochs=1, batch_size=4, rounds=1)
    return replace(task, model=replace(task.model, width=1 / 16), dtype=torch.float32)


def test_running_statistics_of_pfedme_move_towards_those_of_theta_as_params_do():
    task = normalised_task(sizes=(4, 4), batch_size=4, local_epochs=1, rounds=1)
    method = PFedMe(proximal_weight=2.0)
    state, before = train(method, task), task.initial_buffers()
    thetas = method.deploy(task, state, torch.arange(2)).buffers
    for name, found in state["buffers"].items():
        if found.is_floating_point():
            moved = before[name] + 2.0 * task.settings.lr * (thetas[name].mean(0) - before[name])
            assert_equal({name: found}, {name: moved}, tolerance=1e-6)
            assert (thetas[name] != before[name]).any()


@pytest.mark.parametrize(
    "method, shared, own",
    [(Ditto(), 1, [1, 2]), (PFedMe(inner_steps=2), 0, [2, 2]), (PerFedAvg(), 0, [1, 1]), (Finetune(), 1, [3, 3])],
    ids=["ditto", "pfedme", "per-fedavg", "finetune"],
)
def test_passes_that_update_running_statistics(normalised, method, shared, own):
    """The mean over clients with 4 and 8 examples, truncated: (1 + 2 * 2) / 3 in FedAvg, twice that with two inner steps."""
    task = normalised
    state = train(method, task)
    counter = "stem.norm.num_batches_tracked"
    assert state["buffers"][counter] == shared
    before = tree.map(torch.clone, state["buffers"])
    deployed = method.deploy(task, state, torch.arange(2))
    assert deployed.buffers[counter].tolist() == own and tree.all_finite(deployed.params)
    assert_equal(state["buffers"], before)


def test_training_of_per_fedavg_leaves_the_running_statistics_as_they_are(normalised):
    assert_equal(train(PerFedAvg(), normalised)["buffers"], normalised.initial_buffers())


# Parts


@pytest.mark.parametrize("largest_stack", [10**9, 0])
def test_per_fedavg_does_not_count_the_batches_that_it_skips(largest_stack):
    """Of clients with 13, 4, 20, 8 and 11 examples in batches of 6, batches of 1, 2 and 2 are skipped in each of 2 epochs."""
    task = replace(toy_task(rounds=1), largest_stack=largest_stack)
    spent = [train(method, task)["costs"]["examples"] for method in (FedAvg(), PerFedAvg())]
    assert spent == [2 * 56, 2 * (56 - 1 - 2 - 2)]
    assert [PerFedAvg().workload(task.settings, size) for size in (13, 4)] == [2 * 12, 2 * 4]


def test_a_gradient_is_the_same_constant_whether_rows_are_masked_or_not():
    task = linear_task()
    bound = SimpleNamespace(model=BoundModel(task.model, {}, training=True))
    params = {name: leaf.requires_grad_() for name, leaf in task.initial_params().items()}
    x, y = task.federation.images[:3].double(), task.federation.labels[:3]
    padded = Batch(torch.cat([x, x[:1]]), torch.cat([y, y[:1]]), torch.tensor([True, True, True, False]))
    whole, masked = (gradient(task_loss, params, batch, bound) for batch in (Batch(x, y), padded))
    assert_equal(whole, masked, tolerance=1e-12)
    assert not any(leaf.requires_grad for leaf in tree.leaves([whole, masked]))

    def outer(params):
        adapted = tree.map(lambda p, g: p - g, params, gradient(task_loss, params, padded, bound))
        return adapted["classifier.bias"].sum()

    derivative = torch.func.grad(outer)(tree.map(torch.detach, params))
    assert_equal(derivative["classifier.bias"], torch.ones(NUM_CLASSES, dtype=torch.float64))
    assert not derivative["classifier.weight"].any()


def test_a_step_counts_unless_its_batch_is_too_small():
    new, old = {"w": torch.tensor(1.0)}, {"w": torch.tensor(0.0)}

    def index(num_real, least, masked=True):
        mask = torch.arange(4) < num_real if masked else None
        return BatchIndex(torch.arange(4), mask, {}, least)

    assert unless_padding(index(0, 0), new, old) == old
    assert unless_padding(index(2, 0), new, old) == new
    assert unless_padding(index(2, 2), new, old) == new
    assert unless_padding(index(2, 0), new, old, smallest_batch=3) == old
    assert unless_padding(index(4, 4, masked=False), new, old, smallest_batch=5) == old
    assert unless_padding(index(4, 4, masked=False), new, old) == new


# Refusals


def test_bases_that_deploy_one_model_per_client():
    with pytest.raises(
        ValueError, match="finetune fine-tunes one shared model, but ditto deploys one model per client."
    ):
        Finetune(Ditto())
    with pytest.raises(
        ValueError, match="ccvr calibrates one shared model, but finetune deploys one model per client."
    ):
        CCVR(Finetune())
    with pytest.raises(ValueError, match="finetune needs a base that trains, but ccvr only changes"):
        Finetune(CCVR())
    with pytest.raises(ValueError, match="FedConcat needs one shared model per cluster, but pfedme deploys one model"):
        FedConcat(base=PFedMe())

    class TakesAll(Wrapper):
        takes_personal = True

    assert TakesAll(Ditto()).base == Ditto() and TakesAll(FedProx()).base == FedProx()


test_wrong_options = refused(
    (lambda: Ditto(-1.0), "proximal_weight must be at least 0, but got -1.0."),
    (lambda: PFedMe(proximal_weight=-1.0), "proximal_weight must be at least 0, but got -1.0."),
    (lambda: PFedMe(inner_steps=0), "inner_steps must be at least 1, but got 0."),
    (lambda: PFedMe(personal_lr=0.0), "personal_lr must be greater than 0, but got 0.0."),
    (lambda: PerFedAvg(-0.1), "inner_lr must be at least 0, but got -0.1."),
    (lambda: Finetune(finetune_length=-1), "finetune_length must be at least 0, but got -1."),
    (lambda: Finetune(finetune_unit="days"), "finetune_unit must be one of steps, epochs, but got 'days'."),
)


def test_per_fedavg_needs_batches_that_it_does_not_skip():
    assert PerFedAvg().validate(SimpleNamespace(batch_size=4)) == []
    assert PerFedAvg().validate(SimpleNamespace(batch_size=3)) == [
        "per-fedavg skips batches of fewer than 4 examples: batch_size must be at least 4, but got 3."
    ]
