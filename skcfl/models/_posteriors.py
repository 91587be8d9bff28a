"""A client's parameters given its rows, where a normal prior says what others' are like.

With the prior ``x ~ N(theta, L L')`` and the rows' density ``exp(-n f(x) / phi)`` clients work
in the coordinates u of ``x = theta + L u``, in which the prior is standard normal: nothing there
is inverted that may be singular, so that variances may be zero.  The posterior of u has its mode
where ``n f(theta + L u) / phi + |u|^2 / 2`` is least and, with the Hessian H of ``n f / phi``,
the covariance ``A^-1``, ``A = I + L' H L``; the evidence is

    log p(rows) = -n f / phi + c(rows, phi) - |u|^2 / 2 - log det(A) / 2,

exact for squared error, Laplace's approximation for other losses.

Squared errors may have heavy tails: both the noise of a client's rows and its deviation from theta
are divided by the root of a precision t of its own, which has a gamma distribution of mean 1 and
``df`` degrees of freedom, so that its rows have a multivariate t distribution (Pinheiro, Liu and
Wu 2001).  Given t all is as above, and the mode does not depend on it.  Of the rows t has the
expectation ``(df + n) / (df + D)``, D the square of their Mahalanobis distance from what theta
predicts, and 1 / t has ``(df + D) / (df + n - 2)``.

What the rows tell of theta is ``P``, minus the second derivative of the evidence.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, gammaln

from ..numerics.matrices import product, sandwich
from ..numerics.newton import MAX_DENSE, newton
from ._posterior_curvatures import (
    DenseCurvature,
    FewRowsCurvature,
    RowCurvature,
    gather,
    of_varying,
    plus_one,
    solved,
    spread,
)

# Newton steps to a posterior mode.
MAX_STEPS = 100
# Squared Newton decrement before the last step to a mode, as a part of the loss: steps converge
# quadratically, so only rounding is left after it.
LAST_DECREMENT = 1e-10
# Least part of what is known of a row's prediction that other rows must tell: where it is all the
# row's own, such as that of the only row of a level under a flat prior, what is left without it is
# rounding.
LEAST_LEFT = 1e-6
# Predictions of losses that are no parabolas, on the scale of a logarithm or a logit, move by so
# much at most without the row: one Newton step says nothing of what is farther.
FARTHEST = 10.0
# Singular values of a client's curvature, as a part of the largest, below which directions are not
# searched for the model of least loss: only moments about it are more exact for it.
NEAR = 1e-6
# Curvature in the coordinates of the prior, where the prior's is 1, up to which that of few rows
# is computed from matrices of their size: rounding grows with it.
LARGEST = 1e6
# Differences of logarithms whose exponentials, times weights, have squares with finite sums.
FINITE = 300.0


@dataclass
class Posteriors:
    """Posteriors of the clients of a block under K priors that share a covariance.

    Attributes
    ----------
    modes : ndarray of shape (K, c, p)
        In the coordinates of the priors.
    deviations : ndarray of shape (K, c, p)
        Modes minus the priors' means, in parameters.
    curvatures : list of DenseCurvature or RowCurvature
        Of the rows' minus log-density at the modes, and what follows from it.
    slopes : ndarray of shape (K, c, p)
        Gradients of the same.
    losses : ndarray of shape (K, c)
        Sums of the rows' losses at the modes, from the least that they can be.
    evidence : ndarray of shape (K, c)
        Log-densities of the rows.
    scales : Scales or None
        What is known of the clients' own scales; None where all are 1.
    """

    modes: np.ndarray
    deviations: np.ndarray
    curvatures: list
    slopes: np.ndarray
    losses: np.ndarray
    evidence: np.ndarray
    scales: "Scales | None" = None


@dataclass
class Scales:
    """Precisions that divide the variances of clients, given their rows.

    Attributes
    ----------
    precisions : ndarray of shape (K, c)
        Expectations.
    tails : ndarray of shape (K, c)
        Expectations of their logarithms minus themselves.
    variances : ndarray of shape (K, c)
        Expectations of one over them.
    information : ndarray of shape (K, c)
        How many times P the rows tell of theta, in expectation (Lange, Little and Taylor 1989).
    """

    precisions: np.ndarray
    tails: np.ndarray
    variances: np.ndarray
    information: np.ndarray


def _tail_gain(distances, n, df):
    """Logarithm of the t density over the normal one at the same squares of distances."""
    constant = gammaln(0.5 * (df + n)) - gammaln(0.5 * df) - 0.5 * n * np.log(0.5 * df)
    return constant - 0.5 * (df + n) * np.log1p(distances / df) + 0.5 * distances


def _scales(distances, n, df):
    """What rows at some squares of distances (K, c) tell of their clients' precisions."""
    precisions = (df + n) / (df + distances)
    tails = digamma(0.5 * (df + n)) - np.log(0.5 * (df + distances)) - precisions
    variances = (df + distances) / (df + n - 2.0)
    return Scales(precisions, tails, variances, precisions * (df + n) / (df + n + 2.0))


