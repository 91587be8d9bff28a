"""The estimators; all import from ``skcfl``."""

from ._cfl import CFL, CFLClassifier, CFLRegressor
from ._clove import CLoVE, CLoVEClassifier, CLoVERegressor
from ._convex_clustered_fl import (
    ConvexClusteredFL,
    ConvexClusteredFLClassifier,
    ConvexClusteredFLRegressor,
)
from ._convex_clustering import ConvexClustering
from ._ditto import Ditto, DittoClassifier, DittoRegressor
from ._fedala import FedALA, FedALAClassifier, FedALARegressor
from ._fedavg import FedAvg, FedAvgClassifier, FedAvgRegressor
from ._fedem import FedEM, FedEMClassifier, FedEMRegressor
from ._fedpac import FedPACClassifier
from ._fedproto import FedProtoClassifier
from ._fedrep import FedRep, FedRepClassifier, FedRepRegressor
from ._fesem import FeSEM, FeSEMClassifier, FeSEMRegressor
from ._flexcfl import FlexCFL, FlexCFLClassifier, FlexCFLRegressor
from ._fpfc import FPFC, FPFCClassifier, FPFCRegressor
from ._gtv import GTV, GTVClassifier, GTVRegressor
from ._ifca import IFCA, IFCAClassifier, IFCARegressor
from ._kfed import KFED
from ._local_models import LocalModels, LocalModelsClassifier, LocalModelsRegressor
from ._one_shot import OneShot, OneShotClassifier, OneShotRegressor
from ._oracle import OracleClusters, OracleClustersClassifier, OracleClustersRegressor
from ._pacfl import PACFL, PACFLClassifier, PACFLRegressor
from ._partial_pooling import PartialPooling, PartialPoolingClassifier, PartialPoolingRegressor
from ._per_fedavg import PerFedAvg, PerFedAvgClassifier, PerFedAvgRegressor
from ._pfedme import PFedMe, PFedMeClassifier, PFedMeRegressor
from ._robust_clustered_fl import (
    RobustClusteredFL,
    RobustClusteredFLClassifier,
    RobustClusteredFLRegressor,
)

__all__ = sorted(name for name in globals() if name[0].isupper())
