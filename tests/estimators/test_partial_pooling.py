"""Partial pooling: equal to mixed models, its limits, and what changes nothing."""

import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.optimize import minimize_scalar
from scipy.special import xlogy
from scipy.stats import gamma, multivariate_normal, poisson
from sklearn import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import GammaRegressor, LinearRegression, LogisticRegression
from sklearn.metrics import adjusted_rand_score
from statsmodels import datasets
from statsmodels.regression.mixed_linear_model import MixedLM
from trials import some

import skcfl
from skcfl import (
    PartialPooling,
    PartialPoolingClassifier,
    PartialPoolingRegressor,
)
from skcfl.calls.posteriors_asked import PosteriorSums
from skcfl.datasets import make_clustered_regression
from skcfl.exceptions import NotEnoughMemoryError
from skcfl.federation import Faults, InProcessFederation
from skcfl.models import MLP, LinearModel

SD = np.array([1.0, 0.5, 0.2])


# Straight lines without heavy tails, which cost less; that these are chosen is tested elsewhere.
Regressor = partial(PartialPoolingRegressor, basis="linear", df=np.inf)
Classifier = partial(PartialPoolingClassifier, basis="linear")


def lines_of(B, n, rng):
    """Features of clients with these coefficients, intercepts last, their lines, and clients."""
    groups = np.repeat(np.arange(len(B)), n)
    X = rng.normal(size=(len(groups), B.shape[1] - 1))
    return X, (X * B[groups, :-1]).sum(axis=1) + B[groups, -1], groups


def population(n_clients=30, n=12, seed=0, noise=1.0, sd=SD):
    """One normal population: two features, intercepts last."""
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(n_clients, 3)) * sd + [1.0, -1.0, 3.0]
    X, z, groups = lines_of(B, n, rng)
    return X, z + noise * rng.normal(size=len(z)), groups, B


def loglik(model, X, y, groups):
    """Marginal log-likelihood, from its definition."""
    Z = np.column_stack([X, np.ones(len(X))])
    total = 0.0
    for group in np.unique(groups):
        A, t = Z[groups == group], y[groups == group]
        V = A @ model.covariance_ @ A.T + model.dispersion_ * np.eye(len(t))
        parts = [
            np.log(w) + multivariate_normal(A @ theta, V).logpdf(t)
            for w, theta in zip(model.mixture_weights_, model.cluster_params_, strict=True)
        ]
        total += np.logaddexp.reduce(parts)
    return total


def mean_errors(model, X, groups):
    """Covariance of generalised least squares."""
    Z = np.column_stack([X, np.ones(len(X))])
    precision = 0.0
    for group in np.unique(groups):
        A = Z[groups == group]
        V = A @ model.covariance_ @ A.T + model.dispersion_ * np.eye(len(A))
        precision = precision + A.T @ np.linalg.solve(V, A)
    return np.linalg.inv(precision)


