"""Stacking: how much each of several populations counts in the clients' models.

Shares w of the simplex for which the rows' losses are least, each row predicted by
``sum_c w_c x_c``, the posterior means of its client's parameters under each population, given the
client's other rows (Wolpert 1992; Breiman 1996).  The mean of linear models is one of them, so
that what is found is one model a client.  Predictions without a row stay at the clients; what they
send are the sum of the losses and its derivatives in the shares, of which the sum is convex: of
squared error one exchange tells all.

The variances have seen the left-out row, so populations with many variances look better than they
are.  As in Mallows' criterion of model averaging (Hansen 2007) each population pays for its
variances, in units of the noise: shares at any corner of the simplex are possible, and where the
rows are few the simpler population counts.
"""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from ..calls.posteriors_asked import (
    LeftOutSums,
    Posteriors,
    PosteriorSums,
    prior_covariance,
    prior_variance,
)
from .criteria import n_free
from .crossed import level_products
from .normal_equations import is_lean, mean_covariances
from .population import Population

# Largest number of Newton steps of the shares.
MAX_STEPS = 20
# Gain of a step that ends them, as a part of the loss.
GAIN = 1e-8
# Halvings of a step that overshoots.
HALVINGS = 20
# Curvature towards equal shares, as a part of the mean one and of the slopes: populations that say
# the same.
RIDGE, LEAST_RIDGE = 1e-6, 1e-10
# What the variance of a slope costs, in nats.  Benchmark: benchmarks/real.py, 58 tables, three
# splits, all rows and 3, 5, 10 a client: of costs from .5 to 2.5 1.25 to 1.5 predict best.
SLOPE_COST = 1.5
# What the variance of an intercept or a correlation costs: of 0 to .25 about .1 predicts best.
OTHER_COST = 0.1


@dataclass
class Stack:
    """Populations, and how much each counts: one, or several of one cluster each.

    Attributes
    ----------
    names : list of str
        What they are known as.
    populations : list of Population
    errors : list of ndarray of shape (K, p, p) or None
        Covariances of the errors of each one's centred means, None where they are not known.
    shares : ndarray of shape (n_populations,)
    """

    names: list[str]
    populations: list[Population]
    errors: list[np.ndarray | None]
    shares: np.ndarray

    @property
    def covariance(self):
        """Covariance of the clients' parameters about their cluster's mean, (p, p)."""
        return self._mean(each.covariance_matrix() for each in self.populations)

    @property
    def dispersion(self):
        """Of the rows."""
        return float(self._mean(each.dispersion for each in self.populations))

    @property
    def new_noise(self):
        """Expected dispersion of the rows of a client of which nothing is known."""
        parts = (each.dispersion * prior_variance(each.df) for each in self.populations)
        return float(self._mean(parts))

    @property
    def prior(self):
        """Variance of the prior of the means' slopes, (K,)."""
        return self._mean(each.prior for each in self.populations)

    @property
    def means(self):
        """Means of the clusters, (K, p)."""
        return self._mean(each.means for each in self.populations)

    @property
    def mean_errors(self):
        """Covariances of the errors of these, which include not to know the population."""
        if any(own is None for own in self.errors):
            return None
        away = [each.means - self.means for each in self.populations]
        return self._mean(
            own + move[:, :, None] * move[:, None, :]
            for own, move in zip(self.errors, away, strict=True)
        )

    def _mean(self, values):
        if len(self.shares) == 1:
            return next(iter(values))
        return sum(share * value for share, value in zip(self.shares, values, strict=True))

    def ordered(self, order):
        """The same with the clusters in this order."""
        return Stack(
            self.names,
            [each.ordered(order) for each in self.populations],
            [None if own is None else own[order] for own in self.errors],
            self.shares,
        )

    def posteriors(self, pool, dense=False):
        """Each client's responsibilities, and moments of its parameters, as of ``Posteriors``.

        Means and covariances of the parameters, and dispersions, where the population is not
        known but for the shares.  Covariances are those of centred parameters.
        """
        parts = (
            pool.ask(Posteriors, *population.arguments, errors, dense=dense, final=True)
            for population, errors in zip(self.populations, self.errors, strict=True)
        )
        r, mean, spread, noise = next(parts)
        weight = self.shares[0]
        for share, (_, own, V, dispersion) in zip(self.shares[1:], parts, strict=True):
            weight = weight + share
            # Populations that differ along free directions only predict the same.
            own = mean + pool.model.centre(own - mean)
            mean, spread = _mixed(mean, spread, own, V, share / weight)
            noise = noise + share / weight * (dispersion - noise)
        return r, mean, pool.model.centre_covariances(spread) if dense else spread, noise

    def prior_covariance(self, largest=False):
        """Covariance of the parameters of a client of which nothing is known, (p, p).

        Of one of the first cluster where it is known to be of the largest.
        """
        parts = []
        for population, errors in zip(self.populations, self.errors, strict=True):
            theta, root, weights, _, df = population.arguments
            if largest:
                theta, weights = theta[:1], np.ones(1)
            errors = None if errors is None else errors[: len(theta)]
            own = prior_covariance(theta, root, weights, errors, True, df)
            parts.append((weights @ theta, own))
        (mean, spread), weight = parts[0], self.shares[0]
        for share, (own, V) in zip(self.shares[1:], parts[1:], strict=True):
            weight = weight + share
            mean, spread = _mixed(mean, spread, own, V, share / weight)
        return spread


