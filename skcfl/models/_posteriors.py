"""A client's parameters given its rows, where a normal prior says what others' are like.

With the prior ``x ~ N(theta, L L')`` and the rows' density ``exp(-n f(x) / phi)`` clients work
in the coordinates u of ``x = theta + L u``, in which the prior is standard normal: nothing there
is inverted that may be singular, so that variances may be zero.  The posterior of u has its mode
where ``n f(theta + L u) / phi + |u|^2 / 2`` is least and, with the Hessian H of ``n f / phi``,
the covariance ``A^-1``, ``A = I + L' H L``; the evidence is

    log p(rows) = -n f / phi + c(rows, phi) - |u|^2 / 2 - log det(A) / 2,

exact for squared error, Laplace's approximation for other losses.
"""

from dataclasses import dataclass

import numpy as np

from ..numerics.matrices import sandwich
from ..numerics.newton import newton

# Newton steps to a posterior mode.
MAX_STEPS = 100


@dataclass
class Posteriors:
    """Posteriors of the clients of a block under K priors that share a covariance.

    Attributes
    ----------
    modes : ndarray of shape (K, c, p)
        In the coordinates of the priors.
    deviations : ndarray of shape (K, c, p)
        Modes minus the priors' means, in parameters.
    inner : list of ndarray of shape (c, p, p)
        Covariances of the coordinates.
    covariances : list of ndarray of shape (c, p, p)
        Of the parameters.
    curvatures : list of ndarray of shape (c, p, p)
        Hessians of the rows' minus log-density at the modes.
    slopes : ndarray of shape (K, c, p)
        Gradients of the same.
    losses : ndarray of shape (K, c)
        Sums of the rows' losses at the modes.
    evidence : ndarray of shape (K, c)
        Log-densities of the rows.
    """

    modes: np.ndarray
    deviations: np.ndarray
    inner: list
    covariances: list
    curvatures: list
    slopes: np.ndarray
    losses: np.ndarray
    evidence: np.ndarray


def posteriors(model, block, weights, theta, root, dispersion, start=None):
    """Posteriors of a block's clients.

    Parameters
    ----------
    model : LinearModel
        Bound local model without penalty.
    block : Block
        The clients, in double precision.
    weights : ndarray of shape (c,)
        ``n_i``, total weights of their rows.
    theta : ndarray of shape (K, p)
        Means of the priors.
    root : ndarray of shape (p,) or (p, p)
        L; one axis is its diagonal.
    dispersion : float
        phi.
    start : ndarray of shape (K, c, p), default=None
        Where to look for the modes.

    Returns
    -------
    posteriors : Posteriors
    """
    K, (c, p) = len(theta), (len(block.clients), model.n_params)
    unit = weights / dispersion
    constants = model.log_constants(block, weights, dispersion)
    modes, deviations, slopes = np.empty((3, K, c, p))
    losses, evidence = np.empty((2, K, c))
    inner, covariances, curvatures = [], [], []
    for k in range(K):
        oracle = _PosteriorOracle(model, block, unit, theta[k], root)
        # Curvature that is constant is that of all priors.
        new = k == 0 or not model.quadratic
        if not model.quadratic:
            u = np.zeros((c, p)) if start is None else start[k]
            u = oracle.better_start(u)
            modes[k], _, _ = newton(oracle, u, oracle.scale(), max_iter=MAX_STEPS)
        else:
            modes[k] = 0.0
        _, gradient = oracle.at(modes[k])
        if new:
            H = oracle.curvature()
            A = oracle.inner(H)
            log_det = 2.0 * np.log(np.einsum("cii->ci", np.linalg.cholesky(A))).sum(axis=1)
            A = np.linalg.inv(A)
            V = sandwich(_transposed(root), A)
        if model.quadratic:
            modes[k] = -np.matmul(A, gradient[:, :, None])[:, :, 0]
            oracle.at(modes[k])
        inner.append(A)
        covariances.append(V)
        curvatures.append(H)
        deviations[k] = _spread(root, modes[k])
        slopes[k] = oracle.slopes
        losses[k] = weights * oracle.losses
        evidence[k] = constants - losses[k] / dispersion
        evidence[k] -= 0.5 * (np.einsum("cp,cp->c", modes[k], modes[k]) + log_det)
    return Posteriors(modes, deviations, inner, covariances, curvatures, slopes, losses, evidence)


