r"""CLoVE's choice of clusters: clients with alike loss vectors share a model.

Algorithm 1 of Bhatia et al. (2025), lines 5-10, a rule of choice; updates are those of IFCA::

    L_i  = (L^i(theta_1), ..., L^i(theta_K))                                 (line 7)
    Q    = clusters of the vectors embed(L_i), found by k-means              (line 9)
    c    = argmin over bijections of sum_q sum_{i in Q_q} L^i(theta_c(q))    (line 10)

============  ==================================  ==========================
paper         here                                parameter
============  ==================================  ==========================
K             ``n_models``                        ``n_clusters``
L_i           a row of ``losses``                 ``loss``
k-means       ``kmeans``, or a clusterer           ``clusterer``, ``embedding``
matching      :func:`match`
c_i           what ``cluster`` returns
============  ==================================  ==========================
"""

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone

from ..numerics.kmeans import kmeans, lloyd
from ..numerics.matrices import count_different
from .choice import ChoiceRule
from .suspicion import excess

__all__ = ["LossClusters"]

EMBEDDINGS = ("log", "sqrt", "raw", "centered")

# Rounds with the same partition after which k-means only starts from it.
CALM_ROUNDS = 3
# Spread of the vectors, relative to the size of the embedded values, that is rounding.
SAME = 1e-10
# Factor for losses of NaN: so many times the largest finite one.
WORSE = 10.0


def finite_losses(losses):
    """Losses with large numbers for those that are infinite or NaN.

    Parameters
    ----------
    losses : ndarray of shape (n_clients, K)
        Losses, not negative, or no numbers where a model diverged.

    Returns
    -------
    losses : ndarray of shape (n_clients, K), float64
        Ten times the largest finite loss of a model stands for those that are none; a model
        with no finite loss has the same value for all clients and distinguishes none.
    """
    losses = np.array(losses, dtype=float)
    # The square of the difference must be finite, too.
    bad = ~(np.abs(losses) <= 1e150)
    if bad.any():
        losses[bad] = 0.0
        top = losses.max(axis=0)
        top = np.where(bad.all(axis=0), top.max(), top)
        losses = np.where(bad, np.where(top > 0, WORSE * top, 1.0), losses)
    return losses


def embed(losses, embedding="log"):
    """Vectors to cluster, from the clients' losses under all models.

    Parameters
    ----------
    losses : ndarray of shape (n_clients, K)
        Finite losses.
    embedding : {"log", "sqrt", "raw", "centered"}
        Logarithms minus each client's mean, so that only the ratios of its losses count; the
        square root (the paper's theory), the losses themselves (the paper's algorithm), or these
        minus each client's mean. Negative losses, as of counts, have neither ratios nor roots:
        each client's losses are then taken from its least one, and for logarithms one is added in
        units of the median client's largest difference.

    Returns
    -------
    vectors : ndarray of shape (n_clients, K)
    """
    losses = np.asarray(losses, dtype=float)
    if embedding == "raw":
        return losses.copy()
    if embedding == "centered":
        return losses - losses.mean(axis=1, keepdims=True)
    above = losses.min(initial=0.0) < 0.0
    if above:
        losses = losses - losses.min(axis=1, keepdims=True)
    if embedding == "sqrt":
        return np.sqrt(losses)
    if above:
        largest = losses.max(axis=1)
        unit = np.median(largest[largest > 0.0]) if largest.any() else 1.0
        logs = np.log1p(losses / unit)
        return logs - logs.mean(axis=1, keepdims=True)
    # Below rounding of a typical loss a logarithm is noise.
    floor = np.finfo(float).eps * np.median(losses, axis=0)
    floor = np.where(floor > 0, floor, np.finfo(float).eps * losses.mean(axis=0))
    logs = np.log(np.maximum(losses, np.maximum(floor, 1e-300)))
    return logs - logs.mean(axis=1, keepdims=True)


def match(cost):
    """Assign models to groups at the least total cost.

    Parameters
    ----------
    cost : ndarray of shape (n_groups, K)
        Cost of each model for each group.

    Returns
    -------
    model : ndarray of shape (n_groups,)
        Different models; -1 for groups that get none, where there are more groups than models.
    """
    model = np.full(len(cost), -1)
    rows, columns = linear_sum_assignment(cost)
    model[rows] = columns
    return model


