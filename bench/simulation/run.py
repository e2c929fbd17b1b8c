"""One run: from a config and a dataset to rows of metrics, round by round."""

import math
import platform
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bench
from algorithms.shared import tree
from algorithms.shared.base import Deployed
from algorithms.shared.client_states import without_clients
from bench import references
from bench.determinism import uses_tf32
from bench.errors import HookError
from bench.hooks import place_of
from bench.profiling import device_name, peak_memory_mb, processor_name, reset_peak_memory, unique_memory_mb
from bench.results.artifacts import Folder
from bench.results.metrics import ACCURACIES, METHOD, summarise
from bench.results.records import RoundRow
from bench.simulation.build import build_algorithm, build_task, named_models
from bench.simulation.callbacks import RoundOutcome, as_numbers, build_callbacks, noted_of
from bench.simulation.checkpoints import UnusableCheckpoint, on_device, on_host
from bench.simulation.engines import warm_up
from bench.simulation.evaluation import measure, require_local_accuracies
from bench.simulation.local_models import local_models
from bench.simulation.retention import FINAL, Final, StateRetention
from bench.simulation.stored import caveats_of, diagnostics_of, local_models_of, require_counts, require_state
from bench.simulation.untouched import left_as_given, marks_of
from datasets import partition_files, skew


