"""Checks that a pool with clients elsewhere equals the pool of clients of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_random_state

from .._typing import RandomState
from ..calls import CALLS
from ..calls.curvatures import Prox
from ..calls.descriptions import Subspaces
from ..calls.first_order import LocalUpdate, Objectives
from ..calls.kept_models import Recall
from ..calls.posteriors_asked import PosteriorSums
from ..calls.proofs_asked import Conjugate, Enclosures
from ..calls.trees_asked import SplitSums
from ..federation.inprocess import open_rows
from ..federation.pool import ClientPool
from ..models import LinearModel
from ._comparing import require, require_close
from ._strict import _wall

if TYPE_CHECKING:
    from ..models import LocalModel

# Rows of the clients: none, one, few, and more than parameters.
SIZES = (12, 1, 0, 5, 9, 20, 14)
# Allowed difference of bounds of rounding, which count the rows that blocks are padded to.
SHAPES = 4.0


def check_pool(
    make_pool: Callable[..., Any],
    *,
    model: LocalModel | None = None,
    rtol: float = 1e-9,
    random_state: RandomState = 0,
) -> None:
    """Check that a pool answers every call as one of clients in this process does.

    All calls of ``skcfl.calls.CALLS``, of the pool and of those made of it: some
    of its clients, another local penalty, rows held out, folds.  Answers and what clients draw
    must be those of ``InProcessSite`` to `rtol`, as block shapes
    round differently, and the ledger must be equal.  Bounds of rounding depend on these shapes and
    may differ by a factor.  What its site is sent and answers goes through pickle.

    Parameters
    ----------
    make_pool : callable
        ``make_pool(model, X, y, codes, n_clients, sample_weight)`` returns a
        :class:`~skcfl.federation.ClientPool`: `model` is bound, `codes` are the positions of the
        rows' clients; one client has no row.
    model : LocalModel, default=None
        Local model of the clients, with second derivatives.  None is a logistic model.
    rtol : float, default=1e-9
        Allowed difference of answers, relative to the largest of them.
    random_state : int, RandomState instance or None, default=0
        Source of rows and models.

    Raises
    ------
    AssertionError
        If an answer differs; it says which.

    See Also
    --------
    StrictFederation : Fits of estimators behind the same wall.

    Examples
    --------
    >>> from skcfl.federation.inprocess import open_rows
    >>> from skcfl.models import Location
    >>> from skcfl.testing import check_pool
    >>> check_pool(open_rows, model=Location())
    """
    rng = check_random_state(random_state)
    model = LinearModel("log_loss", alpha=0.1, standardize=False) if model is None else model
    codes = rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))
    X = rng.standard_normal((len(codes), 3))
    classifier = model.estimator_type == "classifier"
    y = rng.randint(2, size=len(X)) if classifier else rng.exponential(size=len(X)) + 0.1
    y = None if model.estimator_type is None else y
    weights = rng.randint(1, 4, size=len(X)).astype(float)
    bound = model.bind(3, 2 if classifier else None)
    arguments = bound, X, y, codes, len(SIZES), weights
    made, own = make_pool(*arguments), open_rows(*arguments)
    require(isinstance(made, ClientPool), f"make_pool must return a ClientPool, got {made!r}")
    made = _wall(made)
    for pool in (made, own):
        pool.reseed(7)
    _compare_pools(made, own, rng, rtol, "the pool")
    some = np.array([5, 0, 2, 4])
    _compare_pools(made.subset(some), own.subset(some), rng, rtol, "a pool of some clients")
    if hasattr(bound, "penalised"):
        pools = made.penalised(0.7), own.penalised(0.7)
        _compare_pools(*pools, rng, rtol, "a pool with another local penalty")
    pairs = zip(made.hold_out(0.3, 3), own.hold_out(0.3, 3), strict=True)
    for pools, name in zip(pairs, ("rows to train on", "rows held out"), strict=True):
        _compare_pools(*pools, rng, rtol, name)
    folds = made.deal_folds(3, 5), own.deal_folds(3, 5)
    require(len(folds[0]) == 3, "deal_folds must return a pair of pools for each fold")
    # A fold's rows for training and another one's held-out rows say how all are dealt.
    for f, kind, rows in ((0, 0, "training"), (2, 1, "held-out")):
        pools = folds[0][f][kind], folds[1][f][kind]
        _compare_pools(*pools, rng, rtol, f"{rows} rows of fold {f}")
    again = made.subset(some).hold_out(0.3, 3)[0], own.subset(some).hold_out(0.3, 3)[0]
    _compare_pools(*again, rng, rtol, "rows of some clients to train on")


def _compare_pools(made, own, rng, rtol, where):
    """The same calls of both."""
    for name in ("n_clients", "n_params", "n_samples"):
        wanted, got = getattr(own, name), getattr(made, name)
        require(got == wanted, f"{where}: {name} must be {wanted}, got {got}")
    for name in ("client_sizes", "client_weights", "without_rows"):
        require_close(getattr(made, name), getattr(own, name), f"{where}: {name}", rtol=1e-12)
    before = [_booked(pool) for pool in (made, own)]
    require(before[0] == before[1], f"{where}: the ledgers must be equal, got {before}")
    for name, call in _calls(own, rng):
        answers = [_arrays(call(pool)) for pool in (made, own)]
        require(len(answers[0]) == len(answers[1]), f"{where}: {name} must have the same answers")
        for got, wanted in zip(*answers, strict=True):
            finite = np.abs(wanted[np.isfinite(wanted)])
            scale = finite.max() if finite.size else 0.0
            same = (got == wanted) if got.shape == wanted.shape else False
            text = f"{where}: {name} must be answered as in one process"
            if name == "rounding":
                near = (got >= wanted / SHAPES) & (got <= wanted * SHAPES)
                require(near, text, ("got", got), ("expected", wanted))
            elif not np.all(same):
                require_close(got, wanted, text, rtol=rtol, atol=rtol * scale)
        booked = [_booked(pool) for pool in (made, own)]
        require(
            booked[0] == booked[1],
            f"{where}: {name} must be booked as in one process, (calls, up, down, shared bytes, "
            f"own bytes) {booked[1]}, got {booked[0]}",
        )


def _booked(pool):
    ledger = pool.ledger
    return ledger.calls, ledger.up, ledger.down, ledger.shared_bytes, ledger.own_bytes


def _calls(pool, rng):
    """Names of calls, and functions of a pool that make them."""
    n, p = pool.n_clients, pool.n_params
    theta = 0.5 * rng.standard_normal((3, p))
    w, v, s = 0.5 * rng.standard_normal((3, n, p))
    labels = rng.randint(3, size=n)
    fixed = np.where(rng.uniform(size=n) < 0.5, labels, -1)
    rho = rng.uniform(0.1, 1.0, n)
    steps = rng.randint(1, 5, n)
    yield _asks("present")
    yield _asks("losses", theta)
    yield _asks("losses", theta, n_shared=1)
    yield _asks("best_response", theta)
    yield _asks("best_response", theta, fixed)
    yield _asks("objectives", w)
    yield _asks("own_losses", w)
    yield _asks("objectives_gradients", w)
    yield _asks("local_update", w, steps, 0.1)
    yield _asks("local_update", w, 3, 0.1, center=v, rho=rho)
    yield _asks("local_update", w, 3, 5.0, monotone=True)
    for optimizer in ("sgd", "momentum", "adam"):
        _, ask = _asks("local_update", w, 4, 0.05, optimizer, 4)
        yield f"local_update by batches, {optimizer}", ask
    yield _asks("local_centres", 2)
    for n_vectors, n_columns, by_class in ((2, 4, True), (3, 3, False)):
        yield (
            "subspaces",  # the signs of their vectors are arbitrary
            lambda pool, ask=(n_vectors, n_columns, by_class): np.abs(pool.ask(Subspaces, *ask)),
        )
    yield _asks("fingerprints", 11)
    yield "local_update from the clients' last answers", _go_on
    yield from _personal_calls(pool, w, v, rho)
    if pool.model.mixes:
        shares = rng.dirichlet(np.ones(3), n)
        yield _asks("mixture", theta, shares, 0.7)
        how = shares, 0.7, 3, 0.1, "adam"
        yield _asks("mixture_update", theta, *how)
        yield _asks("mixture_update", theta, *how, 4)
    if not pool.can_answer("solve"):
        return
    if pool.model.mixes:
        yield _asks("mixture_sums", theta, shares, 0.7)
    together = np.zeros(n, dtype=np.intp)
    yield _asks("hessians", theta[:1], together)
    yield _asks("hessians", theta[:1], together, damping=0.5)
    yield _asks("hessian_products", theta, theta[::-1], labels)
    yield _asks("hessian_diagonals", theta, labels)
    ends = theta, theta[::-1], labels, rho[:3]
    yield _asks("hessian_solves", *ends)
    errors = np.tile(0.1 * np.eye(p), (3, 1, 1))
    yield _asks("errors_of_models", theta, errors, np.eye(3)[labels], 0.1 * np.eye(p))
    yield _asks("solve")
    yield _asks("prox", v, rho)
    yield _asks("conjugate", 0.1 * s)
    few = np.arange(n)[::-2]
    yield "what clients have answered last", lambda pool: _stay(pool, v, rho, s, few)
    yield _asks("rounding", w)
    box = np.full((1, p), 1e-3)
    yield "rounding", lambda pool: pool.ask(Enclosures, theta[:1], together, box, False)[0]
    yield "enclosures", lambda pool: pool.ask(Enclosures, theta[:1], together, box, False)[1:]
    yield "spectrum", lambda pool: pool.spectrum()
    if not getattr(pool.model, "is_likelihood", False):
        return
    yield from _tree_calls(pool.model, theta[:1], rho.mean() * np.ones(p))
    if pool.model.n_outputs == 1:
        root, known = np.tril(np.full((p, p), 0.3)), (np.arange(p) / p, 0.1 * np.eye(p), 0.7)
        none = root, np.ones(1)  # one grouping inside the clients, no levels
        yield _asks("level_sums", *none, p + 1)
        yield _asks("level_slopes", *none, *known)
        yield _asks("nested_effects", *none, known[0], 1)
        z = np.zeros((1, 1))
        if pool.model.describe_loss().curvature_slope(z, z) is not None:
            at = *none, known[0]
            yield _asks("level_modes", *at)
            yield _asks("level_leverages", *at, known[1])
            moved = *at, known[1], 0.1 * known[0]
            yield _asks("level_mode_slopes", *moved)
            yield _asks("nested_modes", *at, 1)
    shares = np.array([0.5, 0.3, 0.2])
    for root in (rho.mean() * np.ones(p), np.tril(np.full((p, p), 0.3))):
        prior = theta, root, shares, 0.7, 3.0 if pool.model.quadratic else np.inf
        for dense in (True, False)[: 1 + (root.ndim == 1)]:
            yield "posterior_sums", lambda pool, p=prior, d=dense: _sums(pool, p, d)
        for dense in (False, True):
            yield _asks("posteriors", *prior, dense=dense)
    errors = np.tile(np.eye(p) + 0.5, (3, 1, 1))
    for dense in (True, False):
        yield _asks("posteriors", *prior, errors, dense=dense)
    roots, sizes = np.full((3, p), rho.mean()), np.array([0.7, 1.0, 1.3])
    known = theta, roots, sizes, shares
    yield _asks("left_out_sums", *known)
    roots = np.tril(np.full((p, p), 0.3)) * np.ones((3, 1, 1))
    known = theta, roots, sizes, shares, errors
    yield _asks("left_out_sums", *known)
    vectors = np.stack([theta, theta[::-1]], axis=1)
    diagonal = theta, rho.mean() * np.ones(p), shares, 0.7, np.inf
    yield _asks("posterior_products", *diagonal, vectors)
    yield _asks("least_losses")
    yield _asks("feature_sums", labels == 1)
    for within in (False, True)[: 1 + bool(pool.model.fit_intercept)]:
        about = {"within": within, "frame": _shifted(pool.model.n_columns) if within else None}
        yield _asks("score_sums", theta, labels, **about)
        # Leverages stay below 1.
        inverse, moves = np.tile(1e-3 * np.eye(p), (3, 1, 1)), np.tile(v[0, :, None], (3, 1, 8))
        about |= {"n_draws": 7, "normal": within and pool.model.quadratic}
        for m in (None, moves):
            yield _asks("score_draws", theta, labels, inverse, m, **about)


def _shifted(n_columns):
    """What adds a quarter to all features."""
    frame = np.eye(n_columns)
    frame[-1, :-1] = 0.25
    return frame


def _asks(name, *args, **more):
    """A call by name, and a function of a pool that makes it."""
    return name, lambda pool: pool.ask(CALLS[name], *args, **more)


def _tree_calls(model, theta, root):
    """Calls about trees, of all targets and beside other trees."""
    C, curved = model.n_outputs, not model.quadratic
    tree = np.array([[-1, 0, 0, 0.5, 0], [0, 1, 0.1, -0.2, 0]], dtype=float)
    trees, cuts = np.array([tree] * (C + 1)), np.array([[-0.5, 0.0, 0.7]] * model.n_features)
    known = theta, root, 0.7, trees, C - 1
    yield _asks("split_sums", *known, np.arange(2.0), 1, curved)
    yield _asks("leaf_sums", *known, 2)
    asked = *known, np.arange(2.0), 4, curved
    grown = "without_trees", trees[:C], cuts
    yield "split_sums", lambda pool: pool.without_effects(*grown).ask(SplitSums, *asked)


def _sums(pool, prior, dense):
    return tuple(pool.ask(PosteriorSums, *prior, dense=dense).values())


def _go_on(pool):
    """Training in two calls, with models kept by the clients, some of them in subsets."""
    w = np.tile(pool.start(), (pool.n_clients, 1))
    w = pool.ask(LocalUpdate, w, 2, 0.1, later=True)
    some = np.arange(pool.n_clients)[1:]
    w[some] = pool.subset(some).ask(LocalUpdate, w[some], 2, 0.1, last=True)
    return w, pool.ask(Objectives, w, last=True)


def _stay(pool, v, rho, s, few):
    """Single steps from the clients' last answers, all or some of them."""
    x = pool.ask(Prox, v, rho, max_iter=1)
    x[few] = pool.subset(few).ask(Prox, v[few], rho[few], x0=x[few], max_iter=1)
    x = pool.ask(Prox, v, rho, x0=x, max_iter=1)
    return x, pool.ask(Conjugate, 0.1 * s, x0=x), pool.ask(Prox, v, rho, x0=x + 1.0, max_iter=1)