def _transposed(root):
    return root if root.ndim == 1 else root.T


def _spread(root, u):
    """``L u``: (c, p) -> (c, p)."""
    return u * root if root.ndim == 1 else u @ root.T


def _gather(root, g):
    """``L' g``: (c, p) -> (c, p)."""
    return g * root if root.ndim == 1 else g @ root


class _PosteriorOracle:
    """``n f(theta + L u) / phi + |u|^2 / 2`` of the clients of a block, for ``newton``."""

    def __init__(self, model, block, unit, theta, root):
        self.model, self.block, self.unit = model, block, unit
        self.theta, self.root, self.step = theta, root, None

    def scale(self):
        """Size of each function."""
        return self.unit * self.model.loss_size(self.block) + 1.0

    def better_start(self, u):
        """Given starts, or the prior's mean where that has a lower value."""
        if not u.any():
            return u
        with np.errstate(invalid="ignore"):
            better = self.at(u)[0] <= self.at(np.zeros_like(u))[0]
        return np.where(better[:, None], u, 0.0)

    def at(self, u):
        """Values and gradients."""
        model, block = self.model, self.block
        self.u = u.copy()
        self.state, self.step = model.state(block, self.theta + _spread(self.root, u)), None
        self.losses, gradient = model.loss_and_slopes(block, self.state)
        self.slopes = self.unit[:, None] * gradient
        value = self.unit * self.losses + 0.5 * np.einsum("cp,cp->c", u, u)
        return value, _gather(self.root, self.slopes) + u

    def along(self, step, t):
        """Values at ``u + t * step``."""
        if self.step is not step:
            self.step = step
            self.change = self.model.state(self.block, _spread(self.root, step))
        u = self.u + t[:, None] * step
        with np.errstate(invalid="ignore"):
            losses = self.model.row_sums(self.block, self.state + t[:, None, None] * self.change)
            return self.unit * losses + 0.5 * np.einsum("cp,cp->c", u, u)

    def curvature(self, damping=0.0):
        """Hessians of the rows' minus log-density."""
        return self.unit[:, None, None] * self.model.curvature(self.block, self.state, damping)

    def inner(self, H):
        """``I + L' H L``."""
        A = sandwich(self.root, H)
        np.einsum("cii->ci", A)[:] += 1.0
        return A

    def direction(self, g, damping):
        """Newton directions."""
        A = self.inner(self.curvature(damping))
        return -np.linalg.solve(A, g[:, :, None])[:, :, 0]


class PosteriorMixin:
    """What a linear model computes for partial pooling; left of the convex model.

    All without the local penalty.
    """

    @property
    def is_likelihood(self):
        """Whether the loss is minus a log-likelihood, up to a dispersion and a constant."""
        return self.describe_loss().is_likelihood

    def posteriors(self, block, weights, theta, root, dispersion, start=None):
        """Posteriors of the clients of a block, see :func:`posteriors`."""
        block = block.astype(np.float64)
        return posteriors(self, block, weights, theta, root, dispersion, start)

    def log_constants(self, block, weights, dispersion):
        """What is added to ``-n_i f_i / phi`` for the log-density of each client's rows, (c,)."""
        rows = self.kernel.log_constant(block.y, dispersion)
        return weights * np.einsum("cn,cn->c", rows, block.weights)

    def state(self, block, w):
        """Predictions (c, C, n) of each client's model (c, p)."""
        return self._state(block, w)

    def row_sums(self, block, state):
        """Mean losses (c,)."""
        return self._loss(block, state)

    def loss_size(self, block):
        """Size of the mean loss, (c,)."""
        return self._loss_size(block)

    def loss_and_slopes(self, block, state):
        """Mean losses (c,) and their gradients (c, p)."""
        return self._loss(block, state), self._loss_gradient(block, state)

    def curvature(self, block, state, damping=0.0):
        """Hessians of the mean losses, (c, p, p)."""
        if not self.kernel.quadratic:
            return self._loss_hessian(block, state, damping)
        c, n, _ = block.shape
        if "hessian" not in block.cache:
            H = self._loss_hessian(block, state)
            if self.n_params > max(2 * n, 64):
                return H  # larger than the rows: not worth its memory
            block.cache["hessian"] = H
        return block.cache["hessian"]
