"""What methods that train by rounds have in common: parameters, and options of the training."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

from .._option_objects import parameters
from .._typing import Aggregation
from ..base import BaseFederated
from ..rounds.round_options import ROUND_CONSTRAINTS, ROUNDS, make_options
from ..rounds.training_options import Training


@parameters
class ByRounds(BaseFederated):
    """Base of the methods in which clients train, round by round."""

    _: KW_ONLY
    max_iter: int | Literal["auto"] = "auto"
    training: Training | None = None
    tol: float = 1e-4

    _parameter_constraints = ROUND_CONSTRAINTS
    _option_classes = {"training": Training}
    _option_names = {"training": ROUNDS}


@parameters
class Averaging(BaseFederated):
    """Base of the methods in which a server averages what clients send, or something robust."""

    _: KW_ONLY
    max_iter: int | Literal["auto"] = "auto"
    training: Training | None = None
    aggregation: Aggregation = "mean"
    tol: float = 1e-4

    _parameter_constraints = ROUND_CONSTRAINTS
    _option_classes = {"training": Training}
    _option_names = {"training": ROUNDS}


def training_options(estimator, pool):
    """Options of rounds in which clients train and models are averaged, none of them automatic."""
    return make_options(estimator, pool, averaging="model", polish=False)
