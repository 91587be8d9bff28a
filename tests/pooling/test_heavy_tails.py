"""Scales of the clients' own: rows have multivariate t distributions (Pinheiro et al. 2001)."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import gamma, multivariate_normal, multivariate_t
from trials import some

from skcfl import PartialPooling, PartialPoolingClassifier, PartialPoolingRegressor
from skcfl.calls.posteriors_asked import Posteriors, PosteriorSums
from skcfl.federation import Faults, InProcessFederation
from skcfl.models import LinearModel
from skcfl.pooling.heavy_tails import df_slope, expected_df
from skcfl.pooling.population import LEAST_DF, MOST_DF

# Straight lines, which cost less; that curves are chosen is tested elsewhere.
Regressor = partial(PartialPoolingRegressor, basis="linear")
One = partial(Regressor, 1, covariance="diag")


def draw(n_clients=40, n_rows=6, df=4.0, seed=0, n_features=2, spread=0.5):
    """Clients whose scales have some degrees of freedom; rows, targets, ids, precisions."""
    rng = np.random.default_rng(seed)
    t = rng.gamma(df / 2, 2 / df, n_clients) if np.isfinite(df) else np.ones(n_clients)
    groups = np.repeat(np.arange(n_clients), n_rows)
    X = rng.normal(size=(len(groups), n_features))
    away = spread * rng.normal(size=(n_clients, n_features)) / np.sqrt(t)[:, None]
    w = np.arange(1, n_features + 1) + away
    y = (X * w[groups]).sum(axis=1) + 0.3 + rng.normal(size=len(groups)) / np.sqrt(t)[groups]
    return X, y, groups, t


def opened(*rows):
    return InProcessFederation(*rows).open(LinearModel().bind(2), random_state=0)


def log_densities(model, X, y, groups):
    """Of each client's rows under each cluster, (n_clients, K)."""
    D = np.column_stack([X, np.ones(len(y))])
    out = np.empty((len(model.groups_), model.n_clusters_))
    for i, client in enumerate(model.groups_):
        rows = groups == client
        S = D[rows] @ model.covariance_ @ D[rows].T + model.dispersion_ * np.eye(rows.sum())
        for k, theta in enumerate(model.cluster_params_):
            mean = D[rows] @ theta
            if np.isfinite(model.df_):
                out[i, k] = multivariate_t(mean, S, df=model.df_).logpdf(y[rows])
            else:
                out[i, k] = multivariate_normal(mean, S).logpdf(y[rows])
    return out


COVARIANCES = ["diag", "full", "spherical"]
DENSITIES = [("diag", 1, 4.0), ("full", 1, 2.1), ("spherical", 2, 3.0), ("full", 1, "auto")]
DENSITIES += [(kind, K, df) for kind in COVARIANCES for _, K, df in DENSITIES]


@pytest.mark.parametrize(("covariance", "n_clusters", "df"), some(DENSITIES, 4))
def test_likelihood_is_of_a_multivariate_t(covariance, n_clusters, df):
    X, y, groups, _ = draw()
    model = Regressor(n_clusters, covariance=covariance, df=df, random_state=0).fit(X, y, groups)
    assert df in ("auto", model.df_)
    joint = log_densities(model, X, y, groups) + np.log(model.mixture_weights_)
    assert_allclose(model.loglik_, logsumexp(joint, axis=1).sum(), rtol=1e-9)
    own = np.exp(joint - logsumexp(joint, axis=1)[:, None])
    assert_allclose(model.responsibilities_, own, atol=1e-8)


def test_degrees_of_freedom_are_found():
    found = [
        One().fit(X, y, groups=groups).df_
        for X, y, groups, _ in (draw(100, 8, df=3.0, seed=seed) for seed in some(range(6), 1))
    ]
    assert np.isfinite(found).all()
    assert 2.5 < np.median(found) < 4.0


def test_few_clients_do_not_show_the_tails_of_a_distribution():
    X, y, groups, _ = draw(15, 30)
    y[groups < 2] *= 20.0
    for n_clients, wanted in ((14, np.inf), (15, 2.5)):
        kept = groups < n_clients
        model = One().fit(X[kept], y[kept], groups=groups[kept])
        assert model.df_ == pytest.approx(wanted)
        assert ("degrees of freedom of scales 2.5\n" in model.summary()) == (n_clients == 15)
    kept = groups < 14
    model = One(df=4.0).fit(X[kept], y[kept], groups=groups[kept])
    assert model.df_ == 4.0


