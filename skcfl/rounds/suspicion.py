r"""False clients: messages far from the centre of their cluster, and high losses.

Under a robust aggregation the centre of a cluster's messages is one that false clients cannot
carry away.  A client's distance from it, over the median distance in its cluster, is about 1 of an
honest client.  Distances shrink with the root of a client's rows where rows are alike, and do not
where clients differ; so both are computed, and the milder counts.

False clients choose their cluster, and may gather in one until they are most of it.  But a client
that no model suits has a higher loss than others, in whatever cluster; where most of a cluster
have, its model is to blame.

Either number is compared with a limit, the median over all clients plus some deviations (by the
median absolute deviation, which half of the clients cannot inflate).  The *suspicion* of a client
is the larger of the two as shares of their limits: above 1 it is *set aside*.  The aggregation
leaves out clients with too high losses, and polishing all that are set aside, or it would undo the
aggregation.
"""

from math import isfinite

import numpy as np

from ..calls.first_order import ObjectivesGradients
from ..numerics.quantiles import weighted_median
from ..search.judges import MOST_LOSS
from .aggregation import aggregate_by_cluster, median_by_cluster
from .aggregation.aggregator import lengths
from .state import weighted_mean

__all__ = ["Suspects", "capped_mean", "distances", "excess", "relative", "suspicions", "unserved"]

# Robust standard deviations from the median up to which a distance is an honest client's.
# Benchmark: benchmarks/robust.py.
SIGMAS = 4.0
# The same for a loss. Benchmark: benchmarks/robust.py.
LOSS_SIGMAS = 6.0
# Least limit of distances, in medians.
LEAST = 2.0
# Least limit of losses, in medians.
LEAST_LOSS = 1.5
# Least limit of distances where one model serves clients that may be of several kinds, in medians.
ONE_LEAST = 4.0
# The same for losses: about the square of the limit of distances.
ONE_LEAST_LOSS = 20.0
# Deviations of normal numbers in units of the median absolute deviation.
NORMAL = 1.4826
# How often the suspects may change before they are taken as they are.
MAX_JUDGED = 10


class Suspects:
    """Suspicions of the clients at the models of a state, by their gradients and losses there.

    Parameters
    ----------
    aggregator : object
        The robust operator.
    weights : ndarray of shape (n_clients,)
        Weights of the clients.
    """

    def __init__(self, aggregator, weights):
        self.aggregator, self.weights = aggregator, weights
        self.aside, self.count, self.last = None, 0, None

    def of(self, pool, state):
        """Suspicions of all clients, infinite for clients that do not answer."""
        if self.last is not None:
            before, theta, labels, found = self.last
            if before is pool and theta is state.theta and np.array_equal(labels, state.labels):
                return found
        found = self._look(pool, state)
        self.last = pool, state.theta, state.labels, found
        return found

    def _look(self, pool, state):
        theta, labels = state.theta, state.labels
        values, gradients = pool.ask(ObjectivesGradients, theta[labels], searching=False)
        here = np.arange(pool.n_clients)
        if pool.answered is not None:
            here = here[pool.answered]
        some = here[self.weights[here] > 0]
        out = np.zeros(pool.n_clients)
        out[np.setdiff1d(np.arange(pool.n_clients), here)] = np.inf
        out[some] = suspicions(
            *(self.aggregator, gradients[some], values[some], labels[some], len(theta)),
            *(self.weights[some], pool.client_weights[some]),
        )
        return out

    def __call__(self, pool, state):
        """Who is set aside, (n_clients,) of bool."""
        self.aside = self.of(pool, state) > 1.0
        self.count += 1
        return self.aside

    def settled(self, pool, state):
        """True if the same are set aside at the models of another state."""
        if self.count >= MAX_JUDGED:
            return True
        return np.array_equal(self.of(pool, state) > 1.0, self.aside)


def suspicions(aggregator, messages, losses, labels, n_clusters, weights, totals):
    """Distances of messages or excess of losses, whichever is the larger part of its limit.

    Parameters
    ----------
    aggregator, messages, losses, labels, n_clusters, weights, totals
        As of :func:`distances` and :func:`excess`.

    Returns
    -------
    suspicions : ndarray of shape (n,)
    """
    away = distances(aggregator, messages, labels, n_clusters, weights, totals)
    above = excess(losses, labels, n_clusters, weights)
    return np.maximum(away / limit(away, SIGMAS, LEAST if n_clusters > 1 else ONE_LEAST), above)


