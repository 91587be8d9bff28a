"""Maximum likelihood of linear mixed models with crossed and nested groupings.

Random coefficients of the clients, random intercepts of levels that many clients meet (crossed)
and of levels inside the clients (nested), see ``skcfl.models._level_grams``. All variances are
over that of the noise, phi. The clients send ``S = sum_i U_i' V_i^-1 U_i``, in which their own
effects are integrated out. With ``w = Lambda u``, ``u ~ N(0, phi I)``, the deviance

    sum_i log det(V_i) + log det(I + Lambda S_ww Lambda) + n (1 + log(2 pi r^2 / n)),

where r^2 is the least penalised square of the residuals, is minimised by L-BFGS with its exact
gradient, of which the clients send the part in their own variances. An exchange of sums gives a
value, another one the gradient. Standard deviations of either sign are the same model: a search
with a bound at zero, where the slope is zero whatever the rows say, would not leave it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

from .._progress import loop
from ..calls.level_modes_asked import LevelModes, NestedModes
from ..calls.levels_asked import LevelSlopes, LevelSums, NestedEffects
from ..numerics.matrices import root_of
from ..numerics.memory import require
from .em import pooled
from .normal_equations import inverse_of
from .population import LEAST_DISPERSION

# Standard deviations over that of the noise where the search begins: of intercepts and levels,
# as in lme4, and of slopes of features of size 1, see `_frames`.
START, SLOPE_START = 1.0, 0.3
# Change of the deviance that ends the search, relative to it, and the largest entry of the
# gradient.
CHANGE, SLOPE = 1e-12, 1e-6
# Steps that L-BFGS remembers.
MEMORY = 30
# Difference of deviances, relative to them, that is none.
SAME = 1e-9
# Variance of a feature, as a part of its mean square, that is rounding.
CONSTANT = 1e-12
# The same below which products of raw features hold less than six digits of it.
LEAST_SPREAD = 1e-10
# Standard deviation over that of the noise that is none if the likelihood is the same without it.
NOTHING = 1e-2


@dataclass
class CrossedFit:
    """A linear mixed model with crossed and nested groupings.

    Attributes
    ----------
    kind : {"diag", "full", "intercept", "none"}
        Covariance of the clients' coefficients.
    root : ndarray of shape (d, d)
        R: the covariance is ``dispersion * R R'``.
    spreads : ndarray of shape (n_nested,)
        Standard deviations of the effects of nested levels, over that of the noise.
    sizes : ndarray of shape (n_crossed,)
        The same of crossed levels.
    prior : float
        Variance of the prior of the slopes, infinite without one.
    means : ndarray of shape (d,)
        Coefficients that the clients have in common.
    effects : ndarray of shape (d + L,)
        The same as the clients are sent them, and the effects of the crossed levels.
    errors : ndarray of shape (d + L, d + L)
        Covariance of their errors, over the dispersion.
    dispersion : float
        Variance of the noise.
    loglik : float
        Log-likelihood of the rows.
    n_variances : int
        Number of variances and covariances that were estimated.
    weight : float
        Total weight of the rows.
    trail : list of float
        Log-likelihoods on the way.
    converged : bool
        Whether the search ended.
    n_dispersions : int
        Number of dispersions that were estimated.
    """

    kind: str
    root: np.ndarray
    spreads: np.ndarray
    sizes: np.ndarray
    prior: float
    means: np.ndarray
    effects: np.ndarray
    errors: np.ndarray
    dispersion: float
    loglik: float
    n_variances: int
    weight: float
    trail: list[float]
    converged: bool
    n_dispersions: int

    @property
    def n_parameters(self):
        """Number of parameters: means, variances and dispersion."""
        return len(self.root) + self.n_variances + self.n_dispersions

    def criterion(self, n_clients):
        """BIC with the clients as the sample, as that of other populations."""
        return -2.0 * self.loglik + self.n_parameters * np.log(max(n_clients, 1))


class Deviance:
    """The deviance as a function of the variances, and its gradient."""

    #: Largest entry of the gradient that ends the search.
    slope = SLOPE

    def __init__(self, pool, kind, varying, free, shrunken, shared=None):
        model = pool.model
        self.pool, self.kind, self.d = pool, kind, model.n_params
        self.crossed, self.n_nested = model.crossed, len(model.nested)
        self.varying = np.flatnonzero(varying)
        if kind == "intercept":
            self.varying = np.flatnonzero(varying & free)
        elif kind == "none":
            self.varying = self.varying[:0]
        q = len(self.varying)
        # A square root of a full covariance: a triangular one has flat valleys where the
        # covariance is singular, and takes three to eight times the evaluations.
        entries = np.indices((q, q)).reshape(2, q * q)
        self.rows, self.columns = entries if kind == "full" else np.diag_indices(q)
        #: Variable of each entry of the root: those that share a variance have one, the first
        #: entry of each variable.
        self.variable = np.arange(len(self.rows))
        if kind == "diag" and shared is not None:
            self.variable = np.unique(shared[self.varying], return_inverse=True)[1]
        self.first = np.unique(self.variable, return_index=True)[1]
        # Blocks of what is integrated out at the server: slopes under a prior, crossed levels.
        starts = self.d + np.cumsum([0, *self.crossed])
        blocks = [np.arange(*pair) for pair in zip(starts[:-1], starts[1:], strict=True)]
        slopes = np.flatnonzero(~free)
        self.shrunken = shrunken and len(slopes) > 0
        self.blocks = [slopes, *blocks] if self.shrunken else blocks
        self.inner = np.concatenate([np.zeros(0, dtype=np.intp), *self.blocks])
        self.owner = np.repeat(np.arange(len(self.blocks)), [len(b) for b in self.blocks])
        self.size = int(starts[-1])
        require(
            8 * 4 * self.size**2,
            f"Sums over {self.size - self.d} levels of crossed groupings",
            "Leave out a grouping of many levels, or make it the clients of the fit.",
        )
        #: Matrices of root and coefficients, of those for columns of one size.
        self.frame, coefficients, spreads = _frames(pool, kind, shared)
        self.outer = np.setdiff1d(np.arange(self.size), self.inner)
        #: The matrix of the coefficients that are not integrated out.
        self.away = coefficients[np.ix_(self.outer, self.outer)]
        #: Divisors of the variables of levels, and of slopes under a prior.
        self.units = np.ones(self.n_nested + len(self.blocks))
        if self.shrunken:
            self.units[self.n_nested] = np.exp(np.log(spreads[slopes]).mean())
        self.trail = []
        # The likelihood of targets without noise has no maximum.
        self.least = LEAST_DISPERSION * getattr(model, "units_", (0.0, 1.0))[1] ** 2

    def start(self):
        """Start of the search."""
        slopes = np.ones(self.d, dtype=bool)
        slopes[-1] = not self.pool.model.fit_intercept
        first = np.where(slopes[self.varying], SLOPE_START, START)
        first_root = np.where(self.rows == self.columns, first[self.rows], 0.0)[self.first]
        return np.concatenate([first_root, np.full(self.n_nested + len(self.blocks), START)])

    @property
    def n_variances(self):
        """Number of variances and covariances that the likelihood depends on."""
        n_root = len(self.first)
        if self.kind == "full":
            n_root = len(self.varying) * (len(self.varying) + 1) // 2
        return n_root + self.n_nested + len(self.blocks) - self.shrunken

    @property
    def n_sizes(self):
        """Numbers of `x` that are roots of variances and covariances."""
        return len(self.first) + self.n_nested + len(self.blocks)

    def parts(self, x):
        """Root of the clients' covariance, spreads of nested levels, sizes of the blocks."""
        k = len(self.first)
        root = np.zeros((self.d, self.d))
        root[self.varying[self.rows], self.varying[self.columns]] = x[:k][self.variable]
        sizes = np.abs(x[k : self.n_sizes]) / self.units
        return self.frame @ root, sizes[: self.n_nested], sizes[self.n_nested :]

    def without_nothing(self, x):
        """The variables, their standard deviations not negative, those without effect zero."""
        x, k = x.copy(), len(self.first)
        signs, in_rows, columns = np.ones(self.d), self.rows[self.first], self.columns[self.first]
        on = in_rows == columns
        signs[in_rows[on]] = np.where(x[:k][on] < 0, -1.0, 1.0)
        x[:k] *= signs[columns]
        x[k : self.n_sizes] = np.abs(x[k : self.n_sizes])
        rows = np.concatenate([in_rows, np.arange(self.n_sizes - k) + self.d])
        largest = np.bincount(rows, np.abs(x[: self.n_sizes]))[rows]
        small = np.flatnonzero((largest < NOTHING) & (x[: self.n_sizes] != 0))
        if not len(small):
            return x
        fewer = x.copy()
        fewer[small] = 0.0
        value, without = self.solved(x)[0], self.solved(fewer)[0]
        return fewer if without <= value + SAME * (1.0 + abs(value)) else x

    def of_variables(self, slope):
        """Slopes of the variables, of those of all entries of the root (d, d)."""
        slope = self.frame.T @ slope
        each = slope[self.varying[self.rows], self.varying[self.columns]]
        return np.bincount(self.variable, each, len(self.first))

    def solved(self, x):
        """The fit at some variances."""
        root, spreads, sizes = self.parts(x)
        S, log_det, weight = self.pool.ask(LevelSums, root, spreads, self.size + 1)
        scale = self.scale(sizes)
        A, right = self.in_units(scale, S[:-1, :-1], S[:-1, -1])
        A[self.inner, self.inner] += 1.0
        order, m = np.concatenate([self.inner, self.outer]), len(self.inner)
        # Collinear columns leave no pivot.
        factor = A[np.ix_(order, order)]
        pivots = factor.ravel()[:: self.size + 1]
        pivots[m:] *= 1.0 + 1e-13
        pivots += 1e-300 / np.maximum(pivots, 1e-300)
        factor = root_of(factor)
        half = solve_triangular(factor, right[order], lower=True, check_finite=False)
        r2 = max(float(S[-1, -1] - half @ half), 0.0)
        phi = max(r2 / weight, self.least)
        log_det += 2.0 * float(np.log(np.abs(np.diag(factor)[:m])).sum())
        deviance = log_det + weight * np.log(2.0 * np.pi * phi) + r2 / phi
        solution = np.empty(self.size)
        solution[order] = solve_triangular(factor.T, half, check_finite=False)
        return deviance, phi, S, scale, solution, (A, right), factor, weight

    def scale(self, sizes):
        """Standard deviations of what is integrated out, over the noise's; else ones."""
        scale = np.ones(self.size)
        scale[self.inner] = sizes[self.owner]
        return scale

    def in_units(self, scale, S, slopes):
        """Second and first derivatives in the units of the search."""
        S, slopes = scale[:, None] * S * scale, scale * slopes
        S[self.outer] = self.away.T @ S[self.outer]
        S[:, self.outer] = S[:, self.outer] @ self.away
        slopes[self.outer] = self.away.T @ slopes[self.outer]
        return S, slopes

    def effects(self, scale, solution):
        """Coefficients and effects of the crossed levels, of those in units of the search."""
        effects = scale * solution
        effects[self.outer] = self.away @ effects[self.outer]
        return effects

    def _without_levels(self, A):
        """Inverse root of the levels' precision, that times the rest, errors of coefficients.

        Levels have a precision, however small: only collinear columns have none.
        """
        inner, outer = self.inner, self.outer
        root = np.linalg.inv(root_of(A[np.ix_(inner, inner)]))
        half = root @ A[np.ix_(inner, outer)]
        return root, half, inverse_of(A[np.ix_(outer, outer)] - half.T @ half)

    def solution(self, A, right):
        """Effects in units of the search, the least ones of collinear columns."""
        root, half, errors = self._without_levels(A)
        reduced, out = root @ right[self.inner], np.empty(self.size)
        out[self.outer] = errors @ (right[self.outer] - half.T @ reduced)
        out[self.inner] = root.T @ (reduced - half @ out[self.outer])
        return out

    def errors(self, scale, A):
        """Covariance of the errors of the effects, of their precision in units of the search."""
        inner, outer, errors = self.inner, self.outer, np.empty_like(A)
        root, half, of_outer = self._without_levels(A)
        across = -root.T @ half
        errors[np.ix_(outer, outer)] = of_outer
        errors[np.ix_(inner, outer)] = across @ of_outer
        errors[np.ix_(outer, inner)] = of_outer @ across.T
        errors[np.ix_(inner, inner)] = root.T @ root + across @ of_outer @ across.T
        errors = errors * scale[:, None] * scale
        errors[outer] = self.away @ errors[outer]
        errors[:, outer] = errors[:, outer] @ self.away.T
        return errors

    def outcome(self, x):
        """Deviance, effects, covariance of their errors, dispersion and weight at variances."""
        value, phi, _, scale, _, (A, right), _, weight = self.solved(x)
        # Collinear columns have the least coefficients.
        effects = self.effects(scale, self.solution(A, right))
        return value, effects, self.errors(scale, A), phi, weight

    def __call__(self, x):
        """Deviance and gradient."""
        deviance, phi, S, scale, u, _, factor, _ = self.solved(x)
        root, spreads, _ = self.parts(x)
        inner, m = np.ix_(self.inner, self.inner), len(self.inner)
        within = _inverse(factor[:m, :m])
        errors = np.zeros((self.size, self.size))
        errors[inner] = within
        effects = self.effects(scale, u)
        errors *= scale[:, None] * scale
        covariance, variances = self.pool.ask(LevelSlopes, root, spreads, effects, errors, phi)
        slope = 2.0 * covariance @ root
        in_root = self.of_variables(slope)
        away = S[:-1, -1] - S[:-1, :-1] @ effects
        each = (S[inner] * within) @ scale[self.inner] - u[self.inner] * away[self.inner] / phi
        blocks = 2.0 * np.bincount(self.owner, each, len(self.blocks))
        sizes = np.concatenate([2.0 * spreads * variances, blocks]) / self.units
        gradient = np.concatenate([in_root, np.copysign(1.0, x[len(in_root) :]) * sizes])
        self.trail.append(-0.5 * deviance)
        return deviance, gradient


