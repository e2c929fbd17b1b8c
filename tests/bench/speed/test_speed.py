"""The benchmark measures what it says; how fast things are is not tested."""

import importlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import algorithms
import datasets
from algorithms.fedcat import FedCat
from algorithms.shared.rounds import RoundBased
from bench.config.resolve import resolve
from bench.profiling import GpuUse
from bench.speed import engines, fedconcat, runs, scheduler
from bench.speed import main as speed
from bench.speed.rows import EXAMPLES, Row, markdown, read_json, write_json
from bench.speed.workload import W1, Setting, apart, images, take_turns, task_on, write_random_cifar10
from reports import api
from tests.support.small_datasets import idx_bytes

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A CIFAR-10 of 300 random images."""
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    write_random_cifar10(tmp_path / "cifar-10-batches-py", batch_size=50)
    return tmp_path


@pytest.fixture
def setting(small):
    return Setting(small, small, GpuUse(), share=0.1, repeats=1, processes=2)


@pytest.fixture
def clock(monkeypatch):
    """Sets the moments that the clock of the benchmark will tell."""

    def tells(*moments: float) -> None:
        wall, cpu = iter(moments), iter(moments)
        fake = SimpleNamespace(perf_counter=lambda: next(wall), process_time=lambda: 2 * next(cpu))
        monkeypatch.setattr("bench.speed.workload.time", fake)

    return tells


# The workload and the yardstick


def test_random_images_have_the_layout_of_cifar10(small):
    found = datasets.load("cifar10", small)
    assert found.train.images.shape == (250, 3, 32, 32) and found.test.images.shape == (50, 3, 32, 32)
    assert len(set(found.train.labels.tolist())) == 10


def test_the_workload_is_a_run_with_the_defaults_of_all_settings_as_a_record_has_it():
    own = ("algorithm", "dataset", "partition", "model", "rounds", "local_epochs")
    stored = resolve({key: W1[key] for key in own}).canonical()
    assert {key: value for key, value in stored.items() if key != "versions"} == W1


def test_yardstick_and_methods_train_on_the_same_clients_and_examples(small):
    task = task_on(small, participation=0.5)
    examples = {engines.yardstick_round(task)}
    sampling = {name: getattr(algorithms.load(name), "sample", None) for name in engines.METHODS}
    with_that_cohort = [algorithms.make(name) for name, sample in sampling.items() if sample is RoundBased.sample]
    passes = {algorithms.name_of(method): method.passes_per_example for method in with_that_cohort}
    examples |= {engines.method_round(task, name)() // passes[name] for name in passes}
    assert examples == {task.num_trained(task.sample_cohort(engines.ROUND))}


def test_a_method_without_a_new_model_after_every_round_is_measured_for_a_cycle(small, monkeypatch):
    task, tested = task_on(small, participation=0.1), []
    monkeypatch.setattr(engines, "evaluate", lambda task, deployed: tested.append(deployed.params))
    method, examples = FedCat(), engines.method_round(task, "fedcat")()
    state, cohorts = method.init(task), []
    for _ in range(8):
        cohorts.append(method.sample(task, state))
        state = method.step(task, state)
    assert examples == sum(map(task.num_trained, cohorts[4:]))
    assert len(tested) == 4 and tested[0] is tested[2] is not tested[3]


def test_the_yardstick_is_fedavg(small):
    """With one full batch per client the order of examples does not matter, so one round must give FedAvg's model."""
    from algorithms.fedavg import FedAvg
    from bench.speed import reference_loop

    task = task_on(small, transform="none")
    module = reference_loop.SimpleCnn()
    module.load_state_dict(task.initial_params())
    reference_loop.train_round(module, task.federation, list(range(40)), task.settings)
    params = FedAvg().step(task, FedAvg().init(task))["params"]
    for name, leaf in module.state_dict().items():
        torch.testing.assert_close(params[name], leaf, rtol=1e-4, atol=1e-6)


def test_missing_data_is_replaced_by_random_images_that_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "own"))
    few = lambda folder: write_random_cifar10(folder, batch_size=50)  # noqa: E731
    monkeypatch.setattr("bench.speed.workload.write_random_cifar10", few)
    (tmp_path / "scratch").mkdir()
    with images(tmp_path, tmp_path / "scratch") as (folder, source):
        assert source == "random, in the shape of CIFAR-10" and datasets.load("cifar10", folder).num_classes == 10
    assert os.environ["SKEWBENCH_CACHE"] == str(tmp_path / "own") and not (tmp_path / "own").exists()


