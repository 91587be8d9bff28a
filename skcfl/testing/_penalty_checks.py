"""True if a penalty is what the fusion problems take it for."""

from __future__ import annotations

import numpy as np
from sklearn.utils import check_random_state

from .._checks import Count
from .._typing import RandomState, validate_params
from ..penalties import Penalty
from ._comparing import require, require_close, sent

# Lengths of differences, in units of the penalty's own where it has some.
SIZES = (1e-3, 0.1, 1.0, 10.0)


@validate_params(
    {
        "penalty": [Penalty],
        "n_params": [Count(1, 10**6)],
        "n_edges": [Count(2, 10**6)],
        "random_state": ["random_state"],
    }
)
def check_penalty(
    penalty: Penalty, *, n_params: int = 3, n_edges: int = 20, random_state: RandomState = 0
) -> None:
    """Check that a penalty is what the solvers and the proofs take it for.

    That the prox is the minimiser; Moreau's decomposition; that value and conjugate meet Fenchel's
    inequality, with equality at prox and projection; of a norm, that it is one, that its dual norm
    is the largest inner product, and projections are in its ball; that a penalty which fuses takes
    whole differences to exactly zero; signs and the order of edges, shapes, pickling, and that
    arguments are not changed.

    Parameters
    ----------
    penalty : Penalty
        The penalty.
    n_params : int, default=3
        Length of a difference.
    n_edges : int, default=20
        How many differences of each size are drawn.
    random_state : int, RandomState instance or None, default=0
        Source of differences and scales.

    Raises
    ------
    AssertionError
        If something does not hold; it says what, and where.
    ValueError
        If the penalty is no object of :class:`~skcfl.penalties.Penalty`, or a number is not valid.

    See Also
    --------
    skcfl.penalties.Penalty : What a penalty has to have.

    Examples
    --------
    >>> from skcfl.penalties import L1, SCAD
    >>> from skcfl.testing import check_penalty
    >>> check_penalty(L1())
    >>> check_penalty(SCAD(0.5))

    A prox that shrinks too much:

    >>> class Wrong(L1):
    ...     def prox(self, Z, t):
    ...         return super().prox(Z, 2.0 * t)
    >>> check_penalty(Wrong())
    Traceback (most recent call last):
        ...
    AssertionError: Wrong(): prox is not the minimiser of ...
    """
    rng = check_random_state(random_state)
    unit = 1.0 if penalty.convex else penalty.lam
    for size in SIZES:
        Z = rng.standard_normal((n_params, n_edges)) * size * unit
        Z[:, 0] = 0.0
        Z[1:, 1] = 0.0
        t = rng.uniform(0.05, 0.95, n_edges)
        # Concave penalties have one minimiser below the inverse of their concavity only.
        t *= size * unit if penalty.convex else 1.0 / penalty.concavity
        case = _Case(penalty, Z, t, rng)
        _check_forms(case)
        _check_prox(case)
        _check_fenchel(case)
        if hasattr(penalty, "gradient"):
            _check_gradient(case)
        if penalty.norm:
            _check_norm(case)
    if penalty.fuses:
        Z = rng.standard_normal((n_params, n_edges))
        Z[:, 1:] *= 1e-3
        require(
            not penalty.prox(Z, 100.0 * (1.0 + np.abs(Z).max())).any(),
            f"{penalty!r}: a penalty that fuses must take whole differences to exactly zero",
        )


class _Case:
    def __init__(self, penalty, Z, t, rng):
        self.penalty, self.Z, self.t, self.rng = penalty, Z, t, rng

    def says(self, text):
        return f"{self.penalty!r}: {text}"

    def objective(self, Y):
        """Objective of the prox, and the size of its terms."""
        value = self.t * self.penalty.value(Y)
        return value + 0.5 * _inner(Y - self.Z, Y - self.Z)

    @property
    def size(self):
        return np.abs(self.objective(self.Z)) + _inner(self.Z, self.Z) + 1e-300


def _inner(A, B):
    return np.einsum("d...,d...->...", A, B)


def _check_forms(case):
    penalty, Z, t, says = case.penalty, case.Z, case.t, case.says
    kept = Z.copy(), t.copy()
    value, prox, project = penalty.value(Z), penalty.prox(Z, t), penalty.project(Z, t)
    conjugate = penalty.conjugate(project, t)
    require((Z == kept[0]).all() and (t == kept[1]).all(), says("arguments must not be changed"))
    require(value.shape == t.shape, says("value must have a number for each edge"))
    require(conjugate.shape == t.shape, says("conjugate must have a number for each edge"))
    require(prox.shape == Z.shape, says("prox must have the shape of the differences"))
    require(np.isfinite(value) & (value >= 0), says("values must be finite and not negative"))
    text = says("the order of two clients must not matter, nor the sign of their difference")
    require_close(penalty.value(-Z), value, text, rtol=1e-12)
    require_close(penalty.prox(-Z, t), -prox, text, rtol=1e-12)
    text = says("an edge's {} must not depend on other edges")
    for e in (0, 1, len(t) - 1):
        one = Z[:, e], float(t[e])
        require_close(penalty.value(one[0]), value[e], text.format("value"), rtol=1e-12)
        scale = 1e-12 * np.abs(Z).max()
        require_close(penalty.prox(*one), prox[:, e], text.format("prox"), rtol=1e-12, atol=scale)
    tiles = Z.reshape(len(Z), -1, 2), t.reshape(-1, 2)
    text = says("edges may have any shape")
    scale = 1e-12 * np.abs(Z).max()
    require_close(penalty.prox(*tiles).reshape(Z.shape), prox, text, rtol=1e-12, atol=scale)
    copied = sent(penalty)
    require_close(copied.value(Z), value, says("a pickled copy must be the same"), rtol=0)


