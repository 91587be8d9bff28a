"""Clients of this process against a naive federation: one at a time, formulas written out."""

import copy
import functools
import pickle
from functools import partial

import numpy as np
import pytest
from client_rows import DELTA, ClientRows
from hypothesis import given
from hypothesis import strategies as st
from kernels import hessians
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from spied import spied
from trials import examples, spread

import skcfl.federation.inprocess
from skcfl.calls.curvatures import (
    HessianDiagonals,
    HessianProducts,
    Hessians,
    HessianSolves,
    Prox,
    Solve,
    shows_rows,
)
from skcfl.calls.descriptions import Fingerprints
from skcfl.calls.first_order import (
    BestResponse,
    LocalUpdate,
    Losses,
    Objectives,
    ObjectivesGradients,
    OwnLosses,
)
from skcfl.calls.proofs_asked import Conjugate, Enclosures
from skcfl.exceptions import RowsShownError
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel, Location
from skcfl.numerics import threads
from skcfl.rounds.polish import solve_pooled
from skcfl.search.alpha import alpha_unit

seeds = st.integers(0, 2**32 - 1)
SIZES = [1, 0, 7, 2, 12, 3, 5, 1, 30]


def row_loss(loss, z, y, C):
    """Loss of one row from its predictions (C,), written out."""
    if loss == "squared_error":
        return 0.5 * (z[0] - y) ** 2
    if loss == "huber":
        r = abs(z[0] - y)
        return 0.5 * r**2 if r <= DELTA else DELTA * (r - 0.5 * DELTA)
    if loss == "poisson":
        return np.exp(z[0]) - y * z[0]
    if loss == "log_loss":
        full = np.append(0.0, z) if C == 2 else z
        return np.log(np.exp(full - full.max()).sum()) + full.max() - full[int(y)]
    signs = [1.0 if y > 0 else -1.0] if C == 2 else np.where(np.arange(C) == y, 1.0, -1.0)
    return sum(max(0.0, 1.0 - s * t) ** 2 for s, t in zip(signs, z, strict=True))


class Federation(ClientRows):
    """Rows of clients in a random order, and their objectives one by one."""

    def __init__(self, loss, seed=0, sizes=SIZES, d=3, C=3, alpha=0.1, weighted=False, **options):
        name = f"{loss}-{C}" if loss in ("log_loss", "squared_hinge") else loss
        super().__init__(name, seed, sizes, d, alpha, **options)
        self.scatter(0.7)
        self.loss, self.fit_intercept = loss, options.get("fit_intercept", True)
        self.weights = self.weights if weighted else np.ones(len(self.codes))
        if loss == "poisson":  # of large counts the steps below are too long
            self.y = self.rng.poisson(1.5, size=len(self.codes)).astype(float)

    def mean_loss(self, i, w):
        X, y, weights = self.of(i)
        if len(X) == 0:
            return 0.0
        if self.y is None:
            r = np.linalg.norm(X - w, axis=1)
            if self.loss == "location_huber":
                losses = np.where(r <= DELTA, 0.5 * r**2, DELTA * (r - 0.5 * DELTA))
            else:
                losses = 0.5 * r**2
        else:
            W = w.reshape(-1, self.d + self.fit_intercept)
            Z = X @ W[:, : self.d].T + (W[:, -1] if self.fit_intercept else 0.0)
            losses = [row_loss(self.loss, z, t, self.C) for z, t in zip(Z, y, strict=True)]
        return float(np.average(losses, weights=weights))

    def penalty(self, w):
        if self.y is None:
            return 0.0
        W = w.reshape(-1, self.d + self.fit_intercept)[:, : self.d]
        return 0.5 * self.alpha * (W**2).sum()

    def objective(self, i, w):
        return self.mean_loss(i, w) + self.penalty(w) if (self.codes == i).any() else 0.0

    def slope(self, i, w, h=1e-6):
        e = h * np.eye(len(w))
        return np.array(
            [(self.objective(i, w + k) - self.objective(i, w - k)) / (2 * h) for k in e]
        )


def rows_of(pool):
    """Rows (X, y, weights) of every client, which only a test may look at."""
    X, y, weights, codes = pool._site.rows()
    X = X.toarray() if sparse.issparse(X) else X
    rows = np.column_stack([X, y, weights])
    return [rows[codes == i] for i in range(pool.n_clients)]


LOSSES = ["squared_error", "huber", "poisson", "log_loss", "squared_hinge"]
LOSSES += ["location_squared_error", "location_huber"]
every_loss = pytest.mark.parametrize("loss", LOSSES)
FORMS = {"dense": np.asarray, "csr": sparse.csr_matrix, "csc": sparse.csc_array}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
dense_and_sparse = pytest.mark.parametrize(
    "form", [np.asarray, sparse.csr_array], ids=["dense", "csr"]
)


