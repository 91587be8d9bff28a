"""Rows of private places that no fit takes: an error about one is an answer without noise.

A site under a policy with noise leaves them out, and its log says how many. A place in one process
raises, as the rows and the error are of the same person.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from .._checks import LARGEST, LEAST
from .._typing import Array, DTypeLike
from .checking import check_features

logger = logging.getLogger(__name__)
# Declared widths between their middle and the largest targets: private sums are clipped long
# before, and numbers within do not overflow.
MOST_WIDTHS = 1e6


def features_and_weights(X: Any, sample_weight: Any) -> tuple[Array, Any, Array]:
    """Features and weights that raise no error, and a mask of the rows that may count.

    Parameters
    ----------
    X : {array-like, DataFrame} of shape (n_rows, n_features)
        Features. Columns of text, dates or complex numbers are errors.
    sample_weight : array-like of shape (n_rows,) or None
        Weights. Another shape or type is an error of who checks them.

    Returns
    -------
    X : ndarray of shape (n_rows, n_features)
    sample_weight : array-like or None
    right : ndarray of shape (n_rows,) of bool
    """
    if not hasattr(X, "iloc") or (X.dtypes == "object").any():  # others keep their types
        X = _read(X)
    X = check_features(X, finite=False)
    right: Array = _within(X).all(axis=1)
    weights = _read(sample_weight)
    if _are_numbers(weights) and np.shape(weights) == right.shape:
        weights = np.asarray(weights, dtype=float)
        right = right & _within(weights) & (weights >= LEAST)
        sample_weight = np.where(right, weights, 1.0)
    if not right.all():
        X = np.where(right[:, None], X, X.dtype.type(0))
    return X, sample_weight, right


def _read(values: Any) -> Any:
    """Floats of an array of objects, NaN for each object that is no number; others unchanged."""
    array = np.asarray(values)
    if array.dtype.kind != "O" or np.ma.isMaskedArray(values):
        return values
    return np.vectorize(_number, otypes=[float])(array)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _are_numbers(values: Any) -> bool:
    return not np.ma.isMaskedArray(values) and np.asarray(values).dtype.kind in "biuf"


def _within(values: Array) -> Any:
    return np.abs(values) <= LARGEST[values.dtype]  # NaN is not


def targets(y: Any, kind: Any, bounds: Any, dtype: DTypeLike, silent: bool) -> tuple[Any, Any]:
    """Targets of a private place that raise no error, and a mask of the rows that may count.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        The targets. Another shape or type is an error of who checks them.
    kind : {"classifier", "regressor"}
        What they are targets of.
    bounds : dict
        Declared bounds.
    dtype : dtype
        Type of the features.
    silent : bool
        If False, missing targets and undeclared classes stay, as errors.
    """
    right: Any = True
    y = _read(y) if silent and kind == "regressor" else y
    values = np.asarray(y)
    values = values[:, 0] if values.shape[1:] == (1,) else values
    if kind == "regressor" and _are_numbers(y) and "target" in bounds:
        values = values.astype(float)
        low, high = map(float, bounds["target"])
        middle, most = 0.5 * low + 0.5 * high, LARGEST[np.dtype(dtype)]
        if silent:
            right = ~np.isnan(values)
            values = np.where(right, values, middle)
        away = MOST_WIDTHS * min(high - low, most)
        values = values.clip(middle - away, middle + away).clip(-most, most)
        return np.where(np.abs(values) < LEAST, 0.0, values), right
    whole = values.ndim == 1 and not np.ma.isMaskedArray(y)
    if kind == "classifier" and silent and "classes" in bounds and whole:
        places = {one: k for k, one in enumerate(bounds["classes"].tolist())}
        at = np.array([_place(places, one) for one in values.tolist()], dtype=np.intp)
        return bounds["classes"][at], at >= 0
    return y, right


def _place(places: dict[Any, int], value: Any) -> int:
    """Position of a class, -1 of what is none."""
    try:
        return places.get(value, -1)
    except (TypeError, ValueError):  # it has no hash, or NA was compared
        return -1


def suit(model: Any, y: Array) -> Any:
    """Mask of the targets of a regressor that are in the range of its loss."""
    name = model.describe_loss().target_range if hasattr(model, "describe_loss") else "real"
    return {"non-negative": y >= 0, "positive": y > 0}.get(name, True)


def without(right: Array, *arrays: Any) -> Any:
    """Arrays without the rows that may not count, of which the log says how many."""
    if right.all():
        return arrays
    logger.error(
        "%d of %d rows add nothing to private answers: a number is missing or too large, a weight "
        "is not positive, or a target is of no declared class or does not suit the loss.",
        np.count_nonzero(~right),
        len(right),
    )
    return tuple(None if values is None else values[right] for values in arrays)
