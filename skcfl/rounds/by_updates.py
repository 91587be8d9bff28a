r"""Rules that cluster clients by trained models or updates, and not by losses.

FeSEM (Long et al., 2023) takes the clients' models,

    E:  r_i     = argmin_j ||w_i - W_j||
    M:  W_j     = sum_{r_i = j} n_i w_i / sum_{r_i = j} n_i
        w_i     = LocalUpdate_i(W_{r_i})

============  ======================================  ==========================
paper         here                                    parameter
============  ======================================  ==========================
K             ``len(state.theta)``                    ``n_clusters``
W_j           ``state.theta[j]``                      ``init``
w_i           ``answers.models[i]``                   ``local_steps``
r_i           ``answers.choice[i]``
============  ======================================  ==========================
"""

from dataclasses import replace

import numpy as np
from scipy.spatial.distance import cdist

from ..calls.summed import NearestMoves
from ..numerics.by_cluster import mean_by_cluster
from ..numerics.kmeans import long_kmeans
from .choice import ChoiceRule, Known
from .model_kinds import kind_of
from .point_clusters import cluster_points
from .safeguards import FALSE_SHARE
from .starts import Candidates, random_starts
from .state import Answers
from .update import ask_values

__all__ = ["NearestModel", "nearest_to_start", "trained_means"]


class NearestModel(ChoiceRule):
    """FeSEM's choice: clients train first, and go to the model nearest to theirs.

    A client without a cluster begins at the mean of all models.
    """

    def prepare(self, update):
        """Train as the rule of update does."""
        self.update = update

    def ask(self, who, state, gradients=""):
        """Models trained from those of the clients' clusters."""
        labels = state.labels[who.index]
        theta = np.vstack([state.theta, state.theta.mean(axis=0)])
        answers = Answers(who, choice=np.where(labels < 0, len(state.theta), labels))
        if self.update.single:
            return self.update.ask(answers, replace(state, theta=theta))
        ask_values(answers, replace(state, theta=theta))
        about = state.theta, answers.choice
        how = {**self.update.how(answers), "weights": answers.who.weights, "known": True}
        pool = answers.who.pool
        answers.choice, answers.sums = pool.ask(NearestMoves, *about, **how)
        return answers.heard(pool)

    def choose(self, answers, state, final=False):
        """The nearest models, found by the clients or here."""
        if answers.models is None:
            return answers.choice
        return nearest(answers.models, state.theta)

    def last(self, state):
        """Clusters stay: they are of models on the way, not of minimisers."""
        return Known(state.labels)


def nearest(models, theta):
    """Nearest of the models `theta` to each of `models`."""
    return cdist(models.astype(float), theta.astype(float)).argmin(axis=1)


def trained_means(pool, n_clusters, rng, restart=0, candidates=None, robust=False):
    """Means of k-means' clusters of models that all clients have trained from one start.

    Trimmed k-means if some clients may be false (`robust`): a model far from all others would be a
    cluster otherwise.

    Returns
    -------
    theta : ndarray of shape (K, n_params)
    labels : ndarray of shape (n_clients,)
    """
    candidates = Candidates() if candidates is None else candidates
    models = candidates.at(pool, kind_of(pool).compared_steps, restart)[0]
    # Clients without weight have trained nothing.
    here, labels = pool.client_weights > 0, np.zeros(len(models), dtype=np.intp)
    models = np.nan_to_num(models[here].astype(float))
    if robust:
        labels[here], kept = cluster_points(models, n_clusters, "trimmed", rng, FALSE_SHARE)
        theta = mean_by_cluster(models, labels[here], kept.astype(float))
        return theta.astype(pool.dtype), labels
    means = long_kmeans(models, n_clusters, rng)
    labels[here] = means.labels_
    return means.cluster_centers_.astype(pool.dtype), labels


def nearest_to_start(pool, n_clusters, rng, restart=0, candidates=None):
    """Random models, and the one that is nearest to the clients' common start, for all of them.

    Returns
    -------
    theta : ndarray of shape (K, n_params)
    labels : ndarray of shape (n_clients,)
    """
    theta = random_starts(pool, n_clusters, rng)
    return theta, np.repeat(nearest(pool.start()[None], theta), pool.n_clients)
