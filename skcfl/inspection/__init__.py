"""Pictures of fits: the path of a fusion method over its penalty, and the way to convergence.

Displays in the style of scikit-learn: a ``from_...`` method computes what is drawn and draws
it, ``plot`` draws it again.  They need matplotlib (the extra ``plot``).
"""

from ._convergence import ConvergenceDisplay
from ._path import ClusterPathDisplay

__all__ = ["ClusterPathDisplay", "ConvergenceDisplay"]
