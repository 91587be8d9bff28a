"""Privacy of Gaussian noise: what (epsilon, delta) a noise multiplier gives, and the reverse.

A *release* is a sum over clients of vectors of norm C or less plus Gaussian noise of standard
deviation ``z C``; z is its multiplier.  Leaving one client out moves the sum by C at most, so the
release is (epsilon, delta)-private with

    delta = Phi(1 / (2 z) - epsilon z) - exp(epsilon) Phi(-1 / (2 z) - epsilon z),

which is exact (Balle and Wang 2018).  Several releases, each chosen after the one before, are
together as private as a single one whose ``1 / z^2`` is the sum of theirs (Dong, Roth and Su
2022), so the *cost* of a release is ``1 / z^2``, and costs add up.

The noise may be less if a client is drawn for a release with a probability, each by itself. Costs
then do not add up, and dp-accounting composes the releases numerically.
"""

from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from .._checks import needs

# Multipliers and epsilons that are searched; beyond them noise is nothing, or all there is.
LEAST, MOST = 1e-6, 1e7
MOST_EPSILON = 1e6
# Least multiplier that is tried for drawn clients.
LEAST_SAMPLED = 0.2
# Grid of privacy losses of dp-accounting: at least, and as a part of the epsilon of all clients.
GRID, GRID_SHARE = 1e-3, 1e-4


def delta_of(epsilon, multiplier):
    """The delta of a release.

    Parameters
    ----------
    epsilon : float
        Not negative.
    multiplier : float
        Standard deviation of the noise, in units of the norm bound.

    Returns
    -------
    delta : float
    """
    half, shift = 0.5 / multiplier, epsilon * multiplier
    # The exponential may overflow where the probability underflows.
    return float(ndtr(half - shift) - np.exp(epsilon + log_ndtr(-half - shift)))


def multiplier_of(epsilon, delta):
    """The least noise multiplier that makes one release (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        Positive; infinite needs no noise.
    delta : float
        Above 0 and below 1.

    Returns
    -------
    multiplier : float
    """
    if np.isinf(epsilon):
        return 0.0
    if delta_of(epsilon, LEAST) <= delta:
        return LEAST
    return brentq(lambda z: delta_of(epsilon, z) - delta, LEAST, MOST, xtol=1e-12, rtol=1e-12)


def epsilon_of(multiplier, delta):
    """The epsilon of a release at a delta.

    Parameters
    ----------
    multiplier : float
        Infinite where nothing was released.
    delta : float
        Above 0 and below 1.

    Returns
    -------
    epsilon : float
    """
    if multiplier == 0.0:
        return np.inf
    if np.isinf(multiplier) or delta_of(0.0, multiplier) <= delta:
        return 0.0
    if delta_of(MOST_EPSILON, multiplier) > delta:
        return np.inf
    return brentq(lambda e: delta_of(e, multiplier) - delta, 0.0, MOST_EPSILON, xtol=1e-12)


@lru_cache(maxsize=1000)
def sampled_epsilon(multiplier, n_releases, participation, delta):
    """An upper bound of the epsilon of releases about clients that are drawn for each.

    Parameters
    ----------
    multiplier : float
        Of each release.
    n_releases : int
        Number of releases.
    participation : float
        Probability with which a client is drawn for a release.
    delta : float
        Above 0 and below 1.

    Returns
    -------
    epsilon : float
        Exact to about a ten-thousandth.

    Raises
    ------
    ImportError
        If dp-accounting is not installed.
    """
    with needs(
        "participation below 1 needs dp-accounting, which is not installed. Install it: python -m "
        'pip install "skcfl[privacy]".'
    ):
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
        from dp_accounting.pld import PLDAccountant
    most = epsilon_of(multiplier / np.sqrt(n_releases), delta)
    accountant = PLDAccountant(value_discretization_interval=max(GRID, GRID_SHARE * most))
    event = PoissonSampledDpEvent(participation, GaussianDpEvent(multiplier))
    accountant.compose(event, n_releases)
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=100)
def sampled_multiplier(epsilon, delta, n_releases, participation):
    """A multiplier that makes releases about drawn clients (epsilon, delta)-private.

    Parameters
    ----------
    epsilon, delta, n_releases, participation : object
        As of :func:`sampled_epsilon`.

    Returns
    -------
    multiplier : float
        The least one, but for a thousandth of it.
    """
    high = multiplier_of(epsilon, delta) * np.sqrt(n_releases)  # all clients
    low = high
    while low > LEAST_SAMPLED:
        low *= 0.5
        if sampled_epsilon(low, n_releases, participation, delta) > epsilon:
            break
        high = low
    while high - low > 1e-3 * high:
        middle = 0.5 * (low + high)
        if sampled_epsilon(middle, n_releases, participation, delta) > epsilon:
            low = middle
        else:
            high = middle
    return float(high)
