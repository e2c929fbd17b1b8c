"""Who has which training examples."""

import numpy as np
import pytest

import datasets
from bench.config.resolve import resolve
from bench.execution.disk import footprint
from bench.simulation.build import build_task
from bench.simulation.data import divide
from bench.simulation.retention import StateRetention
from tests.support.leaf import write_femnist

NATURAL = {"algorithm": "fedavg", "dataset": "femnist", "partition": "natural", "model": "mlp", "clients": 4}


@pytest.fixture
def femnist(tmp_path):
    """Four writers with 20 to 23 training images and 3 test images each."""
    write_femnist(tmp_path)
    return datasets.load("femnist", tmp_path, cache_dir=tmp_path / "cache")


def test_each_writer_of_femnist_is_a_client_and_all_test_images_are_on_the_server(femnist):
    federation = build_task(resolve(NATURAL), femnist).federation
    assert [len(own) for own in federation.clients] == [20, 22, 21, 23]  # writers 0 and 2 are in the first file
    for writer, own in enumerate(federation.clients):
        assert np.array_equal(own, np.flatnonzero(femnist.train.groups == writer))
    assert len(federation.test_labels) == 12


@pytest.mark.parametrize("participation, size", [(0.1, 1), (0.3, 1), (0.4, 2), (0.625, 3), (1, 4)])
def test_a_cohort_of_writers_has_the_nearest_size_in_the_config_in_the_run_and_on_disk(femnist, participation, size):
    config = resolve(NATURAL | {"participation": participation})
    task = build_task(config, femnist)
    assert config.cohort_size == task.settings.cohort_size(task.population) == len(task.sample_cohort(0).ids) == size
    alone = config.model_copy(update={"participation": 0.01})
    kept, of_one = (footprint(of, StateRetention("none", local_models=(1,))).kept for of in (config, alone))
    assert round(kept / of_one) == size


def test_a_subset_keeps_the_writers_of_its_images(femnist):
    labels = np.arange(len(femnist.train.labels)) % 5
    few = femnist.train.__class__(femnist.train.images, labels, femnist.train.groups)
    images, _, clients, *_ = divide(
        resolve(NATURAL | {"train_examples": 70}), datasets.Dataset("femnist", few, few, tuple("abcde"), "", "", "", "")
    )
    known = {image.tobytes(): writer for image, writer in zip(few.images, few.groups, strict=True)}
    assert sum(map(len, clients)) == 70
    assert all({known[images[row].tobytes()] for row in own} == {writer} for writer, own in enumerate(clients))


def test_other_clients_than_the_writers_are_refused(femnist):
    with pytest.raises(ValueError, match="Partition natural of 4 writers has 4 clients, but got 5 clients."):
        build_task(resolve(NATURAL | {"clients": 5}), femnist)
