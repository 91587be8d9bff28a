"""The unit of ``alpha="auto"``: a normal prior of one model that all clients share."""

from functools import partial

import numpy as np

from ..calls.curvatures import Hessians, shows_rows
from ..calls.summed import GradientSums
from ..federation.lanes import asked_at_once
from ..numerics.newton import MAX_DENSE

# Newton steps when estimating the noise of a non-quadratic loss.
NOISE_STEPS = 20
# Least ratio of the noise to the variance of the targets, far below any real one.
LEAST_NOISE = 1e-6
# Relative decrease of the loss that ends these steps.
SETTLED_NOISE = 1e-12
# Most halvings of a step in the line search.
MOST_HALVINGS = 30
# Parameters and rows up to which the evidence of priors is asked for, and rows times the square of
# the parameters: with more rows the prior matters less than three fits cost.
MOST_PARAMETERS, MOST_ROWS, MOST_WORK = 2048, 200_000, 2e10
# Squared Newton decrement of models with evidence, relative to the objective.
COMPARED = 1e-6
# What stands for a penalty of the intercepts, over the trace of the Hessian.
FREE = 1e-10
# Least automatic penalty; below, it is rounding beside the curvature of standardised features.
LEAST_ALPHA = 1e-20


def is_automatic(pool):
    """If True, the estimator chooses the local penalty."""
    return getattr(pool.model, "alpha", None) == "auto"


def n_priors(pool, n_clusters):
    """How many models have a prior each: no more than clients with rows, one for "auto"."""
    return 1 if n_clusters == "auto" else min(n_clusters, int((pool.client_weights > 0).sum()))


def alpha_unit(pool, minimise):
    """Local penalty that is a normal prior of one model that all clients share.

    It is one over the weight of all rows, and over the variance of the prior: 1, or with many
    features a smaller one that has more evidence, see :func:`_precision`.  If the
    dispersion of the loss is unknown, coefficients have the units of the targets, and it is
    multiplied by the mean loss of the pooled model over that of a constant, each with its degrees
    of freedom, see ``Loss.prior_unit``.  Networks have no residuals before they are trained and
    take a usual value, and so do models too large for this.  A single client with fewer rows than
    parameters takes 1, as it would show its rows.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    minimise : callable
        ``minimise(pool, labels, theta, tol=)`` finds the models of clusters, its first result.

    Returns
    -------
    unit : float
    """
    unit = _noise_ratio(pool) / max(_weight(pool), 1e-300)
    return max(_precision(pool, unit, minimise) * unit, LEAST_ALPHA)


def _weight(pool):
    return pool.client_weights[~pool.rejected].sum()


def _precision(pool, unit, minimise):
    """One over the variance of the prior under which one model for all has the largest evidence.

    Models without one, as networks are, take the geometric mean of the least and the most.
    """
    model, norm = pool.model, getattr(pool.scaling, "squared_norm", None)
    most = 1.0 / model.least_prior_variance(model.n_features if norm is None else norm)
    tried = np.array([1.0, np.sqrt(most), most])
    if most == 1.0 or not _has_evidence(pool):
        return tried[1]
    pools = [pool.penalised(unit * precision, book=False) for precision in tried]
    question = partial(_log_evidence, minimise=minimise)
    found = asked_at_once(*((other, question) for other in pools), ledger=pool.ledger)
    return tried[np.where(np.isnan(found), -np.inf, found).argmax()]


def _has_evidence(pool):
    model, p = pool.model, pool.n_params
    known = pool.can_answer("hessians") and (model.quadratic or not model.unknown_scale)
    small = pool.n_samples <= MOST_ROWS and float(pool.n_samples) * p**2 <= MOST_WORK
    return known and p <= MOST_PARAMETERS and small and not _shows_rows(pool)


def _shows_rows(pool):
    """Whether the Hessian of one model for all would show the rows of a single client."""
    together = np.zeros(pool.n_clients, dtype=np.intp)
    return shows_rows(pool, together, 1, pool.client_weights > 0).any()


