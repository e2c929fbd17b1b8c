"""DENSE, F-DAFL and Co-Boosting against oneshot_oracle.json, and what they are without their terms."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import algorithms
from algorithms import dense as module
from algorithms.dense import Dense, Student, Teachers
from algorithms.oneshot import OneShot
from algorithms.shared import tree
from algorithms.shared.synthesis import (
    adversarial_loss,
    bn_distance,
    dafl_loss,
    divergences,
    generate,
    init_generator,
    label_loss,
    reweighed,
    shifted,
    teacher_of,
)
from bench.models.base import BoundModel
from tests.support.by_hand import double
from tests.support.oracles import close, deployed, oracle
from tests.support.toy import NUM_CLASSES, assert_equal, normalised_task, toy_method, toy_task, train

ORACLE = oracle("oneshot")


GIVEN, EXPECTED = (ORACLE["dense_generator"][key] for key in ("inputs", "expected"))
LABELS = torch.tensor(GIVEN["labels"])


def small(name="dense", **options) -> Dense:
    return toy_method(name, **options)


def test_the_loss_of_the_generator_follows_the_oracle():
    """Teachers that pass one normalisation, and a student, which say what the oracle's say."""
    logits, said = (double(GIVEN[key]).requires_grad_() for key in ("client_logits", "student_logits"))
    inputs = double(GIVEN["bn_input_sample_channel_position"]).requires_grad_()
    mean, variance = double(GIVEN["running_mean"]), double(GIVEN["running_var"])

    def teachers(x, with_features=False):
        F.batch_norm(inputs, mean, variance)
        return logits, None

    model = SimpleNamespace(copy=lambda: lambda leaves, x: said)
    task = toy_task()
    arguments = (task, teachers, SimpleNamespace(model=model, leaves={}), double([0.5, 0.5]), torch.zeros(1), LABELS)
    loss = small().generator_loss(*arguments)
    close(loss.item(), EXPECTED["loss"])
    loss.backward()
    # The mean has half of each client's gradient.
    close(logits.grad.sum(0), EXPECTED["grad_teacher"])
    close(said.grad, EXPECTED["grad_student"])
    close(inputs.grad, EXPECTED["grad_bn_input"])
    teacher = teacher_of(logits.detach())
    close(teacher, EXPECTED["teacher"])
    close((teacher.argmax(1) != said.argmax(1)).double(), EXPECTED["mask_disagree"])
    close(label_loss(teacher, LABELS).item(), EXPECTED["L_oh"])
    close(adversarial_loss(teacher, said.detach()).item(), EXPECTED["L_adv"])
    close(bn_distance(inputs.detach(), mean, variance).item(), EXPECTED["L_bn_one_layer"])
    in_repository = adversarial_loss(teacher, said.detach(), 3.0)
    close(in_repository.item(), EXPECTED["L_adv_T3_masked_co_boosting_repository"])
    for options, expected in (
        ({"bn_weight": 0.0}, EXPECTED["L_oh"] + EXPECTED["L_adv"]),
        ({"adversarial_weight": 0.0, "bn_weight": 2.0}, EXPECTED["L_oh"] + 2 * EXPECTED["L_bn_one_layer"]),
        ({"masked": False, "bn_weight": 0.0, "adversarial_temperature": 3.0},
         EXPECTED["L_oh"] + ORACLE["co_boosting"]["expected"]["L_adv_T3_unmasked"]),
    ):  # fmt: skip
        close(small(**options).generator_loss(*arguments).item(), expected)


@pytest.mark.parametrize("temperature", ["T1", "T4", "T20"])
def test_distillation_follows_the_oracle(temperature):
    given, expected = ORACLE["dense_distillation"]["inputs"], ORACLE["dense_distillation"]["expected"][temperature]
    student = double(given["student"]).requires_grad_()
    loss = divergences(double(given["teacher"]), student, float(temperature[1:])).mean()
    loss.backward()
    close(loss.item(), expected["loss"])
    close(student.grad, expected["grad_student"])
    close(divergences(student.detach(), student.detach(), 4.0), [0.0] * 3)


