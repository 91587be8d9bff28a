"""Rows along a feature, and what is known of effects there."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._checks import real_array
from .._typing import Array, ArrayLike
from .table_columns import positions_of

# Standard deviations about the mean between which a straight line is drawn.
REACH = 2.0


def mean_row(fit: Any) -> Array | None:
    """Mean row of the design in the user's units; None if the fit does not know it."""
    scaling = fit._scaling
    if scaling is not None and scaling.mean.any():
        return np.append(scaling.mean, 1.0)
    # Sparse rows, and those of models without an intercept, are scaled and not centred.
    centre = getattr(getattr(fit, "_how_sure", None), "centre", None)
    if centre is None or scaling is None:
        return centre
    return centre * np.append(scaling.scale, 1.0)[: len(centre)]


def rows_along(
    estimator: Any, feature: str | int, values: ArrayLike | None, n_values: int, mean: Array
) -> tuple[Array, Array, Array]:
    """Rows along a feature, the columns of it, and its values; a grid is about the mean."""
    columns = estimator._design.columns
    names = estimator._feature_names(estimator, estimator._n_model_features)
    found = positions_of(estimator, feature, names, "feature")
    if len(found) != 1:
        some = names[found].tolist()
        raise ValueError(f"feature={feature!r} is a category: name one of its levels, {some}.")
    j = found[0]
    if columns is None:
        places = np.array([j])
    else:
        places = np.flatnonzero(columns.sources == j)
    if len(places) == 0:
        raise ValueError(f"feature={feature!r} holds ids of a grouping: no effect.")
    if values is None:
        first = places[0]
        middle, size = mean[first], estimator._scaling.scale[first]
        ends = middle - REACH * size, middle + REACH * size
        if columns is not None:
            knots = [v for name, k, v in columns.recipe if name == "curve" and k == j]
            ends = (knots[0][1], knots[0][-1]) if knots else ends
        x = np.linspace(*ends, n_values)
    else:
        x = real_array(values, "values").ravel()
    raw = np.zeros((len(x), len(names)))
    raw[:, j] = x
    made = raw if columns is None else estimator._design.made(raw)
    return made, places, x


def spread_along(rows: Array, covariance: Array | None) -> Array:
    """Standard deviations of the effects of rows, of the covariance of parameters."""
    if covariance is None:
        return np.full(len(rows), np.nan)
    if covariance.ndim == 1:
        return np.sqrt(np.maximum(rows**2 @ covariance, 0.0))
    return np.sqrt(np.maximum(np.einsum("rp,pq,rq->r", rows, covariance, rows), 0.0))
