"""Tests of many clients draw the scores of a sample; numbers of a client are its own."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skcfl import FedAvgRegressor
from skcfl.calls.differences_asked import NormalNoise, Signs


@pytest.mark.parametrize("kind", [NormalNoise, Signs])
def test_draws_of_a_client_depend_on_it_alone(kind):
    places = np.array([3, 8, 1])
    noise = kind(places, 100, draw=7)
    parts = list(noise)
    both = np.concatenate([noise.of(some, 5) for some in parts], axis=2)
    assert both.shape == (3, 5, 100)
    few = np.concatenate([kind(places[[2]], 100, draw=7).of(some, 3) for some in parts], axis=2)
    assert_array_equal(few, both[[2], :3])
    assert len(np.unique(both[:, 0, :8], axis=0)) == 3
    assert (kind(places, 100, draw=8).of(parts[0], 5) != both[:, :, :64]).any()
    assert np.abs(both.mean()) < 0.15 and abs(both.std() - 1.0) < 0.15


def test_only_the_draws_are_of_a_sample(monkeypatch):
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(60), 6), rng.normal(size=(360, 2))
    y = X.sum(axis=1) + rng.normal(size=60)[groups] + rng.normal(size=360)

    def evidence():
        return FedAvgRegressor().fit(X, y, groups=groups)._how_sure

    every = evidence()
    monkeypatch.setattr("skcfl.reports.differences.MOST_DRAWN", 25)
    sample = evidence()
    for name in ("theta", "curvature", "by_rows", "by_clients"):
        assert_allclose(getattr(sample.common, name), getattr(every.common, name), rtol=1e-9)
    assert_allclose(sample.losses, every.losses)
    for test in (sample.no_difference, sample.intercepts_only):
        assert test.n_clients == 25 and test.n_draws == every.no_difference.n_draws
    assert sample.no_difference.p_value < 0.01
    assert sample.intercepts_only.p_value > 0.01


@pytest.mark.parametrize("few_rows", [True, False])
def test_noise_of_a_sample_is_drawn_once_for_both_sums(monkeypatch, few_rows):
    """The clients of a sample keep their drawn scores from the first call to the second."""
    monkeypatch.setattr("skcfl.reports.differences.MOST_DRAWN", 25)
    rng, n = np.random.default_rng(0), 6 if few_rows else 30
    groups, X = np.repeat(np.arange(60), n), rng.normal(size=(60 * n, 2))
    y, drawn, kind = X.sum(axis=1), [], NormalNoise if few_rows else Signs
    of = kind.of
    monkeypatch.setattr(kind, "of", lambda *about: drawn.append(about[1]) or of(*about))
    model = FedAvgRegressor().fit(X, y, groups=groups)
    # 511 draws, 64 a hash, of no difference and of intercepts only.
    assert len(drawn) == 2 * 8 and model._how_sure.no_difference.n_draws == 511