def models(pool, K, seed=0):
    return np.random.default_rng(seed).normal(scale=0.7, size=(K, pool.n_params))


# --------------------------------------------------------------------------- first order


@every_loss
@every_form
@examples(3)
@given(
    seed=seeds,
    C=st.sampled_from([2, 3]),
    fit_intercept=st.booleans(),
    weighted=st.booleans(),
    size=st.sampled_from([1, 300, 2**21]),
)
def test_first_order_is_that_of_every_client_alone(
    loss, form, seed, C, fit_intercept, weighted, size
):
    fed = Federation(loss, seed, C=C, fit_intercept=fit_intercept, weighted=weighted)
    pool = fed.pool(form, block_bytes=size)
    theta, w = models(pool, 3, seed), models(pool, fed.m, seed + 1)
    wanted = np.array([[fed.mean_loss(i, t) for t in theta] for i in range(fed.m)])
    assert_allclose(pool.ask(Losses, theta), wanted, rtol=1e-11, atol=1e-12)
    values = np.array([fed.objective(i, w[i]) for i in range(fed.m)])
    assert_allclose(pool.ask(Objectives, w), values, rtol=1e-11, atol=1e-12)
    assert_allclose(pool.model.penalties(w), [fed.penalty(x) for x in w], rtol=1e-12)
    both, gradients = pool.ask(ObjectivesGradients, w)
    assert_array_equal(both, pool.ask(Objectives, w))
    # One model serves all clients.
    shared = [pool.ask(ObjectivesGradients, x) for x in (w[0], np.repeat(w[:1], fed.m, axis=0))]
    assert_array_equal(shared[0][0], shared[1][0])
    assert_array_equal(shared[0][1], shared[1][1])
    slopes = np.array([fed.slope(i, w[i]) for i in range(fed.m)])
    # Central differences cross the kink of a second derivative with an error of order h.
    assert_allclose(gradients, slopes, rtol=1e-5, atol=2e-5)
    losses, choice, best = pool.ask(BestResponse, theta)
    assert_allclose(losses, wanted, rtol=1e-11, atol=1e-12)
    assert_array_equal(choice, wanted.argmin(axis=1))
    assert_allclose(best, pool.ask(ObjectivesGradients, theta[choice])[1], rtol=1e-11, atol=1e-13)
    assert_allclose(
        [pool.client_weights, pool.client_sizes],
        [np.bincount(fed.codes, v, fed.m) for v in (fed.weights, np.ones(len(fed.codes)))],
    )
    assert pool.n_samples == len(fed.codes)


@every_loss
def test_fixed_clients_keep_their_model(loss):
    pool = Federation(loss).pool()
    theta, fixed = models(pool, 4), np.array([-1, 2, 0, -1, 3, 1, -1, 2, 0])
    free = pool.ask(BestResponse, theta)
    losses, choice, gradients = pool.ask(BestResponse, theta, fixed)
    held = fixed >= 0
    assert_array_equal(choice, np.where(held, fixed, free[1]))
    slopes = pool.ask(ObjectivesGradients, theta[choice])[1]
    assert_allclose(gradients, slopes, rtol=1e-11, atol=1e-13)
    known = ~held[:, None] | (np.arange(4) == fixed[:, None])
    assert_array_equal(losses[known], free[0][known])
    assert np.isinf(losses[~known]).all()


def test_a_model_that_is_no_number_is_not_chosen():
    pool = Federation("poisson").pool()
    theta, full = models(pool, 3), pool.client_sizes > 0
    theta[0], theta[1] = np.nan, 1e4
    losses, choice, gradients = (part[full] for part in pool.ask(BestResponse, theta))
    assert not np.isfinite(losses[:, 0]).any()
    assert (choice == 2).mean() > 0.5
    assert np.isfinite(losses[np.arange(len(choice)), choice]).all()
    assert np.isfinite(gradients).all()


# ---------------------------------------------------------------------------- invariances


