"""Fits of convex fusion: warm starts, and the fit that a search has chosen."""

from types import SimpleNamespace

import numpy as np
from fusion_problems import make_problem

from skcfl.fusion.admm import admm
from skcfl.fusion.convex_fits import ConvexFamily, ConvexFits
from skcfl.fusion.problem import FusionProblem
from skcfl.graphs import complete_graph
from skcfl.penalties import L2


def problem_of(pool):
    return FusionProblem(pool, complete_graph(pool.n_clients), L2())


def test_a_warm_start_is_of_the_same_clients():
    seen = []

    class Fits(ConvexFits):
        def run(self, problem):
            def solve(problem, lam, state=None):
                seen.append(state)
                return admm(problem, lam, state=state, max_iter=50)

            solve.func = admm
            return solve

    problem, fits = make_problem("squared_error", 4), Fits("admm", 1e-6, 50)
    _, last = fits.at(problem, 0.1, np.array(list("abcd")))
    for ids, warm in (("abcd", True), ("abce", False)):
        fits.at(problem, 0.2, np.array(list(ids)), last)
        assert (seen[-1] is not None) == warm


def test_what_is_fused_stays_so_under_another_local_penalty():
    """Where everything fuses depends on it: here twice as far under the chosen one."""
    on_all = make_problem("squared_error", 5, alpha=1e-3, seed=1)
    pool = on_all.pool
    lams = np.array([1.01 * on_all.bounds()[1]])
    fits = ConvexFits("auto", 1e-6, 500)
    family = ConvexFamily(fits, problem_of, on_all, "complete", "l2", lams, (False,), True)
    chosen = SimpleNamespace(lam=family.fused, alpha=5.0)
    problem, lam = family.best(pool, chosen)
    assert lam > family.fused
    assert fits.at(problem, lam)[0].labels.max() == 0
    assert fits.at(problem, family.fused)[0].labels.max() > 0
