"""Splits, scorers and scores for data that belong to clients.

A clustered method is judged by new rows of known clients, so every client has to be in every
training fold, and the groups have to reach the prediction that is scored.
"""

from ._lam_path import LamPath, lam_max, lam_path
from ._scoring import grouped_scorer, per_client_scores
from ._split import ClientKFold

__all__ = ["ClientKFold", "LamPath", "grouped_scorer", "lam_max", "lam_path", "per_client_scores"]
