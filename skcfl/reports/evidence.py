"""Evidence of a report: sums that the clients send at the end of a fit."""

from dataclasses import dataclass

import numpy as np
from scipy.special import xlogy
from sklearn.utils import check_random_state

from ..calls.curvatures import ErrorsOfModels
from ..calls.first_order import LeastLosses, Losses, OwnLosses
from ..exceptions import FederationError
from ..federation.presence import needing_all
from ..federation.sites import Refused
from ..numerics.newton import MAX_DENSE
from .differences import (
    CommonModels,
    DifferenceTest,
    centre_of,
    common_models,
    differences,
    leave_one_out_models,
)

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
    models : tuple of ndarray or None
        Models of the clusters and roots of their errors' covariances, see
        :class:`~skcfl.calls.curvatures.ErrorsOfModels`, and of the clients' deviations if any.
    marginals : ndarray of shape (m, K, 2) or None
        What :func:`marginals` returns of the clients under them.
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
    models: tuple | None = None
    marginals: np.ndarray | None = None
    deviations: dict | None = None
    n_calls: int = 0
    reason: str = ""


def gather(
    pool,
    labels,
    cluster_params,
    params,
    deviations=None,
    elsewhere=False,
    rows=None,
    posterior=None,
):
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
    posterior : tuple, default=None
        Models of a population's clusters, as of :class:`Evidence` and None if their errors are
        not known, and the clients' responsibilities (n_clients, K).

    Returns
    -------
    evidence : Evidence
    """
    clients, rows = _sampled(pool), pool if rows is None else rows
    if len(clients) < pool.n_clients:
        pool, rows, labels = pool.subset(clients), rows.subset(clients), labels[clients]
        params = None if params is None else params[clients]
        posterior = posterior and (posterior[0], posterior[1][clients])
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
            pooled = _ask(pool, rows, evidence, labels, cluster_params, params, deviations)
            if evidence.cluster_losses is not None and pool.model.kernel.is_likelihood:
                if posterior is None:
                    _ask_left_out(pool, evidence, labels, cluster_params, pooled)
                elif posterior[0] is not None:
                    evidence.models = posterior[0]
                    evidence.marginals = marginals(pool, *posterior)
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
    return pooled


def _ask_left_out(pool, evidence, labels, cluster_params, pooled):
    """Ask how likely each client's rows are under the clusters' models without these rows."""
    K, every = len(cluster_params), ~pool.without_rows & ~pool.rejected
    several = every & (np.bincount(labels[every], minlength=K)[labels] > 1)
    rows = np.where(every, rows_of(evidence, pooled.test, pool.client_weights), 0.0)
    models = leave_one_out_models(pool, cluster_params, labels, several, pooled, rows)
    found = marginals(pool, models, np.eye(K + 1)[labels] * several[:, None])
    # The model of a cluster of one client without its rows is that of a new cluster.
    single = np.flatnonzero(every & ~several)
    found[single, labels[single]] = found[single, K]
    evidence.models, evidence.marginals = tuple(part[:K] for part in models), found[:, :K]


def rows_of(evidence, test, weights):
    """Rows of clients: one of weight two is two rows, and those of odd weights are one each."""
    return evidence.sizes if test.n_odd else weights


def marginals(pool, models, shares=0.0):
    """Sums of losses under models with errors, and widths of these, (n_clients, K, 2).

    Parameters
    ----------
    pool : ClientPool
    models : tuple of ndarray
        See :class:`Evidence`. With roots of deviations the losses are those above the losses of
        models without errors.
    shares : ndarray of shape (n_clients, K), default=0.0
        Shares of the clients' rows in the fits.
    """
    theta, errors, *root = models
    shares = np.broadcast_to(shares, (pool.n_clients, len(theta)))
    losses, widths = pool.ask(ErrorsOfModels, theta, errors, shares, *root)
    if not root:
        losses = losses + pool.client_weights[:, None] * pool.ask(Losses, theta)
    return np.stack([losses, widths], axis=-1)


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
    return _normalised(logs)


def certainties(logs, marginals, dispersion, degrees=np.inf):
    """Probabilities (m, K) of the clients' clusters, over the errors of these.

    Parameters
    ----------
    logs : ndarray of shape (m, K)
        Logarithms of prior probabilities, or of those without errors.
    marginals : ndarray of shape (m, K, 2)
        See :func:`marginals`.
    dispersion : float
    degrees : float, default=numpy.inf
        Degrees of freedom of the dispersion; infinity if it is known.
    """
    losses, widths = np.moveaxis(marginals, 2, 0)
    with np.errstate(invalid="ignore"):
        gaps = (losses - losses.min(axis=1, keepdims=True)) / dispersion
    gaps = np.where(np.isinf(losses).all(axis=1, keepdims=True), 0.0, gaps)
    if np.isfinite(degrees):
        gaps = degrees / 2.0 * np.log1p(gaps / (degrees / 2.0))
    return _normalised(logs - gaps - widths)


def _normalised(logs):
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def entropy(shares):
    """Entropy of each client's cluster, in parts of the most that it can be."""
    most = np.log(max(shares.shape[1], 2))
    return -xlogy(shares, shares).sum(axis=1) / most
