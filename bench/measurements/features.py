"""How the probes of `bench.measurements.specs` are measured; each gives JSON values."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.base import Algorithm, Deployed
from bench.measurements import cka as similarity
from bench.models.base import BoundModel
from bench.simulation.data import stratified_subset

MOST_MODELS = 10  # whose outputs are compared: the first clients of the cohort, as many as the paper has
MOST_IMAGES = 10_000  # on which they are compared, as many as the paper has; all outputs are in memory at once
_BATCH = 500  # images of a minibatch
_COMPONENTS = 50  # of features, before t-SNE


def cka(task: Any, models: dict, estimator: str) -> dict[str, Any]:
    """CKA of the outputs of every layer on test images, of each two local models.

    Args:
        models: of `bench.simulation.local_models.local_models`.
        estimator: "linear" or "minibatch" (see `bench.measurements.cka`).

    Returns:
        "clients": ids [K]; "cohort": how many clients there were; "layers": layer -> [K][K], None where a model's outputs are
        all alike.
    """
    ids = models["ids"][:MOST_MODELS]
    images = _subset(task, MOST_IMAGES)[0]
    sizes, outputs = {}, []
    for position in range(len(ids)):
        bound = BoundModel(task.model, tree.row(models["buffers"], position))
        params = tree.row(models["params"], position)

        def flat(x: Tensor, first: int, bound=bound, params=params) -> Tensor:
            found = {name: output.flatten(1) for name, output in bound.outputs(params, x).items()}
            sizes.update({name: output.shape[1] for name, output in found.items()})
            return torch.cat(list(found.values()), 1)

        outputs.append(task.map_images(flat, images))
    by_layer = [one.split(list(sizes.values()), 1) for one in outputs]
    layers = {}
    for layer, name in enumerate(sizes):
        found = [parts[layer] for parts in by_layer]
        if estimator == "linear":
            layers[name] = _json(similarity.linear_cka(found))
        else:
            batches = [batch for batch in torch.stack(found).split(_BATCH, 1) if batch.shape[1] >= 4]
            layers[name] = _json(similarity.minibatch_cka(batches))
    return {"clients": ids.tolist(), "cohort": len(models["ids"]), "layers": layers}


def weight_norms(task: Any, models: dict) -> dict[str, Any]:
    """L2 norm of the classifier's weights of each class (without bias), at each local model.

    Args:
        models: of `bench.simulation.local_models.local_models`.

    Returns:
        "clients": ids [K]; "label_counts", training examples, and "norms": [K][num_classes].
    """
    ids = models["ids"]
    return {
        "clients": ids.tolist(),
        "label_counts": task.cohort(ids).label_counts.long().tolist(),
        "norms": _json(models["params"]["classifier.weight"].double().norm(dim=2)),
    }


def embedding(task: Any, algorithm: Algorithm, state: dict, kept: dict, points: int) -> dict[str, Any]:
    """t-SNE of the features of test images under the model that the base deploys, after a projection on 50 principal
    components.

    Args:
        algorithm: changes what its base deploys.
        state: with which the base ended.
        kept: "params" and "buffers" of what the algorithm deployed.
        points: test images, at most.

    Returns:
        "points": [n][2]; "labels", and predictions "before" and "after" the method changes the model: [n].
    """
    images, labels = _subset(task, points)
    before = algorithm.base.deploy(algorithm.inside(task), state, torch.arange(task.population))
    after = Deployed(algorithm.deployed_model(task), kept["params"], kept["buffers"], False)
    features = task.map_images(lambda x, first: _bound(before).features(before.params, x), images)
    return {
        "points": _json(torch.from_numpy(_plane(features.double().numpy()))),
        "labels": labels.tolist(),
        "before": _predictions(task, before, images),
        "after": _predictions(task, after, images),
    }


def _subset(task, count: int) -> tuple[Tensor, Tensor]:
    """Test images and labels: so many of them, stratified by class, the same for all runs; all if there are not more."""
    federation = task.federation
    labels = federation.test_labels
    present = len(labels.unique())
    if count + present > len(labels):  # a stratified subset leaves an image of each class out
        return federation.test_images, labels
    rows = torch.from_numpy(stratified_subset(labels.numpy(), max(count, present), seed=0))
    return federation.test_images[rows], labels[rows]


def _bound(deployed: Deployed) -> BoundModel:
    return BoundModel(deployed.model, deployed.buffers)


def _predictions(task, deployed: Deployed, images: Tensor) -> list[int]:
    return task.map_images(lambda x, first: _bound(deployed)(deployed.params, x), images).argmax(1).tolist()


def _plane(features: np.ndarray) -> np.ndarray:
    """[n, d] -> [n, 2] by t-SNE, always from the same start.

    Raises:
        ValueError: if features are not finite, or all alike.
    """
    from sklearn.decomposition import PCA

    if not np.isfinite(features).all() or not np.ptp(features, axis=0).any():
        raise ValueError("features are not finite, or the same for all images")
    reduced = PCA(min(_COMPONENTS, *features.shape), random_state=0).fit_transform(features)
    return tsne(reduced, seed=0)


def tsne(features: np.ndarray, seed: int) -> np.ndarray:
    """[n, d] -> [n, 2], with scikit-learn's default perplexity where there are enough points."""
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(features) - 1) / 3)
    return TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(features)


def _json(values: Tensor) -> Any:
    """Nested lists of numbers with six digits, None for those that are not finite."""
    if values.dim():
        return [_json(part) for part in values]
    return float(f"{values.item():.6g}") if math.isfinite(values.item()) else None
