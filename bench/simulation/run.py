"""One run: from a config and a dataset to rows of metrics, round by round."""

import contextlib
import math
import platform
import resource
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import algorithms
import bench
from algorithms import tree
from algorithms.base import Algorithm, RoundBased
from algorithms.rows import without_clients
from bench import models
from bench.checkpoint import UnusableCheckpoint
from bench.client import Settings
from bench.engine import refuse_loop_only, warm_up
from bench.evaluate import evaluate
from bench.folders import Folder, on_device, on_host
from bench.local_models import local_models, trace
from bench.seeds import seed_for
from bench.task import Task
from bench.validation import hold_out
from datasets import partitions, transforms
from datasets.federation import federate

FINAL = "final.pt"  # the state after the last round
Final = Literal["deployed", "all", "none"]  # how much of it is kept
LAST_ROUNDS = 10  # over how many of the last evaluated rounds "last10" is the mean


@dataclass(frozen=True)
class Keep:
    """Which states a run leaves in its folder, beside its metrics; it changes neither numbers nor the run id.

    Attributes:
        final: how much of the state after the last round, as `final.pt`: what is "deployed" (all but client states that
            nobody needs in order to deploy it, see `algorithms.base.Algorithm.deploy_reads_clients`), "all" or "none".
        rounds: states after these rounds, as `round-0005.pt`.
        local_models: the cohort's models before they are aggregated in these rounds, as `local-models-0005.pt`.
    """

    final: Final = "deployed"
    rounds: tuple[int, ...] = ()
    local_models: tuple[int, ...] = ()

    def files(self, until: int | None = None) -> list[str]:
        """Names of the files that a finished run has, or one that goes on after so many rounds."""
        wanted = [("round", number) for number in self.rounds]
        wanted += [("local-models", number) for number in self.local_models]
        found = [f"{kind}-{number:04d}.pt" for kind, number in wanted if until is None or number <= until]
        return [*([FINAL] if self.final != "none" and until is None else []), *found]


