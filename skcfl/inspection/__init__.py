"""Pictures of fits: paths, graphs, convergence, losses, rounds, suspicions, random effects.

Displays in the style of scikit-learn: a ``from_...`` method computes what is drawn and draws
it, ``plot`` draws it again.  They need matplotlib (the extra ``plot``).
"""

from ._cluster_path import ClusterPathDisplay
from ._convergence import ConvergenceDisplay
from ._empirical_graph import EmpiricalGraphDisplay
from ._loss_matrix import LossMatrixDisplay, RoundsDisplay
from ._random_effects import RandomEffectsDisplay
from ._suspicion_display import SuspicionDisplay

__all__ = [
    "ClusterPathDisplay",
    "ConvergenceDisplay",
    "EmpiricalGraphDisplay",
    "LossMatrixDisplay",
    "RandomEffectsDisplay",
    "RoundsDisplay",
    "SuspicionDisplay",
]
