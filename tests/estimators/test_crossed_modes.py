"""Crossed and nested groupings of classes and counts: Laplace's approximation and lme4's fit."""

import numpy as np
import pandas as pd
import pytest
from lme4_tables import cbpp
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime, minimize
from scipy.special import expit, gammaln
from sklearn.base import clone
from trials import some

from skcfl import PartialPoolingClassifier, PartialPoolingRegressor
from skcfl.federation.inprocess import open_rows
from skcfl.models._levelled import LevelledModel
from skcfl.pooling.crossed_modes import LaplaceDeviance

KINDS = {
    "log_loss": PartialPoolingClassifier(crossed=[1], nested=[2], covariance="diag"),
    "poisson": PartialPoolingRegressor(loss="poisson", crossed=[1], nested=[2], covariance="diag"),
}
LOSSES = list(KINDS)


def generated(loss, n_clients=12, n=14, n_items=7, n_rooms=3):
    """Rows of clients with slopes of their own, items that many meet, and rooms inside."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(n_clients), n)
    item, room = rng.integers([n_items, n_rooms], size=(len(groups), 2)).T
    x = rng.normal(size=len(groups))
    eta = 0.3 + (0.8 + 0.5 * rng.normal(size=n_clients)[groups]) * x
    rooms = 0.7 * rng.normal(size=(n_clients, n_rooms))
    eta += rng.normal(size=n_items)[item] + rooms[groups, room]
    drawn = rng.random(len(x)) < expit(eta) if loss == "log_loss" else rng.poisson(np.exp(eta))
    return np.column_stack([x, item, room]), drawn.astype(int), groups


def dense(loss, y, D, M, beta):
    """Twice Laplace's minus log-likelihood with effects M a, a standard normal, and the mode."""
    a = np.zeros(M.shape[1])

    def value(a):
        eta = D @ beta + M @ a
        if loss == "log_loss":
            return np.sum(np.logaddexp(0, eta) - y * eta) + 0.5 * a @ a
        return np.sum(np.exp(eta) - y * eta + gammaln(y + 1)) + 0.5 * a @ a

    for _ in range(60):
        eta = D @ beta + M @ a
        mean = expit(eta) if loss == "log_loss" else np.exp(eta)
        W = mean * (1 - mean) if loss == "log_loss" else mean
        H = np.eye(len(a)) + (M.T * W) @ M
        step, t = np.linalg.solve(H, M.T @ (mean - y) + a), 1.0
        while t > 1e-10 and not value(a - t * step) <= value(a) + 1e-9:
            t /= 2
        a = a - t * step
    return 2 * value(a) + np.linalg.slogdet(H)[1], a


def columns(X, groups, root, nested, crossed):
    """Columns of the effects of clients, of nested and of crossed levels, by their deviations."""
    D = np.column_stack([X[:, 0], np.ones(len(X))])
    of = np.arange(groups.max() + 1)
    clients = ((groups[:, None] == of)[:, :, None] * (D @ root)[:, None]).reshape(len(X), -1)
    rooms = nested * (3 * groups[:, None] + X[:, 2:] == np.arange(3 * len(of)))
    return D, np.hstack([clients, rooms, crossed * (X[:, 1:2] == np.arange(7))])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("kind", "shrunken"), [("full", True), ("diag", False)])