class Run:
    """Trains one run. Iterate: `while not run.finished: row = run.step()`, then `run.result()`."""

    def __init__(
        self,
        config: Any,
        dataset: Any,
        *,
        device: str = "cpu",
        engine: str = "auto",
        folder: Folder | None = None,
        retention: StateRetention | None = None,
        max_clients_per_vmap: int | None = None,
        data_dir: Path | None = None,
    ):
        """Prepares everything up to the first round.

        Args:
            config: a resolved run config (see `bench.config.schema.RunConfig`).
            dataset: a `datasets.Dataset`.
            device: "cpu" or "cuda".
            engine: "loop", "vectorised", or "auto" for the faster one.
            folder: where kept states are written.
            retention: which states to keep; none without a folder.
            max_clients_per_vmap: clients that train at once on the vectorised engine, at most; None for no bound.
            data_dir: where files with weights are, if the config or the method names some.

        Raises:
            ValueError: if the parts of the config do not fit together, or weights cannot be read.
        """
        reset_peak_memory(torch.device(device))
        self.algorithm = build_algorithm(config.algorithm)
        self._hooks = f"A hook of {config.algorithm['name']}"  # for messages
        if retention and retention.local_models and not self.algorithm.trains_whole_models:
            name = config.algorithm["name"]
            raise ValueError(
                f"{name} does not train one whole model in rounds, so it has no local models to keep; leave out "
                "save_local_models, or say by save_when which runs keep them."
            )
        self.task = build_task(config, dataset, device=device, engine=engine, data_dir=data_dir)
        graphs = None if max_clients_per_vmap else self.task.graphs  # where memory is short, they do not fit either
        self.task = replace(self.task, max_clients_per_vmap=max_clients_per_vmap, graphs=graphs)
        self.task.require_batches([self.task.model, *named_models(self.algorithm, self.task.model)])
        if self.algorithm.personal:
            require_local_accuracies(self.task)
        warm_up(self.task.engine)
        self.state = self.algorithm.init(self.task)
        require_state(self.algorithm.init, self.state, "state")
        self.num_rounds = self.algorithm.num_rounds(self.task.settings)
        self.rows: list[RoundRow] = []
        self._evaluate_every = config.evaluate_every or (
            self.num_rounds if self.algorithm.personal or self.algorithm.post_hoc else 1
        )
        traced = [{"name": "local-models"}] if config.trace_local_models else []
        self._callbacks = build_callbacks([*traced, *config.callbacks])
        self._own = {name: callback.init(self.task, self.state) for name, callback in self._callbacks.items()}
        for name, callback in self._callbacks.items():
            require_state(callback.init, self._own[name], "own")
        self._folder, self._retention = folder, retention or StateRetention(final="none")
        self._kept: Final = "none"
        self._data = {"kind": dataset.kind, "digest": dataset.digest}
        self._weights = {name: self.task.pretrained(name).digest for name in self.algorithm.weights_files}
        if self.task.weights:
            self._weights[config.weights] = self.task.weights.digest
        self._caveats = caveats_of(self.algorithm.caveats, self.algorithm.caveats(self.task))
        self._data_note = dataset.note
        self._unused = _unused(config, dataset)
        # With those of the part before the checkpoint from which the run continues.
        self._seconds, self._cpu_seconds, self._peak_mb = 0.0, 0.0, 0.0
        self._diverged = self._stopped = ""
        self._deployed: Deployed | None = None
        self._client_accuracies: list[float] | None = None  # of the last evaluated round

    @property
    def weights(self) -> dict[str, str]:
        """Name of each file with weights that the run reads -> its sha256."""
        return self._weights

    @property
    def round(self) -> int:
        """Number of finished rounds."""
        return self.state["round"]

    @property
    def finished(self) -> bool:
        return bool(self._diverged or self._stopped) or self.round >= self.num_rounds

    @property
    def deployed(self) -> Deployed | None:
        """What clients would use after the last round; None if that was not evaluated, or the run has diverged."""
        return None if self._diverged else self._deployed

    def checkpoint(self) -> dict[str, Any]:
        """Everything that `restore` needs in order to continue as if nothing had happened."""
        peak = max(peak_memory_mb(self.task.device), self._peak_mb)
        return {
            "state": self.state,
            "rows": self.rows,
            "client_accuracies": self._client_accuracies,
            "seconds": self._seconds,
            "cpu_seconds": self._cpu_seconds,
            "peak_memory_mb": peak,
            "callbacks": self._own,
            "stopped": self._stopped,
        }

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Goes on from a checkpoint of a run with the same config, engine and kind of device.

        Raises:
            UnusableCheckpoint: if states of earlier rounds are to be kept, but are not there.
        """
        done = checkpoint["state"]["round"]
        there = self._folder.names() if self._folder else []
        lacking = [name for name in self._retention.files(until=done) if name not in there]
        if lacking:
            raise UnusableCheckpoint(f"its checkpoint is of round {done}, but {', '.join(lacking)} is to be kept too")
        self.state, self.rows, self._seconds = checkpoint["state"], checkpoint["rows"], checkpoint["seconds"]
        self._cpu_seconds = checkpoint.get("cpu_seconds", math.nan)  # earlier versions have none
        self._peak_mb = checkpoint["peak_memory_mb"]
        self._client_accuracies = checkpoint.get("client_accuracies")  # earlier versions have none
        self._own |= checkpoint.get("callbacks", {})
        self._stopped = checkpoint.get("stopped", "")

    def drop_graphs(self) -> bool:
        """Trains without CUDA graphs from now on, with the same numbers; returns whether that frees memory."""
        held = bool(self.task.graphs and self.task.graphs.forget())
        self.task = replace(self.task, graphs=None)
        return held

    def halve_clients_per_vmap(self) -> int | None:
        """Trains half as many clients at once from now on; returns how many, or None if it cannot be fewer."""
        if self.task.engine != "vectorised":
            return None
        most = min(self.task.max_clients_per_vmap or self.task.population, len(self.task.sample_cohort(self.round).ids))
        if most < 2:
            return None
        self.task = replace(self.task, max_clients_per_vmap=most // 2)
        return self.task.max_clients_per_vmap

    def step(self) -> dict[str, Any]:
        """Trains one round and returns its row. If that fails, the run is left as before.

        Returns:
            "round" (from 1), accuracies in [0, 1] if the round is evaluated and there is a model, and so far:
            "bytes_down", "bytes_up" (mean per client of the population), "examples" trained on, "seconds" of training and
            evaluation; "deploy_examples", those that were trained on in order to deploy what is evaluated, if any;
            "examples_per_second" of this round's training; "metrics" of the method and of callbacks, if there are any; and
            "local_models", if they are traced in an evaluated round (see `bench.callbacks.local_models`).
        """
        times = self._seconds, self._cpu_seconds
        known = self.state, list(self.rows), times, self._diverged, self._client_accuracies, dict(self._own)
        try:
            return self._step()
        except BaseException:
            self.state, self.rows, times, self._diverged, self._client_accuracies, self._own = known
            self._seconds, self._cpu_seconds = times
            self._stopped = ""
            raise

    def start_from_base(self, state: dict[str, Any]) -> None:
        """Instead of training, of a method that is `post_hoc`: the last state of a finished run of its base. What is measured
        is one row; its seconds are those of deploying and testing alone. What is deployed is kept as the final state."""
        begin, begin_cpu = time.perf_counter(), time.process_time()
        self.state = on_device(state, self.task.device)
        base_ended = self.finished
        row = self._measured(evaluated=base_ended)
        if not base_ended:
            self._diverged = f"the run of its base had diverged after round {self.round}"
        self._seconds = row["seconds"] = time.perf_counter() - begin
        self._cpu_seconds = time.process_time() - begin_cpu
        self.rows.append(row)
        if self._folder and self._retention.final != "none" and self._deployed:
            kept = {"round": self.round, "params": self._deployed.params, "buffers": self._deployed.buffers}
            self._folder.save(FINAL, on_host(kept))
            self._kept = "deployed"

    def _step(self) -> dict[str, Any]:
        begin, begin_cpu, before = time.perf_counter(), time.process_time(), self.state["costs"]["examples"]
        previous = self.state
        with left_as_given(previous, lambda: self._hooks):
            self.state = self.algorithm.step(self.task.in_round(previous["round"]), previous)
        require_state(self.algorithm.step, self.state, "state")
        if self.task.device.type == "cuda":
            torch.cuda.synchronize(self.task.device)
        trained = time.perf_counter() - begin
        row = self._measured(self.round % self._evaluate_every == 0 or self.round == self.num_rounds)
        row["examples_per_second"] = (self.state["costs"]["examples"] - before) / trained
        row["seconds"] = self._count_seconds(begin, begin_cpu)
        own = dict(self._own)
        self._look(previous, row)
        if self._stopped and not self._deployed:  # the last round of a run is evaluated, and callbacks look at that
            self._own, begin, begin_cpu = own, time.perf_counter(), time.process_time()
            row |= self._measured(evaluated=True)
            row["seconds"] = self._count_seconds(begin, begin_cpu)
            self._look(previous, row)
        self.rows.append(row)
        self._save(previous)
        return row

    def _count_seconds(self, begin: float, begin_cpu: float) -> float:
        """Adds the time since a moment to that of the run; returns the seconds of all of it."""
        self._seconds += time.perf_counter() - begin
        self._cpu_seconds += time.process_time() - begin_cpu
        return self._seconds

    def _look(self, previous: dict[str, Any], row: dict[str, Any]) -> None:
        """Adds to the row of a round what the method has measured in it, and what callbacks find, which may stop the run."""
        with left_as_given(self.state, lambda: self._hooks):
            metrics = as_numbers(self.algorithm.metrics(self.state), METHOD)
        scores = {key: value for key, value in row.items() if key in (*ACCURACIES, "loss")}
        looked_at = [previous, self.state] if self._callbacks else []
        known = marks_of(looked_at, with_clients=True)
        for name, callback in self._callbacks.items() if not self._diverged else ():
            task = self.task.in_round(previous["round"])
            seen = RoundOutcome(task, self.algorithm, previous, self.state, scores | metrics, self._deployed)
            noted = noted_of(callback.after_round, callback.after_round(seen, self._own[name]))
            if marks_of(looked_at, with_clients=True).found != known.found:
                raise HookError(
                    f"The callback {name} has changed a state ({place_of(callback.after_round)}), but callbacks only look; "
                    "change a copy: of a tensor by .clone(), of a dict by {**state}."
                )
            require_state(callback.after_round, noted.own, "own")
            self._own[name] = noted.own
            metrics |= as_numbers(noted.metrics, name, callback.after_round, beside=len(metrics))
            self._stopped = self._stopped or noted.stop
            if noted.local_models:
                row["local_models"] = local_models_of(callback.after_round, noted.local_models)
        if metrics:
            row["metrics"] = metrics

    def _measured(self, evaluated: bool) -> dict[str, float]:
        """What has been exchanged and trained on so far, and if this round is evaluated and there is a model, what it costs to
        deploy it, and its test metrics; the run has diverged if these are not finite."""
        with left_as_given(self.state, lambda: self._hooks):
            return self._measured_of_state(evaluated)

    def _measured_of_state(self, evaluated: bool) -> dict[str, float]:
        spent, scores, deploying, self._deployed = dict(self.state["costs"]), {}, {}, None
        if not tree.all_finite(self.algorithm.finite_check(self.state)):
            self._diverged = f"not all params were finite after round {self.round}"
        elif evaluated:
            task = self.task.in_round(self.round - 1)  # of the last one that was trained
            self._deployed = self.algorithm.deploy(task, self.state, torch.arange(task.population))
        if self._deployed:
            scores, client_accuracies = measure(self.task, self._deployed)
            for key, num_bytes in self.algorithm.deploy_traffic(self.task, self._deployed.model).items():
                spent[key] += num_bytes
            deploying = {"deploy_examples": self._deployed.examples} if self._deployed.examples else {}
            if not all(map(math.isfinite, scores.values())):
                scores, self._diverged = {}, f"the test loss was not finite after round {self.round}"
            else:
                self._client_accuracies = client_accuracies
        per_client = {key: spent[key] / self.task.population for key in ("bytes_down", "bytes_up")}
        counts = {**per_client, "examples": spent["examples"], **deploying}
        require_counts(self._hooks, counts)
        return {"round": self.round, **counts, **scores}

    def result(self) -> dict[str, Any]:
        """What a finished run leaves in its record."""
        own = {} if self._client_accuracies is None else {"client_accuracies": self._client_accuracies}
        own |= {} if math.isnan(self._cpu_seconds) else {"cpu_seconds": self._cpu_seconds}
        return own | {
            "status": "diverged" if self._diverged else "done",
            "reason": self._diverged or self._stopped,
            "summary": summarise(self.rows),
            "rounds": self.round,
            "seconds": self._seconds,
            "bytes_per_client": self.rows[-1]["bytes_down"] + self.rows[-1]["bytes_up"] if self.rows else 0,
            "data": self._data,
            "data_note": self._data_note,
            **({"unused": self._unused} if self._unused else {}),
            "skew": skew.measure(self.task.federation.label_counts.numpy())._asdict(),
            "partition_digest": self.task.federation.digest,
            **({"weights": self._weights} if self._weights else {}),
            "caveats": self._caveats,
            "kept": self._kept,
            "diagnostics": self._diagnostics(),
            "engine": self.task.engine,
            "block": self.task.max_clients_per_vmap,
            "threads": torch.get_num_threads(),
            "device": device_name(self.task.device),
            "processor": processor_name(),
            **uses_tf32(self.task.device),
            "peak_memory_mb": max(peak_memory_mb(self.task.device), self._peak_mb),
            "unique_memory_mb": unique_memory_mb(),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
                "skewbench": bench.__version__,
                **({library: version(library)} if (library := self.task.model.library) else {}),
            },
        }

    def _diagnostics(self) -> dict[str, Any]:
        of_deploy = (self._deployed and self._deployed.diagnostics) or {}
        found = diagnostics_of(self.algorithm.diagnostics, self.algorithm.diagnostics(self.state))
        return found | diagnostics_of(self.algorithm.deploy, of_deploy)

    def _save(self, previous: dict[str, Any]) -> None:
        if self._folder is None:
            return
        if self.round in self._retention.rounds:
            self._folder.save(f"round-{self.round:04d}.pt", on_host(self.state))
        stopped_before_last = self._stopped and self.num_rounds in self._retention.local_models
        if self.round in self._retention.local_models or stopped_before_last:
            kept = local_models(self.task.in_round(previous["round"]), self.algorithm, previous)
            self._folder.save(f"local-models-{self.round:04d}.pt", on_host(kept))
        if self._retention.final != "none" and self.finished:
            everything = self._retention.final == "all" or self.algorithm.deploy_reads_clients
            kept = self.state if everything else without_clients(self.state)
            self._folder.save(FINAL, on_host(kept))
            self._kept = "all" if kept is self.state else "deployed"


def _unused(config: Any, dataset: Any) -> str:
    """How many examples a partition file leaves out; "" for other partitions, and for searches, which do not look at the test
    split."""
    if config.split != "test" or not references.is_partition(config.partition):
        return ""
    dealt = partition_files.parse(config.partition)
    return dealt.describe_unused(len(dataset.train.labels), len(dataset.test.labels))