def mixed_model(X, y, groups, varying):
    """statsmodels' fit by maximum likelihood of random intercepts and slopes."""
    Z = np.column_stack([X, np.ones(len(y))])
    model = MixedLM(y, Z, groups, exog_re=Z[:, [*varying, X.shape[1]]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = [model.fit(reml=False, method=[method]) for method in ("lbfgs", "powell")]
        best = max((fit for fit in fits if np.isfinite(fit.llf)), key=lambda fit: fit.llf)
        # Either may stop short of the variances' third digit.
        further = model.fit(reml=False, method=["nm"], start_params=best.params_object, xtol=1e-8)
    return max(best, further, key=lambda fit: fit.llf)


MIXED = [("all", 0), ("intercept", 1), ([1], 1), ("all", 1), ("intercept", 0), ([1], 0)]


@pytest.mark.parametrize(("random", "seed"), some(MIXED, 2))
def test_one_cluster_is_a_mixed_model(random, seed):
    X, y, groups, _ = population(seed=seed, sd=2 * SD)
    varying = {"all": [0, 1], "intercept": []}.get(str(random), [1])
    mixed = mixed_model(X, y, groups, varying)
    options = {"covariance": "full", "random": random, "prior": np.inf, "tol": 1e-9}
    model = Regressor(1, standardize=bool(seed), **options).fit(X, y, groups=groups)
    assert model.loglik_ == pytest.approx(mixed.llf, rel=1e-6)
    assert model.loglik_ > mixed.llf - 1e-5
    own = [*varying, 2]
    assert_allclose(model.covariance_[np.ix_(own, own)], mixed.cov_re, rtol=1e-3, atol=2e-3)
    shared = np.setdiff1d(np.arange(3), own)
    assert_allclose(model.covariance_[shared], 0.0, atol=1e-12)
    assert_allclose(model.params_[:, shared], np.tile(model.params_[0, shared], (30, 1)))
    assert model.dispersion_ == pytest.approx(mixed.scale, rel=1e-3)
    assert_allclose(model.cluster_params_[0], mixed.fe_params, rtol=1e-4, atol=1e-4)
    # Those of statsmodels are of all parameters together.
    assert_allclose(model.standard_errors_[0], mixed.bse_fe, rtol=5e-2)
    for i, effects in enumerate(mixed.random_effects.values()):
        expected = mixed.fe_params.copy()
        expected[own] += effects
        assert_allclose(model.params_[i], expected, rtol=1e-2, atol=1e-2)
    q = 3 + len(own) * (len(own) + 1) // 2 + 1
    assert model.bic_ == pytest.approx(-2 * model.loglik_ + q * np.log(30))


def real_rows(name):
    """Features (standardised), target and client of a table that statsmodels ships."""
    if name == "grunfeld":
        frame = datasets.grunfeld.load_pandas().data
        table = frame[["value"]], frame["invest"] / 100, frame["firm"]
    else:  # unemployment by five years
        frame = datasets.macrodata.load_pandas().data
        table = frame[["infl"]], frame["unemp"], frame["year"] // 5
    X, y, groups = (np.asarray(part) for part in table)
    return (X - X.mean(axis=0)) / X.std(axis=0), y.astype(float), groups


@pytest.mark.parametrize("name", ["grunfeld", "macrodata"])
def test_real_tables_have_the_fit_of_mixed_models(name):
    X, y, groups = real_rows(name)
    mixed = mixed_model(X, y, groups, range(X.shape[1]))
    model = Regressor(1, covariance="full", prior=np.inf).fit(X, y, groups=groups)
    assert model.loglik_ == pytest.approx(mixed.llf, rel=1e-6)
    assert model.loglik_ == pytest.approx(loglik(model, X, y, groups), rel=1e-7)
    assert_allclose(np.diag(model.covariance_), np.diag(mixed.cov_re), rtol=1e-3)
    assert model.dispersion_ == pytest.approx(mixed.scale, rel=1e-3)


@pytest.mark.parametrize("covariance", ["diag", "full", "spherical"])
def test_likelihood_is_what_its_definition_says(covariance):
    data = make_clustered_regression(12, 2, 2, n_samples=6, random_state=0)
    model = Regressor(2, covariance=covariance, random_state=0)
    model.fit(data.X * [1.0, 20.0] + 3, data.y * 7, groups=data.groups)
    expected = loglik(model, data.X * [1.0, 20.0] + 3, data.y * 7, data.groups)
    assert model.loglik_ == pytest.approx(expected, rel=1e-9)
    assert_allclose(model.responsibilities_.sum(axis=1), 1.0)
    assert not model.covariance_.any()  # clusters without variance, which BIC counts
    q = 2 * 3 + 1 + 1
    assert model.bic_ == pytest.approx(-2 * model.loglik_ + q * np.log(12))
    one = Regressor(1, covariance=covariance).fit(data.X, data.y, groups=data.groups)
    # Three correlations count as two: their prior is worth six clients beside twelve.
    q = 3 + {"diag": 3, "full": 3 + 2, "spherical": 1}[covariance] + 1
    assert one.bic_ == pytest.approx(-2 * one.loglik_ + q * np.log(12))
    assert one.loglik_ == pytest.approx(loglik(one, data.X, data.y, data.groups), rel=1e-7)
    # A known dispersion is kept, and is no parameter.
    known = Regressor(1, covariance=covariance, dispersion=2.0)
    known.fit(data.X, data.y, groups=data.groups)
    assert known.dispersion_ == 2.0
    assert known.bic_ == pytest.approx(-2 * known.loglik_ + (q - 1) * np.log(12))
    assert known.loglik_ == pytest.approx(loglik(known, data.X, data.y, data.groups), rel=1e-7)


CLIMBS = [("diag", 0.5, np.inf), ("full", np.inf, np.inf), ("spherical", 0.5, np.inf)]
CLIMBS += [("full", np.inf, "auto"), ("diag", np.inf, 5.0)]
CLIMBS += [("diag", np.inf, np.inf), ("full", 0.5, np.inf), ("spherical", np.inf, np.inf)]


@pytest.mark.parametrize(("covariance", "prior", "df"), some(CLIMBS, 4))
def test_likelihood_never_falls(covariance, prior, df):
    for seed in range(2):
        X, y, groups, _ = population(12, 5, seed)
        model = Regressor(1 + seed, covariance=covariance, prior=prior, df=df, random_state=0)
        model.fit(X, y, groups=groups)
        falls = np.diff(model.history_["objective"])
        assert falls.max() <= 1e-10 * abs(model.objective_)
        assert model.objective_ <= model.history_["objective"].min() + 1e-9


@pytest.mark.parametrize("prior", ["auto", np.inf])
def test_noise_does_not_depend_on_what_the_means_spend(prior):
    """With half as many slopes as rows maximum likelihood finds half of the noise."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(120, 60)), np.repeat(np.arange(6), 20)
    y = X @ rng.normal(size=60) + 3.0 * rng.normal(size=120)
    model = Regressor(1, random="intercept", prior=prior).fit(X, y, groups=groups)
    if prior == "auto":
        assert model.dispersion_ == pytest.approx(9.0, rel=0.3)
    else:
        assert model.dispersion_ < 6.0


def test_no_difference_is_the_pooled_model():
    rng = np.random.default_rng(0)
    # The same rows at every client: nothing differs.
    X, groups = np.tile(rng.normal(size=(10, 2)), (30, 1)), np.repeat(np.arange(30), 10)
    y = np.tile(X[:10] @ [1.0, 2.0] + rng.normal(size=10), 30)
    model = Regressor(prior=np.inf).fit(X, y, groups=groups)
    assert model.n_clusters_ == 1
    plain = LinearRegression().fit(X, y)
    assert_allclose(model.coef_, np.tile(plain.coef_, (30, 1)), rtol=1e-3)
    assert np.diag(model.covariance_).max() < 1e-4


def test_much_difference_is_local_models():
    X, y, groups, _ = population(10, 40, noise=1e-3, sd=100 * SD)
    model = Regressor(n_clusters=1, prior=np.inf).fit(X, y, groups=groups)
    local = skcfl.LocalModelsRegressor(alpha=0.0).fit(X, y, groups=groups)
    assert_allclose(model.params_, local.params_, rtol=1e-5, atol=1e-5)


def test_shrinks_between_the_two():
    X, y, groups, B = population(60, 5, noise=2.0)
    models = Regressor(), skcfl.FedAvgRegressor(), skcfl.LocalModelsRegressor()
    errors = [((fit.fit(X, y, groups=groups).params_ - B) ** 2).sum() for fit in models]
    assert errors[0] < 0.8 * min(errors[1:])


@pytest.mark.parametrize("n_samples", [5, 30])
def test_crisp_clusters_are_found(n_samples):
    data = make_clustered_regression(12, 3, 4, n_samples=n_samples, random_state=5)
    model = Regressor(random_state=0).fit(data.X, data.y, groups=data.groups)
    assert model.n_clusters_ == 3
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    known = skcfl.OracleClustersRegressor(data.labels).fit(data.X, data.y, groups=data.groups)
    truth = data.coef[data.labels]
    errors = [np.linalg.norm(fit.coef_ - truth) for fit in (model, known)]
    assert errors[0] < 1.05 * errors[1]
    assert not model.covariance_.any()
    if n_samples == 30:  # errors of clients are those of the clusters' means
        assert_allclose(model.params_std_, model.standard_errors_[model.labels_], rtol=1e-4)
        z = (model.params_[:, :4] - truth) / model.params_std_[:, :4]
        assert 0.5 < np.sqrt(np.mean(z**2)) < 2.0


LINES = [("stacked", 30, 33), ("auto", 30, 4), ("spherical", 30, 11), ("diag", 30, 4)]
LINES += [("diag", 100, 4)]


@pytest.mark.parametrize("covariance, n_clients, seed", some(LINES, 2))
def test_correlations_are_no_clusters(covariance, n_clients, seed):
    """Along a line several clusters fit better than one without correlations."""
    rng = np.random.default_rng(seed)
    L = np.tril(0.5 * rng.standard_normal((4, 4)))
    B = rng.standard_normal((n_clients, 4)) @ L.T + [1.0, -1.0, 0.0, 3.0]
    X, z, groups = lines_of(B, 12, rng)
    y = z + rng.normal(size=len(z))
    model = Regressor(covariance=covariance, random_state=seed).fit(X, y, groups=groups)
    path = model.bic_path_
    assert model.n_clusters_ == 1
    single = path["n_clusters"] == 1
    if covariance == "auto":
        assert single.sum() == 1
        return
    kinds = {"stacked": ["diag", "full", "intercept", "none"]}.get(
        covariance, [covariance, "full"]
    )
    assert_array_equal(path["covariance_type"][single], kinds)
    assert path["icl"][~single].min() < path["icl"][0] - 10
    assert path["icl"][1] < path["icl"][~single].min() - 10
    # All else is as if one had been asked for.
    told = Regressor(1, covariance=covariance).fit(X, y, groups=groups)
    assert model.covariance_type_ == covariance
    assert_allclose(model.params_, told.params_, rtol=1e-12)
    assert (model.loglik_, model.n_iter_) == (told.loglik_, told.n_iter_)


def test_clusters_that_differ_inside_keep_their_variance():
    rng = np.random.default_rng(0)
    X, _, groups, _ = population(30, 20)
    intercept = np.repeat([-20.0, 0.0, 20.0], 10) + rng.normal(size=30)
    y = X @ [1.0, 2.0] + intercept[groups] + rng.normal(size=len(X))
    model = Regressor(n_init=1, random_state=0).fit(X, y, groups=groups)
    assert_array_equal(np.sort(model.cluster_sizes_), [10, 10, 10])
    assert np.sqrt(model.covariance_[2, 2]) == pytest.approx(1.0, rel=0.3)


def test_a_stack_finds_the_kinds_that_a_diagonal_covariance_finds():
    """Two kinds that differ inside are a correlation of all, too."""
    rng = np.random.RandomState(0)
    kinds = np.repeat([[250.0, 4.0], [265.0, 21.0]], (26, 14), axis=0)
    lines = kinds + rng.normal(size=(40, 2)) * [18.0, 1.5]
    groups, day = np.repeat(np.arange(40), 7), np.tile(np.arange(7.0), 40)[:, None]
    y = lines[groups, 0] + lines[groups, 1] * day[:, 0] + 24.0 * rng.normal(size=280)
    fits = {
        kind: Regressor(covariance=kind, n_init=1, random_state=0).fit(day, y, groups=groups)
        for kind in ("diag", "stacked", "auto")
    }
    assert [fit.n_clusters_ for fit in fits.values()] == [2, 2, 1]
    assert fits["stacked"].covariance_type_ == "diag"
    assert_allclose(fits["stacked"].params_, fits["diag"].params_, rtol=1e-12)
    path = fits["stacked"].bic_path_
    fewer = (path["n_clusters"] == 1) & np.isin(path["covariance_type"], ["intercept", "none"])
    assert_array_equal(path["bic"][~fewer], fits["diag"].bic_path_["bic"])


@pytest.mark.parametrize("slope, wanted", [(0.0, "diag"), (3.0, "full")])
def test_correlations_are_found_where_there_are_any(slope, wanted):
    rng = np.random.default_rng(0)
    B = rng.normal(size=(20, 3))
    B[:, 1] += slope * B[:, 0]
    X, z, groups = lines_of(B, 8, rng)
    y = z + 0.5 * rng.normal(size=160)
    auto, stack, single = (
        Regressor(1, covariance=kind).fit(X, y, groups=groups)
        for kind in ("auto", "stacked", wanted)
    )
    assert auto.covariance_type_ == wanted
    assert_allclose(auto.params_, single.params_, rtol=1e-10)
    assert_array_equal(stack.bic_path_["covariance_type"], ["diag", "full"])
    assert stack.bic_ == stack.bic_path_["bic"].min()
    assert f"BIC {stack.bic_:.3f}   (covariance {wanted})" in stack.summary()
    assert "(covariance" not in single.summary()


def test_a_long_tail_is_no_cluster():
    """Clients of very different sizes: a second cluster would have the three largest."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(300, 4)), np.repeat(np.arange(30), 10)
    B = np.exp(rng.normal(size=(30, 1))) * (1 + 0.3 * rng.normal(size=(30, 5)))
    y = (X * B[groups, :4]).sum(axis=1) + B[groups, 4] + 0.5 * rng.normal(size=300)
    for covariance in ("auto", "full"):
        model = Regressor(covariance=covariance, n_init=1, random_state=0)
        assert model.fit(X, y, groups=groups).n_clusters_ == 1
    assert np.isinf(model.bic_path_["icl"][1])
    # Three that are alike are one.
    B[:3], B[3:] = B[0] + 5, B[3]
    y = (X * B[groups, :4]).sum(axis=1) + B[groups, 4] + 0.5 * rng.normal(size=300)
    model = Regressor(n_init=1, random_state=0).fit(X, y, groups=groups)
    assert_array_equal(model.cluster_sizes_, [27, 3])


@pytest.mark.parametrize("seed", some([0, 1, 4], 1))
def test_a_mean_of_hardly_more_rows_than_coefficients_is_no_cluster(seed):
    """Of three clients with more noise than others a mean of their own would explain most."""
    rng = np.random.default_rng(seed)
    groups, X = np.repeat(np.arange(30), 4), rng.normal(size=(120, 8))
    y = X.sum(axis=1) + np.where(groups < 3, 6.0, 1.0) * rng.normal(size=120)
    model = Regressor(covariance="diag", random_state=0).fit(X, y, groups=groups)
    assert model.n_clusters_ == 1


def logistic_population(n_clients=60, n=15, seed=0):
    X, z, groups, _ = population(n_clients, n, seed, noise=0.0)
    return X, z - 3, groups, np.random.default_rng(seed)


def laplace(model, X, y, groups, parts, slack):
    """Laplace's log-likelihood; `parts` has rows' log-densities, minus slopes and curvatures."""
    Z, total = np.column_stack([X, np.ones(len(X))]), 0.0
    inverse = np.linalg.inv(model.covariance_)
    for i, group in enumerate(model.groups_):
        A, d = Z[groups == group], model.params_[i] - model.cluster_params_[0]
        density, slopes, curvatures = parts(A @ model.params_[i], y[groups == group])
        # The parameters are at the mode.
        assert np.abs(A.T @ slopes + inverse @ d).max() < slack
        H = A.T @ (A * curvatures[:, None])
        total += density.sum() - d @ inverse @ d / 2
        total -= np.linalg.slogdet(np.eye(3) + H @ model.covariance_)[1] / 2
    return total


def test_binary_likelihood_is_laplaces():
    X, z, groups, rng = logistic_population()
    y = np.where(rng.random(len(z)) < 1 / (1 + np.exp(-z)), "yes", "no")
    model = Classifier(1, covariance="diag").fit(X, y, groups=groups)
    assert 0.5 < np.sqrt(model.covariance_[0, 0]) < 1.5

    def parts(z, own):
        s, p = np.where(own == "yes", 1.0, -1.0), 1 / (1 + np.exp(-z))
        return -np.logaddexp(0, -s * z), -s / (1 + np.exp(s * z)), p * (1 - p)

    assert model.loglik_ == pytest.approx(laplace(model, X, y, groups, parts, 1e-5), rel=1e-8)


def test_gamma_without_differences_is_a_gamma_regression():
    """Equal clients: the likelihood is that of scipy's distribution, its shape the best one."""
    rng = np.random.default_rng(0)
    X, groups = np.tile(rng.normal(size=(20, 2)), (8, 1)), np.repeat(np.arange(8), 20)
    mean = np.exp(X @ [0.5, -0.3] + 2.0)
    y = np.tile(rng.gamma(3.0, mean[:20] / 3.0), 8)
    model = Regressor(1, loss="gamma", prior=np.inf).fit(X, y, groups=groups)
    assert np.diag(model.covariance_).max() < 1e-4
    fitted = model.predict(X, groups=groups)

    def minus(log_shape):
        shape = np.exp(log_shape)
        return -gamma.logpdf(y, shape, scale=fitted / shape).sum()

    assert model.loglik_ == pytest.approx(-minus(-np.log(model.dispersion_)), rel=1e-5)
    best = minimize_scalar(minus, (0.0, 2.0))
    assert 1 / model.dispersion_ == pytest.approx(np.exp(best.x), rel=1e-3)
    plain = GammaRegressor(alpha=0, tol=1e-10).fit(X, y)
    assert_allclose(model.coef_, np.tile(plain.coef_, (8, 1)), rtol=1e-3)


def test_shared_coefficients_are_the_same_in_all_clusters():
    data = make_clustered_regression(15, 3, 2, n_samples=20, random_state=1)
    rng = np.random.default_rng(0)
    extra = rng.normal(size=(len(data.y), 1))
    X, y = np.hstack([data.X, extra]), data.y + 0.7 * extra[:, 0]
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = Regressor(3, random=["a", "b"], random_state=0).fit(frame, y, groups=data.groups)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    assert_allclose(model.params_[:, 2], np.full(15, model.params_[0, 2]))
    assert model.params_[0, 2] == pytest.approx(0.7, abs=0.1)
    assert model.loglik_ == pytest.approx(loglik(model, X, y, data.groups), rel=1e-9)
    # Positions are of the features, without the column of ids.
    table = np.column_stack([data.groups, X])
    other = Regressor(3, random=[0, -2], random_state=0, group_col=0)
    assert_allclose(other.fit(table, y).params_, model.params_, rtol=1e-10)


def test_poisson_likelihood_is_laplaces_and_double_poissons():
    X, z, groups, rng = logistic_population()
    y = rng.poisson(np.exp(z / 2 + 1) * rng.gamma(1.0, size=len(z))).astype(float)
    options = {"n_clusters": 1, "covariance": "diag", "loss": "poisson"}
    models = [
        Regressor(**options, dispersion=phi, prior=np.inf, tol=1e-8) for phi in ("auto", 1, 2.5)
    ]
    for model in models:
        phi = model.fit(X, y, groups=groups).dispersion_

        def parts(z, own, phi=phi):
            """Efron's density: Poisson's at its own mean, less the half deviance."""
            mean, saturated = np.exp(z), poisson.logpmf(own, own) - np.log(phi) / 2
            deviance = xlogy(own, own / mean) - own + mean
            return saturated - deviance / phi, (mean - own) / phi, mean / phi

        assert model.loglik_ == pytest.approx(laplace(model, X, y, groups, parts, 1e-4), rel=1e-7)
    best, plain, other = models
    assert (plain.dispersion_, other.dispersion_) == (1.0, 2.5)
    assert 2.0 < best.dispersion_ < 6.0
    assert best.loglik_ > max(plain.loglik_, other.loglik_)
    # Noise is no difference between clients.
    assert np.diag(best.covariance_).sum() < 0.8 * np.diag(plain.covariance_).sum()
    assert f"dispersion {best.dispersion_:.5g}" in best.summary()
    # Where there is no more noise than Poisson's, or less, the model is Poisson's.
    few = np.round(np.exp(z / 2 + 1))
    models = [
        Regressor(**options, dispersion=phi, tol=1e-7).fit(X, few, groups=groups)
        for phi in ("auto", 1)
    ]
    assert models[0].dispersion_ == 1.0
    assert_allclose(models[0].params_, models[1].params_, atol=1e-3)


@pytest.mark.parametrize("noise", some([0.5, 0.0], 1))
def test_crisp_clusters_of_counts_are_no_noise(noise):
    rng = np.random.default_rng(2)
    theta = np.array([[0.8, 0.0, 1.5], [-0.8, 0.5, 1.0], [0.0, -0.8, 2.0]])
    labels, groups = np.arange(12) % 3, np.repeat(np.arange(12), 30)
    X = rng.normal(size=(360, 2))
    mean = np.exp((X * theta[labels[groups], :2]).sum(axis=1) + theta[labels[groups], 2])
    y = rng.poisson(mean * (rng.gamma(1 / noise, noise, size=360) if noise else 1.0))
    model = Regressor(loss="poisson", random_state=0).fit(X, y, groups=groups)
    assert model.n_clusters_ == 3
    assert adjusted_rand_score(labels, model.labels_) == 1.0
    assert (model.dispersion_ > 2.0) if noise else (model.dispersion_ < 1.3)


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_dispersions_of_counts_are_no_less_than_one(covariance):
    """Two kinds of clients, far apart: steps to where it is less are not taken."""
    rng, groups = np.random.default_rng(0), np.repeat(np.arange(40), 3)
    X = rng.normal(size=(120, 2))
    y = rng.poisson(np.where(groups % 2, 20, 0.2)).astype(float)
    model = Regressor(1, loss="poisson", covariance=covariance)
    assert model.fit(X, y, groups=groups).dispersion_ >= 1.0


def test_all_but_exact_fits_have_a_likelihood():
    """Collinear features, no noise nearly: rounding leaves nothing of a matrix's least values."""
    rng = np.random.default_rng(0)
    t = rng.normal(size=(1, 20))
    X = np.concatenate([t, t**2, t**2 + 1e-7 * t], axis=0).T
    federation = InProcessFederation(X, X[:, 0], np.zeros(20))
    pool = federation.open(LinearModel(alpha=0.0).bind(3), random_state=0)
    root, weights = np.array([50.0, 700.0, 700.0, 4.0]), np.ones(1)
    sums = pool.ask(PosteriorSums, np.ones((1, 4)), root, weights, 1e-14)
    assert all(np.isfinite(each).all() for each in sums.values())


@pytest.mark.parametrize("loss", some(["gamma", "poisson"], 1))
def test_rows_may_weigh_more_by_any_factor(loss):
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(12), 6)
    X = rng.normal(size=(72, 3))
    B = 0.5 + 0.3 * rng.normal(size=(12, 3))
    mean = np.exp(np.clip((X * B[groups]).sum(axis=1), -4, 4))
    y = rng.poisson(mean) + 1.0 if loss == "poisson" else rng.gamma(2.0, mean / 2)
    weights = 10.0 ** rng.uniform(-12, 12, 72)
    model = Regressor(loss=loss, covariance="diag", n_init=1, random_state=0)
    model.fit(X, y, groups, sample_weight=weights)
    assert np.isfinite(model.loglik_)
    assert np.isfinite(model.params_std_).all()
    heaviest = [np.argmax(np.where(groups == k, weights, 0.0)) for k in range(12)]
    assert_allclose(model.predict(X[heaviest], groups[heaviest]), y[heaviest], rtol=0.05)


def test_clients_of_one_row_of_any_size():
    """Exponentials overflow at steps from zero, where fits begin; each row is no cluster."""
    rng = np.random.default_rng(1)
    groups, X = np.arange(10), rng.normal(size=(10, 3))
    y = rng.gamma(2.0, np.exp(X @ [1.0, -0.5, 0.3]) / 2.0)
    options = {"loss": "gamma", "covariance": "diag", "n_init": 1, "random_state": 0}
    one, other = (Regressor(**options).fit(X, unit * y, groups=groups) for unit in (1.0, 1e6))
    assert_allclose(other.coef_, one.coef_, atol=1e-3)
    assert other.n_clusters_ == 1
    assert not other.rejected_clients_.size


def test_sparse_rows():
    X, y, groups, _ = population(12, 10)
    X[np.abs(X) < 0.5] = 0.0
    model = Regressor(1, covariance="stacked", standardize=False)
    dense = clone(model).fit(X, y, groups=groups)
    thin = clone(model).fit(sparse.csr_array(X), y, groups=groups)
    assert_allclose(thin.params_, dense.params_, rtol=1e-8)
    _, std = thin.predict(sparse.csr_array(X), groups=groups, return_std=True)
    assert_allclose(std, dense.predict(X, groups=groups, return_std=True)[1], rtol=1e-8)


def test_summary_has_what_lme4_shows():
    X, y, groups, _ = population()
    fits = [
        Regressor(1, **options).fit(X, y, groups=groups)
        for options in (
            {"covariance": "diag"},
            {"covariance": "diag", "prior": np.inf},
            {"covariance": "full"},
            {"covariance": "full", "random": [0]},
        )
    ]
    model, plain, full, slope = fits
    text, unpriored, *with_correlations = (fit.summary() for fit in fits)
    parts = ("Random effects", "Fixed effects", "(Intercept)", "Residual", "Std. error")
    for word in (*parts, f"{model.loglik_:.3f}", "shrunken by a prior"):
        assert word in text
    assert "Corr" not in text and "shrunken" not in unpriored
    assert (model.standard_errors_ <= plain.standard_errors_ * 1.02)[:, :2].all()
    few = model.summary(max_params=2)
    assert "x0" in few and "x1" not in few and "(Intercept)" in few and "2 of 3" in few
    lines = [
        next(line for line in text.splitlines() if "(Intercept)" in line)
        for text in with_correlations
    ]
    spread = np.sqrt(np.diag(full.covariance_))
    wanted = [f"{full.covariance_[2, j] / (spread[2] * spread[j]):.2f}" for j in (0, 1)]
    assert "Corr" in with_correlations[0] and lines[0].split()[-2:] == wanted
    # Of parameters that do not differ there are none.
    assert len(lines[1].split()) == 3 and "nan" not in with_correlations[1]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (PartialPooling(LinearModel("huber")), "log-likelihood"),
        (PartialPooling(MLP((3,))), "log-likelihood"),
        (PartialPooling(LinearModel(alpha=0.1)), "alpha must be"),
        (Regressor(n_clusters=6), "n_clusters=6"),
        *((Regressor(random=[e]), "random must be.*got") for e in ("x2", 2, True, 0.5, None)),
        (Regressor(random=[], fit_intercept=False), "random must name.*fit_intercept=False"),
        (Classifier(dispersion=2.0), "dispersion must be 'auto' or 1"),
    ],
    ids=str,
)
def test_bad_parameters(model, message):
    X, y, groups, _ = population(5, 4)
    y = y if isinstance(model, PartialPoolingRegressor) else y > 0
    with pytest.raises(ValueError, match=message):
        model.fit(X, y, groups=groups)


