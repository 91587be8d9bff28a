"""Constraints of the parameters that solvers of fusion problems have in common."""

from numbers import Real

from sklearn.utils._param_validation import Interval

from .._checks import MOST, Count

LOOP = {
    "lam": [Interval(Real, 0, MOST, closed="right")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "max_iter": [Count()],
    "verbose": ["verbose"],
}
