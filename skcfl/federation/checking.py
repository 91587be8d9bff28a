"""Checks of rows, where they are: what is wrong is said before anything is computed."""

import numpy as np
from scipy import sparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_array, check_X_y

from .._checks import (
    LEAST,
    Count,
    about,
    check_size,
    needs,
    only_numbers,
    refuse_masked,
    refuse_missing,
)
from ..numerics.regression_trees import FEATURE, LEAF
from .wrong_columns import DATES, describe_wrong_columns, is_text, kind_of

FLOATS = (np.float64, np.float32)


def check_numbers(name, values, shape, least=-np.inf):
    """Finite numbers of a shape, as floats; a ValueError names what is sent otherwise.

    Parameters
    ----------
    name : str
        What they are.
    values : array-like
        The numbers.
    shape : tuple of int
        The shape that they must have.
    least : float, default=-inf
        The smallest that is allowed.

    Returns
    -------
    values : ndarray
    """
    values = np.asarray(values)
    if values.dtype.kind not in "biuf" or values.shape != shape:
        raise ValueError(
            f"{name} must be numbers of shape {shape}, got {values.dtype} of shape {values.shape}."
        )
    values = values.astype(float)
    if not np.isfinite(values).all() or values.min(initial=np.inf) < least:
        raise ValueError(f"{name} must be finite numbers of at least {least}.")
    return values


def check_positions(name, values, n):
    """Raise a ValueError if values are no positions below n, each at most once.

    Parameters
    ----------
    name : str
        What they are.
    values : array-like
        The positions.
    n : int or float
        What they are less than.
    """
    values = np.asarray(values)
    whole = values.ndim == 1 and values.dtype.kind in "iu"
    if not (
        whole and ((values >= 0) & (values < n)).all() and len({*values.tolist()}) == len(values)
    ):
        raise ValueError(f"{name} must be positions, each once, from 0 to {n - 1}.")


def check_trees(name, trees, n_features, n_outputs=1):
    """Trees of rows with some features, as floats; a ValueError says what is sent otherwise.

    Parameters
    ----------
    name : str
        What they are.
    trees : array-like of shape (n_trees, max_leaf_nodes, 5)
        See ``skcfl.numerics.regression_trees``.
    n_features : int
        Number of features.
    n_outputs : int, default=1
        Number of outputs, which have equally many trees.

    Returns
    -------
    trees : ndarray
    """
    shape = np.shape(trees)
    if not Count(1, max(len(trees), 1000)).is_satisfied_by(n_outputs) or len(trees) % n_outputs:
        raise ValueError(
            f"{name} must be equally many for each output, got {len(trees)} trees of "
            f"{n_outputs!r} outputs."
        )
    trees = check_numbers(name, trees, (*shape[:2], 5))
    leaf, feature = trees[:, :, LEAF], trees[:, :, FEATURE]
    whole = (leaf == np.floor(leaf)) & (feature == np.floor(feature))
    right = (leaf < np.arange(shape[1])) & (feature >= 0) & (feature < n_features)
    if not (whole & right).all():
        raise ValueError(f"{name} must split known leaves at one of {n_features} features.")
    return trees


def as_table(X):
    """X with a shape of two dimensions; check_array says what is wrong with anything else."""
    refuse_masked(X, "X")
    if sparse.issparse(X):
        X = X.tocsr()
    elif not hasattr(X, "shape"):
        X = np.asarray(X, dtype=object)  # a list of rows keeps the types of its columns
    elif hasattr(X, "columns") and hasattr(X, "to_pandas"):
        X = _of_another_library(X)
    if len(X.shape) != 2:
        with about("X"):
            check_array(X, accept_sparse="csr")
    return X


def _of_another_library(X):
    """A frame, such as one of polars, as one of pandas unless all of its columns are numbers."""
    if all(
        hasattr(dtype, "is_numeric") and dtype.is_numeric()
        for dtype in getattr(X, "dtypes", [None])
    ):
        return X
    library = type(X).__module__.partition(".")[0]
    with needs(
        f"X is a frame of {library} with columns that are no numbers: these need pandas and "
        "pyarrow, which are not installed."
    ):
        frame = X.to_pandas()
    for name, dtype in zip(frame.columns, getattr(X, "dtypes", ()), strict=False):
        # The levels of polars' Categorical are in the order of the rows, not as declared.
        if str(dtype).startswith("Categorical"):
            levels = sorted(frame[name].cat.categories)
            frame[name] = frame[name].cat.set_categories(levels)
    return frame


