"""Checks for authors of losses, penalties and pools, and tools for such checks."""

from ._loss_checks import check_loss
from ._penalty_checks import check_penalty
from ._pool_checks import check_pool
from ._reconstruct import Reconstruction, reconstruct
from ._strict import StrictFederation

__all__ = [
    "Reconstruction",
    "StrictFederation",
    "check_loss",
    "check_penalty",
    "check_pool",
    "reconstruct",
]
