"""Written by .ci/stubs.py: what type checkers cannot read from code."""

from collections.abc import (
    Callable, Iterable, Sequence
)
from typing import (
    Literal
)
from .._typing import (
    Activation, Aggregation, ArrayLike, ClassWeight, ClientIds, ClientLabels, Clusterer,
    LayerSizes, RandomState, Splitter, Unseen
)
from ..base import (
    BaseFederated
)
from ..fusion.solvers import (
    FPFCRounds, Solver
)
from ..graphs.generators import (
    GraphLike
)
from ..models import (
    LocalModel
)
from ..models.losses import (
    Loss
)
from ..penalties import (
    ConcavePenalty, Penalty
)
from ..rounds.record_options import (
    Record
)
from ..rounds.training_options import (
    Training
)
from . import (
    _cfl, _clove, _convex_clustered_fl, _convex_clustered_fl_cv, _ditto, _fedala, _fedavg, _fedem,
    _fedrep, _fesem, _flexcfl, _fpfc, _fpfc_cv, _gtv, _gtv_cv, _ifca, _local_models, _one_shot,
    _oracle, _pacfl, _partial_pooling, _per_fedavg, _pfedme, _robust_clustered_fl
)
from ._cfl import CFL as CFL
from ._clove import CLoVE as CLoVE
from ._convex_clustered_fl import ConvexClusteredFL as ConvexClusteredFL
from ._convex_clustering import ConvexClustering as ConvexClustering
from ._ditto import Ditto as Ditto
from ._fpfc import FPFC as FPFC
from ._fesem import FeSEM as FeSEM
from ._fedala import FedALA as FedALA
from ._fedavg import FedAvg as FedAvg
from ._fedem import FedEM as FedEM
from ._fedpac import FedPACClassifier as FedPACClassifier
from ._fedproto import FedProtoClassifier as FedProtoClassifier
from ._fedrep import FedRep as FedRep
from ._flexcfl import FlexCFL as FlexCFL
from ._gtv import GTV as GTV
from ._ifca import IFCA as IFCA
from ._kfed import KFED as KFED
from ._local_models import LocalModels as LocalModels
from ._one_shot import OneShot as OneShot
from ._oracle import OracleClusters as OracleClusters
from ._pacfl import PACFL as PACFL
from ._pfedme import PFedMe as PFedMe
from ._partial_pooling import PartialPooling as PartialPooling
from ._per_fedavg import PerFedAvg as PerFedAvg

__all__ = [
    "KFED",
    "FedEM",
    "FedEMClassifier",
    "FedEMRegressor",
    "PACFL",
    "PACFLClassifier",
    "PACFLRegressor",
    "RobustClusteredFL",
    "RobustClusteredFLClassifier",
    "RobustClusteredFLRegressor",
    "CFL",
    "CFLClassifier",
    "CFLRegressor",
    "FlexCFL",
    "FlexCFLClassifier",
    "FlexCFLRegressor",
    "OneShot",
    "OneShotClassifier",
    "OneShotRegressor",
    "FeSEM",
    "FeSEMClassifier",
    "FeSEMRegressor",
    "FPFC",
    "CLoVE",
    "CLoVEClassifier",
    "CLoVERegressor",
    "GTV",
    "IFCA",
    "ConvexClusteredFL",
    "ConvexClusteredFLClassifier",
    "ConvexClusteredFLClassifierCV",
    "ConvexClusteredFLRegressor",
    "ConvexClusteredFLRegressorCV",
    "ConvexClustering",
    "Ditto",
    "DittoClassifier",
    "DittoRegressor",
    "FPFCClassifier",
    "FPFCClassifierCV",
    "FPFCRegressor",
    "FPFCRegressorCV",
    "FedAvg",
    "FedALA",
    "FedALAClassifier",
    "FedALARegressor",
    "FedPACClassifier",
    "FedProtoClassifier",
    "FedRep",
    "FedRepClassifier",
    "FedRepRegressor",
    "FedAvgClassifier",
    "FedAvgRegressor",
    "GTVClassifier",
    "GTVClassifierCV",
    "GTVRegressor",
    "GTVRegressorCV",
    "IFCAClassifier",
    "IFCARegressor",
    "LocalModels",
    "LocalModelsClassifier",
    "LocalModelsRegressor",
    "OracleClusters",
    "OracleClustersClassifier",
    "OracleClustersRegressor",
    "PartialPooling",
    "PartialPoolingClassifier",
    "PartialPoolingRegressor",
    "PFedMe",
    "PFedMeClassifier",
    "PFedMeRegressor",
    "PerFedAvg",
    "PerFedAvgClassifier",
    "PerFedAvgRegressor",
]

