"""Errors of three classes: a vector added to the coefficients of all of them is no error."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skcfl import PartialPoolingClassifier


def draw(differences):
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(30), 20), rng.normal(size=(600, 2))
    B = np.array([[1.0, 0.0], [0.0, -0.5], [-1.0, 0.5]])
    z = X @ B.T + differences * rng.normal(size=(30, 3))[groups]
    shares = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return X, (rng.random((600, 1)) > shares.cumsum(axis=1)).sum(axis=1), groups


def fitted(differences, **how):
    model = PartialPoolingClassifier(1, basis="linear", random_state=0, **how)
    return model.fit(*draw(differences))


def errors_of_one_model(model, X):
    """From the Hessian, of coefficients that sum to zero."""
    p = np.column_stack([X, np.ones(len(X))]) @ model.cluster_params_[0].reshape(3, 3).T
    p = np.exp(p) / np.exp(p).sum(axis=1, keepdims=True)
    W = np.einsum("na,ab->nab", p, np.eye(3)) - p[:, :, None] * p[:, None]
    D = np.column_stack([X, np.ones(len(X))])
    H = np.einsum("nab,nc,nd->acbd", W, D, D).reshape(9, 9)
    return np.sqrt(np.diag(np.linalg.pinv(H, rcond=1e-10)))


@pytest.mark.parametrize("prior", ["auto", np.inf])
def test_errors_of_means_are_those_of_contrasts(prior):
    model = fitted(0.0, prior=prior)
    wanted = errors_of_one_model(model, draw(0.0)[0])
    assert_allclose(model.standard_errors_[0], wanted, rtol=0.15)


def test_errors_of_clients_are_those_of_contrasts():
    model = fitted(0.7, covariance="diag")
    sums = model._covariances.reshape(30, 3, 3, 9).sum(axis=1)
    assert_allclose(sums, 0.0, atol=1e-9 * model._covariances.max())
    assert_allclose(model._stack.mean_errors.reshape(3, 3, 9).sum(axis=0), 0.0, atol=1e-9)
    assert_allclose(model.coef_.sum(axis=1), 0.0, atol=1e-8)
    # New clients with the same rows, and more rows of old ones.
    X, y, groups = draw(0.7)
    adapted = model.adapt(X, y, groups=groups + 30)
    assert_allclose(adapted.params_std_[30:], model.params_std_, rtol=1e-6)
    more = model.update(X, y, groups=groups)
    assert (more.params_std_ < model.params_std_).all()
    sums = more._covariances.reshape(30, 3, 3, 9).sum(axis=1)
    assert_allclose(sums, 0.0, atol=1e-9 * model._covariances.max())
