"""FedALA: clients blend the mean model into their own by weights that they learn."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from numbers import Integral, Real
from typing import Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._checks import POSITIVE, Interval
from ..base.everyday import everyday
from ..calls.kept_models import BlendedUpdate, Recall
from ..personal.layers import BlendedAverage
from ..personal.shared_rounds import publish, run_shared
from ..rounds.model_kinds import MINIMISED, TRAINED, kind_of
from ._base_personal import PersonalMethod, own_rates
from ._by_rounds import training_options

# Default step of the blend, by kind of local model: the paper's 1, and for networks one step
# for all batches of an epoch together, found by trial: a gradient is spread over so many weights
# that with the paper's 1, on MNIST, in batches of 100, none had moved by .01 after 15 rounds.
BLENDS = {MINIMISED: 1.0, TRAINED: 1e3}


@everyday
class FedALA(PersonalMethod):
    """FedALA: per-client models, into which the mean model is blended by learned weights.

    For networks of clients that differ by degrees, where the strength of the tie is to be
    learned. Not for crisp clusters, where cluster models (:class:`IFCA`) are better.

    At the beginning of a round client i replaces its lower layers by those of the mean model w,
    and its last ones by ``theta_i + (w - theta_i) * W_i``, elementwise with weights in [0, 1] that
    lower its loss; then it trains, and the server averages the models [1]_.

    Parameters
    ----------
    blended_layers : int
        How many of the last layers clients blend, elementwise; they take the lower ones as
        they are sent. One layer is weights and biases, the paper's p = 2 tensors.
    blend_rate : "auto" or float
        Step of the gradient descent on the weights of the blend, the paper's eta. "auto" is
        the paper's 1 for linear models; networks would otherwise keep the weights of the
        shared model, and "auto" is 1000 over the number of batches of a client with a median
        number of rows. Losses in units of the targets count relative to their first value.
    blend_share : float
        Part of a client's rows, drawn anew in every round, that the weights are learned
        from. The paper's is 0.8. Less than 1 makes the result depend on the order of the
        rows, and a weight of 2 is then not the row twice.
    blend_tol : float
        The weights are learned, the first time, until the standard deviation of the losses of
        ten epochs in a row is less than this, and for 60 epochs at most; later a round takes
        one. An epoch is one step, or with ``batch_size`` one of every batch.

    {attributes}

    See Also
    --------
    FedALAClassifier : The same with a linear classifier or a network.
    FedALARegressor : The same with a linear regressor or a network.
    Ditto : Own models pulled to the shared one.

    Notes
    -----
    With the paper's step of 1 the weights of networks hardly move in large batches, so that all
    clients begin rounds from the shared model; on images of MNIST with labels swapped in five ways
    30 rounds of batches of 100 had an accuracy of .78 with it and .86 with 200, clients of their
    own .84. In batches of 10, the public code's, they move: .85 after 10 rounds.
    Weights and models stay with the clients; the model that is published is the one trained last,
    the paper's output (the public code judges models before they are trained). A client that takes
    part for the first time takes the mean model as it is. :meth:`adapt` lets a new client
    blend and train for ``n_iter_`` rounds, with the shared model of the fit.

    References
    ----------
    .. [1] J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan. "FedALA: Adaptive Local
       Aggregation for Personalized Federated Learning". AAAI 2023. arXiv:2212.01197.

    Examples
    --------
    >>> from skcfl import FedALA
    >>> from skcfl.datasets import make_clustered_classification
    >>> from skcfl.models import MLP
    >>> data = make_clustered_classification(n_clients=6, n_clusters=2, random_state=0)
    >>> model = FedALA(MLP(8), max_iter=5, tol=0, random_state=0)
    >>> model.fit(data.X, data.y, groups=data.groups).params_.shape
    (6, 97)
    """

    _parameter_constraints = {
        "blended_layers": [Interval(Integral, 0, None, closed="left")],
        "blend_rate": [POSITIVE, StrOptions({"auto"})],
        "blend_share": [Interval(Real, 0, 1, closed="right")],
        "blend_tol": [Interval(Real, 0, None, closed="left")],
    }

    _: KW_ONLY
    blended_layers: int = 1
    blend_rate: float | Literal["auto"] = "auto"
    blend_share: float = 1.0
    blend_tol: float = 0.1

    def _solve(self, pool):
        options = training_options(self, pool)
        if self.max_iter == "auto":
            # Weights of a blend that take one step a round need not come to rest.
            options = replace(options, budget=True)
        rates = own_rates(pool, options)
        update = BlendedAverage(
            self._blended(pool),
            lambda answers: rates if np.ndim(rates) == 0 else rates[answers.who.index],
            self._blend(pool),
            options,
            self._average(pool),
        )
        ended = run_shared(pool, update, options)
        start = np.tile(ended.theta, (pool.n_clients, 1))
        params = pool.ask(Recall, start, final=True)
        return publish(pool, options, ended, params)

    def _blend(self, pool):
        """How the weights of the blend are learned."""
        rate = self._blend_rate(pool)
        return {"blend_rate": rate, "share": self.blend_share, "tol": self.blend_tol}

    def _blend_rate(self, pool):
        """Step of the weights of the blend."""
        if self.blend_rate != "auto":
            return self.blend_rate
        kind, size = kind_of(pool), self._option("training").batch_size
        if kind == TRAINED and size is not None:
            return BLENDS[kind] / max(np.ceil(pool.typical_size / size), 1.0)
        return BLENDS[kind]

    def _blended(self, pool):
        """Parameters of the last layers."""
        slices = list(pool.model.layer_slices().values())
        mask = np.zeros(pool.n_params, dtype=bool)
        for some in slices[max(len(slices) - self.blended_layers, 0) :]:
            mask[some] = True
        return mask

    def _new_models(self, pool, theta, options):
        """Models of new clients: after as many rounds as the fit had, the shared model fixed."""
        models = np.tile(theta, (pool.n_clients, 1))
        training = options.local_steps, own_rates(pool, options)
        how = {"optimizer": options.optimizer, "batch_size": options.batch_size}
        how |= self._blend(pool)
        for _ in range(self.n_iter_):
            pool.ask(BlendedUpdate, models, self._blended(pool), *training, **how)
        return pool.ask(Recall, models, final=True)
