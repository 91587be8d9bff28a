"""FedProto: clients share nothing but the means of their classes' representations."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

import numpy as np

from .._checks import NOT_NEGATIVE
from .._option_objects import parameters
from .._typing import Activation, LayerSizes
from ..base.docs import document
from ..base.everyday_models import ClassifierMixin, GivenNetworkMixin
from ..calls.kept_models import Keep, Recall
from ..models import LocalModel
from ..personal.layers import train_part
from ..personal.prototypes import PrototypeAverage, nearest_prototype_heads
from ..personal.shared_rounds import publish, run_shared
from ..rounds.round_options import STEPS
from ..search.alpha import n_priors
from ._base_personal import PersonalMethod
from ._by_rounds import training_options


@document
@parameters
class FedProtoClassifier(GivenNetworkMixin, ClassifierMixin, PersonalMethod):
    """FedProto: per-client networks that share prototypes of the classes.

    For classifiers by networks where little may be sent: clients exchange mean
    representations of the classes and no parameters. Not where parameters may be averaged,
    which is more accurate (:class:`FedRep`, :class:`FedPACClassifier`).

    Clients send the mean representation (the last hidden states) of each class that they have, the
    server averages these, and clients train their network with ``lam`` times the mean squared
    distance of a row's representation to its class's prototype added to the loss [1]_. The class
    of the nearest prototype is predicted. Probabilities are for ranking: a softmax of squared
    distances to the prototypes, without the shares of the classes.

    Parameters
    ----------
    tol : float
        The rounds stop when the prototypes moved by less than ``tol`` of their norm in one. 0
        runs all ``max_iter`` rounds.
    hidden_layer_sizes : int or sequence of int
        Units of each hidden layer of the clients' networks, at least one. The last one is the
        representation.
    activation : {"relu", "tanh", "logistic", "identity"}
        Activation of the hidden layers.
    lam : float
        Strength of the pull to the prototypes.
    unseen : {"error", "average", "largest"}
        What to do in prediction about ids not seen in fit. "error" refuses them; "average"
        uses the mean output of the clients' networks, weighted by their rows, of another
        representation each; "largest" is refused here, as all clusters have one client.
        :meth:`adapt` trains a network on labelled rows of a new client.

    Attributes
    ----------
    prototypes_ : ndarray of shape (n_classes, n_units)
        Mean representations of the classes; NaN of classes that were never heard of.
    labels_ : ndarray of shape (n_clients,)
        ``[0, 1, ..., n_clients - 1]``: every client is its own cluster.
    cluster_params_ : ndarray of shape (n_clients, n_params)
        Parameter vectors of the clients.
    suspicion_ : ndarray of shape (n_clients,)
        Under an ``aggregation`` other than "mean": how far the means of each client's classes
        lay from the prototypes, in the round in which they lay farthest, as a part of the
        most that is expected of an honest client; infinity is who did not answer. The networks
        of who is beyond 1 do not count in ``unseen="average"``; see
        :class:`~skcfl.inspection.SuspicionDisplay`.
    coef_, intercept_, cluster_coef_, cluster_intercept_ : None

    See Also
    --------
    FedPACClassifier : Prototypes, a shared body and mixed heads.
    LocalModelsClassifier : Nothing is shared.

    Notes
    -----
    The published networks have a last layer that computes the negative squared distances to the
    prototypes, but for a number that all classes have in common, so that they predict as the
    method does; the last layers that clients train with serve the training only. Clients that lack
    a class know its prototype. Weights of classes would not change which one is nearest, so there
    are none. The server averages prototypes by rows; the public code counts clients alike.

    References
    ----------
    .. [1] Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang, C. Zhang. "FedProto: Federated
       Prototype Learning across Heterogeneous Clients". AAAI 2022. arXiv:2105.00243.

    Examples
    --------
    >>> from skcfl import FedProtoClassifier
    >>> from skcfl.datasets import make_clustered_classification
    >>> data = make_clustered_classification(n_clients=6, n_clusters=2, random_state=0)
    >>> model = FedProtoClassifier((8,), max_iter=5, tol=0, random_state=0)
    >>> model.fit(data.X, data.y, groups=data.groups).prototypes_.shape
    (2, 8)
    """

    # Options of other methods: networks have biases, prototypes are means over rows, and weights
    # of classes do not change which one is nearest.
    fit_intercept, class_weight = True, None

    _parameter_constraints = {"lam": [NOT_NEGATIVE]}
    _option_names = {"training": (*STEPS, "participation")}

    hidden_layer_sizes: LayerSizes = (100,)
    lam: float = 1.0
    _: KW_ONLY
    model: LocalModel | None = None
    activation: Activation = "relu"
    loss: Literal["log_loss", "squared_hinge"] = "log_loss"
    alpha: float | Literal["auto"] = "auto"
    standardize: bool = True

    def _solve_options(self, groups):
        if self.model is None and np.size(self.hidden_layer_sizes) == 0:
            raise ValueError(
                "hidden_layer_sizes must name a hidden layer: FedProto is about representations, "
                f"which linear models have not; got {self.hidden_layer_sizes!r}."
            )
        return super()._solve_options(groups)

    def _n_priors(self, pool, options):
        return n_priors(pool, pool.n_clients)

    def _solve(self, pool):
        options = training_options(self, pool)
        self._check_head(pool.model)
        start = pool.start()
        pool.ask(Keep, start)
        update = PrototypeAverage(float(self.lam), options, self._average(pool))
        points = np.zeros(pool.model.n_classes * pool.model.n_representation, dtype=pool.dtype)
        ended = run_shared(pool, update, options, points)
        models = np.tile(start, (pool.n_clients, 1))
        params = pool.ask(Recall, models, known=True, final=True)
        params = self._with_prototypes(pool, params, update.prototypes)
        extra = {"prototypes": update.prototypes, "training_start": start}
        result = publish(pool, options, ended, params, params[0], **extra)
        result.cluster_params, result.labels = params, np.arange(pool.n_clients)
        return result

    def _publish(self, task, result):
        start = result.extra.pop("training_start")
        super()._publish(task, result)
        self._start = start

    @staticmethod
    def _check_head(model):
        """Raise a ValueError if no last layer can say which prototype is nearest."""
        if model.head_mask().all():
            raise ValueError(
                "model must have a layer below the last one: FedProto is about representations, "
                f"of which {model!r} has none."
            )
        size, outputs = model.n_representation, model.n_outputs
        model.head_params(np.zeros((size, outputs)), np.zeros(outputs))

    @staticmethod
    def _with_prototypes(pool, params, prototypes):
        """Networks with a last layer that says which prototype is nearest."""
        params = np.array(params)
        weights, biases = nearest_prototype_heads(prototypes, pool.model.n_outputs)
        params[:, pool.model.head_mask()] = pool.model.head_params(weights, biases)
        return params

    def _models_of(self, pool):
        """Networks of new clients: trained under the pull of the prototypes."""
        options = training_options(self, pool)
        everything = np.ones(pool.n_params, dtype=bool)
        steps = options.local_steps * self.n_iter_
        how = everything, steps, options.step_size, options, self.prototypes_, self.lam
        params = train_part(pool, self._start, *how)
        return None, self._with_prototypes(pool, params, self.prototypes_)
