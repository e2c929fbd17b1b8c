"""Runs jobs with Ray Tune: one trial is one run, processes are reused, and results go to the driver and its store.

Tune only schedules. What a run is, which runs have finished and what they reached is known from the store alone.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from bench.config.schema import RunConfig
from bench.execution import gpu_sharing, ray_environment, ray_session  # noqa: F401
from bench.execution.fleet import Fleet
from bench.execution.gpu_sharing import GpuAllocator
from bench.execution.job import Inputs, Job
from bench.execution.recorder import Session, TrialRecorder
from bench.execution.resources import Resources
from bench.execution.run_recorder import OUT_OF_MEMORY, RETRIES, JobRecorder, RunCallback, given_up, reason_of
from bench.execution.tracking import Tracker
from bench.execution.trainable import WorkerTrainable
from bench.execution.worker import WorkerReport, inspect_machine, one_of_each
from bench.execution.workspace import Workspace, shared_bases
from bench.results.store import Store

import ray  # isort: skip
from ray import tune  # isort: skip
from ray.tune.experiment import Trial  # isort: skip


class JobTrainable(WorkerTrainable):
    """A trial that trains one job; its config has the position of the job."""

    def begin(self, config: dict[str, Any]) -> None:
        self._worker = self.new_worker(self._jobs[config["job"]])

    def train_step(self) -> WorkerReport:
        return self._worker.step()


class JobTrials(TrialRecorder):
    """Gives what the trials of jobs report to a `JobRecorder`, and jobs their shares of a GPU."""

    def __init__(
        self,
        store: Store,
        callback: RunCallback,
        allocator: GpuAllocator,
        session: Session,
        tracker: Tracker | None = None,
        names_hosts: bool = True,
    ):
        super().__init__(store, session, names_hosts)
        self._recorder, self._allocator = JobRecorder(store, callback, tracker), allocator
        self.runs = self._recorder.runs
        self._postponed: list[Job] = []
        self._deaths: Counter[str] = Counter()

    def assign(self, jobs: list[Job], share: Resources) -> None:
        """Replaces the jobs, which trials name by their position, and their share of a machine."""
        self._jobs, self._share, self._left = jobs, share, {job.id: job for job in jobs}
        self.shares = [share]
        self._nodes.clear()
        self.is_interrupted = False

    def take_postponed(self) -> list[Job]:
        """The jobs that have to run once more, after an interruption all that have not ended; they are forgotten here."""
        if self.is_interrupted:
            for job in self._left.values():
                if job.id in self.runs.rows:
                    self._recorder.postpone(job)
            self._postponed = [*self._left.values()]
        postponed, self._postponed = self._postponed, []
        return postponed

    def runs_of(self, trial: Trial) -> list[str]:
        return [run for run in [self._job(trial).id] if run in self.runs.rows]

    def start(self, trial: Trial) -> None:
        self._recorder.start(self._job(trial))

    def record(self, trial: Trial, report: WorkerReport) -> None:
        job = self._job(trial)
        self._recorder.update(job, report, lambda: self.machine_of(trial))
        if report.max_clients_per_vmap:
            self._allocator.reduce_clients_per_vmap(job, report.max_clients_per_vmap)
        if report.result:
            self._end(job, report.result, trial)
        elif report.out_of_memory:
            self._make_room(job, trial)

    def fail(self, trial: Trial, text: str, deaths: int) -> None:
        job = self._job(trial)
        if job.id not in self.runs.rows:  # its worker died before it could begin
            self.start(trial)
        self._deaths[job.id] += deaths
        if self._deaths[job.id] <= RETRIES:  # Tune gives up at once where a worker dies while it takes over a job
            self._postpone(job)
        else:
            self._end(job, given_up(text, self._deaths[job.id], self.store, f"run {job.id}"), trial)

    def _job(self, trial: Trial) -> Job:
        return self._jobs[trial.config["job"]]

    def _make_room(self, job: Job, trial: Trial) -> None:
        if self._allocator.out_of_memory(job, self._share):
            self._postpone(job)
        else:
            self._end(job, {"reason": OUT_OF_MEMORY}, trial)

    def _postpone(self, job: Job) -> None:
        self._postponed.append(job)
        self._recorder.postpone(job)

    def _end(self, job: Job, result: Mapping[str, Any], trial: Trial) -> None:
        self._recorder.end(job, {**result, **self.host_of(trial)}, lambda: self.machine_of(trial))
        self._left.pop(job.id, None)


def run_jobs(jobs: list[Job], workspace: Workspace, callback: RunCallback, tracker: Tracker | None = None) -> None:
    """Runs jobs in their order, as many at once as the resources allow, those that need the states of others after all
    others; every one ends with a record.

    Args:
        tracker: gets every round.

    Raises:
        KeyboardInterrupt, ValueError, StoreError: as `bench.execution.ray_session.session`.
    """
    with (
        ray_session.session(workspace, callback.on_message) as session,
        contextlib.ExitStack() as at_end,
    ):
        if tracker:
            at_end.callback(tracker.finish)  # it may wait for a network, and be interrupted at that
        inspect(session.fleet, [(job.config, job.inputs) for job in jobs], workspace)
        allocator = make_allocator(workspace, callback.on_message, session.fleet)
        recorder = JobTrials(workspace.store, callback, allocator, session, tracker, workspace.options.names_hosts)
        for stage in ([job for job in jobs if not job.base], [job for job in jobs if job.base]):
            with shared_bases([job.base for job in stage], workspace.store):
                _run_stage(stage, recorder, allocator, workspace)


def _run_stage(jobs: list[Job], recorder: JobTrials, allocator: GpuAllocator, workspace: Workspace) -> None:
    """Runs jobs until none is postponed any more; those with the same share of a machine take turns in one process."""
    at_once = workspace.machines.max_concurrent or None
    while jobs:
        shares = [allocator.of(job) for job in jobs]
        members = [
            replace(job, max_clients_per_vmap=allocator.clients_per_vmap_of(job))
            for job, of in zip(jobs, shares, strict=True)
            if of == shares[0]
        ]
        others = [job for job, of in zip(jobs, shares, strict=True) if of != shares[0]]
        recorder.fleet.wait_for(shares[0], workspace.storage)
        share = recorder.fleet.spread(shares[0], min(len(members), at_once or len(members)))
        recorder.assign(members, share)
        ray_session.fit(
            JobTrainable,
            share,
            recorder,
            tune.TuneConfig(reuse_actors=True, max_concurrent_trials=at_once),
            {"job": tune.grid_search(list(range(len(members))))},
            jobs=members,
            data_dir=workspace.options.data_dir,
        )
        jobs = others + recorder.take_postponed()


def inspect(fleet: Fleet, runs: Iterable[tuple[RunConfig, Inputs]], workspace: Workspace) -> None:
    """Takes the machines of a cluster out that cannot train runs, and waits for one that can.

    Args:
        runs: as in `bench.execution.worker.inspect_machine`.
    """
    looked_at, data_dir, resources = one_of_each(runs), workspace.options.data_dir, workspace.machines.resources

    def look(device: str) -> str:
        return inspect_machine(looked_at, data_dir, device)

    fleet.inspect(look, on_gpus=bool(resources.gpus and (fleet.gpus or not resources.auto)))
    fleet.wait_for(resources, workspace.storage)


def make_allocator(workspace: Workspace, on_message: Callable[[str], None], fleet: Fleet) -> GpuAllocator:
    """What jobs get of the machines that Ray has found."""
    found, gpus = ray.cluster_resources(), fleet.gpus
    resources, data_dir = workspace.machines.resources, workspace.options.data_dir
    if resources.auto and not gpus:
        if found.get("GPU"):
            on_message("No machine is left whose GPUs can be used, so trials train on CPUs.")
        resources = Resources(resources.cpus)

    def profile(job: Job, max_clients_per_vmap: int | None) -> gpu_sharing.Profile:
        measure: Any = ray.remote(num_gpus=1, num_cpus=resources.cpus, max_calls=1)(gpu_sharing.measure)
        others = fleet.selector()
        try:
            given = (job.config, data_dir, max_clients_per_vmap, job.engine, job.inputs.own_data, job.tf32)
            return ray.get(measure.options(label_selector=others).remote(*given))
        except ray.exceptions.RayError as error:
            raise gpu_sharing.Unprofiled(reason_of(str(error))) from error

    return GpuAllocator(
        workspace.store.folder / "shares.json",
        resources,
        hardware=", ".join(sorted(key for key in found if key.startswith("accelerator_type:"))),
        trials_by_cores=max(1, int(fleet.cores_per_gpu / resources.cpus)),
        profile=profile,
        on_message=on_message,
    )
