"""Clustered and personalised federated learning behind the scikit-learn API."""

from .estimators import (
    IFCA,
    ConvexClusteredFL,
    ConvexClusteredFLClassifier,
    ConvexClusteredFLClassifierCV,
    ConvexClusteredFLRegressor,
    ConvexClusteredFLRegressorCV,
    ConvexClustering,
    FedAvg,
    FedAvgClassifier,
    FedAvgRegressor,
    IFCAClassifier,
    IFCARegressor,
    LocalModels,
    LocalModelsClassifier,
    LocalModelsRegressor,
    OracleClusters,
    OracleClustersClassifier,
    OracleClustersRegressor,
)
from .exceptions import SingleClientWarning

__version__ = "0.1.0.dev0"

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
    "SingleClientWarning",
]
