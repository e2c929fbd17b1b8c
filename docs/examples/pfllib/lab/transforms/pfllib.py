"""How PFLlib normalises images: dataset/generate_FashionMNIST.py and its neighbours."""

from datasets.transforms import ALL, Recipe, registered_transform


@registered_transform("pfllib", version=1)
def pfllib():
    """Scaling to [-1, 1]."""
    return {"fmnist": Recipe(mean=(0.5,), std=(0.5,)), ALL: Recipe(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))}