def everything(pool, seed=0):
    """Every answer of a pool, as a dict of arrays."""
    rng = np.random.default_rng(seed)
    n, p = pool.n_clients, pool.n_params
    theta, w = rng.normal(scale=0.3, size=(3, p)), rng.normal(scale=0.3, size=(n, p))
    rho, labels = rng.uniform(0.1, 3, size=n), rng.integers(3, size=n)
    slopes = pool.ask(ObjectivesGradients, w)[1]
    return {
        "losses": pool.ask(Losses, theta),
        "objectives": pool.ask(Objectives, w),
        "gradients": slopes,
        "best": pool.ask(BestResponse, theta)[2],
        "hessians": hessians(pool, theta, labels),
        "products": pool.ask(HessianProducts, theta, theta[::-1], labels),
        "prox": pool.ask(Prox, w, rho),
        # Not the points: a client that lacks a class has no minimiser.
        "solve": pool.ask(Objectives, pool.ask(Solve)[0]),
        "conjugate": pool.ask(Conjugate, slopes),
        "spectrum": np.stack(pool.spectrum()),
        "descent": pool.ask(LocalUpdate, w, 4, 0.05),
        "adam": pool.ask(LocalUpdate, w, 4, 0.05, "adam"),
        "monotone": pool.ask(LocalUpdate, w, 4, 10.0, monotone=True),
        "weights": pool.client_weights,
    }


def assert_same(found, wanted, rtol=1e-10, atol=1e-11):
    assert found.keys() == wanted.keys()
    for name, a in wanted.items():
        assert_allclose(found[name], a, rtol=rtol, atol=atol, err_msg=name)


@functools.cache
def weighted(loss):
    """A federation, and every answer of its pool."""
    fed = Federation(loss, weighted=True)
    return fed, everything(fed.pool())


@every_loss
@every_form
def test_sizes_of_blocks_and_forms_of_rows_change_nothing(loss, form):
    fed, wanted = weighted(loss)
    for size in (1, 250) if form is np.asarray else (250,):
        pool = fed.pool(form, block_bytes=size)
        assert size > 1 or len(pool._site._blocks) == fed.m - 1  # one has no rows
        close = {"rtol": 1e-11, "atol": 1e-12} if form is np.asarray else {}
        assert_same(everything(pool), wanted, **close)


@pytest.mark.parametrize("loss", spread(LOSSES, 1))
@dense_and_sparse
def test_threads_change_nothing(loss, form, monkeypatch):
    """Bit by bit: the same blocks, whoever works on them."""
    fed = Federation(loss, sizes=SIZES * 3, weighted=True)
    monkeypatch.setattr(skcfl.federation.inprocess, "PARALLEL_WORK", 0)
    monkeypatch.setattr(threads, "PARALLEL_VALUES", 0)
    monkeypatch.setattr(skcfl.clients.draws, "SORTED", 20)
    used, parallel = [], threads.Parallel

    def spy(*args, **kwargs):
        used.append(kwargs["n_jobs"])
        return parallel(*args, **kwargs)

    monkeypatch.setattr(threads, "Parallel", spy)
    pools = [fed.pool(form, block_bytes=200, n_jobs=k, random_state=0) for k in (1, 2)]
    # Rows are sorted in threads, and blocks of dense rows are made in them.
    assert len(used) == 1 + (form is np.asarray)
    answers = [everything(pool) for pool in pools]
    assert len(pools[1]._site._blocks) > 8 and set(used) == {2}
    w = models(pools[0], fed.m)
    for pool, found in zip(pools, answers, strict=True):
        pool.random_state.seed(1)
        found["batches"] = pool.ask(LocalUpdate, w, 7, 0.1, "adam", batch_size=2)
    assert_same(*answers, rtol=0, atol=0)


@every_loss
def test_float32_is_kept(loss):
    fed, b = weighted(loss)
    single = fed.pool(dtype=np.float32)
    a = everything(single)
    exact = dict.fromkeys(("prox", "hessians"), (np.float64, 1e-3))
    trained = ("losses", "objectives", "gradients", "best", "descent", "adam", "monotone")
    for name, (dtype, rtol) in (dict.fromkeys(trained, (np.float32, 2e-3)) | exact).items():
        assert a[name].dtype == dtype, name
        assert_allclose(a[name], b[name], rtol=rtol, atol=0.1 * rtol, err_msg=name)
    value, gradient = single.ask(ObjectivesGradients, models(single, fed.m), dtype=np.float64)
    assert value.dtype == gradient.dtype == np.float64


