"""Fusion of networks: what changes where clients cannot solve their problems to the end."""

from __future__ import annotations

from ..fusion.primal_dual_inexact import NetworkProblem
from ..rounds.model_kinds import TRAINED
from ._base_fusion import LAM, Fusion, FusionMixin

__all__ = ["NetworkFusionMixin"]


class NetworkFusionMixin:
    """Left of Fusion: local models without second derivatives are admitted, and trained."""

    _problems = {**Fusion._problems, TRAINED: NetworkProblem}

    _doc_parameters = {
        "lam": f"""\
{LAM} as ``search`` says, and chooses what else is left open with it: ``refit``
            and ``alpha`` of "auto". The values tried go from 0 to where everything fuses, and
            others are tried around the best one. With networks it fits eight values to four fifths
            of each client's rows and takes the one of least loss on the others.""",
        "solver": f"""\
{Fusion._doc_parameters["solver"]}
            Networks have "primal_dual" only, with inexact updates,
            :class:`~skcfl.fusion.solvers.InexactPrimalDual`.""",
        "tol": f"""\
{FusionMixin._doc_parameters["tol"]}
            With networks the residual, see the notes of :class:`GTV`; their iterations also end
            when clusters have settled.""",
    }

    _doc_attributes = {
        "labels_": """\
            ndarray of shape (n_clients,)
            Cluster of each client, in the order of ``groups_``: clients with exactly equal models;
            with networks, those that flows below their capacity hold together. Clusters are
            numbered from 0 by decreasing number of clients, equal ones by their first client.
            ``sample_labels`` gives one label per row.""",
        "dual_gap_": """\
            float
            Bound of how much ``objective_`` exceeds the minimum, from a dual solution; infinite
            with networks: their problem has no dual.""",
        "partition_optimal_": """\
            bool
            True if ``labels_`` are proved to be the partition of the exact solution at ``lam_``.
            That is no proof that the clusters are real. False only says that no proof was found:
            then ``labels_`` are the equal models of the iterate that reached ``tol``, and another
            start or a smaller ``tol`` may show others. Always False with networks.""",
        "history_": """\
            dict of str to ndarray
            What happened at ``lam_`` from check to check: objective, duality gap (or, with
            networks, residual), number of clusters, numbers sent to and by the server.""",
    }
