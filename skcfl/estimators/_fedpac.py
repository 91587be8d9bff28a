"""FedPAC: a shared body, and heads that are mixed for each client."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._checks import MOST_STEPS, NOT_NEGATIVE, Count
from .._option_objects import parameters
from .._typing import Activation, ClassWeight, LayerSizes
from ..base.docs import document
from ..base.everyday_models import ClassifierMixin, GivenNetworkMixin
from ..models import LocalModel
from ..personal.layers import train_part
from ..personal.prototypes import HeadMixing
from ..personal.shared_rounds import publish, run_shared
from ..search.pull import choose_pull
from ._base_personal import PersonalMethod, own_rates
from ._by_rounds import training_options

# Strengths of the pull that "auto" tries; the first is the paper's.
LAMS = 1.0, 0.1, 0.0


@document
@parameters
class FedPACClassifier(GivenNetworkMixin, ClassifierMixin, PersonalMethod):
    """FedPAC: a shared body, and for each client the mixture of heads that suits it best.

    For classifiers by networks, if the clients have the representation of the classes in
    common, where the labels' distributions differ. Not for crisp clusters of clients that
    label alike rows differently (:class:`IFCA`).

    Clients train the last layer of a network, then the layers below, with representations drawn to
    the mean ones of the classes; the server averages what is below, and each client gets a mixture
    of all clients' last layers; its weights solve a quadratic programme that trades their bias for
    its variance [1]_. A linear model is all last layer, of the features themselves: what is left
    is the mixing.

    Parameters
    ----------
    lam : "auto" or float
        Strength of the pull of representations to the classes' means; networks only. "auto"
        judges 1, the paper's, .1 and 0 on a fourth of each client's rows.
    head_steps : int
        Steps of the last layer in a round.

    Attributes
    ----------
    mixing_weights_ : ndarray of shape (n_clients, n_clients)
        Weights of all clients' last layers (columns) in each client's (rows), when they were
        mixed last.
    lam_ : float
        The strength of the pull.
    lam_search_ : dict of str to ndarray
        With ``lam="auto"``, "lam" and "held_out_loss" of what was tried (networks of several
        clients).

    See Also
    --------
    FedRepClassifier : Last layers of the clients' own.
    FedProtoClassifier : Nothing but prototypes is shared.

    Notes
    -----
    Clients send their last layers, class shares, class means of their representations and a
    variance, from which the server can tell their labels' distribution. The paper's variance is 0
    for a client with one row, so that all others would take its last layer: here a row of the mean
    squared length of all rows is added to each client's sum of squares. Whole last layers are
    mixed, and clients with few rows also predict classes that they lack. Weights below .001 are
    left out and the others scaled to sum to 1; in the public code they sum to less. The models
    that are published are those mixed last, with which the next round would begin.

    References
    ----------
    .. [1] J. Xu, X. Tong, S.-L. Huang. "Personalized Federated Learning with Feature Alignment and
       Classifier Collaboration". ICLR 2023. arXiv:2306.11867.

    Examples
    --------
    >>> from skcfl import FedPACClassifier
    >>> from skcfl.datasets import make_clustered_classification
    >>> data = make_clustered_classification(n_clients=6, n_clusters=2, random_state=0)
    >>> model = FedPACClassifier((8,), max_iter=5, tol=0, random_state=0)
    >>> model.fit(data.X, data.y, groups=data.groups).mixing_weights_.sum(axis=1).round(6)
    array([1., 1., 1., 1., 1., 1.])
    """

    _parameter_constraints = {
        "lam": [NOT_NEGATIVE, StrOptions({"auto"})],
        "head_steps": [Count(1, MOST_STEPS)],
    }

    hidden_layer_sizes: LayerSizes = ()
    lam: float | Literal["auto"] = "auto"
    _: KW_ONLY
    model: LocalModel | None = None
    activation: Activation = "relu"
    loss: Literal["log_loss", "squared_hinge"] = "log_loss"
    alpha: float | Literal["auto"] = "auto"
    fit_intercept: bool = True
    standardize: bool = True
    class_weight: ClassWeight = None
    head_steps: int = 10

    def _solve(self, pool):
        options = training_options(self, pool)
        lam, search = self._chosen("lam", pool, options)
        ended, update = self._rounds(pool, options, lam)
        extra = {"mixing_weights": update.weights, "lam": lam, **search}
        return publish(pool, options, ended, update.models, known=False, **extra)

    def _rounds(self, pool, options, lam):
        head, start = pool.model.head_mask(), pool.start()
        stages = [(self.head_steps, head), (options.local_steps, ~head)]
        update = HeadMixing(
            head,
            np.tile(start, (pool.n_clients, 1)),
            [stage for stage in stages if stage[1].any()],
            own_rates(pool, options),
            float(lam),
            options,
            self._average(pool),
        )
        return run_shared(pool, update, options, start), update

    def _choose(self, pool, options):
        """Strength of the pull by rows held out, and what was tried; any of linear models."""
        if pool.model.head_mask().all():
            return LAMS[0], {}

        def fit(part, lams):
            return (self._rounds(part, options, lam)[1].models for lam in lams)

        return choose_pull(pool, np.array(LAMS), fit, options.aggregator is not None)

    def _new_models(self, pool, theta, options):
        """Models of new clients: their last layer is trained from the mean one."""
        rates, steps = own_rates(pool, options), self.head_steps * self.n_iter_
        return train_part(pool, theta, pool.model.head_mask(), steps, rates, options)
