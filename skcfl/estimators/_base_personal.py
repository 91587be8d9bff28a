"""Shared parts of the personal methods: parameters, automatic values, documentation."""

from __future__ import annotations

import numpy as np

from ..numerics.quantiles import weighted_median
from ..personal.shared_rounds import TrustedAverage
from ..rounds.round_options import SHARED_ROUNDS, robust_aggregator, shared_mask
from ..rounds.update import Average, client_curvatures
from ._by_rounds import Averaging, training_options


class PersonalMethod(Averaging):
    """Base of the methods with per-client models beside a shared one.

    Parameters
    ----------
    tol : float
        The rounds stop when the shared model moved by less than ``tol`` of its norm in one. 0
        runs all ``max_iter`` rounds.
    max_iter : "auto" or int
        Largest number of communication rounds. "auto" is 300 for linear models and 50 for
        networks. A ``ConvergenceWarning`` says so when it was not enough: of networks, and of
        FedALA, only when a number was given, because they train so long.
    unseen : {"error", "average", "largest"}
        What to do in prediction about ids not seen in fit. "error" refuses them; "average"
        uses the mean of the clients' models, weighted by their rows, and the mean output of
        several clusters' networks; "largest" uses the shared model. :meth:`adapt` fits a new
        client a model of its own to some of its labelled rows.

    Attributes
    ----------
    labels_ : ndarray of shape (n_clients,)
        Zeros: all clients share one model.
    coef_ : ndarray of shape (n_clients, n_features) or (n_clients, n_classes, n_features)
        Coefficients of each client's own model, in the order of ``groups_`` (linear models
        only).
    cluster_coef_ : ndarray of shape (1, n_features) or (1, n_classes, n_features)
        Coefficients of the shared model (linear models only).
    cluster_params_ : ndarray of shape (1, n_params)
        Parameter vector of the shared model.
    objective_ : float
        Mean of the clients' losses and local penalties at the models of their own.
    suspicion_
    """

    # Clients make models of their own when the rounds have ended.
    _publishes_rounds = False
    #: If True, models are pulled to a shared one by `lam_`, in updates too.
    _keeps_curvatures = False
    _option_names = {"training": SHARED_ROUNDS}

    def _average(self, pool):
        """How the server averages what clients send."""
        aggregator = robust_aggregator(self)
        return Average() if aggregator is None else TrustedAverage(aggregator, pool.n_clients)

    def _models_of(self, pool):
        theta = pool.units.from_user(self.cluster_params_)[0]
        labels = np.zeros(pool.n_clients, dtype=np.intp)
        return labels, self._new_models(pool, theta, training_options(self, pool))

    def _pulls(self, pool, places):
        theta = pool.units.from_user(self.cluster_params_)
        return self.lam_, theta[self.labels_[places]].astype(float)

    def _updated(self, pool, places):
        if self._keeps_curvatures:
            return super()._updated(pool, places)
        # Means by rows of what clients have, and would have as new ones.
        models, older = self._models_before(pool, places)
        labels, fresh = self._models_of(pool)
        return labels, models + (fresh - models) / (1.0 + older)[:, None]

    def _chosen(self, name, *about):
        """A parameter and nothing found, or for "auto" the best value and the search for it."""
        given = getattr(self, name)
        return self._choose(*about) if given == "auto" else (given, {})

    def _settles(self, options):
        """True if rounds are a map with a fixed point: nothing is drawn."""
        drawn = options.participation < 1.0 or options.batch_size is not None
        return not drawn and options.tol > 0


def own_rates(pool, options):
    """Step of each client: that given, or one over its curvature."""
    return 1.0 / client_curvatures(pool) if options.step_size is None else options.step_size


def common_rate(pool, options):
    """One step for all: that given, or one over the mean of the clients' curvatures.

    It is one over the largest for counts and amounts, and over the median if clients may be false.
    """
    if options.step_size is not None:
        return options.step_size
    weights, curvatures = pool.client_weights, client_curvatures(pool)
    if options.aggregator is not None:
        return 1.0 / float(weighted_median(curvatures, weights))
    if pool.model.halves_steps:
        # A client that takes its step back, as it raises its loss, would be in no mean.
        return 1.0 / float(curvatures[weights > 0].max())
    return float(weights.sum() / (weights @ curvatures))


def layer_mask(layers, model):
    """Mask of the parameters of some layers, all or none included.

    Raises
    ------
    ValueError
        If the local model has no such layers, or "auto" leaves clients no parameters.
    """
    if not (isinstance(layers, str) and layers == "auto"):
        mask = shared_mask(layers, model.layer_slices(), model.n_params, every=True)
        return np.zeros(model.n_params, dtype=bool) if mask is None else mask
    mask = model.body_mask()
    if mask.all():
        raise ValueError(
            "shared_layers='auto' leaves clients their intercepts, and the local model has none. "
            "Set fit_intercept=True, or use FedAvg (one model) or LocalModels (separate ones)."
        )
    return mask
