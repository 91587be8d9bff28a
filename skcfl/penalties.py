r"""Penalties of the differences between clients' models.

The fusion problems are ``sum_i f_i(x_i) + lam sum_e w_e phi(x_i - x_j)`` over the edges of a
graph, each edge once.  A penalty object is the function ``phi``; ``lam`` and the weights come
from the problem.

Differences are arrays ``Z`` of shape ``(d, ...)``: coordinates first, then edges in any
shape; scales ``t`` broadcast against the edges.  Methods do not change their arguments.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from ._checks import LEAST, MOST, real_array, real_number
from ._option_objects import DocLinkMixin, parameters
from ._typing import Array, ArrayLike

__all__ = ["L1", "L2", "MCP", "SCAD", "ConcavePenalty", "Penalty", "SquaredL2"]

# The smoothed part of a concave penalty, where it is not given, as a fraction of lam.
SMOOTHING = 1e-3


class Penalty(DocLinkMixin, BaseEstimator, metaclass=ABCMeta):
    """Base of the penalties; to add one, implement these methods.

    Attributes
    ----------
    fuses : bool
        True if the penalty makes whole differences exactly zero, so that clients with equal models
        form clusters.
    norm : bool
        True if it is a norm: its conjugate is then 0 on the ball of the dual norm.
    convex : bool
        True if it is convex, so that fusion problems have a dual.
    """

    fuses = False
    norm = False
    convex = True

    @abstractmethod
    def value(self, Z: Array) -> Array:
        """``phi`` of every edge: (d, ...) -> (...)."""

    @abstractmethod
    def prox(self, Z: Array, t: float | Array) -> Array:
        """``argmin_Y t phi(Y) + |Y - Z|^2 / 2`` of every edge."""

    @abstractmethod
    def conjugate(self, U: Array, t: float | Array) -> Array:
        """Conjugate of ``t phi`` at `U`, of every edge; infinite outside of its domain."""

    def project(self, Z: Array, t: float | Array) -> Array:
        """``Z - prox(Z, t)``: the dual part of Moreau's decomposition.

        For a norm, the projection onto the ball of radius `t` of the dual norm.
        """
        Z = _differences(Z)
        return Z - self.prox(Z, t)


class _Norm(Penalty):
    """Base of the norms: slopes are projected to a ball of the dual norm."""

    norm = True

    @abstractmethod
    def dual_norm(self, U: Array) -> Array:
        """Dual norm of every edge."""

    @abstractmethod
    def project(self, Z: Array, t: float | Array) -> Array:
        """The nearest point to each difference with a dual norm of `t` at most."""

    def prox(self, Z: Array, t: float | Array) -> Array:
        """Shorten every difference, or entry of one, by `t`, down to zero."""
        Z = _differences(Z)
        return Z - self.project(Z, t)

    def conjugate(self, U: Array, t: float | Array) -> Array:
        """0 where the dual norm is `t` at most, else infinite."""
        t = _scales(t)
        return np.where(self.dual_norm(U) <= t * (1 + 1e-12), 0.0, np.inf)


class L2(_Norm):
    """Euclidean norm: sum-of-norms fusion, the network lasso.

    Fuses whole models: the prox takes a difference shorter than `t` to zero.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.penalties import L2
    >>> L2().prox(np.array([[3.0, 0.3], [4.0, 0.4]]), 1.0)
    array([[2.4, 0. ],
           [3.2, 0. ]])
    """

    fuses = True

    def value(self, Z: Array) -> Array:
        """``|z|`` of every edge."""
        return _length(Z)

    def dual_norm(self, U: Array) -> Array:
        """``|u|`` of every edge."""
        return self.value(U)

    def project(self, Z: Array, t: float | Array) -> Array:
        """Shorten every vector to length `t` at most."""
        Z, t = _differences(Z), _scales(t)
        r = self.value(Z)
        return Z * np.divide(t, r, out=np.ones_like(r), where=r > t)


class L1(_Norm):
    """Sum of absolute values: fuses single coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.penalties import L1
    >>> L1().prox(np.array([[3.0], [0.5]]), 1.0)
    array([[2.],
           [0.]])
    """

    def value(self, Z: Array) -> Array:
        """``|z|_1`` of every edge."""
        return np.abs(_differences(Z)).sum(axis=0)

    def dual_norm(self, U: Array) -> Array:
        """Largest entry of every edge, in absolute value."""
        return np.abs(_differences(U, "U")).max(axis=0)

    def project(self, Z: Array, t: float | Array) -> Array:
        """Clip every entry to ``[-t, t]``."""
        t = _scales(t)
        return np.clip(_differences(Z), -t, t)


class SquaredL2(Penalty):
    r"""Half the squared norm, ``z' Q z / 2``: multi-task learning by mean regularisation, MOCHA.

    Does not fuse: differences shrink but none is zero.

    Parameters
    ----------
    Q : array-like of shape (d, d) or None, default=None
        Symmetric positive definite matrix; None is the identity.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.penalties import SquaredL2
    >>> SquaredL2().prox(np.array([[3.0], [4.0]]), 1.0)
    array([[1.5],
           [2. ]])
    """

    def __init__(self, Q: ArrayLike | None = None) -> None:
        self.Q = Q

    def _spectrum(self, d: int) -> tuple[Array, Array] | None:
        """Eigenvalues and eigenvectors of Q; None for the identity."""
        if self.Q is None:
            return None
        Q = real_array(self.Q, "Q")
        if Q.shape != (d, d) or not np.allclose(Q, Q.T):
            raise ValueError(
                f"Q must be a symmetric matrix of shape ({d}, {d}), one row a parameter, got "
                f"shape {Q.shape}."
            )
        values, vectors = np.linalg.eigh(Q)
        if values[0] <= 0:
            raise ValueError(
                f"Q must be positive definite, got a smallest eigenvalue of {values[0]:.3g}."
            )
        return values, vectors

    def _apply(self, Z: Array, function: Callable[[Any], Any]) -> Array:
        """``V function(q) V' z`` of every edge, Q = V diag(q) V'."""
        Z = _differences(Z)
        spectrum = self._spectrum(len(Z))
        if spectrum is None:
            return function(1.0) * Z
        q, V = spectrum
        q = q.reshape(-1, *([1] * (Z.ndim - 1)))
        return np.tensordot(V, function(q) * np.tensordot(V.T, Z, axes=1), axes=1)

    def value(self, Z: Array) -> Array:
        """``z' Q z / 2`` of every edge."""
        Z = _differences(Z)
        return 0.5 * np.einsum("d...,d...->...", Z, self.gradient(Z))

    def gradient(self, Z: Array) -> Array:
        """``Q z`` of every edge."""
        return self._apply(Z, lambda q: q)

    def prox(self, Z: Array, t: float | Array) -> Array:
        """``(I + t Q)^-1 z`` of every edge."""
        t = _scales(t, trusted=False)
        return self._apply(Z, lambda q: 1.0 / (1.0 + t * q))

    def conjugate(self, U: Array, t: float | Array) -> Array:
        """``u' Q^-1 u / (2 t)`` of every edge."""
        U, t = _differences(U, "U"), _scales(t)
        return 0.5 * np.einsum("d...,d...->...", U, self._apply(U, lambda q: 1.0 / (t * q)))


