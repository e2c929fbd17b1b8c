"""Transforms by name: each is a function in a file of this package, or of a lab's folder `transforms` (see `bench.plugins`).

    @registered_transform("mirrored", version=1)
    def mirrored(): return {"cifar10": Recipe(flip=True), ALL: Recipe()}

It returns a recipe for each dataset, and one under `ALL` for those that it does not name, unless it is refused for them. Its
`version` is raised whenever its outputs may change; it is part of the run id.
"""

import inspect
from collections.abc import Mapping

from bench import references
from bench.errors import suggestion, unknown
from bench.registry import Registry, registered_transform
from datasets.transforms.base import ALL, Identity, Recipe, Transform, prepare

__all__ = [
    "ALL",
    "Identity",
    "REGISTRY",
    "Recipe",
    "Transform",
    "build",
    "recipe",
    "recipes_of",
    "registered_transform",
]

REGISTRY = Registry("transform")
_DATASETS = Registry("dataset")


def build(name: str, dataset: str, shape: tuple[int, int, int], device: str = "cpu") -> Transform:
    """The transform of a name for images [C, H, W] of a dataset, with its tensors on a device.

    Raises:
        ValueError: as `recipe`, or if it does not fit the images.
    """
    return prepare(recipe(name, dataset), shape, device)


def recipe(name: str, dataset: str) -> Recipe:
    """The recipe of a transform for a dataset.

    Raises:
        ValueError: if there is no such transform, or it is not defined for the dataset, or its function fails.
    """
    recipes = recipes_of(name)
    called = references.name_of(dataset) if dataset.startswith(f"{references.LAB}:") else dataset
    found = recipes.get(called) or recipes.get(ALL)
    if found is None:
        raise ValueError(f"The transform {name} is defined for {', '.join(recipes)}, but the dataset is {called}.")
    return found


def recipes_of(name: str) -> Mapping[str, Recipe]:
    """Dataset, or `ALL` -> the recipe of a transform for it; raises ValueError as `recipe`."""
    entry = REGISTRY.find(name)
    version_of(name)
    function = entry.load()
    try:
        recipes = function()
    except Exception as error:  # whatever the code of a lab raises
        raise ValueError(entry.failure(error)) from error
    if not (isinstance(recipes, Mapping) and recipes and all(isinstance(one, Recipe) for one in recipes.values())):
        raise ValueError(
            f"{entry.target} in {entry.place} must return a Recipe for each dataset, as {{ALL: Recipe(flip=True)}}, but "
            f"returned {recipes!r:.80}."
        )
    known = [*_DATASETS, ALL]
    for key in recipes:
        # Others may be of a lab whose folder is not in use.
        if key not in known and not references.is_dataset(key) and suggestion(key, known):
            where = f"{entry.target} in {entry.place}, line {inspect.unwrap(function).__code__.co_firstlineno}"
            raise ValueError(f"{where}: {unknown('dataset', key, known)}")
    return recipes


def version_of(name: str) -> int:
    """The version of a transform; raises ValueError if its decorator says something else than that."""
    entry = REGISTRY.find(name)
    if odd := [key for key in entry.options if key != "version"]:
        known = ["version", "description"]
        raise ValueError(f"{entry.place}: {unknown('argument of registered_transform', odd[0], known)}")
    version = entry.options.get("version", 1)
    if type(version) is not int or version < 1:
        raise ValueError(f"{entry.place}: version must be a whole number from 1 on, but got {version!r}.")
    return version
