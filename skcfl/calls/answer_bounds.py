"""Bounds of answers: what a call may be answered with, whoever answers.

A place in another process may have another version, a defect, or bad intentions.  An answer that
no honest place could give is no answer: the place is lost, with a reason, and the fit goes on
without it.  False answers that an honest client could give, such as a wrong gradient, are left to
robust aggregation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Relative rounding of sums of weights and of shares that different places may compute otherwise.
SLACK = 1e-6
#: Digests are integers below it.
MOST_DIGEST = 2**53
#: Kinds of dtypes of answers that are no floats, and the types of floats.
KINDS = {"i": "iu", "b": "b"}
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class OutOfBounds(RuntimeError):
    """Raised where an answer is not one that an honest place could give."""


@dataclass(frozen=True)
class Asked:
    """Values that a bound of an answer may depend on.

    Attributes
    ----------
    arguments : dict
        Arguments of the call.
    n_models : int
        Number of models.
    weights : ndarray of shape (n_clients,)
        Total weight of each client that was asked.
    """

    arguments: dict[str, Any]
    n_models: int
    weights: np.ndarray


@dataclass(frozen=True)
class Bound:
    """Test of an answer.

    Attributes
    ----------
    text : str
        Text of the bound, for messages.
    holds : callable
        ``holds(values, asked)``: whether an array is allowed. NaN is not out of bounds: clients
        with values that are not finite are rejected, where the call needs finite ones.
    kind : {"f", "i", "b"}, default="f"
        Floats, integers or booleans.
    """

    text: str
    holds: Callable[[np.ndarray, Asked], bool] = lambda values, asked: True
    kind: str = "f"

    def has_type(self, dtype):
        """True if an array of a dtype may be such an answer."""
        return dtype in FLOATS if self.kind == "f" else dtype.kind in KINDS[self.kind]


def not_negative(values, asked):
    """True if no entry is negative."""
    return not (values < 0).any()


def sum_to(values, most):
    """True if entries are not negative, and sum to no more than something along the last axis."""
    return not_negative(values, None) and not (values.sum(axis=-1) > most * (1 + SLACK)).any()


def _are_labels(values, asked):
    """True if clients have chosen one of the models, and those that are held to one that."""
    fixed = asked.arguments.get("fixed")
    within = bool(((values >= 0) & (values < asked.n_models)).all())
    return within and (fixed is None or bool(((fixed < 0) | (values == fixed)).all()))


ANY = Bound("floats")
NOT_NEGATIVE = Bound("not negative", not_negative)
LABELS = Bound("the number of a model for each client", _are_labels, "i")
FLAGS = Bound("booleans", kind="b")
UNIT = Bound("between -1 and 1", lambda v, asked: not (np.abs(v) > 1 + SLACK).any())
SHARES = Bound("shares that sum to no more than 1", lambda v, asked: sum_to(v, 1.0))
COUNTS = Bound(
    "weights that sum to no more than those of each client's rows",
    lambda v, asked: sum_to(v, asked.weights),
)
CLIENTS = Bound(
    "numbers of clients that sum to no more than there are",
    lambda v, asked: sum_to(v, len(asked.weights)),
)
TOTAL = Bound(
    "no more than the total weight of the rows",
    lambda v, asked: sum_to(np.atleast_1d(v), asked.weights.sum()),
)
DIGESTS = Bound(
    "integers of 53 bits",
    lambda v, asked: not ((v < 0) | (v > MOST_DIGEST) | (v != np.floor(v))).any(),
)
