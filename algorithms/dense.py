"""DENSE: a generator makes images on which one student learns what all clients' models say together.

dense: A generator makes images on which one student learns what all clients' models say together; needs a GPU.
f-dafl: FedDF's distillation from the mean of the models, on images of a generator of DAFL's; needs a GPU.
co-boosting: DENSE on harder images, from an ensemble whose weights improve with them; needs a GPU.

Zhang, Chen, Li, Lyu, Wu, Ding, Shen and Wu, DENSE: Data-Free One-Shot Federated Learning, NeurIPS 2022.
https://arxiv.org/abs/2112.12371
Lin, Kong, Stich and Jaggi, Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020.
https://arxiv.org/abs/2006.07242
Chen et al., Data-Free Learning of Student Networks, ICCV 2019. https://arxiv.org/abs/1904.01186
Dai, Zhang, Li, Liu, Yang and Han, Enhancing One-Shot Federated Learning Through Data and Ensemble Co-Boosting, ICLR 2024.
https://arxiv.org/abs/2402.15070
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

import algorithms
from algorithms import Cohort, Deployed, Task, Tree, above, at_least, one_of, registered, tree
from algorithms.oneshot import Combination
from algorithms.shared.checks import noisy_inputs
from algorithms.shared.synthesis import (
    Normalisations,
    adversarial_loss,
    dafl_loss,
    divergences,
    generate,
    init_generator,
    label_loss,
    reweighed,
    shifted,
    teacher_of,
)
from algorithms.shared.types import RunConfig
from bench.models.base import BoundModel

Synthesis = Literal["dense", "dafl"]
StudentInit = Literal["random", "mean"]

_IMAGES_PER_SECOND = 31  # generated on one core, with the simple CNN at 3x32x32 and 10 clients


@registered("dense", title="DENSE")
@registered("f-dafl", title="F-DAFL", loss="dafl", student_init="mean", temperature=1.0)
@registered(
    "co-boosting",
    title="Co-Boosting",
    bn_weight=0.0,
    adversarial_temperature=3.0,
    masked=False,
    crop=False,
    temperature=4.0,
    student_lr=0.01,
    student_weight_decay=1e-4,
    cosine=True,
    clip=10.0,
    hardness=1.0,
    weight_step=0.01,
    shift=8.0,
)
@dataclass(frozen=True)
class Dense(Combination):
    """A generator's images teach one student what the clients' models say together.

    With the logits z_i of the clients' models, the teacher t = sum_i w_i z_i / sum_i w_i, and the student's logits s, an epoch

    1. draws a new generator and noises, and takes 30 steps of Adam (0.001, betas 0.5 and 0.999) on both, on

           loss dense:  mean (1 - p_y)^hardness CE(t, y) + bn_weight L_bn - adversarial_weight mean T^2 KL(t/T || s/T)
           loss dafl:   CE(t, argmax t) - 0.1 mean |f_t| + 5 sum_c q_c log q_c,

       with random labels y, p_y the teacher's probability, q the mean of its softmaxes, f_t the features of all models, and
       L_bn the sum over all batch normalisations of all clients' models of the distances of variances and of means to running
       ones (`algorithms.shared.synthesis`). If `masked`, KL is of images for which t and s name different classes. With `crop`,
       models see the images after one random crop and flip for the batch. The images of the step with the smallest loss are
       kept, in 8 bits.
    2. for each batch of all images so far, w <- clip(w - weight_step 0.99^epoch sign(grad_w CE(t, y)), 0, 1), from the second
       epoch on; then x + shift / 255 sign(grad_x <u, softmax(t(x) / 4)>) with u uniform in (-1, 1), and one SGD step of the
       student, with momentum 0.9, on T^2 KL(t/T || s/T).

    Weights w begin at 1/m. DENSE has hardness, weight_step and shift 0; Co-Boosting has the values of its code, and with these
    at 0 and a mask it is DENSE. Nothing is exchanged beside the models. Where each client has one class, the teacher knows
    little, and so does the student.

    Cost beside the number of examples: the generator's images, 200 x 30 x 256 by default, go through the models of all clients.
    With ten clients and the simple CNN that takes 14 hours on a core of a CPU, so it needs a GPU.

    Differs from the paper's code: the last student is deployed, there it is the best on the test data. In DENSE's code the
    client models are in a list without hooks, so that L_bn is 0; here it is the paper's. Defaults of DENSE are those of its
    README, not of its argparse, in which both weights are 0. The papers' bodies were not at hand. F-DAFL has no authors' code:
    its constants are those commonly used. What the crop pads, 4 zero pixels, that the student is in evaluation mode in the
    generator's loss, and that distillation sees no augmentation, are ours.

    Attributes:
        loss: of the generator, "dense" or "dafl".
        student_init: the student starts at "random" or as the "mean" of the models.
        distillation_epochs: epochs of generator and student, >= 1.
        generator_steps: per epoch, >= 1.
        synthetic_batch_size: images per epoch and examples per step of the student, >= 2.
        latent_width, generator_channels: of the generator.
        bn_weight, adversarial_weight: of the terms of the loss dense, >= 0.
        adversarial_temperature: T in the loss, > 0.
        masked: KL of the loss dense is only of images for which teacher and student name different classes.
        crop: the generator's loss is of its images after a random crop and flip.
        temperature: T of the distillation, > 0; 20 in DENSE's README, 4 in Co-Boosting's code.
        student_lr, student_weight_decay: of SGD.
        cosine: whether the student's learning rate falls to 0 over the epochs.
        clip: largest norm of the student's gradient; None for no limit.
        hardness: exponent of 1 - p_y in the loss dense, >= 0; the larger, the more images count that the teacher doubts.
        weight_step: mu of the paper, step of the weights w, >= 0.
        shift: of each pixel before the student sees an image, in 255ths of the range of a pixel, >= 0.
    """

    loss: Synthesis = "dense"
    student_init: StudentInit = "random"
    distillation_epochs: int = 200
    generator_steps: int = 30
    synthetic_batch_size: int = 256
    latent_width: int = 256
    generator_channels: int = 64
    bn_weight: float = 1.0
    adversarial_weight: float = 1.0
    adversarial_temperature: float = 1.0
    masked: bool = True
    crop: bool = True
    temperature: float = 20.0
    student_lr: float = 0.005
    student_weight_decay: float = 0.0
    cosine: bool = False
    clip: float | None = None
    hardness: float = 0.0
    weight_step: float = 0.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("loss", self.loss, get_args(Synthesis))
        one_of("student_init", self.student_init, get_args(StudentInit))
        for name in ("distillation_epochs", "generator_steps", "latent_width", "generator_channels"):
            at_least(name, getattr(self, name), 1)
        at_least("synthetic_batch_size", self.synthetic_batch_size, 2)
        for name in ("bn_weight", "adversarial_weight", "student_weight_decay", "hardness", "weight_step", "shift"):
            at_least(name, getattr(self, name), 0)
        for name in ("adversarial_temperature", "temperature", "student_lr"):
            above(name, getattr(self, name), 0)
        if self.clip is not None:
            above("clip", self.clip, 0)

    def validate(self, config: RunConfig) -> list[str]:
        return super().validate(config) + noisy_inputs(algorithms.name_of(self), config.partition)

    def caveats(self, task: Task) -> list[str]:
        images = self.distillation_epochs * self.generator_steps * self.synthetic_batch_size
        hours = images / _IMAGES_PER_SECOND / 3600
        own = (
            f"{algorithms.name_of(self)} needs a GPU: it generates {images:,} images, which take about {hours:.0f} hours on "
            "one core of a CPU with the simple CNN and ten clients."
        )
        return super().caveats(task) + ([own] if hours >= 1 and task.device.type == "cpu" else [])

    def server_examples(self, num_examples: int, num_classes: int) -> int:
        """One for each image of which an epoch computes gradients, through however many models: of each step of the generator,
        of the student, and of the shift."""
        epochs = self.distillation_epochs
        distilled = epochs * (epochs + 1) // 2
        return self.synthetic_batch_size * (epochs * self.generator_steps + distilled * (2 if self.shift else 1))

    def combined(self, task: Task, deployed: Deployed, cohort: Cohort, models: Tree) -> Deployed:
        teachers = Teachers(task, models)
        student = Student(self, task, deployed)
        weights = torch.full((teachers.count,), 1 / teachers.count, dtype=task.dtype, device=task.device)
        pool: list[tuple[Tensor, Tensor]] = []
        for epoch in range(self.distillation_epochs):
            pool.append(self.synthesised(task, teachers, student, weights, epoch))
            weights = self.distilled(task, teachers, student, weights, epoch, pool)
        return deployed._replace(params=student.params(), buffers=student.model.buffers)

    def synthesised(
        self, task: Task, teachers: "Teachers", student: "Student", weights: Tensor, epoch: int
    ) -> tuple[Tensor, Tensor]:
        """Images of a new generator in bytes [B, C, H, W], and their labels."""
        shape, dice = task.model.input_shape, task.generator_for("generator", epoch)
        drawn = init_generator(
            shape, self.latent_width, self.generator_channels, task.generator_for("generator-init", epoch)
        )
        params = {name: leaf.requires_grad_() for name, leaf in task.place(drawn).items()}
        size = self.synthetic_batch_size
        noise = torch.randn(size, self.latent_width, generator=dice).to(task.device, task.dtype).requires_grad_()
        labels = torch.randint(task.model.num_classes, (size,), generator=dice).to(task.device)
        adam = torch.optim.Adam([*params.values(), noise], lr=1e-3, betas=(0.5, 0.999))
        least, best = math.inf, torch.zeros(size, *shape)
        for _ in range(self.generator_steps):
            images = generate(params, noise, shape)
            seen = _augmented(images, dice) if self.crop else images
            loss = self.generator_loss(task, teachers, student, weights, seen, labels)
            if float(loss.detach()) < least or least == math.inf:
                least, best = float(loss.detach()), images.detach()
            adam.zero_grad()
            loss.backward()
            adam.step()
        return (best * 255).round().to(torch.uint8), labels

    def generator_loss(
        self, task: Task, teachers: "Teachers", student: "Student", weights: Tensor, images: Tensor, labels: Tensor
    ) -> Tensor:
        """What the generator minimises, from its images [B, C, H, W] in [0, 1]. Scalar."""
        x = _inputs(task, images)
        with Normalisations() as seen:
            logits, features = teachers(x, with_features=True)
        teacher = teacher_of(logits, weights)
        if self.loss == "dafl":
            return dafl_loss(teacher, features)
        loss = label_loss(teacher, labels, self.hardness) + self.bn_weight * seen.distance
        if not self.adversarial_weight:
            return loss
        said = student.model.copy()(student.leaves, x)
        return loss + self.adversarial_weight * adversarial_loss(
            teacher, said, self.adversarial_temperature, self.masked
        )

    def distilled(
        self,
        task: Task,
        teachers: "Teachers",
        student: "Student",
        weights: Tensor,
        epoch: int,
        pool: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """The teacher's weights after one epoch of the student on all images so far."""
        images, labels = (torch.cat(parts) for parts in zip(*pool, strict=True))
        dice = task.generator_for("generator", epoch, 1)
        step = self.weight_step * 0.99**epoch if epoch else 0.0
        student.sets_rate(epoch)
        for rows in torch.randperm(len(labels), generator=dice).split(self.synthetic_batch_size):
            rows = rows.to(task.device)
            x = _inputs(task, images[rows].to(task.dtype) / 255)
            with torch.no_grad():
                logits, _ = teachers(x)
            weights = reweighed(weights, logits, labels[rows], step)
            if self.shift:
                towards = torch.rand(len(rows), logits.shape[2], generator=dice).to(task.device, task.dtype) * 2 - 1
                current = weights
                x = shifted(x, lambda x: teacher_of(teachers(x)[0], current), towards, _length(task, self.shift / 255))  # noqa: B023
                with torch.no_grad():
                    logits, _ = teachers(x)
            student.learns(x, teacher_of(logits, weights))
        return weights