def test_what_fitted_models_refuse():
    X, y, groups, _ = population(5, 4)
    model = Regressor(1, covariance="diag").fit(X, y, groups=groups)
    for wrong in (0, None, 2.0):
        with pytest.raises(ValueError, match="max_params"):
            model.summary(max_params=wrong)
    model = Classifier(1, covariance="diag", dispersion=1).fit(X, y > 0, groups=groups)
    with pytest.raises(ValueError, match="return_std"):
        model.predict(X, groups=groups, return_std=True)


def test_fits_that_stop_early_say_so():
    X, y, groups, _ = population(5, 4)
    with pytest.warns(ConvergenceWarning, match="max_iter=2 exchanges while"):
        Regressor(1, covariance="diag", max_iter=2).fit(X, y, groups=groups)
    # Of a stack one part may have converged and another not.
    X, y, groups, _ = population()
    fits = [Regressor(1, covariance=kind) for kind in ("diag", "full")]
    least, most = (fit.fit(X, y, groups=groups).n_iter_ for fit in fits)
    assert least + 3 < most
    with pytest.warns(ConvergenceWarning, match="of the stack's full fit while"):
        Regressor(1, max_iter=least + 1).fit(X, y, groups=groups)


def test_posterior_standard_deviations_are_in_the_users_units():
    X, y, groups, _ = population(10, 8)
    model = Regressor(1, covariance="diag", prior=np.inf).fit(X * [1, 50] + 3, y, groups=groups)
    Z = np.column_stack([X * [1, 50] + 3, np.ones(len(X))])
    errors = mean_errors(model, X * [1, 50] + 3, groups)
    assert_allclose(model.standard_errors_[0], np.sqrt(np.diag(errors)), rtol=1e-6)
    for i in range(10):
        A = Z[groups == i]
        inner = A @ model.covariance_ @ A.T + model.dispersion_ * np.eye(len(A))
        # The best linear unbiased prediction's error, the mean being estimated too.
        rest = np.eye(3) - model.covariance_ @ A.T @ np.linalg.solve(inner, A)
        expected = rest @ model.covariance_ + rest @ errors @ rest.T
        assert_allclose(model.params_std_[i], np.sqrt(np.diag(expected)), rtol=1e-6)
    adapted = model.adapt(X * [1, 50] + 3, y, groups=groups + 100)
    assert_allclose(adapted.params_std_[10:], model.params_std_, rtol=1e-8)


