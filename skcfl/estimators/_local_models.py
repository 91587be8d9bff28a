"""A model for each client, nothing shared: the baseline without federation."""

from __future__ import annotations

import numpy as np

from ..base.everyday import everyday
from ..rounds.local_training import solve_local
from ..rounds.round_options import STEPS
from ..search.alpha import n_priors
from ._by_rounds import ByRounds, training_options


@everyday
class LocalModels(ByRounds):
    """A model for each client, fitted on its own rows only.

    For clients with many rows each, and as the baseline that every method has to beat. Not for
    clients with few rows, which need those of others: see :class:`PartialPooling` and
    :class:`IFCA`.

    The baseline without any federation: each client's model is the exact minimiser of its
    mean loss plus the local penalty; a network, which has none, is trained from a start that all
    clients have in common. It is the best to do with many rows per client, and what
    clustered methods must beat where rows are few.

    Parameters
    ----------
    unseen : {"error", "average", "largest"}
        What to do in prediction about ids not seen in fit. "error" refuses them; "average"
        uses the mean of the clients' models, weighted by their rows; "largest" is refused
        here, as all clusters have one client. :meth:`adapt` fits a model from labelled rows
        of a new client.
    max_iter : "auto" or int
        Networks only, as `training` and `tol`: linear models are solved exactly, by Newton's
        method. Largest number of rounds of local steps that every client trains its own
        network for; "auto" is 50, as in the methods these models are compared with. A
        ``ConvergenceWarning`` says so when a number given was not enough.
    tol : float
        Training stops when no model moved by more than ``tol`` of its norm in a round. 0
        runs all ``max_iter`` rounds.

    Attributes
    ----------
    labels_ : ndarray of shape (n_clients,)
        ``[0, 1, ..., n_clients - 1]``: every client is its own cluster.

    See Also
    --------
    LocalModelsClassifier : The same with a linear classifier or a network.
    LocalModelsRegressor : The same with a linear regressor or a network.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import LocalModels
    >>> from skcfl.models import LinearModel
    >>> X = np.array([[0.0], [1.0], [2.0], [0.0], [1.0], [2.0]])
    >>> y = np.array([0.0, 1.0, 2.0, 5.0, 4.0, 3.0])
    >>> site = ["a", "a", "a", "b", "b", "b"]
    >>> model = LocalModels(LinearModel(alpha=0.0)).fit(X, y, groups=site)
    >>> model.groups_.tolist()
    ['a', 'b']
    >>> model.coef_.round(6)
    array([[ 1.],
           [-1.]])
    >>> model.predict([[3.0], [3.0]], groups=["a", "b"]).round(6)
    array([3., 2.])
    """

    _fits_estimators = True
    _option_names = {"training": STEPS}

    def _n_priors(self, pool, options):
        return n_priors(pool, pool.n_clients)

    def _models_of(self, pool):
        """Models of new clients: their own ones."""
        if pool.model.fits_whole:
            raise ValueError(
                "LocalModels cannot adapt to new clients with a SklearnModel: fit LocalModels, or "
                "the estimator itself, to the rows of the new clients."
            )
        return None, np.asarray(self._solve(pool).cluster_params)

    def _solve(self, pool):
        return solve_local(pool, training_options(self, pool))
