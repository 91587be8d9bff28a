"""Evidence of a report: sums that the clients send at the end of a fit."""

from dataclasses import dataclass

import numpy as np
from scipy.special import xlogy
from sklearn.utils import check_random_state

from ..calls.first_order import LeastLosses, Losses, OwnLosses
from ..exceptions import FederationError
from ..federation.presence import needing_all
from ..federation.sites import Refused
from ..numerics.newton import MAX_DENSE
from .differences import CommonModels, DifferenceTest, centre_of, common_models, differences

# Clients that are asked at most, and the product of rows and parameters; of more a sample.
MOST_CLIENTS, MOST_NUMBERS = 2000, 2e7
# Clusters up to which each client says how well each cluster's model fits it.
MOST_CLUSTERS = 64
# Errors of sites that do not answer. A refusal is not silence where the rows are in this process.
NO_ANSWER = FederationError, Refused


@dataclass
class Evidence:
    """Answers of the clients of a fit about it, beside the fit itself.

    Attributes
    ----------
    clients : ndarray of shape (m,)
        Positions of those that were asked.
    sizes : ndarray of shape (m,)
        Their rows.
    ids, weights : ndarray of shape (m,)
        Their ids, and the total weights of their rows.
    no_difference, intercepts_only, inside : DifferenceTest or None
        Tests of one model for all, of models that differ by their intercepts, and of one model
        for each cluster.
    common : CommonModels or None
        The clusters' models with their errors.
    centre, spread : ndarray of shape (n_columns,)
        Mean row and standard deviations of the design's columns, in the units of the pool, see
        :func:`~skcfl.reports.differences.centre_of`.
    losses : ndarray of shape (m,)
        Mean loss of each client under its own model, above the least that predictions can have.
    cluster_losses : ndarray of shape (m, K) or None
        Mean losses under each cluster's model.
    deviations : dict of str to ndarray or None
        Standard deviations of the clients' coefficients, with intervals.
    n_calls : int
        How often clients were asked.
    reason : str
        Why something is not known, or "".
    """

    clients: np.ndarray
    sizes: np.ndarray
    ids: np.ndarray | None = None
    weights: np.ndarray | None = None
    no_difference: DifferenceTest | None = None
    intercepts_only: DifferenceTest | None = None
    inside: DifferenceTest | None = None
    common: CommonModels | None = None
    centre: np.ndarray | None = None
    spread: np.ndarray | None = None
    losses: np.ndarray | None = None
    cluster_losses: np.ndarray | None = None
    deviations: dict | None = None
    n_calls: int = 0
    reason: str = ""


def gather(pool, labels, cluster_params, params, deviations=None, elsewhere=False, rows=None):
    """Ask the clients of a fit how sure it is.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    labels : ndarray of shape (n_clients,)
        Clusters.
    cluster_params : ndarray of shape (K, n_params)
        Models of the clusters, in the units of the pool.
    params : ndarray of shape (n_clients, n_params) or None
        Models of the clients, in the user's units; None if they are those of their clusters.
    deviations : callable, default=None
        ``deviations(pool, common, centre, spread)`` returns standard deviations of coefficients.
    elsewhere : bool, default=False
        Whether clients in other places are asked, too.
    rows : ClientPool, default=None
        The same clients with the weights of their rows, if those of `pool` are others; None is
        `pool`.

    Returns
    -------
    evidence : Evidence
    """
    clients, rows = _sampled(pool), pool if rows is None else rows
    if len(clients) < pool.n_clients:
        pool, rows, labels = pool.subset(clients), rows.subset(clients), labels[clients]
        params = None if params is None else params[clients]
    evidence = Evidence(clients, np.asarray(pool.client_sizes))
    if pool.travels and not elsewhere:
        # They agreed to a fit; the tests send many times as many bytes.
        evidence.reason = (
            "the clients are in other places, and are asked for fits only unless fit_federation "
            "has evidence=True"
        )
    elif not hasattr(pool.model, "kernel") or not pool.can_answer("score_draws"):
        evidence.reason = "the local model is not linear"
    elif pool.n_params > MAX_DENSE:
        evidence.reason = f"the models have more than {MAX_DENSE} parameters"
    elif (~pool.without_rows).sum() < 2:
        evidence.reason = "there is one client"
    if evidence.reason:
        return evidence
    pool, rows = pool.lane(), rows.lane(remembers=False)
    params = cluster_params[labels] if params is None else pool.units.from_user(params)
    silences = pool.presence.absences.n_silences
    try:
        with needing_all(pool):
            _ask(pool, rows, evidence, labels, cluster_params, params, deviations)
    except (*NO_ANSWER, np.linalg.LinAlgError, NotImplementedError) as error:
        evidence.reason = f"the clients could not be asked: {error}"
    if pool.presence.absences.n_silences > silences:
        # Sums of one call and the next are not of the same clients.
        evidence = Evidence(clients, evidence.sizes, reason="some of the clients did not answer")
    evidence.n_calls = pool.ledger.calls + rows.ledger.calls
    return evidence