class LossClusters(ChoiceRule):
    """Choice of clusters by the loss vectors (CLoVE); it has a memory of its rounds.

    The server chooses, and tells the clients: it needs all losses before a gradient can be
    computed.

    Parameters
    ----------
    n_clients, n_models : int
        Numbers of clients and models.
    rng : RandomState
        Source of k-means' starts.
    embedding : {"log", "sqrt", "raw", "centered"}, default="log"
        Embedding of the losses, see ``embed``.
    clusterer : clusterer, default=None
        A scikit-learn clusterer, cloned for every round; its number of clusters is set to that of
        the models, if it has one.  None is k-means.
    robust : bool, default=False
        True if clients that no model suits, which may be false, are left out of the clusters: they
        take the model of least loss.

    Attributes
    ----------
    losses : ndarray of shape (n_clients, n_models)
        Last loss vector of each client.
    age : ndarray of shape (n_clients,)
        Rounds since then; -1 for clients that never answered.
    """

    def __init__(self, n_clients, n_models, rng, embedding="log", clusterer=None, robust=False):
        self.rng, self.K, self.robust = rng, n_models, robust
        self.embedding, self.clusterer = embedding, clusterer
        self.losses = np.full((n_clients, n_models), np.nan)
        self.age = np.full(n_clients, -1)
        self.labels = np.full(n_clients, -1)
        self.calm = 0

    def report(self):
        """Number of clients with a loss vector of an earlier round."""
        return {"stale": int((self.age > 0).sum())}

    def choose(self, answers, state, final=False):
        """Models of the participants; their labels are sent to them."""
        who = answers.who
        choice = self.cluster(answers.losses, who.members, state.labels, final)
        if final:
            return choice
        answers.choice = state.hold(choice, who)
        # The labels go with the call of the update.
        n = len(choice)
        who.pool.ledger.book(down=n, own_bytes=(0, 8 * n), calls=0)
        return answers.choice

    def cluster(self, losses, members, old, final=False):
        """Models of the participants from their losses.

        Parameters
        ----------
        losses : ndarray of shape (n_members, K)
            Their losses.
        members : ndarray of shape (n_members,)
            Who they are.
        old : ndarray of shape (n_clients,)
            Models that the clients had in their last rounds, -1 for none.
        final : bool, default=False
            If True, look for the best partition from scratch, whatever was found before.

        Returns
        -------
        choice : ndarray of shape (n_members,)
        """
        self.age[self.age >= 0] += 1
        self.age[members] = 0
        self.losses[members] = losses
        if final:
            self.calm = 0
        heard = np.flatnonzero(self.age >= 0)
        finite = finite_losses(self.losses[heard])
        vectors = embed(finite, self.embedding)
        # Centring leaves the rounding error of the original values.
        size = np.abs(finite).max()
        size = {"log": 1.0, "sqrt": np.sqrt(size)}.get(self.embedding, size)
        served = np.ones(len(heard), dtype=bool)
        if self.robust:
            together = np.zeros(len(heard), dtype=np.intp)
            served = excess(finite.min(axis=1), together, 1, np.ones(len(heard))) <= 1.0
        groups = np.full(len(heard), -1)
        groups[served] = self._group(vectors[served], size, old[heard][served])
        new = self._match(groups, finite)
        self.calm = self.calm + 1 if np.array_equal(new, self.labels[heard]) else 0
        self.labels[heard] = new
        return self.labels[members]

    # ------------------------------------------------------------------------- clusters

    def _group(self, vectors, size, old):
        """Line 9: group of each vector, 0, 1, ...; negative for noise."""
        n, K = len(vectors), min(self.K, len(vectors))
        if K == 1:
            return np.zeros(n, dtype=np.intp)
        if np.abs(vectors - vectors[0]).max() <= SAME * size:
            # Equal starts, centred: the vectors say nothing, and something has to break the tie.
            return self.rng.permutation(np.arange(n) % K)
        if self.clusterer is not None:
            return labels_of_clusterer(self.clusterer, vectors, K, self.rng, "loss vectors")
        return self._kmeans(vectors, K, old)

    def _kmeans(self, vectors, K, old):
        """The better of k-means from the partition before and from scratch."""
        K = min(K, len(np.unique(vectors, axis=0)))
        warm = None
        if (old >= 0).all() and len(np.unique(old)) == K:
            codes = np.unique(old, return_inverse=True)[1]
            share = (codes == np.arange(K)[:, None]) / np.bincount(codes)[:, None]
            warm = lloyd(vectors, (share @ vectors)[None])
            if self.calm >= CALM_ROUNDS:
                return warm[0]
        cold = kmeans(vectors, K, self.rng)
        if warm is not None and warm[1] <= cold[1] * (1 + 1e-12):
            return warm[0]
        return cold[0]

    # ------------------------------------------------------------------------- matching

    def _match(self, groups, losses):
        """Line 10: the model of each client."""
        n_groups = max(groups.max() + 1, 1)
        member = groups == np.arange(n_groups)[:, None]
        # The sum, not the mean: a group counts by its clients.
        model = match(member.astype(float) @ losses)
        # Noise, and groups beyond the number of models: the model of least loss.
        assigned = np.where(groups < 0, -1, model[groups])
        return np.where(assigned >= 0, assigned, losses.argmin(axis=1))


def labels_of_clusterer(clusterer, points, n_clusters, rng, what):
    """Labels of a clusterer of the user's, 0, 1, ...; noise is -1."""
    clusterer = clone(clusterer)
    known = clusterer.get_params(deep=False)
    for name in ("n_clusters", "n_components"):
        if name in known and n_clusters is not None:
            clusterer.set_params(**{name: min(n_clusters, count_different(points))})
    if known.get("random_state", 0) is None:
        clusterer.set_params(random_state=rng.randint(np.iinfo(np.int32).max))
    groups = np.asarray(clusterer.fit_predict(points))
    if groups.shape != (len(points),):
        raise ValueError(
            f"clusterer must label each of the {len(points)} {what}, got labels of shape "
            f"{groups.shape} from {type(clusterer).__name__}."
        )
    noise = groups < 0
    codes = np.full(len(groups), -1)
    codes[~noise] = np.unique(groups[~noise], return_inverse=True)[1]
    return codes
