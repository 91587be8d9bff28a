"""How many clusters: those that differ in few features, outliers, and what the path says."""

import numpy as np
import pytest
from linear_starts import linear_start
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import PartialPoolingClassifier, PartialPoolingRegressor
from skcfl.federation import InProcessFederation
from skcfl.models import LinearModel
from skcfl.pooling import components
from skcfl.pooling.criteria import STRONG, _drawn_means
from skcfl.pooling.em import maximise


def crisp(n_clients=24, n=20, n_features=25, n_relevant=3, outliers=0, seed=0):
    """Three kinds of clients that differ in some features, and clients like no other."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n_clients) % 3
    B = np.zeros((3, n_features))
    B[:, :n_relevant] = np.resize([[1, 0, -1], [-1, 1, 0], [0, -1, 1]], (3, n_relevant))
    B[:, :n_relevant] *= 1.5
    own = B[labels]
    labels[n_clients - outliers :] = 3 + np.arange(outliers)
    # Outliers are as far from zero as three clusters together, in any direction.
    far = rng.normal(size=(outliers, n_relevant))
    own[n_clients - outliers :, :n_relevant] = 6 * far / np.linalg.norm(far, axis=1)[:, None]
    groups = np.repeat(np.arange(n_clients), n)
    X = rng.normal(size=(len(groups), n_features))
    return X, (X * own[groups]).sum(axis=1) + rng.normal(size=len(groups)), groups, labels


def fit_lines(X, y, groups):
    model = PartialPoolingRegressor(basis="linear", df=np.inf, random_state=0)
    return model.fit(X, y, groups=groups)


#: Clusters that differ in few features, with outliers, and where nothing differs.
FOUND = [
    ({"n_clients": 15, "n_features": 12}, [5, 5, 5]),
    ({"n_clients": 26, "n_features": 4, "outliers": 2}, [8, 8, 8, 1, 1]),
    ({"n_clients": 12, "n_features": 12, "n_relevant": 0}, [12]),
]


@pytest.mark.parametrize("seed", some(range(3), 1))
@pytest.mark.parametrize(("options", "sizes"), FOUND)
def test_clusters_and_outliers_are_found_and_none_are_invented(options, sizes, seed):
    X, y, groups, labels = crisp(**options, seed=seed)
    model = fit_lines(X, y, groups)
    assert_array_equal(model.cluster_sizes_, sizes)
    if len(sizes) > 1:
        assert adjusted_rand_score(labels, model.labels_) == 1.0
        # The chosen fit is on the path.
        path, chosen = model.bic_path_, np.nanargmin(model.bic_path_["icl"])
        assert path["n_clusters"][chosen] == len(sizes)
        assert path["covariance_type"][chosen] == model.covariance_type_
        assert path["bic"][chosen] == pytest.approx(model.bic_)


MANY = [(8, 4), (12, 5), (12, 3), (8, 0), (8, 1), (8, 2), (8, 3), (8, 5), (12, 7)]


@pytest.mark.parametrize(("K", "seed"), some(MANY, 2))
def test_many_clusters_are_found_beyond_numbers_that_look_worse(K, seed):
    """Two to four crisp clusters of eight or more are less likely than one wide population."""
    rng = np.random.default_rng(seed)
    labels, n = np.arange(5 * K) % K, 20
    own = rng.normal(size=(K, 6))[labels]
    groups = np.repeat(np.arange(5 * K), n)
    X = rng.normal(size=(len(groups), 5))
    y = (X * own[groups, :5]).sum(axis=1) + own[groups, 5] + rng.normal(size=len(groups))
    model = fit_lines(X, y, groups)
    assert adjusted_rand_score(labels, model.labels_) > 0.8
    path = model.bic_path_
    crisp = path["icl"][(path["covariance_type"] == "none") & (path["n_clusters"] < 5)]
    assert crisp.min() > path["icl"][path["n_clusters"] == 1].min()


@pytest.mark.parametrize("fixed", some([1, 0], 1))
def test_drawn_means_have_the_marginal_likelihood(fixed, monkeypatch):
    """Of the rows of each cluster, means integrated out, maximised otherwise."""
    X, y, groups, labels = crisp(n=40, n_features=4, n_relevant=3)
    model = LinearModel("squared_error", alpha=0.0, standardize=False).bind(4, None)
    pool = InProcessFederation(X, y, groups).open(model, random_state=0)
    varying = np.arange(5) >= fixed
    options, start, _ = linear_start(pool, np.inf, 1e-10, varying)
    Z = np.column_stack([X, np.ones(len(y))])
    mine = [labels[groups] == k for k in range(3)]
    means = np.array([np.linalg.lstsq(Z[m], y[m])[0] for m in mine])
    means[:, ~varying] = means[:, ~varying].mean(axis=0)
    population = start.ordered(np.zeros(3, dtype=int)).of_kind("none", np.zeros(5))
    population.means, population.weights = means, np.full(3, 1 / 3)
    fit = maximise(pool, population, options)
    phi = fit.population.dispersion
    both = np.column_stack([Z, y])
    turned = [np.linalg.qr(both[m], mode="r") for m in mine]

    def minus(z):
        mean, D = z[:5], np.zeros(5)
        D[varying] = np.exp(z[5:])
        total = 0.0
        for k in range(3):
            # Rotated, all rows but six are noise of zero.
            A, t, n = turned[k][:, :5], turned[k][:, 5], mine[k].sum()
            L = np.linalg.cholesky(A * D @ A.T + phi * np.eye(6))
            away = solve_triangular(L, t - A @ mean, lower=True)
            total += 0.5 * away @ away + np.log(np.diag(L)).sum()
            total += 0.5 * ((n - 6) * np.log(phi) + n * np.log(2 * np.pi))
        return total

    start = np.concatenate([means.mean(axis=0), np.log(means.var(axis=0)[varying] + 1e-3)])
    best = -minimize(minus, start, method="BFGS").fun
    best -= 24 * np.log(3)
    assert best - 0.05 < _drawn_means(fit) < best + 1e-3
    monkeypatch.setattr("skcfl.pooling.criteria.LEAST_GAIN", 1e-7)
    assert _drawn_means(fit) == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize("n_features, n_relevant", some([(4, 3), (4, 0), (25, 3)], 1))
def test_looks_only_save_time(monkeypatch, n_features, n_relevant):
    """Candidates that are refused would not have been chosen."""
    X, y, groups, _ = crisp(15, n_features=n_features, n_relevant=n_relevant, seed=5)
    quick = fit_lines(X, y, groups)
    monkeypatch.setattr("skcfl.pooling.cluster_starts.may_reach", lambda *args: True)
    slow = fit_lines(X, y, groups)
    assert_array_equal(quick.labels_, slow.labels_)
    assert quick.loglik_ == pytest.approx(slow.loglik_, rel=1e-6)
    assert quick.bic_path_["n_iter"].sum() < slow.bic_path_["n_iter"].sum()


@pytest.mark.parametrize("seed", some([0, 2, 6, 10], 1))
def test_few_coefficients_that_differ_are_no_clusters(seed):
    """Clusters fit better than a variance of each of many coefficients; intercepts differ only."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(20), 10)
    X = rng.normal(size=(200, 8))
    raw = X @ rng.normal(size=(8, 3)) / 2 + 1.5 * rng.normal(size=(20, 3))[groups]
    y = (raw + rng.gumbel(size=raw.shape)).argmax(axis=1)
    model = PartialPoolingClassifier(basis="linear", n_init=1, random_state=0)
    model.fit(X, y, groups=groups)
    assert model.n_clusters_ == 1 and model.stacking_shares_["intercept"] > 0.5
    path = model.bic_path_
    kinds = np.where(path["n_clusters"] > 1, "clusters", path["covariance_type"])
    least = {kind: path["icl"][kinds == kind].min() for kind in np.unique(kinds)}
    assert least["intercept"] - STRONG < least["clusters"] < least["diag"] - STRONG


