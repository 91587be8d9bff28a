"""Clusters known beforehand: the model that clustered methods aim at."""

from __future__ import annotations

import numpy as np

from .._typing import ClientLabels
from ..base.everyday import everyday
from ..base.private_plans import rounds_plan
from ..clients.ids import check_ids, labels_of
from ..exceptions import PrivacyError
from ..rounds.alternate import alternate
from ..rounds.round_options import make_options
from ._by_rounds import ByRounds


@everyday
class OracleClusters(ByRounds):
    """Federated averaging in each of some known clusters, with any local model.

    For clusters that are known beforehand, and as the bound of what a clustered method can
    reach. Not where the clusters are to be found.

    An upper bound for clustered methods, or the way to fit models for clusters that come from
    elsewhere.

    Parameters
    ----------
    labels : dict, array-like of shape (n_clients,) or None
        The clusters: a dict from client id to label, or one label per client in the order of
        the sorted ids (``np.unique(groups)``). None puts all clients in one cluster.
        Labels may be of any type that can be sorted; ``labels_`` numbers them anew.

    {attributes}

    See Also
    --------
    OracleClustersClassifier : The same with a linear classifier or a network.
    OracleClustersRegressor : The same with a linear regressor or a network.
    IFCA : Clusters unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import OracleClusters
    >>> X = np.array([[0.0], [1.0], [0.0], [1.0], [0.0], [1.0]])
    >>> y = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    >>> site = ["a", "a", "b", "b", "c", "c"]
    >>> oracle = OracleClusters(labels={"a": "up", "b": "up", "c": "down"})
    >>> oracle.fit(X, y, groups=site).labels_
    array([0, 0, 1])
    >>> oracle.cluster_coef_.round(2)
    array([[ 1.],
           [-1.]])
    """

    _fits_estimators = True
    _parameter_constraints = {"labels": [dict, "array-like", None]}

    labels: ClientLabels | None = None

    @property
    def needs_single_answers(self) -> bool:
        """Whether fits of this configuration ask clients for models or gradients one by one."""
        return False

    def _private_plan(self, model):
        if not isinstance(self.labels, dict):
            raise PrivacyError(
                "labels must be a dict from client id to label where clients are private, as the "
                f"server knows no order of them, got {type(self.labels).__name__}."
            )
        ids, labels = list(self.labels), np.array(list(self.labels.values()))
        clusters, codes = np.unique(labels, return_inverse=True)
        return rounds_plan(self, model, len(clusters), known=(check_ids(ids), codes))

    def _solve_options(self, groups):
        return {"labels": labels_of(self.labels, groups)}

    def _n_priors(self, pool, options):
        return len(np.unique(options["labels"][pool.client_weights > 0]))

    def _solve(self, pool, labels):
        options, labels = make_options(self, pool), np.unique(labels, return_inverse=True)[1]
        theta = np.repeat(pool.start()[None], labels.max() + 1, axis=0)
        return alternate(pool, theta, options, pool.random_state, labels)
