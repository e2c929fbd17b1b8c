"""Stage 3 of FedConcat: a linear classifier, trained in rounds on the concatenated features of frozen encoders."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast, get_args

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

import algorithms
from algorithms.shared import tree
from algorithms.shared.accounting import add_costs
from algorithms.shared.base import Algorithm, Deployed, State
from algorithms.shared.checks import at_least, linear_classifier, one_of
from algorithms.shared.clustering import NumClusters, model_of_cluster, too_many_clusters
from algorithms.shared.local_sgd import LocalResult, cross_entropy, descend
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, RunConfig, Settings, Task
from bench.models.base import BoundModel, Model, uniform_init
from bench.models.calibrated import classifier_of
from bench.models.concat import classifier_part, concatenate, encoder_part, num_encoders, with_prefix

ClassifierInit = Literal["random", "clusters"]
CacheFeatures = Literal["equivalent", "always", "never"]
EncoderMode = Literal["train", "eval"]
ClassifierWeighting = Literal["uniform", "examples"]


class FirstStage(Protocol):
    """A method that trains the encoders: an `Algorithm` that also hands out the models of its clusters."""

    @property
    def deploy_reads_clients(self) -> bool: ...
    def validate(self, config: RunConfig) -> list[str]: ...
    def init(self, task: Task) -> State: ...
    def step(self, task: Task, state: State) -> State: ...
    def finite_check(self, state: State) -> Tree: ...
    def metrics(self, state: State) -> dict[str, Any]: ...
    def traffic(self, task: Task) -> int: ...
    def workload(self, settings: Settings, num_examples: int) -> int: ...
    def state_templates(self, task: Task) -> list[State]: ...
    def caveats(self, task: Task) -> list[str]: ...

    def models_of_clusters(self, task: Task, state: State) -> list[tuple[Tree, Tree]]:
        """Params and buffers of each of K models, leaves [*p]."""
        ...

    def found(self, state: State) -> dict[str, Tensor]:
        """Tensors by name that the record shall have, such as the cluster of each client."""
        ...


@dataclass(frozen=True)
class Concatenation(Algorithm):
    """Encoders of K models, trained in a first stage, side by side under one linear classifier.

    In each classifier round every client of the cohort takes `classifier_steps` steps from the common classifier on the
    first mini-batches of a newly shuffled pass over its data (fewer if it has fewer), and the server takes the unweighted
    mean. There is no model to evaluate before the first classifier round.

    Differs from the paper: the mean of the classifiers is unweighted, as in the reference code, also where a client has too
    few examples for all steps; line 15 of Algorithm 1 averages them as FedAvg does, which is `classifier_weighting` "examples".

    Differs from the paper: encoders stay in training mode and see newly augmented images in every round, as in the
    reference code; the paper says that features are computed once. Where that is the same, it is what happens.

    Attributes:
        num_clusters: K of the paper, number of models in the first stage; "none" for one per client, "elbow" for the number
            at which more clusters stop to pay.
        encoder_rounds: T_e of the paper, >= 1.
        classifier_rounds: T_c of the paper, >= 0.
        classifier_steps: SGD steps of a client in a classifier round, >= 1.
        classifier_init: start of the classifier: "random", or the "clusters": their classifiers side by side, with the
            sum of their biases, so that the first logits are the sum of the cluster models' logits.
        cache_features: compute the features of all training images once: where that is "equivalent" (no augmentation,
            no dropout, no batch statistics), "always", or "never".
        stage3_encoder_mode: in "train" mode the encoders drop out, and their running statistics go on moving from client
            to client; in "eval" mode they are fixed.
        classifier_weight_decay: of the classifier rounds; the setting `weight_decay` is that of the encoder rounds.
        classifier_weighting: weights of the mean of the classifiers: "uniform", or numbers of "examples".
    """

    num_clusters: NumClusters = 5
    encoder_rounds: int = 31
    classifier_rounds: int = 200
    classifier_steps: int = 3
    classifier_init: ClassifierInit = "random"
    cache_features: CacheFeatures = "equivalent"
    stage3_encoder_mode: EncoderMode = "train"
    classifier_weight_decay: float = 1e-5
    classifier_weighting: ClassifierWeighting = "uniform"

    def __post_init__(self) -> None:
        if isinstance(self.num_clusters, str):
            one_of("num_clusters", self.num_clusters, ("elbow", "none"))
        else:
            at_least("num_clusters", self.num_clusters, 1)
        at_least("encoder_rounds", self.encoder_rounds, 1)
        at_least("classifier_rounds", self.classifier_rounds, 0)
        at_least("classifier_steps", self.classifier_steps, 1)
        one_of("classifier_init", self.classifier_init, get_args(ClassifierInit))
        one_of("cache_features", self.cache_features, get_args(CacheFeatures))
        one_of("stage3_encoder_mode", self.stage3_encoder_mode, get_args(EncoderMode))
        at_least("classifier_weight_decay", self.classifier_weight_decay, 0)
        one_of("classifier_weighting", self.classifier_weighting, get_args(ClassifierWeighting))

    def first_stage(self) -> FirstStage:
        """The method that trains the encoders."""
        raise NotImplementedError

    def required_number(self) -> int:
        """The number of clusters, for methods that need it at once; raises ValueError if it is a rule."""
        if isinstance(self.num_clusters, str):
            raise ValueError(f"num_clusters must be a number for this method, but got {self.num_clusters!r}.")
        return self.num_clusters

    def validate(self, config: RunConfig) -> list[str]:
        own = too_many_clusters(self.num_clusters, config)  # which some first stages say, too
        trained = cast(Any, config).model_copy(
            update={"rounds": self.first_rounds}
        )  # `validate` comes before `num_rounds`
        return [*dict.fromkeys([*own, *self.first_stage().validate(trained)])]

    @property
    def first_rounds(self) -> int:
        """Rounds of the first stage."""
        return self.encoder_rounds

    def num_rounds(self, settings: Settings) -> int:
        return self.first_rounds + self.classifier_rounds

    def init(self, task: Task) -> State:
        for model in self._models(task):
            if "classifier" not in model.layers():
                raise ValueError(
                    f"{algorithms.name_of(self)} needs a model with an encoder and a classifier, but "
                    f"{type(model).__name__} has no classifier."
                )
        if self.classifier_init == "clusters":
            linear_classifier(algorithms.name_of(self), "joins", task.model, task.initial_params())
        if self.classifier_rounds and self._moving(task):  # its passes are others than those of the first stage
            replace(task, settings=task.settings.one_pass()).require_batches(self._models(task))
        first = self.first_stage().init(self._encoding(task))
        return {"round": 0, "first": first, "costs": first["costs"]}

    def step(self, task: Task, state: State) -> State:
        if "first" not in state:
            return {**self._classifier_round(task, state), "round": state["round"] + 1}
        first = self.first_stage().step(self._encoding(task), state["first"])
        state = {"round": state["round"] + 1, "first": first, "costs": first["costs"]}
        return self._concatenated(task, state) if state["round"] == self.first_rounds else state

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed | None:
        if "first" in state or (self.classifier_rounds and state["round"] == self.first_rounds):
            return None
        model, features = self._model(task, state), None
        if not self._moving(task) and task.federation.noise_levels is None:
            features = _cached(_test_features, task, model, state, task.federation.test_images)
        return Deployed(model, state["params"], state["buffers"], False, features)

    def has_model(self, config: RunConfig, round: int) -> bool:
        return round >= self.first_rounds + min(1, self.classifier_rounds)

    def deployed_model(self, task: Task) -> Model:
        return self._side_by_side(task, self._count(task))

    def finite_check(self, state: State) -> Tree:
        return self.first_stage().finite_check(state["first"]) if "first" in state else classifier_part(state["params"])

    def metrics(self, state: State) -> dict[str, Any]:
        return self.first_stage().metrics(state["first"]) if "first" in state else {}

    @property
    def deploy_reads_clients(self) -> bool:
        return self.first_stage().deploy_reads_clients  # of a run that has diverged there

    def traffic(self, task: Task) -> int:
        model = self.deployed_model(task)
        params = task.place(model.init(task.generator_for("init")))
        once = tree.num_bytes([encoder_part(params), model.init_buffers()]) if self.classifier_rounds else 0
        later = task.cohort_share * self.classifier_rounds * 2 * tree.num_bytes(classifier_part(params))
        return self.first_stage().traffic(self._encoding(task)) + once + round(later)

    def workload(self, settings: Settings, num_examples: int) -> int:
        first = self.first_stage().workload(replace(settings, rounds=self.first_rounds), num_examples)
        return first + self.classifier_rounds * self._visited(settings, num_examples)

    def state_templates(self, task: Task) -> list[State]:
        states = [
            {"round": first["round"], "first": first, "costs": first["costs"]}
            for first in self.first_stage().state_templates(self._encoding(task))
        ]
        return [*states, {**self._concatenated(task, states[-1]), "round": self.num_rounds(task.settings)}]

    def caveats(self, task: Task) -> list[str]:
        said = (
            "Features of the training images were computed once, as asked for; with augmentation, dropout or batch "
            "statistics that differs from the reference code."
        )
        if task.federation.noise_levels is not None:
            said += " They are of images without their client's noise."
        cached = self.cache_features == "always" and not self._cacheable(task)
        return self.first_stage().caveats(self._encoding(task)) + [said] * cached

    def diagnostics(self, state: State) -> dict[str, Any]:
        found = self.first_stage().found(state["first"]) if "first" in state else state["found"]
        names, own = self.named_models, {key: _rounded(leaf.tolist()) for key, leaf in found.items()}
        if names and "clusters" in found:
            own["models"] = [names[k % len(names)] for k in range(int(found["clusters"].max()) + 1)]
        return own

    def _encoding(self, task: Task) -> Task:
        """The task of the first stage."""
        return replace(task, settings=replace(task.settings, rounds=self.first_rounds))

    # The change of stages

    def _concatenated(self, task: Task, state: State) -> State:
        """The state from which the classifier rounds start."""
        first = self.first_stage()
        models = first.models_of_clusters(self._encoding(task), state["first"])
        own: dict = {"params": {}, "buffers": {}}
        for k, (params, buffers) in enumerate(models):
            own["params"] |= with_prefix(k, encoder_part(params))
            own["buffers"] |= with_prefix(k, buffers)
        weight = _side_by_side([params["classifier.weight"] for params, _ in models])
        if self.classifier_init == "clusters":
            bias = torch.stack([params["classifier.bias"] for params, _ in models]).sum(0)
            classifier = {"classifier.weight": weight, "classifier.bias": bias}
        else:
            drawn = uniform_init("classifier", tuple(weight.shape), task.generator_for("classifier"))
            classifier = task.place(drawn)
        own["params"] |= classifier
        return {"round": state["round"], "costs": state["costs"], "found": first.found(state["first"]), **own}

    # Classifier rounds

    def _classifier_round(self, task: Task, state: State) -> State:
        cohort = task.sample_cohort(state["round"])
        if not len(cohort.ids):
            return state
        before, buffers, stateful = classifier_part(state["params"]), state["buffers"], self._moving(task)
        stage, encoders = self._stage(task, state)
        # The reference code has one copy of the running statistics, which clients move in turn.
        turns = [stage.cohort(client[None]) for client in cohort.ids] if stateful else [cohort]
        trained = []
        for turn in turns:
            outputs = stage.map_clients(
                self._train_classifier, turn, round=state["round"], params=before, buffers=buffers, server=encoders
            )
            trained.append(outputs.result.update)
            buffers = tree.row(outputs.buffers, 0) if stateful else buffers
        all_of_them = tree.map(lambda *parts: torch.cat(parts), *trained)
        if self.classifier_weighting == "examples":
            mean = tree.weighted_mean(all_of_them, cohort.weights)
        else:
            mean = tree.map(lambda leaf: leaf.mean(0), all_of_them)
        num_bytes = len(cohort.ids) * tree.num_bytes(before)
        once = 0
        if state["round"] == self.first_rounds:  # every client of the population needs the encoders once
            once = task.population * tree.num_bytes([encoder_part(state["params"]), state["buffers"]])
        examples = sum(self._visited(task.settings, size) for size in task.sizes(cohort.ids))
        return {
            **state,
            "params": state["params"] | mean,
            "buffers": buffers,
            "costs": add_costs(state["costs"], bytes_down=num_bytes + once, bytes_up=num_bytes, examples=examples),
        }

    def _stage(self, task: Task, state: State) -> tuple[Task, Tree]:
        """The task of the classifier rounds, and the frozen params that its clients receive."""
        one_pass = task.settings.one_pass(weight_decay=self.classifier_weight_decay)
        model = self._model(task, state)
        if self._caches(task):
            features = _cached(_train_features, task, model, state, task.federation.images)
            linear = classifier_of(model)
            stage = replace(task, model=linear, settings=one_pass, federation=task.federation.on_features(features))
            return stage, {}
        return replace(task, model=model, settings=one_pass), encoder_part(state["params"])

    def _train_classifier(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        encoders = view.model if self.stage3_encoder_mode == "train" else view.model.copy()

        def loss(params: Tree, batch: Batch, view: ClientView) -> Tensor:
            with torch.no_grad():
                features = encoders.features(view.server, batch.x)
            return cross_entropy(view.model.head(params, features), batch)

        trained = descend(loss, view.params, data, plan[: self.classifier_steps], view).params
        return LocalResult(trained, {})

    def _model(self, task: Task, state: State) -> Model:
        """The concatenated model of a state."""
        return self._side_by_side(task, num_encoders(state["params"]))

    def _side_by_side(self, task: Task, count: int) -> Model:
        """The concatenated model of so many clusters."""
        return concatenate([model_of_cluster(task, self.named_models, k) for k in range(count)])

    def _models(self, task: Task) -> list[Model]:
        """Those that clusters train."""
        return [model_of_cluster(task, self.named_models, k) for k in range(len(self.named_models) or 1)]

    def _count(self, task: Task) -> int:
        """K, unless only the clusters tell it."""
        if self.num_clusters == "elbow":
            raise ValueError("With num_clusters elbow, what a run exchanges is known only when it has begun.")
        return task.population if self.num_clusters == "none" else self.num_clusters

    def _visited(self, settings: Settings, num_examples: int) -> int:
        """Examples that one client visits in a classifier round."""
        return sum(settings.one_pass().passes(num_examples)[0][: self.classifier_steps])

    def _moving(self, task: Task) -> bool:
        """Whether the classifier rounds move buffers."""
        with_buffers = any(model.init_buffers() for model in self._models(task))
        return with_buffers and self.stage3_encoder_mode == "train" and not self._caches(task)

    def _caches(self, task: Task) -> bool:
        return self.cache_features == "always" or (self.cache_features == "equivalent" and self._cacheable(task))

    def _cacheable(self, task: Task) -> bool:
        """Whether every pass over a training image gives the same features."""
        fixed = self.stage3_encoder_mode == "eval" or not any(model.depends_on_mode for model in self._models(task))
        return fixed and not task.federation.random_inputs


# Features are a function of the frozen encoders and the images: they are computed again after an interruption, and forgotten
# with the params that they belong to.
_train_features, _test_features = WeakTensorKeyDictionary(), WeakTensorKeyDictionary()


def _cached(known: WeakTensorKeyDictionary, task: Task, model: Model, state: State, images: Tensor) -> Tensor:
    """Features of images under the frozen encoders of a state in evaluation mode: [n, K * feature_dim]."""
    key, of = next(iter(state["params"].values())), (images, *state["buffers"].values())
    before, features = known.get(key, ((), None))
    if len(before) != len(of) or any(one is not other for one, other in zip(before, of, strict=True)):
        bound = BoundModel(model, state["buffers"])
        features = task.map_images(lambda x, first: bound.features(state["params"], x), images)
        known[key] = of, features
    return features


def _rounded(values: Any) -> Any:
    if isinstance(values, list):
        return [_rounded(value) for value in values]
    return round(values, 5) if isinstance(values, float) else values


def _side_by_side(weights: list[Tensor]) -> Tensor:
    """Weights [classes, width] of several classifiers as those of one, [classes, sum of the widths]."""
    widths = [weight.shape[1] for weight in weights]
    # On the device meta `torch.cat` imports torch's compiler, which is half of the time that `describe` takes.
    whole = weights[0].new_empty(len(weights[0]), sum(widths))
    for part, weight in zip(whole.split(widths, 1), weights, strict=True):
        part.copy_(weight)
    return whole
