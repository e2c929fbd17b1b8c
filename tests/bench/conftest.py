"""Fixtures of tests that start drivers."""

import os
import signal

import pytest

from tests.support.processes import Driver


@pytest.fixture(autouse=True)
def no_driver_outlives_its_test():
    yield
    for driver in Driver.running:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    Driver.running.clear()
