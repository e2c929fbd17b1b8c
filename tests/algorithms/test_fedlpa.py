"""FedLPA: its factors, and solutions that they lead to."""

from types import SimpleNamespace

import pytest
import torch

from algorithms import fedlpa
from algorithms.fedlpa import FedLPA, conjugate_gradients, curvature, layer_factors
from algorithms.oneshot import OneShot
from algorithms.shared.types import Batch
from bench import models
from bench.models.base import BoundModel
from tests.support.by_hand import Pixels, double
from tests.support.oracles import close, deployed, oracle, paper_task
from tests.support.toy import assert_equal, normalised_task, toy_task

ORACLE = oracle("oneshot")
BYTES = ORACLE["oneshot_bytes"]["expected"]
LPA = ORACLE["fedlpa"]


def lpa_factors():
    """Undamped factors of the clients of the oracle, their weights and shares."""
    given = LPA["inputs"]
    m = double(given["weights_out_by_in_plus_bias"])
    a, b = [], []
    for k, (x, y) in enumerate(zip(given["layer_inputs"], given["y"], strict=True)):
        params = {"classifier.weight": m[k][:, :-1].contiguous(), "classifier.bias": m[k][:, -1].contiguous()}
        sums = factors_of(Pixels((2, 1, 1), 2), params, double(x), torch.tensor(y), ["classifier"])["classifier"]
        a.append(sums.a / len(y))
        b.append(sums.b / len(y))
    return m, torch.stack(a), torch.stack(b), double(given["p"])


def factors_of(model, params, x, y, layers):
    """The factors of a client with this model and one batch."""
    return curvature(Batch(x, y), SimpleNamespace(model=BoundModel(model, {}), params=params), layers)


def lpa(**options):
    return FedLPA(**{"damping": LPA["inputs"]["damping_on_A_and_on_B"], **options})


def test_factors_and_solutions_follow_the_oracle():
    m, a, b, shares = lpa_factors()
    known, tol = LPA["expected"], LPA["tol"]
    close(a, known["A_undamped"])
    close(b, known["B_undamped"])
    r = LPA["inputs"]["damping_on_A_and_on_B"]
    damped = [one + r * torch.eye(len(one[0]), dtype=torch.float64) for one in (a, b)]
    close(torch.einsum("k,koi->oi", shares, damped[1] @ m @ damped[0]), known["Z"], tol)
    close(lpa(solver="expectation").solved(m, a, b, shares)[0], known["expectation_approximation"], tol)
    found, used = lpa().solved(m, a, b, shares)
    close(found, known["exact"], tol)
    assert used <= 6  # numbers of the layer
    for steps, expected in known["code_gradient_steps"].items():
        close(lpa(solver="gradient", gradient_steps=int(steps)).solved(m, a, b, shares)[0], expected, tol)


def test_identities_of_the_solution_follow_the_oracle():
    m, a, b, shares = lpa_factors()
    known, tol = LPA["expected"], LPA["tol"]
    close(torch.einsum("k,koi->oi", shares, m), known["size_weighted_mean"])
    close(lpa(damping=1e6).solved(m, a, b, shares)[0], known["damping_1e6_exact"], 1e-5)
    one = slice(0, 1)
    close(lpa().solved(m[one], a[one], b[one], torch.ones(1).double())[0], known["one_client_exact"], tol)
    close(lpa().solved(m[one], a[one], b[one], torch.ones(1).double())[0], m[0].tolist(), tol)
    same_a, same_b = a[one].expand(2, -1, -1), b[one].expand(2, -1, -1)
    close(lpa().solved(m, same_a, same_b, shares)[0], known["equal_factors_exact"], tol)
    close(lpa().solved(m, same_a, same_b, shares)[0], known["size_weighted_mean"], tol)
    close(lpa().solved(m, same_a, b, shares)[0], known["equal_A_exact"], tol)
    close(lpa(solver="expectation").solved(m, same_a, b, shares)[0], known["equal_A_expectation_approximation"], tol)


def test_factors_of_convolutions_follow_the_oracle():
    known = ORACLE["fedlpa_conv_factors"]
    x, g = (
        double(known["inputs"][key]) for key in ("patches_sample_position_entry", "output_gradients_of_per_sample_loss")
    )
    sums = layer_factors(x, g)
    close(sums.a / len(x), known["expected"]["A"])
    close(sums.b / len(x), known["expected"]["B"])


