"""Solvers and server loops: they hold a ClientPool and messages, never rows."""

from ._alternating import Options, alternate
from ._local import solve_local
from ._pooled import solve_pooled
from ._result import Result
from ._starts import loss_plus_plus, random_starts

__all__ = [
    "Options",
    "Result",
    "alternate",
    "loss_plus_plus",
    "random_starts",
    "solve_local",
    "solve_pooled",
]
