"""Clients whose answers are not finite: out from then on, the others as if they were absent."""

import numpy as np
import pytest
from fits_alone import without_reports
from numpy.testing import assert_allclose, assert_array_equal

import skcfl
from skcfl import CFLRegressor, CLoVERegressor, FedAvgRegressor, Training
from skcfl.calls.curvatures import Hessians
from skcfl.calls.finite_sums import MOST_CULPRITS, non_finite
from skcfl.calls.first_order import (
    BestResponse,
    LocalUpdate,
    Losses,
    Objectives,
    ObjectivesGradients,
)
from skcfl.calls.proofs_asked import Conjugate
from skcfl.calls.summed import TrainedMoves
from skcfl.datasets import make_clustered_regression
from skcfl.exceptions import RejectedClientWarning
from skcfl.federation import FanOutFederation, Faults, InProcessFederation
from skcfl.federation.inprocess import InProcessSite
from skcfl.federation.one_exchange import _not_finite
from skcfl.federation.presence import PATIENCE
from skcfl.models import LinearModel

DATA = make_clustered_regression(12, 3, 4, n_samples=25, random_state=0)
IDS = np.unique(DATA.groups)
FALSE = IDS[4]
MODELS = {
    "OneShot": {"n_clusters": 3},
    "FedEM": {"n_clusters": 3, "random_state": 0},
    "IFCA": {"n_clusters": 3, "random_state": 0},
}


def federation(**faults):
    return InProcessFederation(DATA.X, DATA.y, DATA.groups, faults=Faults(**faults))


def pool_of(**faults):
    return federation(**faults).open(LinearModel(alpha=0.1).bind(4), 0)


def test_a_bound_that_is_no_number_bounds_nothing():
    pool = pool_of(attack="nan", false=[FALSE])
    bounds = pool.ask(Conjugate, np.zeros((12, pool.n_params)))
    assert bounds[4] == np.inf and np.isfinite(np.delete(bounds, 4)).all()


def test_a_model_that_diverged_is_not_the_clients_fault():
    pool = pool_of()
    with np.errstate(all="ignore"):
        far = np.full((2, pool.n_params), 1e200)
        far[1] = 0.0
        losses, _, _ = pool.ask(BestResponse, far)
        assert np.isinf(losses[:, 0]).all() and np.isfinite(losses[:, 1]).all()
        w = far[np.arange(12) % 2]
        pool.ask(ObjectivesGradients, w, searching=False)
        pool.ask(LocalUpdate, far[0], 2, 1e200)
    assert not pool.rejected.any()
    # Nor is one that overflows at a client whose own is another.
    rows = np.zeros((4, 1)), np.ones(4), np.arange(4)
    rows[0][0] = 1e3
    pool = InProcessFederation(*rows).open(LinearModel("poisson", standardize=False).bind(1), 0)
    with np.errstate(all="ignore"):
        losses = pool.ask(Losses, np.array([[0.0, 0.0], [1e3, 0.0]]))
    assert_array_equal(np.isinf(losses), [[False, True]] + 3 * [[False, False]])
    assert not pool.rejected.any()
    # One that has no number, or overflows under its own model, is to blame.
    losses = np.array([[1.0, np.inf], [1.0, np.nan], [np.inf, 1.0]] + 5 * [[1.0, 1.0]])
    asked = np.ones(8, dtype=bool)
    assert_array_equal(np.flatnonzero(_not_finite("losses", losses, None, asked)), [1])
    fixed = np.array([-1, -1, 0, 0, 0, 1, 1, 1])
    assert_array_equal(np.flatnonzero(_not_finite("losses", losses, fixed, asked)), [1, 2])
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="diverged"):
        FedAvgRegressor(training=Training(step_size=1e9, polish=False), max_iter=100, tol=0).fit(
            DATA.X, DATA.y, groups=DATA.groups
        )


def overflowing(*clients, n=12):
    """Clients whose rows overflow in second derivatives, and in no loss."""
    X = np.random.RandomState(0).normal(size=(2 * n, 2))
    X[np.isin(np.repeat(np.arange(n), 2), clients)] *= 1e170
    return X, np.zeros(2 * n), np.repeat(np.arange(n), 2)


def open_places(X, y, groups, *places):
    """A pool of clients in several places."""
    parts = [[a[np.isin(groups, some)] for a in (X, y, groups)] for some in places]
    federation = FanOutFederation([InProcessFederation(*part) for part in parts])
    return federation.open(LinearModel(alpha=0.1, standardize=False).bind(2), 0)


@pytest.fixture
def large_rows(monkeypatch):
    """Rows that a federation would refuse: as sites of other versions may let them through."""
    monkeypatch.setattr("skcfl.federation.checking.check_size", lambda *_: None)