def test_patches_and_gradients_of_a_convolution_are_those_of_the_layer():
    """E[g x^T] summed over positions is the gradient of the layer's weights."""
    model = models.load("simple-cnn")((1, 16, 16), 3)
    params = {name: leaf.double() for name, leaf in model.init(torch.Generator().manual_seed(0)).items()}
    x = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.tensor([0, 2])
    found = {}
    original = fedlpa.layer_factors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedlpa, "layer_factors", lambda *rows: found.setdefault(len(found), rows) and original(*rows))
        factors_of(model, params, x, y, [*model.layers()])
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    torch.nn.functional.cross_entropy(BoundModel(model, {})(leaves, x), y, reduction="sum").backward()
    for (rows, slopes), layer in zip(found.values(), model.layers(), strict=True):
        joined = torch.einsum("npo,npi->oi", slopes, rows)
        torch.testing.assert_close(joined[:, :-1].flatten(), leaves[f"{layer}.weight"].grad.flatten())
        torch.testing.assert_close(joined[:, -1], leaves[f"{layer}.bias"].grad)


def test_equal_clients_and_strong_damping_give_fedavg():
    task = toy_task(rounds=1)
    average = deployed(OneShot(), task).params
    assert_equal(deployed(FedLPA(damping=1e6), task).params, average, 1e-4)
    base = OneShot(weighting="uniform")
    assert_equal(deployed(FedLPA(base=base, damping=1e6), task).params, deployed(base, task).params, 1e-4)
    near = deployed(FedLPA(), task).params
    assert float((near["linear1.weight"] - average["linear1.weight"]).abs().max()) > 1e-3
    alone = toy_task(sizes=(20,), rounds=1)
    assert_equal(deployed(FedLPA(), alone).params, deployed(OneShot(), alone).params, 1e-6)
    normalised = normalised_task(rounds=1)
    found, mean = deployed(FedLPA(), normalised), deployed(OneShot(), normalised)
    assert torch.equal(found.params["stem.norm.weight"], mean.params["stem.norm.weight"])
    assert not torch.equal(found.params["stem.weight"], mean.params["stem.weight"])


def test_factors_of_some_layers_are_held_at_a_time(monkeypatch):
    task = toy_task(rounds=1, local_epochs=1)
    expected, seen = deployed(FedLPA(), task), []
    original = FedLPA.factors
    monkeypatch.setattr(FedLPA, "factors", lambda *given: seen.append(given[-1]) or original(*given))
    sides = fedlpa.sides_of(task.model)
    assert sides == {"linear1": (37, 64), "linear2": (65, 64), "classifier": (65, 3)}
    largest = 8 * (65**2 + 64**2)
    for most, groups in (
        (largest, [["linear1"], ["linear2"], ["classifier"]]),
        (2 * largest, [["linear1", "linear2"], ["classifier"]]),
    ):
        del seen[:]
        monkeypatch.setattr(fedlpa, "_MOST_BYTES", 5 * most)
        assert_equal(deployed(FedLPA(), task).params, expected.params)
        assert seen == groups
    assert fedlpa.groups_of(sides, 1) == [["linear1"], ["linear2"], ["classifier"]]


def test_conjugate_gradients_stop_at_the_solution_or_at_the_limit():
    square = double([[4.0, 1.0], [1.0, 3.0]])
    apply, same = (lambda x: square @ x), (lambda x: x)
    z, start = double([[1.0], [2.0]]), torch.zeros(2, 1).double()
    found, used = conjugate_gradients(apply, same, z, start, 10)
    assert used == 2
    close(found.flatten(), [1 / 11, 7 / 11])
    assert conjugate_gradients(apply, same, z, start, 1)[1] == 1
    assert conjugate_gradients(apply, same, z, found, 10)[1] == 0


def test_bytes_of_fedlpa_are_those_of_triangles():
    task = paper_task()
    up = FedLPA().deploy_traffic(task, task.model)["bytes_up"] // 10
    assert up == 4 * BYTES["fedlpa_factors_triangles"]
    assert FedLPA().traffic(task) - BYTES["one_way"] == BYTES["fedlpa_up_triangles"]
    sides = [side for pair in fedlpa.sides_of(task.model).values() for side in pair]
    assert sum(side**2 for side in sides) == BYTES["fedlpa_factors_full_matrices"]
    assert 4 * (BYTES["params"] + sum(side**2 for side in sides)) == BYTES["fedlpa_up_full"]
