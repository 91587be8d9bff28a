"""Starts of the alternating methods."""

import numpy as np

from ..calls.first_order import Losses, OwnLosses
from .model_kinds import TRAINED, kind_of

__all__ = ["loss_plus_plus", "random_starts"]

# Most that a client counts under a robust aggregation, in typical excesses of the first draw.
MOST_EXCESS = 2.0


def random_starts(pool, n_clusters, rng, restart=0, candidates=None):
    """Random models of the local model's own initialisation, as in the papers."""
    return pool.model.init_params(n_clusters, rng)


def same_starts(pool, n_clusters, rng, restart=0, candidates=None):
    """One random model for all clusters, which clients are then dealt to (CLoVE's "same")."""
    return np.repeat(pool.model.init_params(1, rng), n_clusters, axis=0)


class Candidates:
    """Local models that starts are drawn among, trained once for all numbers of clusters."""

    def __init__(self):
        self.trained = {}

    def at(self, pool, steps, restart=0):
        """Local models after some steps from one common start, and a table of their losses.

        Parameters
        ----------
        pool : ClientPool
            The federation.
        steps : tuple of int
            Local steps; restarts take them in turn.
        restart : int, default=0
            Number of the restart.  Each has its models: restarts do not wait for each other.

        Returns
        -------
        models : ndarray of shape (n_clients, n_params)
        trained_loss : ndarray of shape (n_clients,)
            Each client's loss under its own model.
        losses : dict of int to ndarray of shape (n_clients,)
            Losses of the clients under each other's models, of those that were asked for.
        """
        if restart not in self.trained:
            w = kind_of(pool).first_steps(pool, pool.start(), steps[restart % len(steps)])
            losses = pool.ask(OwnLosses, w)
            # Nothing is known of clients without an answer, under all models.
            self.trained[restart] = w, np.where(np.isnan(losses), 0.0, losses), {}
        return self.trained[restart]


def loss_plus_plus(pool, n_clusters, rng, restart=0, candidates=None, robust=False):
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
    candidates : Candidates, default=None
        Local models of these clients from draws for other numbers of clusters.
    robust : bool, default=False
        True if some clients may be false: no client then counts for more than twice the median
        excess under the first candidates, and more candidates are tried.

    Returns
    -------
    theta : ndarray of shape (K, n_params)
    """
    n = pool.n_clients
    candidates = Candidates() if candidates is None else candidates
    kind = kind_of(pool)
    w, trained_loss, known = candidates.at(pool, kind.start_steps, restart)
    n_candidates = (TRAINED if robust else kind).candidates + int(np.log(n_clusters))
    weights = pool.client_weights
    best, most = np.full(n, np.inf), np.inf
    picks = []
    if n_clusters * n_candidates >= n:
        _losses(pool, w, np.arange(n), known)
    for k in range(n_clusters):
        gain = weights.copy()
        if k:
            with np.errstate(invalid="ignore"):
                gain *= np.minimum(
                    np.nan_to_num(np.maximum(best - trained_loss, 0.0), nan=0.0), most
                )
            gain = np.where(np.isinf(gain), weights, gain)
        gain[picks] = 0.0
        if gain.sum() <= 0:
            # Every client is served as well as by its own model: any other client will do.
            gain = np.ones(n)
            gain[picks if len(picks) < n else []] = 0.0
        drawn = rng.choice(n, size=n_candidates, p=gain / gain.sum())
        reach = np.minimum(best[:, None], _losses(pool, w, drawn, known))
        with np.errstate(invalid="ignore"):
            excess = np.maximum(reach - trained_loss[:, None], 0.0)
        if robust:
            excess = np.nan_to_num(excess, nan=np.inf)
            most = MOST_EXCESS * np.median(excess) if k == 0 else most
            excess = np.minimum(excess, most)
        total = np.nan_to_num(weights[:, None] * excess, nan=np.inf).sum(axis=0)
        winner = int(total.argmin())
        picks.append(drawn[winner])
        best = reach[:, winner]
    return w[picks]


def _losses(pool, models, which, known):
    """Losses of all clients under some models, (n_clients, len(which)); asked for once each."""
    new = [j for j in dict.fromkeys(which.tolist()) if j not in known]
    if new:
        columns = np.nan_to_num(pool.ask(Losses, models[new], whole=True), nan=np.inf)
        known.update(zip(new, columns.T, strict=True))
    return np.stack([known[j] for j in which], axis=1)


#: Names of the starts that the server draws by itself.
DRAWN = ("random", "same")
#: Starts by the names that users give them.
STARTS = {"loss++": loss_plus_plus, "random": random_starts, "same": same_starts}