def test_clients_of_one_class_without_rows_and_of_one_row():
    X, z, groups, rng = logistic_population(12, 8)
    y = np.where(rng.random(len(z)) < 1 / (1 + np.exp(-z)), "yes", "no")
    y[groups == 2] = "no"
    keep = (groups != 5) | (np.cumsum(groups == 5) == 1)
    weight = np.where(groups == 7, 0.0, 1.0)[keep]
    rows = X[keep], y[keep], groups[keep], weight
    model = Classifier(1).fit(*rows)
    proba = model.predict_proba(X, groups=groups)
    assert np.isfinite(proba).all() and proba.shape == (len(X), 2)
    assert_allclose(model.params_[7], model.cluster_params_[0])
    unknown = np.diag(model.covariance_) + model.standard_errors_[0] ** 2
    assert_allclose(model.params_std_[7], np.sqrt(unknown), rtol=1e-6)
    assert (model.params_std_[[2, 5]] > 0).all()
    # Of one population rows only narrow; of a stack they may tell its parts apart.
    single = Classifier(1, covariance="diag").fit(*rows)
    assert (single.params_std_[[2, 5]] <= single.params_std_[7] * (1 + 1e-9)).all()
    # A client of one class is drawn that way, and no further than the others let it.
    assert model.intercept_[2] < model.cluster_intercept_[0]