class _PosteriorOracle:
    """``n f(theta + L u) / phi + |u|^2 / 2`` of the clients of a block, for ``newton``."""

    def __init__(self, model, block, unit, theta, root, gram, by_rows):
        self.model, self.block, self.unit, self.gram = model, block, unit, gram
        self.theta, self.root, self.by_rows, self.step = theta, root, by_rows, None

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
        self.u, self.step = u.copy(), None
        self.state = self._bounded(model.state(block, self.theta + spread(self.root, u)))
        self.losses = model.mean_loss(block, self.state)
        self.gradients = self.unit[:, None] * model.loss_gradient(block, self.state)
        value = self.unit * self.losses + 0.5 * np.einsum("cp,cp->c", u, u)
        return value, gather(self.root, self.gradients) + u

    def _bounded(self, state):
        """Predictions clipped where their exponentials, and sums of these, would overflow."""
        if self.model.kernel.link != "log" or np.abs(state).max(initial=0.0) <= FINITE:
            return state
        about = self.model.kernel.targets_raw(self.block.y)
        return np.clip(state, about - FINITE, about + FINITE)

    def along(self, step, t):
        """Values at ``u + t * step``."""
        if self.step is not step:
            self.step = step
            self.change = self.model.state(self.block, spread(self.root, step))
        u = self.u + t[:, None] * step
        with np.errstate(invalid="ignore"):
            losses = self.model.mean_loss(self.block, self.state + t[:, None, None] * self.change)
            return self.unit * losses + 0.5 * np.einsum("cp,cp->c", u, u)

    def _hessian(self, damping):
        return self.unit[:, None, None] * self.model.curvature(self.block, self.state, damping)

    def curvature(self):
        """Curvature of the rows' minus log-density."""
        rows = self._by_rows(0.0)
        if rows is None:
            return DenseCurvature(self.root, self._hessian(0.0))
        return rows if self.by_rows else FewRowsCurvature(rows)

    def _by_rows(self, damping):
        """Curvature as matrices of the rows; None if these are many, or too much is lost by it."""
        if self.gram is None:
            return None
        rows = self.model.row_curvatures(self.block, self.state, damping)
        factors = np.sqrt(self.unit)[:, None, None, None] * rows
        rows = RowCurvature(self.block, self.root, factors, self.gram)
        return rows if self.by_rows or rows.largest <= LARGEST else None

    def direction(self, g, damping):
        """Newton directions."""
        rows = self._by_rows(damping)
        if rows is not None:
            return rows.direction(g)
        A, (*_, at) = of_varying(self.root, sandwich(self.root, self._hessian(damping)))
        direction = -g
        direction[:, at] = -solved(plus_one(A), g[:, at])
        return direction


def _from_moments(about, losses, slopes, H, unit, theta, root):
    """Modes (K, c, p), gradients and mean losses there, and curvatures, of squared errors.

    From the moments of :meth:`PosteriorMixin.moments`, without a pass over the rows.
    """

    def at(away):
        bent = _products(H, away)
        value = losses + np.einsum("kcp,kcp->kc", away, slopes + 0.5 * bent)
        return value, unit[:, None] * (slopes + bent)

    away = theta[:, None] - about
    curvature = DenseCurvature(root, unit[:, None, None] * H)
    modes = np.zeros(away.shape)
    values, gradients = at(away)
    if root.any():
        modes = -_products(curvature.inner, gather(root, gradients))
        values, gradients = at(away + spread(root, modes))
    return modes, gradients, values, [curvature] * len(theta)


def _products(matrices, v):
    """Products of symmetric matrices (c, p, p) with vectors (K, c, p)."""
    return np.matmul(v.transpose(1, 0, 2), matrices).transpose(1, 0, 2)


