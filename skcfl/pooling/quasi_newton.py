"""The last steps to the maximum of a likelihood, where its gradient is known.

Where a variance, or one of a combination of parameters, is best at zero, steps of EM get shorter
and shorter.  In a factor T of ``Sigma = D (T T' + floor) D`` the likelihood is smooth there:
quasi-Newton steps (L-BFGS) end in some tens of exchanges.  Squared errors only: of Laplace's
approximation the clients' sums are not the gradient.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import minimize

from .._progress import loop
from .heavy_tails import df_slope
from .population import FLOOR, LEAST_DF, LEAST_DISPERSION, LEAST_WEIGHT, MOST_DF

# Steps that L-BFGS remembers.
MEMORY = 30
# Least relative gain of an iteration of L-BFGS: that of rounding.
LEAST_GAIN = 1e-14


class Chart:
    """Coordinates without bounds of populations like one: means, T, shares and dispersion.

    In units in which the log-likelihood curves by about one.

    Parameters
    ----------
    fit : Fit
        The population in whose surroundings they are, and its sums.
    whiten : ndarray of shape (K p, m)
        Moves of the means by coordinates of their own.
    scale_known, df_known : bool
        Whether the dispersion, and the degrees of freedom, are not to be changed.
    """

    def __init__(self, fit, whiten, scale_known, df_known):
        self.population, self.whiten = fit.population, whiten
        self.scale_known, self.df_known = scale_known, df_known
        population, varying = fit.population, fit.population.varying
        self.n = max(float(fit.sums["counts"].sum()), 1.0)
        self.rows = float(fit.sums["weight"])
        self.least = LEAST_DISPERSION * float(population.unit.max())
        self.unit = population.unit[varying]
        if population.kind == "full":
            values, vectors = np.linalg.eigh(population.scaled)
            root = np.sqrt(np.maximum(values - FLOOR, FLOOR))[:, None] * vectors.T
            factor = np.linalg.qr(root, mode="r").T
            self.lower = np.tril_indices(len(factor))
            factor = factor[self.lower]
        elif population.kind == "none":
            factor = np.zeros(0)
        else:
            scaled = population.covariance[varying]
            if population.kind == "spherical":
                self.unit = self.unit.mean()
            # One factor for each variance.
            first = np.unique(population.owner, return_index=True)[1]
            factor = np.sqrt(np.maximum((scaled / self.unit)[first] - FLOOR, FLOOR))
        weights = np.log(np.maximum(population.weights, LEAST_WEIGHT))
        self.sizes = np.cumsum([whiten.shape[1], len(factor), len(weights), 1])
        scale = np.sqrt(self.n), np.sqrt(self.n), np.sqrt(0.5 * self.rows), np.sqrt(0.5 * self.n)
        n_scales = 0 if df_known else 1
        self.scale = np.repeat([1.0, *scale], [*np.diff(self.sizes, prepend=0), n_scales])
        start = np.zeros(whiten.shape[1]), factor, weights, [np.log(population.dispersion)]
        start += ([] if df_known else [np.log(population.df)],)
        self.start = self.scale * np.concatenate(start)

    def at(self, z):
        """The population at coordinates."""
        population = self.population
        moves, factor, weights, phi, df = np.split(z / self.scale, self.sizes)
        if population.kind == "full":
            covariance = population.of_scaled(self._square(factor))
        elif population.kind == "none":
            covariance = population.covariance
        else:
            covariance = np.zeros_like(population.unit)
            covariance[population.varying] = self.unit * (factor[population.owner] ** 2 + FLOOR)
        weights = np.exp(weights - weights.max())
        dispersion = population.dispersion
        if not self.scale_known:
            dispersion = float(np.exp(max(phi[0], np.log(self.least))))
        bounds = np.log([LEAST_DF, MOST_DF])
        df = population.df if self.df_known else float(np.exp(np.clip(df[0], *bounds)))
        return replace(
            population,
            means=population.means + (self.whiten @ moves).reshape(population.means.shape),
            covariance=covariance,
            weights=weights / weights.sum(),
            dispersion=dispersion,
            df=df,
        )

    def _square(self, factor):
        T = self._triangle(factor)
        return T @ T.T + FLOOR * np.eye(len(T))

    def _triangle(self, factor):
        p = np.count_nonzero(self.population.varying)
        T = np.zeros((p, p))
        T[self.lower] = factor
        return T

    def gradient(self, z, fit):
        """Of the log-likelihood minus the penalty, from the sums there (Fisher's identity)."""
        population, sums = fit.population, fit.sums
        factor = np.split(z / self.scale, self.sizes)[1]
        slopes = sums["slopes"] - population.precision * population.means
        varying = population.varying
        if population.kind == "full":
            values, vectors = np.linalg.eigh(population.scaled)
            excess = sums["squares"][0][np.ix_(varying, varying)] - self.n * np.eye(len(values))
            back = vectors / np.sqrt(np.maximum(values, FLOOR))
            excess = back @ excess @ back.T
            if population.shrinkage:
                excess -= population.penalty_slope(population.scaled)
            own = (excess @ self._triangle(factor))[self.lower]
        elif population.kind == "none":
            own = factor
        else:
            excess = np.bincount(population.owner, sums["squares"][0][varying] - self.n)
            own = factor * excess / (factor**2 + FLOOR)
        shares = sums["counts"] - self.n * population.weights
        rows = self.rows - population.spent
        phi = 0.5 * (float(sums["scatter"]) / population.dispersion - rows)
        if population.dispersion <= self.least * (1.0 + 1e-9) and phi < 0:
            phi = 0.0  # where the floor holds it
        parts = self.whiten.T @ slopes.ravel(), own, shares, [0.0 if self.scale_known else phi]
        if not self.df_known:
            # Zero where a bound holds them.
            rise = population.df * df_slope(population.df, self.n, float(sums["tails"]))
            outward = population.df <= LEAST_DF and rise < 0
            outward |= population.df >= MOST_DF and rise > 0
            parts += ([0.0 if outward else rise],)
        return np.concatenate(parts) / self.scale


def climb(evaluate, fit, whiten, scale_known, df_known, max_iter, gain):
    """The maximum near a fit.

    Parameters
    ----------
    evaluate : callable
        Fit of a population.
    fit : Fit
        The start.
    whiten : ndarray of shape (K p, m)
        Moves of the means by coordinates in which the likelihood curves by about one.
    scale_known, df_known : bool
        Whether the dispersion, and the degrees of freedom, are not to be changed.
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
    chart = Chart(fit, whiten, scale_known, df_known)
    best, trail = fit, list(fit.trail)

    def minus(z):
        nonlocal best
        trial = evaluate(chart.at(z))
        if trial.value > best.value:
            best = trial
        return -trial.value, -chart.gradient(z, trial)

    def step(z):
        trail.append((best.loglik, best.value))
        if progress.tell(log_likelihood=best.loglik):
            raise StopIteration
        progress.begin()

    with loop("step", max_iter, "quasi-Newton steps") as progress:
        progress.begin()
        found = minimize(
            minus,
            chart.start,
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
    n_iter = fit.n_iter + found.nfev
    done = found.nfev < max_iter and not progress.stopped
    return replace(best, n_iter=n_iter, converged=done, trail=trail)
