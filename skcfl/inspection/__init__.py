"""Pictures of fits: paths, graphs, convergence, losses, rounds, suspicions, effects, stability.

Displays in the style of scikit-learn: a ``from_...`` method computes the data and draws them,
``plot`` draws them again.  They need matplotlib (the extra ``plot``).
"""

from ._cluster_path import ClusterPathDisplay
from ._convergence import ConvergenceDisplay
from ._effect_display import EffectDisplay
from ._empirical_graph import EmpiricalGraphDisplay
from ._loss_matrix import LossMatrixDisplay, RoundsDisplay
from ._random_effects import RandomEffectsDisplay
from ._similarity import ClientSimilarityDisplay
from ._stability import ClusterStability, ClusterStabilityDisplay, cluster_stability
from ._suspicion_display import SuspicionDisplay

__all__ = [
    "ClientSimilarityDisplay",
    "ClusterPathDisplay",
    "ClusterStability",
    "ClusterStabilityDisplay",
    "ConvergenceDisplay",
    "EffectDisplay",
    "EmpiricalGraphDisplay",
    "LossMatrixDisplay",
    "RandomEffectsDisplay",
    "RoundsDisplay",
    "SuspicionDisplay",
    "cluster_stability",
]