# Clocks


def test_cases_take_turns_and_the_median_counts(clock):
    clock(0.0, 1.0, 1.0, 3.0, 3.0, 7.0, 7.0, 8.0, 8.0, 9.0, 9.0, 10.0)  # seconds 1, 2 | 4, 1 | 1, 1
    order = []
    cases = {name: lambda name=name: order.append(name) or 8 for name in "ab"}
    paces = take_turns(cases, 3, CPU, GpuUse())
    assert {case: (pace.value, pace.per_core_second) for case, pace in paces.items()} == {
        "a": (8.0, 4.0),
        "b": (8.0, 4.0),
    }
    assert all(pace.peak_mb > 0 and pace.gpu_use is None for pace in paces.values())
    assert order == ["a", "b"] * 3


def test_use_of_a_gpu_is_the_mean_of_the_samples_meanwhile(tmp_path, monkeypatch):
    said = tmp_path / "said"
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" >{said}\nprintf "40\\n[N/A]\\n80\\n"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="12-34"))
    with GpuUse() as gpu:
        gpu._reader.join(30)
    assert "--query-gpu=utilization.gpu" in said.read_text() and "--id=GPU-12-34" in said.read_text()
    assert gpu.between(0, float("inf")) == pytest.approx(0.6)
    assert gpu.between(-2, -1) is None


def test_without_a_gpu_its_use_is_unknown(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with GpuUse() as gpu:
        assert gpu.between(0, float("inf")) is None


# Rows


def test_the_table_names_cases_values_and_notes_and_leaves_empty_columns_out():
    pace = Row("loop, fedavg", 8000.4, EXAMPLES, "0.95 of the yardstick", 7900, peak_mb=512, gpu_use=0.375)
    table = markdown([Row("images", None, note="random"), pace])
    assert "| case | value | unit | per core-second | peak MB | GPU use | note |" in table
    assert "| loop, fedavg | 8,000 | examples per second | 7,900 | 512 | 38 % | 0.95 of the yardstick |" in table
    assert "padding" not in table and "| images |  |  |  |  |  | random |" in table
    assert "one thread per process" in table
    assert "| a | 0.0310 | s | 12 % |" in markdown([Row("a", 0.031, "s", padding=0.12)])


def test_rows_come_back_from_json(tmp_path):
    rows = [Row("a", 2.0, "s", "why", 1.0, 3.0, 0.5, 0.1), Row("b", None, note="not measured (no GPU)")]
    write_json(tmp_path / "rows.json", rows)
    assert list(read_json(tmp_path / "rows.json").values()) == rows
    assert json.loads((tmp_path / "rows.json").read_text())["cores"] == os.cpu_count()
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]


def test_earlier_values_and_ratios_stand_beside_rows_of_the_same_case_and_unit():
    rows = [Row("a", 3.0, "s"), Row("b", 3.0, "s"), Row("c", 3.0, "s"), Row("d", None, note="no GPU")]
    earlier = {"a": Row("a", 2.0, "s"), "b": Row("b", 2.0, "MB"), "d": Row("d", 1.0)}
    lines = markdown(rows, earlier).splitlines()
    assert lines[0] == "| case | value | unit | earlier | now / earlier | note |"
    assert lines[2:6] == [
        "| a | 3.00 | s | 2.00 | 1.50 |  |",
        "| b | 3.00 | s |  |  |  |",
        "| c | 3.00 | s |  |  |  |",
        "| d |  |  |  |  | no GPU |",
    ]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rows": [1]}', '{"rows": [{"value": 1}]}'])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(ValueError, match=r"other\.json does not hold the rows of an earlier measurement"):
        read_json(tmp_path / "other.json")


# The command


@pytest.fixture
def only_told(monkeypatch):
    """Measures nothing; returns what it would have measured with."""
    told = []
    monkeypatch.setattr(speed, "measure", lambda *given, **options: told.append((*given, options)) or [Row("a", 3.0)])
    return told


