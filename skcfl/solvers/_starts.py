"""Starts of the alternating methods."""

import numpy as np

# Local steps before the starts are drawn, by restart.  Models trained for long tell many
# clusters apart; models trained for few steps are less bound to the client they come from.
# Restarts that differ in this find what equal ones all miss.
LOCAL_STEPS = (30, 5, 100)
# The same of networks, which soon know their own rows by heart: after 30 steps of Adam the losses
# of two clients of a cluster that misses one of ten classes differ by that more than by the class.
NETWORK_LOCAL_STEPS = (5, 30, 100)
# Step of Adam for networks: found by trial, and good for most.
NETWORK_STEP = 0.005
# Candidates of each draw beyond ``log K``: linear models have three starts and scikit-learn's two,
# networks one start and enough candidates for it.
CANDIDATES, NETWORK_CANDIDATES = 2, 10


def random_starts(pool, n_clusters, rng, restart=0):
    """Random models of the local model's own initialisation, as in the papers."""
    return pool.init_params(n_clusters, rng)


def same_starts(pool, n_clusters, rng, restart=0):
    """One random model for all clusters, the CLoVE paper's "same"."""
    return np.repeat(pool.init_params(1, rng), n_clusters, axis=0)


def loss_plus_plus(pool, n_clusters, rng, restart=0):
    """Models drawn among local models by k-means++ on losses.

    Every client trains some `LOCAL_STEPS` from one common start.  Then models are drawn
    one after the other with a probability proportional to how much each client would
    gain, ``n_i (min_j loss_i(theta_j) - loss_i(w_i))+``; each draw keeps the best of
    ``2 + log K`` candidates, as scikit-learn's k-means++ does.  Networks train fewer steps
    and have more candidates.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    n_clusters : int
        Number of models, K.
    rng : RandomState
        Source of the draws.
    restart : int
        Number of the restart, from 0.

    Returns
    -------
    theta : ndarray of shape (K, n_params)
    """
    n = pool.n_clients
    steps = LOCAL_STEPS if pool.second_order else NETWORK_LOCAL_STEPS
    w = train_locally(pool, pool.start(), steps[restart % len(steps)])
    own = np.nan_to_num(pool.objectives(w) - pool.penalties(w), nan=np.inf)
    n_candidates = CANDIDATES if pool.second_order else NETWORK_CANDIDATES
    n_candidates += int(np.log(n_clusters))
    weights = pool.client_weights
    best = np.full(n, np.inf)
    picks = []
    for k in range(n_clusters):
        gain = weights.copy()
        if k:
            with np.errstate(invalid="ignore"):
                gain *= np.nan_to_num(np.maximum(best - own, 0.0), nan=0.0)
            gain = np.where(np.isinf(gain), weights, gain)
        gain[picks] = 0.0
        if gain.sum() <= 0:
            # Every client is served as well as by its own model: any other client will do.
            gain = np.ones(n)
            gain[picks if len(picks) < n else []] = 0.0
        candidates = rng.choice(n, size=n_candidates, p=gain / gain.sum())
        losses = np.nan_to_num(pool.losses(w[candidates]), nan=np.inf)
        reach = np.minimum(best[:, None], losses)
        with np.errstate(invalid="ignore"):
            excess = weights[:, None] * np.maximum(reach - own[:, None], 0.0)
        total = np.nan_to_num(excess, nan=np.inf).sum(axis=0)
        winner = int(total.argmin())
        picks.append(candidates[winner])
        best = reach[:, winner]
    return w[picks]


def train_locally(pool, start, steps):
    """Local models after some safeguarded steps of gradient descent at ``1 / L_i``.

    Networks, whose curvature has no bound, take steps of Adam.
    """
    if not pool.second_order:
        return pool.local_update(start, steps, NETWORK_STEP, "adam")
    lipschitz, _, _ = pool.spectrum()
    rates = 1.0 / np.maximum(lipschitz, 1e-12)
    return pool.local_update(start, steps, rates, monotone=True)


#: Starts by the names that users give them; "different" is the CLoVE paper's word for "random".
STARTS = {
    "loss++": loss_plus_plus,
    "random": random_starts,
    "different": random_starts,
    "same": same_starts,
}
