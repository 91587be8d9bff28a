"""GTV with lam by cross-validation: the user's graph, nodes without rows, networks."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GroupKFold

from skcfl import GTVClassifier, GTVRegressor, LamSearch
from skcfl.graphs import chain_graph


def river(noise=0.3):
    """Rows of eight sensors in a row, two of which have none; a weak link in the middle."""
    rng = np.random.RandomState(1)
    sensor = np.repeat([0, 1, 3, 4, 6, 7], 16)
    X = rng.standard_normal((len(sensor), 2))
    y = np.where(sensor < 4, 2.0, -1.0) * X[:, 0] + noise * rng.standard_normal(len(sensor))
    return X, y, sensor


GRAPH = {"graph": chain_graph(8, [1, 1, 1, 0.1, 1, 1, 1]), "nodes": range(8)}


def test_it_trusts_a_graph_that_is_right_and_not_one_that_is_wrong():
    X, y, sensor = river()
    folds = {"search": LamSearch(cv=2, n_lams=4), "random_state": 0}
    cv = GTVRegressor(refit=True, **folds, **GRAPH).fit(X, y, groups=sensor)
    assert_array_equal(cv.labels_, np.repeat([0, 1], 4))
    assert_array_equal(np.flatnonzero(cv.without_rows_), [2, 5])
    assert cv.cv_scores_.shape == (2, len(cv.lams_)) and cv.lams_[0] == 0.0
    assert cv.lam_ == cv.lams_[cv.best_index_] > 0.0
    same = GTVRegressor(cv.lam_, alpha=cv.alpha_, refit=True, **GRAPH).fit(X, y, groups=sensor)
    assert_allclose(cv.params_, same.params_, atol=1e-8)
    assert_array_equal(cv.predict(X[:3], groups=[2, 5, 7]), same.predict(X[:3], groups=[2, 5, 7]))
    # Neighbours that are unlike each other, and no noise: models of their own.
    y = np.where(np.isin(sensor, [1, 4, 7]), 2.0, -1.0) * X[:, 0]
    apart = GTVRegressor(graph=chain_graph(6), **folds).fit(X, y, groups=sensor)
    mean = apart.cv_scores_.mean(axis=0)
    assert apart.n_clusters_ == 6 and mean[apart.best_index_] > mean[-1] + 0.1


def test_folds_over_clients():
    """Sensors whose rows are all held out have the models of their neighbours."""
    X, y, sensor = river()
    search = LamSearch(cv=GroupKFold(6), lams=[1e-6, 0.1, 100.0])
    cv = GTVRegressor(search=search, refit=True, **GRAPH).fit(X, y, groups=sensor)
    assert cv.lam_ == 0.1 and cv.cv_scores_[:, 1].min() > -0.2 > cv.cv_scores_[:, 2].max()
    with pytest.raises(ValueError, match="graph='knn' joins clients by their local models"):
        GTVRegressor(search=LamSearch(cv=GroupKFold(6))).fit(X, y, groups=sensor)


def test_networks():
    """Values of lam compete on the folds of networks too."""
    X, y, sensor = river()
    labels = (y > 0).astype(int)
    options = {"hidden_layer_sizes": (4,), "max_iter": 15, "refit": False, "random_state": 0}
    fits = [
        GTVClassifier(search=LamSearch(cv=2, lams=[0.0, 0.02, 1e3]), n_jobs=n, **options, **GRAPH)
        for n in (None, 2)
    ]
    with pytest.warns(ConvergenceWarning):
        one, two = (fit.fit(X, labels, groups=sensor) for fit in fits)
    assert one.cv_scores_.shape == (2, 3) and np.isfinite(one.cv_scores_).all()
    assert len(set(one.cv_scores_[0])) == 3
    assert_array_equal(one.cv_scores_, two.cv_scores_)
    assert_array_equal(one.params_, two.params_)
    assert one.score(X, labels, groups=sensor) > 0.8
