"""Clients that answer some kinds of calls and not others: they have part in a fit, or none."""

import warnings

import lost_client
import numpy as np
import pytest
from fits_alone import without_reports
from lost_client import GONE, IDS, KEPT, REGRESSION, federation, fit_without, rows_of
from numpy.testing import assert_allclose
from spied import spied
from trials import spread

import skcfl
from skcfl import FedAvgRegressor, IFCARegressor
from skcfl.calls import CALLS
from skcfl.calls.curvatures import Solve
from skcfl.calls.first_order import Losses, Objectives
from skcfl.exceptions import FederationError, MissingClientWarning
from skcfl.federation import Faults, InProcessFederation, SitePolicy
from skcfl.federation.one_exchange import REFUSALS
from skcfl.models import LinearModel

# One everyday class of each method: regressors, where a method has one.
METHODS = [name for name in skcfl.__all__ if name.endswith("Regressor")]
METHODS += [
    "FedPACClassifier",
    "FedProtoClassifier",
    "CLoVEClassifier",
    "PartialPoolingClassifier",
]
HOW = {"lam": 0.1, "max_iter": 10, "eps2": 0.3}
HOW["labels"] = dict(zip(IDS, REGRESSION.labels, strict=True))


def make(name):
    return lost_client.make(name, n_clusters=1 if "PartialPooling" in name else 2, **HOW)


def calls_of(name, monkeypatch):
    """A fit with all clients, and the kinds of calls that it uses."""
    X, y, groups = rows_of(name)
    with monkeypatch.context() as patched:
        seen = spied(patched)
        without_reports(patched)
        model = make(name).fit(X, y, groups=groups)
    return model, sorted({call for call, *_ in seen})


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", spread(METHODS, 6))
def test_a_client_that_fails_one_kind_of_call(name, monkeypatch):
    """It is named and the others are as without it; answers that are proofs change no model."""
    whole, calls = calls_of(name, monkeypatch)
    without = make(name)
    if "labels" in without.get_params():
        without.set_params(labels={id: k for id, k in without.labels.items() if id != GONE})
    fit_without(without, name)
    scale = np.abs(without.params_).max()
    assert calls
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", MissingClientWarning)
            found = make(name).fit_federation(federation(rows_of(name), calls=[call]))
        told = [str(one.message) for one in caught if one.category is MissingClientWarning]
        if CALLS[call].proof:
            assert found.missing_clients_.size == 0 and not told, call
            assert_allclose(found.params_, whole.params_, rtol=1e-6, err_msg=call)
            assert found.dual_gap_ == np.inf and found.partition_optimal_ is None
            continue
        assert found.missing_clients_.tolist() == [GONE], call
        assert found.rejected_clients_.size == 0, call
        (text,) = told
        assert "1 of 8 clients left all of 1" in text and f"'{call}'" in text
        assert repr(str(GONE)) in text
        assert np.isfinite(found.params_).all(), call
        others = found.params_[KEPT]
        assert_allclose(others, without.params_, rtol=1e-6, atol=1e-6 * scale, err_msg=call)


def test_a_client_is_left_out_once_it_has_failed_often_enough():
    pool = federation(calls=["losses"]).open(LinearModel(alpha=0.1).bind(3), 0)
    theta = np.zeros((2, pool.n_params))
    with pytest.warns(MissingClientWarning, match=f"all of {REFUSALS} calls of 'losses'"):
        losses = pool.ask(Losses, theta)
    assert np.isnan(losses[3]).all() and np.isfinite(np.delete(losses, 3, 0)).all()
    # From then on it is in no sum, although it would answer, and nobody asks it.
    calls = pool.ledger.calls
    values = pool.ask(Objectives, np.zeros((8, pool.n_params)))
    assert values[3] == 0.0 and pool.ledger.calls == calls + 1
    missing, complete = pool.roll_call()
    assert missing.nonzero()[0].tolist() == [3] and not complete


def test_a_refusal_is_found_whoever_else_comes_and_goes():
    faults = {"dropout": 0.2, "calls": ["losses"], "random_state": 0}
    pool = federation(**faults).open(LinearModel(alpha=0.1).bind(3), 0)
    with pytest.warns(MissingClientWarning, match="1 of 8 clients"):
        for _ in range(5):
            pool.ask(Losses, np.zeros((1, pool.n_params)))
    assert pool.roll_call()[0].nonzero()[0].tolist() == [3]


@pytest.mark.parametrize("call", ["losses", "best_response_sums", "gradient_sums", "hessians"])
def test_stragglers_have_their_part(call):
    model = IFCARegressor(n_clusters=2, random_state=0)
    model.fit_federation(federation(dead=(), dropout=0.5, calls=[call], random_state=0))
    assert model.missing_clients_.size == 0


def test_too_few_clients_answer_a_kind_of_call():
    few = federation(dead=IDS[:4], calls=["hessians"], options={"min_clients": 5})
    with (
        pytest.warns(MissingClientWarning, match="4 of 8 clients"),
        pytest.raises(FederationError, match="4 of 8 clients answer, and min_clients=5"),
    ):
        FedAvgRegressor().fit_federation(few)


def test_one_that_was_away_when_it_was_asked_is_missing():
    """It comes back and answers everything else: what it never answered was without it."""
    pool = federation(dead=()).open(LinearModel(alpha=0.1).bind(3), 0)
    site, away = pool._site, [True]
    answer = site.answer

    def sometimes(call, arguments):
        answers = answer(call, arguments)
        lost = np.arange(site.n_clients) == 3 * away[0]
        return {**answers, "answered": ~lost} if away[0] else answers

    site.answer = sometimes
    subset = site.subset
    site.subset = lambda clients: Silent(len(clients)) if away[0] else subset(clients)
    pool.ask(Solve)
    away[0] = False
    values = pool.ask(Objectives, np.zeros((8, pool.n_params)))
    assert values[3] > 0.0
    missing, _ = pool.roll_call()
    assert missing.nonzero()[0].tolist() == [3]
    pool.ask(Solve)
    assert not pool.roll_call()[0].any()


class Silent:
    """Clients none of which is there."""

    def __init__(self, n_clients):
        self.n_clients = n_clients

    def answer(self, call, arguments):
        answers = {"w": np.zeros((self.n_clients, 4)), "converged": np.ones(self.n_clients, bool)}
        answers = answers if call == "solve" else {}
        return {**answers, "answered": np.zeros(self.n_clients, dtype=bool)}


def test_parts_of_rows_that_are_too_few_are_no_reason():
    """Held-out rows may be too few under a policy, and the others would tell of them."""
    few = np.flatnonzero(REGRESSION.groups == GONE)[8:]
    keep = np.setdiff1d(np.arange(len(REGRESSION.y)), few)
    rows = [values[keep] for values in rows_of()]
    federation = InProcessFederation(*rows, policy=SitePolicy(min_rows=5))
    pool = federation.open(LinearModel(alpha=0.1).bind(3), 0)
    train, held = pool.hold_out(0.3)
    theta = np.zeros((1, pool.n_params))
    for part in (train, held):
        assert np.isnan(part.ask(Losses, theta)).ravel().nonzero()[0].tolist() == [3]
    assert np.isfinite(pool.ask(Losses, theta)).all()
    assert not pool.roll_call()[0].any()


@pytest.mark.parametrize("calls", [["rows"], "losse", [3]])
def test_faults_of_no_call(calls):
    with pytest.raises(ValueError, match="calls must be names of calls"):
        Faults(dead=[GONE], calls=calls)
