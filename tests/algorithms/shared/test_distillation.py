"""FedNTD, FedLMD and FedVLS: their losses against numbers of an oracle, and where parts of the classes are empty."""

import itertools
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from algorithms.fedavg import FedAvg
from algorithms.fedlmd import FedLMD
from algorithms.fedntd import FedNTD
from algorithms.fedvls import FedVLS
from algorithms.shared.distillation import masked_divergence
from algorithms.shared.local_sgd import cross_entropy
from algorithms.shared.types import Batch, ClientView
from bench.models.base import BoundModel, Model
from bench.simulation.client import bind
from tests.support.by_hand import double
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import SETTINGS, normalised_task, toy_task, train

ORACLE = oracle("rivals")
GIVEN = ORACLE["fedntd"]["inputs"]  # all three have the same logits
TOLERANCE = {"rtol": 0, "atol": ORACLE["fedntd"]["tol"]}
ENGINES = ["loop", "vectorised"]


@dataclass(frozen=True)
class Given(Model):
    """A model whose param logits [B, num_classes] is what it says about a batch."""

    def features(self, params, x, bound):
        return params["logits"]

    def head(self, params, z):
        return z


def loss_of(method, counts, *, labels=GIVEN["y"], logits=GIVEN["logits"], received=GIVEN["global_logits"], mask=None):
    """The local loss of a batch with these logits, and its gradient [B, num_classes] with respect to them."""
    received = double(received)
    view = ClientView(
        model=BoundModel(Given((1, 1, 1), received.shape[1]), {}, training=True),
        settings=SETTINGS,
        round=1,
        params={"logits": received},
        buffers={},
        server={},
        client={},
        num_examples=double(float(sum(counts))),
        num_steps=double(1.0),
        label_counts=double(counts),
    )
    batch = Batch(torch.zeros(len(labels), 1, 1, 1), torch.tensor(labels), mask)
    own = double(logits).requires_grad_()
    loss = method.local_loss({"logits": own}, batch, view)
    (gradient,) = torch.autograd.grad(loss, own)
    return loss.detach(), gradient


def cross_entropy_of(labels=GIVEN["y"], logits=GIVEN["logits"], mask=None):
    own = double(logits).requires_grad_()
    loss = cross_entropy(own, Batch(torch.zeros(len(labels), 1), torch.tensor(labels), mask))
    return loss.detach(), torch.autograd.grad(loss, own)[0]


def assert_close(found, expected, **tolerance):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **(tolerance or TOLERANCE))


def assert_same_model(one, other, tolerance=0.0):
    for name, leaf in {**one["params"], **one["buffers"]}.items():
        torch.testing.assert_close(leaf, {**other["params"], **other["buffers"]}[name], rtol=0, atol=tolerance)


EQUAL = [25.0] * 4


# Oracles


@pytest.mark.parametrize("temperature", [1, 3])
def test_fedntd_follows_the_oracle(temperature):
    known = ORACLE["fedntd"]["expected"][f"tau{temperature}"]
    found = loss_of(FedNTD(beta=1, temperature=temperature), EQUAL)
    assert_close(found, (double(known["loss"]), double(known["grad_loss"])))
    loss, gradient = cross_entropy_of()
    assert_close((found[0] - loss, found[1] - gradient), (double(known["ntd"]), double(known["grad_ntd"])))


def test_fedlmd_follows_the_oracle():
    known, counts = ORACLE["fedlmd"]["expected"], ORACLE["fedlmd"]["inputs"]["class_counts"]
    found = loss_of(FedLMD(), counts)
    assert_close(found, (double(known["loss"]), double(known["grad_loss"])))
    ce, _ = cross_entropy_of()
    assert_close(
        (found[0] - ce, loss_of(FedLMD(teacher_free=True), counts)[0] - ce, loss_of(FedLMD(), EQUAL)[0] - ce),
        [double(known[name]) for name in ("lmd", "lmd_teacher_free", "lmd_empty_majority")],
    )