def _mixed(mean, spread, own, V, share):
    """Means and covariances, or variances, of mixtures of two: the second has that share."""
    away = own - mean
    dense = spread.ndim > mean.ndim
    between = away[..., :, None] * away[..., None, :] if dense else away**2
    between *= share * (1.0 - share)
    between += (1.0 - share) * spread
    between += share * V
    return mean + share * away, between


def stacked(pool, fits, constant=None):
    """Stack of those fits of a dictionary that count, exchanges, and what fell short, or "".

    Parameters of `constant` (n_params,) of bool are coefficients of constant features.
    """
    names, errors = list(fits), []
    populations = [fit.population for fit in fits.values()]
    if len(fits) > 1:
        # Along free directions populations must not differ: shifts of all means change nothing.
        populations = [replace(each, means=pool.model.centre(each.means)) for each in populations]
    for fit in fits.values():
        found = None if is_lean(fit.sums) else mean_covariances(fit.population, fit.sums)
        if found is not None:
            found = pool.model.centre_covariances(without(constant, found))
        errors.append(found)
    shares, n_iter, shortfall = np.ones(1), 0, ""
    if len(fits) > 1:
        shares, n_iter, shortfall = _shares(pool, populations, errors)
    kept = np.flatnonzero(shares)
    parts = ([own[k] for k in kept] for own in (names, populations, errors))
    return Stack(*parts, shares[kept] / shares[kept].sum()), n_iter, shortfall


def constants(pool, with_levels):
    """Columns of the design that are the same number in all rows but the ones, (n_columns,).

    They are zero in the units of the fit: clients are asked where the units leave a doubt.
    """
    out = np.zeros(pool.model.n_columns, dtype=bool)
    if pool.scaling is None or not pool.scaling.may_be_level.any():
        return out
    p = pool.n_params
    if not with_levels:
        start = np.zeros((1, p)) + pool.model.origin
        prior = start, np.zeros(p), np.ones(1), 1.0
        curvature = pool.ask(PosteriorSums, *prior, dense=False)["curvature"][0]
    else:
        curvature = level_products(pool)[0].diagonal()[:p]
    curvature = curvature.reshape(pool.model.n_outputs, -1)
    may_be = pool.scaling.may_be_level
    out[: len(may_be)] = may_be & (curvature[:, : len(may_be)] == 0).all(axis=0)
    return out


def without(constant, errors):
    """Covariances (K, p, p) of the errors of means; a constant feature has no slope, and no error.

    In the user's units the intercept would have it, too.
    """
    return errors if constant is None else errors * ~constant[:, None] * ~constant