class ConcavePenalty(Penalty):
    """Base of the penalties ``g(|z|)`` that grow less and less, up to a constant.

    Linear near zero, so that small differences are drawn to zero as a norm draws them; constant
    for large ones, so that models of different clusters do not pull at each other.  The kink at
    zero is rounded off: up to a radius `xi`, g is a parabola that meets the rest with equal value
    and slope.  A difference is therefore never exactly zero, and clusters need a threshold.

    A subclass has the parameters ``lam``, ``a``, ``xi`` and ``scale`` and says what g is beyond
    `xi`, but for the scale; the strength is a part of the penalty, because g is not homogeneous.
    """

    convex = False
    #: What `a` has to exceed.
    least_a = 1.0

    @property
    @abstractmethod
    def concavity(self) -> float:
        """Least c such that ``g(r) + c r^2 / 2`` is convex; prox needs ``t < 1 / c``."""

    @abstractmethod
    def _beyond(self, r: float | Array, lam: float, a: float) -> tuple[Array, Array]:
        """Value and slope of g at radii beyond the smoothed part."""

    @abstractmethod
    def _shrunk(self, r: Array, t: float | Array, lam: float, a: float) -> Array:
        """Prox of the radii beyond the smoothed part."""

    def _parameters(self) -> tuple[float, float, float]:
        """``lam``, ``a`` and ``xi``, or what is wrong with them."""
        name = type(self).__name__
        lam, a = real_number(self.lam, f"lam of {name}", LEAST, MOST), real_number(self.a, "a")
        if not (self.least_a < a <= MOST):
            raise ValueError(
                f"a of {name} must be larger than {self.least_a:g} and finite, or the penalty "
                f"does not level off, got {self.a!r}."
            )
        xi = SMOOTHING * lam if self.xi is None else real_number(self.xi, "xi")
        if not (LEAST * lam < xi < lam):
            raise ValueError(
                f"xi of {name} must be in (0, lam) = (0, {lam:g}): it rounds off the kink at zero "
                f"and must leave a linear part up to lam, got {self.xi!r}."
            )
        return lam, a, xi

    @property
    def factor(self) -> float:
        """The factor of the function, ``scale``, or 1."""
        if self.scale is None:
            return 1.0
        return real_number(self.scale, f"scale of {type(self).__name__}", LEAST, MOST)

    @property
    def smoothing(self) -> float:
        """The radius `xi` within which the penalty is a parabola."""
        return self._parameters()[2]

    @property
    def curvature(self) -> float:
        """Lipschitz constant of the gradient."""
        lam, a, xi = self._parameters()
        return max(self.factor * float(self._beyond(xi, lam, a)[1]) / xi, self.concavity)

    def value(self, Z: Array) -> Array:
        """``g(|z|)`` of every edge."""
        lam, a, xi = self._parameters()
        r = _length(Z)
        edge, slope = self._beyond(xi, lam, a)
        parabola = edge + 0.5 * slope * (np.minimum(r, xi) ** 2 / xi - xi)
        beyond = self._beyond(np.maximum(r, xi), lam, a)[0]
        return self.factor * np.where(r <= xi, parabola, beyond)

    def derivative(self, r: Array) -> Array:
        """``g'`` at radii `r`, an array of any shape."""
        lam, a, xi = self._parameters()
        r = real_array(r, "r", finite=False)
        # slope / xi * r would overflow for tiny xi, r / xi does not
        slope = self._beyond(np.maximum(r, xi), lam, a)[1] * np.minimum(r / xi, 1.0)
        return self.factor * slope

    def gradient(self, Z: Array) -> Array:
        """``g'(|z|) z / |z|`` of every edge, 0 at zero."""
        Z = _differences(Z)
        lam, a, xi = self._parameters()
        r = _length(Z)
        slope = self.factor * self._beyond(np.maximum(r, xi), lam, a)[1]
        return Z * (slope / np.maximum(r, xi))

    def prox(self, Z: Array, t: float | Array) -> Array:
        """Shorten every difference, by ``lam t`` at most, long ones not at all.

        Parameters
        ----------
        Z : ndarray of shape (d, ...)
            Differences.
        t : float or ndarray
            Scale of the penalty, ``1 / rho`` in an augmented Lagrangian of weight rho; smaller
            than ``1 / concavity``, so that there is one minimiser.

        Returns
        -------
        Y : ndarray of shape (d, ...)

        Raises
        ------
        ValueError
            If `t` is too large, or a parameter is not valid.
        """
        lam, a, xi = self._parameters()
        Z, t = _differences(Z), _scales(t)
        largest = float(np.max(t, initial=0.0))
        if not largest * self.concavity < 1.0:
            raise ValueError(
                f"The scale t = 1 / rho must be smaller than {1.0 / self.concavity:.4g}, so rho "
                f"larger than {self.concavity:.4g}, for the prox of {self!r} to have one "
                f"minimiser, got {largest:.4g}."
            )
        r, t = _length(Z), self.factor * t
        slope = float(self._beyond(xi, lam, a)[1])
        beyond = np.maximum(r, xi + slope * t)
        scale = self._shrunk(beyond, t, lam, a) / beyond
        return Z * np.where(r < beyond, xi / (xi + slope * t), scale)

    def conjugate(self, U: Array, t: float | Array) -> Array:
        """``-t g(0)`` at zero, else infinite: the penalty is bounded."""
        at_zero = -np.asarray(_scales(t)) * float(self.value(np.zeros(1)))
        return np.where(np.abs(_differences(U, "U")).max(axis=0) == 0.0, at_zero, np.inf)