def test_a_normal_population_stays_normal():
    for seed in some(range(10), 2):
        X, y, groups, _ = draw(30, 8, df=np.inf, seed=seed)
        assert Regressor(1).fit(X, y, groups=groups).df_ == np.inf


def test_wild_clients_change_little():
    X, y, groups, _ = draw(30, 8, df=np.inf)
    clean = One().fit(X, y, groups=groups)
    wild = y.copy()
    rng = np.random.default_rng(0)
    wild[groups < 3] = 60.0 * rng.normal(size=24)
    away = {}
    for df in ("auto", np.inf):
        model = One(df=df).fit(X, wild, groups=groups)
        away[df] = np.abs(model.coef_[3:] - clean.coef_[3:]).max()
        if df == "auto":
            assert_array_equal(np.sort(np.argsort(model.client_dispersion_)[-3:]), [0, 1, 2])
    assert away["auto"] < 0.25 * away[np.inf]


def test_clients_without_rows_are_as_wild_as_the_population():
    X, y, groups, _ = draw(n_clients=6)
    kept = (groups > 0) | (np.arange(len(y)) < 2)
    pool = opened(X[kept], y[kept], groups[kept])
    prior = np.ones((1, 3)), 0.5 * np.ones(3), np.ones(1), 0.8, 4.0
    with_some = 0
    for _, held in pool.deal_folds(4, 0):
        _, _, covariances, noise = held.ask(Posteriors, *prior)
        empty = held.client_sizes == 0
        with_some += empty.any()
        assert_allclose(noise[empty], 1.6)
        assert_allclose(covariances[empty], 0.5)
        assert not np.isclose(noise[~empty], 1.6).any()
    assert with_some == 2


def test_expectations_are_integrals_over_the_precision():
    X, y, groups, _ = draw(n_clients=12, n_rows=3)
    df = 3.5
    model = Regressor(1, covariance="full", df=df, prior=np.inf).fit(X, y, groups=groups)
    first = groups == 0
    D = np.column_stack([X, np.ones(len(y))])[first]
    S = D @ model.covariance_ @ D.T + model.dispersion_ * np.eye(first.sum())

    def joint(t, power):
        given = multivariate_normal(D @ model.cluster_params_[0], S / t).pdf(y[first])
        return gamma(df / 2, scale=2 / df).pdf(t) * given * t**power

    total, inverse = (quad(joint, 0, 60, args=(power,), limit=100)[0] for power in (0, -1))
    expected = model.dispersion_ * inverse / total
    assert model.client_dispersion_[0] == pytest.approx(expected, rel=1e-5)
    # Rows vary by the client's own noise, and those of an unseen client as the population does.
    _, std = model.predict(X[first], groups=groups[first], return_std=True)
    Z = np.column_stack([model._scaling.transform(X[first]), np.ones(first.sum())])
    variances = np.einsum("rp,pq,rq->r", Z, model._covariances[0], Z)
    assert_allclose(std**2, variances + model.client_dispersion_[0])
    _, wide = model.set_params(unseen="average").predict(X[first], [99] * 3, return_std=True)
    variances = np.diag(S) * df / (df - 2.0)
    errors = np.einsum("rp,pq,rq->r", Z, model._stack.mean_errors[0], Z)
    assert_allclose(wide**2, variances + errors)


def test_the_slope_in_the_degrees_of_freedom_vanishes_where_a_step_ends():
    for mean in (-1.05, -1.2, -1.4):
        df = expected_df(mean)
        assert LEAST_DF < df < MOST_DF
        assert df_slope(df, 7.0, 7.0 * mean) == pytest.approx(0.0, abs=1e-5)
    assert (expected_df(-9.0), expected_df(-1.0)) == (LEAST_DF, MOST_DF)


