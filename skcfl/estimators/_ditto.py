"""Ditto: a model of each client, pulled to the shared one of federated averaging."""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Real
from typing import Literal

import numpy as np
from sklearn.base import clone
from sklearn.utils._param_validation import StrOptions

from .._checks import Interval
from ..base import BaseFederated
from ..base.everyday import everyday
from ..base.private_plans import refuse_privately, rounds_plan, strength
from ..calls.first_order import Losses, Objectives
from ..personal.proximal import pulled_models
from ..rounds.alternate import client_weights, common_model
from ..rounds.private_rounds import PULL
from ..rounds.round_options import ROUNDS, make_options
from ..search.pull import choose_pull, pull_grid
from ._base_personal import PersonalMethod


@everyday
class Ditto(PersonalMethod):
    """Ditto: per-client models, pulled to that of federated averaging, with any local model.

    For clients that differ by degrees from one shared model, with linear models or networks.
    Not for crisp clusters, where cluster models (:class:`IFCA`) are better; with linear models
    :class:`PartialPooling` estimates how far each coefficient differs.

    The shared model w is that of :class:`FedAvg`; client i predicts with
    ``argmin f_i(v) + lam / 2 ||v - w||^2``, which never leaves it but to be published [1]_. For
    linear models both are exact; networks train towards it from the shared model when the rounds
    have ended. Rounds send what those of federated averaging send. With ``within`` clients are
    pulled to the model of a cluster that is found by another method.

    Parameters
    ----------
    lam : "auto" or float
        Strength of the pull of the clients' own models to the shared one, in [0, inf]: 0 is
        :class:`LocalModels` (of networks that begin at the shared one), ``numpy.inf``
        :class:`FedAvg`. "auto" judges both and eleven
        strengths between on rows held out inside the clients (four folds); of networks both
        and 1, .3, .1, .03 and .01, on a fourth of each client's rows, in about five times the
        time of one fit.
    within : estimator or None
        A method that finds clusters by rounds, such as ``IFCA(n_clusters=3)`` or
        ``OracleClusters(labels=...)``: clients are pulled to the model of their cluster. Its
        local model and random state are not used, but those of this estimator; parameters of
        the rounds are its own. None is one shared model, by federated averaging.
    unseen : {"error", "average", "largest"}
        What to do in prediction about ids not seen in fit. "error" refuses them; "average"
        uses the mean of the clients' models, weighted by their rows, and the mean output of
        several clusters' networks; "largest" uses the shared model, or with ``within`` that of
        the largest cluster. :meth:`adapt` fits a new client a model of its own to some of its
        labelled rows.

    Attributes
    ----------
    lam_ : float
        The strength of the pull.
    lam_search_ : dict of str to ndarray
        With ``lam="auto"``, "lam" and "held_out_loss" of what was tried (several clients).
    labels_ : ndarray of shape (n_clients,)
        Zeros; with ``within`` the clusters of the clients.
    cluster_coef_ : ndarray of shape (n_clusters_, n_features) or (n_clusters_, n_classes, \
    n_features)
        Coefficients of the shared model, or with ``within`` of the clusters' models (linear
        models only).
    cluster_params_ : ndarray of shape (n_clusters_, n_params)
        Parameter vectors of these models.

    See Also
    --------
    DittoClassifier : The same with a linear classifier or a network.
    DittoRegressor : The same with a linear regressor or a network.
    PFedMe : The shared model is the mean of the clients' own.
    PartialPooling : The pull is estimated, one for each coefficient.

    Notes
    -----
    The pull acts on standardised coefficients with ``standardize=True``. The paper's lam is this
    one; it lies between .01 and 2 there. Its Algorithm 1 takes the clients' steps in every round,
    beside the shared model's; here they take as many from where that model ended.

    References
    ----------
    .. [1] T. Li, S. Hu, A. Beirami, V. Smith. "Ditto: Fair and Robust Federated Learning Through
       Personalization". ICML 2021. arXiv:2012.04221.

    Examples
    --------
    >>> from skcfl import IFCA, Ditto
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=2, random_state=0)
    >>> ditto = Ditto(lam=0.1, within=IFCA(n_clusters=2), random_state=0)
    >>> ditto.fit(data.X, data.y, groups=data.groups).cluster_sizes_
    array([6, 6])
    >>> ditto.coef_.shape, ditto.cluster_coef_.shape
    ((12, 10), (2, 10))
    """

    _parameter_constraints = {
        "lam": [Interval(Real, 0, np.inf, closed="both"), StrOptions({"auto"})],
        "within": [BaseFederated, None],
    }
    _option_names = {"training": ROUNDS}
    _keeps_curvatures = True

    lam: float | Literal["auto"] = "auto"
    _: KW_ONLY
    within: BaseFederated | None = None

    def _solve_options(self, groups):
        super()._solve_options(groups)
        inner = self._inner()
        return {} if inner is None else {"inner": inner._solve_options(groups)}

    def _inner(self):
        """The method that finds the clusters, None for one shared model."""
        if self.within is None:
            return None
        by_rounds = "participation" in self.within._used("training")
        if not by_rounds or isinstance(self.within, PersonalMethod) or hasattr(self.within, "lam"):
            raise ValueError(
                "within must be a method that finds clusters by rounds, such as IFCA(), got "
                f"{self.within!r}."
            )
        return clone(self.within)

    def _check_number(self, n_clients):
        if self.within is not None:
            self._inner()._check_number(n_clients)

    def _n_priors(self, pool, options):
        inner = self._inner()
        return 1 if inner is None else inner._n_priors(pool, options["inner"])

    def _private_plan(self, model):
        refuse_privately(self, "within", None)
        return rounds_plan(self, model, 1, PULL, strength(self.lam))

    def _solve(self, pool, inner=None):
        options = make_options(self, pool)
        lam, search = self._chosen("lam", pool, options, inner)
        result = self._shared(pool, options, inner)
        result.params = pulled_models(pool, result.cluster_params[result.labels], lam, options)
        values = pool.ask(Objectives, result.params, last=True, searching=False)
        here = slice(None) if pool.answered is None else pool.answered
        weights = client_weights(pool, options)[here]
        result.objective = float(np.average(values[here], weights=weights))
        result.extra.update({"lam": lam, **search})
        return result

    def _shared(self, pool, options, inner):
        """The shared model, or those of clusters."""
        if inner is not None:
            return self._inner()._solve(pool, **inner)
        return common_model(pool, options)

    def _choose(self, pool, options, inner):
        robust = options.aggregator is not None

        def fit(part, lams):
            result = self._shared(part, options, inner)
            centers = result.cluster_params[result.labels]
            return (pulled_models(part, centers, lam, options) for lam in lams)

        return choose_pull(pool, pull_grid(pool, robust=robust), fit, robust)

    def _models_of(self, pool):
        """Models of new clients: pulled to the shared one that fits them best."""
        theta = pool.units.from_user(self.cluster_params_)
        labels = pool.ask(Losses, theta).argmin(axis=1)
        return labels, pulled_models(pool, theta[labels], self.lam_, make_options(self, pool))