def as_rows(X):
    """X as a table, and the shape of its rows where these have several axes, such as images.

    Rows are flat wherever they are stored; what trains on them knows their shape.

    Parameters
    ----------
    X : {array-like, sparse matrix, DataFrame}
        Rows along the first axis.

    Returns
    -------
    X : {ndarray, CSR matrix, DataFrame} of shape (n_samples, n_features)
    shape : tuple of int or None
        Shape of a row, None where it has one axis.
    """
    shape = tuple(getattr(X, "shape", ()))
    if len(shape) < 3:
        return as_table(X), None
    refuse_masked(X, "X")
    with about("X"):
        X = np.asarray(X)
    return as_table(X.reshape(len(X), int(np.prod(shape[1:], dtype=int)))), shape[1:]


def refuse_columns(X):
    """Raise a ValueError if columns of a frame hold dates, or text, whatever it spells."""
    if not hasattr(X, "iloc"):
        return
    odd = [getattr(dtype, "kind", "O") not in "biufc" for dtype in X.dtypes]
    columns = [X.iloc[:, j] for j in np.flatnonzero(odd)]
    if any(is_text(column) or kind_of(column) == DATES for column in columns):
        raise ValueError(
            "X must hold numbers, and no text that spells them. " + describe_wrong_columns(X, None)
        )


def check_features(X, dtype=FLOATS, estimator=None, finite=True):
    """Features as an array or a CSR matrix of numbers, which are finite unless said otherwise."""
    with about("X"):
        if isinstance(X, np.ndarray) and X.dtype.kind in "mM":
            raise ValueError(
                f"dates (dtype {X.dtype}) are no numbers. {describe_wrong_columns(X, estimator)}"
            )
        dtype = list(dtype) if isinstance(dtype, tuple) else dtype
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
            try:
                how = {"estimator": estimator, "input_name": "X", "ensure_all_finite": finite}
                X = check_array(X, accept_sparse="csr", dtype=dtype, **how)
            except (TypeError, ValueError) as error:
                text = describe_wrong_columns(X, estimator)
                if not text:
                    raise
                kind = TypeError if isinstance(error, TypeError) else ValueError
                first = str(error).splitlines()[0].partition(". ")[0].rstrip(".")
                raise kind(f"X is not valid: {first}. {text}") from error
    if finite:
        check_size(X, "X")
    return X


def check_target(y, n_samples, numeric, estimator=None):
    """Targets, one per row, none missing, as they are."""
    if y is None:
        name = "federated" if estimator is None else type(estimator).__name__
        raise ValueError(
            f"This {name} estimator requires y to be passed, but the target y is None."
        )
    refuse_masked(y, "y")
    with about("y"):
        values = np.asarray(y, dtype=object) if isinstance(y, (list, tuple)) else np.asarray(y)
        refuse_missing(values)
        if numeric:
            only_numbers(values, "y")
        one = np.zeros((n_samples, 1))  # the features are checked
        return check_X_y(one, y, y_numeric=numeric, estimator=estimator)[1]


def check_targets(y, X, kind, estimator=None):
    """Targets of the rows `X` to fit to: numbers of a regressor, classes otherwise."""
    numeric = kind == "regressor"
    y = check_target(y, X.shape[0], numeric, estimator)
    if not numeric:
        with about("y"), np.errstate(invalid="ignore"):
            check_classification_targets(y)
        return y
    with np.errstate(over="ignore"):
        check_size(y.astype(X.dtype, copy=False), "y")
    if 0.0 < np.abs(y).max(initial=0.0) < LEAST:
        raise ValueError(
            f"y holds no number larger than {np.abs(y).max():.3g}, whose square vanishes: "
            f"{LEAST:g} is possible. Scale y."
        )
    # In double precision whatever the features are: gaps are about these targets.
    return y.astype(np.float64, copy=False)


def check_weights(sample_weight, X):
    """Weights of the rows of `X`, None if there are none."""
    if sample_weight is None:
        return None
    refuse_masked(sample_weight, "sample_weight")
    if isinstance(sample_weight, complex):
        raise ValueError(f"sample_weight must be real, got {sample_weight!r}.")
    with about("sample_weight"):
        only_numbers(np.asarray(sample_weight), "sample_weight")
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if not np.isfinite(weights).all():  # a number for all rows is not checked
        raise ValueError(f"sample_weight must be finite, got {sample_weight!r}.")
    with np.errstate(over="ignore"):
        check_size(weights.astype(X.dtype, copy=False), "sample_weight")
    if 0 < weights.max(initial=0.0) < LEAST:
        raise ValueError(
            f"sample_weight must not vanish beside 1: the largest is {weights.max()}, and "
            f"{LEAST:g} is the least that can be."
        )
    if (weights < 0).any():
        raise ValueError(f"sample_weight must not be negative, got {weights.min()}.")
    if not weights.any():
        raise ValueError(
            "Sample weights must contain at least one non-zero number, got sample_weight with a "
            "total of zero."
        )
    return weights
