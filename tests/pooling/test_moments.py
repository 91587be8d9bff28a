"""Posteriors of squared errors from moments are those from the rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skcfl.calls.posteriors_asked import Posteriors, PosteriorSums
from skcfl.federation import InProcessFederation
from skcfl.models import LinearModel


def federation(n=12, p=3, offset=0.0, scale=1.0, seed=0, constant=0.0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, n, 9)
    groups = np.repeat(np.arange(9), sizes)
    X = rng.normal(size=(len(groups), p)) * scale + offset
    y = X @ rng.normal(size=p) + offset + rng.normal(size=len(groups))
    weights = rng.integers(1, 4, len(groups)).astype(float)
    return InProcessFederation(X, y + constant, groups, weights)


def answers(federation, p, root, df, constant=0.0):
    rng = np.random.default_rng(1)
    theta, shares = rng.normal(size=(3, p + 1)), np.array([0.5, 0.3, 0.2])
    theta[:, -1] += constant
    model = LinearModel("squared_error", alpha=0.0, standardize=False).bind(p, None)
    pool = federation.open(model, random_state=0)
    prior = theta, root, shares, 0.7, df
    return pool.ask(PosteriorSums, *prior, dense=True), pool.ask(Posteriors, *prior)


ROOTS = {
    "none": np.zeros(4),
    "diag": np.array([0.5, 0.0, 2.0, 1.0]),
    "full": np.tril(np.arange(1.0, 17.0).reshape(4, 4)) / 10,
}


@pytest.mark.parametrize("kind", ROOTS)
@pytest.mark.parametrize("df", [np.inf, 4.0])
def test_moments_say_what_rows_say(monkeypatch, kind, df):
    found = answers(federation(), 3, ROOTS[kind], df)
    monkeypatch.setattr(LinearModel, "moments", lambda self, block: None)
    expected = answers(federation(), 3, ROOTS[kind], df)
    for name, value in expected[0].items():
        assert_allclose(found[0][name], value, rtol=1e-9, atol=1e-9, err_msg=name)
    for ours, theirs in zip(found[1], expected[1], strict=True):
        assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_sums_without_variance_are_a_limit(kind):
    """Sums of a prior without variance are the limit of those with little."""
    root = ROOTS[kind]
    exact = answers(federation(), 3, 0.0 * root, np.inf)[0]
    close = answers(federation(), 3, 1e-6 * root, np.inf)[0]
    for name in set(exact) - {"pull", "coupling"}:
        assert_allclose(exact[name], close[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("offset, scale", [(1e4, 1.0), (0.0, 1e4)])
def test_rows_far_from_zero_lose_no_more_digits_than_by_rows(monkeypatch, offset, scale):
    root = np.full(4, 0.5)
    found = answers(federation(offset=offset, scale=scale), 3, root, np.inf)[0]
    monkeypatch.setattr(LinearModel, "moments", lambda self, block: None)
    expected = answers(federation(offset=offset, scale=scale), 3, root, np.inf)[0]
    # Both have lost that many digits of the exact value.
    assert_allclose(found["evidence"], expected["evidence"], rtol=1e-8)


def test_a_constant_of_the_targets_moves_intercepts_alone_where_rows_are_few():
    root = np.array([0.5, 0.0, 2.0, 1.0])
    near = answers(federation(n=4), 3, root, np.inf)
    far = answers(federation(n=4, constant=1e8), 3, root, np.inf, constant=1e8)
    for name, value in near[0].items():
        assert_allclose(far[0][name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    assert_allclose(far[1][0], near[1][0], rtol=1e-5)
    assert_allclose(far[1][1] - [0.0, 0.0, 0.0, 1e8], near[1][1], atol=1e-6)


def test_responsibilities_of_little_noise_sum_to_one():
    """Log-likelihoods of millions of millions have few digits behind the point."""
    model = LinearModel("squared_error", alpha=0.0, standardize=False).bind(3, None)
    pool = federation().open(model, random_state=0)
    theta = np.random.default_rng(1).normal(size=(1, 4)) + 1e-13 * np.arange(3)[:, None]
    shares = np.full(3, 1 / 3)
    r = pool.ask(Posteriors, theta, np.zeros(4), shares, 1e-11, np.inf)[0]
    assert ((r > 0.01) & (r < 0.99)).any()
    assert_allclose(r.sum(axis=1), 1.0, rtol=1e-12)