def _sampled(pool):
    """Positions of the clients that are asked: not of those that are missing."""
    (here,) = np.nonzero(~pool.roll_call()[0])
    most = int(MOST_NUMBERS / max(pool.n_samples / pool.n_clients * pool.n_params, 1.0))
    most = max(min(most, MOST_CLIENTS), 2)
    if len(here) <= most:
        return here
    return np.sort(check_random_state(0).choice(here, most, replace=False))


def _ask(pool, rows, evidence, labels, cluster_params, params, deviations):
    model, K = pool.model, len(cluster_params)
    every, one = ~pool.without_rows & ~pool.rejected, np.zeros(pool.n_clients, dtype=np.intp)
    start = np.average(params[every], axis=0)[None]
    pooled = common_models(pool, start, one, every)
    evidence.no_difference = pooled.test
    evidence.centre, evidence.spread = centre_of(rows, every)
    if model.fit_intercept and model.n_features:
        evidence.intercepts_only = differences(pool, pooled.theta, one, every, True)
    sizes = np.bincount(labels[every], minlength=K)
    # A cluster of one client has nothing inside, and its sums are not asked for.
    several = every & (sizes[labels] > 1)
    if K == 1:
        evidence.common = pooled
    elif several.any():
        evidence.common = common_models(pool, cluster_params, labels, several)
        evidence.inside = evidence.common.test
        for name in ("by_rows", "by_clients"):
            getattr(evidence.common, name)[sizes < 2] = np.nan
        evidence.common.theta[sizes < 2] = cluster_params[sizes < 2]
    losses = pool.ask(OwnLosses, params)
    if not model.grounded:
        losses = losses - pool.ask(LeastLosses)
    evidence.losses = np.where(np.isnan(losses), 0.0, losses)
    if 1 < K <= MOST_CLUSTERS and K < pool.n_clients:
        evidence.cluster_losses = np.asarray(pool.ask(Losses, cluster_params), dtype=float)
    if deviations is not None:
        evidence.deviations = deviations(pool, pooled, evidence.centre, evidence.spread)


def if_answered(ask, *arguments):
    """Answers of the clients, None if they refuse or too few answer."""
    try:
        return ask(*arguments)
    except NO_ANSWER:
        return None


def memberships(losses, sizes, weights, dispersion):
    """Probabilities (m, K) of the clients' clusters, given the clusters' models.

    Parameters
    ----------
    losses : ndarray of shape (m, K)
        Mean losses under the clusters' models, minus log-densities times the dispersion.
    sizes : ndarray of shape (m,)
        Rows.
    weights : ndarray of shape (K,)
        Clients of each cluster.
    dispersion : float
    """
    with np.errstate(divide="ignore"):
        logs = np.log(weights) - sizes[:, None] * losses / dispersion
    logs = np.where(np.isnan(logs), np.log(np.maximum(weights, 1e-300)), logs)
    logs = logs - logs.max(axis=1, keepdims=True)
    shares = np.exp(logs)
    return shares / shares.sum(axis=1, keepdims=True)


def entropy(shares):
    """Entropy of each client's cluster, in parts of the most that it can be."""
    most = np.log(max(shares.shape[1], 2))
    return -xlogy(shares, shares).sum(axis=1) / most
