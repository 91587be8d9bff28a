"""Common steps of all fits: solve, publish all at once, warn."""

from __future__ import annotations

import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from .._option_objects import DocLinkMixin, TakesOptions
from .._progress import CallbackSupportMixin, follow
from .._typing import Array
from ..federation.pool import ClientPool
from ..federation.result import Result
from ..models import LocalModel
from ..numerics.threads import BLAS


@dataclass
class Task:
    """Values that a fit depends on."""

    header: Any  # carries n_features_in_ and feature_names_in_
    pool: ClientPool
    groups: np.ndarray | None
    classes: np.ndarray | None
    options: dict[str, Any]
    folds: Any = None
    # Opened again where clients are lost.
    federation: Any = None
    hello: Any = None
    # Whether clients in other places are asked for what a report needs.
    evidence: bool = False


class BaseFit(CallbackSupportMixin, DocLinkMixin, TakesOptions, BaseEstimator, metaclass=ABCMeta):
    """Base of all estimators; a subclass has the parameter ``verbose``.

    It has in ``_parameter_constraints`` only the parameters that its bases do not have.
    """

    _parameter_constraints: dict[str, Any] = {"verbose": ["verbose"]}

    #: If True, models between rounds can be published as if the fit ended there.
    _publishes_rounds = False

    n_features_in_: int
    feature_names_in_: Array

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        constraints = {}
        for base in reversed(cls.__mro__):
            constraints.update(vars(base).get("_parameter_constraints", {}))
        cls._parameter_constraints = constraints

    @abstractmethod
    def _local_model(self) -> LocalModel:
        """The local model, not bound."""

    @abstractmethod
    def _solve(self, pool: ClientPool, **options: Any) -> Result:
        """Fit the clients of `pool`; return a Result."""

    @abstractmethod
    def _publish(self, task: Task, result: Result) -> None:
        """Replace all fitted attributes at once."""

    def _solve_task(self, task: Task) -> Result:
        return self._solve(task.pool)

    def _as_if_ended(self, task: Task, result: Result) -> dict[str, Any] | None:
        """Attributes as if the fit had ended at a result on the way, None of diverging models."""
        raise NotImplementedError

    def _run(self, task: Task, given: dict[str, Any] | None = None) -> Self:
        """Solve and publish; `given` is what scikit-learn's callbacks are handed."""
        # Divergence is reported once, where models are published.
        with BLAS, np.errstate(over="ignore", invalid="ignore"):
            result, stopped = follow(
                self,
                partial(self._solve_task, task),
                partial(self._publish, task),
                given,
                partial(self._as_if_ended, task) if self._publishes_rounds else None,
                partial(_costs, task),
            )
            self._end(task)
        self._converged = result.converged
        found = [] if result.converged or stopped else [(result.shortfall, ConvergenceWarning)]
        for text, category in [*found, *self._found(task)]:
            # Four frames up: the context of scikit-learn is around `fit`.
            warnings.warn(text, category, stacklevel=4)
        return self

    def _end(self, task: Task) -> None:
        """Ask the clients for values that are needed after a fit."""

    def _found(self, task: Task) -> Iterator[tuple[str, type[Warning]]]:
        """Yield what a fit warns of besides its convergence: texts and categories."""
        return iter(())

    def _replace_attributes(self, header: Any, fitted: dict[str, Any]) -> None:
        """Publish attributes in the place of those of an earlier fit, of whatever kind."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        if hasattr(header, "feature_names_in_"):
            self.feature_names_in_ = header.feature_names_in_
        self.n_features_in_ = header.n_features_in_
        self.__dict__.update(fitted)


def _costs(task: Task) -> str:
    """What was sent so far, and how many clients answer, for the log."""
    ledger, presence = task.pool.ledger, task.pool.presence
    up, down = ledger.wire_bytes
    if not (up or down):
        up, down = np.add(ledger.shared_bytes, ledger.own_bytes)
    n = len(presence.ids)
    away = np.count_nonzero((presence.missed > 0) | presence.left_out | presence.rejected)
    return (
        f"{ledger.calls} exchanges, {up / 1e3:.4g} kB up, {down / 1e3:.4g} kB down, "
        f"{n - away} of {n} clients answer"
    )


def given_to_fit(X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> dict[str, Any]:
    """Arguments of a call of ``fit`` for scikit-learn's callbacks."""
    metadata = {"groups": groups, "sample_weight": sample_weight}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    return {"X": X, "y": y, "metadata": metadata or None}