def test_options_reach_the_measurement_and_its_rows_the_files(only_told, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SKEWBENCH_DATA", str(tmp_path))
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    write_json(before, [Row("a", 2.0)])
    options = ["--share", "0.2", "--repeats", "2", "--processes", "4", "--json", str(after), "--compare", str(before)]
    speed.main(["--cases", "models, w1,w1", "--methods", "ditto, moon", *options])
    told = {"share": 0.2, "repeats": 2, "processes": 4, "methods": ("ditto", "moon")}
    assert only_told == [(["models", "w1"], tmp_path, told)]
    assert read_json(after) == {"a": Row("a", 3.0)}
    assert "| a | 3.00 | 2.00 | 1.50 |" in capsys.readouterr().out


def test_long_cases_are_only_measured_when_they_are_named(only_told):
    speed.main([])
    speed.main(["--cases", "scheduler"])
    cases = [given[0] for given in only_told]
    assert cases == [["w1", "methods", "engines", "models", "fedconcat", "trials"], ["scheduler"]]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--cases", "w1,modls"], "Unknown case 'modls'. Did you mean 'models'? Known: w1, methods,"),
        (["--methods", "fedavg,fedprx"], "Unknown method 'fedprx'. Did you mean 'fedprox'?"),
        (["--share", "0"], "--share must be above 0 and at most 1, but got 0."),
        (["--repeats", "0"], "--repeats must be at least 1, but got 0."),
        (["--processes", "0"], "--processes must be at least 1, but got 0."),
        (["--json", "no/such/rows.json"], "--json: there is no folder"),
        (["--compare", "no.json"], "There is no file no.json to compare with; write one with --json."),
    ],
)
def test_options_that_make_no_sense_end_with_one_sentence(only_told, capsys, arguments, sentence):
    with pytest.raises(SystemExit) as ended:
        speed.main(arguments)
    assert ended.value.code == 2 and not only_told
    error = capsys.readouterr().err
    assert error.startswith("error: ") and sentence in error and error.count("\n") == 1


def test_every_case_exists_and_says_what_it_measures():
    modules = {name: importlib.import_module(f"bench.speed.{module}") for name, module in speed.CASES.items()}
    assert all(getattr(module, name).__doc__.strip() for name, module in modules.items())
    assert set(speed.LONG) < set(speed.CASES)


def test_a_case_without_its_libraries_or_images_says_why(small, monkeypatch, capsys):
    def trials(setting):
        """Trials of a library that is not there."""
        import no_such_scheduler  # noqa: F401

    monkeypatch.setattr(scheduler, "trials", trials)
    rows = speed.measure(["trials", "population"], small)
    assert [row.case for row in rows] == ["images", "trials", "population"]
    assert rows[1].note == "not measured (No module named 'no_such_scheduler')"
    assert rows[2].note.startswith(f"not measured (No mnist in {small}")
    assert capsys.readouterr().err.splitlines() == [
        "Trials of a library that is not there.",
        "Rounds of a small cohort in a small and a large population of MNIST clients.",
    ]


def test_it_runs_without_ray_pydantic_and_the_libraries_of_the_command_line(small):
    absent = "ray", "pydantic", "optuna", "typer", "rich", "tabulate", "pandas", "yaml"
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "from bench.speed import main as speed; speed.main(['--cases', 'methods,trials', '--share', '0.1', '--repeats', '1'])"
    )
    environment = os.environ | {"SKEWBENCH_DATA": str(small)}
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "| loop, moon |" in ended.stdout and "| trials |" in ended.stdout
    assert "not measured (import of" in ended.stdout


