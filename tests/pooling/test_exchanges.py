"""Fits that do not wait for each other go in the same exchanges, with the same result."""

import numpy as np
import pytest
from linear_starts import linear_start
from numpy.testing import assert_allclose

from skcfl import PartialPoolingRegressor
from skcfl.datasets import make_clustered_regression
from skcfl.federation import InProcessFederation
from skcfl.models import LinearModel
from skcfl.pooling.cluster_starts import Starts
from skcfl.pooling.em import maximise


def rows(n_clients=8, n_clusters=2, n_samples=30, seed=0):
    about = {"n_clients": n_clients, "n_clusters": n_clusters, "n_samples": n_samples}
    data = make_clustered_regression(n_features=4, random_state=seed, **about)
    return data.X, data.y, data.groups


def opened(*given):
    return InProcessFederation(*given).open(LinearModel(alpha=0.0).bind(4), random_state=0)


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_pooled_models_follow_from_two_exchanges(monkeypatch, shift):
    """As from one exchange for each step; targets far from zero take these."""
    X, y, groups = rows()
    model = LinearModel(alpha=0.0, standardize=False).bind(4)
    pool = InProcessFederation(X, y + shift, groups).open(model, random_state=0)
    _, quick, n_quick = linear_start(pool)
    monkeypatch.setattr("skcfl.pooling.em.LEAST_LEFT", np.inf)
    _, slow, n_slow = linear_start(pool)
    assert (n_quick, n_slow) == (4 if shift else 2, 4)
    for name in ("means", "dispersion", "unit", "prior", "spent"):
        assert_allclose(getattr(quick, name), getattr(slow, name), rtol=1e-6)


def test_numbers_of_clusters_are_tried_at_the_same_time():
    X, y, groups = rows(12, 3)
    pool = opened(X, y, groups)
    options, start, _ = linear_start(pool)
    one = maximise(pool, start.of_kind("diag", start.unit), options)
    starts = Starts(pool, one, 3, options, True)
    before, path = pool.ledger.calls, []
    for K in (2, 3, 4, 5):
        path.append(starts.fitted(pool, one, K, 5, -np.inf))
        # The first exchanges of all numbers, some eight, and none for fits that are refused.
        assert pool.ledger.calls - before <= 14
    assert [fit.population.n_clusters for fits in path for fit in fits[-1:]] == [2, 3, 4, 5]
    done = starts.fitted(pool, path[1][-1], 3, 5, np.inf)[-1]
    assert done.value >= path[1][-1].value


def test_the_number_of_clusters_and_the_parts_of_a_stack_do_not_wait_for_each_other():
    X, y, groups = rows()
    lines = PartialPoolingRegressor(basis="linear", random_state=0).fit(X, y, groups=groups)
    diag = PartialPoolingRegressor(1, covariance="diag", basis="linear", random_state=0)
    assert lines.calls_ < 4 * diag.fit(X, y, groups=groups).calls_
