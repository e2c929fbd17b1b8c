"""FedConcat-ID: the server infers label distributions from the answers of local models to noise images.

Diao, Li and He, Exploiting Label Skews in Federated Learning with Model Concatenation, AAAI 2024, Stage 1-B.
https://arxiv.org/abs/2312.06290
"""

import functools
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from algorithms import Algorithm, Task, Tree, one_of, registered
from algorithms.fedavg import FedAvg
from algorithms.shared.concatenation import EncoderMode, FirstStage
from algorithms.shared.label_clusters import LabelClusters, by_labels, check_balanced, check_base
from algorithms.shared.label_inference import IMAGES_PER_BATCH, answers_to_noise
from algorithms.shared.models_per_cluster import ModelsPerCluster

InferenceRound = Literal["first", "before"]


@registered("fedconcat-id")
@dataclass(frozen=True)
class FedConcatID(ModelsPerCluster):
    """FedConcat without reports: after the first round, in which all clients train, distributions are inferred.

    Differs from the paper: the round of inference is the first encoder round, as in the reference code and as the paper's
    communication costs say; in lines 4 to 8 of Algorithm 1 it comes before them, and encoders then start anew, which is
    `inference_round` "before".

    Differs from the reference code: by default, what local models see of noise leaves their running statistics as they are;
    there the passes in training mode move them, and every entry of the local models is averaged, the moved statistics too.

    Attributes:
        base: trains the model of a cluster; any method with one shared model.
        balanced: limits clusters to 1.2 times their equal share.
        inference_images: noise images that each local model answers to, a multiple of 100.
        inference_mode: whether it answers in "train" mode, as in the reference code, or in "eval" mode.
        inference_round: the "first" encoder round, or one "before" them, after which all clusters start from the initial model.
        noise_moves_statistics: whether a model with batch normalisation goes into the mean of its cluster with the running
            statistics that it has after the noise, as in the reference code; in "eval" mode these have not moved.
    """

    base: Algorithm = FedAvg()
    balanced: bool = False
    inference_images: int = 10_000
    inference_mode: EncoderMode = "train"
    noise_moves_statistics: bool = False
    inference_round: InferenceRound = "first"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_base(self.base)
        check_balanced(self.balanced, self.num_clusters)
        one_of("inference_mode", self.inference_mode, get_args(EncoderMode))
        one_of("inference_round", self.inference_round, get_args(InferenceRound))
        if self.named_models and self.inference_round != "before":
            raise ValueError(
                "fedconcat-id with models needs inference_round before, since its first round trains one model, with which "
                f"clusters of other models cannot go on, but got {self.inference_round}."
            )
        if self.inference_images < 1 or self.inference_images % IMAGES_PER_BATCH:
            raise ValueError(
                f"inference_images must be a positive multiple of {IMAGES_PER_BATCH}, but got {self.inference_images}."
            )

    @property
    def first_rounds(self) -> int:
        return self.encoder_rounds + (self.inference_round == "before")

    def first_stage(self) -> FirstStage:
        def inferred(task: Task, start: Tree, models: Tree) -> tuple[Tensor, None]:
            answers = answers_to_noise(task, models, self.inference_images, self.inference_mode == "train")
            return answers.shares, answers.buffers if self.noise_moves_statistics else None

        group = functools.partial(by_labels, num_clusters=self.num_clusters, balanced=self.balanced)
        anew = self.inference_round == "before"
        return LabelClusters(self.base, group, inferred=inferred, anew=anew, models=self.named_models)