@parameters
class SCAD(ConcavePenalty):
    r"""Smoothly clipped absolute deviation of the length of a difference, smoothed at zero.

    With r the length: ``lam r`` up to lam; ``(a lam r - (r^2 + lam^2) / 2) / (a - 1)`` up to
    ``a lam``; from there on constant, ``(a + 1) lam^2 / 2``.  Up to xi the kink is replaced by
    ``lam r^2 / (2 xi) + xi lam / 2`` (Yu et al., 2023, after Fan and Li, 2001).

    Parameters
    ----------
    lam : float, default=1.0
        Slope at zero, and the length at which the penalty begins to level off.
    a : float, default=3.7
        Beyond ``a lam`` the penalty is constant. Larger than 2; 3.7 is Fan and Li's choice.
    xi : float or None, default=None
        Radius of the smoothed part, in (0, lam); None is ``lam / 1000``.
    scale : float or None, default=None
        Factor of the function. None is 1, and in :class:`skcfl.FPFC` what suits the clients'
        curvatures.

    Examples
    --------
    Short differences shrink to almost nothing, long ones stay as they are:

    >>> import numpy as np
    >>> from skcfl.penalties import SCAD
    >>> SCAD(lam=1.0, xi=1e-6).prox(np.array([[0.9, 3.0, 6.0], [0.0, 0.0, 8.0]]), 1.0).round(4)
    array([[0.    , 2.5882, 6.    ],
           [0.    , 0.    , 8.    ]])
    """

    least_a = 2.0

    lam: float = 1.0
    a: float = 3.7
    xi: float | None = None
    scale: float | None = None

    @property
    def concavity(self) -> float:
        """``scale / (a - 1)``."""
        return self.factor / (self._parameters()[1] - 1.0)

    def _beyond(self, r: float | Array, lam: float, a: float) -> tuple[Array, Array]:
        bend = np.clip(r, lam, a * lam) - lam
        value = lam * np.minimum(r, lam) + lam * bend - 0.5 * bend**2 / (a - 1.0)
        return value, (a * lam - np.clip(r, lam, a * lam)) / (a - 1.0)  # 0 beyond, exactly

    def _shrunk(self, r: Array, t: float | Array, lam: float, a: float) -> Array:
        bent = ((a - 1.0) * r - a * lam * t) / (a - 1.0 - t)
        return np.where(r <= lam + lam * t, r - lam * t, np.where(r <= a * lam, bent, r))