def _inverse(factor):
    """Inverse of a matrix of a Cholesky factor."""
    if not len(factor):
        return factor
    lower = np.tril(dpotri(factor, lower=1)[0])
    return lower + np.tril(lower, -1).T


def level_products(pool):
    """Products of the columns, weighted by the curvature of the loss, and the weight of the rows.

    No effect varies: the products are of the columns themselves.
    """
    d, model = pool.n_params, pool.model
    size = d + int(sum(model.crossed))
    nothing = np.zeros((d, d)), np.zeros(len(model.nested))
    if model.quadratic:
        products, _, weight = pool.ask(LevelSums, *nothing, size + 1)
    else:
        products, _, _, _, weight = pool.ask(LevelModes, *nothing, np.zeros(size))
    return products, float(weight)


def _frames(pool, kind, shared):
    """Matrices of the root and the coefficients of raw features, and the columns' spreads.

    The search is in units in which columns have the size 1, and about the mean row where the model
    is the same about any row: in the coefficients, and in a full covariance.
    """
    model, d = pool.model, pool.n_params
    sizes, mean = np.ones(d), np.zeros(d)
    if model.standardize or not model.n_features:
        return np.eye(d), np.eye(d), sizes
    products, weight = level_products(pool)
    total = products[d - 1, d - 1] if model.fit_intercept else weight
    squares = products.diagonal()[:d] / total
    sizes = np.sqrt(np.where(squares > 0, squares, 1.0))
    spreads = sizes.copy()
    if model.fit_intercept:
        sizes[-1] = spreads[-1] = 1.0
        mean[:-1] = products[: d - 1, d - 1] / total
        variances = squares - mean**2
        varies = variances > CONSTANT * squares
        varies[-1] = False
        far = varies & (variances < LEAST_SPREAD * squares)
        if far.any() and model.quadratic:
            k = int(far.argmax())
            raise ValueError(
                f"X has feature {k} with the mean {mean[k]:.3g} and the standard deviation "
                f"{variances[k] ** 0.5:.3g}: too far from zero for sums of squares with crossed "
                "or nested groupings and standardize=False. Subtract the mean, or set "
                "standardize=True."
            )
        mean = np.where(varies, mean, 0.0)
        spreads[varies] = np.sqrt(variances[varies])
    about_mean = np.diag(1.0 / spreads)
    if model.fit_intercept:
        about_mean[-1] -= mean / spreads
    if kind == "full":
        return about_mean, about_mean, spreads
    own = sizes
    if shared is not None:
        # One variable of several columns has one unit.
        number = np.unique(shared, return_inverse=True)[1]
        own = np.exp(np.bincount(number, np.log(sizes)) / np.bincount(number))[number]
    return np.diag(1.0 / own), about_mean, spreads


