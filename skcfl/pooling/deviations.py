"""How far clients differ: standard deviations of their coefficients, with intervals.

Effects are at the mean row, and of a standard deviation of each feature.  The deviation of one
effect is varied while the other deviations, the correlations and the dispersion stay as they were
fitted; the means follow by generalised least squares, and their errors are taken from the
likelihood (REML: Patterson and Thompson 1971).  An interval has the deviations whose restricted
log-likelihood is less than the greatest by half a quantile of chi squared with one degree of
freedom at most; it begins at zero where zero is among them.
"""

import numpy as np
from scipy.interpolate import PchipInterpolator

from ..calls.posteriors_asked import PosteriorSums

# Fall of the log-likelihood at the ends of a 95 % interval: half a quantile of chi squared.
FALL = 1.920729
# Deviations that are tried, as parts of the fitted one or of the least that can be seen.
GRID = np.array([0.0, 0.35, 0.7, 1.0, 1.4, 2.0, 3.0])
# Doublings of the largest one where the likelihood has not fallen by then.
DOUBLINGS = 5
# Largest number of effects that have intervals: those with the largest deviations.
MOST_EFFECTS = 8
# Floating-point operations of all intervals above which there are fewer.
MOST_WORK = 2e10
FINE = 400


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
    # A client's effect is known to about this, and deviations of n clients better.
    seen = np.sqrt(row / rows) * (2.0 / n) ** 0.25
    allowed = np.flatnonzero(population.varying & np.isfinite(seen) & (np.diag(curvature) > 0))
    most = min(MOST_EFFECTS, int(MOST_WORK / (len(GRID) * n * p**3)))
    place = allowed[np.argsort(-fitted[allowed], kind="stable")][:most]
    found = [_interval(pool, population, S, back, j, max(fitted[j], seen[j])) for j in place]
    estimate, lower, upper = np.array(found).reshape(-1, 3).T
    return {
        "fitted": fitted,
        "place": place,
        "estimate": estimate,
        "lower": lower,
        "upper": upper,
    }


def _interval(pool, population, S, back, j, size):
    """Deviation of greatest restricted likelihood, and the ends of its interval."""

    def value(s):
        return _restricted(pool, population, _with_deviation(S, j, s), back)

    at = GRID * size
    values = np.array([value(s) for s in at])
    for _ in range(DOUBLINGS):
        if values.max() - values[-1] > FALL:
            break
        at = np.append(at, 2.0 * at[-1])
        values = np.append(values, value(at[-1]))
    known = np.isfinite(values)
    at, values = at[known], values[known]
    if len(at) < 2:
        return np.nan, np.nan, np.nan
    fine = np.linspace(0.0, at[-1], FINE * len(at) // len(GRID))
    curve = PchipInterpolator(at, values)(fine)
    # The greatest value lies between points: by the parabola through the best three.
    k = int(values.argmax())
    best, top = at[k], values[k]
    if 0 < k < len(at) - 1:
        a, b, _ = np.polyfit(at[k - 1 : k + 2] - at[k], values[k - 1 : k + 2] - values[k], 2)
        if a < 0:
            # Where it falls steeply it is no parabola.
            best, top = at[k] - b / (2 * a), min(values[k] - b**2 / (4 * a), top + 0.5 * FALL)
    inside = np.append(fine[curve >= top - FALL], best)
    return best, inside.min(), inside.max()


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