@pytest.mark.parametrize("seed", some([0, 2], 1))
def test_tails_are_no_clusters(seed):
    X, y, groups, _ = draw(80, 4, df=2.5, seed=seed, spread=0.1)
    normal = Regressor(random_state=0, df=np.inf).fit(X, y, groups=groups)
    assert normal.n_clusters_ == 2
    model = Regressor(random_state=0).fit(X, y, groups=groups)
    assert model.n_clusters_ == 1
    assert np.isfinite(model.df_)
    assert np.isfinite(model.bic_path_["df"]).any()


def test_what_is_estimated_counts_in_bic_and_what_is_sent_in_the_ledger():
    X, y, groups, _ = draw(n_clients=30)
    for df, more in (("auto", 1), (3.0, 0)):
        model = One(df=df).fit(X, y, groups=groups)
        q = 3 + 3 + 1 + more
        assert np.isfinite(model.df_)
        assert model.bic_ == pytest.approx(-2 * model.loglik_ + q * np.log(30))
    pool = opened(X, y, groups)
    prior, sent = (np.ones((2, 3)), np.ones(3), np.ones(2) / 2, 0.8), {}
    for df in (np.inf, 3.0):
        up, down = pool.ledger.up, pool.ledger.down
        pool.ask(PosteriorSums, *prior, df)
        pool.ask(Posteriors, *prior, df)
        sent[df] = np.array([pool.ledger.up - up, pool.ledger.down - down])
    # Precisions of both clusters, one more sum, and then each one's noise; the degrees twice.
    assert_array_equal(sent[3.0] - sent[np.inf], [30 * (2 + 1) + 30, 60])


def test_wide_models_take_what_they_are_given():
    X, y, groups, _ = draw(n_clients=12, n_features=300)
    small = One(df=4.0, prior=1.0, max_iter=20)
    with pytest.warns(match="stopped after"):
        small.fit(X, y, groups=groups)
    assert small.df_ == 4.0
    assert np.isfinite(small.loglik_)
    with pytest.warns(match="stopped after"):
        auto = small.set_params(df="auto").fit(X, y, groups=groups)
    assert auto.df_ == np.inf


def test_lost_clients_keep_the_normal_distribution():
    X, y, groups, _ = draw()
    for retries in (0, 10):  # with ten all answer in the end
        faults = Faults(dropout=0.2, random_state=0)
        federation = InProcessFederation(X, y, groups, faults=faults, retries=retries)
        model = One(max_iter=60).fit_federation(federation)
        assert (model.df_ == np.inf) == (retries == 0)
    assert model.set_params(df=4.0).fit_federation(federation).df_ == 4.0


@pytest.mark.filterwarnings("ignore::skcfl.exceptions.RejectedClientWarning")
def test_fits_without_a_client_that_is_out_are_those_of_the_others():
    faults = {"attack": "nan", "false": [3]}
    X, y, groups, _ = draw(30, 6, df=3.0)
    rest, options = groups != 3, {"tol": 1e-9, "standardize": False, "random_state": 0}
    options |= {"n_clusters": 1, "covariance": "diag"}
    expected = Regressor(**options).fit(X[rest], y[rest], groups=groups[rest])
    assert np.isfinite(expected.df_)
    federation = InProcessFederation(X, y, groups, faults=Faults(**faults, random_state=0))
    model = Regressor(**options).fit_federation(federation)
    assert_allclose(model.df_, expected.df_, rtol=1e-3)
    assert_allclose(np.delete(model.coef_, 3, axis=0), expected.coef_, atol=1e-3)
    # Of its scale nothing is known: it is as wild as the population.
    wild = model.dispersion_ * model.df_ / (model.df_ - 2.0)
    assert model.client_dispersion_[3] == pytest.approx(wild)
    assert model.client_dispersion_[4] != pytest.approx(wild)


def test_degrees_of_freedom_are_checked():
    X, y, groups, _ = draw(n_clients=4)
    for wrong in (2, np.nan):
        with pytest.raises(ValueError, match="'df' parameter"):
            Regressor(df=wrong).fit(X, y, groups=groups)
    counts = np.random.default_rng(0).poisson(1.0, len(y))
    with pytest.raises(ValueError, match=r"df must be 'auto' or numpy.inf but for squared error"):
        Regressor(df=4.0, loss="poisson").fit(X, counts, groups=groups)
    with pytest.raises(ValueError, match="squared error"):
        PartialPooling(LinearModel(loss="log_loss"), df=4.0).fit(X, y > 0, groups=groups)
    classes = PartialPoolingClassifier(basis="linear", df="auto").fit(X, y > 0, groups=groups)
    assert classes.df_ == np.inf