@parameters
class MCP(ConcavePenalty):
    r"""Minimax concave penalty of the length of a difference, smoothed at zero.

    With r the length: ``lam r - r^2 / (2 a)`` up to ``a lam``, from there on constant, ``a lam^2
    / 2`` (Zhang, 2010).  It bends from zero on, where :class:`SCAD` is linear up to lam.  Up to xi
    it is a parabola that meets the rest with equal value and slope.

    Parameters
    ----------
    lam : float, default=1.0
        Slope at zero.
    a : float, default=3.0
        Beyond ``a lam`` the penalty is constant. Larger than 1.
    xi : float or None, default=None
        Radius of the smoothed part, in (0, lam); None is ``lam / 1000``.
    scale : float or None, default=None
        Factor of the function. None is 1, and in :class:`skcfl.FPFC` what suits the clients'
        curvatures.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.penalties import MCP
    >>> MCP(lam=1.0, xi=1e-6).prox(np.array([[0.9, 2.0, 6.0], [0.0, 0.0, 8.0]]), 1.0).round(4)
    array([[0. , 1.5, 6. ],
           [0. , 0. , 8. ]])
    """

    lam: float = 1.0
    a: float = 3.0
    xi: float | None = None
    scale: float | None = None

    @property
    def concavity(self) -> float:
        """``scale / a``."""
        return self.factor / self._parameters()[1]

    def _beyond(self, r: float | Array, lam: float, a: float) -> tuple[Array, Array]:
        r = np.minimum(r, a * lam)
        return lam * r - 0.5 * r**2 / a, (a * lam - r) / a

    def _shrunk(self, r: Array, t: float | Array, lam: float, a: float) -> Array:
        return np.where(r <= a * lam, a * (r - lam * t) / (a - t), r)


