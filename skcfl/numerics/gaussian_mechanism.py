"""Privacy of Gaussian noise: what (epsilon, delta) a noise multiplier gives, and the reverse.

A *release* is a sum over clients of vectors of norm C or less plus Gaussian noise of standard
deviation ``z C``; z is its multiplier.  Leaving one client out moves the sum by C at most, so the
release is (epsilon, delta)-private with

    delta = Phi(1 / (2 z) - epsilon z) - exp(epsilon) Phi(-1 / (2 z) - epsilon z),

which is exact (Balle and Wang 2018).  Several releases, each chosen after the one before, are
together as private as a single one whose ``1 / z^2`` is the sum of theirs (Dong, Roth and Su
2022), so the *cost* of a release is ``1 / z^2``, and costs add up.
"""

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

# Multipliers and epsilons that are searched; beyond them noise is nothing, or all there is.
LEAST, MOST = 1e-6, 1e7
MOST_EPSILON = 1e6


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
