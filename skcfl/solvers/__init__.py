"""Solvers and server loops: they hold a ClientPool and messages, never rows."""

from ._admm import admm
from ._alternating import Options, alternate
from ._ama import ama
from ._fusion_path import FusionPath, fusion_path, lam_grid
from ._local import solve_local
from ._path import LamSearch, lam_bounds
from ._pdmm import pdmm
from ._pooled import solve_pooled
from ._primal_dual import primal_dual
from ._result import Result
from ._starts import loss_plus_plus, random_starts

__all__ = [
    "FusionPath",
    "LamSearch",
    "Options",
    "Result",
    "admm",
    "alternate",
    "ama",
    "fusion_path",
    "lam_bounds",
    "lam_grid",
    "loss_plus_plus",
    "pdmm",
    "primal_dual",
    "random_starts",
    "solve_local",
    "solve_pooled",
]
