"""FlexCFL (FedGroup) and FL+HC: groups of clients by the direction of their first update."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._checks import POSITIVE, Count
from ..base.everyday import everyday
from ..calls.first_order import LocalUpdate
from ..numerics.by_cluster import numbered_by_size
from ..rounds.alternate import common_model
from ..rounds.model_kinds import kind_of
from ..rounds.one_shot_clusters import Partition, heard, spread_labels
from ..rounds.round_options import make_options
from ..rounds.update_groups import directions_of, group_updates, nearest_direction
from ._base_once import ClustersOnce

# Clients that make the groups: so many times their number.
PRETRAIN_PER_GROUP = 20
# Rounds of FedAvg before FL+HC clusters: on MNIST, of Briggs et al.
WARM_UP = 10


@dataclass
class Directed(Partition):
    """A partition, and where newcomers begin and go: the start and the groups' directions."""

    start: np.ndarray
    directions: np.ndarray


@everyday
class FlexCFL(ClustersOnce):
    """Groups of clients by the direction of their first update, with any local model.

    For crisp clusters that are to be found before the training, from one update per client.
    Not where first updates do not show the differences, for want of rows: :class:`IFCA`
    revises its clusters in every round.

    Clients train some steps from one common start, the server clusters the directions in which
    they moved, and then trains a model for each group by federated averaging; groups stay. This
    is FlexCFL, first called FedGroup [1]_, and with ``embedding="flhc"`` the hierarchical
    clustering of updates of Briggs et al. [2]_ (FL+HC).

    Parameters
    ----------
    n_clusters : int or "auto"
        Number of groups. "auto" tries 1, 2, ... on three quarters of every client's rows, four
        times over (linear models with fewer than 500 rows in all: nine tenths, ten times), for as
        long as the loss on the others falls by more than its standard error and 1 %, then a model
        for each client; ``search_`` has what was tried. With `distance_threshold` the number is
        found.
    embedding : {"edc", "madc", "flhc"}
        What of the clients' updates is clustered. "edc": cosines with the first K singular
        directions of all updates, by k-means; "madc": mean absolute differences of the
        cosines with all others, by complete linkage; its costs grow with the cube of the
        clients; "flhc": the updates themselves after some rounds of FedAvg, by hierarchical
        clustering, the method of Briggs et al. [2]_.
    pretrain_steps : int
        Local steps from the common start that make an update.
    n_pretrain : "auto" or int
        How many clients, drawn at random, make the groups; the others are newcomers and go by
        direction. "auto" is 20 times the number of groups, of "flhc" all.
    warm_up : "auto" or int
        Rounds of FedAvg before the updates are made; "auto" is 10 for "flhc", else 0.
    linkage : {"ward", "complete", "average", "single"}
        Linkage of "flhc". "ward", which is with ``metric="euclidean"`` only, found more than
        the others on the clusters of :mod:`skcfl.datasets`.
    metric : {"euclidean", "manhattan", "cosine"}
        Distance of updates for "flhc".
    distance_threshold : float or None
        For "flhc": where its tree is cut, in medians of the distances between clients, so that
        units do not matter. None cuts at `n_clusters`.

    {attributes}

    See Also
    --------
    FlexCFLClassifier : The same with a linear classifier or a network.
    FlexCFLRegressor : The same with a linear regressor or a network.
    OneShot : Clusters of models trained to the end.
    CFL : Splits a cluster when the updates of its clients disagree.

    Notes
    -----
    A new client (``assign``, ``adapt``) trains as many steps from the same start and goes to the
    group whose mean update has the least angle with its own, as those clients of the fit do that
    were not drawn to make the groups. Where the number of groups turns out to be that of the
    clients, new ones go by loss.

    The published code clusters by a matrix of cosines of the last layer's updates; here all
    parameters count.

    References
    ----------
    .. [1] M. Duan, D. Liu, X. Ji, Y. Wu, L. Liang, X. Chen, Y. Tan, A. Ren. "Flexible Clustered
       Federated Learning for Client-Level Data Distribution Shift". IEEE Transactions on Parallel
       and Distributed Systems 33, 2022. arXiv:2108.09749.
    .. [2] C. Briggs, Z. Fan, P. Andras. "Federated learning with hierarchical clustering of local
       updates to improve training on non-IID data". IJCNN 2020. arXiv:2004.11791.

    Examples
    --------
    >>> from skcfl import FlexCFL
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> flex = FlexCFL(n_clusters=3, random_state=0).fit(data.X, data.y, groups=data.groups)
    >>> flex.cluster_sizes_
    array([4, 4, 4])
    >>> known = data.groups == "client00"
    >>> int(flex.assign(data.X[known], data.y[known])[0]) == int(flex.labels_[0])
    True
    """

    # New clients go by what the clusters were found by.
    _mixes_newcomers = False

    _parameter_constraints = {
        "embedding": [StrOptions({"edc", "madc", "flhc"})],
        "pretrain_steps": [Count(1)],
        "n_pretrain": [Count(1), StrOptions({"auto"})],
        "warm_up": [Count(0), StrOptions({"auto"})],
        "linkage": [StrOptions({"ward", "complete", "average", "single"})],
        "metric": [StrOptions({"euclidean", "manhattan", "cosine"})],
        "distance_threshold": [POSITIVE, None],
    }

    _: KW_ONLY
    embedding: Literal["edc", "madc", "flhc"] = "edc"
    pretrain_steps: int = 50
    n_pretrain: int | Literal["auto"] = "auto"
    warm_up: int | Literal["auto"] = "auto"
    linkage: Literal["ward", "complete", "average", "single"] = "ward"
    metric: Literal["euclidean", "manhattan", "cosine"] = "euclidean"
    distance_threshold: float | None = None
    max_iter: int | Literal["auto"] = "auto"

    def _finds_number(self):
        if self.distance_threshold is None:
            return False
        if self.embedding != "flhc" or self.n_clusters != "auto":
            raise ValueError(
                "distance_threshold cuts the tree of embedding='flhc' and finds the number of "
                f"clusters; got embedding={self.embedding!r}, n_clusters={self.n_clusters!r}."
            )
        return True

    def _solve_options(self, groups):
        if self.linkage == "ward" and self.metric != "euclidean":
            raise ValueError(
                f"linkage='ward' is with metric='euclidean' only, got metric={self.metric!r}."
            )
        return super()._solve_options(groups)

    def _evidence(self, pool, options):
        start = pool.start()
        n_rounds = self.warm_up
        if n_rounds == "auto":
            n_rounds = WARM_UP if self.embedding == "flhc" else 0
        if n_rounds:
            how = replace(options, max_iter=n_rounds, tol=0, polish=False)
            start = common_model(pool, how, start).cluster_params[0]
        updates, known = self._updates(pool, start, options), heard(pool)
        if not np.isfinite(updates[known]).all():
            raise ValueError(self._divergence(n_rounds))
        return start, updates, known

    def _updates(self, pool, start, options):
        """Updates of the clients in their first steps from the start."""
        if options.step_size is None:
            trained = kind_of(pool).first_steps(pool, start, self.pretrain_steps)
        else:
            how = options.step_size, options.optimizer, options.batch_size
            trained = pool.ask(LocalUpdate, start, self.pretrain_steps, *how, whole=True)
        return trained.astype(float) - start

    def _partition(self, pool, evidence, n_clusters, options):
        start, updates, known = evidence
        rng, mine = pool.random_state, np.flatnonzero(known)
        n_drawn = self.n_pretrain
        if n_drawn == "auto":
            everyone = self.embedding == "flhc"
            n_drawn = len(mine) if everyone else PRETRAIN_PER_GROUP * n_clusters
        first = mine
        if n_drawn < len(mine):
            first = np.sort(rng.choice(mine, max(n_drawn, n_clusters or 1), replace=False))
        how = self.embedding, rng, self.linkage, self.metric, self.distance_threshold
        groups = group_updates(updates[first], n_clusters, *how)
        labels = nearest_direction(updates[mine], directions_of(updates[first], groups))
        labels[np.isin(mine, first)] = groups
        labels = spread_labels(labels, known)
        labels = numbered_by_size(labels)[1]
        directions = directions_of(updates[known], labels[known])
        theta = (start + directions).astype(pool.dtype)
        return Directed(labels, theta, start, directions)

    def _clusters_of(self, pool):
        if self._found_by is None:  # a model for each client
            return super()._clusters_of(pool)
        updates = self._updates(pool, self._found_by.start, make_options(self, pool))
        return nearest_direction(updates, self._found_by.directions)
