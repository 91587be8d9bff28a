"""FedAvg: one model for all clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from .._typing import Aggregation, RandomState, Unseen
from ..base import BaseFederated
from ..base.docs import document
from ..rounds.alternate import alternate
from ..rounds.training_options import Training
from ._base_rounds import ROUND_CONSTRAINTS, ROUNDS, SUSPICION, make_options, robust_aggregator
from ._constructors import everyday_constructor
from ._flavours import ClassifierMixin, GenericMixin, NeuralMixin, RegressorMixin

if TYPE_CHECKING:
    from ..models import LocalModel

__all__ = ["FedAvg", "FedAvgClassifier", "FedAvgRegressor"]


class _FedAvg(BaseFederated):
    _parameter_constraints = ROUND_CONSTRAINTS
    _option_classes = {"training": Training}
    _option_names = {"training": ROUNDS}
    _doc_attributes = {"suspicion_": SUSPICION}

    @property
    def needs_single_answers(self) -> bool:
        """Whether fits of this configuration ask clients for models or gradients one by one."""
        return robust_aggregator(self) is not None

    def _solve(self, pool):
        options = make_options(self, pool)
        theta = pool.start()[None]
        labels = np.zeros(pool.n_clients, dtype=np.intp)
        result = alternate(pool, theta, options, pool.random_state, labels)
        result.extra.pop("loss")
        return result


@document
class FedAvg(GenericMixin, _FedAvg):
    """One model for all clients, with any local model: federated averaging.

    {use}

    The baseline of federated learning [1]_: every round the clients send gradients, or models
    trained for some local steps, and the server averages them.  With the defaults a
    linear model ends at the exact minimiser of the pooled rows.

    {parameters}

    {attributes}

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

    def __init__(
        self,
        model: LocalModel | None = None,
        *,
        max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None,
        aggregation: Aggregation = "mean",
        tol: float = 1e-4,
        group_col: str | int | None = None,
        unseen: Unseen = "error",
        n_jobs: int | None = None,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.max_iter = max_iter
        self.training = training
        self.aggregation = aggregation
        self.tol = tol
        self.group_col = group_col
        self.unseen = unseen
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


@document
class FedAvgClassifier(NeuralMixin, ClassifierMixin, _FedAvg):
    """One classifier for all clients: federated averaging.

    {use}

    With the defaults it ends at the model that scikit-learn's ``LogisticRegression`` fits to
    the pooled rows; with ``hidden_layer_sizes`` the model is a network.  See :class:`FedAvg`.

    {parameters}

    {attributes}

    See Also
    --------
    FedAvg : The same with any local model.
    IFCAClassifier : Several clusters.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import FedAvgClassifier
    >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    >>> site = ["a", "b", "a", "b"]
    >>> fed = FedAvgClassifier(alpha=0.1).fit(X, ["no", "no", "yes", "yes"], groups=site)
    >>> fed.predict([[3.0]], groups=["a"])
    array(['yes'], dtype='<U3')
    """

    __init__ = everyday_constructor(FedAvg, ClassifierMixin, NeuralMixin)


@document
class FedAvgRegressor(NeuralMixin, RegressorMixin, _FedAvg):
    """One regressor for all clients: federated averaging.

    {use}

    With the defaults it ends at the model that scikit-learn's ``Ridge`` fits to the pooled
    rows; with ``hidden_layer_sizes`` the model is a network.  See :class:`FedAvg`.

    {parameters}

    {attributes}

    See Also
    --------
    FedAvg : The same with any local model.
    IFCARegressor : Several clusters.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import FedAvgRegressor
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> y = 2 * X[:, 0] + 1
    >>> fed = FedAvgRegressor(alpha=0.0).fit(X, y, groups=["a", "a", "b", "b"])
    >>> fed.coef_.round(6)
    array([[2.],
           [2.]])
    """

    __init__ = everyday_constructor(FedAvg, RegressorMixin, NeuralMixin)
