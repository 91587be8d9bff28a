"""FedAvg: one model for all clients."""

from __future__ import annotations

from ..base.everyday import everyday
from ..base.private_plans import rounds_plan
from ..rounds.alternate import common_model
from ..rounds.round_options import make_options, robust_aggregator
from ._by_rounds import Averaging


@everyday
class FedAvg(Averaging):
    """One model for all clients, with any local model: federated averaging.

    For clients that do not differ, or have too few rows to show it, and as the baseline that
    every other method has to beat. Not where clients differ: see :class:`PartialPooling` and
    :class:`IFCA`.

    The baseline of federated learning [1]_: every round the clients send gradients, or models
    trained for some local steps, and the server averages them.  With the defaults a
    linear model ends at the exact minimiser of the pooled rows.

    {parameters}

    Attributes
    ----------
    suspicion_

    See Also
    --------
    FedAvgClassifier : The same with a linear classifier or a network.
    FedAvgRegressor : The same with a linear regressor or a network.
    IFCA : Several clusters.

    References
    ----------
    .. [1] B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas. "Communication-
       Efficient Learning of Deep Networks from Decentralized Data". AISTATS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import FedAvg
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> y = 2 * X[:, 0] + 1
    >>> fed = FedAvg().fit(X, y, groups=["a", "a", "b", "b"])
    >>> fed.predict(X, groups=["a", "a", "b", "b"]).round(2)
    array([1., 3., 5., 7.])
    """

    _fits_estimators = True

    @property
    def needs_single_answers(self) -> bool:
        """Whether fits of this configuration ask clients for models or gradients one by one."""
        return robust_aggregator(self) is not None

    def _private_plan(self, model):
        return rounds_plan(self, model, 1)

    def _solve(self, pool):
        return common_model(pool, make_options(self, pool))
