"""Solvers and server loops: they hold a ClientPool and messages, never rows."""

from ._admm import admm
from ._alternating import LeastLoss, Options, alternate
from ._ama import ama
from ._clove import LossClusters
from ._fpfc import FPFCOptions, fpfc
from ._fpfc_path import FPFCRefits, FPFCSearch
from ._fusion_path import FusionPath, fusion_path, lam_grid
from ._local import solve_local
from ._mean_regularised import mean_regularised
from ._number import find_n_clusters
from ._path import LamSearch
from ._pdmm import pdmm
from ._pooled import solve_pooled
from ._primal_dual import primal_dual
from ._primal_dual_inexact import primal_dual_inexact
from ._result import Result
from ._search import Family, FoldsJudge, Judge, ModelSearch
from ._starts import loss_plus_plus, random_starts

__all__ = [
    "FPFCOptions",
    "FPFCRefits",
    "FPFCSearch",
    "Family",
    "FoldsJudge",
    "FusionPath",
    "Judge",
    "LamSearch",
    "LeastLoss",
    "LossClusters",
    "ModelSearch",
    "Options",
    "Result",
    "admm",
    "alternate",
    "ama",
    "find_n_clusters",
    "fpfc",
    "fusion_path",
    "lam_grid",
    "mean_regularised",
    "loss_plus_plus",
    "pdmm",
    "primal_dual",
    "primal_dual_inexact",
    "random_starts",
    "solve_local",
    "solve_pooled",
]
