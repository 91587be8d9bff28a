"""Where fits of populations of linear models begin."""

import numpy as np

from skcfl.pooling.em import Options, pooled


def linear_start(pool, prior="auto", tol=1e-5, varying=True, **about):
    """Options of a fit, the population of one model for all, and its exchanges."""
    p, dispersion = pool.n_params, pool.model.describe_loss().dispersion_of
    free, varying = np.arange(p) == p - 1, np.ones(p, dtype=bool) & varying
    options = Options(2000, tol, prior, free, varying, dispersion, **about)
    fit = pooled(pool, options)
    return options, fit.population, fit.n_iter
