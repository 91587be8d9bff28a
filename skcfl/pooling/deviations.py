"""How far clients differ: standard deviations of their coefficients, with intervals.

Effects are at the mean row, and of a standard deviation of each feature.  The deviation of one
effect is varied.  If the covariance is full, the other deviations and the correlations follow,
about as the likelihood wants them; else, and with three and more classes, they stay as they were
fitted.  The dispersion always stays.  The means follow by generalised least squares, and their
errors are taken from the likelihood (REML: Patterson and Thompson 1971).  An interval has the
deviations whose restricted log-likelihood is less than the greatest by half a quantile of chi
squared with one degree of freedom at most.  It begins at zero unless a test rejects zero, which
counts the correlations that follow: they are zero with it.
"""

from functools import partial

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq
from scipy.stats import chi2

from ..calls.posteriors_asked import PosteriorSums

# Fall of the log-likelihood at the ends of a 95 % interval: half a quantile of chi squared.
FALL = 1.920729
# Least information on a combination of parameters, relative to the greatest: that of rounding.
SINGULAR = 1e-10
# Deviations that are tried, in standard errors: between two of them, to both sides of the fitted
# one or of the least that can be seen, and more where the likelihood has not fallen by then.
STEP, REACH, MOST_STEPS = 1.25, 3, 12
# Largest number of effects that have intervals: those with the largest deviations.
MOST_EFFECTS = 8
# Floating-point operations of all intervals above which there are fewer.
MOST_WORK = 2e10
FINE = 4000


def deviations(pool, population, common, transform):
    """Standard deviations of effects, of a population of one cluster.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    population : Population
        Of one cluster, all of whose parameters vary that may.
    common : CommonModels
        One model for all clients, with its curvature.
    transform : ndarray of shape (p, p)
        From parameters to effects.

    Returns
    -------
    found : dict of str to ndarray
        "fitted" (p,), deviations of the effects as fitted; "place" (m,), those with intervals;
        "estimate", "lower", "upper" (m,).
    """
    S = transform @ population.covariance_matrix() @ transform.T
    fitted = np.sqrt(np.maximum(np.diag(S), 0.0))
    p, n = len(fitted), max(int((~pool.without_rows).sum()), 1)
    back = np.linalg.pinv(transform)
    curvature = back.T @ common.curvature[0] @ back
    rows = max(float(pool.client_weights.sum()) / n, 1.0)
    with np.errstate(divide="ignore"):
        row = population.dispersion / (np.diag(curvature) / (n * rows))
    # A client's effect is known to about this variance, and deviations of n clients better.
    noise = row / rows
    seen = np.sqrt(noise) * (2.0 / n) ** 0.25
    allowed = np.flatnonzero(population.varying & np.isfinite(seen) & (np.diag(curvature) > 0))
    most = min(MOST_EFFECTS, int(MOST_WORK / ((2 * REACH + 1) * n * p**3)))
    place = allowed[np.argsort(-fitted[allowed], kind="stable")][:most]
    moved, n_correlations = _with_deviation, 0
    if population.kind == "full" and len(place):
        at = np.ix_(population.varying, population.varying)
        information = _sums(pool, population, S, back)["curvature"][0][at] / n
        size = np.sqrt(np.maximum(np.diag(information), 1e-300))
        # With three and more classes all intercepts may move by the same: regressions of the
        # others on one class are not known.
        if np.linalg.eigvalsh(information / (size[:, None] * size))[0] > SINGULAR:
            effects = transform[:, population.varying]
            moved = _following(population.covariance[at], information, effects)
            n_correlations = len(size) - 1

    def value(j, s):
        return _restricted(pool, population, moved(S, j, s), back)

    found = [
        _interval(partial(value, j), max(fitted[j], seen[j]), noise[j], n, n_correlations)
        for j in place
    ]
    estimate, lower, upper = np.array(found).reshape(-1, 3).T
    return {
        "fitted": fitted,
        "place": place,
        "estimate": estimate,
        "lower": lower,
        "upper": upper,
    }


