"""Runs that start from ImageNet weights, with a file of random numbers in their place."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.config.resolve import resolve, weights_files
from bench.execution import worker as workers
from bench.execution.job import Job
from bench.models.resnet import torchvision_name
from bench.results.schema import check_record
from bench.simulation.build import build_task
from bench.simulation.retention import StateRetention
from bench.simulation.run import Run
from datasets import Dataset, Split
from tests.support.weights import write_weights

SETTINGS = {"algorithm": "fedavg", "dataset": "imagefolder:x", "partition": "concept-shift", "clients": 4}
SETTINGS |= {"model": "resnet18", "transform": "none", "rounds": 2, "local_steps": 1, "batch_size": 16, "lr": 0.001}


def config(**settings):
    return resolve(SETTINGS | settings, None)


@pytest.fixture(scope="module")
def dataset():
    """Coloured images of 20 classes: 500 training examples of rich clients, 20 of poor ones."""
    rng = np.random.default_rng(0)

    def split(size: int) -> Split:
        return Split(rng.integers(0, 256, (size, 3, 8, 8), dtype=np.uint8), np.arange(size) % 20)

    return Dataset("x", split(2000), split(400), tuple(map(str, range(20))), "arrays", "arrays", "0", "")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The data directory, and what its file w.pth holds."""
    folder = tmp_path_factory.mktemp("data")
    return folder, write_weights(folder / "w.pth")


def test_a_model_starts_from_the_file_but_for_its_classifier(dataset, stored):
    folder, held = stored
    task, random = build_task(config(weights="w.pth"), dataset, data_dir=folder), build_task(config(), dataset)
    params, buffers = task.initial_params(), task.initial_buffers()
    assert params.keys() == random.initial_params().keys() and buffers.keys() == random.initial_buffers().keys()
    for name, leaf in (params | buffers).items():
        if not name.startswith("classifier."):
            assert torch.equal(leaf, held[torchvision_name(name)]), name
    other = replace(task, initial_model=1).initial_params()
    for name in ("classifier.weight", "classifier.bias"):
        assert torch.equal(params[name], random.initial_params()[name]) and not torch.equal(params[name], other[name])
    assert torch.equal(params["stem.weight"], other["stem.weight"])


@pytest.mark.slow
def test_a_worker_plays_a_run_with_weights_from_the_data_directory(dataset, stored, tmp_path, monkeypatch):
    monkeypatch.setattr(workers.resized, "load", lambda *of: dataset)
    folder, _ = stored
    job = Job("a1", config(weights="w.pth"), str(tmp_path), StateRetention())
    worker, result = workers.Worker(job, folder, "cpu"), None
    while not result:
        result = worker.step().result
    assert result["status"] == "done", result
    assert result["weights"] == {"w.pth": hashlib.sha256((folder / "w.pth").read_bytes()).hexdigest()}
    record = check_record(tmp_path / ("0" * 16) / "record.json", {"id": "0" * 16, "schema": 2, **result})
    assert len(record["client_accuracies"]) == 4
    lost = workers.Worker(job, None, "cpu").step()
    assert lost.result is None and "name it with --data-dir" in lost.machine_error, "the driver has found the file"


def test_averages_of_running_statistics_are_by_numbers_of_examples(dataset):
    """500 examples of two clients, 20 of two others, however many of them they train on."""
    run = Run(config(evaluate_every=2), dataset)
    cohort, start = run.task.cohort(torch.arange(4)), run.state
    outputs = run.algorithm.map_clients(run.task, run.algorithm.local_update, cohort, start)
    run.step()
    shares = torch.tensor([500.0, 500, 20, 20]) / 1040
    for name in ("stem.norm.running_mean", "stage4.block2.conv2.norm.running_var"):
        expected = torch.einsum("k,kc->c", shares, outputs.buffers[name])
        torch.testing.assert_close(run.state["buffers"][name], expected, rtol=1e-4, atol=1e-6)


def test_a_batch_of_one_example_is_refused_where_images_end_as_one_pixel(dataset):
    alone = {"local_steps": None, "local_epochs": 1, "batch_size": 19}
    with pytest.raises(
        ValueError, match="of at least 2 examples, but client 2 with 20 has a smaller batch; use another"
    ):
        Run(config(**alone), dataset)
    Run(config(**alone, last_batch="drop-if-full"), dataset)


def test_a_batch_of_one_example_is_refused_where_it_is_left_once_some_are_held_out(dataset):
    """Of 20 examples 18 are left, so that the second batch has 1 and not 3."""
    held = {"algorithm": "fens", "local_steps": None, "local_epochs": 1, "batch_size": 17, "rounds": 1}
    with pytest.raises(ValueError, match="of at least 2 examples, but client 2 with 18 has a smaller batch"):
        Run(config(**held), dataset).step()


def test_files_of_a_run_are_those_of_its_model_and_its_method():
    assert weights_files(config()) == []
    both = config(weights="w.pth", algorithm={"name": "fedcollab", "base": "fedavg", "features": "f.pth"})
    assert weights_files(both) == ["w.pth", "f.pth"]
    assert weights_files(config(algorithm={"name": "finetune", "base": "fedavg"}, weights="w.pth")) == ["w.pth"]