def test_the_loss_of_dafl_follows_the_oracle():
    given, expected = ORACLE["fdafl"]["inputs"], ORACLE["fdafl"]["expected"]
    teacher, features = double(given["teacher"]).requires_grad_(), double(given["teacher_features"])
    loss = dafl_loss(teacher, features, given["alpha"], given["beta"])
    loss.backward()
    close(loss.item(), expected["loss"])
    close(teacher.grad, expected["grad_teacher"])
    assert teacher.argmax(1).tolist() == expected["pseudo_labels"]
    close(dafl_loss(teacher.detach(), features, 0.0, 0.0).item(), expected["L_oh"])
    close(dafl_loss(teacher.detach(), features, 1.0, 0.0).item() - expected["L_oh"], expected["L_act"])
    close(dafl_loss(teacher.detach(), features, 0.0, 1.0).item() - expected["L_oh"], expected["L_ie"])
    sure = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)  # the softmax of two classes is 0
    dafl_loss(sure, features[:1], given["alpha"], given["beta"]).backward()
    assert sure.grad.isfinite().all()
    method = small("f-dafl")
    found = method.generator_loss(
        toy_task(),
        lambda x, with_features: (teacher.detach()[None], features),
        None,
        double([1.0]),
        torch.zeros(1),
        LABELS,
    )
    close(found.item(), expected["loss"])


def test_the_terms_of_co_boosting_follow_the_oracle():
    given, expected = ORACLE["co_boosting"]["inputs"], ORACLE["co_boosting"]["expected"]
    logits, labels = double(given["client_logits"]), torch.tensor(given["labels"])
    teacher = teacher_of(logits).requires_grad_()
    hard = label_loss(teacher, labels, given["hs"])
    hard.backward()
    close(hard.item(), expected["L_hs"])
    close(teacher.grad, expected["grad_L_hs_weights_detached"])
    weights = 1 - teacher.detach().softmax(1)[torch.arange(3), labels]
    close(weights, expected["hardness_weights"])
    adversarial = adversarial_loss(teacher.detach(), double(given["student_logits"]), 3.0, masked=False)
    close(adversarial.item(), expected["L_adv_T3_unmasked"])
    w = double(given["w"]).requires_grad_()
    F.cross_entropy(teacher_of(logits, w), labels).backward()
    close(w.grad, expected["grad_w"])
    new = reweighed(double(given["w"]), logits, labels, given["mu"] * given["decay"] ** given["epoch"])
    close(new, expected["w_new"])
    close(teacher_of(logits, new), expected["teacher_new"])
    assert reweighed(new, logits, labels, 5.0).tolist() in ([1.0, 0.0], [0.0, 1.0])
    x, u, clients = (double(given[key]) for key in ("ods_x", "ods_u", "ods_linear_clients"))
    found = shifted(x, lambda x: teacher_of(x @ clients), u, given["ods_eta"], given["ods_T"])
    close(found, expected["ods_x_new"])
    assert algorithms.presets("co-boosting")["shift"] / 255 == given["ods_eta"]


def test_rounding_takes_no_weight_from_the_last_model():
    left = torch.tensor([0.005, 0.0])
    for seed in range(50):
        draws = torch.Generator().manual_seed(seed)
        logits = 5 * torch.randn(2, 8, NUM_CLASSES, generator=draws)
        assert reweighed(left, logits, torch.randint(NUM_CLASSES, (8,), generator=draws), 0.01).any()


def test_the_generator_has_the_size_of_the_code():
    params = init_generator((3, 32, 32), 256, 64, torch.Generator().manual_seed(0))
    assert (
        sum(leaf.numel() for leaf in params.values())
        == ORACLE["oneshot_bytes"]["expected"]["dense_generator_nz256_ngf64_32x32x3"]
    )
    for shape in ((3, 32, 32), (1, 28, 28), (1, 6, 5)):
        params = init_generator(shape, 6, 4, torch.Generator().manual_seed(0))
        images = generate(params, torch.randn(4, 6), shape)
        assert images.shape == (4, *shape) and 0 < images.min() and images.max() < 1


def test_co_boosting_without_its_terms_is_dense():
    task = toy_task(rounds=1, local_epochs=1)
    dense = {option: getattr(Dense, option) for option in algorithms.presets("co-boosting")}
    assert_equal(deployed(small("co-boosting", **dense), task).params, deployed(small(), task).params)


