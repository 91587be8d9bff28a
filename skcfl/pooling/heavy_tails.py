"""Scales of the clients' own: degrees of freedom of a population with heavy tails.

Variances of client i, of its rows and of its parameters about their mean, are divided by t_i,
gamma distributed with mean 1 and nu degrees of freedom: its rows have a multivariate t
distribution (Pinheiro, Liu and Wu 2001, "Efficient algorithms for robust estimation in linear
mixed-effects models using the multivariate t distribution").  Given the rows clients send the
expectation of ``log t_i - t_i``, of which the likelihood's derivative in nu is made.
"""

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma

from .population import LEAST_DF, MOST_DF


def df_slope(df, n, tails):
    """Derivative of the log-likelihood of n clients in the degrees of freedom.

    `tails` is the sum over the clients of ``E(log t - t)``.
    """
    return 0.5 * (n * (np.log(0.5 * df) + 1.0 - digamma(0.5 * df)) + tails)


def expected_df(mean):
    """Degrees of freedom of a step of EM, of the clients' mean of ``E(log t - t)``."""
    least, most = LEAST_DF, MOST_DF
    if df_slope(least, 1.0, mean) <= 0:
        return least
    if df_slope(most, 1.0, mean) >= 0:
        return most
    return float(brentq(df_slope, least, most, args=(1.0, mean), rtol=1e-6))
