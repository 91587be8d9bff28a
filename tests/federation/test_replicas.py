"""Replicas of clients at the server: they answer as the clients, and show no rows."""

from functools import cache, partial
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from trials import spread

import skcfl
from skcfl.calls.curvatures import Hessians, Prox, Solve, Spectrum
from skcfl.calls.first_order import LocalUpdate, ObjectivesGradients, OwnLosses
from skcfl.calls.proofs_asked import Conjugate
from skcfl.calls.summed import GradientSums
from skcfl.federation import Faults, InProcessFederation
from skcfl.federation.replicas import can_replicate, replicas_of
from skcfl.models import LinearModel

N, P = 6, 4
MODEL = LinearModel().bind(P - 1)
SEARCH = skcfl.LamSearch(lams=[0.1, 0.6])


def table(n_rows=12, offset=0.0, seed=0):
    """Rows of 3 features of some clients, targets about an offset, and weights."""
    rng = np.random.RandomState(seed)
    groups = np.repeat(np.arange(N), n_rows)
    X = rng.standard_normal((len(groups), P - 1)) * [1.0, 10.0, 0.1]
    y = offset + (X * rng.standard_normal((N, P - 1))[groups]).sum(axis=1)
    return X, y + rng.standard_normal(len(y)), groups, rng.uniform(0.1, 2.0, len(y))


def opened(*rows, alpha=0.1, **about):
    model = LinearModel(alpha=alpha, **about).bind(P - 1)
    return InProcessFederation(*rows).open(model, random_state=0)


def replica(pool):
    (found,) = replicas_of([pool], pool.ledger)
    return found


def close(ours, theirs, rtol=1e-8):
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (ours, theirs)), strict=True):
        assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize(
    "about", [{}, {"fit_intercept": False}, {"standardize": False}, {"alpha": 0.0}], ids=str
)
def test_a_replica_answers_as_its_client(about, offset):
    X, y, groups, weights = table(offset=offset)
    if about.get("fit_intercept", True) is False:
        X = np.column_stack([X, np.ones(len(X))])[:, -(P - 1) :]
    pool = opened(X, y, groups, weights, **about)
    ours, rng, p = replica(pool), np.random.RandomState(1), pool.n_params
    W = pool.model.origin + rng.standard_normal((N, p))
    labels, rho = np.arange(N) % 2, rng.uniform(0.1, 1.0, N)
    questions = [
        lambda some: some.ask(ObjectivesGradients, W),
        lambda some: some.ask(OwnLosses, W),
        lambda some: some.ask(Prox, W, rho),
        lambda some: some.ask(Solve),
        lambda some: some.ask(Hessians, W[:2], labels),
        lambda some: some.ask(GradientSums, W[:2], labels)[1],
        lambda some: some.ask(LocalUpdate, W, 5, 1e-3, center=W, rho=rho),
        lambda some: some.ask(Conjugate, 0.01 * W),
        lambda some: some.ask(Spectrum),
        lambda some: some.penalised(2.0).ask(Solve),
        lambda some: some.subset([4, 1]).ask(Solve),
    ]
    for question in questions:
        close(question(ours), question(pool))
    for name in ("client_sizes", "client_weights", "without_rows"):
        assert_array_equal(getattr(ours, name), getattr(pool, name))
    assert ours.n_samples == pool.n_samples


def test_replicas_take_one_exchange_and_their_answers_none():
    pool = opened(*table())
    before = pool.ledger.calls
    ours = replica(pool)
    assert pool.ledger.calls == before + 1
    lane = ours.lane()
    for some in (ours, lane):
        some.ask(Solve)
        assert some.ledger.calls == some.ledger.up == 0
    assert pool.ledger.calls == before + 1


def test_what_has_no_replicas():
    """Matrices that would show rows, other losses, clients without rows or without an answer."""
    X, y, groups, weights = table()
    assert can_replicate([opened(*table(n_rows=P))])
    assert not can_replicate([opened(X, y, groups), opened(*table(n_rows=P - 1))])
    assert not can_replicate([opened(X, y, groups, loss="huber")])
    classifier = LinearModel(loss="log_loss").bind(P - 1, 2)
    assert not can_replicate([InProcessFederation(X, (y > 0) * 1, groups).open(classifier, 0)])
    pool = InProcessFederation(X, y, groups, faults=Faults(dead=[3])).open(MODEL, 0)
    assert replicas_of([pool], pool.ledger) is None
    weights[groups == 2] = 0.0
    pool = opened(X, y, groups, weights)
    close(replica(pool).ask(Prox, np.ones((N, P)), 1.0), pool.ask(Prox, np.ones((N, P)), 1.0))


@pytest.mark.parametrize("name", ["FPFC", "ConvexClusteredFL"])
def test_a_search_among_replicas_finds_the_same(monkeypatch, name):
    X, y, groups, weights = table(n_rows=30)
    model = getattr(skcfl, name + "Regressor")(random_state=0, search=SEARCH)
    fitted = partial(model.fit, X, y, groups=groups, sample_weight=weights)
    fitted()
    found = model.lam_, model.params_.copy(), model.calls_
    monkeypatch.setattr("skcfl.search.judges.can_replicate", lambda pools: False)
    fitted()
    assert found[0] == model.lam_
    assert_allclose(found[1], model.params_, rtol=1e-10, atol=1e-12)
    assert found[2] < 0.7 * model.calls_


def searching(name):
    """Rows, and a model that searches lam."""
    X, y, groups, _ = table(n_rows=20)
    y = (y > 0).astype(int) if name.endswith("Classifier") else y
    return X, y, groups, getattr(skcfl, name)(random_state=0, search=SEARCH, alpha=0.01)


@cache
def found_without(name):
    """The fit to the rows of all clients but one."""
    X, y, groups, model = searching(name)
    others = groups != 3
    return model.fit(X[others], y[others], groups=groups[others])


FAILURES = [
    {"dead": [3]},
    {"dead": [3], "calls": ["hessians"]},
    {"dead": [3], "calls": ["objectives_gradients"]},
    {"false": [3], "attack": "nan"},
]


@pytest.mark.filterwarnings("ignore::skcfl.exceptions.MissingClientWarning")
@pytest.mark.filterwarnings("ignore::skcfl.exceptions.RejectedClientWarning")
@pytest.mark.parametrize(
    ("name", "faults"),
    spread(product(["ConvexClusteredFLRegressor", "FPFCClassifier"], FAILURES), 3),
    ids=str,
)
def test_a_client_that_fails_has_no_part_in_a_search(name, faults):
    """By replicas or expansions: what is found is what the others find without it."""
    X, y, groups, model = searching(name)
    wanted = found_without(name)
    federation = InProcessFederation(X, y, groups, faults=Faults(**faults), retries=1)
    found = model.fit_federation(federation)
    lost = found.missing_clients_ if "dead" in faults else found.rejected_clients_
    assert list(lost) == [3]
    assert found.lam_ == wanted.lam_
    places = np.arange(N) != 3
    assert_allclose(found.params_[places], wanted.params_, rtol=1e-8, atol=1e-10)