@every_loss
def test_clients_of_weight_zero_have_their_penalty_only(loss):
    fed = Federation(loss, sizes=[3, 4, 5])
    pool = fed.pool(sample_weight=(fed.codes != 1).astype(float))
    assert_array_equal(pool.client_sizes == 0, [False, True, False])
    assert not pool.without_rows.any()
    w, decay = models(pool, fed.m), pool.model.decay
    assert not pool.ask(Losses, w[:2])[1].any()
    assert_allclose(pool.ask(Objectives, w)[1], pool.model.penalties(w)[1])
    assert_allclose(pool.ask(Prox, w, 2.0)[1], 2 * w[1] / (2 + decay), rtol=1e-9)
    assert np.isfinite(pool.ask(Solve)[0][1]).all()
    assert_allclose(pool.ask(Conjugate, np.zeros_like(w))[1], 0.0, atol=1e-12)
    lipschitz, strong, mean = pool.spectrum()
    assert_allclose([lipschitz[1], mean[1]], decay.max(initial=0.0), atol=1e-12)
    assert_allclose(pool.ask(LocalUpdate, w, 5, 0.1)[1], w[1] * (1 - 0.1 * decay) ** 5)


@every_loss
@dense_and_sparse
def test_clients_without_rows_have_no_objective(loss, form):
    """Not even the local penalty: any model suits them."""
    fed = Federation(loss, sizes=[0, 4, 0, 5])
    pool = fed.pool(form)
    empty = np.flatnonzero(pool.without_rows)
    assert empty.tolist() == [0, 2]
    w, center, labels = models(pool, fed.m), models(pool, fed.m, 1), np.array([0, 1, 0, 1])
    values, slopes = pool.ask(ObjectivesGradients, w)
    choice, gradients = pool.ask(BestResponse, w[:2], np.array([1, -1, -1, -1]))[1:]
    solved, converged = pool.ask(Solve)
    for answer in (values, slopes, solved, gradients, pool.ask(Losses, w[:2])):
        assert not answer[empty].any()
    assert converged.all() and choice[empty].tolist() == [1, 0]
    assert not pool.ask(Objectives, w)[empty].any()
    assert not hessians(pool, w[:2], labels)[0].any()
    assert not pool.ask(HessianProducts, w[:2], w[2:], labels)[0].any()
    assert_array_equal(pool.ask(Prox, w, 2.0)[empty], w[empty])
    conjugate = pool.ask(Conjugate, slopes)
    assert np.isfinite(conjugate[[1, 3]]).all() and not conjugate[empty].any()
    slopes[0, -1] = 1e-9
    assert_array_equal(pool.ask(Conjugate, slopes)[empty], [np.inf, 0.0])
    assert not np.stack(pool.spectrum())[:, empty].any()
    assert_array_equal(pool.ask(LocalUpdate, w, 5, 0.1)[empty], w[empty])
    pulled = pool.ask(LocalUpdate, w, 5, 0.1, center=center, rho=np.array([1.0, 1.0, 0.0, 1.0]))
    assert_array_equal(pulled[empty], [center[0], w[2]])
    # They may be all of a pool.
    sub = pool.subset([2, 0])
    assert_array_equal(sub.ask(Prox, w[:2], 1.0), w[:2])
    assert not sub.ask(Objectives, w[:2]).any() and sub.n_samples == 0
    assert [len(rows) for rows in rows_of(sub)] == [0, 0]
    assert all(part.n_samples == 0 for part in sub.hold_out(0.5, random_state=0))


# --------------------------------------------------------------------------- second order


@every_loss
@dense_and_sparse
@examples(3)
@given(
    seed=seeds, C=st.sampled_from([2, 3]), weighted=st.booleans(), size=st.sampled_from([1, 2**21])
)
def test_hessians_are_the_derivatives_of_the_gradients(loss, form, seed, C, weighted, size):
    fed = Federation(loss, seed, C=C, weighted=weighted)
    pool = fed.pool(form, block_bytes=size)
    K = 3
    labels = np.random.default_rng(seed).integers(K, size=fed.m)
    theta = models(pool, K, seed)
    u = np.random.default_rng(seed + 1).uniform(size=fed.m)
    for weights in (None, u):
        own = pool.client_weights if weights is None else weights

        def slope(t, own=own):
            g = pool.ask(ObjectivesGradients, t[labels])[1]
            return np.stack([own[labels == k] @ g[labels == k] for k in range(K)])

        H = hessians(pool, theta, labels, weights)
        assert_allclose(H, H.transpose(0, 2, 1), atol=1e-12)
        direction = np.random.default_rng(seed + 2).normal(size=theta.shape)
        products = np.einsum("kij,kj->ki", H, direction)
        found = pool.ask(HessianProducts, theta, direction, labels, weights)
        assert_allclose(found, products, rtol=1e-10, atol=1e-10)
        found = pool.ask(HessianDiagonals, theta, labels, weights)
        assert_allclose(found, np.einsum("kii->ki", H), rtol=1e-10, atol=1e-10)
        h = 1e-6
        ahead = (slope(theta + h * direction) - slope(theta)) / h
        behind = (slope(theta) - slope(theta - h * direction)) / h
        smooth = np.isclose(ahead, behind, rtol=1e-3, atol=1e-3)
        assert smooth.mean() > 0.5
        middle = 0.5 * (ahead + behind)
        assert_allclose(middle[smooth], products[smooth], rtol=1e-4, atol=1e-3)