def test_a_student_that_says_what_the_teacher_says_stays():
    task = toy_task(sizes=(13,), rounds=1, local_epochs=1)
    method = small(student_init="mean", adversarial_weight=0.0)
    found, model = deployed(method, task).params, deployed(OneShot(), task).params
    for name, leaf in found.items():
        torch.testing.assert_close(leaf, model[name], rtol=0, atol=1e-9)


def test_students_start_and_step_as_the_options_say():
    task = toy_task(rounds=1, local_epochs=1)
    mean = deployed(OneShot(), task)
    assert_equal(Student(small(), task, mean).params(), task.initial_params())
    assert_equal(Student(small(student_init="mean"), task, mean).params(), mean.params)
    x = torch.rand(4, 1, 6, 6, dtype=torch.float64)
    moved = {}
    for clip in (None, 1e9, 1e-3):
        student = Student(small(clip=clip), task, mean)
        student.learns(x, double([[9.0, 0.0, 0.0]] * 4))
        moved[clip] = tree.norm(tree.subtract(student.params(), task.initial_params())).item()
    assert moved[None] == moved[1e9] > moved[1e-3]
    assert moved[1e-3] == pytest.approx(1e-3 * 0.005, rel=1e-3)
    student = Student(small(cosine=True), task, mean)
    rates = []
    for epoch in range(2):
        student.sets_rate(epoch)
        rates.append(student._sgd.param_groups[0]["lr"])
    assert rates == pytest.approx([0.005, 0.0025])


def test_running_statistics_are_seen_by_the_generator_and_moved_by_the_student():
    task = normalised_task(rounds=1, local_epochs=1)
    first, second = (deployed(small(bn_weight=weight), task) for weight in (0.0, 10.0))
    assert not torch.equal(first.params["stem.weight"], second.params["stem.weight"])
    steps = 1 + 2  # of one batch of images in the first epoch, two in the second
    assert first.buffers["stem.norm.num_batches_tracked"].item() == steps


def test_the_teacher_is_the_clients_models():
    task = toy_task(rounds=1, local_epochs=1)
    _, models = OneShot().trained(task, train(OneShot(), task))
    logits, features = Teachers(task, models)(torch.rand(2, 1, 6, 6, dtype=torch.float64), with_features=True)
    assert logits.shape == (5, 2, 3) and features.shape == (2, 5 * 64)


def test_images_are_normalised_and_shifts_are_of_pixels():
    task = toy_task(shape=(1, 16, 16), dataset="mnist", transform="fedcat")
    transform = task.federation.transform
    pixels = torch.randint(0, 256, (2, 1, 16, 16), dtype=torch.uint8)
    torch.testing.assert_close(module._inputs(task, pixels.double() / 255), transform.scale(pixels, torch.float64))
    torch.testing.assert_close(module._length(task, 0.5), 0.5 / transform.std.double())
    assert module._length(toy_task(), 0.5) == 0.5
    images = torch.rand(2, 1, 16, 16)
    seen = [module._augmented(images, torch.Generator().manual_seed(seed)) for seed in range(20)]
    assert all(one.shape == images.shape for one in seen)
    assert len({one.sum().item() for one in seen}) > 10


@pytest.mark.parametrize("name", ["dense", "f-dafl", "co-boosting"])
def test_the_hours_are_said(name):
    task = toy_task(rounds=1)
    assert algorithms.make(name).caveats(task) == [
        f"{name} needs a GPU: it generates 1,536,000 images, which take about 14 hours on one core of a CPU with the "
        "simple CNN and ten clients."
    ]
    assert small(name).caveats(task) == [] and "needs a GPU" in algorithms.describe(name)
    assert Dense().traffic(task) == OneShot().traffic(task)


def softened(teacher, student, temperature):
    """T^2 KL of each row."""
    said = (teacher / temperature).softmax(1)
    return temperature**2 * (said * (said.log() - (student / temperature).log_softmax(1))).sum(1)


