"""CFL: clusters are split in two when their clients' updates disagree."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, replace
from numbers import Real
from typing import Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._checks import NOT_NEGATIVE, Count, Interval
from ..base.everyday import everyday
from ..rounds.alternate import alternate, client_weights
from ..rounds.local_training import solve_local
from ..rounds.record_options import Record
from ..rounds.round_options import ROUNDS, make_options
from ..rounds.splits import Bipartition, Node
from ..rounds.training_options import Training
from ..search.n_clusters import find_n_clusters
from ._by_rounds import Averaging


@everyday
class CFL(Averaging):
    """Clustered federated learning by splits of clusters (CFL), with any local model.

    For a hierarchy of clusters of unknown number, among clients with many rows each. Not for
    few rows or few rounds, where it splits clients that do not differ, or none that do:
    :class:`IFCA` with ``n_clusters="auto"`` judges the number by rows held out.

    All clients begin in one cluster and train its model. When a cluster model has converged, but
    the updates of single clients are still long, the cluster is split in two by the cosines of
    their updates, and both go on from the same model. The number of clusters is found, and the
    splits form a tree [1]_.

    Parameters
    ----------
    eps1 : float
        A cluster model has converged when the mean of its clients' updates is shorter than
        this part of the longest update of the first round, or gets no shorter, as under Adam.
    eps2 : "auto" or float
        A converged cluster is split when an update of its clients is longer than this part of
        the longest update of the first round. "auto" tries numbers of splits on held-out rows,
        for ``max_iter`` rounds each, and a model for each client, see ``search_``.
    min_round : int
        Rounds before the first split; 20 in the published code.
    gamma_max : float or None
        The paper's test before a split, which the published code leaves out: with the largest
        cosine s of two clients of different sides, ``sqrt((1 - s) / 2)`` has to be larger.
        None makes no such test.

    Attributes
    ----------
    tree_ : list of dict
        The splits: one entry per node, the root with all clients first, with "clients"
        (positions in ``groups_``), "parent" (-1: none), "children" (two nodes, or none), and
        of nodes that were split "round", "mean_norm" and "max_norm" (relative to the first
        round), and "similarity", the largest cosine of two clients of different sides. If
        ``eps2="auto"`` finds that each client needs its own model, the children of the root
        are one client each.
    search_ : dict of str to ndarray
        With ``eps2="auto"``, one entry for each number of clusters tried, that of all clients
        for a model each; columns are those of :class:`IFCA`.
    suspicion_

    See Also
    --------
    CFLClassifier : The same with a linear classifier or a network.
    CFLRegressor : The same with a linear regressor or a network.
    FlexCFL : Clusters the first updates, once.

    Notes
    -----
    The thresholds of the published code (.4 and 1.6) are norms of updates of one network. Here
    they are relative to the first round, so that they carry over to other models and units. No
    ``eps2`` is a test of significance: with few rows per client, or on a continuum of clients,
    updates stay long when all is learned, and clusters are split until two clients are left. By
    default rows are therefore held out, as in ``IFCA(n_clusters="auto")``: K clusters are the tree
    after K - 1 splits, each of the cluster with the largest expected fall of the objective, and
    one model per client is a candidate too. Nothing is joined again.

    With numbers for networks, how long updates of clients that agree stay, next to the first
    round, depends on loss and optimizer. Under Adam ``eps1=0.2`` with ``eps2=0.93`` (regressions)
    or 0.97 (classifications) found the clusters of federations with 60 rows a client. Under "sgd"
    with a ``step_size``, as in the paper, ``eps1=0.2`` and ``eps2=0.4`` found those of
    classifications, where it is .36 (of clients that do not agree .59), ``eps1=0.05`` and
    ``eps2=0.12`` those of regressions (.06 and .16). Of linear models with 200 rows a client it is
    .26 and .38. With fewer rows they are longer, in proportion to one over the root of the rows.

    A client that is silent, or not drawn, counts by its last update, once it has sent one since
    the last split of its cluster; one that is first heard when there are several clusters takes
    the model of least loss, as new ones do (``assign``, ``adapt``).

    References
    ----------
    .. [1] F. Sattler, K.-R. Mueller, W. Samek. "Clustered Federated Learning: Model-Agnostic
       Distributed Multitask Optimization under Privacy Constraints". IEEE Transactions on Neural
       Networks and Learning Systems 32, 2021. arXiv:1910.01991.

    Examples
    --------
    >>> from skcfl import CFL
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> cfl = CFL(random_state=0).fit(data.X, data.y, groups=data.groups)
    >>> cfl.n_clusters_
    3
    >>> [len(node["clients"]) for node in cfl.tree_]
    [12, 8, 4, 4, 4]
    """

    _parameter_constraints = {
        "eps1": [NOT_NEGATIVE],
        "eps2": [NOT_NEGATIVE, StrOptions({"auto"})],
        "min_round": [Count(0)],
        "gamma_max": [Interval(Real, 0, 1, closed="both"), None],
        "record": [Record, None],
    }
    _option_classes = {"training": Training, "record": Record}
    _option_names = {"training": ROUNDS, "record": ("true_labels",)}

    _: KW_ONLY
    eps1: float = 0.1
    eps2: float | Literal["auto"] = "auto"
    min_round: int = 0
    gamma_max: float | None = None
    record: Record | None = None

    def _solve_options(self, groups):
        return {"truth": self._option("record").labels(groups)}

    def _solve(self, pool, truth):
        options = make_options(self, pool)
        if options.averaging == "gradient" and options.batch_size is not None:
            raise ValueError(
                "training: batch_size is of local steps and needs averaging='model' here; with "
                f"averaging='gradient' clients send gradients of all rows. Got "
                f"batch_size={options.batch_size!r}."
            )
        options = replace(options, empty_cluster="keep")
        if self.eps2 != "auto":
            return self._fit(pool, replace(options, truth=truth))[0]
        known = {}

        def fit(part, n_clusters, start, candidates, drawn):
            how = replace(options, truth=truth if part.n_clients == pool.n_clients else None)
            if candidates is None:
                # As many rounds as a fold has had.
                how = replace(how, max_iter=n_clusters * how.max_iter)
                return self._fit(part, how, n_clusters)[0]
            # A fold's clusters are those of fewer, split further.
            fewer = [K for fold, K in known if fold is candidates and K < n_clusters]
            before = known[candidates, max(fewer)] if fewer else None
            known[candidates, n_clusters] = self._fit(part, how, n_clusters, before)
            return known[candidates, n_clusters][0]

        def local(part):
            result, n = solve_local(part, options), part.n_clients
            root = Node(np.arange(n), children=tuple(range(1, n + 1)))
            leaves = (Node(np.array([i]), 0) for i in range(n))
            result.extra["tree"] = [asdict(node) for node in (root, *leaves)]
            return result

        return find_n_clusters(
            pool, fit, pool.random_state, local=local, robust=options.aggregator is not None
        )

    def _fit(self, pool, options, most=None, before=None):
        """Splits by eps2, or up to a number of clusters; the result and its rule."""
        weights = client_weights(pool, options)
        min_round = self.min_round if before is None else 0
        rule = Bipartition(
            weights, self.eps1, self.eps2, min_round, self.gamma_max, options.aggregator, most
        )
        theta, labels = pool.start()[None], None
        if before is not None:
            fewer, earlier = before
            theta, labels = fewer.cluster_params, fewer.labels
            rule.resume(labels, earlier)
        result = alternate(pool, theta, options, pool.random_state, rule=rule, first=labels)
        result.extra["tree"] = [asdict(node) for node in rule.tree]
        return result, rule
