"""IFCA: clients choose the model of least loss, models are updated by cluster."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Literal

from sklearn.utils._param_validation import Interval, StrOptions

from .._typing import Aggregation, ArrayLike, ClientLabels, RandomState, Unseen
from ..base.docs import document
from ..rounds.choice import LeastLoss
from ._base_rounds import AlternatingClustering
from ._constructors import everyday_constructor
from ._flavours import ClassifierMixin, GenericMixin, NeuralMixin, RegressorMixin

if TYPE_CHECKING:
    from ..models import LocalModel

__all__ = ["IFCA", "IFCAClassifier", "IFCARegressor"]


class _IFCA(AlternatingClustering):
    _doc_references = """
    .. [1] A. Ghosh, J. Chung, D. Yin, K. Ramchandran. "An Efficient Framework for Clustered
       Federated Learning". NeurIPS 2020.
    """

    _parameter_constraints = {
        "division": [StrOptions({"cluster", "all"})],
        "empty_cluster": [StrOptions({"reseed", "keep"})],
        "stable_rounds": [Interval(Integral, 1, None, closed="left"), None],
    }

    def _rule(self, n_clients, n_clusters, rng):
        return LeastLoss()


@document
class IFCA(GenericMixin, _IFCA):
    """Iterative federated clustering (IFCA) with any local model.

    {use}

    In every round each client takes the cluster model of least loss on its own rows, and sends
    back its choice and a gradient there (or a model trained from there); the server
    updates each cluster's model by those that chose it.  This is Algorithm 1 of [1]_ with
    both options; by default it starts from models drawn by loss among the local models, so
    that one start nearly always finds clusters that are there.

    {parameters}

    {attributes}

    See Also
    --------
    IFCAClassifier : The same with a linear classifier or a network.
    IFCARegressor : The same with a linear regressor or a network.
    FedAvg : One cluster.
    OracleClusters : Clusters known beforehand.

    Notes
    -----
    A client chooses by its mean loss *without* the local penalty, which would draw it to
    short parameter vectors.  A cluster's model minimises the mean of its clients' objectives
    weighted by their rows, the pooled fit.

    With automatic steps a cluster whose objective rose takes its last step again, half as long.

    {references}

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
        model: LocalModel | None = None,
        n_clusters: int | Literal["auto"] = "auto",
        *,
        max_iter: int | Literal["auto"] = "auto",
        averaging: Literal["auto", "gradient", "model"] = "auto",
        local_steps: int = 10,
        optimizer: Literal["auto", "sgd", "momentum", "adam"] = "auto",
        step_size: float | Literal["auto"] = "auto",
        batch_size: int | None = None,
        participation: float = 1.0,
        division: Literal["cluster", "all"] = "cluster",
        weights: Literal["n_samples", "uniform"] = "n_samples",
        aggregation: Aggregation = "mean",
        trim: float = 0.2,
        init: Literal["loss++", "random", "different", "same"] | ArrayLike = "loss++",
        n_init: int | Literal["auto"] = "auto",
        first_assignment: Literal["loss", "random"] = "loss",
        empty_cluster: Literal["reseed", "keep"] = "reseed",
        hold_out: float = 0.0,
        stable_rounds: int | None = None,
        shared_layers: int | str | Sequence[str] | None = None,
        tol: float = 1e-4,
        polish: bool | Literal["auto"] = "auto",
        true_labels: ClientLabels | None = None,
        keep_rounds: bool = False,
        group_col: str | int | None = None,
        unseen: Unseen = "error",
        n_jobs: int | None = None,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
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
        self.aggregation = aggregation
        self.trim = trim
        self.init = init
        self.n_init = n_init
        self.first_assignment = first_assignment
        self.empty_cluster = empty_cluster
        self.hold_out = hold_out
        self.stable_rounds = stable_rounds
        self.shared_layers = shared_layers
        self.tol = tol
        self.polish = polish
        self.true_labels = true_labels
        self.keep_rounds = keep_rounds
        self.group_col = group_col
        self.unseen = unseen
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


@document
class IFCAClassifier(NeuralMixin, ClassifierMixin, _IFCA):
    """Iterative federated clustering (IFCA) with linear classifiers or networks.

    {use}

    Finds clients that share a classifier, and fits one for each cluster: every round each
    client takes the cluster model of least loss on its own rows and the server updates each
    model by those that chose it (Algorithm 1 of [1]_, see :class:`IFCA`).

    {parameters}

    {attributes}

    See Also
    --------
    IFCA : The same with any local model, and notes on the method.
    FedAvgClassifier : One cluster.

    {references}

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

    __init__ = everyday_constructor(IFCA, ClassifierMixin, NeuralMixin)


@document
class IFCARegressor(NeuralMixin, RegressorMixin, _IFCA):
    """Iterative federated clustering (IFCA) with linear regressors or networks.

    {use}

    Finds clients that share a regression, and fits one for each cluster: every round each
    client takes the cluster model of least loss on its own rows and the server updates each
    model by those that chose it (Algorithm 1 of [1]_, see :class:`IFCA`).

    {parameters}

    {attributes}

    See Also
    --------
    IFCA : The same with any local model, and notes on the method.
    FedAvgRegressor : One cluster.

    {references}

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

    __init__ = everyday_constructor(IFCA, RegressorMixin, NeuralMixin)
