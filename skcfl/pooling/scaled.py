"""Fits with scales of the clients' own beside those of normal populations.

Every fit begins normal.  Scales are asked for by a number of degrees of freedom, or found: then
there must be very strong evidence for them.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from .cluster_starts import at_once
from .criteria import STRONG, bic
from .em import evaluate, maximise
from .normal_equations import is_lean

# Degrees of freedom at which scales are tried: where neither makes the rows more likely, all else
# as it is, there are none.
TRIAL_DF = 5.0, 20.0
# Most degrees of freedom of scales that are kept where they are found: with more, the weights of
# clients are much alike.  Benchmark: benchmarks/real.py, where predictions with 6 to 10 are a bit
# worse than of a normal population, and the other tables of doc/partial_pooling.rst, where they
# are as good.
HEAVY_DF = 6.0
# Fewest clients with rows whose scales are looked for: fewer do not show the tails of a
# distribution.  Benchmark: NaturalGas (6 clients) and Grunfeld (10) of benchmarks/real.py, which
# predict worse with scales on all splits, and Gasoline (18), which predicts as well.
MIN_SCALED = 15


def heavy_tailed(pool, fit, options, origin=None):
    """The fit with scales of the clients' own, where they are wanted or found.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    fit : Fit
        Of a normal population.
    options : Options
        How to fit; ``options.df`` says whether scales are wanted.
    origin : Population, default=None
        Where `fit` began, from where the other one begins, too.

    Returns
    -------
    fit : Fit
        With scales or without.
    tried : list of Fit
        That with scales, if it was fitted.
    """
    n = (~pool.without_rows).sum()
    if options.df != "auto" and np.isinf(options.df) or n < 2:
        return fit, []
    if options.df != "auto":
        found = with_scales(pool, fit, options.df, options, origin)
        return found, [found]
    if n < MIN_SCALED or not pool.model.quadratic or is_lean(fit.sums) or not pool.steady:
        # Wide models, and clients of whom others answer each time.
        return fit, []
    asked = [partial(evaluate, population=replace(fit.population, df=df)) for df in TRIAL_DF]
    starts = at_once(pool, asked)
    start = max(starts, key=lambda start: start.value)
    if start.value <= fit.value:
        return fit, []
    found = with_scales(pool, fit, start.population.df, options, origin)
    found.n_iter += len(starts)
    is_clear = bic(found, pool, options) <= bic(fit, pool, options) - STRONG
    return found if is_clear and found.population.df <= HEAVY_DF else fit, [found]


def with_scales(pool, fit, df, options, origin=None):
    """The fit with scales of the clients' own, from some degrees of freedom.

    From the normal fit, whose wild clients may have made a maximum of their own, and from its
    origin.
    """
    origins = [fit.population] if origin is None else [fit.population, origin]
    tasks = [
        partial(maximise, population=replace(begin, df=df), options=options) for begin in origins
    ]
    found, *others = at_once(pool, tasks)
    found.n_iter += fit.n_iter
    if found.trail[0][1] >= fit.trail[-1][1]:
        found.trail = fit.trail + found.trail
    for other in others:
        found.n_iter = other.n_iter = found.n_iter + other.n_iter
        found = other if other.loglik > found.loglik else found
    return found
