"""FedConcat with another encoder model in each cluster: Appendix A.4 of its paper.

Diao, Li and He, Exploiting Label Skews in Federated Learning with Model Concatenation, AAAI 2024.
https://arxiv.org/abs/2312.06290
"""

from dataclasses import dataclass

from algorithms.shared.concatenation import Concatenation
from algorithms.shared.types import RunConfig
from bench import models

_SAME = "none"


@dataclass(frozen=True)
class ModelsPerCluster(Concatenation):
    """FedConcat whose clusters may train different models (Appendix A.4: "Each cluster does not have to train the same model").

    The encoders of all clusters stand side by side, each as wide as its model has features, under one linear classifier. A
    client exchanges the model of its cluster, so that `traffic` is an upper bound, as if all trained the largest. The paper
    reports no numbers for this, so no grid has it.

    Differs from the paper: clusters get models in turn, and all train as many rounds. There, those with more computing power
    and data "can train larger models for more rounds".

    Attributes:
        models: names of models, "simple-cnn+vgg9" or ["simple-cnn", "vgg9"], at least two: cluster k trains number k modulo
            their count. The first must be the setting `model`. "none": every cluster trains the setting `model`, as in all
            tables.
    """

    models: str | list = _SAME

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "models", _checked(self.models))
        count = len(self.named_models)
        if isinstance(self.num_clusters, int) and count > self.num_clusters:
            raise ValueError(
                f"models must name at most one model per cluster (num_clusters {self.num_clusters}), but got {count}: "
                f"{self.models}."
            )

    @property
    def named_models(self) -> tuple[str, ...]:
        return () if self.models == _SAME else tuple(str(self.models).split("+"))

    @property
    def traffic_is_bound(self) -> bool:
        return bool(self.named_models) or super().traffic_is_bound

    def validate(self, config: RunConfig) -> list[str]:
        return [*super().validate(config), *self._unfit(config)]

    def _unfit(self, config: RunConfig) -> list[str]:
        """Why a config does not go with models of the clusters' own."""
        names = self.named_models
        if not names:
            return []
        mistakes = []
        if config.model != names[0]:
            mistakes.append(
                f"With models {self.models}, the setting model must be the first of them, {names[0]}, but got {config.model}."
            )
        if len(names) > config.population:
            mistakes.append(
                f"models must name at most one model per client ({config.population}), but got {len(names)}: {self.models}."
            )
        for setting, usual in (("weights", "none"), ("model_width", 1)):
            if (got := getattr(config, setting)) != usual:
                mistakes.append(f"With models {self.models}, {setting} must be {usual}, but got {got}.")
        return mistakes


def _checked(given: str | list) -> str:
    """Names of models as one text, each by its name in the registry.

    Raises:
        ValueError: if there is no model of a name, or the clusters would all train one model, or a shorter list says the same.
    """
    if given == _SAME:
        return _SAME
    names = given.split("+") if isinstance(given, str) else given
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"models must be names of models, as simple-cnn+vgg9 or [simple-cnn, vgg9], but got {given}.")
    names = [models.canonical(name) for name in names]
    parts = [names[:size] for size in range(1, len(names)) if len(names) % size == 0]
    if len(names) < 2 or any(part * (len(names) // len(part)) == names for part in parts):
        raise ValueError(
            "models must name two or more models and not repeat itself, since clusters take them in turn, but got "
            f"{'+'.join(names) or given!r}; for one model in all clusters, leave it out and set model."
        )
    return "+".join(names)
