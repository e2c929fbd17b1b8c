"""Fixtures of several files of tests."""

import os
import signal

import pytest

import datasets
from bench.results.store import Store
from tests.support.processes import Driver


@pytest.fixture(autouse=True)
def no_driver_outlives_its_test():
    yield
    for driver in Driver.running:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    Driver.running.clear()


@pytest.fixture(scope="session")
def digits():
    """Images that come with scikit-learn."""
    return datasets.load("digits", None)


@pytest.fixture
def store(tmp_path):
    """A results directory, locked as by a driver."""
    with Store(tmp_path).locked() as store:
        yield store
