"""Models of many parameters: edge arrays in parts, fewer fits in a search."""

import numpy as np
import pytest
from trials import some

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


DEAR = [(FPFCRegressor, 1), (ConvexClusteredFLRegressor, 3)]


@pytest.mark.parametrize(("kind", "seeds"), some(DEAR, 1))
def test_few_fits_where_each_is_dear(kind, seeds, monkeypatch):
    """The number of values of lam depends on the draw of the folds."""

    def fits():
        options = [{"random_state": seed} for seed in range(seeds)]
        return [kind(**own).fit(DATA.X, DATA.y, groups=DATA.groups) for own in options]

    usual = fits()
    monkeypatch.setattr(judges, "LARGE", 1)
    few = fits()
    assert {fit.n_clusters_ for fit in usual + few} == {3}
    tried = [sum(len(fit.lam_search_["lam"]) for fit in some) for some in (few, usual)]
    assert tried[0] < 0.6 * tried[1]
    assert sum(fit.floats_up_ for fit in few) < 0.75 * sum(fit.floats_up_ for fit in usual)


def test_clusters_between_two_of_few_values_are_found(monkeypatch):
    """Four values of lam, of which one has all clients alone and the next all in one cluster."""
    monkeypatch.setattr(judges, "LARGE", 1)
    fits = [FPFCRegressor(random_state=seed) for seed in some(range(6), 2)]
    found = [fit.fit(DATA.X, DATA.y, groups=DATA.groups).n_clusters_ for fit in fits]
    assert found == [3] * len(fits)