def test_curvature_is_the_expected_one():
    """Of many clients it is minus the change of the slopes (Lange, Little and Taylor 1989)."""
    X, y, groups, _ = draw(3000, 3, df=3.0)
    pool = opened(X, y, groups)
    theta = np.array([[1.0, 2.0, 0.3]])
    known = np.array([0.5, 0.5, 1e-9]), np.ones(1), 1.0, 3.0
    sums = pool.ask(PosteriorSums, theta, *known)
    back, ahead = (
        [pool.ask(PosteriorSums, theta + step, *known)["slopes"][0] for step in sign * np.eye(3)]
        for sign in (-1e-4, 1e-4)
    )
    change = np.subtract(back, ahead) / 2e-4
    assert_allclose(np.diag(sums["curvature"][0]), np.diag(change), rtol=0.05)


@pytest.mark.parametrize(("errors", "dense"), [(None, True), (np.zeros((1, 3, 3)), False)])
def test_covariances_have_the_scales_of_the_noise(errors, dense):
    X, y, groups, _ = draw(n_clients=10)
    pool = opened(X, y, groups)
    prior = np.ones((1, 3)), 0.5 * np.eye(3), np.ones(1), 0.8
    _, normal_means, normal, _ = pool.ask(Posteriors, *prior, np.inf, errors, dense)
    _, means, scaled, noise = pool.ask(Posteriors, *prior, 3.0, errors, dense)
    assert np.ptp(noise) > 0.5
    assert_allclose(means, normal_means, rtol=1e-12)
    factor = (noise / 0.8).reshape(-1, *[1] * (scaled.ndim - 1))
    assert_allclose(scaled, factor * normal, rtol=1e-9)


def test_tails_that_are_hardly_heavy_are_let_be():
    X, y, groups, _ = draw(250, 12, df=9.0, seed=1)
    model = One().fit(X, y, groups=groups)
    path = model.bic_path_
    assert path["df"][0] == model.df_ == np.inf
    assert 6.0 < path["df"][1] < 20.0
    assert path["bic"][1] < path["bic"][0] - 10.0


ENDS = [("auto", "stacked"), (2.01, "full"), (3.0, "full"), ("auto", "full")]


@pytest.mark.parametrize(("df", "covariance"), some(ENDS, 1))
def test_targets_without_noise_have_fits(df, covariance):
    X, y, groups, _ = draw(n_clients=10)
    own = np.random.default_rng(0).normal(size=(10, 2))[groups]
    for exact in (np.full(len(y), 3.0), X.sum(axis=1), (X * own).sum(axis=1)):
        model = Regressor(1, df=df, covariance=covariance, prior=np.inf).fit(X, exact, groups)
        assert np.isfinite(model.loglik_)
        assert_allclose(model.predict(X, groups=groups), exact, atol=1e-3)


@pytest.mark.parametrize("df", some([np.inf, 4.0], 1))
def test_targets_that_are_all_alike_have_fits_of_curves(df):
    """Rounding of the losses, which curves interpolate, is no likelihood."""
    rng = np.random.default_rng(409947)
    groups, X = rng.integers(11, size=50), rng.normal(size=(50, 3))
    model = PartialPoolingRegressor(df=df, basis="splines").fit(X, np.full(50, 2.4038), groups)
    assert model.loglik_ < 50 * 100.0  # the density of a row at an error of 1e-43
    assert_allclose(model.predict(X, groups=groups), 2.4038, rtol=1e-9)


@pytest.mark.parametrize("random", ["intercept", "all"])
def test_heavy_tails_of_intercepts_alone_are_found(random):
    """Beside one model for all, a population of intercepts has one part, which is heavy."""
    X, y, groups, _ = draw(n_clients=60, n_rows=8, df=2.5, seed=3)
    model = Regressor(1, random=random).fit(X, y, groups=groups)
    assert np.isfinite(model.df_)
    assert np.isfinite(model.predict(X, groups=groups)).all()