@pytest.mark.parametrize("seed", some(range(3), 1))
def test_more_correlations_of_classes_than_rows_are_not_fitted(monkeypatch, seed):
    """Where they are, they are worse by each criterion and have no share of the stack."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(5), 6)
    X = rng.normal(size=(30, 9))
    raw = X @ rng.normal(size=(9, 3)) + (2 * rng.normal(size=(5, 3)))[groups]
    y = (raw + rng.gumbel(size=raw.shape)).argmax(axis=1)
    model = PartialPoolingClassifier(basis="linear", n_clusters=1, random_state=0)
    found = model.fit(X, y, groups=groups)
    wanted, calls = found.predict_proba(X, groups=groups), found.calls_
    assert set(found.stacking_shares_) == {"diag", "intercept", "none"}
    monkeypatch.setattr(components, "_may_correlate", lambda *about: True)
    forced = model.fit(X, y, groups=groups)
    assert forced.stacking_shares_["full"] == 0.0 and forced.calls_ > calls
    # Shares are found up to a gain of 1e-8.
    assert_allclose(forced.predict_proba(X, groups=groups), wanted, atol=1e-4)
    path = forced.bic_path_
    full = path["covariance_type"] == "full"
    assert path["bic"][full] > path["bic"].min() and path["icl"][full] > path["icl"].min()


@pytest.mark.parametrize("seed", some(range(3), 1))
def test_targets_without_noise_are_one_cluster(seed):
    """However precise the rows are, drawn means have a likelihood."""
    rng = np.random.default_rng(seed)
    X, groups = rng.normal(size=(160, 2)), np.repeat(np.arange(20), 8)
    for y in np.full(160, 3.0), X.sum(axis=1):
        how = {"basis": "linear", "covariance": "full", "prior": np.inf, "n_init": 1}
        model = PartialPoolingRegressor(**how, random_state=0).fit(X, y, groups=groups)
        assert model.n_clusters_ == 1
        assert np.abs(model.bic_path_["icl"][np.isfinite(model.bic_path_["icl"])]).max() < 1e6


@pytest.mark.parametrize("covariance", ["full", "spherical"])
@pytest.mark.parametrize("seed", some([2, 0, 1], 1))
def test_variances_that_the_covariance_asked_for_does_not_have_are_no_clusters(covariance, seed):
    """Nor where all its parameters cost more than clusters do."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(20), 12)
    X, own = rng.normal(size=(240, 12)), 0.2 * rng.normal(size=(20, 12))
    y = (X * own[groups]).sum(axis=1) + rng.normal(size=20)[groups] + 0.7 * rng.normal(size=240)
    how = {"basis": "linear", "df": np.inf, "n_init": 1, "random_state": 0}
    model = PartialPoolingRegressor(covariance=covariance, **how).fit(X, y, groups=groups)
    assert (model.n_clusters_, model.covariance_type_) == (1, covariance)
    tried = model.bic_path_
    clusters, single = tried["n_clusters"] > 1, tried["covariance_type"] == "diag"
    if tried["icl"][clusters].min() < tried["icl"][0]:
        assert tried["icl"][single].min() < tried["icl"][clusters].min()


