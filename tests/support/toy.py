"""What tests of all methods do otherwise for some of them, beside the toy tasks of the contract."""

import functools
import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
import torch.nn.functional as F

import algorithms
from bench.contract.cases import Special
from bench.contract.toy import (
    NUM_CLASSES,
    SETTINGS,
    SIZES,
    Normalised,
    assert_equal,
    history,
    normalised_task,
    other_value,
    toy_task,
    train,
)
from bench.models.base import Model

__all__ = [
    "NUM_CLASSES",
    "SETTINGS",
    "SIZES",
    "Normalised",
    "assert_equal",
    "history",
    "kinds_of_tasks",
    "masked_task",
    "normalised_task",
    "other_value",
    "toy_task",
    "train",
]


@dataclass(frozen=True)
class Masked(Model):
    """The smallest model with dropout: one hidden layer."""

    loop_only = "draws masks for the rows of a batch"

    def layers(self):
        return {"linear1": (8, math.prod(self.input_shape)), "classifier": (self.num_classes, 8)}

    def features(self, params, x, bound):
        hidden = F.linear(x.flatten(1), params["linear1.weight"], params["linear1.bias"])
        return bound.dropout(F.relu(hidden), 0.5)


def masked_task(**settings):
    """A toy task with a model that draws masks in training."""
    task = toy_task(**settings)
    return replace(task, model=Masked(task.model.input_shape, NUM_CLASSES))


# For identities, which must hold on both engines, with dropout, and with batch normalisation: makes a toy task with settings.
kinds_of_tasks = pytest.mark.parametrize(
    "task_of",
    [toy_task, functools.partial(toy_task, engine="vectorised"), masked_task, normalised_task],
    ids=["loop", "vectorised", "dropout", "batch norm"],
)

# What a new method needs to be tested as all others are: nothing, or a line in one of these tables.

# Options made for more clients and rounds than a toy task has, or for longer computations.
SMALL = {
    "num_clusters": 2,
    "encoder_rounds": 2,
    "classifier_rounds": 2,
    "inference_images": 200,
    "generator_steps": 3,
    "hidden_width": 16,
    "discriminator_rounds": 20,
    "capacity": 2.0,
    "warm_up_rounds": 1,
    "aggregator_rounds": 3,
    "phase_rounds": 2,
    "distillation_epochs": 2,
    "synthetic_batch_size": 4,
    "latent_width": 6,
    "generator_channels": 4,
    "eps1": 2.0,  # of a cluster that has had one mean update
}

