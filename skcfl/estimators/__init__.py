"""The estimators; all import from ``skcfl``."""

from ._fedavg import FedAvg, FedAvgClassifier, FedAvgRegressor
from ._ifca import IFCA, IFCAClassifier, IFCARegressor
from ._local import LocalModels, LocalModelsClassifier, LocalModelsRegressor
from ._oracle import OracleClusters, OracleClustersClassifier, OracleClustersRegressor

__all__ = [
    "IFCA",
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
