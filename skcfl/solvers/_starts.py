"""Starts of the alternating methods."""

import numpy as np

# Local steps before the starts are drawn.
LOCAL_STEPS = 30


def random_starts(pool, n_clusters, rng):
    """Random models of the local model's own initialisation, as in the papers."""
    return pool.init_params(n_clusters, rng)


def loss_plus_plus(pool, n_clusters, rng):
    """Models drawn among local models by k-means++ on losses.

    Every client trains `LOCAL_STEPS` steps from one common start.  Then models are drawn
    one after the other with a probability proportional to how much each client would
    gain, ``n_i (min_j loss_i(theta_j) - loss_i(w_i))+``; each draw keeps the best of
    ``2 + log K`` candidates, as scikit-learn's k-means++ does.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    n_clusters : int
        Number of models, K.
    rng : RandomState
        Source of the draws.

    Returns
    -------
    theta : ndarray of shape (K, n_params)
    """
    n = pool.n_clients
    w = train_locally(pool, pool.start(), LOCAL_STEPS)
    own = np.nan_to_num(pool.objectives(w) - pool.penalties(w), nan=np.inf)
    n_candidates = 2 + int(np.log(n_clusters))
    weights = pool.client_weights
    best = np.full(n, np.inf)
    theta = np.empty((n_clusters, pool.n_params), dtype=pool.dtype)
    taken = np.zeros(n, dtype=bool)
    for k in range(n_clusters):
        gain = np.where(np.isfinite(best), weights * np.maximum(best - own, 0.0), weights)
        gain[~np.isfinite(gain) | taken] = 0.0
        if gain.sum() <= 0:
            # Every client is served as well as by its own model: any other client will do.
            gain = np.where(taken, 0.0, 1.0) if not taken.all() else np.ones(n)
        candidates = rng.choice(n, size=n_candidates, p=gain / gain.sum())
        losses = np.nan_to_num(pool.losses(w[candidates]), nan=np.inf)
        reach = np.minimum(best[:, None], losses)
        with np.errstate(invalid="ignore"):
            excess = weights[:, None] * np.maximum(reach - own[:, None], 0.0)
        total = np.nan_to_num(excess, nan=np.inf).sum(axis=0)
        winner = int(total.argmin())
        theta[k] = w[candidates[winner]]
        taken[candidates[winner]] = True
        best = reach[:, winner]
    return theta


def train_locally(pool, start, steps):
    """Local models after some safeguarded steps of gradient descent at ``1 / L_i``."""
    lipschitz, _, _ = pool.spectrum()
    rates = 1.0 / np.maximum(lipschitz, 1e-12)
    return pool.local_update(start, steps, rates, monotone=True)