class CFLClassifier(_cfl.CFLClassifier):
    def __init__(
        self, loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss", *,
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu", eps1: float = 0.1,
        eps2: float | Literal["auto"] = "auto", min_round: int = 0, gamma_max: float | None = None,
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        aggregation: Aggregation = "mean", tol: float = 0.0001, record: Record | None = None,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class CFLRegressor(_cfl.CFLRegressor):
    def __init__(
        self,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        *, alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", eps1: float = 0.1, eps2: float | Literal["auto"] = "auto",
        min_round: int = 0, gamma_max: float | None = None,
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        aggregation: Aggregation = "mean", tol: float = 0.0001, record: Record | None = None,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class CLoVEClassifier(_clove.CLoVEClassifier):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        aggregation: Aggregation = "mean",
        embedding: Literal["log", "sqrt", "raw", "centered"] = "log",
        clusterer: Clusterer | None = None,
        init: Literal["loss++", "random", "same"] | ArrayLike = "loss++",
        n_init: int | Literal["auto"] = "auto",
        shared_layers: int | str | Sequence[str] | None = None, tol: float = 0.0001,
        record: Record | None = None, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class CLoVERegressor(_clove.CLoVERegressor):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean",
        embedding: Literal["log", "sqrt", "raw", "centered"] = "log",
        clusterer: Clusterer | None = None,
        init: Literal["loss++", "random", "same"] | ArrayLike = "loss++",
        n_init: int | Literal["auto"] = "auto",
        shared_layers: int | str | Sequence[str] | None = None, tol: float = 0.0001,
        record: Record | None = None, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class ConvexClusteredFLClassifier(_convex_clustered_fl.ConvexClusteredFLClassifier):
    def __init__(
        self, lam: float | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        graph: Literal["auto", "complete", "knn"] | GraphLike = "auto",
        penalty: Literal["auto", "l2", "l1", "squared_l2"] | Penalty = "auto",
        refit: bool | Literal["auto"] = "auto", criterion: Literal["held_out", "bic"] = "held_out",
        alphas: ArrayLike | None = None, client_loss: float | Literal["huber"] | None = None,
        solver: Literal["auto", "admm", "primal_dual", "pdmm"] = "auto",
        solver_options: dict[str, Any] | None = None, max_iter: int = 2000, tol: float = 1e-06,
        warm_start: bool = False, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class ConvexClusteredFLClassifierCV(_convex_clustered_fl_cv.ConvexClusteredFLClassifierCV):
    def __init__(
        self, n_lams: int = 30, *, lams: ArrayLike | None = None,
        lam_min_ratio: float | None = None, cv: int | Splitter | Iterable[Any] = 5,
        scoring: str | Callable[..., Any] | None = None,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        graph: Literal["auto", "complete", "knn"] | GraphLike = "auto",
        penalty: Literal["auto", "l2", "l1", "squared_l2"] | Penalty = "auto",
        refit: bool | Literal["auto"] = "auto", alphas: ArrayLike | None = None,
        client_loss: float | Literal["huber"] | None = None,
        solver: Literal["auto", "admm", "primal_dual", "pdmm"] = "auto",
        solver_options: dict[str, Any] | None = None, max_iter: int = 2000, tol: float = 1e-06,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class ConvexClusteredFLRegressor(_convex_clustered_fl.ConvexClusteredFLRegressor):
    def __init__(
        self, lam: float | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, graph: Literal["auto", "complete", "knn"] | GraphLike = "auto",
        penalty: Literal["auto", "l2", "l1", "squared_l2"] | Penalty = "auto",
        refit: bool | Literal["auto"] = "auto", criterion: Literal["held_out", "bic"] = "held_out",
        alphas: ArrayLike | None = None, client_loss: float | Literal["huber"] | None = None,
        solver: Literal["auto", "admm", "primal_dual", "pdmm"] = "auto",
        solver_options: dict[str, Any] | None = None, max_iter: int = 2000, tol: float = 1e-06,
        warm_start: bool = False, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class ConvexClusteredFLRegressorCV(_convex_clustered_fl_cv.ConvexClusteredFLRegressorCV):
    def __init__(
        self, n_lams: int = 30, *, lams: ArrayLike | None = None,
        lam_min_ratio: float | None = None, cv: int | Splitter | Iterable[Any] = 5,
        scoring: str | Callable[..., Any] | None = None,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, graph: Literal["auto", "complete", "knn"] | GraphLike = "auto",
        penalty: Literal["auto", "l2", "l1", "squared_l2"] | Penalty = "auto",
        refit: bool | Literal["auto"] = "auto", alphas: ArrayLike | None = None,
        client_loss: float | Literal["huber"] | None = None,
        solver: Literal["auto", "admm", "primal_dual", "pdmm"] = "auto",
        solver_options: dict[str, Any] | None = None, max_iter: int = 2000, tol: float = 1e-06,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class DittoClassifier(_ditto.DittoClassifier):
    def __init__(
        self, lam: float | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        within: BaseFederated | None = None, max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 0.0001,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class DittoRegressor(_ditto.DittoRegressor):
    def __init__(
        self, lam: float | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", within: BaseFederated | None = None,
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        aggregation: Aggregation = "mean", tol: float = 0.0001, group_col: str | int | None = None,
        unseen: Unseen = "error", n_jobs: int | None = None, random_state: RandomState = None,
        verbose: int = 0,
    ) -> None: ...

class FPFCClassifier(_fpfc.FPFCClassifier):
    def __init__(
        self, lam: float | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        penalty: Literal["scad", "mcp", "l2", "l1"] = "scad", a: float | None = None,
        xi: float | None = None, penalty_scale: float | Literal["auto"] = "auto",
        refit: bool = True, criterion: Literal["held_out", "bic"] = "held_out",
        alphas: ArrayLike | None = None, client_loss: float | Literal["huber"] | None = None,
        nu: float | Literal["auto"] = "auto", rho: float | Literal["auto"] = "auto",
        local_steps: int | Literal["auto", "exact"] | ArrayLike = "auto",
        step_size: float | Literal["auto"] = "auto",
        optimizer: Literal["auto", "sgd", "momentum", "adam"] = "auto",
        batch_size: int | None = None, participation: float = 1.0,
        pairs: Literal["either", "both"] = "either",
        init: Literal["auto", "local", "common"] | ArrayLike = "auto",
        max_iter: int | Literal["auto"] = "auto", tol: float = 1e-05,
        n_iter_no_change: int | None = 20, warm_start: bool = False,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class FPFCClassifierCV(_fpfc_cv.FPFCClassifierCV):
    def __init__(
        self, n_lams: int = 15, *, lams: ArrayLike | None = None,
        lam_min_ratio: float | None = None, cv: int | Splitter | Iterable[Any] = 5,
        scoring: str | Callable[..., Any] | None = None, criterion: Literal["cv", "bic"] = "cv",
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        penalty: Literal["scad", "mcp", "l2", "l1"] = "scad", a: float | None = None,
        xi: float | None = None, penalty_scale: float | Literal["auto"] = "auto",
        refit: bool = True, alphas: ArrayLike | None = None,
        client_loss: float | Literal["huber"] | None = None, nu: float | Literal["auto"] = "auto",
        rho: float | Literal["auto"] = "auto",
        local_steps: int | Literal["auto", "exact"] | ArrayLike = "auto",
        step_size: float | Literal["auto"] = "auto",
        optimizer: Literal["auto", "sgd", "momentum", "adam"] = "auto",
        batch_size: int | None = None, participation: float = 1.0,
        pairs: Literal["either", "both"] = "either",
        init: Literal["auto", "local", "common"] | ArrayLike = "auto",
        max_iter: int | Literal["auto"] = "auto", tol: float = 1e-05,
        n_iter_no_change: int | None = 20, group_col: str | int | None = None,
        unseen: Unseen = "error", n_jobs: int | None = None, random_state: RandomState = None,
        verbose: int = 0,
    ) -> None: ...

class FPFCRegressor(_fpfc.FPFCRegressor):
    def __init__(
        self, lam: float | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", penalty: Literal["scad", "mcp", "l2", "l1"] = "scad",
        a: float | None = None, xi: float | None = None,
        penalty_scale: float | Literal["auto"] = "auto", refit: bool = True,
        criterion: Literal["held_out", "bic"] = "held_out", alphas: ArrayLike | None = None,
        client_loss: float | Literal["huber"] | None = None, nu: float | Literal["auto"] = "auto",
        rho: float | Literal["auto"] = "auto",
        local_steps: int | Literal["auto", "exact"] | ArrayLike = "auto",
        step_size: float | Literal["auto"] = "auto",
        optimizer: Literal["auto", "sgd", "momentum", "adam"] = "auto",
        batch_size: int | None = None, participation: float = 1.0,
        init: Literal["auto", "local", "common"] | ArrayLike = "auto",
        max_iter: int | Literal["auto"] = "auto", tol: float = 1e-05, warm_start: bool = False,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class FPFCRegressorCV(_fpfc_cv.FPFCRegressorCV):
    def __init__(
        self, n_lams: int = 15, *, lams: ArrayLike | None = None,
        lam_min_ratio: float | None = None, cv: int | Splitter | Iterable[Any] = 5,
        scoring: str | Callable[..., Any] | None = None, criterion: Literal["cv", "bic"] = "cv",
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", penalty: Literal["scad", "mcp", "l2", "l1"] = "scad",
        a: float | None = None, xi: float | None = None,
        penalty_scale: float | Literal["auto"] = "auto", refit: bool = True,
        alphas: ArrayLike | None = None, client_loss: float | Literal["huber"] | None = None,
        nu: float | Literal["auto"] = "auto", rho: float | Literal["auto"] = "auto",
        local_steps: int | Literal["auto", "exact"] | ArrayLike = "auto",
        step_size: float | Literal["auto"] = "auto",
        optimizer: Literal["auto", "sgd", "momentum", "adam"] = "auto",
        batch_size: int | None = None, participation: float = 1.0,
        init: Literal["auto", "local", "common"] | ArrayLike = "auto",
        max_iter: int | Literal["auto"] = "auto", tol: float = 1e-05,
        n_iter_no_change: int | None = 20, group_col: str | int | None = None,
        unseen: Unseen = "error", n_jobs: int | None = None, random_state: RandomState = None,
        verbose: int = 0,
    ) -> None: ...

class FeSEMClassifier(_fesem.FeSEMClassifier):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        aggregation: Aggregation = "mean",
        init: Literal["kmeans", "random"] | ArrayLike = "kmeans",
        n_init: int | Literal["auto"] = "auto",
        empty_cluster: Literal["reseed", "keep"] = "reseed", tol: float = 0.0001,
        record: Record | None = None, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class FeSEMRegressor(_fesem.FeSEMRegressor):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean",
        init: Literal["kmeans", "random"] | ArrayLike = "kmeans",
        n_init: int | Literal["auto"] = "auto",
        empty_cluster: Literal["reseed", "keep"] = "reseed", tol: float = 0.0001,
        record: Record | None = None, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class FedALAClassifier(_fedala.FedALAClassifier):
    def __init__(
        self, loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss", *,
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        blended_layers: int = 1, blend_rate: float | Literal["auto"] = "auto",
        blend_share: float = 1.0, blend_tol: float = 0.1, max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 0.0001,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class FedALARegressor(_fedala.FedALARegressor):
    def __init__(
        self,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        *, alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", blended_layers: int = 1,
        blend_rate: float | Literal["auto"] = "auto", blend_share: float = 1.0,
        blend_tol: float = 0.1, max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 0.0001,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class FedAvgClassifier(_fedavg.FedAvgClassifier):
    def __init__(
        self, loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss", *,
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        aggregation: Aggregation = "mean", tol: float = 0.0001, group_col: str | int | None = None,
        unseen: Unseen = "error", n_jobs: int | None = None, random_state: RandomState = None,
        verbose: int = 0,
    ) -> None: ...

class FedAvgRegressor(_fedavg.FedAvgRegressor):
    def __init__(
        self,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        *, alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 0.0001,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class FedEMClassifier(_fedem.FedEMClassifier):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        share_steps: int = 5, init: Literal["loss++", "random", "same"] | ArrayLike = "loss++",
        n_init: int | Literal["auto"] = "auto", tol: float = 0.0001, record: Record | None = None,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class FedEMRegressor(_fedem.FedEMRegressor):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, share_steps: int = 5,
        init: Literal["loss++", "random", "same"] | ArrayLike = "loss++",
        n_init: int | Literal["auto"] = "auto", tol: float = 0.0001, record: Record | None = None,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class FedRepClassifier(_fedrep.FedRepClassifier):
    def __init__(
        self, shared_layers: int | str | Sequence[str] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        alternate: bool = True, max_iter: int | Literal["auto"] = "auto", head_steps: int = 10,
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 0.0001,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class FedRepRegressor(_fedrep.FedRepRegressor):
    def __init__(
        self, shared_layers: int | str | Sequence[str] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", alternate: bool = True,
        max_iter: int | Literal["auto"] = "auto", head_steps: int = 10,
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 0.0001,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class FlexCFLClassifier(_flexcfl.FlexCFLClassifier):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        embedding: Literal["edc", "madc", "flhc"] = "edc", pretrain_steps: int = 50,
        n_pretrain: int | Literal["auto"] = "auto", warm_up: int | Literal["auto"] = "auto",
        linkage: Literal["ward", "complete", "average", "single"] = "ward",
        metric: Literal["euclidean", "manhattan", "cosine"] = "euclidean",
        distance_threshold: float | None = None, max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 0.0001,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class FlexCFLRegressor(_flexcfl.FlexCFLRegressor):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", embedding: Literal["edc", "madc", "flhc"] = "edc",
        pretrain_steps: int = 50, n_pretrain: int | Literal["auto"] = "auto",
        warm_up: int | Literal["auto"] = "auto",
        linkage: Literal["ward", "complete", "average", "single"] = "ward",
        metric: Literal["euclidean", "manhattan", "cosine"] = "euclidean",
        distance_threshold: float | None = None, max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 0.0001,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class GTVClassifier(_gtv.GTVClassifier):
    def __init__(
        self, lam: float | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        graph: Literal["auto", "complete", "knn"] | GraphLike = "knn",
        nodes: ClientIds | None = None,
        penalty: Literal["auto", "l2", "l1", "squared_l2"] | Penalty = "l2",
        refit: bool | Literal["auto"] = "auto", criterion: Literal["held_out", "bic"] = "held_out",
        alphas: ArrayLike | None = None, client_loss: float | Literal["huber"] | None = None,
        solver: Literal["auto", "admm", "primal_dual", "pdmm"] = "auto",
        solver_options: dict[str, Any] | None = None, max_iter: int = 2000, tol: float = 1e-06,
        warm_start: bool = False, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class GTVClassifierCV(_gtv_cv.GTVClassifierCV):
    def __init__(
        self, n_lams: int = 30, *, lams: ArrayLike | None = None,
        lam_min_ratio: float | None = None, cv: int | Splitter | Iterable[Any] = 5,
        scoring: str | Callable[..., Any] | None = None,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        graph: Literal["auto", "complete", "knn"] | GraphLike = "knn",
        nodes: ClientIds | None = None,
        penalty: Literal["auto", "l2", "l1", "squared_l2"] | Penalty = "l2",
        refit: bool | Literal["auto"] = "auto", alphas: ArrayLike | None = None,
        client_loss: float | Literal["huber"] | None = None,
        solver: Literal["auto", "admm", "primal_dual", "pdmm"] = "auto",
        solver_options: dict[str, Any] | None = None, max_iter: int = 2000, tol: float = 1e-06,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class GTVRegressor(_gtv.GTVRegressor):
    def __init__(
        self, lam: float | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu",
        graph: Literal["auto", "complete", "knn"] | GraphLike = "knn",
        nodes: ClientIds | None = None,
        penalty: Literal["auto", "l2", "l1", "squared_l2"] | Penalty = "l2",
        refit: bool | Literal["auto"] = "auto", criterion: Literal["held_out", "bic"] = "held_out",
        alphas: ArrayLike | None = None, client_loss: float | Literal["huber"] | None = None,
        solver: Literal["auto", "admm", "primal_dual", "pdmm"] = "auto",
        solver_options: dict[str, Any] | None = None, max_iter: int = 2000, tol: float = 1e-06,
        warm_start: bool = False, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class GTVRegressorCV(_gtv_cv.GTVRegressorCV):
    def __init__(
        self, n_lams: int = 30, *, lams: ArrayLike | None = None,
        lam_min_ratio: float | None = None, cv: int | Splitter | Iterable[Any] = 5,
        scoring: str | Callable[..., Any] | None = None,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu",
        graph: Literal["auto", "complete", "knn"] | GraphLike = "knn",
        nodes: ClientIds | None = None,
        penalty: Literal["auto", "l2", "l1", "squared_l2"] | Penalty = "l2",
        refit: bool | Literal["auto"] = "auto", alphas: ArrayLike | None = None,
        client_loss: float | Literal["huber"] | None = None,
        solver: Literal["auto", "admm", "primal_dual", "pdmm"] = "auto",
        solver_options: dict[str, Any] | None = None, max_iter: int = 2000, tol: float = 1e-06,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class IFCAClassifier(_ifca.IFCAClassifier):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        aggregation: Aggregation = "mean",
        init: Literal["loss++", "random", "same"] | ArrayLike = "loss++",
        n_init: int | Literal["auto"] = "auto",
        empty_cluster: Literal["reseed", "keep"] = "reseed",
        shared_layers: int | str | Sequence[str] | None = None, tol: float = 0.0001,
        record: Record | None = None, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class IFCARegressor(_ifca.IFCARegressor):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean",
        init: Literal["loss++", "random", "same"] | ArrayLike = "loss++",
        n_init: int | Literal["auto"] = "auto",
        empty_cluster: Literal["reseed", "keep"] = "reseed",
        shared_layers: int | str | Sequence[str] | None = None, tol: float = 0.0001,
        record: Record | None = None, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class LocalModelsClassifier(_local_models.LocalModelsClassifier):
    def __init__(
        self, loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss", *,
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        tol: float = 0.0001, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class LocalModelsRegressor(_local_models.LocalModelsRegressor):
    def __init__(
        self,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        *, alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, tol: float = 0.0001, group_col: str | int | None = None,
        unseen: Unseen = "error", n_jobs: int | None = None, random_state: RandomState = None,
        verbose: int = 0,
    ) -> None: ...

class OneShotClassifier(_one_shot.OneShotClassifier):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        clusterer: Literal["auto", "kmeans", "trimmed", "median"] | Clusterer = "auto",
        trim: float = 0.2, combine: Literal["mean", "precision"] = "mean",
        rounds: int | Literal["auto"] = "auto", pretrain_steps: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 0.0001,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class OneShotRegressor(_one_shot.OneShotRegressor):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu",
        clusterer: Literal["auto", "kmeans", "trimmed", "median"] | Clusterer = "auto",
        trim: float = 0.2, combine: Literal["mean", "precision"] = "mean",
        rounds: int | Literal["auto"] = "auto", pretrain_steps: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 0.0001,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class OracleClustersClassifier(_oracle.OracleClustersClassifier):
    def __init__(
        self, labels: ClientLabels | None = None, *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        tol: float = 0.0001, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class OracleClustersRegressor(_oracle.OracleClustersRegressor):
    def __init__(
        self, labels: ClientLabels | None = None, *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, tol: float = 0.0001, group_col: str | int | None = None,
        unseen: Unseen = "error", n_jobs: int | None = None, random_state: RandomState = None,
        verbose: int = 0,
    ) -> None: ...

class PACFLClassifier(_pacfl.PACFLClassifier):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu", n_vectors: int = 3,
        angle: Literal["smallest", "mean", "largest"] = "mean",
        linkage: Literal["average", "complete", "single"] = "average",
        distance_threshold: float | None = None, max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 0.0001,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class PACFLRegressor(_pacfl.PACFLRegressor):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", n_vectors: int = 3,
        angle: Literal["smallest", "mean", "largest"] = "mean",
        linkage: Literal["average", "complete", "single"] = "average",
        distance_threshold: float | None = None, max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 0.0001,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class PFedMeClassifier(_pfedme.PFedMeClassifier):
    def __init__(
        self, lam: float | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu", beta: float = 1.0,
        outer_step: float | Literal["auto"] = "auto", local_rounds: int | Literal["auto"] = "auto",
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        aggregation: Aggregation = "mean", tol: float = 1e-10, group_col: str | int | None = None,
        unseen: Unseen = "error", n_jobs: int | None = None, random_state: RandomState = None,
        verbose: int = 0,
    ) -> None: ...

class PFedMeRegressor(_pfedme.PFedMeRegressor):
    def __init__(
        self, lam: float | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", beta: float = 1.0,
        outer_step: float | Literal["auto"] = "auto", local_rounds: int | Literal["auto"] = "auto",
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        aggregation: Aggregation = "mean", tol: float = 1e-10, group_col: str | int | None = None,
        unseen: Unseen = "error", n_jobs: int | None = None, random_state: RandomState = None,
        verbose: int = 0,
    ) -> None: ...

class PartialPoolingClassifier(_partial_pooling.PartialPoolingClassifier):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["log_loss"] = "log_loss", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        covariance: Literal["stacked", "auto", "diag", "full", "spherical"] = "stacked",
        random: Literal["all", "intercept"] | Sequence[str] | Sequence[int] = "all",
        prior: float | Literal["auto"] = "auto", dispersion: float | Literal["auto"] = "auto",
        df: float | Literal["auto"] = "auto", max_iter: int = 1000, tol: float = 1e-05,
        n_init: int = 3, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class PartialPoolingRegressor(_partial_pooling.PartialPoolingRegressor):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "poisson", "gamma"] = "squared_error",
        fit_intercept: bool = True, standardize: bool = True,
        covariance: Literal["stacked", "auto", "diag", "full", "spherical"] = "stacked",
        random: Literal["all", "intercept"] | Sequence[str] | Sequence[int] = "all",
        prior: float | Literal["auto"] = "auto", dispersion: float | Literal["auto"] = "auto",
        df: float | Literal["auto"] = "auto", max_iter: int = 1000, tol: float = 1e-05,
        n_init: int = 3, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class PerFedAvgClassifier(_per_fedavg.PerFedAvgClassifier):
    def __init__(
        self, loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss", *,
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        inner_step: float | Literal["auto"] = "auto", personal_steps: int = 1,
        exact: bool | Literal["auto"] = "auto", max_iter: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "mean", tol: float = 1e-10,
        group_col: str | int | None = None, unseen: Unseen = "error", n_jobs: int | None = None,
        random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class PerFedAvgRegressor(_per_fedavg.PerFedAvgRegressor):
    def __init__(
        self,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        *, alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu", inner_step: float | Literal["auto"] = "auto",
        personal_steps: int = 1, exact: bool | Literal["auto"] = "auto",
        max_iter: int | Literal["auto"] = "auto", training: Training | None = None,
        aggregation: Aggregation = "mean", tol: float = 1e-10, group_col: str | int | None = None,
        unseen: Unseen = "error", n_jobs: int | None = None, random_state: RandomState = None,
        verbose: int = 0,
    ) -> None: ...

class RobustClusteredFL(_robust_clustered_fl.RobustClusteredFL):
    def __init__(
        self, model: LocalModel | None = None, n_clusters: int | Literal["auto"] = "auto", *,
        clusterer: Literal["auto", "kmeans", "trimmed", "median"] | Clusterer = "trimmed",
        trim: float = 0.25, combine: Literal["mean", "precision"] = "mean",
        rounds: int | Literal["auto"] = "auto", pretrain_steps: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "geometric_median",
        tol: float = 0.0001, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class RobustClusteredFLClassifier(_robust_clustered_fl.RobustClusteredFLClassifier):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, class_weight: ClassWeight = None,
        hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu",
        clusterer: Literal["auto", "kmeans", "trimmed", "median"] | Clusterer = "trimmed",
        trim: float = 0.25, combine: Literal["mean", "precision"] = "mean",
        rounds: int | Literal["auto"] = "auto", pretrain_steps: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "geometric_median",
        tol: float = 0.0001, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...

class RobustClusteredFLRegressor(_robust_clustered_fl.RobustClusteredFLRegressor):
    def __init__(
        self, n_clusters: int | Literal["auto"] = "auto", *,
        loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"] | Loss = "squared_error",
        alpha: float | Literal["auto"] = "auto", fit_intercept: bool = True,
        standardize: bool = True, hidden_layer_sizes: LayerSizes = (),
        activation: Activation = "relu",
        clusterer: Literal["auto", "kmeans", "trimmed", "median"] | Clusterer = "trimmed",
        trim: float = 0.25, combine: Literal["mean", "precision"] = "mean",
        rounds: int | Literal["auto"] = "auto", pretrain_steps: int | Literal["auto"] = "auto",
        training: Training | None = None, aggregation: Aggregation = "geometric_median",
        tol: float = 0.0001, group_col: str | int | None = None, unseen: Unseen = "error",
        n_jobs: int | None = None, random_state: RandomState = None, verbose: int = 0,
    ) -> None: ...