class Teachers:
    """The clients' models in evaluation mode."""

    def __init__(self, task: Task, models: Tree) -> None:
        """
        Args:
            models: "params" and "buffers", leaves [m, ...].
        """
        self.count = len(next(iter(models["params"].values())))
        parts = [tree.row(models, k) for k in range(self.count)]
        self._models = [(BoundModel(task.model, part["buffers"]), part["params"]) for part in parts]

    def __call__(self, x: Tensor, with_features: bool = False) -> tuple[Tensor, Tensor]:
        """Logits [m, B, C] and, if asked for, the features of all models [B, m d]."""
        features = [model.features(params, x) for model, params in self._models]
        logits = [model.head(params, z) for (model, params), z in zip(self._models, features, strict=True)]
        return torch.stack(logits), torch.cat(features, 1) if with_features else x


class Student:
    """The model that is deployed, while it learns.

    Attributes:
        model: it, in training mode.
        leaves: its params.
    """

    def __init__(self, method: Dense, task: Task, deployed: Deployed) -> None:
        start, buffers = deployed.params, deployed.buffers
        if method.student_init == "random":
            start, buffers = task.initial_params(), task.initial_buffers()
        dice = task.generator_for("dropout", 0, 0)
        self.model = BoundModel(task.model, {name: leaf.clone() for name, leaf in buffers.items()}, True, dice)
        self.leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in start.items()}
        self._method = method
        self._sgd = torch.optim.SGD(
            [*self.leaves.values()], lr=method.student_lr, momentum=0.9, weight_decay=method.student_weight_decay
        )

    def sets_rate(self, epoch: int) -> None:
        """The learning rate of an epoch, from 0."""
        share = 0.5 * (1 + math.cos(math.pi * epoch / self._method.distillation_epochs)) if self._method.cosine else 1.0
        self._sgd.param_groups[0]["lr"] = self._method.student_lr * share

    def learns(self, x: Tensor, teacher: Tensor) -> None:
        """One step towards what the teacher says of a batch."""
        loss = divergences(teacher, self.model(self.leaves, x), self._method.temperature).mean()
        self._sgd.zero_grad()
        loss.backward()
        if self._method.clip is not None:
            torch.nn.utils.clip_grad_norm_([*self.leaves.values()], self._method.clip)
        self._sgd.step()

    def params(self) -> Tree:
        return {name: leaf.detach() for name, leaf in self.leaves.items()}


def _inputs(task: Task, images: Tensor) -> Tensor:
    """Images in [0, 1] as models get them."""
    transform = task.federation.transform
    mean, std = (getattr(transform, name, None) for name in ("mean", "std"))
    return images if mean is None or std is None else (images - mean.to(images.dtype)) / std.to(images.dtype)


def _length(task: Task, length: float) -> Tensor | float:
    """A length in pixels of [0, 1] as one in inputs."""
    std = getattr(task.federation.transform, "std", None)
    return length if std is None else length / std.abs().to(task.dtype)


def _augmented(images: Tensor, dice: torch.Generator) -> Tensor:
    """All images cropped in one random way, of 4 pixels of zero padding, and all or none mirrored."""
    height, width = images.shape[2:]
    top, left, mirrored = (int(torch.randint(count, (1,), generator=dice)) for count in (9, 9, 2))
    found = F.pad(images, (4, 4, 4, 4))[:, :, top : top + height, left : left + width]
    return found.flip(3) if mirrored else found