def distances(aggregator, messages, labels, n_clusters, weights, totals):
    """Distances of messages from their cluster's centre, over the median of the cluster.

    Parameters
    ----------
    aggregator : object
        The robust operator.
    messages : ndarray of shape (n, p)
        Messages of the clients.
    labels : ndarray of shape (n,)
        Their clusters.
    n_clusters : int
        Number of clusters.
    weights, totals : ndarray of shape (n,)
        Their weights, and the total weights of their rows.

    Returns
    -------
    distances : ndarray of shape (n,)
        1 for clients in clusters of one or two, which have no majority.
    """
    messages = messages.astype(float)
    centres = aggregate_by_cluster(aggregator, messages, labels, n_clusters, weights)
    return relative(lengths(messages - centres[labels]), labels, n_clusters, weights, totals)


def relative(away, labels, n_clusters, weights, totals):
    """Distances (n,) from the centres of clusters, over their medians, as in ``distances``."""
    ratios = []
    for distance in (away, away * np.sqrt(totals)):
        typical = median_by_cluster(distance, labels, n_clusters, weights)[labels]
        ratios.append(np.divide(distance, typical, out=np.ones_like(away), where=typical > 0))
    few = np.bincount(labels, minlength=n_clusters) < 3
    return np.where(few[labels], 1.0, np.minimum(*ratios))


def excess(losses, labels, n_clusters, weights):
    """Losses, above the least of all, as parts of the largest that is expected.

    Parameters
    ----------
    losses : ndarray of shape (n,)
        Losses of the clients under their models.
    labels : ndarray of shape (n,)
        Their clusters.
    n_clusters : int
        Number of clusters.
    weights : ndarray of shape (n,)
        Their weights.

    Returns
    -------
    excess : ndarray of shape (n,)
        Zero in clusters where it is more than 1 of more than half of the weight.
    """
    return _excess(losses, labels, n_clusters, weights)[0]


def unserved(losses, labels, n_clusters, weights, mixed=False):
    """Clients with an ``excess`` above 1, (n,) of bool; None if there are none.

    Clusters that are `mixed` may be of several kinds of clients, as one of all is.
    """
    out, some = _excess(losses, labels, n_clusters, weights, mixed)
    return out > 1.0 if some else None


def _excess(losses, labels, n_clusters, weights, mixed=False):
    """Excess of the losses, and whether it may be more than 1 of any."""
    if len(losses) < 3:
        return np.zeros(len(losses)), False
    ordered = losses.copy()
    ordered.sort()
    least, ordered = ordered[0], np.fmin(ordered - ordered[0], np.finfo(float).max)
    mixed = mixed or n_clusters == 1
    most = _limit(ordered, LOSS_SIGMAS, ONE_LEAST_LOSS if mixed else LEAST_LOSS)
    out = np.fmin(losses - least, np.finfo(float).max) / most
    if not ordered[-1] / most > 1.0:
        return out, False
    total = np.bincount(labels, weights, minlength=n_clusters)
    over = np.bincount(labels, np.where(out > 1.0, weights, 0.0), minlength=n_clusters)
    return np.where((over > 0.5 * total)[labels], 0.0, out), True


def limit(numbers, sigmas, least):
    """Largest of some numbers, not negative, that is not suspicious."""
    return _limit(np.sort(numbers), sigmas, least)


def _limit(ordered, sigmas, least):
    """The same of numbers in ascending order."""
    if not len(ordered):
        return max(1.0, least)
    middle = _middle(ordered)
    if not isfinite(middle):
        return max(middle, least * middle, 1e-300)
    away = np.abs(ordered - middle)
    away.sort()
    return max(middle + sigmas * NORMAL * _middle(away), least * middle, 1e-300)


def _middle(ordered):
    """Median of ordered numbers; of a few numpy's function takes long."""
    n = len(ordered)
    return 0.5 * ordered[(n - 1) // 2] + 0.5 * ordered[n // 2]


def capped_mean(losses, weights):
    """Weighted mean of losses, none more than some times their median."""
    most = MOST_LOSS * weighted_median(losses, weights)
    return weighted_mean(np.minimum(losses, most), weights)
