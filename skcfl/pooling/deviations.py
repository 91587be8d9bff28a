"""How far clients differ: standard deviations of their coefficients, with intervals.

Effects are at the mean row, and of a standard deviation of each feature.  The deviation of one
effect is varied while the other deviations, the correlations and the dispersion stay as they were
fitted; the means follow by generalised least squares, and their errors are taken from the
likelihood (REML: Patterson and Thompson 1971).  An interval has the deviations whose restricted
log-likelihood is less than the greatest by half a quantile of chi squared with one degree of
freedom at most; it begins at zero where zero is among them.
"""

import numpy as np
from scipy.interpolate import CubicSpline

from ..calls.posteriors_asked import PosteriorSums

# Fall of the log-likelihood at the ends of a 95 % interval: half a quantile of chi squared.
FALL = 1.920729
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
    about = pool, population, S, back
    found = [_interval(*about, j, max(fitted[j], seen[j]), noise[j], n) for j in place]
    estimate, lower, upper = np.array(found).reshape(-1, 3).T
    return {
        "fitted": fitted,
        "place": place,
        "estimate": estimate,
        "lower": lower,
        "upper": upper,
    }


def _interval(pool, population, S, back, j, size, noise, n):
    """Deviation of greatest restricted likelihood, and the ends of its interval.

    The likelihood is near a parabola in ``t = log(s^2 + noise)``, of the curvature ``n / 2`` where
    all clients have as many rows.
    """
    step, least = STEP * np.sqrt(2.0 / n), np.log(noise)

    def deviation(t):
        return np.sqrt(noise * np.expm1(t - least))

    def value(t):
        return _restricted(pool, population, _with_deviation(S, j, deviation(t)), back)

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
    return deviation(fine[[best, inside[0], inside[-1]]])


def _with_deviation(S, j, s):
    """Covariance of effects with another deviation of one of them."""
    S, own = S.copy(), np.sqrt(max(S[j, j], 0.0))
    ratio = s / own if own > 0 else 0.0
    S[j] *= ratio
    S[:, j] *= ratio
    S[j, j] = s**2
    return S


def _restricted(pool, population, S, back):
    """Restricted log-likelihood of a covariance of effects."""
    values, vectors = np.linalg.eigh(S)
    root = back @ (vectors * np.sqrt(np.maximum(values, 0.0)))
    sums = pool.ask(
        PosteriorSums,
        population.means,
        root,
        population.weights,
        population.dispersion,
        population.df,
        dense=True,
    )
    A = sums["curvature"][0] + np.diag(population.precision[0])
    g = sums["slopes"][0] - population.precision[0] * population.means[0]
    values, vectors = np.linalg.eigh(A)
    kept = values > 1e-10 * values[-1]
    turned = (vectors.T @ g)[kept]
    gain = 0.5 * float((turned**2 / values[kept]).sum())
    return float(sums["evidence"]) + gain - 0.5 * float(np.log(values[kept]).sum())
