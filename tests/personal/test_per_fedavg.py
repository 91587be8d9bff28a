"""Per-FedAvg: its fixed point for least squares, derivatives, first order, networks."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from personal_tables import ALIKE, APART, CLASSES, CODES, DATA, IDS, fit, without
from sklearn.metrics import log_loss

from skcfl import PerFedAvgClassifier, PerFedAvgRegressor, Training
from skcfl.calls.first_order import MetaUpdate, Objectives, ObjectivesGradients
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel


def quadratics():
    """Weights, Hessians and slopes at zero of the clients' least squares."""
    for group in IDS:
        mine = DATA.groups == group
        Z = np.column_stack([DATA.X[mine], np.ones(mine.sum())])
        yield len(Z), Z.T @ Z / len(Z), Z.T @ DATA.y[mine] / len(Z)


@pytest.mark.parametrize("exact", [True, False])
def test_fixed_point_of_least_squares(exact):
    a, p = 0.05, DATA.X.shape[1] + 1
    left, right = np.zeros((p, p)), np.zeros(p)
    for n, H, b in quadratics():
        step = np.eye(p) - a * H
        # Gradient of F: (I - aH)(H w' - b) at w' = (I - aH) w + a b; to first order: no I - aH.
        outer = n * (step if exact else np.eye(p))
        left += outer @ H @ step
        right += outer @ step @ b
    wanted = np.linalg.solve(left, right)
    plain = {"alpha": 0.0, "standardize": False, "tol": 1e-11, "max_iter": 2000}
    model = fit(PerFedAvgRegressor(inner_step=a, personal_steps=1, exact=exact, **plain))
    assert_allclose(model.cluster_params_[0], wanted, rtol=1e-6)
    own = [w - a * (H @ w - b) for w, (_, H, b) in zip([wanted] * 8, quadratics(), strict=True)]
    assert_allclose(model.params_, own, rtol=1e-5)


def test_exact_gradient_is_the_derivative():
    """Of ``f(w - a grad f(w))``, by differences."""
    model = LinearModel("log_loss", alpha=0.1, standardize=False).bind(3, 2)
    pool = open_rows(model, CLASSES.X, CLASSES.y, CODES, 8)
    w = 0.3 * np.random.RandomState(0).normal(size=(8, 4))

    def value(w):
        return pool.ask(Objectives, w - 0.7 * pool.ask(ObjectivesGradients, w)[1])

    got = w - pool.ask(MetaUpdate, w, 1, 1.0, 0.7, exact=True)
    e = 1e-6 * np.eye(4)
    wanted = np.column_stack([(value(w + d) - value(w - d)) / 2e-6 for d in e])
    assert_allclose(got, wanted, atol=1e-8)
    first = w - pool.ask(MetaUpdate, w, 1, 1.0, 0.7)
    ahead = w - 0.7 * pool.ask(ObjectivesGradients, w)[1]
    assert_allclose(first, pool.ask(ObjectivesGradients, ahead)[1], rtol=1e-9)


def test_rounds_do_not_run_off():
    """The objective is not convex: accelerated rounds had ended at an intercept of 1342."""
    rng = np.random.RandomState(2)
    groups, X = np.repeat(np.arange(10), 150), rng.normal(size=(1500, 3))
    scores = 1.5 * (X * rng.normal(size=(3, 3))[groups % 3]).sum(axis=1) - 3
    y = rng.uniform(size=1500) < 1 / (1 + np.exp(-scores))
    model = PerFedAvgClassifier(personal_steps=1).fit(X, y, groups=groups)
    shares = np.full(1500, y.mean())
    assert log_loss(y, model.predict_proba(X, groups=groups)) < log_loss(y, shares)


def test_two_batches_a_step():
    """One row a batch: the outer gradient is of another row than the inner one."""
    model = LinearModel("squared_error", alpha=0.0, fit_intercept=False).bind(2)
    X, y = np.eye(2), np.ones(2)
    pool = open_rows(model, X, y, np.zeros(2, dtype=int), 1, random_state=0)
    w = pool.ask(MetaUpdate, np.zeros((1, 2)), 1, 0.5, 0.25, batch_size=1)
    # The row of the inner step does not change the other's gradient.
    assert sorted(w[0].tolist()) == [0.0, 0.5]


def test_steps_are_judged_on_the_way(monkeypatch):
    """What is judged are the models that fits with so many steps have, and the best wins."""

    def judge(pool, steps, models, robust, name):
        for number, params in zip(steps, models(pool, steps), strict=True):
            given = fit(PerFedAvgRegressor(personal_steps=int(number), standardize=False))
            assert_allclose(params, given.params_, rtol=1e-9)
        return 3, {f"{name}_search": {name: steps}}

    with monkeypatch.context() as patched:
        patched.setattr("skcfl.estimators._per_fedavg.choose_pull", judge)
        assert fit(PerFedAvgRegressor(standardize=False)).personal_steps_ == 3
    few, many = (fit(PerFedAvgRegressor(), data) for data in (ALIKE, APART))
    assert few.personal_steps_ == 1 and many.personal_steps_ > 5
    search = many.personal_steps_search_
    best = search["personal_steps"][search["held_out_loss"].argmin()]
    assert many.personal_steps_ == best


def test_networks():
    options = {"hidden_layer_sizes": 4, "random_state": 0, "max_iter": 4, "tol": 0}
    model = fit(PerFedAvgClassifier(training=Training(batch_size=5), **options))
    n, p = model.params_.shape
    assert model.history_["floats_down"][1] == n * p
    with pytest.raises(ValueError, match="second derivatives"):
        fit(PerFedAvgClassifier(exact=True, **options))


def test_new_clients_take_a_step():
    model, rows = without(PerFedAvgClassifier(alpha=0.01, standardize=False, personal_steps=1), 1)
    adapted = model.adapt(*rows)
    bound = LinearModel("log_loss", alpha=0.01).bind(3, 2)
    pool = open_rows(bound, *rows[:2], np.zeros(20, int), 1)
    w = model.cluster_params_
    wanted = w - 0.9 * pool.ask(ObjectivesGradients, w)[1] / pool.spectrum()[0][:, None]
    assert_allclose(adapted.params_[1], wanted[0], rtol=1e-9)