@every_loss
def test_damping_only_adds_curvature(loss):
    fed = Federation(loss)
    pool = fed.pool()
    theta, labels = 5 * models(pool, 2), np.arange(fed.m) % 2
    none, half, full = (hessians(pool, theta, labels, damping=t) for t in (0.0, 0.5, np.ones(2)))
    assert_allclose(half, 0.5 * (none + full), rtol=1e-10, atol=1e-12)
    assert (np.linalg.eigvalsh(full - none) >= -1e-10).all()
    u = models(pool, 2, 1)
    found = pool.ask(HessianProducts, theta, u, labels, damping=0.5)
    assert_allclose(found, np.einsum("kij,kj->ki", half, u), rtol=1e-10, atol=1e-10)
    found = pool.ask(HessianDiagonals, theta, labels, damping=0.5)
    assert_allclose(found, np.einsum("kii->ki", half), rtol=1e-10, atol=1e-10)
    if loss.endswith("huber"):
        assert np.abs(full - none).max() > 1e-3


def test_clusters_do_not_see_each_other_s_overflow():
    """Poisson far out: infinity times the zero of another cluster must not become NaN."""
    fed = Federation("poisson")
    pool, labels = fed.pool(), np.arange(fed.m) % 2
    theta = models(pool, 2)

    def curvatures():
        products = pool.ask(HessianProducts, theta, theta, labels)
        return np.concatenate([hessians(pool, theta, labels)[0], products[:1]])

    clean = curvatures()
    theta[1] *= 1e5
    assert_allclose(curvatures(), clean, rtol=1e-12)


# ------------------------------------------------------------------------- local training


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_starts_are_left_alone_and_state_is_fresh(optimizer):
    fed = Federation("log_loss")
    pool = fed.pool()
    w = models(pool, fed.m)
    kept = w.copy()
    first, again, none = (pool.ask(LocalUpdate, w, n, 0.1, optimizer) for n in (5, 5, 0))
    assert_array_equal(w, kept)
    assert_array_equal(again, first)
    assert_array_equal(none, w)
    # Clients that stop early are not moved by what the optimiser remembers.
    some = pool.ask(LocalUpdate, w, np.arange(fed.m), 0.1, optimizer)
    for k in (0, 3, 8):
        assert_allclose(some[k], pool.ask(LocalUpdate, w, k, 0.1, optimizer)[k], rtol=1e-12)


@pytest.mark.parametrize(
    ("optimizer", "size"), [("sgd", 1), ("momentum", 2), ("adam", 5), ("sgd", 100)]
)
def test_batches_depend_on_the_random_state_only(optimizer, size):
    """They are drawn anew in each call."""
    fed = Federation("log_loss", weighted=True)
    w = models(fed.pool(), fed.m)

    def train(seed, n_calls=1, **options):
        pool = fed.pool(random_state=seed, **options)
        for _ in range(n_calls):
            x = pool.ask(LocalUpdate, w, 9, 0.1, optimizer, batch_size=size)
        return x

    wanted = train(0)
    for options in ({"block_bytes": 1}, {"block_bytes": 500}, {"form": sparse.csr_array}):
        assert_allclose(train(0, **options), wanted, rtol=1e-10, atol=1e-12)
    others = train(1), train(0, n_calls=2)
    if size < max(SIZES):
        assert all(np.abs(other - wanted).max() > 1e-6 for other in others)
        return
    # One batch has all rows: the epoch's order is nothing but rounding.
    for other in (*others, fed.pool().ask(LocalUpdate, w, 9, 0.1, optimizer)):
        assert_allclose(other, wanted, rtol=1e-8, atol=1e-10)


@every_loss
@examples(4)
@given(seed=seeds, log_rate=st.floats(-2, 4), log_units=st.floats(-2, 3), pulled=st.booleans())
def test_monotone_training_never_raises_an_objective(loss, seed, log_rate, log_units, pulled):
    """Steps far too long, columns in unlike units, Poisson out of range."""
    fed = Federation(loss, seed)
    fed.X[:, 0] *= 10.0**log_units
    pool = fed.pool()
    w = 2.0 * models(pool, fed.m, seed)
    center, rho = (models(pool, fed.m, seed + 1), 1.5) if pulled else (None, 0.0)

    def value(x):
        extra = 0.0 if center is None else 0.5 * rho * ((x - center) ** 2).sum(axis=1)
        return pool.ask(Objectives, x) + extra

    before, reached = value(w), [value(w)]
    for steps in (1, 2, 5, 12):
        x = pool.ask(LocalUpdate, w, steps, 10.0**log_rate, center=center, rho=rho, monotone=True)
        reached.append(value(x))
    finite = np.isfinite(before)
    for earlier, later in zip(reached[:-1], reached[1:], strict=True):
        rounding = 1e-12 * np.abs(earlier[finite])
        assert (later[finite] <= earlier[finite] + rounding).all()