def _check_prox(case):
    """Any other point is worse: by half its squared distance if the penalty is convex."""
    penalty, Z, t, says = case.penalty, case.Z, case.t, case.says
    P = penalty.prox(Z, t)
    best = case.objective(P)
    share = 0.5 if penalty.convex else 0.5 * (1.0 - t * penalty.concavity)
    length = np.sqrt(_inner(Z, Z)) + np.sqrt(_inner(P, P)) + 1e-3 * np.abs(Z).max()
    for reach in (1e-4, 1e-2, 1.0, 10.0):
        for _ in range(8):
            move = case.rng.standard_normal(P.shape) * reach * length
            excess = case.objective(P + move) - best - share * _inner(move, move)
            scale = case.size + _inner(move, move) + np.abs(best)
            text = says("prox is not the minimiser of t phi(Y) + |Y - Z|^2 / 2")
            require(excess >= -1e-10 * scale, text, ("t", t), ("excess", excess))
    for Y in (Z, 0.0 * Z, 0.5 * (Z + P)):
        move = Y - P
        excess = case.objective(Y) - best - share * _inner(move, move)
        text = says("prox is not the minimiser of t phi(Y) + |Y - Z|^2 / 2")
        require(excess >= -1e-10 * case.size, text, ("t", t), ("excess", excess))
    text = says("a scale of 0 must change nothing")
    require_close(penalty.prox(Z, 0.0), Z, text, rtol=1e-12, atol=1e-14 * np.abs(Z).max())


def _check_fenchel(case):
    penalty, Z, t, says = case.penalty, case.Z, case.t, case.says
    P, U = penalty.prox(Z, t), penalty.project(Z, t)
    scale = np.abs(Z).max()
    text = says("prox and project must add up to the difference (Moreau)")
    require_close(P + U, Z, text, rtol=1e-12, atol=1e-12 * scale)
    if penalty.convex:
        gap = t * penalty.value(P) + penalty.conjugate(U, t) - _inner(U, P)
        text = says("value and conjugate must meet Fenchel's inequality with equality at the prox")
        require(np.abs(gap) <= 1e-9 * case.size, text, ("gap", gap), ("t", t))
    for slopes in (U, 0.0 * U, 0.5 * U, case.rng.standard_normal(U.shape) * (scale + 1e-300)):
        bound = penalty.conjugate(slopes, t)
        for Y in (Z, P, 10.0 * Z, case.rng.standard_normal(Z.shape) * scale):
            gap = t * penalty.value(Y) + bound - _inner(slopes, Y)
            size = 1e-300 + np.abs(t * penalty.value(Y)) + np.abs(_inner(slopes, Y))
            require(gap >= -1e-9 * size, says("Fenchel's inequality"), ("gap", gap), ("t", t))


def _check_gradient(case):
    penalty, Z, says = case.penalty, case.Z, case.says
    gradient = penalty.gradient(Z)
    direction = case.rng.standard_normal(Z.shape)
    h = 1e-6 * (np.abs(Z).max() + 1e-300)
    slope = (penalty.value(Z + h * direction) - penalty.value(Z - h * direction)) / (2 * h)
    size = np.abs(slope) + np.sqrt(_inner(gradient, gradient)) * np.sqrt(len(Z))
    size += 1e-9 * np.abs(penalty.value(Z)) / h
    bend = getattr(penalty, "curvature", 0.0) * h * _inner(direction, direction)
    near = np.abs(slope - _inner(gradient, direction)) <= 1e-4 * size + bend
    text = says("gradient is not the derivative of value")
    require(near, text, ("got", _inner(gradient, direction)), ("expected", slope))


def _check_norm(case):
    penalty, Z, t, says = case.penalty, case.Z, case.t, case.says
    value = penalty.value(Z)
    require_close(penalty.value(2.5 * Z), 2.5 * value, says("a norm is homogeneous"), rtol=1e-12)
    shuffled = Z[:, case.rng.permutation(Z.shape[1])]
    triangle = penalty.value(Z + shuffled) <= (value + penalty.value(shuffled)) * (1 + 1e-12)
    require(triangle, says("a norm meets the triangle inequality"))
    require((value > 0) == Z.any(axis=0), says("a norm is positive but at zero"))
    U = penalty.project(Z, t)
    dual = penalty.dual_norm(U)
    text = says("projections must be in the ball of radius t of the dual norm")
    require(dual <= t * (1 + 1e-12), text, ("dual norm", dual), ("t", t))
    within = penalty.dual_norm(Z) <= t
    text = says("the prox of differences in the ball of the dual norm must be exactly zero")
    require(~penalty.prox(Z, t).any(axis=0) | ~within, text)
    require_close(penalty.conjugate(U, t), 0.0 * t, says("the conjugate is 0 in the ball"))
    outside = penalty.conjugate(U * (1.0 + t / np.maximum(dual, 1e-300)), t)
    require(np.isinf(outside) | ~U.any(axis=0), says("and infinite outside of it"))
    # The largest <u, z> over the unit ball is the dual norm, which the prox attains.
    for _ in range(10):
        Y = case.rng.standard_normal(Z.shape)
        most = penalty.dual_norm(Z) * penalty.value(Y)
        bounded = _inner(Z, Y) <= most * (1 + 1e-12) + 1e-300
        require(bounded, says("the dual norm must bound inner products"))
    P = penalty.prox(Z, t)
    attained = np.isclose(_inner(U, P), t * penalty.value(P), rtol=1e-9, atol=1e-12 * case.size)
    require(attained, says("the dual norm must be attained"))
