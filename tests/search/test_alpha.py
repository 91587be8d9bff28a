"""The prior of ``alpha="auto"`` with many features, against the evidence written out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from skcfl import FedAvgClassifier, FedAvgRegressor
from skcfl.models import LinearModel
from skcfl.search import alpha

D, N = 40, 120
PRECISIONS = np.array([1.0, 15**0.5, 15.0])
GROUPS = np.arange(N) % 4


def normal_evidence(X, y, precision):
    """Log-evidence of least squares, the noise the best and the intercept free, and alpha."""
    y = y - y.mean()
    noise = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
    ratio = precision * min((noise @ noise / (N - D - 1)) / y.var(ddof=1), 1.0)
    covariance = np.eye(N) + X @ X.T / ratio
    found = -0.5 * np.linalg.slogdet(covariance)[1]
    return found - 0.5 * (N - 1) * np.log(y @ np.linalg.solve(covariance, y)), ratio / N


def laplace_evidence(X, y, precision):
    """Laplace's approximation for classes, intercepts free, and alpha."""
    model = LogisticRegression(C=1 / precision, tol=1e-12, max_iter=10_000).fit(X, y)
    P, K = model.predict_proba(X), len(model.classes_)
    Z = np.column_stack([X, np.ones(N)])
    pull = np.append(np.full(D, precision), 0.0)
    if K == 2:
        H = Z.T @ (Z * (P[:, :1] * P[:, 1:])) + np.diag(pull)
    else:
        each = np.eye(K)[None] * P[:, :, None] - P[:, :, None] * P[:, None]
        H = np.einsum("nab,ni,nj->aibj", each, Z, Z).reshape(K * (D + 1), -1)
        H += np.diag(np.tile(pull, K))
    values = np.linalg.eigvalsh(H)
    value = -np.log(P[np.arange(N), y]).sum() + 0.5 * precision * (model.coef_**2).sum()
    # Of softmax one direction changes no probability.
    determinant = np.log(values[int(K > 2) :]).sum()
    n_coefs = model.coef_.size
    return 0.5 * n_coefs * np.log(precision) - 0.5 * determinant - value, precision / N


def draw(kind, size, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D))
    raw = X @ (size * rng.normal(size=(D, 3)) / D**0.5)
    if kind == "collinear":
        # What features do not have in common has large coefficients.
        return X + 30 * rng.normal(size=(N, 1)), raw[:, 0] + 0.1 * rng.normal(size=N)
    if kind == "normal":
        return X, raw[:, 0] + rng.normal(size=N)
    if kind == "binary":
        return X, (raw[:, 0] + rng.logistic(size=N) > 0).astype(int)
    return X, (raw + rng.gumbel(size=raw.shape)).argmax(axis=1)


@pytest.mark.parametrize(
    ("kind", "sizes", "chosen"),
    [
        ("normal", (0.0, 30.0), 1),
        ("collinear", (0.02, 1.0), 2),
        ("binary", (1.0, 4.0, 32.0), 3),
        ("several", (1.0, 8.0), 2),
    ],
)
def test_the_prior_has_the_largest_evidence(kind, sizes, chosen):
    """Effects of several sizes have several priors."""
    normal = kind in ("normal", "collinear")
    evidence = normal_evidence if normal else laplace_evidence
    found = set()
    for size in sizes:
        X, y = draw(kind, size, 0)
        model = (FedAvgRegressor if normal else FedAvgClassifier)()
        model.fit(X, y, groups=GROUPS)
        tried = [evidence(StandardScaler().fit_transform(X), y, k) for k in PRECISIONS]
        best = int(np.argmax([value for value, _ in tried]))
        assert model.alpha_ == pytest.approx(tried[best][1], rel=1e-6), size
        found.add(best)
    assert len(found) == chosen


def ratio_to_standard(model, X, y, monkeypatch):
    """The automatic penalty over that of a standard normal prior."""
    found = model.fit(X, y, groups=GROUPS).alpha_
    with monkeypatch.context() as patch:
        patch.setattr(LinearModel, "least_prior_variance", lambda *about: 1.0)
        return found / model.fit(X, y, groups=GROUPS).alpha_


@pytest.mark.parametrize("limit", ["MOST_ROWS", "MOST_PARAMETERS", "MOST_WORK"])
def test_without_evidence_the_prior_is_between(limit, monkeypatch):
    X, y = draw("binary", 0.0, 0)
    assert_allclose(ratio_to_standard(FedAvgClassifier(), X, y, monkeypatch), 15.0)
    monkeypatch.setattr(alpha, limit, 10)
    assert_allclose(ratio_to_standard(FedAvgClassifier(), X, y, monkeypatch), 15**0.5)


def test_losses_of_unknown_dispersion_have_no_evidence(monkeypatch):
    X, y = draw("normal", 0.0, 0)
    assert_allclose(ratio_to_standard(FedAvgRegressor("huber"), X, y, monkeypatch), 15**0.5)
    assert_allclose(ratio_to_standard(FedAvgRegressor(), X, y, monkeypatch), 15.0)
