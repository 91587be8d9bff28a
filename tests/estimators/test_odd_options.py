"""Options in any combination on small odd tables: a fit predicts, or an error says why."""

import inspect

import numpy as np
import pytest
from cases import EVERYDAY
from hypothesis import given
from hypothesis import strategies as st
from trials import examples, one_a_method

import skcfl
from skcfl import PartialPoolingClassifier, PartialPoolingRegressor

pytestmark = pytest.mark.reports

# Values that differ from the defaults in what they make a fit do.
VALUES = {
    "covariance": ["diag", "full", "spherical"],
    "random": ["intercept", [0]],
    "df": [np.inf, 4.0],
    "n_clusters": [1, 2, 3, "auto"],
    "prior": [np.inf],
    "dispersion": [1],
    "basis": ["linear", "splines", "trees"],
    "fit_intercept": [False],
    "standardize": [False],
    "alpha": [1e-2],
    "lam": [0.1],
    "graph": ["knn"],
    "penalty": ["l1"],
    "unseen": ["average", "largest"],
    "refit": [True, False],
    "aggregation": ["geometric_median"],
    "loss": ["poisson"],
}
KINDS = sorted(EVERYDAY)


def odd(rng):
    """Few clients of unlike sizes; columns that are the same, constant, or of any scale."""
    n_clients, d = int(rng.integers(1, 9)), int(rng.integers(1, 6))
    groups = np.repeat(np.arange(n_clients), rng.integers(1, rng.choice([3, 6, 12]), n_clients))
    X = rng.normal(size=(len(groups), d))
    kind = rng.integers(8)
    if kind == 0:
        X[:, -1] = X[:, 0]
    elif kind == 1:
        X *= 10.0 ** rng.integers(-6, 6, d)
    elif kind == 2:
        X[:] = 1.0
    own = rng.normal(size=3)[groups % 3] + rng.standard_t(2.5, size=n_clients)[groups]
    y = X.sum(axis=1) + own + rng.normal(size=len(groups))
    return X, np.full(len(y), y[0]) if kind == 3 else y, groups


def fits(cls, seed, share, **few):
    """Fit with some options; an error of what was given must be the package's."""
    rng = np.random.default_rng(seed)
    known = inspect.signature(cls).parameters
    few |= {"random_state": 0, "n_init": 2}
    options = {name: value for name, value in few.items() if name in known} | {
        name: values[rng.integers(len(values))]
        for name, values in VALUES.items()
        if name in known and rng.random() < share
    }
    X, y, groups = odd(rng)
    classes = cls.__name__.endswith("Classifier")
    if classes:
        options.pop("loss", None)
        y = np.argsort(np.argsort(y)) * int(rng.integers(2, 4)) // len(y)
    elif "loss" in options:
        y = np.floor(np.exp(np.clip(y - y.mean(), -3, 3)))
    try:
        model = cls(**options).fit(X, y, groups=groups)
    except (ValueError, TypeError) as error:
        assert any(f"{name}=" in str(error) or name in str(error) for name in [*options, "y", "X"])
        return
    predicted = model.predict_proba(X, groups=groups) if classes else model.predict(X, groups)
    assert np.isfinite(predicted).all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", one_a_method(KINDS))
@examples(1)
@given(seed=st.integers(0, 2**31))
def test_any_options_of_any_class(kind, seed):
    """Two clusters unless others are drawn: the search is one for all classes."""
    fits(getattr(skcfl, kind), [seed, KINDS.index(kind)], 0.5, n_clusters=2, max_iter=25)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", [PartialPoolingRegressor, PartialPoolingClassifier])
@examples(2)
@given(seed=st.integers(0, 2**31))
def test_any_options_of_partial_pooling(cls, seed):
    fits(cls, seed, 0.3)


@pytest.mark.parametrize("cls", [PartialPoolingRegressor, PartialPoolingClassifier])
def test_the_default_basis_without_intercepts(cls):
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(8), 12), rng.normal(size=(96, 2))
    y = X @ [2.0, -1.0] + (rng.normal(size=(8, 2))[groups] * X).sum(axis=1)
    y = y > 0 if cls is PartialPoolingClassifier else y + 0.3 * rng.normal(size=96)
    model = cls(fit_intercept=False, random_state=0).fit(X, y, groups=groups)
    assert (model.intercept_ == 0).all()
    assert model.score(X, y, groups=groups) > 0.8
