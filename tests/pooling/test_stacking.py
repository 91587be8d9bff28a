"""Several populations count as much as rows say that their clients' other rows predict."""

import numpy as np
import pytest
from corners import corners
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime, minimize
from sklearn.base import clone
from trials import some

from skcfl import PartialPoolingClassifier, PartialPoolingRegressor
from skcfl.calls.posteriors_asked import LeftOutSums
from skcfl.federation import InProcessFederation
from skcfl.models import LinearModel
from skcfl.pooling.stacking import _least

GROUPS = np.repeat(np.arange(9), 5)


def opened(loss, n_classes=None):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(len(GROUPS), 2))
    z = (X * (1.0 + 0.5 * rng.normal(size=(9, 2)))[GROUPS]).sum(axis=1)
    y = {
        "squared_error": lambda: z + rng.normal(size=len(z)),
        "poisson": lambda: rng.poisson(np.exp(z / 2)).astype(float),
        "gamma": lambda: np.exp(z / 2) * rng.gamma(3, 1 / 3, len(z)),
        "log_loss": lambda: np.digitize(
            z + rng.logistic(size=len(z)), [-1, 1, 9][: n_classes - 1]
        ),
    }[loss]()
    if n_classes == 2:
        y = (y > 0).astype(int)
    model = LinearModel(loss, alpha=0.0, standardize=False).bind(2, n_classes)
    return InProcessFederation(X, y, GROUPS).open(model, random_state=0), X, y


def priors(pool, seed=0):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(2, pool.n_params))
    root = np.tril(0.4 * rng.normal(size=(2, pool.n_params, pool.n_params)))
    root[1] = np.diag(np.diag(root[1]))
    return theta, root, np.array([0.7, 1.2])


def test_rows_are_left_out_as_in_a_fit_without_them():
    pool, X, y = opened("squared_error")
    Z = np.column_stack([X, np.ones(len(y))])
    theta, root, phi = priors(pool)
    prior = np.diag([2.0, 2.0, 0.0])  # precision of the mean, that is estimated

    def fitted(kept, k):
        """Mean by generalised least squares, and each client's parameters."""
        S, A, b, parts = root[k] @ root[k].T, prior.copy(), 0.0, {}
        for i in range(9):
            own = kept & (GROUPS == i)
            inverse = np.linalg.inv(Z[own] @ S @ Z[own].T + phi[k] * np.eye(own.sum()))
            A += Z[own].T @ inverse @ Z[own]
            b = b + Z[own].T @ inverse @ y[own]
            parts[i] = S @ Z[own].T @ inverse, own
        mean = np.linalg.solve(A, b)
        models = [mean + gain @ (y[own] - Z[own] @ mean) for gain, own in parts.values()]
        return mean, np.array(models), np.linalg.inv(A)

    every = np.ones(len(y), dtype=bool)
    means, _, errors = map(np.array, zip(*(fitted(every, k) for k in (0, 1)), strict=True))
    left = np.empty((2, len(y)))
    for k in (0, 1):
        for r in range(len(y)):
            left[k, r] = Z[r] @ fitted(np.arange(len(y)) != r, k)[1][GROUPS[r]]
    for shares in np.array([[1.0, 0.0], [0.0, 1.0], [0.3, 0.7]]):
        value, slopes, curvature = pool.ask(LeftOutSums, means, root, phi, shares, errors)
        away = y - shares @ left
        assert value == pytest.approx(0.5 * away @ away, rel=1e-9)
        apart = left[1] - left[0]
        assert slopes[1] - slopes[0] == pytest.approx(-away @ apart, rel=1e-8)
        assert np.array([-1, 1]) @ curvature @ [-1, 1] == pytest.approx(apart @ apart, rel=1e-8)


