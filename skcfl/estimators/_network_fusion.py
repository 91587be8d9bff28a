"""Fusion of networks: what changes where clients cannot solve their problems to the end."""

from functools import partial

import numpy as np

from ..fusion.path import fusion_path
from ..fusion.primal_dual_inexact import N_LAMS, NetworkProblem, primal_dual_inexact
from ._base_fusion import LAM, Fusion

__all__ = ["NetworkFusionMixin"]

# Steps of Adam after which the networks of clients are compared, from one start.
TRAINING = {"steps": 100, "step_size": 0.005, "optimizer": "adam"}


class NetworkFusionMixin:
    """Left of Fusion: local models without second derivatives are admitted, and trained."""

    _doc_parameters = {
        "lam": f"""\
{LAM} by ``criterion``, and chooses what else is left open with it: ``refit``
            and ``alpha`` of "auto". The values tried go from 0 to where everything fuses, and
            others are tried around the best one. With networks it fits eight values to four fifths
            of each client's rows and takes the one of least loss on the others.""",
        "solver": f"""\
{Fusion._doc_parameters["solver"]}
            Networks have "primal_dual" only, with inexact updates.""",
        "solver_options": f"""\
{Fusion._doc_parameters["solver_options"]}
            For networks see :func:`skcfl.fusion.primal_dual_inexact.primal_dual_inexact`.""",
        "tol": """\
            float
            Relative duality gap to reach: the objective exceeds its minimum by less than
            ``tol`` times its value. With networks the residual, see the notes of :class:`GTV`;
            their iterations also end when clusters have settled.""",
    }

    _doc_attributes = {
        "labels_": """\
            ndarray of shape (n_clients,)
            Cluster of each client, in the order of ``groups_``: clients whose models are equal,
            not nearly so; with networks, those that flows below their capacity hold together.
            Clusters are numbered from 0 by decreasing number of clients, equal ones by their
            first client. ``sample_labels`` gives one label a row.""",
        "dual_gap_": """\
            float
            Bound of how much ``objective_`` exceeds the minimum, from a dual solution; infinite
            with networks, whose problem has none.""",
        "partition_certified_": """\
            bool
            Whether ``labels_`` are proved to be the clusters of an exact solution. False only
            says that no proof was found: then ``labels_`` are the equal models of the iterate
            that reached ``tol``, and another start or a smaller ``tol`` may show others. Always
            False with networks.""",
        "history_": """\
            dict of str to ndarray
            What happened at ``lam_`` from check to check: objective, duality gap (or, with
            networks, residual), number of clusters, numbers sent to and by the server.""",
    }

    def _problem(self, pool, groups, graph=None, penalty=None):
        """The fusion problem of these clients."""
        if pool.second_order:
            return super()._problem(pool, groups, graph, penalty)
        graph = self._make_graph(pool, groups, graph)
        return NetworkProblem(pool, graph, self._make_penalty(penalty))

    def _algorithm(self, problem):
        """The solver that is asked for; networks have one."""
        if problem.pool.second_order:
            return super()._algorithm(problem)
        if self.solver not in ("auto", "primal_dual"):
            raise ValueError(
                f"solver={self.solver!r} needs exact proximal points, which "
                f"{problem.pool.model_name} does not have. Use solver='primal_dual'."
            )
        return primal_dual_inexact

    def _best_partition(self, problem):
        """The lam of the best partition by the information criterion."""
        if problem.pool.second_order:
            return super()._best_partition(problem)
        raise ValueError(
            f"criterion='bic' needs a convex problem, which that of {problem.pool.model_name} is "
            "not. Use criterion='held_out'."
        )

    def _fused_from(self, problem, lams):
        """The value of a grid from which on everything is fused; of networks none is known."""
        return super()._fused_from(problem, lams) if problem.pool.second_order else np.inf

    def _roughly(self, problem, lam, state):
        """Result at a lam of the search; networks start anew at each, as fits do."""
        if problem.pool.second_order:
            return super()._roughly(problem, lam, state)
        return self._solve_at(problem, lam), None

    def _solve_apart(self, problem):
        """Each client's own model, the solution at lam = 0."""
        if problem.pool.second_order:
            return super()._solve_apart(problem)
        return self._solver(problem)(problem, 0.0)[0]

    def _refit(self, problem, labels, theta):
        """Each cluster's model on the pooled rows of its clients."""
        if problem.pool.second_order:
            return super()._refit(problem, labels, theta)
        return problem.refit(labels, theta)

    def _neighbourhood(self, pool):
        """Where clients lie, for the graph of nearest neighbours: their models after training."""
        if pool.second_order:
            return super()._neighbourhood(pool)
        start = np.tile(pool.start(), (pool.n_clients, 1))
        return pool.local_update(start, **TRAINING).astype(float)

    def _path(self, problem, lams):
        """FusionPath over ascending `lams`; networks start anew at each, as fits do."""
        if problem.pool.second_order:
            return super()._path(problem, lams)
        refit = partial(self._refit, problem) if self.refit is True else None
        return fusion_path(
            problem, lams, lambda lam, state: (self._solve_at(problem, lam), None), refit
        )

    def _lam_grid(self, problem, n_lams, ratio=None, rough=False):
        """Values of lam for a path."""
        if problem.pool.second_order:
            return super()._lam_grid(problem, n_lams, ratio, rough)
        return problem.grid(min(n_lams, N_LAMS) if rough else n_lams, ratio)

    def _lam_bounds(self, problem):
        """Bounds of the lam where everything fuses."""
        if problem.pool.second_order:
            return super()._lam_bounds(problem)
        raise ValueError(
            "lam_max is known of convex problems, and that of "
            f"{problem.pool.model_name} is not. lam_path has a grid of values for it."
        )