@pytest.mark.parametrize("program", [["bench", "speed"], ["bench.speed"]])
def test_both_commands_explain_themselves(program):
    ended = subprocess.run([sys.executable, "-m", *program, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout.startswith(f"usage: python -m {' '.join(program)} ")
    assert "--compare" in ended.stdout


# Cases


def test_methods_are_compared_with_the_yardstick(setting):
    rows = {row.case: row for row in engines.methods(setting)}
    assert list(rows) == [
        "yardstick",
        *(f"loop, {m}" for m in engines.METHODS),
        *(f"{m}, shifted clients" for m in engines.PERSONAL),
    ]
    ratio = rows["loop, moon"].per_core_second / rows["yardstick"].per_core_second
    assert rows["loop, moon"].note == f"{ratio:.2f} of the yardstick" and rows["yardstick"].note == ""
    missing = rows["fedcollab, shifted clients"]
    assert missing.value is None and "feature-shift of 300 examples leaves client 10 of 20 without" in missing.note


def test_named_methods_alone_are_measured(setting):
    rows = engines.methods(replace(setting, methods=("fedprox", "fedavg")))
    assert [row.case for row in rows] == [
        "yardstick",
        "loop, fedprox",
        "loop, fedavg",
    ]


def test_personal_models_and_coalitions_are_compared_with_fedavg_on_the_same_clients(setting, monkeypatch):
    apart = torch.block_diag(*[torch.ones(5, 5)] * 4) == 0  # four coalitions of five clients
    monkeypatch.setattr("algorithms.fedcollab._published", lambda task: apart.double())
    monkeypatch.setattr(engines, "SHIFTED", {"partition": "iid", "clients": 20})
    measured = {}
    monkeypatch.setattr(
        engines, "take_turns", lambda cases, *options: measured.update(cases) or take_turns(cases, *options)
    )
    rows = {row.case: row for row in engines.methods(replace(setting, methods=engines.PERSONAL))}
    assert list(rows) == [f"loop, {m}, shifted clients" for m in ("fedavg", *engines.PERSONAL)]
    base, *_, whole = rows.values()
    assert measured["loop, ditto, shifted clients"]() == 2 * measured[base.case](), "two gradients of each example"
    assert whole.note == f"{whole.per_core_second / base.per_core_second:.2f} of fedavg" and base.note == ""
    assert measured[base.case]() == measured[whole.case]() > 0, "the same examples"


def test_engines_are_compared_on_every_partition_with_the_padding_of_one(setting, monkeypatch):
    monkeypatch.setattr(engines, "PARTITIONS", ("label-2", "iid"))  # too few images for dir-0.1
    rows = {row.case: row for row in engines.engines(setting)}
    assert list(rows)[1:] == [f"{e}, {p}" for p in engines.PARTITIONS for e in ("loop", "vectorised")]
    assert rows["vectorised, iid"].padding == 0 and rows["loop, iid"].padding is None
    task = task_on(setting.folder, engine="vectorised", partition="label-2", batch_size=4)
    assert 0 < engines.padding_of(task) < 0.5


def test_models_are_measured_on_the_engines_that_can_run_them(setting, monkeypatch):
    monkeypatch.setattr(engines, "MODELS", ("mlp", "vgg9"))
    rows = engines.models(setting)
    assert [row.case for row in rows] == ["mlp, loop", "mlp, vectorised", "vgg9, loop"]
    assert all(row.value > 0 and row.per_core_second > 0 for row in rows)


def test_fedconcat_is_measured_where_mnist_is_missing(setting, monkeypatch):
    monkeypatch.setattr(fedconcat, "_IMAGES", 200)
    monkeypatch.setattr(fedconcat, "_clusters", lambda repeats: Row("clusters", 1.0))
    rows = fedconcat.fedconcat(setting)
    assert [row.note for row in rows if row.value is None] == ["not measured (no MNIST here)"]
    assert "of FedAvg" in rows[0].note and rows[0].unit == "s"


def test_w1_counts_the_examples_of_whole_runs(small):
    launched, threads = time.perf_counter(), torch.get_num_threads()
    found = runs.measure(small, {"participation": 0.5})
    torch.set_num_threads(threads)
    task = task_on(small, participation=0.5)
    assert found.examples == sum(task.num_trained(task.sample_cohort(round)) for round in range(2))
    assert launched < found.ready <= found.begin < found.end and 0 < 2 * found.round_seconds
    assert 0 < found.before_mb <= found.peak_mb


def test_trials_side_by_side_count_from_the_first_beginning_to_the_last_end():
    one = runs.Measured(0, begin=1, end=2, cpu=3, round_seconds=1, examples=100, before_mb=1, peak_mb=5)
    other = one._replace(begin=3, end=7, cpu=5, peak_mb=6)
    row = runs._pace("two", [one, other], GpuUse())
    assert (row.value, row.per_core_second, row.peak_mb) == (200 / 6, 25, 6)


def test_w1_runs_alone_and_by_processes_at_once(setting):
    alone, start, together = runs.w1(setting)
    assert alone.case == "W1, one trial" and together.case == "W1, 2 processes at once"
    assert start.case == "W1, 2 processes at once: start to first round" and start.unit == "s" and start.value > 0
    assert together.note == f"{together.value / alone.value:.2f} of one trial"


def test_calls_apart_are_made_in_other_processes():
    ids = apart(2, os.getpid)
    assert len(ids) == 2 and os.getpid() not in ids


@pytest.fixture
def call_bench(monkeypatch):
    monkeypatch.setattr(runs, "apart", lambda count, fn, *given: [fn(*given)])
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_large_population_is_compared_with_a_small_one(tmp_path, monkeypatch, call_bench):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for split, count in (("train", 360), ("t10k", 20)):
        pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28))
        (folder / f"{split}-images-idx3-ubyte").write_bytes(idx_bytes(pixels))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(count) % 10))
    rows = {r.case: r for r in runs.population(Setting(tmp_path, tmp_path, GpuUse()), 2, (20, 60))}
    assert len(rows) == 4 * len(runs.METHODS)
    few, many = (rows[f"round, fedavg, {size} clients"] for size in (20, 60))
    assert many.note.startswith(f"{many.value / few.value:.2f} of 20 clients") and few.value > 0 and not few.note
    assert rows["memory beyond the data, scaffold, 60 clients"].unit == "MB"