def by_hand(method, task):
    """Params of the student and weights of the teacher after all epochs, and in which steps the best images were."""
    _, models = OneShot().trained(task, train(OneShot(), task))
    clients = [tree.row(models["params"], k) for k in range(task.population)]
    network, shape, size = BoundModel(task.model, {}), task.model.input_shape, method.synthetic_batch_size
    w = torch.full((task.population,), 1 / task.population).double()

    def teacher(x):
        return sum(own * network(params, x) for own, params in zip(w, clients, strict=True)) / w.sum()

    leaves = {name: leaf.clone().requires_grad_() for name, leaf in task.initial_params().items()}
    sgd = torch.optim.SGD(leaves.values(), 0.01, momentum=0.9, weight_decay=1e-4)
    images, labels, best = [], [], []
    for epoch in range(method.distillation_epochs):
        dice = task.generator_for("generator", epoch)
        first = init_generator(
            shape, method.latent_width, method.generator_channels, task.generator_for("generator-init", epoch)
        )
        params = {name: leaf.double().requires_grad_() for name, leaf in first.items()}
        noise = torch.randn(size, method.latent_width, generator=dice).double().requires_grad_()
        y = torch.randint(NUM_CLASSES, (size,), generator=dice)
        adam, tried = torch.optim.Adam([*params.values(), noise], 1e-3, (0.5, 0.999)), []
        for _ in range(method.generator_steps):
            made = generate(params, noise, shape)
            seen = module._augmented(made, dice)
            t = teacher(seen)
            own = t.softmax(1)[torch.arange(size), y]
            loss = (-(1 - own.detach()) * own.log()).mean() - softened(t, network(leaves, seen), 3.0).mean()
            tried.append((loss.item(), (made.detach() * 255).round() / 255))
            adam.zero_grad()
            loss.backward()
            adam.step()
        best.append(min(range(len(tried)), key=lambda step: tried[step][0]))
        images, labels = [*images, tried[best[-1]][1]], [*labels, y]
        dice = task.generator_for("generator", epoch, 1)
        sgd.param_groups[0]["lr"] = 0.01 * (1 + math.cos(math.pi * epoch / method.distillation_epochs)) / 2
        for rows in torch.randperm(size * len(images), generator=dice).split(size):
            x, y = torch.cat(images)[rows], torch.cat(labels)[rows]
            if epoch:
                w.requires_grad_()
                (slope,) = torch.autograd.grad(F.cross_entropy(teacher(x), y), w)
                w = (w.detach() - method.weight_step * 0.99**epoch * slope.sign()).clamp(0, 1)
            u = torch.rand(size, NUM_CLASSES, generator=dice).double() * 2 - 1
            x.requires_grad_()
            (slope,) = torch.autograd.grad((u * (teacher(x) / 4).softmax(1)).sum(), x)
            x = x.detach() + 8 / 255 * slope.sign()
            sgd.zero_grad()
            softened(teacher(x).detach(), network(leaves, x), 4.0).mean().backward()
            torch.nn.utils.clip_grad_norm_(leaves.values(), 10.0)
            sgd.step()
    return {name: leaf.detach() for name, leaf in leaves.items()}, w, best


def test_epochs_follow_one_another_as_by_hand(monkeypatch):
    task = toy_task(sizes=(9, 6), rounds=1, local_epochs=1)
    method, weights = small("co-boosting", crop=True, weight_step=0.2, generator_steps=4), []
    original = Dense.distilled
    monkeypatch.setattr(Dense, "distilled", lambda *given: weights.append(original(*given)) or weights[-1])
    expected, w, best = by_hand(method, task)
    assert any(step < 3 for step in best), "the last images are not always the best ones"
    found = deployed(method, task).params
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(weights[-1], w)
    assert weights[0].tolist() == [0.5, 0.5] and weights[1].tolist() != [0.5, 0.5]


@pytest.mark.parametrize("shift", [0.0, 8.0])
def test_images_of_which_gradients_are_computed_count(shift, monkeypatch):
    task, rows = toy_task(rounds=1, local_epochs=1), []

    def counted(where, name, images):
        original = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *given: rows.append(len(images(*given))) or original(*given))

    counted(Dense, "generator_loss", lambda *given: given[-1])
    counted(Student, "learns", lambda student, x, teacher: x)
    counted(module, "shifted", lambda x, *_: x)
    method = small(shift=shift)
    assert deployed(method, task).examples == sum(rows) == method.server_examples(task.population, 3) > 0


def test_dense_has_the_training_of_oneshot_and_nothing_more_to_send():
    task = toy_task(rounds=1)
    assert train(small(), task)["costs"] == train(OneShot(), task)["costs"]
    with pytest.raises(ValueError, match="synthetic_batch_size must be at least 2"):
        replace(small(), synthetic_batch_size=1)