def test_clusters_beat_variances_by_very_strong_evidence_whatever_was_asked_for():
    """Two clusters are worse than one diagonal population by less than that."""
    rng = np.random.default_rng(3)
    groups, X = np.repeat(np.arange(20), 20), rng.normal(size=(400, 6))
    own = rng.normal(size=6) + 0.3 * rng.normal(size=(20, 6))
    raw = (X * own[groups]).sum(axis=1) + rng.normal(size=20)[groups]
    y = raw + rng.logistic(size=400) > 0
    model = PartialPoolingClassifier(basis="linear", covariance="full", random_state=0)
    model.fit(X, y, groups=groups)
    tried = model.bic_path_
    of = [tried["icl"][tried["covariance_type"] == kind].min() for kind in ("diag", "none")]
    assert 0.0 < of[1] - of[0] < STRONG
    assert model.n_clusters_ == 1


@pytest.mark.parametrize("prior", some([np.inf, 100.0], 1))
@pytest.mark.parametrize("n_true", [1, 3])
def test_means_of_classes_that_nothing_holds_make_no_clusters(prior, n_true):
    """Few clients' classes can be separated, where any mean far away is as likely."""
    rng = np.random.default_rng(2)
    labels = np.arange(20) % n_true
    groups, X = np.repeat(np.arange(20), 20), rng.normal(size=(400, 6))
    own = 1.5 * rng.normal(size=(n_true, 6))[labels] + 0.2 * rng.normal(size=(20, 6))
    y = (X * own[groups]).sum(axis=1) + rng.logistic(size=400) > 0
    model = PartialPoolingClassifier(basis="linear", prior=prior, random_state=0)
    assert model.fit(X, y, groups=groups).n_clusters_ == n_true


def test_units_of_targets_choose_no_start(scale=1e-6):
    """Starts whose means take unlike numbers of rows from the dispersion compare in any unit."""
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(12), 8), rng.normal(size=(96, 12))
    own = rng.normal(size=(3, 12))[np.arange(12) % 3]
    y = (X * own[groups]).sum(axis=1) + 0.3 * rng.normal(size=96)
    model = PartialPoolingRegressor(basis="linear", random_state=0)
    wanted = model.fit(X, y, groups=groups).predict(X, groups=groups)
    assert model.n_clusters_ == 3
    found = model.fit(X, scale * y, groups=groups).predict(X, groups=groups)
    assert_allclose(found / scale, wanted, atol=1e-8)


@pytest.mark.parametrize("scale", some([1e-20, 1e12], 1))
def test_units_of_amounts_take_no_more_exchanges(scale):
    """Fits of a gamma loss begin at the mean of the targets."""
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(12), 6), rng.normal(size=(72, 3))
    y = rng.gamma(2.0, np.exp(0.3 * X.sum(axis=1)))
    model = PartialPoolingRegressor(basis="linear", loss="gamma", random_state=0)
    wanted = model.fit(X, y, groups=groups).predict(X, groups=groups)
    calls, loglik = model.calls_, model.loglik_
    found = model.fit(X, scale * y, groups=groups).predict(X, groups=groups)
    assert_allclose(found / scale, wanted, rtol=1e-8)
    assert model.calls_ <= 1.1 * calls
    assert model.loglik_ == pytest.approx(loglik - 72 * np.log(scale), rel=1e-6)
