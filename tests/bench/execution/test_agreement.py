"""How far a run that is trained again may be from what is stored."""

from types import SimpleNamespace

import pytest

from bench.execution import verification
from bench.execution.agreement import FIRST_ROUND, gap, one_image
from bench.execution.verification import Limits
from tests.support.trained import trained

TOLERANCE = 0.02
FIRST = {"round": 1, "bytes_up": 8.0, "accuracy": 0.5, "loss": 2.0}
SECOND = FIRST | {"round": 2, "accuracy": 0.6, "loss": 1.0}


def gap_of(first=None, second=None, clients=((), ()), image=0.001):
    """Of two stored rounds, and of the same with changes."""
    return gap([FIRST, SECOND], [FIRST | (first or {}), SECOND | (second or {})], clients, TOLERANCE, image)


@pytest.mark.parametrize(
    ("first", "second", "image", "too_far"),
    [
        ({"accuracy": 0.5 + FIRST_ROUND}, {"accuracy": 0.6 - TOLERANCE}, 0.001, ""),
        ({"accuracy": 0.5051}, {}, 0.001, "accuracy of round 1"),
        ({"accuracy": 0.51}, {}, 0.01, ""),  # one of a hundred test images
        ({"accuracy": 0.53}, {}, 0.05, "accuracy of round 1"),  # never more than later rounds
        ({}, {"accuracy": 0.6201}, 0.001, "accuracy of round 2"),
        ({"loss": 2.04}, {"loss": 1.99}, 0.001, ""),
        ({"loss": 2.05}, {}, 0.001, "loss of round 1"),
        ({}, {"loss": 2.01}, 0.001, "loss of round 2"),
        ({}, {"bytes_up": 9.0}, 0.001, "bytes_up of round 2"),
        ({}, {"loss": float("nan")}, 0.001, "loss of round 2"),
    ],
)
def test_the_first_round_is_held_to_less_than_those_in_which_rounding_has_grown(first, second, image, too_far):
    found = gap_of(first, second, image=image)
    assert found.too_far.partition(":")[0] == too_far
    assert found.may_be_rounding == (too_far in ("accuracy of round 2", "loss of round 2"))


def test_losses_near_zero_are_compared_as_shares_of_a_tenth():
    near = [{"round": 1, "loss": 0.001}]
    assert not gap(near, [{"round": 1, "loss": 0.003}], ((), ()), TOLERANCE, 0.001).too_far
    assert gap(near, [{"round": 1, "loss": 0.0031}], ((), ()), TOLERANCE, 0.001).too_far


def test_clients_are_compared_by_their_mean_distance_and_number():
    assert not gap_of(clients=([0.5, 0.5], [0.539, 0.5])).too_far
    assert gap_of(clients=([0.5, 0.5], [0.542, 0.5])).too_far == "client_accuracies, on average by 2.1 points"
    assert gap_of(clients=([0.5, 0.5], [0.5])).too_far.startswith("client_accuracies")


@pytest.mark.parametrize(
    ("test_clients", "expected"),
    [(None, 1 / 7), ([range(2), range(5)], 1 / 4)],  # of 7 images; of the client with 2, and of the mean over both
)
def test_one_image_is_that_of_all_or_of_the_client_with_the_fewest(test_clients, expected):
    federation = SimpleNamespace(test_clients=test_clients, test_labels=range(7))
    assert one_image(SimpleNamespace(task=SimpleNamespace(federation=federation))) == expected


def test_another_numpy_or_torch_may_round_otherwise_and_the_same_ones_may_not():
    record = dict(trained(algorithm="fedavg").record)
    assert verification._unlike(record, "cpu") == []
    for library in ("torch", "numpy"):
        other = record | {"versions": record["versions"] | {library: "1.0"}}
        (said,) = verification._unlike(other, "cpu")
        assert said.startswith(f"{library} 1.0 there, ")


class Slow:
    """A run of a hundred rounds, of so many seconds each."""

    def __init__(self, clock, *seconds: float):
        self.rows, self._clock, self._seconds = [], clock, seconds

    @property
    def finished(self) -> bool:
        return len(self.rows) == 100

    def step(self) -> None:
        self._clock.now += self._seconds[min(len(self.rows), len(self._seconds) - 1)]
        self.rows.append({})


@pytest.mark.parametrize(
    ("minutes", "seconds", "rounds"),
    [
        (5.0, (2.9,), 100),
        (5.0, (3.1,), 3),  # they would take 5.2 minutes
        (5.0, (2.0, 2.0, 2.0, 60.0), 23),  # slower than its first rounds: given up after 20 minutes
        (10.0, (2.0, 2.0, 2.0, 60.0), 43),  # or four times as long as it may take
    ],
)
def test_a_run_that_would_take_too_long_is_trained_for_its_first_rounds_or_given_up(
    minutes, seconds, rounds, monkeypatch
):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(verification, "time", SimpleNamespace(monotonic=lambda: clock.now))
    run = Slow(clock, *seconds)
    verification._train(run, 100, Limits(minutes=minutes))
    assert len(run.rows) == rounds
