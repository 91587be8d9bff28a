"""Comparisons of the checkers, and their messages."""

import copy
import pickle
import sys

import numpy as np


def require(right, what, *details):
    """Raise an AssertionError that names the first entry where `right` is false.

    Parameters
    ----------
    right : array-like of bool
        Mask of the entries that are right.
    what : str
        Description of the expected values, for the message.
    *details : tuple of (str, array-like)
        Named arrays, which broadcast with `right`; the message shows their entry.
    """
    right = np.asarray(right, dtype=bool)
    if right.all():
        return
    place = tuple(np.argwhere(~right)[0])
    shown = [f"{name}={_entry(values, right.shape, place)}" for name, values in details]
    count = int((~right).sum())
    entries = "" if right.ndim == 0 else f" ({count} of {right.size} entries)"
    raise AssertionError(f"{what}{entries}" + (f": {', '.join(shown)}" if shown else ""))


def require_close(got, expected, what, *details, rtol=1e-7, atol=0.0):
    """Raise an AssertionError where two arrays differ."""
    got, expected = np.asarray(got), np.asarray(expected)
    require(
        got.shape == expected.shape,
        f"{what}: the shape is {got.shape} and must be {expected.shape}",
    )
    right = np.isclose(got, expected, rtol=rtol, atol=atol, equal_nan=False)
    require(right, what, ("got", got), ("expected", expected), *details)


def sent(thing):
    """Return what arrives of an object that is sent by pickle.

    A copy of a class that is defined inside a function or an example, which pickle does not find.
    """
    cls = type(thing)
    if getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls:
        return pickle.loads(pickle.dumps(thing))
    return copy.deepcopy(thing)


def _entry(values, shape, place):
    value = np.broadcast_to(values, shape)[place]
    return f"{value:.10g}" if np.issubdtype(np.asarray(value).dtype, np.number) else repr(value)
