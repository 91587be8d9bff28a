"""Fusion of networks: what changes where clients cannot solve their problems to the end."""

from ..fusion.primal_dual_inexact import NetworkProblem
from ..rounds.model_kinds import TRAINED
from ._base_fusion import Fusion


class NetworkFusionMixin:
    """Left of Fusion: local models without second derivatives are admitted, and trained.

    Parameters
    ----------
    lam : "auto" or float
        Weight of the penalty, not negative: 0 gives every client its own model, a large value
        one model to all (of each component of the graph). No number suits all data, so "auto"
        looks for one as ``search`` says, and chooses what else is left open with it: ``refit``
        and ``alpha`` of "auto". The values tried go from 0 to where everything fuses, and
        others are tried around the best one. With networks it fits eight values to four fifths
        of each client's rows and takes the one of least loss on the others.
    solver : {"auto", "admm", "primal_dual", "pdmm"} or Solver
        Algorithm; all give the same solution. "admm" is the alternating direction method of
        multipliers with an automatic step and exact partitions, which needs fewest iterations.
        "primal_dual" passes messages along the edges, with exact partitions too; its
        iterations solve no linear system and are cheaper on large graphs. "auto" is
        "primal_dual" on graphs of more than 1500 nodes that are not complete, else "admm";
        "squared_l2" on the complete graph is solved as a smooth problem in the mean model.
        "pdmm" is the parallel direction method of multipliers, in which some of the clients
        may take part in a round. An object has options, as ``PDMM(participation=0.4)``, see
        ``skcfl.fusion.solvers``.
        Networks have "primal_dual" only, with inexact updates,
        :class:`~skcfl.fusion.solvers.InexactPrimalDual`.
    tol : float
        Relative duality gap to reach: the objective exceeds its minimum by less than
        ``tol`` times its value.
        With networks the residual, see the notes of :class:`GTV`; their iterations also end
        when clusters have settled.

    Attributes
    ----------
    labels_ : ndarray of shape (n_clients,)
        Cluster of each client, in the order of ``groups_``: clients with exactly equal models;
        with networks, those that flows below their capacity hold together. Clusters are
        numbered from 0 by decreasing number of clients, equal ones by their first client.
        ``sample_labels`` gives one label per row.
    dual_gap_ : float
        Bound of how much ``objective_`` exceeds the minimum, from a dual solution; infinite
        with networks: their problem has no dual.
    partition_optimal_ : bool
        True if ``labels_`` are proved to be the partition of the exact solution at ``lam_``.
        That is no proof that the clusters are real. False only says that no proof was found:
        then ``labels_`` are the equal models of the iterate that reached ``tol``, and another
        start or a smaller ``tol`` may show others. Always False with networks.
    history_ : dict of str to ndarray
        What happened at ``lam_`` from check to check: objective, duality gap (or, with
        networks, residual), number of clusters, numbers sent to and by the server.
    """

    _problems = {**Fusion._problems, TRAINED: NetworkProblem}
