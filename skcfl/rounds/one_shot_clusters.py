"""Clusters found once, from what the clients send in one exchange, and what follows."""

from dataclasses import dataclass

import numpy as np

from ..calls.curvatures import Hessians, Solve, shows_rows
from ..calls.first_order import LocalUpdate, Objectives
from ..federation.result import Result
from ..numerics.by_cluster import mean_by_cluster, sum_by_cluster
from ..numerics.matrices import product
from ..numerics.newton import solve_scaled
from .aggregation import aggregate_by_cluster
from .model_kinds import kind_of, need_minima
from .record import History
from .state import weighted_mean

__all__ = ["Partition", "combine_models", "local_models", "publish_once"]


@dataclass
class Partition:
    """Clusters of the clients, and the models to go on from.

    Attributes
    ----------
    labels : ndarray of shape (n_clients,)
        Clusters 0..K-1, none of them empty.
    theta : ndarray of shape (K, n_params)
        Models.
    """

    labels: np.ndarray
    theta: np.ndarray


def local_models(pool, steps, step_size, optimizer, batch_size=None):
    """Models that clients train by themselves: their minimisers, or steps from a common start.

    Returns
    -------
    models : ndarray of shape (n_clients, n_params)
    known : ndarray of shape (n_clients,) of bool
        Who has rows and answered: of the others nothing is known.
    """
    if kind_of(pool).exact:
        models = pool.ask(Solve)[0]
    else:
        how = steps, step_size, optimizer, batch_size
        models = pool.ask(LocalUpdate, pool.start(), *how, whole=True)
    return models, heard(pool)


def heard(pool):
    """Who has rows and answered the last call, (n_clients,) of bool."""
    known = pool.client_weights > 0
    if pool.answered is not None:
        known &= pool.answered
    return known


def spread_labels(labels, known):
    """Labels of all clients: unknown clients go to the largest cluster."""
    out = np.full(len(known), np.bincount(labels).argmax())
    out[known] = labels
    return out


def combine_models(pool, models, labels, how, weights, kept, aggregator=None):
    """One model of each cluster from those of its clients.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    models : ndarray of shape (n_clients, n_params)
        Models that the clients have trained.
    labels : ndarray of shape (n_clients,)
        Clusters 0..K-1.
    how : {"mean", "precision"}
        Weighted mean, or mean weighted by the clients' Hessians, each at its own model, which for
        squared losses is the fit to the cluster's pooled rows.
    weights : ndarray of shape (n_clients,)
        Weights of the clients.
    kept : ndarray of shape (n_clients,) of bool
        Which clients count.
    aggregator : object, default=None
        Operator in place of the weighted mean.

    Returns
    -------
    theta : ndarray of shape (K, n_params)

    Raises
    ------
    ValueError
        If Hessians are needed that the local model has not, or that show a client's rows.
    """
    K = int(labels.max()) + 1
    weights = np.where(kept, weights, 0.0)
    models = models.astype(float)
    if aggregator is not None and how == "mean":
        return aggregate_by_cluster(aggregator, models, labels, K, weights)
    mean = mean_by_cluster(models, labels, weights)
    if how == "mean":
        return mean
    need_minima(pool, "combine='precision' needs Hessians, which {} has not. Use combine='mean'.")
    each = np.arange(pool.n_clients)
    shown = shows_rows(pool, each, pool.n_clients, weights > 0).sum()
    if shown:
        raise ValueError(
            f"combine='precision' needs the Hessian of each client: those of {shown} clients with "
            f"fewer rows than the {pool.n_params} parameters of a model would show their rows. "
            "Use combine='mean'; if n_clusters='auto' held rows out, a number may do."
        )
    H = pool.ask(Hessians, models, each, weights)
    pull = product(H, models)
    total = sum_by_cluster(H.reshape(len(H), -1), labels, K).reshape(K, *H.shape[1:])
    # Directions that no client's rows speak of stay at the mean.
    rest = sum_by_cluster(pull, labels, K) - product(total, mean)
    return mean + solve_scaled(pool.model.pin(total), rest)


def publish_once(pool, found, weights):
    """Send the clusters' models out and be done: one exchange, and the clients' objectives."""
    values = pool.ask(Objectives, found.theta[found.labels], searching=False)
    here = slice(None) if pool.answered is None else pool.answered
    history = History(pool.ledger, "objective", "change", "n_clusters", "participants")
    objective = weighted_mean(values[here], weights[here])
    history.add(
        objective=objective,
        change=np.nan,
        n_clusters=len(found.theta),
        participants=len(values[here]),
    )
    return Result(
        cluster_params=found.theta,
        labels=found.labels,
        objective=objective,
        n_iter=1,
        history=history.arrays(),
    )
