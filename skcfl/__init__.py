"""Clustered and personalised federated learning behind the scikit-learn API."""

from . import estimators
from .estimators import *  # noqa: F403 their names are in `estimators.__all__`
from .exceptions import SingleClientWarning
from .pooling.basis_options import SplineBasis, TreeBasis
from .rounds.record_options import Record
from .rounds.training_options import Training
from .search.lam_search import LamSearch

__version__ = "0.1.0"

__all__ = ["LamSearch", "Record", "SingleClientWarning", "SplineBasis", "Training", "TreeBasis"]
__all__ += estimators.__all__