class Run:
    """Plays one run. Iterate: `while not run.finished: row = run.step()`, then `run.result()`."""

    def __init__(
        self,
        config: Any,
        dataset: Any,
        *,
        device: str = "cpu",
        engine: str = "auto",
        folder: Folder | None = None,
        keep: Keep | None = None,
        block: int | None = None,
    ):
        """Prepares everything up to the first round.

        Args:
            config: a resolved run config (see `bench.config.RunConfig`).
            dataset: a `datasets.Dataset`.
            device: "cpu" or "cuda".
            engine: "loop", "vectorised", or "auto" for the faster one.
            folder: where kept states are written.
            keep: which states to keep; none without a folder.
            block: clients that train at once on the vectorised engine, at most; None for no bound.

        Raises:
            ValueError: if the parts of the config do not fit together.
        """
        reset_peak_memory(torch.device(device))
        self.algorithm = build_algorithm(config.algorithm)
        if keep and keep.local_models and not isinstance(self.algorithm, RoundBased):
            name = config.algorithm["name"]
            raise ValueError(
                f"{name} does not train one model in rounds, so it has no local models to keep; leave out "
                "save_local_models, or say by save_when which runs keep them."
            )
        self.task = replace(build_task(config, dataset, device=device, engine=engine), block=block)
        warm_up(self.task.engine)
        self.state = self.algorithm.init(self.task)
        self.num_rounds = self.algorithm.num_rounds(self.task.settings)
        self.rows: list[dict[str, Any]] = []
        self._evaluate_every = config.evaluate_every or (
            self.num_rounds if self.algorithm.personal or self.algorithm.post_hoc else 1
        )
        self._trace_local_models = config.trace_local_models
        self._folder, self._keep = folder, keep or Keep(final="none")
        self._kept: Final = "none"
        self._data = {"kind": dataset.kind, "digest": dataset.digest}
        self._data_note = dataset.note
        self._seconds, self._peak_mb = 0.0, 0.0  # of the part before the checkpoint from which the run goes on
        self._diverged, self._deployed = "", None

    @property
    def round(self) -> int:
        """Rounds played."""
        return self.state["round"]

    @property
    def finished(self) -> bool:
        return bool(self._diverged) or self.round >= self.num_rounds

    def checkpoint(self) -> dict[str, Any]:
        """Everything that `restore` needs in order to go on as if nothing had happened."""
        peak = peak_memory_mb(self.task.device)
        return {
            "state": self.state,
            "rows": self.rows,
            "seconds": self._seconds,
            "peak_memory_mb": max(peak, self._peak_mb),
        }

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Goes on from a checkpoint of a run with the same config, engine and kind of device.

        Raises:
            UnusableCheckpoint: if states of earlier rounds are to be kept, but are not there.
        """
        done = checkpoint["state"]["round"]
        there = self._folder.names() if self._folder else []
        lacking = [name for name in self._keep.files(until=done) if name not in there]
        if lacking:
            raise UnusableCheckpoint(f"its checkpoint is of round {done}, but {', '.join(lacking)} is to be kept too")
        self.state, self.rows, self._seconds = checkpoint["state"], checkpoint["rows"], checkpoint["seconds"]
        self._peak_mb = checkpoint["peak_memory_mb"]

    def halve_block(self) -> int | None:
        """Trains half as many clients at once from now on; returns how many, or None if it cannot be fewer."""
        if self.task.engine != "vectorised":
            return None
        most = min(self.task.block or self.task.population, len(self.task.sample_cohort(self.round).ids))
        if most < 2:
            return None
        self.task = replace(self.task, block=most // 2)
        return self.task.block

    def step(self) -> dict[str, Any]:
        """Plays one round and returns its row; if that fails, the run is as before.

        Returns:
            "round" (from 1), accuracies in [0, 1] if the round is evaluated and there is a model, and so far:
            "bytes_down", "bytes_up" (mean per client of the population), "examples" trained on, "seconds" of training and
            evaluation; "examples_per_second" of this round's training; and "local_models", if they are traced in an
            evaluated round (see `bench.local_models.trace`).
        """
        known = self.state, list(self.rows), self._seconds, self._diverged
        try:
            return self._step()
        except BaseException:
            self.state, self.rows, self._seconds, self._diverged = known
            raise

    def take_over(self, state: dict[str, Any]) -> None:
        """Instead of training, of a method that is `post_hoc`: the last state of a finished run of its base. What is measured
        is one row; its seconds are those of deploying and testing alone. What is deployed is kept as the final state."""
        begin, self.state = time.perf_counter(), on_device(state, self.task.device)
        if self.finished:
            row = self._measured(evaluated=True)
        else:
            row, self._diverged = (
                self._measured(evaluated=False),
                f"the run of its base had diverged after round {self.round}",
            )
        self._seconds = row["seconds"] = time.perf_counter() - begin
        self.rows.append(row)
        if self._folder and self._keep.final != "none" and self._deployed:
            kept = {"round": self.round, "params": self._deployed.params, "buffers": self._deployed.buffers}
            self._folder.save(FINAL, on_host(kept))
            self._kept = "deployed"

    def _step(self) -> dict[str, Any]:
        begin, before = time.perf_counter(), self.state["spent"]["examples"]
        previous, self.state = self.state, self.algorithm.step(self.task, self.state)
        if self.task.device.type == "cuda":
            torch.cuda.synchronize(self.task.device)
        trained = time.perf_counter() - begin
        row = self._measured(self.round % self._evaluate_every == 0 or self.round == self.num_rounds)
        row["examples_per_second"] = (self.state["spent"]["examples"] - before) / trained
        self._seconds += time.perf_counter() - begin
        row["seconds"] = self._seconds
        if self._trace_local_models and not self._diverged and any("accuracy" in key for key in row):
            row["local_models"] = trace(self.task, self.algorithm, previous, self.state)
        self.rows.append(row)
        self._save(previous)
        return row

    def _measured(self, evaluated: bool) -> dict[str, float]:
        """What has been exchanged and trained on so far, and if this round is evaluated and there is a model, what it costs to
        deploy it, and its test metrics; the run has diverged if these are not finite."""
        spent, scores, self._deployed = dict(self.state["spent"]), {}, None
        if not tree.all_finite(self.algorithm.watched(self.state)):
            self._diverged = f"not all params were finite after round {self.round}"
        elif evaluated:
            self._deployed = self.algorithm.deploy(self.task, self.state, torch.arange(self.task.population))
        if self._deployed:
            scores = evaluate(self.task, self._deployed)
            for key, num_bytes in self.algorithm.deployment(self.task, self._deployed.model).items():
                spent[key] += num_bytes
            if not all(map(math.isfinite, scores.values())):
                scores, self._diverged = {}, f"the test loss was not finite after round {self.round}"
        per_client = {key: spent[key] / self.task.population for key in ("bytes_down", "bytes_up")}
        return {"round": self.round, **per_client, "examples": spent["examples"], **scores}

    def result(self) -> dict[str, Any]:
        """What a finished run leaves in its record."""
        return {
            "status": "diverged" if self._diverged else "done",
            "reason": self._diverged,
            "summary": summarise(self.rows),
            "rounds": self.round,
            "seconds": self._seconds,
            "bytes_per_client": self.rows[-1]["bytes_down"] + self.rows[-1]["bytes_up"] if self.rows else 0,
            "data": self._data,
            "data_note": self._data_note,
            "remarks": self.algorithm.remarks(self.task),
            "kept": self._kept,
            "findings": self.algorithm.findings(self.state) | ((self._deployed and self._deployed.findings) or {}),
            "engine": self.task.engine,
            "block": self.task.block,
            "threads": torch.get_num_threads(),
            "device": device_name(self.task.device),
            "peak_memory_mb": max(peak_memory_mb(self.task.device), self._peak_mb),
            "unique_memory_mb": unique_memory_mb(),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
                "skewbench": bench.__version__,
            },
        }

    def _save(self, previous: dict[str, Any]) -> None:
        if self._folder is None:
            return
        if self.round in self._keep.rounds:
            self._folder.save(f"round-{self.round:04d}.pt", on_host(self.state))
        if self.round in self._keep.local_models:
            kept = local_models(self.task, self.algorithm, previous)
            self._folder.save(f"local-models-{self.round:04d}.pt", on_host(kept))
        if self._keep.final != "none" and self.finished:
            whole = self._keep.final == "all" or self.algorithm.deploy_reads_clients
            kept = self.state if whole else without_clients(self.state)
            self._folder.save(FINAL, on_host(kept))
            self._kept = "all" if kept is self.state else "deployed"


def build_algorithm(spec: dict[str, Any]) -> Algorithm:
    """The method of a resolved config: {"name": ..., field: value}; wrapped methods are nested in the same form."""
    options = {
        key: build_algorithm(value) if isinstance(value, dict) and "name" in value else value
        for key, value in spec.items()
        if key != "name"
    }
    return algorithms.load(spec["name"])(**options)


def build_task(config: Any, dataset: Any, *, device: str = "cpu", engine: str = "auto") -> Task:
    """The federated learning problem of a config; its partition is drawn from the labels of the dataset.

    Raises:
        ValueError: if the parts of the config do not fit together, or clients have too few examples for a validation part.
    """
    images, labels, clients, held_out = divide(config, dataset)
    if config.split == "validation":
        evaluated = images[held_out], labels[held_out]
    else:
        evaluated = _take(dataset.test, config.test_examples, config.seed)
    transform = transforms.build(config.transform, dataset.name, images.shape[1:], device)
    federation = federate(
        images,
        labels,
        *evaluated,
        clients,
        dataset.num_classes,
        transform,
        partitions.parse(config.partition).noise,
        device,
    )
    model_class = models.load(config.model)
    widened = {"width": config.model_width} if "width" in {field.name for field in fields(model_class)} else {}
    model = model_class(tuple(images.shape[1:]), dataset.num_classes, **widened)
    settings = Settings.of(config)
    if engine == "vectorised":
        refuse_loop_only(model)
    elif engine == "auto":
        engine = choose_engine(model, device)
    return Task(model, settings, federation, config.seed, engine)


def divide(config: Any, dataset: Any) -> tuple[np.ndarray, np.ndarray, list[np.ndarray], np.ndarray | None]:
    """Who has which training examples.

    Returns:
        Images and labels of those that the run uses, the rows on which each client trains, and those that all of them have set
        aside (None if they need not).

    Raises:
        ValueError: if clients have too few examples for a validation part.
    """
    images, labels = _take(dataset.train, config.train_examples, config.seed)
    clients = partitions.parse(config.partition).split(
        labels,
        config.clients,
        dataset.num_classes,
        config.seed,
        dirichlet_seed_override=config.dirichlet_seed_override,
    )
    clients = clients[: config.first_clients]
    if config.split != "validation":
        return images, labels, clients, None
    kept, held_out = hold_out(labels, clients, dataset.num_classes, config.validation_share, config.seed)
    return images, labels, kept, held_out


def choose_engine(model, device: str) -> str:
    """The faster engine: small models are bound by the number of operations, which the vectorised engine shares among
    clients; on a CPU that only pays for models without convolutions."""
    if model.loop_only:
        return "loop"
    convolutional = any(len(shape) == 4 for shape in model.layers().values())
    return "loop" if device == "cpu" and convolutional else "vectorised"


def stratified_subset(labels: np.ndarray, count: int | None, seed: int) -> np.ndarray | None:
    """Ascending rows of a subset of count examples in which every class keeps its share; None for all.

    Raises:
        ValueError: if there are fewer examples.
    """
    if count is None or count == len(labels):
        return None
    if count > len(labels):
        raise ValueError(f"A subset needs at most as many examples as there are ({len(labels)}), but got {count}.")
    from sklearn.model_selection import StratifiedShuffleSplit  # takes a second, and most runs use all examples

    state = seed_for(seed, "subset") % 2**32
    splitter = StratifiedShuffleSplit(1, train_size=count, test_size=len(labels) - count, random_state=state)
    return np.sort(next(splitter.split(labels, labels))[0])


def summarise(rows: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Last, best and mean of the last ten evaluated rounds, and the population std of these ten, of every accuracy."""
    evaluated = [row for row in rows if any(key.endswith("accuracy") for key in row)]
    if not evaluated:
        return {"last": {}, "best": {}, "last10": {}, "last10_std": {}}
    keys = [key for key in evaluated[-1] if key.endswith("accuracy")]
    recent = evaluated[-LAST_ROUNDS:]
    return {
        "last": {key: evaluated[-1][key] for key in keys},
        "best": {key: max(row[key] for row in evaluated) for key in keys},
        "last10": {key: sum(row[key] for row in recent) / len(recent) for key in keys},
        "last10_std": {key: float(np.std([row[key] for row in recent])) for key in keys},
    }


def reset_peak_memory(device: torch.device) -> None:
    """Starts a new measurement of `peak_memory_mb`, in a process that has played other runs before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):  # only Linux can; elsewhere the peak is that of the process
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb(device: torch.device) -> float:
    """Largest memory since `reset_peak_memory`: of the allocator on a GPU, else of the process. Megabytes of 10^6 bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def unique_memory_mb() -> float | None:
    """Memory of this process now that no other process shares, in MB of 10^6 bytes; None where /proc does not tell."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6


def _take(split: Any, count: int | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a stratified subset, in the order of the split."""
    rows = stratified_subset(split.labels, count, seed)
    return (split.images, split.labels) if rows is None else (split.images[rows], split.labels[rows])


def device_name(device: torch.device) -> str:
    """The model of a GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
