"""Fits that write a checkpoint, and go on from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from os import PathLike
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from ..federation.federation import Federation
from ..federation.journal import Journal, digest
from ..federation.private_sums import private_copy
from ..models import LinearModel, Location
from .of_clients import check_federation

#: Parameters that change no result.
WITHOUT_RESULT = frozenset({"n_jobs", "verbose"})
#: Local models of the question by which rows are compared, by the kind of the targets. Released
#: second moments take no other.
COMPARED_BY = {
    "classifier": LinearModel("log_loss"),
    "regressor": LinearModel("squared_error", fit_intercept=False, standardize=False),
    None: Location(),
}


@contextmanager
def checkpointed(
    estimator: Any,
    federation: Federation,
    path: str | PathLike[str] | None,
    every: float,
    resume: bool,
) -> Iterator[Any]:
    """Write the answers in here to a checkpoint, and read those that it has.

    Parameters
    ----------
    estimator : estimator
        It draws as when the checkpoint was begun.
    federation : Federation
        The clients.
    path : path-like or None
        The checkpoint; None is none.
    every : float
        Seconds between two writes.
    resume : bool
        If True, a checkpoint that is there is gone on from.

    Yields
    ------
    federation : Federation
        The clients, their answers written for this fit only.
    """
    if path is None:
        if resume:
            raise ValueError("resume=True needs checkpoint=, the file to go on from, got None.")
        yield federation
        return
    check_federation(federation)
    if not isinstance(every, Real) or isinstance(every, bool) or not every >= 0:
        raise ValueError(f"every must be a number of seconds of at least 0, got {every!r}.")
    given = getattr(estimator, "random_state", None)
    journal = Journal(path, _described(estimator, given), every, resume, COMPARED_BY)
    draws = given
    if not isinstance(given, Integral):
        draws = np.random.RandomState() if given is None else check_random_state(given)
        if "draws" in journal.state:
            draws.set_state(journal.state["draws"])
        journal.state["draws"] = draws.get_state()
    ended = False
    try:
        if draws is not given:
            estimator.random_state = draws
        yield private_copy(federation, journal=journal)
        ended = True
    finally:
        if draws is not given:
            estimator.random_state = given
        journal.close(ended)


def _described(estimator: Any, random_state: Any) -> str:
    """Name of the class of an estimator, and a digest of the parameters that its results have."""
    left_out = WITHOUT_RESULT
    if not isinstance(random_state, Integral):
        left_out = left_out | {"random_state"}
    params = clone(estimator).get_params(deep=False)
    kept = {name: value for name, value in params.items() if name not in left_out}
    return f"{type(estimator).__name__} {digest(kept).hex()[:16]}"