def _differences(Z: Array, name: str = "Z") -> Array:
    """Differences as an array of floats; those of solvers are taken as they are."""
    if type(Z) is np.ndarray and Z.dtype.kind == "f" and Z.ndim:
        return Z
    Z = real_array(Z, name)
    if not Z.ndim:
        raise ValueError(f"{name} must be an array of shape (d, ...), got a number.")
    return Z


def _scales(t: float | Array, trusted: bool = True) -> float | Array:
    """Scales: a number that is not negative, or an array, which solvers are trusted with."""
    if trusted and type(t) is np.ndarray and t.dtype.kind == "f" and t.ndim:
        return t
    if isinstance(t, float) and 0.0 <= t < np.inf:
        return float(t)
    t = real_array(t, "t")
    if (t < 0).any():
        raise ValueError(f"t must not be negative, got {t.min()}.")
    return t if t.ndim else float(t)


def _length(Z: Array) -> Array:
    """Euclidean length of every edge."""
    Z = _differences(Z)
    return np.sqrt(np.einsum("d...,d...->...", Z, Z))


PENALTIES = {"l2": L2, "l1": L1, "squared_l2": SquaredL2}
CONCAVE = {"scad": SCAD, "mcp": MCP}


def make_penalty(penalty: str | Penalty) -> Penalty:
    """Convex penalty object of a public name; an object is returned as it is.

    Raises
    ------
    ValueError
        If the penalty is not convex.
    """
    penalty = PENALTIES[penalty]() if isinstance(penalty, str) else penalty
    if not penalty.convex:
        raise ValueError(
            f"penalty={penalty!r} is not convex, so that there is no dual problem and no "
            f"certificate. Use one of {sorted(PENALTIES)}, or the method FPFC."
        )
    return penalty


def name_of(penalty: str | Penalty) -> str:
    """What a penalty is called where it is published: its name if its parameters are usual."""
    if isinstance(penalty, str):
        return penalty
    names = {kind: name for name, kind in {**PENALTIES, **CONCAVE}.items()}
    if type(penalty) not in names:
        return repr(penalty)
    usual, given = type(penalty)().get_params(), penalty.get_params()
    plain = all(np.isscalar(v) and given[n] == v or given[n] is v for n, v in usual.items())
    return names[type(penalty)] if plain else repr(penalty)