def _shares(pool, populations, errors):
    """Shares of populations of one cluster each, exchanges, and what fell short, or ""."""
    full = any(population.root.ndim == 2 for population in populations)
    roots = [population.root for population in populations]
    if full:
        roots = [np.diag(root) if root.ndim == 1 else root for root in roots]
    dispersions = np.array([population.dispersion for population in populations])
    known = {
        "theta": np.concatenate([population.means for population in populations]),
        "root": np.array(roots),
        "dispersion": dispersions,
        "errors": None if any(own is None for own in errors) else np.concatenate(errors),
    }
    df = np.array([population.df for population in populations])
    if np.isfinite(df).any():
        known["df"] = df
    # In units of the noise that the most flexible population leaves.
    costs = dispersions.min() * np.array([_cost(pool, each) for each in populations])

    def priced(shares):
        value, slopes, curvature = pool.ask(LeftOutSums, shares=shares, **known)
        return value + costs @ shares, slopes + costs, curvature

    shares = np.full(len(populations), 1.0 / len(populations))
    value, slopes, curvature = priced(shares)
    n_iter = 1
    for _ in range(MAX_STEPS):
        move, gain = _step(shares, slopes, curvature)
        if pool.model.quadratic:
            return shares + move, n_iter, ""
        if gain <= GAIN * (1.0 + abs(value)):
            return shares, n_iter, ""
        for _ in range(HALVINGS):
            trial = priced(shares + move)
            n_iter += 1
            if trial[0] <= value or pool.answered is not None:
                break
            move = 0.5 * move
        else:
            break
        shares = shares + move
        value, slopes, curvature = trial
    gain = _step(shares, slopes, curvature)[1] / (1.0 + abs(value))
    if gain <= GAIN or pool.answered is not None:  # sums over other clients each time
        return shares, n_iter, ""
    shortfall = (
        "the shares of the stack could still lower the loss of left-out rows by "
        f"{gain:.1e} of itself after {n_iter} exchanges, where {GAIN:g} is asked. Features or "
        'counts of extreme size are the likely reason: rescale them, or take covariance="auto".'
    )
    return shares, n_iter, shortfall


def _cost(pool, population):
    """What the variances of a population cost, in nats."""
    if population.kind == "none":
        return 0.0
    n_varying = n_free(pool, population.varying)
    n_slopes = n_free(pool, population.varying & ~population.free)
    pairs = n_varying * (n_varying - 1) / 2 if population.kind == "full" else 0.0
    return SLOPE_COST * n_slopes + OTHER_COST * (n_varying - n_slopes + pairs)


def _step(shares, slopes, curvature):
    """Where the parabola is least, from the shares, and how much it falls at least to there."""
    move = _least(shares, slopes, curvature) - shares
    return move, -float(slopes @ move)


def _least(shares, slopes, curvature):
    """Point of the simplex where a convex parabola about some shares is least.

    Of few shares: the least of each face whose point is in it.
    """
    K = len(shares)
    ridge = max(RIDGE * np.trace(curvature) / K, LEAST_RIDGE * np.abs(slopes).max())
    A = curvature + (ridge or RIDGE) * np.eye(K)
    # Minus the gradient at zero of the parabola with the ridge about equal shares.
    b = curvature @ shares - slopes + (A - curvature) @ np.full(K, 1.0 / K)
    best, least = shares, np.inf
    for size in range(1, K + 1):
        for face in map(list, combinations(range(K), size)):
            inverse = np.linalg.solve(A[np.ix_(face, face)], np.stack([b[face], np.ones(size)], 1))
            own = inverse[:, 0] + (1.0 - inverse[:, 0].sum()) / inverse[:, 1].sum() * inverse[:, 1]
            value = 0.5 * own @ A[np.ix_(face, face)] @ own - b[face] @ own
            if (own >= 0).all() and value < least:
                best, least = np.zeros(K), value
                best[face] = own
    return best
