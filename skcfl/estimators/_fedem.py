"""FedEM: the rows of each client are a mixture of shared models."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from functools import partial

import numpy as np

from .._checks import MOST_STEPS, Count
from ..base.everyday import everyday
from ..base.mixture_predictions import MixturePredictions, own_models
from ..calls.mixtures_asked import Mixture
from ..federation.lanes import lanes_of, with_progress
from ..numerics.by_cluster import numbered_by_size
from ..rounds.mixture import fit_mixture
from ..rounds.round_options import STEPS
from ..rounds.starts import STARTS, Candidates
from ..search.n_clusters import find_n_clusters
from ._base_rounds import FromStarts
from ._by_rounds import training_options

# Rounds, and the change that ends them, of fits that only look for the number of models.
BRIEF, BRIEF_TOL = 30, 1e-2


@everyday
class FedEM(FromStarts, MixturePredictions):
    """Federated expectation maximisation (FedEM): clients mix shared models of any kind.

    For clients with rows of several kinds, so that no single cluster model suits a
    client. Not where each client belongs to one cluster: :class:`IFCA` finds it with a
    fraction of the messages.

    A client's rows are a mixture of K models that all clients share, with weights per client: soft
    clusters of rows, and of clients. Every round the clients compute how responsible each model is
    for each of their rows, and the models are fitted to the rows so weighted [1]_.

    Parameters
    ----------
    n_clusters : int or "auto"
        Number of shared models. "auto" tries 1, 2, ... on three quarters of every client's rows,
        four times over (linear models with fewer than 500 rows in all: nine tenths, ten times),
        for as long as the log-likelihood of the others under the client's mixture rises by more
        than its standard error and 1 % (regressions: 1 % of the rise so far).
    max_iter : "auto" or int
        Largest number of communication rounds; "auto" is 300 for linear models, 50 for
        networks.
    tol : float
        The fit stops when no model moved by more than ``tol`` of its norm in a round. 0 runs
        all ``max_iter`` rounds.
    n_init : "auto" or int
        Number of starts; the one of the largest likelihood is kept. "auto" is 3 for linear
        models with ``init="loss++"``, 10 with random ones, 1 for networks.
    share_steps : int
        Steps in which a client estimates its shares in a round, under models that stay: they
        cost little, no exchange, and rounds in which the shares settle. 1 is the paper's.

    Attributes
    ----------
    labels_ : ndarray of shape (n_clients,)
        Model of each client's largest share, in the order of ``groups_``. Clusters are
        numbered from 0 by decreasing number of clients, equal ones by their first client.
    mixture_weights_ : ndarray of shape (n_clients, n_models)
        Shares of the models in each client's rows. The first ``n_clusters_`` models are the
        clusters', the others are no client's largest.
    mixture_params_ : ndarray of shape (n_models, n_params)
        Parameter vectors of all models.
    dispersion_ : float
        Dispersion of the losses, of which the noise variance is that of "squared_error"; 1 for
        losses that are likelihoods themselves.
    coef_ : ndarray of shape (n_clients, n_features) or (n_clients, n_classes, n_features)
        Mean of the models' coefficients by each client's shares (linear models only):
        regressions without a link predict by it, classifiers mix probabilities.
    objective_ : float
        Minus the mean log-density of a row, up to a constant, and the penalty.
    search_ : dict of str to ndarray
        With ``n_clusters="auto"``, one entry for each number tried: "n_clusters", "found"
        (those with clients), "held_out_loss", "gain" and "standard_error" against the best
        number before, "accepted", "floats_up" and "floats_down".

    See Also
    --------
    FedEMClassifier : The same with a linear classifier or a network.
    FedEMRegressor : The same with a linear regressor or a network.
    IFCA : Each client takes one model.
    PartialPooling : Each client's coefficients are drawn about those of a cluster.

    Notes
    -----
    The responsibilities go by ``exp(-loss / dispersion)``. The paper takes the dispersion to be 1,
    so that a regression depends on the unit of its target; here it is estimated where the loss
    leaves it open. Linear models take one Newton step on sums over the clients per round, and the
    penalised likelihood never falls; networks train ``local_steps`` steps on weighted rows, as in
    the paper, which is K times the work of a round of IFCA.

    Predictions are means of the models' by the client's shares. A new client (``assign``,
    ``adapt``) fits its shares only. One that does not answer keeps those it had. ``assign``,
    ``adapt`` and ``update`` take the largest share among the first ``n_clusters_`` models as the
    label.

    References
    ----------
    .. [1] O. Marfoq, G. Neglia, A. Bellet, L. Kameni, R. Vidal. "Federated Multi-Task Learning
       under a Mixture of Distributions". NeurIPS 2021. arXiv:2108.10252.

    Examples
    --------
    >>> from skcfl import FedEM
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> fedem = FedEM(n_clusters=3, random_state=0).fit(data.X, data.y, groups=data.groups)
    >>> fedem.cluster_sizes_
    array([4, 4, 4])
    >>> fedem.mixture_weights_.max(axis=1).min().round(1)
    np.float64(1.0)
    """

    _parameter_constraints = {"share_steps": [Count(1, MOST_STEPS)]}
    _option_names = {"training": (*STEPS, "participation"), "record": ("true_labels",)}

    _publishes_rounds = False

    _: KW_ONLY
    share_steps: int = 5

    def _solve(self, pool, truth):
        # Steps are exact or local, and end where the likelihood does.
        options = training_options(self, pool)
        if self.n_clusters != "auto":
            options.truth = truth
            return self._fit(pool, min(self.n_clusters, pool.n_clients), options)
        brief = replace(
            options, max_iter=min(options.max_iter, BRIEF), tol=max(options.tol, BRIEF_TOL)
        )

        def fit(part, n_clusters, start, candidates, drawn):
            how = options if candidates is None else brief
            return self._fit(part, n_clusters, how, candidates)

        def judge(held, result):
            shares, phi = result.extra["mixture_weights"], result.extra["dispersion"]
            values = held.ask(Mixture, result.extra["mixture_params"], shares, phi)[1]
            model = held.model
            scale = np.log(phi) / model.loss_degree if model.unknown_scale else 0.0
            return np.where(held.client_weights > 0, values + scale, 0.0)

        return find_n_clusters(pool, fit, pool.random_state, judge=judge, memory=Candidates)

    def _fit(self, pool, n_clusters, options, candidates=None):
        """The best of some starts."""
        pool.ledger.since_mark()
        if not isinstance(self.init, str):
            theta = self._given_start(pool, n_clusters)
            results = [fit_mixture(pool, theta, options, self.share_steps)]
        elif n_clusters == 1:
            results = [fit_mixture(pool, pool.start()[None], options, self.share_steps)]
        else:
            n_init = self.n_init
            if n_init == "auto":
                n_init = self._automatic_n_init(pool) if candidates is None else 1

            def run(lane, restart):
                lane.ledger.since_mark()
                drawn = STARTS[self.init](lane, n_clusters, lane.random_state, restart, candidates)
                return fit_mixture(lane, drawn, options, self.share_steps)

            lanes = lanes_of(pool, n_init) if n_init > 1 else [pool]
            tasks = [partial(run, lane, restart) for restart, lane in enumerate(lanes)]
            results = with_progress(
                "starts", tasks, lanes, pool.ledger, lambda one: {"objective": one.objective}
            )
        result = min(results, key=lambda one: np.nan_to_num(one.objective, nan=np.inf))
        shares, theta = result.extra.pop("shares"), result.cluster_params
        order, result.labels = numbered_by_size(result.labels)
        order = np.append(order, np.setdiff1d(np.arange(len(theta)), order))
        shares, theta = shares[:, order], theta[order]
        result.cluster_params = theta
        result.params = own_models(pool.model, theta, shares)
        result.extra |= {"mixture_weights": shares, "mixture_params": theta}
        return result

    def _publish(self, task, result):
        pool, theta = task.pool, result.extra["mixture_params"]
        dtype = (pool.model if result.model is None else result.model).dtype
        result.extra["mixture_params"] = np.asarray(pool.units.to_user(theta), dtype=dtype)
        super()._publish(task, result)
        self._dispersion, weights = self.dispersion_, pool.client_weights
        self._mean_shares = weights @ self.mixture_weights_ / weights.sum()