def test_memory_is_that_of_rounds_with_results_in_a_stack_and_with_all_client_states(setting, monkeypatch, call_bench):
    few = {"test_examples": None}
    stack = {**runs.STACK, "model": "simple-cnn", "clients": 4, "train_examples": 40} | few
    monkeypatch.setattr(runs, "STATES", runs.STATES | few)
    rows = {row.case: row for row in runs.memory(setting, stack, 10)}
    for case in ("fedavg, simple-cnn, 4 clients", "scaffold, 10 clients"):
        assert rows[f"peak of a round, {case}"].value >= rows[f"memory before the rounds, {case}"].value > 0


# The scheduler


@pytest.fixture
def ends(monkeypatch):
    """Ends runs at once, each with the same outcome, while the driver grows by a tenth of a MB for each; no command is run."""
    size = []

    def run(store, configs, *, look):
        for number, _ in enumerate(configs, 1):
            size.append(100 + number / 10)
            look(number)
        return [(0.0, run.record)] * number

    run.record = {"status": "done"}
    monkeypatch.setattr(scheduler, "_run", run)
    monkeypatch.setattr(scheduler, "_bench", lambda *words: None)
    monkeypatch.setattr(scheduler, "unique_memory_mb", lambda: size[-1])
    return run


def test_growth_of_the_driver_is_counted_between_two_trials(ends, setting):
    rows = {row.case: row for row in scheduler.scheduler(setting, count=4, growth=(2, 20), seeds=1)}
    assert rows["driver's memory per trial, from 2 to 20"].value == pytest.approx(100)  # kB


@pytest.mark.parametrize("cores", [1, 64])
def test_a_trial_is_timed_on_any_number_of_cores(cores, monkeypatch):
    monkeypatch.setattr(scheduler, "num_cores", lambda: cores)
    took, more = 2.0, 0.5

    def run(store, configs):
        return [((number // cores + 1) * (took + more), {"seconds": took}) for number, _ in enumerate(configs)]

    monkeypatch.setattr(scheduler, "_run", run)
    assert scheduler.seconds_per_trial() == pytest.approx(more)


def test_failing_runs_are_not_timed(ends, setting):
    ends.record = {"status": "failed", "reason": "boom"}
    with pytest.raises(RuntimeError, match="25 of 25 runs were not done; the first: boom"):
        scheduler.scheduler(setting, count=4, growth=(2, 20), seeds=1)


def test_the_scheduler_is_measured_on_few_runs(setting, monkeypatch):
    tables = []
    command = scheduler._bench

    def look_at(*words):
        tables.append(api.GridReport(Path(words[-1]), "many", "paper").render())
        command(*words)

    monkeypatch.setattr(scheduler, "_bench", look_at)
    rows = scheduler.scheduler(setting, count=4, growth=(2, 5), seeds=1)
    assert [row.case for row in rows] == [
        "4 trivial runs",
        "driver's memory per trial, from 2 to 5",
        "Markdown report over 25 stored runs",
        "status over 25 stored runs",
    ]
    assert min(rows[place].value for place in (0, 2, 3)) > 0
    assert len(tables) == 2 and "Dir(0.1)" in tables[0] and "FedLC" in tables[0] and "missing" not in tables[0]