def test_monotone_training_is_gradient_descent_where_that_descends():
    pool = Federation("log_loss").pool()
    w = models(pool, pool.n_clients)
    asked = w, np.arange(pool.n_clients), 0.5 / np.maximum(pool.spectrum()[0], 1e-3)
    descent = pool.ask(LocalUpdate, *asked)
    assert_allclose(pool.ask(LocalUpdate, *asked, monotone=True), descent, rtol=1e-12)


# --------------------------------------------------------------------------- other pools


@every_loss
@examples(4)
@given(seed=seeds, data=st.data())
def test_subsets(loss, seed, data):
    """Of subsets, in any order; every answer is that of the client in the whole pool."""
    fed = Federation(loss, seed, weighted=True)
    pool = fed.pool(block_bytes=data.draw(st.sampled_from([1, 2**21])))
    places, sub = np.arange(fed.m), pool
    theta, w = models(pool, 3), models(pool, fed.m, 1)
    for _ in range(2):
        chosen = data.draw(
            st.lists(st.integers(0, sub.n_clients - 1), min_size=1, unique=True).map(np.array)
        )
        sub, places = sub.subset(chosen), places[chosen]
        assert sub.n_clients == len(places)
        assert_array_equal(sub.client_weights, pool.client_weights[places])
        assert_array_equal(sub.client_sizes, pool.client_sizes[places])
        assert sub.n_samples == pool.client_sizes[places].sum()
        for found, wanted in (
            (sub.ask(Losses, theta), pool.ask(Losses, theta)),
            (sub.ask(ObjectivesGradients, w[places])[1], pool.ask(ObjectivesGradients, w)[1]),
            (np.stack(sub.spectrum(), axis=1), np.stack(pool.spectrum(), axis=1)),
        ):
            assert_allclose(found, wanted[places], rtol=1e-11, atol=1e-12)
        prox = sub.ask(Prox, w[places], 0.7)
        assert_allclose(prox, pool.ask(Prox, w, 0.7)[places], rtol=1e-7, atol=1e-8)
        rows, whole = rows_of(sub), rows_of(pool)
        for k, i in enumerate(places):
            assert_allclose(rows[k], whole[i], rtol=1e-15)


def test_ledgers_masks_and_bad_subsets():
    pool = Federation("squared_error").pool(random_state=0)
    mask = pool.client_sizes > 3
    w, sub = models(pool, pool.n_clients), pool.subset(mask)
    assert sub.ledger is pool.ledger and sub.random_state is pool.random_state
    assert_array_equal(sub.ask(Objectives, w[mask]), pool.ask(Objectives, w)[mask])
    with pytest.raises(ValueError, match="once"):
        pool.subset([1, 1])
    with pytest.raises(IndexError):
        pool.subset([pool.n_clients])


@every_loss
@dense_and_sparse
@examples(3)
@given(seed=seeds, fraction=st.floats(0.01, 0.99))
def test_hold_out_splits_every_client(loss, form, seed, fraction):
    fed = Federation(loss, seed, weighted=True)
    pool = fed.pool(form)
    train, held = pool.hold_out(fraction, random_state=seed)
    assert train.ledger is held.ledger is pool.ledger
    parts = rows_of(pool), rows_of(train), rows_of(held)
    for i, (all_rows, a, b) in enumerate(zip(*parts, strict=True)):
        n = len(all_rows)
        weights = [train.client_weights[i], held.client_weights[i]]
        assert_allclose(weights, [a[:, -1].sum(), b[:, -1].sum()])
        if n <= 1:
            assert_allclose([a, b], [all_rows] * 2)
            continue
        assert len(b) == np.clip(round(fraction * n), 1, n - 1)
        both = np.vstack([a, b])
        order, wanted = (np.lexsort(np.round(table, 9).T) for table in (both, all_rows))
        assert_allclose(both[order], all_rows[wanted], rtol=1e-14)


def test_another_seed_holds_out_other_rows():
    pool = Federation("log_loss").pool()
    theta = models(pool, 2)
    one, two = (pool.hold_out(0.3, random_state=seed)[1].ask(Losses, theta) for seed in (0, 1))
    assert np.abs(one - two).max() > 1e-3


