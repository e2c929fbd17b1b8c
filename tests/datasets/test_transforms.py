"""Transforms: each step against NumPy and PIL."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from datasets import transforms

SHAPE = (3, 32, 32)


@pytest.fixture
def images():
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, *SHAPE), dtype=np.uint8))


def reference_crop(image: np.ndarray, offset_y: int, offset_x: int, mirrored: bool, mode: str) -> np.ndarray:
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode=mode)
    crop = padded[:, offset_y : offset_y + 32, offset_x : offset_x + 32]
    return crop[:, :, ::-1] if mirrored else crop


@pytest.mark.parametrize("dataset, mode", [("cifar10", "reflect"), ("cifar100", "constant")])
def test_crop_and_flip_equal_padding_slicing_and_mirroring(images, dataset, mode):
    transform = transforms.build("fedconcat", dataset, SHAPE)
    cases = [(0, 0, 0), (8, 8, 1), (4, 4, 0), (4, 4, 1), (1, 7, 1)]
    draws = {"crop": torch.tensor([(y * 9 + x) * 2 + flip for y, x, flip in cases])}
    if dataset == "cifar100":
        draws["angle"] = torch.zeros(len(cases))
    augmented = transform.augment(images, draws)
    for image, result, (y, x, flip) in zip(images.numpy(), augmented.numpy(), cases, strict=True):
        np.testing.assert_array_equal(result, reference_crop(image, y, x, flip, mode))


@pytest.mark.parametrize("degrees", [-15.0, -7.3, 0.0, 3.9, 14.2])
def test_rotation_equals_pils_nearest_rotation_with_zero_fill(images, degrees):
    transform = transforms.build("fedconcat", "cifar100", SHAPE)
    centred = torch.full((5,), (4 * 9 + 4) * 2)
    result = transform.augment(images, {"crop": centred, "angle": torch.full((5,), math.radians(degrees))}).numpy()
    for image, rotated in zip(images.numpy(), result, strict=True):
        expected = np.asarray(Image.fromarray(image.transpose(1, 2, 0)).rotate(degrees)).transpose(2, 0, 1)
        assert (expected != rotated).any(0).mean() < 0.005  # a source centre may round to either side of a pixel edge


def test_draws_cover_all_crops_and_flips_and_angles_alike():
    transform = transforms.build("fedconcat", "cifar100", SHAPE)
    draws = transform.draw(40_000, torch.Generator().manual_seed(0))
    counts = torch.bincount(draws["crop"], minlength=162)
    assert counts.min() > 180 and counts.max() < 320  # 247 expected, standard deviation 16
    assert draws["angle"].abs().max() <= math.radians(15) and abs(draws["angle"].mean()) < 0.005


def test_draws_are_those_of_the_generator():
    transform = transforms.build("fedconcat", "cifar10", SHAPE)
    one, same, other = (transform.draw(50, torch.Generator().manual_seed(seed))["crop"] for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize("name, dataset", [("fedconcat", "svhn"), ("fedconcat", "fmnist"), ("none", "cifar10")])
def test_without_augmentation_images_are_only_scaled(images, name, dataset):
    transform = transforms.build(name, dataset, SHAPE)
    assert transform.draw(5, torch.Generator()) == {}
    x = transform.scale(transform.augment(images, {}), torch.float32)
    torch.testing.assert_close(x, images.float() / 255)


def test_normalisation_is_that_of_the_digest(images):
    transform = transforms.build("fedconcat", "cifar100", SHAPE)
    x = transform.scale(torch.full((1, *SHAPE), 255, dtype=torch.uint8), torch.float64)
    expected = [(1 - 0.50708) / 0.26733, (1 - 0.48655) / 0.25644, (1 - 0.44092) / 0.27615]
    assert x[0, :, 0, 0].tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "dataset, mean, std",
    [
        ("mnist", [0.1307], [0.3081]),
        ("femnist", [0.5], [-0.5]),
        ("cifar10", [0.5] * 3, [0.5] * 3),
        ("cifar100", [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
        ("cifar100-coarse", [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
    ],
)
def test_images_of_fedcat_are_normalised_and_not_augmented(dataset, mean, std):
    transform = transforms.build("fedcat", dataset, (len(mean), 4, 4))
    assert not transform.random and transform.draw(5, torch.Generator()) == {}
    x = transform.scale(torch.full((1, len(mean), 4, 4), 51, dtype=torch.uint8), torch.float64)
    assert x[0, :, 0, 0].tolist() == pytest.approx([(0.2 - m) / s for m, s in zip(mean, std, strict=True)], abs=1e-6)


@pytest.mark.parametrize(
    "dataset, mean, std",
    [
        ("fmnist", [0.2860], [0.3530]),
        ("cifar10", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
        ("cifar100-coarse", [0.5071, 0.4866, 0.4409], [0.2673, 0.2564, 0.2762]),
    ],
)
def test_images_of_fedcollab_are_normalised_as_in_its_digest_and_not_augmented(dataset, mean, std):
    transform = transforms.build("fedcollab", dataset, (len(mean), 4, 4))
    assert not transform.random and transform.draw(5, torch.Generator()) == {}
    x = transform.scale(torch.full((1, len(mean), 4, 4), 51, dtype=torch.uint8), torch.float64)
    assert x[0, :, 0, 0].tolist() == pytest.approx([(0.2 - m) / s for m, s in zip(mean, std, strict=True)], abs=1e-6)


def test_augmentation_can_be_traced_by_vmap(images):
    for dataset in ("cifar10", "cifar100"):
        transform = transforms.build("fedconcat", dataset, SHAPE)
        draws = transform.draw(6, torch.Generator().manual_seed(0))
        stacked = images[:3].repeat(2, 1, 1, 1).view(2, 3, *SHAPE)
        pairs = {key: leaf.view(2, 3) for key, leaf in draws.items()}
        together = torch.func.vmap(transform.augment)(stacked, pairs)
        assert torch.equal(together.flatten(0, 1), transform.augment(stacked.flatten(0, 1), draws))


def test_tinyimagenet_is_decoded_at_32_pixels_for_the_papers():
    assert transforms.recipe("fedconcat", "tinyimagenet").image_size == 32
    assert transforms.recipe("none", "tinyimagenet").image_size is None


@pytest.mark.parametrize(
    "name, defined",
    [("moon", "cifar10, cifar100, cinic10"), ("fedcat", "mnist, cifar10, cifar100, cifar100-coarse, femnist")],
)
def test_transforms_are_refused_where_no_source_defines_them(name, defined):
    with pytest.raises(ValueError) as error:
        transforms.recipe(name, "digits")
    assert str(error.value) == f"The transform {name} is defined for {defined}, but the dataset is digits."


def test_unknown_transform_names_the_nearest():
    with pytest.raises(ValueError, match="Unknown transform 'fedconcta'. Did you mean 'fedconcat'?"):
        transforms.recipe("fedconcta", "cifar10")
