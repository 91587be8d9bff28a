"""Checks of arguments that scikit-learn's leave open, and errors that name the argument."""

import datetime
import decimal
import re
import sys
from contextlib import contextmanager
from numbers import Integral, Real

import numpy as np
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.utils import _param_validation

# Numbers with products and quotients that neither overflow nor vanish.
LEAST, MOST = 1e-100, 1e100
# Rows of a batch, or steps of a round: what fits into an array's index.
MOST_STEPS = 10**9
# Largest numbers of data: squares of losses do not overflow in double precision, and losses in
# single precision.
LARGEST = {np.dtype(np.float64): 1e75, np.dtype(np.float32): 1e15}


class Interval(_param_validation.Interval):
    """Constraint of a number in a range, no bool."""

    def is_satisfied_by(self, val):
        """True if the value is such a number."""
        return not isinstance(val, (bool, np.bool_)) and super().is_satisfied_by(val)


#: Constraints of numbers that are multiplied and divided by.
POSITIVE = Interval(Real, LEAST, MOST, closed="both")
NOT_NEGATIVE = Interval(Real, 0, MOST, closed="both")


class Count(Interval):
    """Constraint of a parameter that counts something: an integer in a range."""

    def __init__(self, least=1, most=None):
        super().__init__(Integral, least, most, closed="left" if most is None else "both")


@contextmanager
def about(name):
    """Let the errors of scikit-learn's checks say that they speak of the argument `name`."""
    try:
        yield
    except NotFittedError:
        raise  # which is about the estimator, and caught as such
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        if re.search(rf"\b{re.escape(name)}\b", str(error)):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} is not valid: {error}") from error


@contextmanager
def needs(text):
    """Raise an ImportError with a text, how to install it, where an extra package is missing."""
    try:
        yield
    except ImportError as error:
        raise ImportError(text) from error


def caller_level():
    """The ``stacklevel`` of who called this package, whatever is between here and there."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    return level


def _is_ours(frame):
    """Whether a frame is of this package, or of scikit-learn's wrappers of methods."""
    return frame.f_globals.get("__name__", "").split(".")[0] in {"skcfl", "sklearn"}


def refuse_masked(values, name):
    """Raise a ValueError if an array has masked entries, which numpy and scikit-learn ignore."""
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise ValueError(
            f"{name} has {int(np.ma.getmaskarray(values).sum())} masked entries, and a masked "
            "entry is a missing value. Fill them, or drop their rows."
        )


def is_missing(value):
    """Whether an object stands for a missing value: None, NA, NaN or NaT of any type, masked."""
    if value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, decimal.Decimal):
        return value.is_nan()  # a signalling NaN cannot be compared
    if isinstance(value, tuple):
        return any(map(is_missing, value))
    try:
        return bool(value != value)
    except (TypeError, ValueError):
        return False


def refuse_missing(values):
    """Raise a ValueError if an array of objects has a missing value."""
    if values.dtype.kind == "O" and any(map(is_missing, values.ravel().tolist())):
        raise ValueError("it has missing values (NaN, None or NA).")


def check_size(values, name, dtype=None):
    """Raise a ValueError if an array (or sparse matrix) of floats holds numbers too large.

    Too large for the arithmetic of `dtype`, by default that of the array.
    """
    values = values.data if sparse.issparse(values) else values
    dtype = values.dtype if dtype is None else np.dtype(dtype)
    limit = LARGEST.get(dtype, LARGEST[np.dtype(np.float64)])
    largest = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    if largest > limit:
        raise ValueError(
            f"{name} holds numbers as large as {largest:.3g}, whose squares and products overflow "
            f"in {dtype}: up to {limit:g} is possible. Scale {name}"
            + (", or compute in double precision." if dtype == np.float32 else ".")
        )


def check_float(dtype):
    """Raise a ValueError for a type of numbers in which rows are not stored, such as integers."""
    if np.dtype(dtype) not in LARGEST:
        raise ValueError(f"dtype must be float32 or float64, got {dtype}.")