def test_scales_of_the_clients_are_scales_of_noise_and_prior():
    """What each client's rows tell of its scale multiplies its noise and its covariance."""
    pool, _, _ = opened("squared_error")
    theta, root, phi = priors(pool)
    block, n, errors = pool._site._blocks[0][0], np.full(9, 5.0), 0.3 * np.eye(3)
    found = pool.model.posteriors(block, n, theta[:1], root[0], phi[0], df=3.5)
    scale = 1.0 / found.scales.information[0]
    assert scale.max() > 2 * scale.min()

    def predicted(variance, df):
        prior = theta[0], np.sqrt(variance) * root[0], variance * phi[0], errors
        return pool.model.left_out_predictions(block, n, *prior, False, df)[0]

    scaled = predicted(1.0, 3.5)
    for i in range(9):
        assert_allclose(scaled[i], predicted(scale[i], np.inf)[i], rtol=1e-9)


OTHERS = [("poisson", None), ("gamma", None), ("log_loss", 2), ("log_loss", 3)]


@pytest.mark.parametrize(("loss", "n_classes"), OTHERS)
def test_other_losses_take_a_newton_step(loss, n_classes):
    """Nearly where the mode of the other rows is, and much nearer than with the row."""
    pool, _, _ = opened(loss, n_classes=n_classes)
    theta, root, phi = priors(pool)
    phi = np.ones(2) if n_classes else phi
    block = pool._site._blocks[0][0]
    n, model = np.full(9, 5.0), pool.model
    predicted = model.left_out_predictions(block, n, theta[0], root[0], phi[0], None, False)[0]
    found = model.posteriors(block, n, theta[:1], root[0], phi[0])
    with_row = model.state(block, theta[0] + found.deviations[0])
    errors, weights = np.zeros(2), block.weights.copy()
    for j in range(5):
        block.weights[:] = np.where(np.arange(5) == j, 0.0, 0.25)
        rest = model.posteriors(block, n - 1, theta[:1], root[0], phi[0])
        truth = model.state(block, theta[0] + rest.deviations[0])[:, :, j]
        errors += [abs(z[:, :, j] - truth).sum() for z in (predicted, with_row)]
    block.weights[:] = weights
    assert errors[0] < 0.1 * errors[1]


@pytest.mark.parametrize(("loss", "n_classes"), [("squared_error", None), *OTHERS])
def test_derivatives_are_those_of_differences(loss, n_classes):
    pool, _, _ = opened(loss, n_classes=n_classes)
    known = priors(pool)

    def at(t):
        return pool.ask(LeftOutSums, *known, np.array([t, 1.0 - t]))

    _, slopes, curvature = at(0.4)
    slope = approx_fprime(np.array([0.4]), lambda t: at(t[0])[0], 1e-6)
    assert slopes[0] - slopes[1] == pytest.approx(slope[0], rel=1e-4, abs=1e-5)
    second = approx_fprime(np.array([0.4]), lambda t: at(t[0])[1] @ [1, -1], 1e-6)
    assert np.array([1, -1]) @ curvature @ [1, -1] == pytest.approx(second[0], rel=1e-4)


def test_the_least_point_of_the_simplex_is_found():
    rng = np.random.default_rng(0)
    for K in (2, 3, 3, 4, 4):
        A = rng.normal(size=(K + 2, K))
        A, slopes, shares = A.T @ A, 3 * rng.normal(size=K), rng.dirichlet(np.ones(K))

        def value(w, A=A, slopes=slopes, shares=shares):
            return slopes @ (w - shares) + 0.5 * (w - shares) @ A @ (w - shares)

        simplex = {"type": "eq", "fun": lambda w: w.sum() - 1}
        wanted = minimize(value, shares, bounds=[(0, 1)] * K, constraints=simplex, tol=1e-12)
        found = _least(shares, slopes, A)
        assert found.sum() == pytest.approx(1.0) and (found >= 0).all()
        assert value(found) <= wanted.fun + 1e-5
    # Populations that say the same share alike.
    same = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    found = _least(np.array([0.2, 0.3, 0.5]), np.zeros(3), same)
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_a_step_without_a_row_is_not_too_far():
    """A count of a million at little curvature, held by the row that is left out."""
    X, y = np.array([[2.0], [1.0], [2.0], [1.0]]), np.array([0.0, 1e6, 0.0, 1e6])
    model = LinearModel("poisson", alpha=0.0, fit_intercept=False, standardize=False).bind(1)
    pool = InProcessFederation(X, y, [0, 0, 1, 1]).open(model, random_state=0)
    known = np.ones((2, 1)), np.array([[30.0], [20.0]]), np.ones(2)
    for answer in pool.ask(LeftOutSums, *known, np.array([0.5, 0.5])):
        assert np.isfinite(answer).all()


