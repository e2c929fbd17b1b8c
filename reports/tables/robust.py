"""What a board says beside ranks: interquartile means, probabilities of improvement, and performance profiles.

The first two, and the bootstrap that is stratified by setting, are those of rliable: Agarwal et al., Deep Reinforcement
Learning at the Edge of the Statistical Precipice, NeurIPS 2021. A profile is one of Dolan and Moré, Benchmarking Optimization
Software with Performance Profiles, Mathematical Programming 91, 2002, with differences instead of ratios.

A score is that of one run, or of one study, as printed; settings may have different numbers of them. A run that has diverged or
failed has the score -inf: it is behind all others, and counts as 0 in means.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

LEVEL = 0.95
RESAMPLES = 9999
_ENDS = [50 * (1 - LEVEL), 50 * (1 + LEVEL)]
WITHIN = (0.0, 1.0, 5.0)  # points behind the best, of which tables show the profile

Strata = Sequence[np.ndarray]  # for each setting the places of its scores


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """The mean of scores [..., scores] without the lowest and the highest quarter of them, both rounded down."""
    cut = int(0.25 * scores.shape[-1])
    return np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut].mean(axis=-1)


def probability_of_improvement(own: np.ndarray, other: np.ndarray, strata: Strata) -> float:
    """How likely a random score of one method is above one of another in the same setting, mean over settings; equal ones count
    half.

    Args:
        own, other: [scores], both in the same settings.
    """
    return float(np.mean([_wins(own[where], other[where]).mean() for where in strata]))


def resampled(strata: Strata, rng: np.random.Generator) -> np.ndarray:
    """Places of scores [RESAMPLES, scores], drawn with replacement within each setting."""
    return np.concatenate([where[rng.integers(len(where), size=(RESAMPLES, len(where)))] for where in strata], axis=1)


def strata_of(scores: pd.DataFrame, settings: Sequence[str]) -> Strata:
    """The places of the pairs of each setting; arguments as of `measures`."""
    return [np.asarray(where) for where in scores.reset_index(drop=False).groupby(list(settings)).indices.values()]


def can_vary(strata: Strata) -> bool:
    """Whether each setting has two scores or more: samples of one score are all alike, which is no sign of certainty."""
    return min(map(len, strata)) > 1


def interval(measured: np.ndarray, strata: Strata) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends [measures] of the intervals of the means over pairs of measured [pairs, measures]; NaN where a
    setting has one pair."""
    if not can_vary(strata):
        unknown = np.full(measured.shape[1], np.nan)
        return unknown, unknown
    drawn = resampled(strata, np.random.default_rng(0))
    low, high = np.percentile(_counts(drawn) @ measured / len(measured), _ENDS, axis=0)
    return low, high


def gaps(scores: np.ndarray) -> np.ndarray:
    """How far each method is behind the best one in the same setting and study or seed; [pairs, methods] both. Differences have
    the decimals of printed scores: 64.4 - 63.4 is above 1 in binary."""
    best = scores.max(axis=1, keepdims=True)
    return np.where(np.isfinite(scores), (best - scores).round(9), np.inf)


def measures(scores: pd.DataFrame, settings: Sequence[str], over: str) -> Iterator[dict]:
    """Lines of `reports.tables.rankings.COLUMNS` but for metric and rows, with 95 % percentile intervals, NaN where a setting
    has one pair: of each method its interquartile mean ("iqm"), the share of pairs in which it is within some points of the
    best ("within_5"), and the probability that it is better than another method ("better_than"), in percent.

    Args:
        scores: [pairs, methods], in percent, of pairs of a setting and a study or seed; a pair has all methods.
        settings: levels of the index that identify a setting.
        over: the other method; one that is not there has no lines.
    """
    rng, values, strata = np.random.default_rng(0), scores.to_numpy(float), strata_of(scores, settings)
    drawn, drawn_of_other = resampled(strata, rng), resampled(strata, rng)
    finite, behind, counts = np.where(np.isfinite(values), values, 0.0), gaps(values), _counts(drawn)
    found = {"iqm": (interquartile_mean(finite.T), np.stack([interquartile_mean(own[drawn]) for own in finite.T], 1))}
    for points in WITHIN:
        is_within = 100.0 * (behind <= points)
        found[f"within_{points:g}"] = is_within.mean(axis=0), counts @ is_within / len(values)
    if over in scores:
        other = values[:, scores.columns.get_loc(over)]
        better = [100 * probability_of_improvement(own, other, strata) for own in values.T]
        found["better_than"] = (
            np.array(better),
            100 * _improvements(values, other, strata, counts, _counts(drawn_of_other)),
        )
    unknown = np.full((2, len(scores.columns)), np.nan)
    ends = {
        measure: np.percentile(samples, _ENDS, axis=0) if can_vary(strata) else unknown
        for measure, (_, samples) in found.items()
    }
    for place, name in enumerate(scores.columns):
        for measure, (numbers, _) in found.items():
            beside = over if measure == "better_than" else ""
            if name != beside:
                low, high = ends[measure][:, place]
                value = float(numbers[place])
                yield {"column": name, "over": beside, "measure": measure, "value": value, "low": low, "high": high}


def profiles(scores: pd.DataFrame) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """Method -> the points behind the best at which its profile rises, and the share of pairs within so many; from 0 on, and
    without pairs in which it has diverged."""
    found = {}
    for name, behind in zip(scores.columns, gaps(scores.to_numpy(float)).T, strict=True):
        steps, counts = np.unique(behind[np.isfinite(behind)], return_counts=True)
        found[name] = steps, counts.cumsum() / len(behind)
    return found


def _wins(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[own, other]: 1 where the first is larger, one half where both are equal."""
    return (own[:, None] > other) + 0.5 * (own[:, None] == other)


def _improvements(
    values: np.ndarray, other: np.ndarray, strata: Strata, counts: np.ndarray, counts_of_other: np.ndarray
) -> np.ndarray:
    """`probability_of_improvement` of resampled scores, [RESAMPLES, methods].

    Args:
        values: [pairs, methods]; other: [pairs], of the other method.
        counts, counts_of_other: of `_counts`.
    """
    shares = []
    for where in strata:
        wins = np.stack([_wins(own, other[where]).ravel() for own in values[where].T], 1)  # [own * other, methods]
        together = counts[:, where, None] * counts_of_other[:, None, where]
        shares.append(together.reshape(len(counts), -1) @ wins / len(where) ** 2)
    return np.mean(shares, axis=0)


def _counts(drawn: np.ndarray) -> np.ndarray:
    """How often each place was drawn, [RESAMPLES, places]; as many are drawn as there are."""
    samples, places = drawn.shape
    first = places * np.arange(samples)[:, None]
    return np.bincount((drawn + first).ravel(), minlength=drawn.size).reshape(samples, places).astype(float)
