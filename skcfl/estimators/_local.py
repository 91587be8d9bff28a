"""A model for each client, nothing shared: the baseline without federation."""

from .._docs import document
from ..base import BaseFederated
from ..solvers import solve_local
from ._flavours import ClassifierMixin, GenericMixin, RegressorMixin

__all__ = ["LocalModels", "LocalModelsClassifier", "LocalModelsRegressor"]


class _LocalModels(BaseFederated):
    _doc_attributes = {
        "labels_": """\
            ndarray of shape (n_clients,)
            ``[0, 1, ..., n_clients - 1]``: every client is its own cluster.""",
    }
    _doc_parameters = {
        "unseen": """\
            {"error", "largest"}
            What to do in prediction about ids not seen in fit. "error" refuses them. All
            clusters have one client here, so "largest" means the model of the first client and is
            of little use; :meth:`assign` and :meth:`predict_cluster` find a better one from a few
            labelled rows.""",
    }

    def _solve(self, pool):
        return solve_local(pool)


@document
class LocalModels(GenericMixin, _LocalModels):
    """A model for each client, fitted on its own rows only.

    The baseline without any federation: each client's model is the exact minimiser of its
    mean loss plus the local penalty. It is the best to do with many rows a client, and what
    clustered methods must beat where rows are few.

    {parameters}

    {attributes}

    See Also
    --------
    LocalModelsClassifier : The same with a linear classifier.
    LocalModelsRegressor : The same with a linear regressor.

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

    def __init__(
        self,
        model=None,
        *,
        group_col=None,
        unseen="error",
        n_jobs=None,
        random_state=None,
        verbose=0,
    ):
        self.model = model
        self.group_col = group_col
        self.unseen = unseen
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


@document
class LocalModelsClassifier(ClassifierMixin, _LocalModels):
    """A linear classifier for each client, fitted on its own rows only.

    The baseline without any federation. A client may have seen some of the classes only: its
    probabilities still have a column for each of ``classes_``.

    {parameters}

    {attributes}

    See Also
    --------
    LocalModels : The same with any local model.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import LocalModelsClassifier
    >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]] * 2)
    >>> y = np.array(["no", "no", "yes", "yes", "yes", "yes", "no", "no"])
    >>> site = np.repeat([1, 2], 4)
    >>> model = LocalModelsClassifier(alpha=0.1).fit(X, y, groups=site)
    >>> model.predict([[3.0], [3.0]], groups=[1, 2])
    array(['yes', 'no'], dtype='<U3')
    """

    def __init__(
        self,
        loss="log_loss",
        *,
        alpha=1e-4,
        fit_intercept=True,
        group_col=None,
        unseen="error",
        n_jobs=None,
        random_state=None,
        verbose=0,
    ):
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.group_col = group_col
        self.unseen = unseen
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


@document
class LocalModelsRegressor(RegressorMixin, _LocalModels):
    """A linear regressor for each client, fitted on its own rows only.

    The baseline without any federation; with squared error each client's model is the ridge
    regression of its rows.

    {parameters}

    {attributes}

    See Also
    --------
    LocalModels : The same with any local model.

    Examples
    --------
    The ids may be a column of X, which then is not a feature.

    >>> import numpy as np
    >>> from skcfl import LocalModelsRegressor
    >>> X = np.array([[0.0, 7], [1.0, 7], [2.0, 7], [0.0, 8], [1.0, 8], [2.0, 8]])
    >>> y = np.array([0.0, 1.0, 2.0, 5.0, 4.0, 3.0])
    >>> model = LocalModelsRegressor(alpha=0.0, group_col=-1).fit(X, y)
    >>> model.coef_.round(6)
    array([[ 1.],
           [-1.]])
    >>> round(model.score(X, y), 6)
    1.0
    """

    def __init__(
        self,
        loss="squared_error",
        *,
        alpha=1e-4,
        fit_intercept=True,
        group_col=None,
        unseen="error",
        n_jobs=None,
        random_state=None,
        verbose=0,
    ):
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.group_col = group_col
        self.unseen = unseen
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