def stackable(n_clients=16, n=6, seed=3, kind="regression", spread=1.0):
    """Slopes that go together, and one that hardly differs: several covariances say something."""
    rng = np.random.default_rng(seed)
    L = np.array([[0.7, 0.5, 0.0], [0.0, 0.4, 0.1], [0.0, 0.0, 0.1]])
    B = spread * rng.normal(size=(n_clients, 3)) @ L + [1.0, -1.0, 0.5]
    X, z, groups = lines_of(B, n, rng)
    if kind == "regression":
        return X, z + rng.normal(size=len(z)), groups
    cuts = [0] if kind == "binary" else [-1, 1]
    return X, np.digitize(z + rng.logistic(size=len(z)), cuts), groups


STACKS = {
    "regression": Regressor(1, covariance="stacked"),
    "binary": Classifier(1, covariance="stacked"),
    "classes": Classifier(1, covariance="stacked"),
}


@pytest.mark.parametrize("kind", some(["regression", "binary", "classes"], 2))
def test_a_stack_is_the_mean_of_its_populations(kind):
    about = {} if kind == "regression" else {"n": 10, "spread": 3.0}
    X, y, groups = stackable(kind=kind, **about)
    model = clone(STACKS[kind]).fit(X, y, groups=groups)
    shares = model.stacking_shares_
    assert model.covariance_type_ == "stacked"
    assert list(shares) == ["diag", "full", "intercept", "none"]
    assert sum(shares.values()) == pytest.approx(1.0)
    # Each part counts its exchanges, and those of two parts may go together.
    assert 0 < model.n_iter_ < 2 * model.calls_
    told = [{"covariance": "diag"}, {"covariance": "full"}, {"random": "intercept"}]
    parts = [clone(model).set_params(**{"covariance": "diag", **each}) for each in told]
    parts = [part.fit(X, y, groups=groups) for part in parts]
    *w, none = shares.values()
    assert none == 0.0 and np.count_nonzero(w) >= 1 + (kind == "binary")

    def mean(name):
        return np.tensordot(w, [getattr(part, name) for part in parts], 1)

    for name in ("params_", "coef_", "cluster_params_", "covariance_", "prior_variance_"):
        assert_allclose(getattr(model, name), mean(name), rtol=1e-8, atol=1e-10, err_msg=name)
    assert model.dispersion_ == pytest.approx(mean("dispersion_"))
    # Moments of a mixture: of clients' parameters, and of what is not known of the mean.
    for name, spread in [("params_", "params_std_"), ("cluster_params_", "standard_errors_")]:
        away = [getattr(part, name) - getattr(model, name) for part in parts]
        expected = [getattr(part, spread) ** 2 + d**2 for part, d in zip(parts, away, strict=True)]
        assert_allclose(getattr(model, spread) ** 2, np.tensordot(w, expected, 1), rtol=1e-8)
    # What is said of the likelihood is said of the population that BIC prefers.
    best = min(parts[:2], key=lambda part: part.bic_)
    assert (model.loglik_, model.bic_) == (best.loglik_, best.bic_)
    assert_array_equal(model.responsibilities_, 1.0)
    if kind == "regression":  # rows vary by the clients' parameters and the noise
        rows = groups == 3
        D = np.column_stack([model._scaling.transform(X[rows]), np.ones(rows.sum())])
        _, std = model.predict(X[rows], groups=groups[rows], return_std=True)
        V = model._covariances[3]
        assert_allclose(std**2, np.einsum("rp,pq,rq->r", D, V, D) + model.dispersion_)
    assert "covariance stacked" in model.summary() and "stacking shares" in model.summary()


