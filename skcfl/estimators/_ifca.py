"""IFCA: clients choose the model of least loss, models are updated by cluster."""

import numpy as np

from .._docs import document
from ..base import BaseFederated
from ..solvers import alternate, loss_plus_plus, random_starts
from ._flavours import ClassifierMixin, GenericMixin, RegressorMixin
from ._rounds import CHOICE_CONSTRAINTS, ROUND_CONSTRAINTS, make_options

__all__ = ["IFCA", "IFCAClassifier", "IFCARegressor"]


class _IFCA(BaseFederated):
    _parameter_constraints = {**ROUND_CONSTRAINTS, **CHOICE_CONSTRAINTS}

    def _solve(self, pool):
        rng = pool.random_state
        options = make_options(self, pool)
        n_clusters = min(self.n_clusters, pool.n_clients)
        given = not isinstance(self.init, str)
        if given:
            starts = [_check_init(self.init, n_clusters, pool.n_params)]
        else:
            n_init = self.n_init
            if n_init == "auto":
                n_init = 1 if not pool.second_order else 3 if self.init == "loss++" else 10
            draw = loss_plus_plus if self.init == "loss++" else random_starts
            # One client has one model: restarts would only repeat it.
            starts = [None] * (n_init if n_clusters > 1 else 1)
        best, seen = None, set()
        for k, theta in enumerate(starts):
            pool.ledger.since_mark()
            if self.verbose and len(starts) > 1:
                print(f"start {k + 1} of {len(starts)}")
            if theta is None:
                theta = draw(pool, n_clusters, rng, restart=k)
            result = alternate(pool, theta, options, rng, seen=seen)
            if result is None:
                continue
            loss = result.extra.pop("loss")
            if best is None or loss < best[0] or not np.isfinite(best[0]):
                best = loss, result
        return best[1]


def _check_init(init, n_clusters, n_params):
    theta = np.asarray(init, dtype=float)
    if theta.shape != (n_clusters, n_params) or not np.isfinite(theta).all():
        raise ValueError(
            "init must be 'loss++', 'random' or a finite array of shape (n_clusters, n_params) = "
            f"({n_clusters}, {n_params}), got an array of shape {theta.shape}"
            f"{'' if np.isfinite(theta).all() else ' with values that are not finite'}."
        )
    return theta


@document
class IFCA(GenericMixin, _IFCA):
    """Iterative federated clustering (IFCA) with any local model.

    In every round each client takes the cluster model of least loss on its own rows, and sends
    back its choice and a gradient there (or a model trained from there); the server
    updates each cluster's model by those that chose it.  This is Algorithm 1 of [1]_ with
    both options; by default it starts from models drawn by loss among the clients' own, so
    that one start nearly always finds clusters that are there.

    {parameters}

    {attributes}

    See Also
    --------
    IFCAClassifier : The same with a linear classifier.
    IFCARegressor : The same with a linear regressor.
    FedAvg : One cluster.
    OracleClusters : Clusters known beforehand.

    Notes
    -----
    A client chooses by its mean loss *without* the local penalty, which would draw it to
    short parameter vectors.  A cluster's model minimises the mean of its clients' objectives
    weighted by their rows, the pooled fit.

    With automatic steps a cluster whose objective rose takes its last step again, half as long.

    References
    ----------
    .. [1] A. Ghosh, J. Chung, D. Yin, K. Ramchandran. "An Efficient Framework for Clustered
       Federated Learning". NeurIPS 2020.

    Examples
    --------
    >>> from skcfl import IFCA
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.models import LinearModel
    >>> data = make_clustered_regression(n_clients=12, n_clusters=2, random_state=0)
    >>> ifca = IFCA(LinearModel(loss="huber"), n_clusters=2, random_state=0)
    >>> ifca.fit(data.X, data.y, groups=data.groups).cluster_sizes_
    array([6, 6])
    """

    def __init__(
        self,
        model=None,
        n_clusters=2,
        *,
        max_iter="auto",
        averaging="auto",
        local_steps=10,
        optimizer="auto",
        step_size="auto",
        batch_size=None,
        participation=1.0,
        division="cluster",
        weights="n_samples",
        init="loss++",
        n_init="auto",
        empty_cluster="reseed",
        hold_out=0.0,
        stable_rounds=None,
        tol=1e-4,
        polish="auto",
        group_col=None,
        unseen="error",
        n_jobs=None,
        random_state=None,
        verbose=0,
    ):
        self.model = model
        self.n_clusters = n_clusters
        self.max_iter = max_iter
        self.averaging = averaging
        self.local_steps = local_steps
        self.optimizer = optimizer
        self.step_size = step_size
        self.batch_size = batch_size
        self.participation = participation
        self.division = division
        self.weights = weights
        self.init = init
        self.n_init = n_init
        self.empty_cluster = empty_cluster
        self.hold_out = hold_out
        self.stable_rounds = stable_rounds
        self.tol = tol
        self.polish = polish
        self.group_col = group_col
        self.unseen = unseen
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


