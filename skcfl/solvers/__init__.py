"""Solvers and server loops: they hold a ClientPool and messages, never rows."""

from ._admm import admm
from ._alternating import LeastLoss, Options, alternate
from ._ama import ama
from ._clove import LossClusters
from ._fpfc import FPFCOptions, fpfc
from ._fpfc_path import FPFCRefits, FPFCSearch
from ._fusion_path import FusionPath, fusion_path, lam_grid
from ._local import solve_local
from ._number import find_n_clusters
from ._path import LamSearch
from ._pdmm import pdmm
from ._pooled import solve_pooled
from ._primal_dual import primal_dual
from ._primal_dual_inexact import HeldOutSearch, primal_dual_inexact
from ._result import Result
from ._starts import loss_plus_plus, random_starts

__all__ = [
    "FPFCOptions",
    "FPFCRefits",
    "FPFCSearch",
    "FusionPath",
    "HeldOutSearch",
    "LamSearch",
    "LeastLoss",
    "LossClusters",
    "Options",
    "Result",
    "admm",
    "alternate",
    "ama",
    "find_n_clusters",
    "fpfc",
    "fusion_path",
    "lam_grid",
    "loss_plus_plus",
    "pdmm",
    "primal_dual",
    "primal_dual_inexact",
    "random_starts",
    "solve_local",
    "solve_pooled",
]