def test_a_stack_reaches_each_of_its_ends():
    """One model, intercepts alone, slopes: whatever differs counts, and the rest not at all."""
    X, groups = np.random.default_rng(1).normal(size=(240, 3)), np.repeat(np.arange(40), 6)
    shapes = {
        "none": np.zeros((4, 4)),
        "intercept": np.diag([0.0, 0.0, 0.0, 1.0]),
        "diag": np.diag([1.0, 1.0, 1.0, 1.0]),
        "full": np.outer([1.0, 1.0, 1.0, 1.0], [1.0, 0.2, 0.2, 0.2]) / 1.1,
    }
    seeds = some([1, 5, 0, 2, 3, 4], 2)
    totals = {wanted: dict.fromkeys(shapes, 0.0) for wanted in shapes}
    for wanted, root in shapes.items():
        for seed in seeds:
            rng = np.random.default_rng(seed)
            B = rng.normal(size=(40, 4)) @ root.T + [1.0, -1.0, 0.5, 0.0]
            y = (X * B[groups, :3]).sum(axis=1) + B[groups, 3] + rng.normal(size=240)
            model = Regressor(1).fit(X, y, groups=groups)
            for name, share in model.stacking_shares_.items():
                totals[wanted][name] += share / len(seeds)
            if wanted == "none":  # or a population that hardly differs
                assert np.ptp(model.coef_, axis=0).max() < 0.5
    assert totals["none"]["none"] > 0.4
    assert totals["intercept"]["intercept"] > 0.6
    # Correlations that are none are estimated as small.
    assert totals["diag"]["diag"] + totals["diag"]["full"] > 0.9
    assert totals["diag"]["diag"] > totals["full"]["diag"]
    assert totals["full"]["full"] > 0.9


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_stacks_of_one_part():
    X, y, groups = stackable()
    stack = STACKS["regression"]
    faults = Faults(dropout=0.1, dead=[4], random_state=0)
    federation = InProcessFederation(X, y, groups, faults=faults)
    model = clone(stack).set_params(max_iter=40).fit_federation(federation)
    assert_allclose(model.params_[4], model.cluster_params_[0], rtol=1e-10)
    # One client shows no population, and clusters have one fit.
    one = groups == 1
    alone = clone(stack).fit(X[one], y[one], groups=groups[one])
    assert alone.stacking_shares_ == {"diag": 1.0} and alone.covariance_type_ == "diag"
    data = make_clustered_regression(24, 3, 4, n_samples=10, random_state=5)
    crisp = Regressor(covariance="stacked", random_state=0).fit(data.X, data.y, groups=data.groups)
    assert crisp.n_clusters_ == 3 and crisp.stacking_shares_ == {"none": 1.0}
    assert adjusted_rand_score(data.labels, crisp.labels_) == 1.0
    random = clone(stack).set_params(random="intercept").fit(X, y, groups=groups)
    assert random.stacking_shares_ == {"diag": 1.0} and random.covariance_type_ == "diag"