@pytest.mark.parametrize("curvature", [0.0, 1e-32, 1e-12])
def test_populations_that_say_the_same_are_not_all_left_out(curvature):
    shares = _least(np.full(4, 0.25), np.array([7.6, 9.1, 0.1, 0.0]), curvature * np.eye(4))
    assert_allclose(shares, [0, 0, 0, 1])


@pytest.mark.parametrize("seed", some([1, 2, 3, 6], 1))
def test_classes_pay_for_their_contrasts(seed):
    """What all classes have in common is no variance: correlations of three classes are found."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(15), 40)
    X = rng.normal(size=(600, 5))
    V, mean = rng.normal(size=(3, 18)), rng.normal(size=18)
    W = (mean + rng.normal(size=(15, 3)) @ V / np.sqrt(3)).reshape(15, 3, 6)
    raw = np.einsum("nd,nkd->nk", X, W[groups, :, :5]) + W[groups, :, 5]
    y = (raw + rng.gumbel(size=raw.shape)).argmax(axis=1)
    model = PartialPoolingClassifier(basis="linear", n_clusters=1, random_state=0)
    assert model.fit(X, y, groups=groups).stacking_shares_["full"] > 0.8
    path, contrasts = model.bic_path_, 2 * 6
    pairs = contrasts * (contrasts - 1) / 2 * 15 / (15 + 2 * contrasts)
    variances = {"diag": 3 * 6, "full": contrasts + pairs}
    q = contrasts + np.array([variances[kind] for kind in path["covariance_type"]])
    assert_allclose(path["bic"], -2 * path["loglik"] + q * np.log(15))


@pytest.mark.parametrize("seed", some(range(3), 1))
def test_a_client_far_larger_than_the_others_does_not_end_the_stack(seed):
    """By the scale of the others one row of it would tell more of the mean than all rows do."""
    groups = np.repeat(np.arange(40), 5)
    rng = np.random.default_rng(seed)
    size = np.exp(rng.normal(size=40))
    size[0] = 100.0
    X = size[groups, None] * rng.normal(size=(200, 2))
    slopes = 1.0 + 0.5 * rng.normal(size=(40, 2))
    y = (X * slopes[groups]).sum(axis=1) + size[groups] * (1.0 + 0.1 * rng.normal(size=200))
    shares = PartialPoolingRegressor(1, basis="linear").fit(X, y, groups=groups).stacking_shares_
    assert shares["none"] < 0.1


@pytest.mark.parametrize(("rows", "has_full"), [(65, False), (66, True)])
def test_no_more_correlations_than_rows_are_fitted(rows, has_full):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(rows, 11)), np.arange(rows) % 6
    y = X[:, 0] + rng.normal(size=rows)
    model = PartialPoolingRegressor(1, basis="linear").fit(X, y, groups=groups)
    assert ("full" in model.stacking_shares_) == has_full


@pytest.mark.parametrize("seed", [0, 1])
def test_the_only_row_of_a_level_judges_no_population(seed):
    """Under a flat prior it says as much as a table without it."""
    X, y, groups = corners(n_clients=12, n=10, seed=seed)
    X, rare = X[:, [2, 0]], np.arange(len(X)) == 17
    model = PartialPoolingRegressor(1, basis="linear", prior=np.inf, random=[0])
    beside = clone(model).fit(np.column_stack([X, rare]), y, groups=groups)
    without = clone(model).fit(X[~rare], y[~rare], groups=groups[~rare])
    for name, share in without.stacking_shares_.items():
        assert beside.stacking_shares_[name] == pytest.approx(share, abs=0.02)
