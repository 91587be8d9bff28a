"""Minima by CLARABEL, to ten digits."""

import cvxpy as cp


def cvxpy_minimum(objective):
    return cp.Problem(cp.Minimize(objective)).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
    )
