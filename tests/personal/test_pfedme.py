"""pFedMe: the closed form, participation, networks, what is refused."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from personal_tables import ALIKE, APART, CLASSES, DATA, IDS, fit
from sklearn.exceptions import ConvergenceWarning
from trials import some

from skcfl import (
    DittoRegressor,
    FedAvgRegressor,
    LocalModelsRegressor,
    PFedMe,
    PFedMeClassifier,
    PFedMeRegressor,
    Training,
)
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.federation import Faults, InProcessFederation
from skcfl.models import LinearModel
from skcfl.personal.shared_rounds import Fixpoint


def closed_form(alpha, lam, weights):
    """The least mean of ``min_v f_i(v) + lam / 2 |v - w|^2`` over w, for ridge, and the minima."""
    p = DATA.X.shape[1] + 1
    left, right, parts = np.zeros((p, p)), np.zeros(p), []
    for u, group in zip(weights, IDS, strict=True):
        mine = DATA.groups == group
        Z = np.column_stack([DATA.X[mine], np.ones(mine.sum())])
        H = Z.T @ Z / len(Z) + alpha * np.diag(np.append(np.ones(p - 1), 0.0))
        inverse = np.linalg.inv(H + lam * np.eye(p))
        b = Z.T @ DATA.y[mine] / len(Z)
        left += u * (np.eye(p) - lam * inverse)
        right += u * inverse @ b
        parts.append((inverse, b))
    w = np.linalg.solve(left, right)
    return w, np.array([inverse @ (b + lam * w) for inverse, b in parts])


@pytest.mark.parametrize("lam", [0.05, 5.0])
@pytest.mark.parametrize("weights", ["n_samples", "uniform"])
def test_closed_form(lam, weights):
    model = PFedMeRegressor(
        lam, alpha=0.1, standardize=False, training=Training(weights=weights), tol=1e-12
    )
    fit(model)
    counts = np.unique(DATA.groups, return_counts=True)[1]
    wanted = closed_form(0.1, lam, counts if weights == "n_samples" else np.ones(8))
    assert_allclose(model.cluster_params_[0], wanted[0], rtol=1e-8)
    assert_allclose(model.params_, wanted[1], rtol=1e-8)
    # Rounds without acceleration get there too, however slowly.
    assert model.n_iter_ < 15


def test_neither_the_move_nor_beta_changes_where_the_rounds_end():
    wanted = fit(PFedMeRegressor(0.5, tol=1e-11)).cluster_params_
    for options in (
        {"outer_step": 0.7, "beta": 0.5},
        {"beta": 1.5, "outer_step": 1.0},
        {"beta": 40.0},  # a round overshoots, and is taken back
    ):
        found = fit(PFedMeRegressor(0.5, tol=1e-11, **options))
        assert_allclose(found.cluster_params_, wanted, rtol=1e-7)
    drifted = fit(PFedMeRegressor(0.5, tol=1e-11, local_rounds=4)).cluster_params_
    assert np.abs(drifted - wanted).max() > 1e-3


@pytest.mark.parametrize("rounds", some([3, 5], 1))
def test_rounds_of_several_moves_end_at_their_fixed_point(rounds):
    """Which is not the least mean envelope: that may rise on the way there."""
    data = make_clustered_classification(6, 2, n_features=3, n_samples=20, random_state=0)
    how = {"alpha": 0.02, "local_rounds": rounds, "outer_step": 0.5}
    model = PFedMeClassifier(0.8, **how).fit(data.X, data.y, groups=data.groups)
    slow = PFedMeClassifier(0.8, **how, tol=0, max_iter=200)
    slow.set_params(training=Training(participation=0.999))  # all clients, without acceleration
    slow.fit(data.X, data.y, groups=data.groups)
    assert_allclose(model.cluster_params_, slow.cluster_params_, rtol=1e-7)


def test_both_ends_and_between():
    weak = fit(PFedMeRegressor(1e-9, alpha=0.1, tol=1e-9))
    assert_allclose(weak.params_, fit(LocalModelsRegressor(alpha=0.1)).params_, rtol=1e-6)
    strong = fit(PFedMeRegressor(1e6, alpha=0.1, tol=1e-12))
    shared = fit(FedAvgRegressor(alpha=0.1))
    assert_allclose(strong.cluster_params_, shared.cluster_params_, rtol=1e-3)
    # Between them the shared model is the mean of the clients' own, whatever the convex loss.
    model = fit(PFedMe(LinearModel("log_loss", alpha=0.01), lam=0.1, tol=1e-10))
    n = np.unique(CLASSES.groups, return_counts=True)[1]
    assert_allclose(n @ model.params_ / n.sum(), model.cluster_params_[0], rtol=1e-6)


def test_some_clients_a_round_and_lost_clients():
    few = PFedMeRegressor(
        1.0, training=Training(participation=0.5), tol=0, max_iter=100, random_state=0
    )
    assert_allclose(fit(few).coef_, fit(PFedMeRegressor(1.0, tol=1e-10)).coef_, atol=0.3)
    assert len(few.history_["objective"]) == 100
    assert set(few.history_["participants"]) == {4}
    faults = Faults(dropout=0.3, random_state=0)
    federation = InProcessFederation(DATA.X, DATA.y, DATA.groups, faults=faults)
    lost = PFedMeRegressor(0.5, tol=0, max_iter=80).fit_federation(federation)
    assert_allclose(lost.coef_, fit(PFedMeRegressor(0.5, tol=1e-10)).coef_, atol=0.3)
    assert lost.missing_clients_.size == 0


def test_rounds_that_lack_a_client_shorten_no_step():
    """They are another map: the fit ended wherever steps had been halved to nothing."""
    data = make_clustered_regression(12, 2, 4, n_samples=30, random_state=0)
    faults = Faults(dropout=0.1, random_state=0)
    federation = InProcessFederation(data.X, data.y, data.groups, faults=faults)
    with pytest.warns(ConvergenceWarning, match="the shared model still changes"):
        PFedMeRegressor(1.0).fit_federation(federation)


def test_networks():
    options = {"hidden_layer_sizes": 4, "random_state": 0, "max_iter": 6, "tol": 0}
    model = fit(PFedMeClassifier(0.1, **options))
    far = fit(PFedMeClassifier(100.0, training=Training(step_size=0.001), **options))
    apart = [np.linalg.norm(m.params_ - m.cluster_params_) for m in (model, far)]
    assert 0 < apart[1] < apart[0]
    # A round sends a model up and down, and a number.
    n, p = model.params_.shape
    assert model.history_["floats_up"][1] == n * (p + 1)
    assert model.history_["floats_down"][1] == n * p


@pytest.mark.parametrize(
    ("cls", "low", "high"), [(DittoRegressor, 0.05, 0.5), (PFedMeRegressor, 0.1, 0.1)]
)
def test_lam_is_chosen_by_rows_held_out(cls, low, high):
    strong, weak = (fit(cls(random_state=0), data) for data in (ALIKE, APART))
    assert weak.lam_ < low and high < strong.lam_
    search = weak.lam_search_
    assert weak.lam_ == search["lam"][search["held_out_loss"].argmin()]
    given = fit(cls(weak.lam_, random_state=0), APART)
    assert_allclose(given.params_, weak.params_, rtol=1e-6)


def test_acceleration_solves_linear_systems():
    """Anderson's iterates are those of GMRES: as many as the map has dimensions."""
    rng = np.random.RandomState(0)
    A = rng.normal(size=(5, 5))
    A *= 0.99 / np.linalg.norm(A, 2)
    b = rng.normal(size=5)
    fixpoint, x = Fixpoint(), np.zeros(5)
    for _ in range(7):
        x = fixpoint(x, A @ x + b)
    assert_allclose(x, np.linalg.solve(np.eye(5) - A, b), rtol=1e-7)