def fit_crossed(pool, kind, varying, free, prior, max_iter, shared=None):
    """Fit of greatest likelihood with a covariance of a kind.

    Parameters
    ----------
    pool : ClientPool
        Clients of a :class:`~skcfl.models._levelled.LevelledModel`, squared error.
    kind : {"diag", "full", "intercept", "none"}
        Covariance of the clients' coefficients.
    varying, free : ndarray of shape (d,) of bool
        Coefficients that differ between clients, and those without a prior.
    prior : "auto" or float
        Variance of the prior of the slopes: estimated, or infinite.
    max_iter : int
        Most evaluations.
    shared : ndarray of shape (d,) of int, default=None
        Numbers of the coefficients that share a variance, under "diag".

    Returns
    -------
    fit : CrossedFit
    """
    return fitted(Deviance(pool, kind, varying, free, prior == "auto", shared), max_iter)


def fitted(deviance, max_iter):
    """Fit of least deviance."""
    x, converged = _least(deviance, max_iter)
    value, effects, errors, phi, weight = deviance.outcome(x)
    root, spreads, sizes = deviance.parts(x)
    model, means, prior = deviance.pool.model, effects[: deviance.d], np.inf
    if model.quadratic:  # its products are about the origin
        means = means + model.origin
    if deviance.shrunken:
        prior, sizes = max(float(phi * sizes[0] ** 2), 1e-300), sizes[1:]
    return CrossedFit(
        kind=deviance.kind,
        root=root,
        spreads=spreads,
        sizes=sizes,
        prior=prior,
        means=means,
        effects=effects,
        errors=errors,
        dispersion=phi,
        loglik=-0.5 * value,
        n_variances=deviance.n_variances,
        weight=float(weight),
        trail=deviance.trail or [-0.5 * value],
        converged=converged,
        n_dispersions=int(model.quadratic),
    )


