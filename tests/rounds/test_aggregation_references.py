"""Operators and limits of suspicion on random inputs, against formulas written out anew."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.stats import median_abs_deviation
from trials import some

from skcfl.rounds.aggregation import AGGREGATORS
from skcfl.rounds.aggregation.centered_clipping import CenteredClipping
from skcfl.rounds.aggregation.geometric_median import GeometricMedian
from skcfl.rounds.aggregation.krum import Krum
from skcfl.rounds.aggregation.median import Median
from skcfl.rounds.aggregation.trimmed_mean import TrimmedMean
from skcfl.rounds.suspicion import limit

CASES = some(range(40), 6)
TRIMS = (0.0, 0.1, 0.2, 0.25, 0.3, 0.4)


def drawn(seed, least=1):
    """Messages of some clients, some far away, some equal; whole weights."""
    rng = np.random.default_rng(seed)
    m, p = rng.integers(least, 13), rng.integers(1, 4)
    x = rng.normal(size=(m, p)) * rng.choice([1.0, 1.0, 30.0], size=(m, 1))
    if seed % 4 == 0:
        x[rng.integers(m)] = x[0]
    return x, rng.integers(1, 5, m)


def weighted_median(values, counts):
    return np.median(np.repeat(values, counts))


@pytest.mark.parametrize("seed", CASES)
def test_krum(seed):
    """Sums of squared distances to the m - f - 2 nearest others, by loops."""
    x, counts = drawn(seed)
    m = len(x)
    for trim in TRIMS:
        f = math.ceil(Fraction(str(trim)) * m)
        near = max(m - f - 2, 1)
        scores = []
        for i in range(m):
            others = [math.dist(x[i], x[j]) ** 2 for j in range(m) if j != i]
            scores.append(sum(sorted(others)[:near]))
        chosen = Krum(trim).aggregate(x, counts.astype(float))
        (which,) = np.flatnonzero((x == chosen).all(axis=1))[:1]
        assert scores[which] <= min(scores) * (1 + 1e-12)


def test_rounding_adds_no_false_client():
    """0.14 of 50 are 7, though the product is a little more: 41 are compared, not 40."""
    assert 0.14 * 50 > 7
    x = np.random.default_rng(1).standard_t(1, size=(50, 1))
    near = np.sort((x - x.T) ** 2, axis=1)[:, 1:]
    assert near[:, :41].sum(axis=1).argmin() != near[:, :40].sum(axis=1).argmin()
    assert Krum(0.14).aggregate(x, np.ones(50)) == x[near[:, :41].sum(axis=1).argmin()]


@pytest.mark.parametrize("seed", CASES)
def test_means_and_medians(seed):
    x, counts = drawn(seed)
    median = [weighted_median(column, counts) for column in x.T]
    weights = counts.astype(float)
    assert_allclose(Median().aggregate(x, weights), median, rtol=1e-12)
    mean = np.repeat(x, counts, axis=0).mean(axis=0)
    assert_allclose(AGGREGATORS["mean"]().aggregate(x, weights), mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", CASES)
def test_trimmed_means(seed):
    """The integral of the quantile function between the shares that are left out."""
    x, counts = drawn(seed)
    for trim in TRIMS:
        low, high = Fraction(str(trim)), 1 - Fraction(str(trim))
        wanted = []
        for column in x.T:
            reach, total = Fraction(0), 0.0
            for k in np.argsort(column, kind="stable"):
                share = Fraction(int(counts[k]), int(counts.sum()))
                kept = min(reach + share, high) - max(reach, low)
                total += float(max(kept, 0)) * column[k]
                reach += share
            wanted.append(total / float(high - low))
        found = TrimmedMean(trim).aggregate(x, counts.astype(float))
        assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("how", [{}, {"max_iter": 20_000, "tol": 1e-12}], ids=["default", "exact"])
@pytest.mark.parametrize("seed", CASES)
def test_geometric_medians_have_the_least_sum_of_distances(seed, how):
    """From messages that the medians of coordinates meet, too, where distances have no slope."""
    x, counts = drawn(seed)
    if seed % 2:
        x = np.round(x)

    def total(z):
        return sum(n * math.dist(one, z) for one, n in zip(x, counts, strict=True))

    found = GeometricMedian(**how).aggregate(x, counts.astype(float))
    starts = [x[0], x.mean(axis=0)]
    least = min(minimize(total, start, method="Nelder-Mead").fun for start in starts)
    assert total(found) <= min(least, *map(total, x)) * (1 + (1e-5 if how else 5e-3))


@pytest.mark.parametrize("seed", CASES)
def test_centered_clipping(seed):
    x, counts = drawn(seed, least=3)
    z = np.array([weighted_median(column, counts) for column in x.T])
    for _ in range(CenteredClipping().n_iter):
        away = np.array([math.dist(one, z) for one in x])
        radius = weighted_median(away, counts)
        moves = [
            n * (one - z) * (1.0 if far <= radius else radius / far)
            for one, far, n in zip(x, away, counts, strict=True)
        ]
        z = z + sum(moves) / counts.sum()
    found = CenteredClipping().aggregate(x, counts.astype(float))
    assert_allclose(found, z, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sorted(AGGREGATORS))
@pytest.mark.parametrize("weight", [1e-75, 1e75])
def test_equal_messages_of_any_weight(name, weight):
    """The message itself: a distance of zero divides nothing."""
    message = np.array([1.5, -2.0, 1e-3])
    for factors in (np.ones(5), np.arange(1.0, 6.0)):
        found = AGGREGATORS[name]().aggregate(np.tile(message, (5, 1)), weight * factors)
        assert_allclose(found, message, rtol=1e-12)


@pytest.mark.parametrize("seed", CASES)
def test_limits_of_suspicion(seed):
    """Deviations are those of normal numbers, by the median absolute deviation."""
    rng = np.random.default_rng(seed)
    numbers = rng.gamma(2.0, size=rng.integers(2, 30)) * rng.choice([1e-3, 1.0, 1e6])
    for sigmas, least in ((4.0, 2.0), (6.0, 1.5), (4.0, 0.0), (0.5, 0.0)):
        spread = median_abs_deviation(numbers, scale="normal")
        wanted = max(np.median(numbers) + sigmas * spread, least * np.median(numbers))
        assert limit(numbers, sigmas, least) == pytest.approx(wanted, rel=1e-4)