def test_shares_that_have_not_converged_say_so(monkeypatch):
    monkeypatch.setattr("skcfl.pooling.stacking.MAX_STEPS", 1)
    X, z, groups, rng = logistic_population()
    y = rng.poisson(np.exp(z)).astype(float)
    with pytest.warns(
        ConvergenceWarning, match=r"still lower .* by \d\.\de-0\d of itself"
    ) as told:
        Regressor(1, loss="poisson").fit(X, y, groups=groups)
    assert len(told) == 1


def test_what_does_not_fit_in_memory_is_refused_before():
    X = sparse.random(40, 200_000, density=1e-4, random_state=0, format="csr")
    y, groups = np.arange(40.0), np.repeat(np.arange(4), 10)
    with pytest.raises(NotEnoughMemoryError, match="200001 parameters need.*TB of memory"):
        Regressor(1, covariance="full").fit(X, y, groups=groups)


@pytest.mark.parametrize("shape", [(2, 1, 6), (3, 2, 8)])
def test_noise_of_few_rows_is_no_larger_than_their_targets(shape):
    m, n_rows, d = shape
    for seed in some((1, 0, 2, 3), 1):
        rng = np.random.default_rng(seed)
        X, groups = rng.standard_normal((m * n_rows, d)), np.repeat(np.arange(m), n_rows)
        y = X[:, 0] + rng.standard_normal(m)[groups] + 0.5 * rng.standard_normal(m * n_rows)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = PartialPoolingRegressor(random_state=0).fit(X, y, groups=groups)
        assert model.dispersion_ < 10 * y.var()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:sample_weight counts rows more than once:UserWarning")