def test_copies_of_a_pool_draw_as_it_does():
    pool = Federation("squared_error").pool()
    pool.draw(always=True)
    copies = copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))
    wanted = pool.draw(always=True)
    assert all(each.draw(always=True) == wanted for each in copies)


# --------------------------------------------------------------------------------- ledger


def sent(pool, name, *arguments, **options):
    """What a call sends, in floats up and down, and what it gives."""
    pool.ledger.since_mark()
    ask = getattr(pool, name) if isinstance(name, str) else partial(pool.ask, name)
    answer = ask(*arguments, **options)
    return pool.ledger.since_mark(), answer


def test_last_answers_are_not_sent_again():
    """A start is sent, and counted, to those whose last answer it is not."""
    fed = Federation("log_loss")
    pool = fed.pool()
    n, p = fed.m, pool.n_params
    v = models(pool, n)
    idle = int(pool.without_rows.sum())  # who make nothing of a start
    assert idle == 1

    def more(*asked, of=pool, **options):
        (_, down), x = sent(of, *asked, **options)
        return x, down - n * p

    x, floats = more(Prox, v, 1.0)
    assert floats == 0
    y, floats = more(Prox, v, 1.0, x0=x, max_iter=1)
    assert floats == 0
    one = x.copy()
    one[np.flatnonzero(~pool.without_rows)[:2]] += 1.0
    assert more(Conjugate, v, x0=y + 1.0)[1] == (n - idle) * p
    assert more(Conjugate, v, x0=y)[1] == 0
    far, floats = more(Prox, v, 1.0, x0=one, max_iter=1)
    assert floats == (2 if np.array_equal(x, y) else n - idle) * p
    assert_array_equal(far, fed.pool().ask(Prox, v, 1.0, x0=one, max_iter=1))
    # Pools of some clients share what these remember; other rows and penalties are other pools.
    some = np.flatnonzero(~pool.without_rows)[:3]
    far[some] = pool.subset(some).ask(Prox, v[some], 2.0, x0=far[some], max_iter=1)
    assert more(Prox, v, 1.0, x0=far, max_iter=1)[1] == 0
    assert more(Prox, v, 1.0, x0=far, of=pool.hold_out(0.5)[0])[1] == (n - idle) * p
    assert more("penalised", 3.0)[1] == n - n * p
    assert more(Prox, v, 1.0, x0=far, of=pool.penalised(3.0))[1] == (n - idle) * p
    # In training clients without rows have their starts, too.
    w = pool.ask(LocalUpdate, v, 2, 0.1, later=True)
    assert more(LocalUpdate, w, 2, 0.1, last=True)[1] == -n * p
    with pytest.raises(RuntimeError, match="asked to continue from their last answers"):
        fed.pool()._site.answer("objectives", {"w": None, "own": np.ones(n, dtype=bool)})


def test_no_matrix_shows_the_rows_of_a_client():
    """A Hessian of fewer rows than parameters is spanned by them: not sent, unless summed."""
    fed = Federation("squared_error", sizes=[2, 0, 3, 9, 4, 2])
    pool = fed.pool()
    n, p = fed.m, pool.n_params
    assert p == 4
    theta, own = models(pool, n), np.arange(n)
    assert_array_equal(shows_rows(pool, own, n), [True, False, True, False, False, True])
    # One that has no part, or whose partner has none, is alone all the same.
    partless = np.array([1.0, 1, 1, 0, 1, 0])
    for labels, count, *weights in (
        (own, 3),
        ([0, 1, 1, 1, 1, 1], 1),
        ([0, 0, 1, 1, 2, 2], 1),  # the partner has no rows
        ([0, 0, 1, 1, 0, 1], 1, partless),
    ):
        with pytest.raises(RowsShownError, match=f"{count} such Hessians were asked for"):
            pool.ask(Hessians, theta, np.array(labels), *weights)
    H = pool.ask(Hessians, theta, own, np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0]))
    assert not H[[0, 1, 2, 5]].any() and H[3].any()
    assert np.isfinite(pool.ask(Hessians, theta, np.array([0, 0, 1, 1, 0, 1]))).all()
    # Bounds of the curvature are numbers there, and no larger than it is.
    _, _, floor = pool.ask(Enclosures, theta, own, np.full((n, p), 1e-3), True)
    all_own = hessians(pool, theta, own, np.ones(n))
    for i in (0, 2, 5):
        assert_array_equal(floor[i], floor[i][0, 0] * np.eye(p))
        assert np.linalg.eigvalsh(all_own[i] - floor[i])[0] >= -1e-12
    assert np.count_nonzero(floor[3]) > p
    # What such a client does instead.
    shift, u = np.linspace(0.1, 1.0, n), models(pool, n, 1)
    x = pool.ask(HessianSolves, theta, u, own, shift)
    back = pool.ask(HessianProducts, theta, x, own, np.ones(n)) + shift[:, None] * x
    assert_allclose(back, u, rtol=1e-9, atol=1e-10)
    # The points of convex clustering are their rows.
    points = open_rows(Location().bind(2), theta[:, :2], None, own, n)
    assert not shows_rows(points, own, n).any()