def _interval(value_of, size, noise, n, n_correlations):
    """Deviation of greatest restricted likelihood, and the ends of its interval.

    The likelihood is near a parabola in ``t = log(s^2 + noise)``, of the curvature ``n / 2`` where
    all clients have as many rows.
    """
    step, least = STEP * np.sqrt(2.0 / n), np.log(noise)

    def deviation(t):
        return np.sqrt(noise * np.expm1(t - least))

    def value(t):
        return value_of(deviation(t))

    at = np.log(size**2 + noise) + step * np.arange(-REACH, REACH + 1)
    at = np.unique(np.maximum(at, least))
    values = np.array([value(t) for t in at])
    for _ in range(MOST_STEPS):
        low, high = values.max() - values[[0, -1]] <= FALL
        if low and at[0] > least:
            at = np.append(max(at[0] - step, least), at)
            values = np.append(value(at[0]), values)
        elif high:
            at = np.append(at, at[-1] + step)
            values = np.append(values, value(at[-1]))
        else:
            break
    known = np.isfinite(values)
    if known.sum() < 4:
        return np.nan, np.nan, np.nan
    fine = np.linspace(at[known][0], at[known][-1], FINE)
    curve = CubicSpline(at[known], values[known])(fine)
    best = int(curve.argmax())
    inside = np.flatnonzero(curve >= curve[best] - FALL)
    estimate, lower, upper = deviation(fine[[best, inside[0], inside[-1]]])
    if n_correlations and lower > 0.0:
        zero = values[0] if at[0] == least else value(least)
        if curve[best] - zero <= _fall_at_zero(n_correlations):
            lower = 0.0
    return estimate, lower, upper


def _fall_at_zero(n_correlations):
    """Fall of the log-likelihood from which on a deviation of zero is rejected.

    Half a quantile of chi squared with a degree of freedom for each correlation of the effect, in
    half of the cases with one more (Self and Liang 1987).
    """
    degrees = np.array([n_correlations, n_correlations + 1])
    most = chi2.isf(0.05, degrees[1])
    return 0.5 * brentq(lambda x: chi2.sf(x, degrees).mean() - 0.05, 0.0, most)


def _following(covariance, information, transform):
    """Function that gives one effect another deviation, and the others what fits it.

    If all clients have the same information on their parameters, estimates of their effects have
    one covariance ``W``.  Its likelihood has two factors, the variance of the estimate of effect j
    and the regressions of the others on it.  Another variance leaves the regressions as they are,
    unless the covariance of the effects were no covariance any more.

    Parameters
    ----------
    covariance : ndarray of shape (q, q)
        Of the parameters that vary, as fitted.
    information : ndarray of shape (q, q)
        Mean information of a client on them, the inverse of W.
    transform : ndarray of shape (p, q)
        From them to effects.
    """
    # From coordinates in which W is the identity, and the fitted covariance in them.
    root = np.linalg.cholesky(information)
    effects, fitted = np.linalg.solve(root, transform.T).T, root.T @ covariance @ root

    def moved(S, j, s):
        if s == 0.0:
            return _with_deviation(S, j, s)
        along = effects[j] / (effects[j] @ effects[j])
        values, vectors = np.linalg.eigh(fitted + (s**2 - S[j, j]) * np.outer(along, along))
        root = effects @ vectors * np.sqrt(np.maximum(values, 0.0))
        return _with_deviation(root @ root.T, j, s)

    return moved


def _with_deviation(S, j, s):
    """Covariance of effects with another deviation of one effect; nothing else follows."""
    S, own = S.copy(), np.sqrt(max(S[j, j], 0.0))
    ratio = s / own if own > 0 else 0.0
    S[j] *= ratio
    S[:, j] *= ratio
    S[j, j] = s**2
    return S


def _restricted(pool, population, S, back):
    """Restricted log-likelihood of a covariance of effects."""
    sums = _sums(pool, population, S, back)
    # Those of effects: features in units of their own would make others rounding.
    A = back.T @ (sums["curvature"][0] + np.diag(population.precision[0])) @ back
    g = back.T @ (sums["slopes"][0] - population.precision[0] * population.means[0])
    values, vectors = np.linalg.eigh(A)
    kept = values > SINGULAR * values[-1]
    turned = (vectors.T @ g)[kept]
    gain = 0.5 * float((turned**2 / values[kept]).sum())
    return float(sums["evidence"]) + gain - 0.5 * float(np.log(values[kept]).sum())


def _sums(pool, population, S, back):
    """Sums over the clients for a covariance of effects."""
    values, vectors = np.linalg.eigh(S)
    root = back @ (vectors * np.sqrt(np.maximum(values, 0.0)))
    about = population.weights, population.dispersion, population.df
    return pool.ask(PosteriorSums, population.means, root, *about, dense=True)