@pytest.mark.parametrize("case", ["two_vacant", "one_vacant"])
@pytest.mark.parametrize("variant", ["code", "paper"])
def test_fedvls_follows_the_oracle(case, variant):
    known = ORACLE["fedvls"]["expected"][case]
    counts, how = [10 * share for share in known["prior"]], {"labels": known["y"]}
    found = loss_of(FedVLS(variant=variant), counts, **how)
    assert_close(found, (double(known[f"loss_{variant}"]), double(known[f"grad_{variant}"])))
    calibrated, _ = loss_of(FedVLS(0, 0, variant), counts, **how)
    distilled, _ = loss_of(FedVLS(1, 0, variant), counts, **how)
    suppressed, _ = loss_of(FedVLS(0, 1, variant), counts, **how)
    last = double(known["L_logit_code_before_0.005" if variant == "code" else "L_logit_paper"])
    assert_close((distilled - calibrated, suppressed - calibrated), (double(known["L_dis"]), last))
    if variant == "code":  # the oracle's L_cal has 1e-9 in the logarithm
        assert_close([calibrated], [double(known["L_cal"])])


# Identities


def balanced(task):
    """The task with as many examples of each class as of any other at every client."""
    rows = torch.arange(len(task.federation.labels))
    counts = torch.stack([torch.full((3,), len(client) / 3, dtype=torch.float64) for client in task.federation.clients])
    return replace(task, federation=replace(task.federation, labels=rows % 3, label_counts=counts))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "method", [FedNTD(beta=0), FedLMD(beta=0), FedLMD(beta=0, teacher_free=True)], ids=["fedntd", "fedlmd", "fedlmd-tf"]
)
def test_without_distillation_a_client_trains_as_in_fedavg(method, engine):
    task = toy_task(engine=engine, participation=0.6)
    assert_same_model(train(method, task), train(FedAvg(), task))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("variant", ["code", "paper"])
def test_fedvls_with_nothing_but_equal_counts_is_fedavg(variant, engine):
    task = balanced(toy_task(engine=engine, sizes=(12, 3, 21, 9)))
    assert_same_model(train(FedVLS(0, 0, variant), task), train(FedAvg(), task))
    unbalanced = toy_task(engine=engine, rounds=1)
    changed, plain = (train(method, unbalanced)["params"] for method in (FedVLS(0, 0, variant), FedAvg()))
    assert not torch.equal(changed["classifier.weight"], plain["classifier.weight"])


