"""How the probes of `bench.probes` are measured; each gives JSON values."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithms import tree
from algorithms.base import Algorithm, Deployed, RoundBased
from bench import similarity
from bench.models.base import BoundModel
from bench.probes import Probe
from bench.run import FINAL, stratified_subset
from reports import feature_views

MOST_MODELS = 10  # whose outputs are compared: the first clients of the cohort, as many as the paper has
_BATCH = 500  # images of a minibatch
_COMPONENTS = 50  # of features, before t-SNE


def needs(probe: Probe, algorithm: Algorithm) -> str | None:
    """The file with the state on which a probe is measured; None where the method has nothing to measure.

    A method that is post-hoc has no local models; without one, there are no predictions before and after it.
    """
    if probe.kind == "embedding":
        return FINAL if algorithm.post_hoc else None
    return f"local-models-{probe.round:04d}.pt" if isinstance(algorithm, RoundBased) else None


def cka(probe: Probe, task: Any, algorithm: Algorithm, models: dict) -> dict[str, Any]:
    """CKA of the outputs of every layer on all test images, of each two local models.

    Returns:
        "clients": ids [K]; "layers": layer -> [K][K], None where a model's outputs are all alike.
    """
    ids = models["ids"][:MOST_MODELS]
    shapes, outputs = {}, []
    for position in range(len(ids)):
        bound = BoundModel(task.model, tree.row(models["buffers"], position))
        params = tree.row(models["params"], position)

        def flat(x: Tensor, first: int, bound=bound, params=params) -> Tensor:
            found = {name: output.flatten(1) for name, output in bound.outputs(params, x).items()}
            shapes.update({name: output.shape[1] for name, output in found.items()})
            return torch.cat(list(found.values()), 1)

        outputs.append(task.map_images(flat, task.federation.test_images))
    layers = {}
    by_layer = [one.split(list(shapes.values()), 1) for one in outputs]
    for layer, name in enumerate(shapes):
        together = torch.stack([parts[layer] for parts in by_layer])
        if probe.option == "linear":
            found = similarity.linear_cka(together)
        else:
            batches = [batch for batch in together.split(_BATCH, 1) if batch.shape[1] >= 4]
            found = similarity.minibatch_cka(batches)
        layers[name] = _json(found)
    return {"clients": ids.tolist(), "layers": layers}


def weight_norms(probe: Probe, task: Any, algorithm: Algorithm, models: dict) -> dict[str, Any]:
    """L2 norm of the classifier's weights of each class (without bias), at each local model.

    Returns:
        "clients": ids [K]; "label_counts", training examples, and "norms": [K][num_classes].
    """
    ids = models["ids"]
    return {
        "clients": ids.tolist(),
        "label_counts": task.cohort(ids).label_counts.long().tolist(),
        "norms": _json(models["params"]["classifier.weight"].double().norm(dim=2)),
    }


def embedding(probe: Probe, task: Any, algorithm: Algorithm, state: dict) -> dict[str, Any]:
    """t-SNE of the features of test images under the model that the base deploys, after a projection on 50 principal
    components.

    Returns:
        "points": [n][2]; "labels", and predictions "before" and "after" the method changes the model: [n].
    """
    everyone = torch.arange(task.population)
    labels = task.federation.test_labels
    count = min(probe.option, len(labels))
    rows = stratified_subset(labels.numpy(), count, seed=0)
    rows = torch.arange(len(labels)) if rows is None else torch.from_numpy(rows)
    images = task.federation.test_images[rows]
    before = algorithm.base.deploy(algorithm.inside(task), state, everyone)
    after = algorithm.deploy(task, state, everyone)
    features = task.map_images(lambda x, first: _bound(before).features(before.params, x), images)
    return {
        "points": _json(torch.from_numpy(_plane(features.double().numpy()))),
        "labels": labels[rows].tolist(),
        "before": _predictions(task, before, images),
        "after": _predictions(task, after, images),
    }


MEASURES = {"cka": cka, "weight-norms": weight_norms, "embedding": embedding}


def _bound(deployed: Deployed) -> BoundModel:
    return BoundModel(deployed.model, deployed.buffers)


def _predictions(task, deployed: Deployed, images: Tensor) -> list[int]:
    return task.map_images(lambda x, first: _bound(deployed)(deployed.params, x), images).argmax(1).tolist()


def _plane(features: np.ndarray) -> np.ndarray:
    """[n, d] -> [n, 2] by t-SNE, always from the same start."""
    from sklearn.decomposition import PCA

    components = min(_COMPONENTS, *features.shape)
    reduced = PCA(components, random_state=0).fit_transform(features)
    return feature_views.project(reduced, "tsne", seed=0)[0]


def _json(values: Tensor) -> Any:
    """Nested lists of numbers with six digits, None for those that are not finite."""
    if values.dim():
        return [_json(part) for part in values]
    return float(f"{values.item():.6g}") if math.isfinite(values.item()) else None
