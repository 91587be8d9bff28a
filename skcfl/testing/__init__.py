"""Checks for authors of losses, penalties and pools, and tools for such checks."""

from ._loss_checks import check_loss
from ._penalty_checks import check_penalty
from ._pool_checks import check_pool
from ._strict import StrictFederation

__all__ = ["StrictFederation", "check_loss", "check_penalty", "check_pool"]