def test_without_distillation_running_statistics_are_those_of_fedavg():
    """The teacher's forward passes leave the student's as they are."""
    task = normalised_task(rounds=2)
    expected = train(FedAvg(), task)
    for method in (FedNTD(beta=0), FedLMD(beta=0)):
        assert_same_model(train(method, task), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_in_the_first_step_of_a_round_the_divergence_of_fedntd_and_its_gradient_are_zero(engine):
    task = toy_task(engine=engine, local_epochs=None, local_steps=1)
    assert_same_model(train(FedNTD(beta=10), task), train(FedAvg(), task), 1e-12)
    longer = replace(task, settings=replace(task.settings, local_steps=2))
    ntd, avg = (train(method, longer)["params"]["classifier.weight"] for method in (FedNTD(beta=10), FedAvg()))
    assert (ntd - avg).abs().max() > 1e-6
    # FedLMD's student knows more classes than its teacher teaches.
    lmd, avg = (train(method, task)["params"]["classifier.weight"] for method in (FedLMD(), FedAvg()))
    assert (lmd - avg).abs().max() > 1e-6


def test_fedntd_says_nothing_about_the_logit_of_the_label():
    _, strong = loss_of(FedNTD(beta=100), EQUAL)
    _, gradient = cross_entropy_of()
    rows, labels = torch.arange(3), torch.tensor(GIVEN["y"])
    assert torch.equal(strong[rows, labels], gradient[rows, labels])


def test_fedlmd_without_majority_classes_is_fedntd():
    assert_close(loss_of(FedLMD(), EQUAL), loss_of(FedNTD(), EQUAL), rtol=0, atol=0)
    assert loss_of(FedLMD(), [8.0, 7, 7, 7])[0] != loss_of(FedNTD(), EQUAL)[0]


# Empty parts, and the smallest ones


@pytest.mark.parametrize(
    "method", [FedNTD(), FedLMD(), FedLMD(teacher_free=True)], ids=["fedntd", "fedlmd", "fedlmd-tf"]
)
def test_with_two_classes_there_is_nothing_to_distil(method):
    how = {"labels": [0, 1, 1], "logits": [[2.0, 1.0], [0.5, -3.0], [0.0, 4.0]]}
    expected = cross_entropy_of(**how)
    for counts in ([5.0, 5.0], [9.0, 1.0], [10.0, 0.0]):
        assert_close(loss_of(method, counts, **how, received=[[-1.0, 1.0], [0.0, 3.0], [1.0, 1.0]]), expected)


@pytest.mark.parametrize("teacher_free", [False, True])
def test_an_example_whose_other_classes_are_majority_classes_is_not_distilled(teacher_free):
    counts = [30.0, 30.0, 30.0, 2.0]  # of an example of class 3 all other classes are majority classes
    method = FedLMD(beta=5, teacher_free=teacher_free)
    loss, gradient = loss_of(method, counts, labels=[3, 3, 3])
    assert_close((loss, gradient), cross_entropy_of(labels=[3, 3, 3]), rtol=0, atol=0)
    # Beside another example it adds 0 to the mean, not NaN, and has the gradient of its cross-entropy.
    mixed, slope = loss_of(method, counts, labels=[3, 2, 3])
    plain, expected = cross_entropy_of(labels=[3, 2, 3])
    assert mixed > plain + 0.01 and torch.equal(slope[[0, 2]], expected[[0, 2]])
    assert (slope[1] - expected[1]).abs().max() > 0.01


def test_fedvls_distils_nothing_where_less_than_two_classes_are_vacant():
    for counts in (EQUAL, [60.0, 20.0, 20.0, 0.0]):
        known = {"labels": [0, 2, 1]}
        for variant in ("code", "paper"):
            without, with_ = (loss_of(FedVLS(weight, None, variant), counts, **known) for weight in (0, 50))
            assert_close(with_, without, rtol=0, atol=0)
    less, more = (loss_of(FedVLS(weight), [60.0, 0.0, 40.0, 0.0], labels=[0, 2, 0])[0] for weight in (0, 50))
    assert more > less


def test_the_distillation_of_fedvls_moves_the_model_from_the_second_step_of_a_round_on():
    """In the first step teacher and student agree. One client of the toy task lacks two of three classes; little but a large
    weight decay moves its logits of those."""
    moved = {}
    for engine, steps in itertools.product(ENGINES, (1, 2)):
        task = toy_task(engine=engine, local_epochs=None, local_steps=steps, rounds=1, weight_decay=0.5)
        weak, strong = (train(FedVLS(weight), task)["params"]["classifier.weight"] for weight in (0, 50))
        moved[engine, steps] = strong - weak
    for engine in ENGINES:
        assert moved[engine, 1].abs().max() < 1e-14 and moved[engine, 2].abs().max() > 1e-5
    torch.testing.assert_close(moved["loop", 2], moved["vectorised", 2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", ["code", "paper"])
def test_fedvls_at_a_client_with_one_class_by_hand(variant):
    """Its cross-entropy is 0 (code: up to 1e-9), and so is L_logit: no logit of its class is wrong. The three vacant classes
    are distilled."""
    labels, vacant = [1, 1, 1], [0, 2, 3]
    loss, gradient = loss_of(FedVLS(2.0, 1.0, variant), [0.0, 8.0, 0.0, 0.0], labels=labels)
    q, wanted = (F.log_softmax(double(GIVEN[name])[:, vacant], 1) for name in ("logits", "global_logits"))
    divergence = (wanted.exp() * (wanted - q)).sum(1).mean()
    torch.testing.assert_close(loss, 2 * divergence, rtol=0, atol=1e-7)
    torch.testing.assert_close(gradient[:, vacant], 2 * (q.exp() - wanted.exp()) / 3, rtol=0, atol=1e-7)
    assert gradient[:, 1].abs().max() < 1e-7


def test_a_batch_of_one_class_leaves_that_class_out_of_the_paper_form_of_fedvls():
    """Shares 0.5, 0.25, 0.25 and labels 0: classes 1 and 2 add 0.25 log mean exp of their logits, class 0 nothing."""
    logits, counts = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [4.0, 2.0, 2.0]
    how = {"labels": [0, 0], "logits": logits, "received": logits}
    off, on = (loss_of(FedVLS(0, weight, "paper"), counts, **how) for weight in (0, 1))
    others = (double(logits).logsumexp(0) - double(2.0).log())[1:]
    torch.testing.assert_close(on[0] - off[0], 0.25 * others.sum(), **TOLERANCE)
    assert torch.equal((on[1] - off[1])[:, 0], double([0.0, 0.0]))


ALL = [FedNTD(), FedLMD(), FedLMD(teacher_free=True), FedVLS(), FedVLS(variant="paper")]
IDS = ["fedntd", "fedlmd", "fedlmd-tf", "fedvls", "fedvls-paper"]


@pytest.mark.parametrize("method", ALL, ids=IDS)
@pytest.mark.parametrize("counts", [EQUAL, [60.0, 5.0, 35.0, 0.0], [50.0, 0.0, 50.0, 0.0]])
def test_padding_rows_count_for_nothing(method, counts):
    """Whatever their labels, which may be those of classes that the client lacks, and their logits."""
    real = {"labels": [0, 2], "logits": GIVEN["logits"][:2], "received": GIVEN["global_logits"][:2]}
    loss, gradient = loss_of(method, counts, **real)
    for label, value in itertools.product((1, 3), (-1e4, 1e4)):
        padded = {
            "labels": [0, 2, label],
            "logits": [*GIVEN["logits"][:2], [value, 0.0, -value, 1.0]],
            "received": GIVEN["global_logits"],
        }
        found = loss_of(method, counts, **padded, mask=torch.tensor([True, True, False]))
        assert_close(found, (loss, torch.cat([gradient, double([[0.0] * 4])])), rtol=0, atol=1e-14)
    nothing = loss_of(method, counts, mask=torch.tensor([False] * 3))
    assert_close(nothing, (double(0.0), torch.zeros(3, 4, dtype=torch.float64)), rtol=0, atol=0)


@pytest.mark.parametrize("method", ALL, ids=IDS)
def test_losses_and_gradients_are_finite_at_large_logits_of_batches_of_one(method):
    for counts, label in itertools.product((EQUAL, [60.0, 5.0, 35.0, 0.0], [0.0, 9.0, 0.0, 0.0]), range(4)):
        if counts[label]:
            for logits in ([[1e4, -1e4, 0.0, 5.0]], [[-1e4, 1e4, 1e3, 0.0]]):
                received = [[-1e4, 0.0, 1e4, -3.0]]
                found = loss_of(method, counts, labels=[label], logits=logits, received=received)
                assert all(part.isfinite().all() for part in found)


def test_divergences_over_empty_parts_are_zero_for_each_client_that_vmap_traces():
    generator = torch.Generator().manual_seed(0)
    own, wanted = (torch.randn(3, 2, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    parts = torch.tensor([[False] * 4, [False, True, False, False], [True, True, False, True]])

    def mean(own, wanted, part):
        return masked_divergence(own, wanted, part, part).mean()

    values = torch.func.vmap(mean)(own, wanted, parts)
    slopes = torch.func.vmap(torch.func.grad(mean))(own, wanted, parts)
    assert torch.equal(values[:2], double([0.0, 0.0])) and torch.equal(slopes[:2], torch.zeros_like(slopes[:2]))
    assert values[2] > 0 and not slopes[2][:, 2].any() and slopes[2][:, 0].all()


# The teacher


@pytest.mark.parametrize("method", [FedNTD(), FedLMD(), FedVLS(variant="paper")], ids=["fedntd", "fedlmd", "fedvls"])
def test_the_teacher_is_the_received_model_in_evaluation_mode(method):
    """With received statistics far from those of the batch, and the student's own moved by earlier batches."""
    task = normalised_task()
    params, received = task.initial_params(), task.initial_buffers()
    # A mean below all outputs of the convolution: no feature is 0 after the ReLU, on either statistics.
    received = {k: leaf - 2 if "mean" in k else leaf + 2 if "var" in k else leaf for k, leaf in received.items()}
    moved = {k: leaf * 3 for k, leaf in received.items()}
    own = {k: leaf + 0.1 for k, leaf in params.items()}
    counts = torch.tensor([6.0, 0.0, 0.0])
    view = ClientView(bind(task.model, moved), SETTINGS, 1, params, received, {}, {}, counts.sum(), counts[0], counts)
    x = torch.rand(6, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0] * 6)
    batch = Batch(x, y)
    student = bind(task.model, moved)(own, x)
    teacher = BoundModel(task.model, received)(params, x)

    loss = method.local_loss(own, batch, view)
    # Of an example of class 0 at a client of class 0, all three distil classes 1 and 2.
    q, wanted = F.log_softmax(student[:, 1:], 1), F.log_softmax(teacher[:, 1:], 1)
    divergence = (wanted.exp() * (wanted - q)).sum(1).mean()
    if isinstance(method, FedVLS):
        expected = 0.1 * divergence  # the rest is 0 at a client with one class
    else:
        expected = F.cross_entropy(student, y) + divergence
    assert divergence > 1e-3
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-6)

    assert torch.equal(view.model.buffers["stem.norm.num_batches_tracked"], torch.tensor(1))
    assert torch.equal(received["stem.norm.running_mean"], torch.full((4,), -2.0))


@pytest.mark.parametrize("method", ALL, ids=IDS)
def test_a_batch_takes_one_forward_pass_and_one_of_the_teacher(method, monkeypatch):
    task, passes = toy_task(rounds=1, local_epochs=1), []
    features = type(task.model).features

    def counted(self, params, x, bound):
        passes.append(bound.training)
        return features(self, params, x, bound)

    monkeypatch.setattr(type(task.model), "features", counted)
    train(method, task)
    steps = sum(task.settings.num_steps(len(client)) for client in task.federation.clients)
    teachers = 0 if getattr(method, "teacher_free", False) else steps
    assert (passes.count(True), passes.count(False)) == (steps, teachers)


# Options


test_a_bad_option_is_refused = refused(
    (lambda: FedNTD(beta=-1), "beta must be at least 0, but got -1."),
    (lambda: FedNTD(temperature=0), "temperature must be greater than 0, but got 0."),
    (lambda: FedLMD(beta=float("nan")), "beta must be at least 0, but got nan."),
    (lambda: FedLMD(temperature=-1), "temperature must be greater than 0, but got -1."),
    (lambda: FedVLS(distillation_weight=-0.1), "distillation_weight must be at least 0, but got -0.1."),
    (lambda: FedVLS(logit_weight=-1), "logit_weight must be at least 0, but got -1."),
    (lambda: FedVLS(variant="port"), "variant must be one of code, paper, but got 'port'."),
)