@document
class IFCAClassifier(ClassifierMixin, _IFCA):
    """Iterative federated clustering (IFCA) with linear classifiers.

    Finds clients that share a classifier, and fits one for each cluster: every round each
    client takes the cluster model of least loss on its own rows and the server updates each
    model by those that chose it (Algorithm 1 of [1]_, see :class:`IFCA`).

    {parameters}

    {attributes}

    See Also
    --------
    IFCA : The same with any local model, and notes on the method.
    FedAvgClassifier : One cluster.

    References
    ----------
    .. [1] A. Ghosh, J. Chung, D. Yin, K. Ramchandran. "An Efficient Framework for Clustered
       Federated Learning". NeurIPS 2020.

    Examples
    --------
    >>> from skcfl import IFCAClassifier
    >>> from skcfl.datasets import make_clustered_classification
    >>> data = make_clustered_classification(n_clients=12, n_clusters=2, random_state=0)
    >>> ifca = IFCAClassifier(n_clusters=2, random_state=0)
    >>> ifca.fit(data.X, data.y, groups=data.groups).cluster_sizes_
    array([6, 6])
    >>> ifca.predict_proba(data.X[:3], groups=data.groups[:3]).shape
    (3, 2)
    """

    def __init__(
        self,
        n_clusters=2,
        *,
        loss="log_loss",
        alpha=1e-4,
        fit_intercept=True,
        max_iter="auto",
        averaging="auto",
        local_steps=10,
        optimizer="auto",
        step_size="auto",
        batch_size=None,
        participation=1.0,
        division="cluster",
        weights="n_samples",
        init="loss++",
        n_init="auto",
        empty_cluster="reseed",
        hold_out=0.0,
        stable_rounds=None,
        tol=1e-4,
        polish="auto",
        group_col=None,
        unseen="error",
        n_jobs=None,
        random_state=None,
        verbose=0,
    ):
        self.n_clusters = n_clusters
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.averaging = averaging
        self.local_steps = local_steps
        self.optimizer = optimizer
        self.step_size = step_size
        self.batch_size = batch_size
        self.participation = participation
        self.division = division
        self.weights = weights
        self.init = init
        self.n_init = n_init
        self.empty_cluster = empty_cluster
        self.hold_out = hold_out
        self.stable_rounds = stable_rounds
        self.tol = tol
        self.polish = polish
        self.group_col = group_col
        self.unseen = unseen
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


@document
class IFCARegressor(RegressorMixin, _IFCA):
    """Iterative federated clustering (IFCA) with linear regressors.

    Finds clients that share a regression, and fits one for each cluster: every round each
    client takes the cluster model of least loss on its own rows and the server updates each
    model by those that chose it (Algorithm 1 of [1]_, see :class:`IFCA`).

    {parameters}

    {attributes}

    See Also
    --------
    IFCA : The same with any local model, and notes on the method.
    FedAvgRegressor : One cluster.

    References
    ----------
    .. [1] A. Ghosh, J. Chung, D. Yin, K. Ramchandran. "An Efficient Framework for Clustered
       Federated Learning". NeurIPS 2020.

    Examples
    --------
    >>> from sklearn.metrics import adjusted_rand_score
    >>> from skcfl import IFCARegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> ifca = IFCARegressor(n_clusters=3, random_state=0)
    >>> ifca.fit(data.X, data.y, groups=data.groups).n_clusters_
    3
    >>> adjusted_rand_score(data.labels, ifca.labels_)
    1.0
    """

    def __init__(
        self,
        n_clusters=2,
        *,
        loss="squared_error",
        alpha=1e-4,
        fit_intercept=True,
        max_iter="auto",
        averaging="auto",
        local_steps=10,
        optimizer="auto",
        step_size="auto",
        batch_size=None,
        participation=1.0,
        division="cluster",
        weights="n_samples",
        init="loss++",
        n_init="auto",
        empty_cluster="reseed",
        hold_out=0.0,
        stable_rounds=None,
        tol=1e-4,
        polish="auto",
        group_col=None,
        unseen="error",
        n_jobs=None,
        random_state=None,
        verbose=0,
    ):
        self.n_clusters = n_clusters
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.averaging = averaging
        self.local_steps = local_steps
        self.optimizer = optimizer
        self.step_size = step_size
        self.batch_size = batch_size
        self.participation = participation
        self.division = division
        self.weights = weights
        self.init = init
        self.n_init = n_init
        self.empty_cluster = empty_cluster
        self.hold_out = hold_out
        self.stable_rounds = stable_rounds
        self.tol = tol
        self.polish = polish
        self.group_col = group_col
        self.unseen = unseen
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