def test_value_and_gradient_are_the_dense_ones(loss, kind, shrunken):
    X, y, groups = generated(loss)
    n_classes = 2 if loss == "log_loss" else None
    bound = LevelledModel(loss=loss, crossed=(7,), nested=(3,)).bind(3, n_classes=n_classes)
    pool = open_rows(bound, X, y, groups, 12)
    free = np.array([False, True])
    deviance = LaplaceDeviance(pool, kind, np.ones(2, dtype=bool), free, shrunken)
    x = deviance.start()
    n = len(x) - len(deviance.outer)
    # A standard deviation of either sign is the same model.
    x = np.concatenate([np.linspace(0.3, 0.9, n), x[n:] + 0.1])
    x[n - 2 : n] *= -1

    def reference(x):
        root, spreads, sizes = deviance.parts(x)
        D, M = columns(X, groups, root, spreads[0], sizes[-1])
        beta = np.zeros(2)
        beta[[k for k in deviance.outer if k < 2]] = x[n:]
        if shrunken:
            M = np.hstack([M, sizes[0] * D[:, :1]])
        return dense(loss, y, D, M, beta)[0]

    value, gradient = deviance(x)
    assert_allclose(value, reference(x), rtol=1e-10)
    assert_allclose(gradient, approx_fprime(x, reference, 1e-6), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("loss", LOSSES)
def test_without_other_groupings_the_likelihood_has_its_maximum(loss):
    """Steps of EM end below it, with smaller slopes and variances."""
    X, y, groups = generated(loss, n_clients=40, n=5)
    one = clone(KINDS[loss]).set_params(crossed=[], nested=None, prior=np.inf, random="intercept")
    model = one.fit(X[:, :1], y, groups=groups)
    D = np.column_stack([X[:, 0], np.ones(len(X))])
    of = (groups[:, None] == np.arange(40)).astype(float)

    def reference(x):
        return dense(loss, y, D, x[0] * of, x[1:])[0]

    found = np.array([np.sqrt(model.covariance_[1, 1]), *model.cluster_params_[0]])
    assert_allclose(-2 * model.loglik_, reference(found), rtol=1e-9)
    best = minimize(reference, found + 0.1)
    assert_allclose(found, best.x, atol=2e-3)
    assert -2 * model.loglik_ <= best.fun + 1e-6
    usual = clone(one).set_params(crossed=None, n_clusters=1, basis="linear", dispersion=1)
    usual = usual.fit(X[:, :1], y, groups=groups)
    assert usual.loglik_ < model.loglik_
    assert usual.covariance_[1, 1] < model.covariance_[1, 1]
    # No grouping has effects; new rows and new clients are as without.
    assert not model.crossed_effects_
    newcomer = model.adapt(X[:5, :1], y[:5], groups=[99] * 5)
    assert np.isfinite(newcomer.predict(X[:3, :1], groups=[99] * 3)).all()
    with pytest.raises(ValueError, match="trees"):
        clone(one).set_params(basis="trees").fit(X[:, :1], y, groups=groups)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_fit_is_the_dense_one(loss):
    X, y, groups = generated(loss)
    model = clone(KINDS[loss]).set_params(prior=np.inf, standardize=False).fit(X, y, groups=groups)

    def reference(x):
        D, M = columns(X, groups, np.diag(x[:2]), x[2], x[3])
        return dense(loss, y, D, M, x[4:])[0]

    deviations = np.sqrt([*model.covariance_.diagonal(), *model.level_variances_.values()])
    found = np.concatenate([deviations[[0, 1, 3, 2]], model.cluster_params_[0]])
    assert_allclose(-2 * model.loglik_, reference(found), rtol=1e-10)
    # Two coefficients and four variances, and no dispersion.
    assert_allclose(model.bic_, -2 * model.loglik_ + 6 * np.log(12))
    best = minimize(reference, found, bounds=[(0, None)] * 4 + [(None, None)] * 2)
    assert -2 * model.loglik_ <= best.fun + 1e-6
    # Clients and levels are at their modes, and rows are predicted by all of them.
    D, M = columns(X, groups, np.diag(deviations[:2]), deviations[3], deviations[2])
    a = dense(loss, y, D, M, found[4:])[1]
    eta = D @ found[4:] + M @ a
    own = found[4:] + a[:24].reshape(12, 2) * deviations[:2]
    assert_allclose(model.params_, own, atol=1e-6)
    crossed = list(model.crossed_effects_["x1"].values())
    assert_allclose(crossed, deviations[2] * a[-7:], atol=1e-6)
    if loss == "log_loss":
        assert_allclose(model.decision_function(X, groups=groups), eta, atol=1e-6)
        assert (model.predict(X, groups=groups) == (eta > 0)).all()
    else:
        assert_allclose(model.predict(X, groups=groups), np.exp(eta), rtol=1e-6)
    new = np.column_stack([X[:1, 0], [99], [99]])
    far = model.decision_function if loss == "log_loss" else model.predict
    wanted = D[:1] @ own[0]
    assert_allclose(far(new, groups=[0]), wanted if loss == "log_loss" else np.exp(wanted))


def test_lme4s_published_fit_of_cbpp():
    """Binomial with herds: -92.03, standard deviation .6423, errors of the older versions."""
    table = cbpp()
    cases, other = table["cases"].to_numpy(), (table["animals"] - table["cases"]).to_numpy()
    twice = pd.concat([table, table], ignore_index=True)
    X = pd.get_dummies(twice["period"], drop_first=True, dtype=float)
    how = {"random": "intercept", "covariance": "diag", "standardize": False}
    model = PartialPoolingClassifier(crossed="herd", prior=np.inf, **how)
    # One client: all herds are its own.
    ill, count = np.repeat([1, 0], len(table)), np.append(cases, other)
    model.fit(X.assign(herd=twice["herd"]), ill, groups=0 * ill, sample_weight=count)
    constant = gammaln(cases + other + 1) - gammaln(cases + 1) - gammaln(other + 1)
    assert_allclose(model.loglik_ + constant.sum(), -92.02628, atol=1e-4)
    assert_allclose(np.sqrt(model.level_variances_["herd"]), 0.6423, atol=1e-4)
    wanted = [-0.9923, -1.1287, -1.5803, -1.3985]
    assert_allclose(model.cluster_params_[0], wanted, atol=1e-3)
    assert_allclose(model.standard_errors_[0], [0.3054, 0.3260, 0.4288, 0.2279], atol=1e-3)


@pytest.mark.parametrize("size", some([6.0, 10.0, 12.0], 1))
def test_large_counts_keep_all_clients(size):
    """Trials that are too far have finite losses: clients with large counts are not at fault."""
    rng = np.random.default_rng(0)
    groups, item = np.repeat(np.arange(10), 6), np.tile(np.arange(6), 10)
    x = rng.normal(size=60)
    z = size + x + rng.normal(size=10)[groups] + rng.normal(size=6)[item]
    model = PartialPoolingRegressor(loss="poisson", crossed=[1], covariance="diag")
    model.fit(np.column_stack([x, item]), rng.poisson(np.exp(z)), groups=groups)
    assert not model.rejected_clients_.size
    assert_allclose(model.coef_, 1.0, atol=0.1)


@pytest.mark.parametrize("loss", LOSSES)
def test_reports_and_what_is_refused(loss):
    X, y, groups = generated(loss, 8, 10)
    model = clone(KINDS[loss]).fit(X, y, groups=groups)
    assert ("residual" in model.summary()) == (loss == "log_loss")
    assert "Do clients differ?" in str(model.report())
    with pytest.raises(ValueError, match="fit again with all rows"):
        model.adapt(X[:9], y[:9], groups=np.full(9, 99))
    if loss == "poisson":
        with pytest.raises(ValueError, match="dispersion must be 'auto'"):
            clone(KINDS[loss]).set_params(dispersion=2.0).fit(X, y, groups=groups)
