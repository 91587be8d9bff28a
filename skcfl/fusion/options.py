"""What solvers of fusion problems declare: options, what they are told, where they are best."""

from numbers import Real

from sklearn.utils._param_validation import Interval, validate_params

from .._checks import MOST, Count

# Constraints of the parameters that all have in common.
LOOP = {
    "lam": [Interval(Real, 0, MOST, closed="right")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "max_iter": [Count()],
}


def solver(options=None, *, told=None, best_for=None):
    """Declare a solver ``solve(problem, lam, *, tol, max_iter, state, ...)``.

    Parameters
    ----------
    options : dict, default=None
        Constraints of the parameters that users may give, by name.
    told : dict, default=None
        Constraints of those that an estimator gives: ``certify``, ``contract_from``, ``rng``.
    best_for : callable, default=None
        Whether this solver is the fastest for a problem; None is for any that no other claims.

    Returns
    -------
    declare : callable
        Decorator: parameters are validated, and the solver has ``options``, ``told`` and
        ``best_for``.
    """
    options, told = options or {}, told or {}

    def declare(solve):
        constraints = {**LOOP, **told, **options}
        solve = validate_params(constraints, prefer_skip_nested_validation=True)(solve)
        solve.options, solve.told = frozenset(options), frozenset(told)
        solve.best_for = best_for or (lambda problem: True)
        return solve

    return declare
