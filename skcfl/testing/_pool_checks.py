"""Checks that a pool with clients elsewhere equals the pool of clients of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_random_state

from .._typing import RandomState
from ..calls.curvatures import HessianProducts, Hessians, HessianSolves, Prox, Solve
from ..calls.descriptions import ClassStatistics, Fingerprints, LocalCentres, Subspaces
from ..calls.differences_asked import ScoreDraws, ScoreSums
from ..calls.first_order import (
    BestResponse,
    LocalUpdate,
    Losses,
    MetaUpdate,
    MoreauUpdate,
    Objectives,
    ObjectivesGradients,
    OwnLosses,
    Present,
)
from ..calls.kept_models import (
    BlendedMoves,
    BlendedUpdate,
    Keep,
    PartialMoves,
    PartialUpdate,
    PersonalStep,
    PrototypeUpdate,
    Recall,
)
from ..calls.level_modes_asked import LevelLeverages, LevelModes, LevelModeSlopes, NestedModes
from ..calls.levels_asked import LevelSlopes, LevelSums, NestedEffects
from ..calls.mixtures_asked import Mixture, MixtureSums, MixtureUpdate
from ..calls.posteriors_asked import LeftOutSums, PosteriorProducts, Posteriors, PosteriorSums
from ..calls.proofs_asked import Conjugate, Enclosures, Rounding
from ..calls.summed import (
    BestResponseSums,
    ClusterValues,
    GradientSums,
    MetaMoves,
    MoreauMoves,
    NearestMoves,
    ProximalMoves,
    TrainedMoves,
)
from ..calls.trees_asked import LeafSums, SplitSums
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
    >>> from skcfl.testing import check_pool
    >>> check_pool(open_rows)
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
    yield "present", lambda pool: pool.ask(Present)
    yield "losses", lambda pool: pool.ask(Losses, theta)
    yield "losses", lambda pool: pool.ask(Losses, theta, n_shared=1)
    yield "best_response", lambda pool: pool.ask(BestResponse, theta)
    yield "best_response", lambda pool: pool.ask(BestResponse, theta, fixed)
    yield "objectives", lambda pool: pool.ask(Objectives, w)
    yield "own_losses", lambda pool: pool.ask(OwnLosses, w)
    yield "objectives_gradients", lambda pool: pool.ask(ObjectivesGradients, w)
    yield "local_update", lambda pool: pool.ask(LocalUpdate, w, steps, 0.1)
    yield "local_update", lambda pool: pool.ask(LocalUpdate, w, 3, 0.1, center=v, rho=rho)
    yield "local_update", lambda pool: pool.ask(LocalUpdate, w, 3, 5.0, monotone=True)
    for optimizer in ("sgd", "momentum", "adam"):
        yield (
            f"local_update by batches, {optimizer}",
            lambda pool, optimizer=optimizer: pool.ask(LocalUpdate, w, 4, 0.05, optimizer, 4),
        )
    yield "local_centres", lambda pool: pool.ask(LocalCentres, 2)
    for n_vectors, n_columns, by_class in ((2, 4, True), (3, 3, False)):
        yield (
            "subspaces",  # the signs of their vectors are arbitrary
            lambda pool, ask=(n_vectors, n_columns, by_class): np.abs(pool.ask(Subspaces, *ask)),
        )
    yield "fingerprints", lambda pool: pool.ask(Fingerprints, 11)
    yield "local_update from the clients' last answers", _go_on
    yield from _personal_calls(pool, w, v, rho)
    if pool.model.mixes:
        shares = rng.dirichlet(np.ones(3), n)
        yield "mixture", lambda pool: pool.ask(Mixture, theta, shares, 0.7)
        how = shares, 0.7, 3, 0.1, "adam"
        yield "mixture_update", lambda pool: pool.ask(MixtureUpdate, theta, *how)
        yield "mixture_update", lambda pool: pool.ask(MixtureUpdate, theta, *how, 4)
    if not pool.can_answer("solve"):
        return
    if pool.model.mixes:
        yield "mixture_sums", lambda pool: pool.ask(MixtureSums, theta, shares, 0.7)
    together = np.zeros(n, dtype=np.intp)
    yield "hessians", lambda pool: pool.ask(Hessians, theta[:1], together)
    yield "hessians", lambda pool: pool.ask(Hessians, theta[:1], together, damping=0.5)
    yield "hessian_products", lambda pool: pool.ask(HessianProducts, theta, theta[::-1], labels)
    ends = theta, theta[::-1], labels, rho[:3]
    yield "hessian_solves", lambda pool: pool.ask(HessianSolves, *ends)
    yield "solve", lambda pool: pool.ask(Solve)
    yield "prox", lambda pool: pool.ask(Prox, v, rho)
    yield "conjugate", lambda pool: pool.ask(Conjugate, 0.1 * s)
    few = np.arange(n)[::-2]
    yield "what clients have answered last", lambda pool: _stay(pool, v, rho, s, few)
    yield "rounding", lambda pool: pool.ask(Rounding, w)
    box = np.full((1, p), 1e-3)
    yield "rounding", lambda pool: pool.ask(Enclosures, theta[:1], together, box, False)[0]
    yield "enclosures", lambda pool: pool.ask(Enclosures, theta[:1], together, box, False)[1:]
    yield "spectrum", lambda pool: pool.spectrum()
    if not getattr(pool.model, "is_likelihood", False):
        return
    if pool.model.n_outputs == 1:
        root, known = np.tril(np.full((p, p), 0.3)), (np.arange(p) / p, 0.1 * np.eye(p), 0.7)
        none = root, np.ones(1)  # one grouping inside the clients, no levels
        yield "level_sums", lambda pool: pool.ask(LevelSums, *none, p + 1)
        yield "level_slopes", lambda pool: pool.ask(LevelSlopes, *none, *known)
        yield "nested_effects", lambda pool: pool.ask(NestedEffects, *none, known[0], 1)
        yield from _tree_calls(theta[:1], rho.mean() * np.ones(p))
        z = np.zeros((1, 1))
        if pool.model.describe_loss().curvature_slope(z, z) is not None:
            at = *none, known[0]
            yield "level_modes", lambda pool: pool.ask(LevelModes, *at)
            yield "level_leverages", lambda pool: pool.ask(LevelLeverages, *at, known[1])
            moved = *at, known[1], 0.1 * known[0]
            yield "level_mode_slopes", lambda pool: pool.ask(LevelModeSlopes, *moved)
            yield "nested_modes", lambda pool: pool.ask(NestedModes, *at, 1)
    shares = np.array([0.5, 0.3, 0.2])
    for root in (rho.mean() * np.ones(p), np.tril(np.full((p, p), 0.3))):
        prior = theta, root, shares, 0.7, 3.0 if pool.model.quadratic else np.inf
        for dense in (True, False)[: 1 + (root.ndim == 1)]:
            yield "posterior_sums", lambda pool, p=prior, d=dense: _sums(pool, p, d)
        for dense in (False, True):
            yield "posteriors", lambda pool, p=prior, d=dense: pool.ask(Posteriors, *p, dense=d)
    errors = np.tile(np.eye(p) + 0.5, (3, 1, 1))
    for dense in (True, False):
        yield "posteriors", lambda pool, d=dense: pool.ask(Posteriors, *prior, errors, dense=d)
    roots, sizes = np.full((3, p), rho.mean()), np.array([0.7, 1.0, 1.3])
    known = theta, roots, sizes, shares
    yield "left_out_sums", lambda pool, k=known: pool.ask(LeftOutSums, *k)
    roots = np.tril(np.full((p, p), 0.3)) * np.ones((3, 1, 1))
    known = theta, roots, sizes, shares, errors
    yield "left_out_sums", lambda pool, k=known: pool.ask(LeftOutSums, *k)
    vectors = np.stack([theta, theta[::-1]], axis=1)
    diagonal = theta, rho.mean() * np.ones(p), shares, 0.7, np.inf
    yield "posterior_products", lambda pool: pool.ask(PosteriorProducts, *diagonal, vectors)
    for within in (False, True)[: 1 + bool(pool.model.fit_intercept)]:
        yield "score_sums", lambda pool, w=within: pool.ask(ScoreSums, theta, labels, within=w)
        inverse, moves = np.tile(np.eye(p), (3, 1, 1)), np.tile(v[0, :, None], (3, 1, 8))
        about = {"within": within, "n_draws": 7, "normal": within and pool.model.quadratic}
        for m in (None, moves):
            known = theta, labels, inverse, m
            yield (
                "score_draws",
                lambda pool, known=known, about=about: pool.ask(ScoreDraws, *known, **about),
            )


def _tree_calls(theta, root):
    """Calls about trees, of all targets and of what a tree leaves of them."""
    trees = np.array([[[-1, 0, 0, 0.5, 0], [0, 1, 0.1, -0.2, 0]]], dtype=float)
    cuts = np.array([[-0.5, 0.0, 0.7]] * 3)
    known = theta, root, 0.7, np.concatenate([trees, trees])
    yield "split_sums", lambda pool: pool.ask(SplitSums, *known, np.arange(2.0), 1)
    yield "leaf_sums", lambda pool: pool.ask(LeafSums, *known, 2)
    asked = *known, np.arange(2.0), 4
    grown = "without_trees", trees, cuts
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
    yield "cluster_values", lambda pool: pool.ask(ClusterValues, theta, labels)
    yield "gradient_sums", lambda pool: pool.ask(GradientSums, theta, labels)
    yield "best_response_sums", lambda pool: pool.ask(BestResponseSums, theta)
    about = theta, labels, 3, 0.1
    yield "trained_moves", lambda pool: pool.ask(TrainedMoves, *about, "adam", 4)
    yield "trained_moves", lambda pool: pool.ask(TrainedMoves, *about, monotone=True, weights=rho)
    yield "nearest_moves", lambda pool: pool.ask(NearestMoves, theta, labels - 1, 3, 0.1)
    yield "meta_moves", lambda pool: pool.ask(MetaMoves, *about, 0.2, "sgd", 4)
    yield "moreau_moves", lambda pool: pool.ask(MoreauMoves, *about, 0.5, 1.5, 2)
    if pool.can_answer("solve"):
        yield "proximal_moves", lambda pool: pool.ask(ProximalMoves, theta, labels, 0.5, 1.0, 2)
    yield "moreau_update", lambda pool: pool.ask(MoreauUpdate, w, 3, 0.1, 0.5, 1.5, 2)
    yield "meta_update", lambda pool: pool.ask(MetaUpdate, w, 2, 0.1, 0.2, "sgd", 4)
    yield "recall before anything is kept", lambda pool: pool.ask(Recall, w)
    yield "personal_step", lambda pool: pool.ask(PersonalStep, v, 2, 0.1, 0.3)
    yield "recall", lambda pool: pool.ask(Objectives, pool.ask(Recall, w), last=True)
    yield "keep", lambda pool: pool.ask(Keep, w)
    some = np.arange(pool.n_params) % 2 == 0
    if some.all():
        return
    stages = [(2, some), (3, ~some)]
    yield (
        "partial_update",
        lambda pool: pool.ask(PartialUpdate, v[:, some], some, stages, 0.1, "adam", 4),
    )
    mine = (0.2 * w[:3, some], labels, some, stages, 0.1)
    yield "partial_moves", lambda pool: pool.ask(PartialMoves, *mine, batch_size=4)
    yield "blended_update", lambda pool: pool.ask(BlendedUpdate, v, some, 2, 0.1, tol=1e-3)
    yield "blended_moves", lambda pool: pool.ask(BlendedMoves, theta, labels, some, 2, 0.1)
    yield "recall after blending", lambda pool: pool.ask(Recall, w)
    if pool.model.estimator_type == "classifier" and pool.model.n_representation:
        points = v[:1, : pool.model.n_representation].repeat(pool.model.n_classes, axis=0)
        yield "class_statistics", lambda pool: pool.ask(ClassStatistics, w)
        yield "prototype_update", lambda pool: pool.ask(PrototypeUpdate, points, 1.0, 2, 0.1)


def _arrays(answer):
    """Answers as a list of arrays of numbers."""
    answer = answer if isinstance(answer, tuple) else (answer,)
    return [np.asarray(part, dtype=float) for part in answer if part is not None]