def _least(deviance, max_iter):
    """Variables at the least deviance, and whether the search ended."""
    x, converged = deviance.start(), True
    if len(x):
        tolerances = {"ftol": CHANGE, "gtol": deviance.slope}
        options = {**tolerances, "maxfun": max_iter, "maxiter": max_iter, "maxcor": MEMORY}
        with loop("exchange", max_iter):
            found = minimize(deviance, x, jac=True, method="L-BFGS-B", options=options)
        x = deviance.without_nothing(found.x)
        converged = bool(found.success or found.nfev < max_iter)
    return x, converged


def best_crossed(pool, kinds, *about, fit=fit_crossed):
    """Fits of several covariances, by kind, the one of least BIC first."""
    n = int((~pool.without_rows).sum())
    if n < 2:
        kinds = ["none"]
    fits = [fit(pool, kind, *about) for kind in kinds]
    return sorted(fits, key=lambda each: each.criterion(n))


def nested_effects(pool, fit):
    """Effects of the levels inside each client, (n_clients, n_levels), NaN where it has none."""
    known = fit.root, fit.spreads, fit.effects
    call = NestedEffects if pool.model.quadratic else NestedModes
    inside, met = pool.ask(call, *known, int(sum(pool.model.nested)))
    return np.where(met, inside, np.nan)


def population_of(fit, pool, options):
    """The population of the clients' coefficients, levels left out."""
    start = pooled(pool, options).population
    covariance = fit.dispersion * fit.root @ fit.root.T
    varying = covariance.diagonal() > 0 if fit.kind in {"intercept", "none"} else start.varying
    kind = fit.kind if fit.kind in {"full", "none"} else "diag"
    return replace(
        start,
        kind=kind,
        means=fit.means[None],
        covariance=covariance if kind == "full" else covariance.diagonal().copy(),
        dispersion=fit.dispersion,
        prior=np.full(1, fit.prior),
        varying=varying,
        spent=0.0,
    )
