"""What configs do not say at its usual value, because it came after runs that have a name already."""

from collections.abc import Mapping
from typing import Any

SETTINGS: dict[str, Any] = {"weights": "none", "callbacks": [], "lr_decay": 1.0}
_OF_STAGE_3: dict[str, Any] = {"classifier_weighting": "uniform"}
_OF_CLUSTERS: dict[str, Any] = {"models": "none", **_OF_STAGE_3}
# Method -> those of its options that came later, and their defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "moon": {"global_model_mode": "train"},
    "fedgen": {"teacher_weighting": "per_label"},
    "fedcollab": {"delta": 0.05, "dimension": 1},
    **{name: {"swa_last_lr": None} for name in ("fedsam", "fedasam", "mofedsam")},
    "fedconcat-id": {"noise_moves_statistics": False, "inference_round": "first", **_OF_CLUSTERS},
    **dict.fromkeys(("fedconcat", "dp-fedconcat", "random-clusters"), _OF_CLUSTERS),
    **dict.fromkeys(("fedconcat-ib", "fedconcat-ifca", "fedconcat-fedsoft", "fedconcat-fesem"), _OF_STAGE_3),
}


def shorten(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of JSON values as it is hashed and stored."""
    return _without(config, SETTINGS) | {"algorithm": _shortened(config["algorithm"])}


def spell_out(config: Mapping[str, Any]) -> dict[str, Any]:
    """A stored config with what it leaves out: `shorten` undone."""
    return {**SETTINGS, **config, "algorithm": _spelled_out(config["algorithm"])}


def _shortened(method: Mapping[str, Any]) -> dict[str, Any]:
    own = _without(method, OPTIONS.get(method["name"], {}))
    return own | ({"base": _shortened(own["base"])} if isinstance(own.get("base"), Mapping) else {})


def _spelled_out(method: Mapping[str, Any]) -> dict[str, Any]:
    own = {**OPTIONS.get(method["name"], {}), **method}
    return own | ({"base": _spelled_out(own["base"])} if isinstance(own.get("base"), Mapping) else {})


def _without(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in usual or value != usual[key]}