@pytest.mark.parametrize("n_clusters, seed", some([("auto", 2), (3, 4), (3, 6), ("auto", 17)], 2))
def test_an_outlier_beside_weights_of_any_size(n_clusters, seed):
    """Curvatures are singular but for rounding; some clusters are no client's most likely one."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(20), rng.integers(1, 10, 20))
    n = len(groups)
    X = rng.normal(size=(n, 8))
    y = X[:, 0] + 0.1 * rng.normal(size=n)
    y[rng.integers(n)] = 1e4
    weights = rng.choice([1e-3, 1.0, 1e3], n)
    X += 0.0 if n_clusters == "auto" else 1e6
    model = Regressor(n_clusters, df="auto", max_iter=50, n_init=1, random_state=0)
    model.fit(X, y, groups=groups, sample_weight=weights)
    found = model.n_clusters_
    assert model.cluster_params_.shape == (found, 9)
    assert model.mixture_weights_.shape == (found,)
    assert model.mixture_weights_.sum() == pytest.approx(1.0)
    assert_allclose(model.responsibilities_ @ np.ones(found), 1.0)
    assert np.isfinite(model.predict(X, groups=groups)).all()


def test_gamma_recovers_its_dispersion():
    rng = np.random.default_rng(1)
    X, _, groups, _ = population(60, 25)
    z = X @ [0.4, -0.2] + 3 + 0.5 * rng.normal(size=60)[groups]
    y = rng.gamma(4.0, np.exp(z) / 4.0)
    model = Regressor(1, loss="gamma", random="intercept").fit(X, y, groups=groups)
    assert model.dispersion_ == pytest.approx(0.25, rel=0.1)
    assert np.sqrt(model.covariance_[2, 2]) == pytest.approx(0.5, rel=0.25)
    assert_allclose(model.cluster_coef_[0], [0.4, -0.2], atol=0.05)
    scaled = Regressor(1, loss="gamma", random="intercept").fit(X, 100 * y, groups=groups)
    expected = model.loglik_ - len(y) * np.log(100)
    assert scaled.loglik_ == pytest.approx(expected, rel=1e-7)
    assert scaled.dispersion_ == pytest.approx(model.dispersion_, rel=1e-4)


def test_prior_keeps_few_rows_from_ruin():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(20, 10)), np.repeat(np.arange(4), 5)
    y = (X[:, 0] + rng.logistic(size=20) > 0).astype(int)
    model = Classifier(n_clusters=1).fit(X, y, groups=groups)
    assert np.abs(model.coef_).max() < 3
    held = rng.normal(size=(400, 10))
    truth = (held[:, 0] + rng.logistic(size=400) > 0).astype(int)
    proba = model.predict_proba(held, groups=np.repeat(np.arange(4), 100))
    loss = -np.log(proba[np.arange(400), truth]).mean()
    assert loss < 0.9
    plain = LogisticRegression().fit(X, y).predict_proba(held)
    assert loss < 1.3 * -np.log(plain[np.arange(400), truth]).mean()


def test_copies_of_few_rows_are_not_explained_without_noise():
    """The likelihood of copies of rows that can be interpolated has no maximum."""
    rng = np.random.default_rng(1)
    X, y, groups = lines_of(np.c_[np.ones((40, 3)), 0.5 * rng.normal(size=40)], 3, rng)
    y = y + 0.5 * rng.normal(size=120)
    plain, intercepts = Regressor(random_state=0), Regressor(random_state=0, random="intercept")
    twice = np.full(120, 2.0)
    with pytest.warns(UserWarning, match="only intercepts vary"):
        found = clone(plain).fit(X, y, groups=groups, sample_weight=twice)
    expected = intercepts.fit(X, y, groups=groups, sample_weight=twice)
    assert_array_equal(found.coef_, expected.coef_)
    assert 0.1 < found.dispersion_ < 0.4
    more = np.r_[X, X[:2] + 1.0], np.r_[y, y[:2]], np.r_[groups, groups[:2]]
    with pytest.warns(UserWarning, match="only intercepts vary"):  # one client has five rows
        found = clone(plain).fit(*more[:2], groups=more[2], sample_weight=np.full(122, 2.0))
    assert found.dispersion_ > 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        once = clone(plain).fit(X, y, groups=groups, sample_weight=np.ones(120))
        Classifier(random_state=0).fit(X, y > 0, groups=groups, sample_weight=twice)
        close = clone(plain).fit(X, y, groups=groups, sample_weight=np.full(120, 1.0 + 1e-9))
        wide = clone(plain).fit(X[:, :1], y, groups=groups, sample_weight=twice)
    assert_allclose(close.coef_, once.coef_, atol=1e-4)
    assert once.dispersion_ > 0.1 and "intercept" in wide.stacking_shares_
    one = np.unique(groups, return_index=True)[1]
    with pytest.warns(UserWarning, match="nothing varies"):
        single = clone(plain).fit(X[one], y[one], groups=groups[one], sample_weight=twice[one])
    assert single.dispersion_ > 0.01