# Options whose effect needs a special task, or is none on the numbers: what tests them instead, for every method that has them,
# or for one method, (method, option), where others of the same name are tested as all options are.
TESTED_ELSEWHERE = {
    "cache_features": "test_fedconcat.py: fewer passes, equal numbers",
    "stage3_encoder_mode": "test_fedconcat.py: batch norm",
    "balanced": "test_fedconcat.py: one large cluster",
    "epsilon": "test_fedconcat.py: scale of the noise",
    "models": "test_fedconcat.py: encoders of other widths",
    "inference_images": "test_fedconcat.py: images counted",
    "inference_mode": "test_fedconcat.py: mode of the passes",
    "noise_moves_statistics": "test_fedconcat.py: running statistics by hand",
    "global_model_mode": "test_losses.py: batch norm by hand",
    "estimate": "test_fedconcat.py: formula",
    **dict.fromkeys(
        (("fesem", "proximal_weight"), ("fedsoft", "proximal_weight")),
        "test_clustered.py: read only with the intended proximal term",
    ),
    **dict.fromkeys(
        (("fedconcat-fesem", "proximal_weight"), ("fedconcat-fedsoft", "proximal_weight")),
        "test_fedconcat.py: given to the first stage, that of fesem or fedsoft",
    ),
    (
        "fedvls",
        "distillation_weight",
    ): "test_distillation.py: two steps in a round, before which teacher and student agree",
    "smallest_importance": "test_clustered.py: three clusters",
    "vote": "test_clustered.py: three clusters",
    "interval": "test_clustered.py: three rounds",
    ("feddyn", "clip"): "test_feddyn.py: long gradients",
    ("mofedsam", "clip"): "test_fedsam.py: long gradients",
    **dict.fromkeys(
        (
            (method, option)
            for method in (
                "fedspeed",
                "fedsmoo",
                "fedgamma",
                "fedlesam",
                "fedlesam-s",
                "fedlesam-d",
                "fedgloss",
                "fedswa",
                "fedmoswa",
            )
            for option in ("clip", "clip_order")
        ),
        "test_sam_family.py: long gradients",
    ),
    **dict.fromkeys(
        (("fedspeed", "server"), *((name, "estimate") for name in ("fedlesam", "fedlesam-s", "fedlesam-d"))),
        "test_sam_family.py: not all clients take part",
    ),
    ("fedgloss", "warm_up"): "test_sam_family.py: the schedule",
    **dict.fromkeys(
        [(name, "clip") for name in ("fedacg", "fedcm", "feddc")], "test_momentum_family.py: long gradients"
    ),
    **dict.fromkeys(
        [(name, "clip") for name in ("fednh", "fedrcl", "fedmlb")], "test_momentum_family.py: long gradients"
    ),
    ("fedawa", "use"): "test_fednh_and_fedawa.py: the weights of a round",
    ("fedasam", "eta"): "test_fedsam.py: ascent by hand",  # `other_value` of 0.2 is 0.2
    **dict.fromkeys(("swa", "swa_start", "swa_every", "swa_last_lr"), "test_fedsam.py: more rounds"),
    "tukey": "test_ccvr.py: where features are transformed",
    "relu": "test_ccvr.py: where features are transformed",
    "calibration_batch_size": "test_ccvr.py: fewer features than a batch",
    "calibration_epochs": "test_ccvr.py: fewer than make 1,000 steps",
    "eps1": "test_clusterers.py: criterion",
    "eps2": "test_clusterers.py: criterion",
    "regroup_every": "test_fedcat.py: groups of later cycles",
    "greedy_share": "test_fedcat.py: frequencies of selected clients",
    "count_rule": "test_fedcat.py: weights",
    "restarts": "test_coalitions.py: only some searches find the best coalitions",
    ("fedetf", "width"): "test_classifiers.py: at least as many dimensions as classes",
    "divergence": "test_fedcollab.py: published for the clients of the paper only",
    "discriminator_lr": "test_fedcollab.py: divergences, of which coalitions may be the same",
    "features": "test_fedcollab.py: a file of weights",
    **dict.fromkeys((("fedcollab", "delta"), ("fedcollab", "dimension")), "test_fedcollab.py: the bound in the record"),
    "discriminator_rounds": "test_fedcollab.py: divergences, of which coalitions may be the same",
    **dict.fromkeys(
        (("fedexp", "eps"), ("fedexp", "eps_per_client")),
        "test_server_steps.py: where clients disagree so much that the step is longer than 1",
    ),
    ("fedala", "threshold"): "test_personal_models.py: epochs of a first use",
    ("fedproto", "carry"): "test_features.py: a class that a cohort does not hold",
    ("fedproto", "predict"): "test_features.py: predictions",
    **dict.fromkeys(
        (
            (name, "base")
            for name in ("ensemble", "ensemble-vote", "ensemble-weighted", "fens", "fens-linear", "fedlpa")
            + ("dense", "f-dafl", "co-boosting")
        ),
        "test_ensemble.py: refused but for oneshot",
    ),
    **dict.fromkeys(
        (
            (name, option)
            for name in ("dense", "f-dafl", "co-boosting")
            for option in ("bn_weight", "masked", "clip", "hardness", "adversarial_temperature")
        ),
        "test_dense.py: losses by hand, long gradients, batch norm",
    ),
    **dict.fromkeys(
        (("f-dafl", "generator_steps"), ("f-dafl", "adversarial_weight")),
        "the loss dense has both; the images of the best step are kept, which one more may not be",
    ),
    **dict.fromkeys(("cg_iterations", "gradient_steps"), "test_fedlpa.py: other solvers, fewer iterations"),
    **dict.fromkeys(
        (("fedov", "weighting"), ("fedov", "voters")), "test_fedov.py: read when the models vote, if at all"
    ),
    "aggregator_batch_size": "test_fens.py: more examples that are held out",
    ("fens-linear", "hidden_per_client"): "test_fens.py: of the mlp",
    **dict.fromkeys(
        ((name, "rule") for name in ("ensemble", "ensemble-vote", "ensemble-weighted")),
        "test_ensemble.py: the params stay, the scores differ",
    ),
}


