"""Constraints of the parameters that solvers of fusion problems have in common."""

from numbers import Real

from sklearn.utils._param_validation import Interval

from .._checks import LEAST, MOST, Count

__all__ = ["LOOP", "POSITIVE"]

#: A number that can be multiplied and divided by.
POSITIVE = Interval(Real, LEAST, MOST, closed="both")

LOOP = {
    "lam": [Interval(Real, 0, MOST, closed="right")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "max_iter": [Count()],
    "verbose": ["verbose"],
}
