"""What methods that train by rounds have in common: parameters, and options of the training."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

from .._option_objects import parameters
from .._typing import Aggregation
from ..base import BaseFederated
from ..rounds.alternate import Options
from ..rounds.model_kinds import kind_of
from ..rounds.round_options import ROUND_CONSTRAINTS, ROUNDS, automatic_step, robust_aggregator
from ..rounds.training_options import LOCAL_STEPS, Training


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


def training_options(estimator, pool, kind=None):
    """Options of rounds in which clients train, none of them automatic.

    Parameters
    ----------
    estimator : ByRounds or Averaging
        The estimator.
    pool : ClientPool
        The federation.
    kind : ModelKind, default=None
        Kind of local models by which options are chosen; None is the pool's.

    Returns
    -------
    options : Options
    """
    kind, training = kind_of(pool) if kind is None else kind, estimator._option("training")
    optimizer = kind.optimizer if training.optimizer == "auto" else training.optimizer
    max_iter, budget = kind.rounds(estimator.max_iter)
    return Options(
        max_iter=max_iter,
        budget=budget,
        averaging="model",
        local_steps=training.steps(getattr(estimator, "_local_steps", LOCAL_STEPS)),
        optimizer=optimizer,
        step_size=automatic_step(training.step_size, optimizer, pool),
        batch_size=training.batch_size,
        participation=float(training.participation),
        weights=training.weights,
        tol=estimator.tol,
        aggregator=robust_aggregator(estimator),
    )
