"""Interquartile means and probabilities of improvement, against the numbers of rliable 1.2.0, and performance profiles."""

import numpy as np
import pandas as pd
import pytest

from reports.tables import robust

OWN = np.array([[82.1, 90.4], [79.5, 91.0], [88.2, 60.3], [85.0, 92.7], [81.3, 89.9]])  # [runs, settings]
OTHER = np.array([[80.0, 90.4], [84.1, 88.8], [79.5, 89.1], [80.2, 91.5], [82.1, 87.0]])
PAIRS = pd.MultiIndex.from_product([["label-2", "dir-0.1"], range(5)], names=["partition", "seed"])


@pytest.fixture
def lines():
    scores = pd.DataFrame({"own": OWN.T.ravel(), "other": OTHER.T.ravel()}, PAIRS)
    return {(one["column"], one["measure"]): one for one in robust.measures(scores, ["partition"], "other")}


def test_they_are_those_of_rliable(lines):
    """`aggregate_iqm`, `probability_of_improvement`, and `get_interval_estimates` with 50,000 and 5,000 resamples."""
    mean, better = lines["own", "iqm"], lines["own", "better_than"]
    assert (mean["value"], better["value"]) == pytest.approx((86.15, 65.0))
    assert lines["other", "iqm"]["value"] == pytest.approx(85.21666666666665)
    assert (mean["low"], mean["high"]) == pytest.approx((78.91666667, 88.98333333), abs=0.2)
    assert (better["low"], better["high"]) == pytest.approx((39.0, 88.0), abs=2)


def test_a_miss_is_zero_in_means_and_behind_all_others_elsewhere():
    pairs = PAIRS[:4]
    scores = pd.DataFrame({"own": [80.0, 70.0, -np.inf, -np.inf], "other": [10.0, 20.0, 30.0, 40.0]}, pairs)
    found = {(one["column"], one["measure"]): one for one in robust.measures(scores, ["partition"], "other")}
    assert found["own", "iqm"]["value"] == (0 + 70) / 2 and found["own", "better_than"]["value"] == 50


def test_intervals_of_means_are_within_settings():
    measured, strata = np.array([[1.0], [3.0], [10.0], [10.0]]), [np.array([0, 1]), np.array([2, 3])]
    low, high = robust.interval(measured, strata)
    assert (low.item(), high.item()) == pytest.approx((22 / 4, 26 / 4))


def test_a_setting_with_one_score_leaves_intervals_unknown(lines):
    measured, strata = np.array([[1.0], [3.0], [10.0]]), [np.array([0, 1]), np.array([2])]
    low, high = robust.interval(measured, strata)
    assert np.isnan([low.item(), high.item()]).all()
    scores = pd.DataFrame({"a": [90.0, 80.0, 70.0], "b": [88.0, 80.0, 70.0]}, [*PAIRS[:2], ("other", 0)])
    scores.index = pd.MultiIndex.from_tuples(scores.index, names=PAIRS.names)
    found = [*robust.measures(scores, ["partition"], "b")]
    assert {one["measure"] for one in found} == {"iqm", "within_0", "within_1", "within_5", "better_than"}
    assert np.isnan([(one["low"], one["high"]) for one in found]).all()


def test_profiles_rise_where_a_pair_is_within_reach(lines):
    scores = pd.DataFrame({"a": [90.0, 80.0, -np.inf], "b": [88.0, 80.0, 70.0]}, PAIRS[:3])
    (steps, shares), (of_b, shares_of_b) = robust.profiles(scores).values()
    assert (steps.tolist(), shares.tolist()) == ([0.0], [2 / 3]), "the pair in which it has diverged is within no reach"
    assert (of_b.tolist(), shares_of_b.tolist()) == ([0.0, 2.0], [2 / 3, 1.0])
    assert [lines["own", f"within_{points}"]["value"] for points in (0, 1, 5)] == [70, 80, 90]


def test_a_setting_is_resampled_within_itself():
    strata = [np.array([0, 2]), np.array([1, 3, 4])]
    drawn = robust.resampled(strata, np.random.default_rng(0))
    assert drawn.shape == (robust.RESAMPLES, 5) and {*drawn[:, :2].flat} == {0, 2} and {*drawn[:, 2:].flat} == {1, 3, 4}


def test_a_point_behind_is_within_one_point_whatever_binary_numbers_say():
    assert 64.4 - 63.4 > 1
    scores = pd.DataFrame({"a": [64.4, 64.4], "b": [63.4, 63.3]}, PAIRS[:2])
    within = {
        one["column"]: one["value"]
        for one in robust.measures(scores, ["partition"], "")
        if one["measure"] == "within_1"
    }
    assert within == {"a": 100, "b": 50} and robust.profiles(scores)["b"][0].tolist() == [1.0, 1.1]