def test_what_every_call_sends():
    """Floats (up, down): n clients, p parameters per model, K models."""
    fed = Federation("log_loss")
    pool = fed.pool()
    n, p, K = fed.m, pool.n_params, 4
    theta, w = models(pool, K), models(pool, n)
    labels = np.arange(n) % K
    fixed = np.where(np.arange(n) < 3, 1, -1)
    started = 2 * n - pool.without_rows.sum()
    for asked, options, *wanted in (
        ((Losses, theta), {}, n * K, n * K * p),
        ((BestResponse, theta), {}, n * K + n + n * p, n * K * p),
        # Fixed clients get one model and send one loss.
        ((BestResponse, theta, fixed), {}, (n - 3) * (K + 1) + 3 + n * p, (n - 3) * K * p + 3 * p),
        # Shared parameters are sent once.
        ((BestResponse, theta), {"n_shared": 2}, n * K + n + n * p, n * (K * (p - 2) + 2)),
        ((Objectives, w), {}, n, n * p),
        ((ObjectivesGradients, w), {}, n + n * p, n * p),
        ((Hessians, theta, 0 * labels), {}, n * (p * (p + 1) // 2), n * p),
        ((HessianProducts, theta, theta, labels), {}, n * p, 2 * n * p),
        ((HessianDiagonals, theta, labels), {}, n * p, n * p),
        ((HessianSolves, theta, theta, labels, 1.0), {}, n * p, 2 * n * p),
        ((LocalUpdate, w, 5, 0.1), {}, n * p, n * p),
        ((LocalUpdate, w, 5, 0.1), {"center": w, "rho": 1.0}, n * p, 2 * n * p),
        ((Prox, w, 1.0), {}, n * p, n * p),
        ((Prox, w, 1.0), {"x0": w}, n * p, started * p),
        ((Solve,), {}, n * p, 0),
        ((Conjugate, w), {}, n, n * p),
        (("spectrum",), {}, 3 * n, 0),
        ((Fingerprints, 1), {}, 2 * n, 0),
        (("relay",), {"up": 3, "down": 4}, 3, 4),
        (("start",), {}, 0, 0),
        (("subset", [0, 1]), {}, 0, 0),
        (("hold_out", 0.5), {}, 0, 0),
    ):
        assert sent(pool, *asked, **options)[0] == tuple(wanted), (asked[0], options)
    assert sent(pool.subset([0, 1]), Losses, theta)[0] == (2 * K, 2 * K * p)


@pytest.mark.parametrize(("loss", "most"), [("squared_error", 8), ("gamma", 40), ("huber", 75)])
def test_the_size_of_the_noise_takes_few_exchanges(loss, most, monkeypatch):
    """Steps to it begin at zero and end where the loss no longer falls; nothing is asked twice."""
    rng = np.random.RandomState(0)
    X, codes = rng.normal(size=(240, 4)), np.arange(240) % 6
    y = np.exp(0.4 * X[:, 0]) * rng.gamma(3.0, size=240)
    pool, seen = open_rows(LinearModel(loss=loss).bind(4), X, y, codes, 6), spied(monkeypatch)
    before = pool.ledger.calls
    unit = alpha_unit(pool, solve_pooled)
    assert pool.ledger.calls - before <= most
    asked = [tuple(sent["theta"].ravel()) for call, sent, _ in seen if call == "hessians"]
    assert len(set(asked)) == len(asked) > 4 * (loss != "squared_error")
    assert asked[0] == (0.0,) * pool.n_params
    losses = []
    for alpha in (0.0, 1e9):  # the best model of all rows, and the best constant
        together = open_rows(LinearModel(loss=loss, alpha=alpha).bind(4), X, y, codes * 0, 1)
        losses.append(240 * together.ask(OwnLosses, together.ask(Solve)[0])[0])
    around = losses[1] / 239
    wanted = pool.model.prior_unit(losses[0] / 235 / around, around) / 240
    assert_allclose(unit, wanted, rtol=1e-4)
