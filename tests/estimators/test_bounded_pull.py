"""Fusion with a false client: the force of an edge is bounded, so worse lies change nothing."""

import numpy as np
from numpy.testing import assert_allclose

from skcfl import ConvexClusteredFLRegressor
from skcfl.datasets import make_clustered_regression

DATA = make_clustered_regression(12, 3, 4, n_samples=25, random_state=0)
IDS = np.unique(DATA.groups)
LIAR = DATA.groups == IDS[4]


def test_worse_lies_change_nothing():
    model = ConvexClusteredFLRegressor(lam=0.02, graph="complete")
    model.set_params(refit=False, standardize=False, alpha=1e-3, tol=1e-9)
    found = []
    for size in (1e3, 1e6):
        y = np.where(LIAR, size * DATA.y, DATA.y)
        model.fit(DATA.X, y, groups=DATA.groups)
        # All edges of the client together.
        force = np.linalg.norm(model.dual_coef_[IDS == IDS[4]])
        assert force <= 11 * model.lam * (1 + 1e-9)
        found.append(model.params_[IDS != IDS[4]])
    # The direction in which it pulls is the same.
    assert_allclose(found[0], found[1], atol=2e-3)
    rows = ~LIAR
    model.fit(DATA.X[rows], DATA.y[rows], groups=DATA.groups[rows])
    moved = np.linalg.norm(found[1] - model.params_, axis=1)
    # At most lam over the least curvature of a client, and what its neighbours add to it.
    assert moved.max() < 0.2
