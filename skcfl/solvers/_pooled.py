"""Pooled problem of each cluster: Newton's method on summed messages.

    minimise over theta_k:  sum_{i in C_k} u_i f_i(theta_k),   k = 0..K-1

Every iteration the clients send gradients and Hessians (or, for models of many
parameters, products of Hessians with a vector), summed by cluster.
"""

import numpy as np

from .._newton import conjugate_gradients, newton, solve_scaled
from ..clients import sum_by_cluster

# Above this many parameters directions come from Hessian products.
MAX_DENSE = 1024


def solve_pooled(pool, labels, theta, weights=None, max_iter=100):
    """Minimise the pooled objective of every cluster.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    labels : ndarray of shape (n_clients,)
        Cluster of each client, in 0..K-1.
    theta : ndarray of shape (K, n_params)
        Starts; the model of a cluster without clients is returned as it is.
    weights : ndarray of shape (n_clients,), default=None
        Weights ``u_i`` of the clients; ``n_i`` by default.
    max_iter : int
        Most Newton steps.

    Returns
    -------
    theta : ndarray of shape (K, n_params)
        Minimisers.
    converged : bool
        Whether all clusters reached working precision.
    decrement : float
        Largest squared Newton decrement of a cluster, relative to its objective.
    """
    weights = pool.client_weights if weights is None else weights
    used = np.unique(labels)
    place = np.full(len(theta), -1)
    place[used] = np.arange(len(used))
    oracle = _PooledOracle(pool, place[labels], len(used), weights)
    start = pool.centre(np.asarray(theta, dtype=float)[used])
    scale = np.maximum(np.abs(oracle.at(np.zeros_like(start))[0]), 1e-30)
    x, decrement, converged = newton(oracle, start, scale, max_iter=max_iter)
    out = np.array(theta, dtype=float)
    out[used] = x
    return out, bool(converged.all()), float((decrement / scale).max())


class _PooledOracle:
    """Mean objective of each cluster; messages go through the pool."""

    def __init__(self, pool, labels, n_clusters, weights):
        self.pool, self.labels, self.K = pool, labels, n_clusters
        total = np.bincount(labels, weights=weights, minlength=n_clusters)
        # A cluster of clients that weigh nothing has its penalty only.
        weights = np.where(total[labels] > 0, weights, 1.0)
        total = np.bincount(labels, weights=weights, minlength=n_clusters)
        self.share = weights / total[labels]
        self.cached = None

    def at(self, x):
        """Values and gradients."""
        if self.cached is not None and np.array_equal(self.cached[0], x):
            _, value, gradient = self.cached
        else:
            value, gradient = self._evaluate(x)
        self.x = x.copy()
        return value, gradient

    def _evaluate(self, x):
        value, gradient = self.pool.objectives_gradients(x[self.labels], dtype=np.float64)
        with np.errstate(invalid="ignore"):
            value = np.bincount(self.labels, weights=self.share * value, minlength=self.K)
            return value, sum_by_cluster(gradient, self.labels, self.K, self.share)

    def direction(self, g):
        """Newton directions."""
        pool = self.pool
        if pool.n_params <= MAX_DENSE:
            H = pool.hessians(self.x, self.labels, self.share)
            return -solve_scaled(pool.pin(H), g)
        size = np.linalg.norm(g, axis=1)
        tol = 1e-2 * np.minimum(0.1, size / (1.0 + size))
        return -conjugate_gradients(
            lambda u: pool.hessian_products(self.x, u, self.labels, self.share),
            np.ones_like(g),
            g,
            tol,
            200,
        )

    def along(self, step, t):
        """Values at ``x + t * step``, kept for the next iteration."""
        x = self.x + np.where(t[:, None] > 0, t[:, None] * step, 0.0)
        value, gradient = self._evaluate(x)
        self.cached = x, value, gradient
        return value
