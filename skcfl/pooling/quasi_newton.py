"""The last steps to the maximum of a likelihood, where its gradient is known.

Where a variance, or one of a combination of parameters, is best at zero, steps of EM get shorter
and shorter.  Quasi-Newton steps (L-BFGS) in the coordinates of ``covariance_charts.py``, and in
units of the expected curvature, end in some ten exchanges.

For squared errors the clients' sums are the gradient, and :func:`climb` goes to the maximum.  For
other losses they are that of Laplace's approximation but for how its determinant moves with the
modes; where they vanish is where EM ends, and :func:`settle` goes there along slopes.
"""

from dataclasses import replace

import numpy as np
from scipy import sparse
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.special import softmax

from .._progress import loop
from .covariance_charts import covariance_chart
from .heavy_tails import df_slope
from .population import LEAST_DF, LEAST_WEIGHT, MOST_DF

# Steps that L-BFGS remembers.
MEMORY = 30
# Longest first step, in units in which the log-likelihood curves by one.
FIRST = 3.0
# Longest of the next steps of :func:`settle`, relative to the one before. Benchmark:
# benchmarks/fits.py --only weights, half of the exchanges.
FURTHER = 2.0
# Least part of the rows that tells of the dispersion, whatever the covariance takes of them.
LEAST_KNOWN = 0.1
# Least curvature of a combination of coordinates, relative to that of each: that of rounding.
SINGULAR = 1e-10
# Least relative gain of an iteration of L-BFGS: that of rounding.
LEAST_GAIN = 1e-14
# Slope at the end of a step, relative to that at its start, below which the step is too long: it
# went past the place where slopes vanish. Benchmark: benchmarks/fits.py --only weights, 13 of 60
# tables end lower by a nat and more; 9 with it.
OVERSHOT = -0.5
# Steps without a more likely population at which slopes and likelihood are at odds. Benchmark: as
# of OVERSHOT, 12 of 60 with 5; without it 8, and two thirds more exchanges.
PATIENCE = 10
# Factor of a step that is too long, and the least part of it that is tried.
SHORTER, SHORTEST = 0.3, 1e-3