@pytest.mark.parametrize("bad", [[4], [0, 5, 7], [2, 3, 8, 9, 11]])
def test_a_site_leaves_non_finite_clients_out_of_its_sums_itself(bad, large_rows, monkeypatch):
    """In one exchange, whichever place they are in, and the sum is that of the others."""
    asked, answer = [], InProcessSite.answer
    monkeypatch.setattr(
        InProcessSite, "answer", lambda *args: (asked.append(args[1]), answer(*args))[1]
    )
    good, labels = np.setdiff1d(np.arange(12), bad), np.arange(12) % 2
    others = open_places(*overflowing(), np.arange(12)).subset(good)
    for call, theta, *how in (
        (Hessians, np.zeros((2, 3))),
        (TrainedMoves, np.ones((2, 3)), 1, 0.1),
    ):
        wanted = others.ask(call, theta, labels[good], *how)
        for n_places in (1, 2, 12):
            pool = open_places(*overflowing(*bad), *np.arange(12).reshape(n_places, -1))
            asked.clear()
            assert_allclose(pool.ask(call, theta, labels, *how), wanted, rtol=1e-12)
            assert asked == [call.name] * n_places or call is TrainedMoves
            assert np.flatnonzero(pool.rejected).tolist() == bad
            assert_array_equal(np.flatnonzero(pool.answered), good)


def test_finite_sums_whose_squares_overflow_are_sums(large_rows):
    """Nobody is left out, nor where most clients have no finite part, as models diverged."""
    X, y, groups = overflowing()
    X *= 1e90
    theta, labels = np.zeros((1, 3)), np.zeros(12, dtype=int)
    found = []
    for places in ([np.arange(12)], [np.arange(5), np.arange(5, 12)]):
        pool = open_places(X, y, groups, *places)
        found.append(pool.ask(Hessians, theta, labels))
        assert not pool.rejected.any() and pool.answered is None
        pool = open_places(*overflowing(*range(7)), *places)
        assert np.isnan(pool.ask(Hessians, theta, labels)).all()
        assert not pool.rejected.any() and pool.answered is None
    assert found[0].max() > 1e170
    assert_allclose(found[1], found[0], rtol=1e-12)


def test_many_non_finite_clients_are_all_found():
    """Also more than are looked for where a model diverged."""
    bad = np.zeros(400, dtype=bool)
    bad[np.random.RandomState(0).permutation(400)[: 3 * MOST_CULPRITS]] = True
    looks = []

    def is_finite(some):
        looks.append(len(some))
        return not bad[some].any()

    assert_array_equal(non_finite(is_finite, 400), bad)
    looks.clear()
    assert non_finite(lambda some: looks.append(1), 10**5).all()
    assert len(looks) < 4 * MOST_CULPRITS


def test_searches_along_lines_are_patient():
    """A client that was fine may have a model that is too far for it, but not for ever."""
    X = np.ones((12, 1))
    X[4] = 1e40
    line = InProcessFederation(X, np.ones(12), np.arange(12))
    pool = line.open(LinearModel(alpha=0.1, fit_intercept=False, standardize=False).bind(1), 0)
    pool.ask(Objectives, np.zeros((12, 1)))
    with np.errstate(all="ignore"):
        for k in range(PATIENCE):
            assert not pool.rejected.any(), k
            values = pool.ask(Objectives, np.full((12, 1), 1e120))
            assert np.isfinite(np.delete(values, 4)).all()
        assert values[4] == 0.0 and pool.rejected.nonzero()[0].tolist() == [4]


ENDED = ["IFCA", "FedAvg", "FedRep", "LocalModels", "FedEM"]


@pytest.mark.parametrize("name", ENDED)
def test_last_values_that_are_not_finite_reject_their_client(name, monkeypatch):
    """They are those of a model that has not diverged, so that no search is to blame."""
    model = getattr(skcfl, f"{name}Regressor")(**MODELS.get(name, {}))
    asked, last, answer = [], None, InProcessSite.answer

    def noted(site, call, arguments):
        answers = answer(site, call, arguments)
        asked.append(call in {"cluster_values", "objectives", "mixture"})
        if len(asked) == last:
            answers["values"][4] = np.nan
        return answers

    monkeypatch.setattr(InProcessSite, "answer", noted)
    without_reports(monkeypatch)
    model.fit_federation(federation())
    last = len(asked) - asked[::-1].index(True)
    asked.clear()
    with pytest.warns(RejectedClientWarning, match=f"1 of 12 clients.*{FALSE}"):
        model.fit_federation(federation())
    assert_array_equal(model.rejected_clients_, [FALSE])
    assert np.isfinite(model.objective_)


@pytest.mark.parametrize("model", [CFLRegressor(), CLoVERegressor(2)], ids=["CFL", "CLoVE"])
def test_large_counts_are_no_reason(model):
    """A step too long for a client is taken again, and the client stays."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(12), 6)
    X = rng.normal(size=(72, 8))
    mean = (X * rng.normal(size=(12, 8))[groups]).sum(axis=1) + 2 * rng.normal(size=12)[groups]
    y = np.where(groups == 1, 10**6, rng.poisson(np.exp(0.15 * mean)))
    model.set_params(loss="poisson", random_state=0).fit(X, y, groups=groups)
    assert not model.rejected_clients_.size
    own = model.predict(X, groups=groups)[groups == 1]
    assert_allclose(own, 1e6, rtol=0.5)