@dataclass(frozen=True)
class Toy(Special):
    """What tests of all methods do otherwise for one, beside what the contract does.

    Attributes:
        counters: numbers of batches that two clients with 1 and 2 steps in a round may have counted after two rounds. After the
            first, they go on from the mean 5/3, truncated, unless the method says otherwise.
        search: settings that a small search of its options needs.
        options: small ones, which are no defaults, but make a test one of the method and not of rounding.
        chain: it needs a model whose layers are a chain, as those of no residual network.
        deep: options for a model with many normalised layers after few steps, when running statistics are far from those
            of its batches.
    """

    counters: tuple[list[int], ...] = ([2, 3],)
    chain: bool = False
    search: dict[str, int | None] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    deep: dict[str, Any] = field(default_factory=dict)


# From the counters of their cluster, in which they may be alone.
_CLUSTERED = ([2, 3], [2, 4])
# Each copy goes on from the counters of its first client, which is drawn.
_CAT = Toy(in_cycles=True, counters=([2, 3], [3, 2], [3, 3], [2, 4], [4, 2]), search={"rounds": 12})
TOYS = {
    "centralized": Toy(alone=True),
    "local": Toy(counters=([2, 4],)),
    "ccvr": Toy(exchanges_less=True),
    # Its gradient is steep where a feature is alive for few examples: with 0.1, in batches of 2 and 6, initial params that
    # differ by 1e-15 lead to params that differ by 1e-2 on one and the same engine.
    "feddecorr": Toy(options={"beta": 0.01}),
    "fedproto": Toy(counters=([2, 4],), deep={"collect": "last_epoch"}, exchanges_less=True),
    # Each client goes on from its own counters.
    "oneshot": Toy(counters=([2, 4],)),
    "fedov": Toy(counters=([2, 4],), gradients_of_its_own=True, rates=("adam_lr",)),
    "fusefl": Toy(chain=True, search={"rounds": None}),
    "fedconcat-id": Toy(everyone_begins=True),
    "fedconcat-ib": Toy(everyone_begins=True),
    "ifca": Toy(counters=_CLUSTERED),
    "fedsoft": Toy(counters=_CLUSTERED),
    "fesem": Toy(counters=_CLUSTERED, search={"clients": 20}),
    "fedconcat-fesem": Toy(search={"clients": 20}),
    "fedcluster": Toy(counters=_CLUSTERED),
    "kmeans": Toy(everyone_begins=True, counters=_CLUSTERED, search={"rounds": 12}),
    "lg-fedavg": Toy(counters=([2, 4],)),  # those of the bodies, which stay
    "per-fedavg": Toy(counters=([0, 0],)),  # buffers stay
    "pfedme": Toy(counters=([0, 0],)),  # the counter of a local model stays
    "fedcollab": Toy(counters=_CLUSTERED, smallest_client=2, templates_are_bounds=True),
    "fedbn": Toy(counters=([2, 4],)),
    "fedamp": Toy(counters=([2, 4],)),
    "fedas": Toy(counters=([4, 8],)),  # the alignment counts, too
    "feddbe": Toy(options={"mu": 0.5}),  # of which debias makes a difference
    "fedpac": Toy(exchanges_less=True),
    "fedcat": _CAT,
    "fedcat-gc": _CAT,
    "fedcat-dc": _CAT,
}


def toy(name: str) -> Toy:
    """What is special about a method; nothing about most."""
    return TOYS.get(name, Toy())


def settings_for(name: str, participation: float | None = None) -> dict:
    """Settings of a toy task on which a method can be trained; a run with cycles has two of them."""
    return toy(name).settings(participation)


def toy_method(name: str, **options):
    """A method with its defaults, but for those that are made for more clients and rounds than a toy task has."""
    cls = algorithms.load(name)
    small = {option.name: SMALL[option.name] for option in fields(cls) if option.name in SMALL}
    return algorithms.make(name, **small | toy(name).options | options)