def _log_evidence(pool, minimise):
    """Laplace's approximation of the evidence of one model for all, but for a constant."""
    model, together = pool.model, np.zeros(pool.n_clients, dtype=np.intp)
    theta = minimise(pool, together, model.origin[None], tol=COMPARED)[0]
    (value, _), H = asked_at_once(
        (pool, partial(_summed, theta=theta)), (pool, partial(_curvature, theta=theta))
    )
    penalised = model.decay > 0.0
    # Adding a number to the intercepts of all classes changes nothing.
    np.einsum("ii->i", H)[~penalised] += FREE * np.trace(H)
    if model.unknown_scale:
        # Constant targets have no loss, and every prior explains them.
        with np.errstate(divide="ignore"):
            value = 0.5 * (_weight(pool) - (~penalised).sum()) * np.log(value)
    return 0.5 * np.log(model.decay[penalised]).sum() - 0.5 * np.linalg.slogdet(H)[1] - value


def _noise_ratio(pool):
    model, n = pool.model, _weight(pool)
    p = model.n_free
    known = pool.can_answer("hessians") and model.unknown_scale
    if not (known and p <= MAX_DENSE and n > p + 1):
        return model.usual_noise
    if _shows_rows(pool):
        return 1.0
    free = pool.penalised(0.0, book=False)
    constant = np.zeros(pool.n_params, dtype=bool)
    if model.fit_intercept:
        constant[-1] = True
    start = np.zeros((1, pool.n_params)) + model.origin
    loss, H = asked_at_once(
        (free, lambda pool: _summed(pool, start)), (free, lambda pool: _curvature(pool, start))
    )
    moved = constant, ~np.zeros_like(constant)
    searches = [(lambda pool, m=m: _least_loss(pool, m, start, *loss, H)) for m in moved]
    losses = asked_at_once(*((free, search) for search in searches))
    n = _weight(pool)
    around, residual = losses[0] / max(n - 1.0, 1.0), losses[1] / max(n - p, 1.0)
    if not around > 0.0 or not np.isfinite([around, residual]).all():
        return 1.0
    share = float(np.clip(residual / around, LEAST_NOISE, 1.0))
    return float(model.prior_unit(share, around))


def _least_loss(pool, free, theta, value, gradient, H):
    """Loss of all rows under one model, the best one in some of its parameters.

    The search begins at `theta`, with the loss, its gradient and its Hessian there.
    """
    for k in range((1 if pool.model.quadratic else NOISE_STEPS) if free.any() else 0):
        H = _curvature(pool, theta) if k else H
        ahead = _lower(pool, theta, _newton_step(gradient, H, free), value)
        if ahead is None:
            break
        theta, fallen, gradient = ahead
        settled = value - fallen <= SETTLED_NOISE * abs(fallen)
        value = fallen
        if settled:
            break
    return value


def _summed(pool, theta):
    """Loss of all rows under one model (1, n_params), and its gradient."""
    together = np.zeros(pool.n_clients, dtype=np.intp)
    values, gradients = pool.ask(GradientSums, theta, together, dtype=float)
    # The loss may overflow after too long a step; its gradient is then NaN.
    with np.errstate(over="ignore", invalid="ignore"):
        return float(pool.client_weights @ values), gradients[0]


def _lower(pool, theta, step, value):
    """The model after a step, the loss and the gradient there; None if no step lowers it."""
    # With bounded curvature a damped Newton step never overshoots; else it is halved.
    bounded = pool.model.bounded_curvature
    for _ in range(MOST_HALVINGS):
        ahead = theta + step
        fallen, gradient = _summed(pool, ahead)
        if bounded or fallen <= value:
            return ahead, fallen, gradient
        step = 0.5 * step
    return None


def _curvature(pool, theta):
    """Damped Hessian of the loss of all rows under one model (1, n_params)."""
    together = np.zeros(pool.n_clients, dtype=np.intp)
    return pool.ask(Hessians, theta, together, damping=1.0)[0]


def _newton_step(g, H, free):
    """Newton step in some of the parameters, (1, n_params)."""
    step = np.zeros((1, len(g)))
    step[0, free] = -np.linalg.lstsq(H[np.ix_(free, free)], g[free], rcond=None)[0]
    return step
