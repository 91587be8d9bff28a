"""Models of many parameters: edge arrays in parts, fewer fits in a search."""

import numpy as np
import pytest

from skcfl import ConvexClusteredFLRegressor, FPFCRegressor, Training
from skcfl.datasets import make_clustered_regression
from skcfl.graphs import edges
from skcfl.search import judges

DATA = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "estimator",
    [
        ConvexClusteredFLRegressor(lam=0.05, graph="complete"),
        ConvexClusteredFLRegressor(lam=0.05, graph="knn"),
        FPFCRegressor(lam=0.3, random_state=0, max_iter=60),
        FPFCRegressor(0.3, random_state=0, max_iter=60, training=Training(participation=0.5)),
        FPFCRegressor(lam=0.3, penalty="l1", max_iter=20, tol=0),
    ],
    ids=repr,
)
def test_parts_of_edge_arrays(estimator, monkeypatch):
    whole = estimator.fit(DATA.X, DATA.y, groups=DATA.groups).fusion_params_
    history = estimator.history_
    parts = []
    monkeypatch.setattr(edges, "MANY_COORDINATES", 2)
    monkeypatch.setattr(edges, "TILE_BYTES", 2**9)
    own = edges.shrinkage
    for module in ("admm", "fpfc_rounds"):
        monkeypatch.setattr(
            f"skcfl.fusion.{module}.shrinkage", lambda *a: parts.append(1) or own(*a)
        )
    estimator.fit(DATA.X, DATA.y, groups=DATA.groups)
    assert bool(parts) == (estimator.get_params().get("penalty") != "l1")
    np.testing.assert_allclose(estimator.fusion_params_, whole, rtol=1e-7, atol=1e-8)
    for name in {"objective", "gap"} & history.keys():
        np.testing.assert_allclose(estimator.history_[name], history[name], rtol=1e-6, atol=1e-9)


def test_few_fits_where_each_is_dear(monkeypatch):
    """Of few values of lam one has all clients alone and the next all in one cluster.

    The clusters between these two are found.
    """

    def fit():
        return FPFCRegressor(random_state=0).fit(DATA.X, DATA.y, groups=DATA.groups)

    usual = fit()
    monkeypatch.setattr(judges, "LARGE", 1)
    few = fit()
    assert few.n_clusters_ == usual.n_clusters_ == 3
    assert len(few.lam_search_["lam"]) < 0.6 * len(usual.lam_search_["lam"])
    assert few.floats_up_ < 0.75 * usual.floats_up_