class Chart:
    """Coordinates without bounds of populations like one: means, covariance, shares, dispersion.

    In units in which the log-likelihood curves by about one.

    Parameters
    ----------
    fit : Fit
        The population in whose surroundings they are, and its sums.
    whiten : ndarray of shape (K p, m)
        Moves of the means by coordinates of their own.
    dispersion_of : callable or None
        Dispersion of greatest likelihood, of the mean deviance of a row; None where the dispersion
        is not to be changed.
    df_known : bool
        Whether the degrees of freedom are not to be changed.
    """

    def __init__(self, fit, whiten, dispersion_of, df_known):
        self.population, self.whiten = fit.population, whiten
        self.dispersion_of, self.df_known = dispersion_of, df_known
        population = fit.population
        self.n = max(float(fit.sums["counts"].sum()), 1.0)
        self.rows = float(fit.sums["weight"])
        self.least = population.least
        if dispersion_of is not None:
            self.least = max(self.least, float(dispersion_of(0.0)))
        self.variances = covariance_chart(population)
        factor = self.variances.start
        weights = np.log(np.maximum(population.weights, LEAST_WEIGHT))
        self.sizes = np.cumsum([whiten.shape[1], len(factor), len(weights), 1])
        scales = [] if df_known else [np.sqrt(0.5 * self.n)]
        shares = np.full(len(weights), np.sqrt(self.n))
        self.scale = np.concatenate([np.ones(self.sizes[1]), shares, [1.0], scales])
        #: Covariance and dispersion, which are coupled, and the inverse root of their curvature.
        self.curved = np.append(np.arange(*self.sizes[:2]), self.sizes[2])
        root, self.unroot = self._roots(fit)
        start = np.zeros(whiten.shape[1]), factor, weights, [np.log(population.dispersion)]
        start += ([] if df_known else [np.log(population.df)],)
        start = np.concatenate(start)
        self.start = self.scale * start
        self.start[self.curved] = root.T @ start[self.curved]

    def _roots(self, fit):
        """Cholesky root of the curvature along covariance and dispersion, and its inverse."""
        curved, taken, cross = self.variances.curvature(fit, self.n)
        rows = max(self.rows - self.population.spent, 1e-300)
        least = 0.5 * LEAST_KNOWN * rows
        if isinstance(curved, list):
            roots = [*map(_root_of, curved), np.sqrt([[0.5 * rows]])]
            inverses = [np.linalg.inv(root) for root in roots]
            return sparse.block_diag(roots, "csr"), sparse.block_diag(inverses, "csr")
        root = np.zeros((len(curved) + 1, len(curved) + 1))
        root[:-1, :-1] = _root_of(curved)
        root[-1, :-1] = solve_triangular(root[:-1, :-1], self.n * cross, lower=True)
        known = 0.5 * (rows - self.n * taken) - float((root[-1] ** 2).sum())
        root[-1, -1] = np.sqrt(max(known, least))
        return root, np.linalg.inv(root)

    def _parts(self, z):
        """Moves of the means, covariance, shares, dispersion and df at coordinates."""
        x = z / self.scale
        x[self.curved] = self.unroot.T @ z[self.curved]
        return np.split(x, self.sizes)

    def at(self, z):
        """The population at coordinates."""
        population = self.population
        moves, factor, weights, phi, df = self._parts(z)
        dispersion = population.dispersion
        if self.dispersion_of is not None:
            dispersion = float(np.exp(max(phi[0], np.log(self.least))))
        bounds = np.log([LEAST_DF, MOST_DF])
        df = population.df if self.df_known else float(np.exp(np.clip(df[0], *bounds)))
        return replace(
            population,
            means=population.means + (self.whiten @ moves).reshape(population.means.shape),
            covariance=self.variances.covariance(factor),
            weights=softmax(weights),
            dispersion=dispersion,
            df=df,
        )

    def gradient(self, z, fit):
        """Of the log-likelihood minus the penalty, from the sums there (Fisher's identity)."""
        population, sums = fit.population, fit.sums
        slopes = sums["slopes"] - population.precision * population.means
        factor = self.variances.slopes(self._parts(z)[1], fit, self.n)
        shares = sums["counts"] - self.n * population.weights
        rows = self.rows - population.spent
        phi = 0.0
        if self.dispersion_of is not None:
            best = self.dispersion_of(float(sums["scatter"]) / rows)
            phi = 0.5 * rows * (best / population.dispersion - 1.0)
        if population.dispersion <= self.least * (1.0 + 1e-9) and phi < 0:
            phi = 0.0  # where the floor holds it
        parts = self.whiten.T @ slopes.ravel(), factor, shares, [phi]
        if not self.df_known:
            # Zero where a bound holds them.
            rise = population.df * df_slope(population.df, self.n, float(sums["tails"]))
            outward = population.df <= LEAST_DF and rise < 0
            outward |= population.df >= MOST_DF and rise > 0
            parts += ([0.0 if outward else rise],)
        slopes = np.concatenate(parts)
        curved = self.unroot @ slopes[self.curved]
        slopes /= self.scale
        slopes[self.curved] = curved
        return slopes


def _root_of(curved):
    """Cholesky root of a curvature that may be singular."""
    size = np.sqrt(np.diag(curved))
    curved = curved / (size[:, None] * size)
    rounding = -float(np.linalg.eigvalsh(curved).min(initial=0.0))
    curved += (SINGULAR + 2.0 * rounding) * np.eye(len(curved))
    return size[:, None] * np.linalg.cholesky(curved)