def _personal_calls(pool, w, v, rho):
    """Calls about models that clients keep between calls."""
    theta, labels = 0.2 * w[:3], np.arange(pool.n_clients) % 3
    yield _asks("cluster_values", theta, labels)
    yield _asks("gradient_sums", theta, labels)
    yield _asks("best_response_sums", theta)
    about = theta, labels, 3, 0.1
    yield _asks("trained_moves", *about, "adam", 4)
    yield _asks("trained_moves", *about, monotone=True, weights=rho)
    yield _asks("nearest_moves", theta, labels - 1, 3, 0.1)
    yield _asks("meta_moves", *about, 0.2, "sgd", 4)
    yield _asks("moreau_moves", *about, 0.5, 1.5, 2)
    if pool.can_answer("solve"):
        yield _asks("proximal_moves", theta, labels, 0.5, 1.0, 2)
    yield _asks("moreau_update", w, 3, 0.1, 0.5, 1.5, 2)
    yield _asks("meta_update", w, 2, 0.1, 0.2, "sgd", 4)
    yield "recall before anything is kept", lambda pool: pool.ask(Recall, w)
    yield _asks("keep", v)
    yield "recall", lambda pool: pool.ask(Objectives, pool.ask(Recall, w), last=True)
    some = np.arange(pool.n_params) % 2 == 0
    if some.all():
        return
    stages = [(2, some), (3, ~some)]
    yield _asks("partial_update", v[:, some], some, stages, 0.1, "adam", 4)
    mine = (0.2 * w[:3, some], labels, some, stages, 0.1)
    yield _asks("partial_moves", *mine, batch_size=4)
    yield _asks("blended_update", v, some, 2, 0.1, tol=1e-3)
    yield _asks("blended_moves", theta, labels, some, 2, 0.1)
    yield "recall after blending", lambda pool: pool.ask(Recall, w)
    if pool.model.estimator_type == "classifier" and pool.model.n_representation:
        points = v[:1, : pool.model.n_representation].repeat(pool.model.n_classes, axis=0)
        yield _asks("class_statistics", w)
        yield _asks("prototype_update", points, 1.0, 2, 0.1)


def _arrays(answer):
    """Answers as a list of arrays of numbers."""
    answer = answer if isinstance(answer, tuple) else (answer,)
    return [np.asarray(part, dtype=float) for part in answer if part is not None]