class PosteriorMixin:
    """What a linear model computes for partial pooling; left of the convex model.

    All without the local penalty.
    """

    @property
    def is_likelihood(self):
        """Whether the loss is minus a log-likelihood, up to a dispersion and a constant."""
        return self.describe_loss().is_likelihood

    def posteriors(
        self, block, weights, theta, root, dispersion, start=None, by_rows=False, df=np.inf
    ):
        """Posteriors of a block's clients.

        Parameters
        ----------
        block : Block
            The clients.
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
        by_rows : bool, default=False
            Whether curvatures are matrices of the rows' size; the root must be a diagonal.
        df : float, default=numpy.inf
            Degrees of freedom of the clients' scales, more than 2; of squared error.

        Returns
        -------
        posteriors : Posteriors
        """
        block = block.astype(np.float64)
        K, (c, p) = len(theta), (len(block.clients), self.n_params)
        unit = weights / dispersion
        constants = self.log_constants(block, weights, dispersion)
        least = self.least_losses(block, weights)
        moments = None if by_rows else self.moments(block)
        few = by_rows or (moments is None and self.n_outputs * block.shape[1] < p)
        gram = self.row_grams(block, root) if few else None
        if moments is not None:
            modes, slopes, mean, curvatures = _from_moments(*moments, unit, theta, root)
        else:
            modes, slopes, mean, curvatures = np.zeros((K, c, p)), np.empty((K, c, p)), [], []
            for k in range(K):
                oracle = _PosteriorOracle(self, block, unit, theta[k], root, gram, by_rows)
                if not self.quadratic and root.any():
                    u = np.zeros((c, p)) if start is None else start[k]
                    u = oracle.better_start(u)
                    modes[k], _, _ = newton(
                        oracle, u, oracle.scale(), max_iter=MAX_STEPS, tol=LAST_DECREMENT
                    )
                _, gradient = oracle.at(modes[k])
                if k and self.quadratic:
                    # Curvature that is constant is that of all priors.
                    curvatures.append(curvatures[0])
                else:
                    curvatures.append(oracle.curvature())
                if self.quadratic:
                    modes[k] = -curvatures[k].covariance_times(gradient)
                    oracle.at(modes[k])
                slopes[k] = oracle.gradients
                mean.append(oracle.losses)
        # Rounding can take losses of rows that are interpolated below the least.
        deviations, losses = spread(root, modes), np.maximum(weights * np.array(mean), least)
        square = np.einsum("kcp,kcp->kc", modes, modes)
        log_dets = np.array([curvature.log_det for curvature in curvatures])
        evidence = constants - losses / dispersion - 0.5 * (square + log_dets)
        losses = losses - least
        distances = 2.0 * losses / dispersion + square
        scales = None
        if np.isfinite(df):
            evidence += _tail_gain(distances, weights, df)
            scales = _scales(distances, weights, df)
        return Posteriors(modes, deviations, curvatures, slopes, losses, evidence, scales)

    def left_out_predictions(
        self, block, weights, theta, root, dispersion, errors, by_rows, df=np.inf
    ):
        """Predictions of each row by its client's posterior given the client's other rows.

        A row with the gradient g and the second derivative ``W = R R'`` of minus its log-density,
        and the posterior covariance v of its predictions z, moves them by

            (v^-1 - W)^-1 g = v g + v R (I - R' v R)^-1 R' v g

        when it is taken out: exactly for squared error, given the variances and the dispersion,
        and by one Newton step for other losses.  Of a row that counts more than once one copy is
        taken out, and all of one that counts less.

        Parameters
        ----------
        block, weights, root, dispersion, by_rows, df
            As of :meth:`posteriors`.  Scales of the clients are those expected from all their
            rows.
        theta : ndarray of shape (p,)
            Mean of the prior.
        errors : ndarray of shape (p, p) or None
            Covariance of the errors of theta, which know of the row, too.

        Returns
        -------
        predictions : ndarray of shape (c, C, n)
        unknown : ndarray of shape (c, n) of bool
            True for rows that no other rows tell of: their predictions are rounding.
        """
        block = block.astype(np.float64)
        found = self.posteriors(block, weights, theta[None], root, dispersion, None, by_rows, df)
        state = self.state(block, theta + found.deviations[0])
        scale = np.ones(len(weights))
        if found.scales is not None:
            # A row is not more informative about theta than all rows of its client.
            scale = 1.0 / found.scales.information[0]
        v = found.curvatures[0].row_covariances(self, block, errors, scale[:, None, None])
        once = np.minimum(weights[:, None] * block.weights, 1.0) / (dispersion * scale)[:, None]
        g = (once[:, None, :] * self.kernel.gradient(state, block.y)).transpose(0, 2, 1)
        R = self.row_curvatures(block, state, weights=once)
        vg = np.matmul(v, g[..., None])
        left = -np.matmul(R.transpose(0, 1, 3, 2), np.matmul(v, R))
        np.einsum("cnii->cni", left)[:] += 1.0
        values, vectors = np.linalg.eigh(left)
        turned = vectors.transpose(0, 1, 3, 2)
        pull = np.matmul(turned, np.matmul(R.transpose(0, 1, 3, 2), vg))
        pull = np.matmul(vectors, pull / np.maximum(values, LEAST_LEFT)[..., None])
        moves = vg + np.matmul(v, np.matmul(R, pull))
        moves = moves[..., 0].transpose(0, 2, 1)
        if not self.quadratic:
            moves = np.clip(moves, -FARTHEST, FARTHEST)
        return state + moves, (values < LEAST_LEFT).any(axis=2)

    def mixed_losses(self, block, weights, predictions, shares):
        """Sum of the losses of mixed predictions (K, c, C, n), and its derivatives in the shares.

        Returns the sum, its gradient (K,) and its Hessian (K, K), of shares that sum to one.
        """
        block = block.astype(np.float64)
        z = np.tensordot(shares, predictions, 1)
        away = predictions - z
        size = (weights[:, None] * block.weights)[:, None, :]
        value = float((size[:, 0] * self.kernel.value(z, block.y)).sum())
        slopes = np.tensordot(away, size * self.kernel.gradient(z, block.y), 3)
        curved = [size * self.kernel.curvature_product(z, block.y, own) for own in away]
        return value, slopes, np.tensordot(away, np.array(curved), ((1, 2, 3), (1, 2, 3)))

    def has_few_rows(self, block, root):
        """Whether curvatures of a block's clients are better matrices of their rows."""
        wide = self.n_params > max(MAX_DENSE, self.n_outputs * block.shape[1])
        return wide and root.ndim == 1

    def log_constants(self, block, weights, dispersion):
        """What is added to ``-n_i f_i / phi`` for the log-density of each client's rows, (c,)."""
        rows = self.kernel.log_constant(block.y, dispersion)
        return weights * np.einsum("cn,cn->c", rows, block.weights)

    def least_losses(self, block, weights):
        """Least sums of losses that predictions of each client's rows can have, (c,)."""
        if self.kernel.grounded:
            return np.zeros(len(weights))
        rows = -self.kernel.conjugate(np.zeros_like(block.y), block.y)
        return weights * np.einsum("cn,cn->c", rows, block.weights)

    def row_grams(self, block, root):
        """``X L L' X'``, (c, C, n, n) with a diagonal root L and (c, n, C, n, C) with others."""
        c, n, D = block.shape
        if root.ndim == 1:
            scales = (root**2).reshape(self.n_outputs, D)
            return np.stack([block.row_gram(np.broadcast_to(s, (c, D))) for s in scales], axis=1)
        half = block.forward_all(root.T.reshape(-1, D)).reshape(c, self.n_params, -1, n)
        half = half.transpose(0, 3, 2, 1).reshape(c, n * self.n_outputs, -1)
        gram = np.matmul(half, half.transpose(0, 2, 1))
        return gram.reshape(c, n, self.n_outputs, n, self.n_outputs)

    def row_curvatures(self, block, state, damping=0.0, weights=None):
        """Factors R of each row's second derivatives ``R R'``, weights included, (c, n, C, S).

        The weights are those of the block where none (c, n) are given.
        """
        weights = block.weights if weights is None else weights
        factors = self.kernel.curvature_factors(state, block.y, np.reshape(damping, (-1, 1, 1)))
        factors *= np.sqrt(weights)[:, :, None, None]
        return factors

    def moments(self, block):
        """What all losses of squared errors follow from; None of other losses and wide models.

        Models (c, p) near the least mean losses, these losses (c,), their gradients (c, p) and
        their Hessians (c, p, p).  About models near the best ones nothing is lost to rounding.
        """
        if not self.kernel.quadratic or not self._keeps_hessian(block):
            return None
        if "moments" not in block.cache:
            about = np.zeros((len(block.clients), self.n_params))
            H = self.curvature(block, self.state(block, about))
            inverses = 2 * [np.linalg.pinv(H, NEAR, hermitian=True)]
            if self.fit_intercept:
                # Constants first: of few rows the model of least norm has a part of them, however
                # far from zero targets are, in each coefficient.
                at = np.arange(self.n_columns - 1, self.n_params, self.n_columns)
                constants = np.zeros(H.shape)
                constants[:, at, at] = 1.0 / np.maximum(H[:, at, at], 1e-300)
                inverses = [constants, *inverses]
            for inverse in inverses:
                slopes = self.loss_gradient(block, self.state(block, about))
                about = about - product(inverse, slopes)
            state = self.state(block, about)
            losses, slopes = self.mean_loss(block, state), self.loss_gradient(block, state)
            block.cache["moments"] = about, losses, slopes, H
        return block.cache["moments"]

    def _keeps_hessian(self, block):
        """Whether Hessians that never change are no larger than the rows."""
        return self.n_params <= max(2 * block.shape[1], 64)

    def curvature(self, block, state, damping=0.0):
        """Hessians of the mean losses, (c, p, p)."""
        if not self.kernel.quadratic:
            return self._loss_hessian(block, state, damping)
        if "hessian" not in block.cache:
            H = self._loss_hessian(block, state)
            if not self._keeps_hessian(block):
                return H
            block.cache["hessian"] = H
        return block.cache["hessian"]