def climb(evaluate, fit, whiten, dispersion_of, df_known, max_iter, gain):
    """The maximum near a fit, for squared errors.

    Parameters
    ----------
    evaluate : callable
        Fit of a population.
    fit : Fit
        The start.
    whiten : ndarray of shape (K p, m)
        Moves of the means by coordinates in which the likelihood curves by about one.
    dispersion_of, df_known : callable or None, bool
        See :class:`Chart`.
    max_iter : int
        Most exchanges, about.
    gain : float
        Of the log-likelihood, in a step, at which to stop.

    Returns
    -------
    fit : Fit
        No less likely than the start; exchanges and steps are added to its own. Converged unless
        `max_iter` ended it.
    """
    chart = Chart(fit, whiten, dispersion_of, df_known)
    best, trail, known, n_iter = fit, list(fit.trail), {}, fit.n_iter

    def asked(z):
        nonlocal best, n_iter
        trial, n_iter = evaluate(chart.at(z)), n_iter + 1
        if trial.value > best.value:
            best = trial
        return trial

    def minus(z):
        trial = known.pop(z.tobytes(), None)
        trial = asked(z) if trial is None else trial
        return -trial.value, -chart.gradient(z, trial)

    # The first step is Newton's, with the expected curvature, which is one.
    start, slopes = chart.start, chart.gradient(chart.start, fit)
    if not gain < 0.5 * float(slopes @ slopes) < np.inf:
        return replace(fit, converged=True)
    ahead = start + slopes * min(1.0, FIRST / np.linalg.norm(slopes))
    trial = asked(ahead)
    if trial.value >= fit.value:
        start, slopes = ahead, chart.gradient(ahead, trial)
        known[start.tobytes()] = trial
        trail.append((trial.loglik, trial.value))
        if 0.5 * float(slopes @ slopes) <= gain:
            return replace(trial, n_iter=n_iter, converged=True, trail=trail)

    def step(z):
        trail.append((best.loglik, best.value))
        if progress.tell(log_likelihood=best.loglik):
            raise StopIteration
        progress.begin()

    with loop("step", max_iter, "quasi-Newton steps") as progress:
        progress.begin()
        found = minimize(
            minus,
            start,
            jac=True,
            method="L-BFGS-B",
            callback=step,
            options={
                "maxcor": MEMORY,
                "maxfun": max_iter,
                "maxiter": max_iter,
                "gtol": 0.0,
                "ftol": max(gain / max(abs(fit.value), 1.0), LEAST_GAIN),
            },
        )
    done = found.nfev < max_iter and not progress.stopped
    return replace(best, n_iter=n_iter, converged=done, trail=trail)


def settle(evaluate, fit, whiten, dispersion_of, df_known, max_iter, gain):
    """The population near a fit where slopes vanish, for any loss.

    Quasi-Newton steps that see slopes only: what they approach is not quite where the likelihood
    is greatest, and a step may lower it.

    Parameters
    ----------
    evaluate, fit, whiten, dispersion_of, df_known, max_iter
        See :func:`climb`.
    gain : float
        Of the log-likelihood, expected of a step, at which to stop.

    Returns
    -------
    fit : Fit
        The most likely of the populations on the way; exchanges and steps are added to its own.
        Converged unless `max_iter`, or a step that must be too short, ended it.
    """
    chart = Chart(fit, whiten, dispersion_of, df_known)
    z, slopes, best, pairs = chart.start, chart.gradient(chart.start, fit), fit, []
    trail, n_iter, done = list(fit.trail), fit.n_iter, False
    highest, length, far = len(trail), 1.0, FIRST
    with loop("step", max_iter, "quasi-Newton steps") as progress:
        while n_iter < max_iter and length >= SHORTEST and not progress.stopped:
            ahead = _ahead(pairs, slopes)
            rise = float(slopes @ ahead)
            done = 0.5 * rise <= gain
            if done:
                break
            progress.begin()
            move = length * min(1.0, far / np.linalg.norm(ahead)) * ahead
            trial, n_iter = evaluate(chart.at(z + move)), n_iter + 1
            there = chart.gradient(z + move, trial)
            left = float(there @ ahead) if np.isfinite(trial.value) else -np.inf
            if not left >= OVERSHOT * rise:
                length *= SHORTER
                continue
            if float(move @ (slopes - there)) > 0.0:
                pairs = [*pairs, (move, slopes - there)][-MEMORY:]
            z, slopes, length = z + move, there, 1.0
            far = max(FIRST, FURTHER * float(np.linalg.norm(move)))
            trail.append((trial.loglik, trial.value))
            if trial.value > best.value:
                best, highest = trial, len(trail)
            elif len(trail) - highest >= PATIENCE:
                done = True
                break
            progress.tell(log_likelihood=trial.loglik)
    return replace(best, n_iter=n_iter, converged=done, trail=trail[:highest])


def _ahead(pairs, slopes):
    """Step of L-BFGS (two loops), from moves and how much less the slopes were after them."""
    step, shares = slopes.copy(), []
    for move, change in reversed(pairs):
        shares.append(float(move @ step) / float(move @ change))
        step -= shares[-1] * change
    for (move, change), share in zip(pairs, reversed(shares), strict=True):
        step += (share - float(change @ step) / float(move @ change)) * move
    return step