# What numpy would take for numbers, by kind of array and by type of object.
NO_NUMBERS = {"S": "text", "U": "text", "M": "dates", "m": "spans of time"}
TEXT = (str, bytes)
DATES = (datetime.date, datetime.timedelta, np.datetime64, np.timedelta64)


def only_numbers(values, name):
    """Raise a ValueError if an array holds text or dates, which numpy would take for numbers."""
    found = NO_NUMBERS.get(values.dtype.kind)
    if values.dtype.kind == "O":
        types = {type(value) for value in values.ravel().tolist()}
        for what, some in (("text", TEXT), ("dates", DATES)):
            found = what if any(issubclass(one, some) for one in types) else found
    if found is not None:
        raise ValueError(f"{name} must hold numbers, got {found} (dtype {values.dtype}).")


def real_array(values, name, *, ndim=None, shape=None, finite=True):
    """Array of floats of an argument.

    Parameters
    ----------
    values : array-like
        What was given.
    name : str
        What the messages call it.
    ndim : int, default=None
        Number of axes that it must have.
    shape : tuple of int or None, default=None
        Shape that it must have; None stands for any length of an axis.
    finite : bool, default=True
        If True, refuse infinity and NaN.

    Returns
    -------
    array : ndarray of float
        A new array, or the given one if it is such an array.

    Raises
    ------
    ValueError
        If the values are not real numbers, or not in the shape that is needed.
    """
    refuse_masked(values, name)
    needed = {1: "a one-dimensional array", 2: "a two-dimensional array"}.get(ndim, "an array")
    if isinstance(values, (str, bytes, dict, set, frozenset)) or sparse.issparse(values):
        raise ValueError(f"{name} must be {needed} of numbers, got {type(values).__name__}.")
    try:
        array = np.asarray(values)
        if array.dtype.kind in "cV":
            raise TypeError(f"values of dtype {array.dtype}")
        only_numbers(array, name)
        array = array.astype(float, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{name} must be {needed} of real numbers, got {_brief(values)} ({error})."
        ) from error
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{name} must be {needed}, got an array of shape {array.shape}.")
    if shape is not None and (
        array.ndim != len(shape)
        or any(n is not None and n != m for n, m in zip(shape, array.shape, strict=True))
    ):
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}.")
    if finite and not np.isfinite(array).all():
        bad = array[~np.isfinite(array)].ravel()[0]
        raise ValueError(f"{name} must be finite, got {bad}.")
    return array


def real_number(value, name, least=-np.inf, most=np.inf):
    """A real number between two others, as a float.

    Raises
    ------
    ValueError
        If it is something else.
    """
    number = real_array(value, name, finite=False)
    if number.ndim or isinstance(value, (bool, np.bool_)) or not least <= number <= most:
        raise ValueError(
            f"{name} must be a number between {least:g} and {most:g}, got {_brief(value)}."
        )
    return float(number)


def whole_number(value, name, least=1, most=None, optional=False):
    """An integer in a range, no bool, as an int; or None if it is optional."""
    if optional and value is None:
        return None
    if not Count(least, most).is_satisfied_by(value):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        allowed += " or None" * optional
        raise ValueError(f"{name} must be an integer {allowed}, got {value!r}.")
    return int(value)


def strengths(values, name):
    """Strengths of a penalty that a user gives: ascending, each once.

    Raises
    ------
    ValueError
        If they are not numbers from 0 to `MOST`.
    """
    given = real_array(values, name, finite=False)
    if given.max(initial=0.0) > MOST:
        raise ValueError(f"{name} must not be larger than {MOST:g}, got {given.max()}.")
    if given.ndim != 1 or not len(given) or not (np.isfinite(given) & (given >= 0)).all():
        raise ValueError(
            f"{name} must be a sequence of finite numbers that are not negative, got {values!r}."
        )
    return np.unique(given)


def _brief(values):
    """A value as messages show it, cut where it is long."""
    text = repr(values)
    return text if len(text) <= 80 else f"{text[:77]}..."
