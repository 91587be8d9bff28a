"""What every solver returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Result"]


@dataclass
class Result:
    """Result of a solver or a server loop.

    Attributes
    ----------
    cluster_params : ndarray of shape (K, n_params)
        Model of each cluster.
    labels : ndarray of shape (n_clients,)
        Cluster of each client, in 0..K-1; clusters may be empty.
    params : ndarray of shape (n_clients, n_params) or None
        Model of each client; None where it is its cluster's.
    objective : float
        Value of the objective at the end.
    n_iter : int
        Rounds.
    history : dict of str to ndarray
        One entry per round.
    converged : bool
        Whether the stopping rule was met.
    shortfall : str
        If not: the number that fell short and what to change.
    extra : dict
        Further fitted attributes, without the trailing underscore.
    model : LocalModel, default=None
        The bound local model where the solver chose its penalty; None is the pool's.
    """

    cluster_params: np.ndarray
    labels: np.ndarray
    params: np.ndarray | None = None
    objective: float = np.nan
    n_iter: int = 0
    history: dict[str, Any] = field(default_factory=dict)
    converged: bool = True
    shortfall: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    model: Any = None

    def __post_init__(self) -> None:
        # What fell short says so.
        self.converged = bool(self.converged) and not self.shortfall
