"""The estimators; all import from ``skcfl``."""

from ._convex import (
    ConvexClusteredFL,
    ConvexClusteredFLClassifier,
    ConvexClusteredFLRegressor,
)
from ._convex_cv import ConvexClusteredFLClassifierCV, ConvexClusteredFLRegressorCV
from ._fedavg import FedAvg, FedAvgClassifier, FedAvgRegressor
from ._ifca import IFCA, IFCAClassifier, IFCARegressor
from ._local import LocalModels, LocalModelsClassifier, LocalModelsRegressor
from ._oracle import OracleClusters, OracleClustersClassifier, OracleClustersRegressor
from ._points import ConvexClustering

__all__ = [
    "IFCA",
    "ConvexClusteredFL",
    "ConvexClusteredFLClassifier",
    "ConvexClusteredFLClassifierCV",
    "ConvexClusteredFLRegressor",
    "ConvexClusteredFLRegressorCV",
    "ConvexClustering",
    "FedAvg",
    "FedAvgClassifier",
    "FedAvgRegressor",
    "IFCAClassifier",
    "IFCARegressor",
    "LocalModels",
    "LocalModelsClassifier",
    "LocalModelsRegressor",
    "OracleClusters",
    "OracleClustersClassifier",
    "OracleClustersRegressor",
]
