"""k-FED: clusters of rows in one exchange."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

from sklearn.utils._param_validation import StrOptions

from .._checks import Count
from .._option_objects import parameters
from .._typing import RandomState
from ..base.clustered_rows import ClusteredRows
from ..calls.descriptions import LocalCentres
from ..rounds.merged_centres import merge_centres


@parameters
class KFED(ClusteredRows):
    """Clusters of rows that belong to clients, in one exchange after hello (k-FED).

    For clusters of rows that may not leave their clients, if one exchange has to suffice. Not for
    clusters of clients (:class:`IFCA`, :class:`PACFL`), nor for rows in one place
    (:class:`sklearn.cluster.KMeans`).

    Every client clusters its rows and sends the centres; the server clusters the centres, and each
    row belongs to the cluster of its client's centre nearest to it [1]_. If each client has rows
    of a few clusters only, this needs less separation than k-means on all rows.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters of all rows, k.
    n_local : int or "auto", default="auto"
        Number of clusters that each client looks for in its own rows, k'. The paper's guarantee
        is for the true number, at most the root of k. "auto" looks for k in each client: a
        cluster that is cut to pieces by a client is put together by the server.
    group_col : str, int or None, default=None
        Column of X that holds the client ids, by name or position. None: ids come by ``groups=``.
    n_jobs : int or None, default=None
        Threads over blocks of clients.
    random_state : int, RandomState instance or None, default=None
        Seed of the starts.
    verbose : int, default=0
        Larger than 0 prints a line at the end.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Cluster of each row, numbered from 0 by decreasing weight of the rows. Not after
        ``fit_federation``: the rows are elsewhere, see ``predict_federation``.
    client_labels_ : ndarray of shape (n_clients,)
        Cluster of most rows of each client, in the order of ``groups_``; -1 for clients that did
        not answer or have rows of no weight.
    groups_ : ndarray of shape (n_clients,)
        The client ids, sorted; ``[0]`` after a fit without ids.
    cluster_centers_ : ndarray of shape (n_clusters_, n_features)
        Means of the clusters' rows.
    cluster_sizes_ : ndarray of shape (n_clusters_,)
        Total weight of the clusters' rows, their number without weights.
    local_centers_ : ndarray of shape (n_clients, n_local, n_features)
        Centres that the clients have sent.
    local_labels_ : ndarray of shape (n_clients, n_local)
        Clusters of these centres; -1 where a client has fewer.
    n_clusters_ : int
        Number of clusters that have a row.
    floats_up_, floats_down_, calls_, client_calls_ : int
        Numbers sent to and by the server, exchanges, and clients asked in all of them.
    wire_bytes_ : tuple of int
        Bytes ``(up, down)`` of all messages that travelled in the fit; zero in one process.
    missing_clients_, rejected_clients_ : ndarray
        Ids of clients that did not answer, and of those that sent numbers that are not finite.
    absences_ : list of dict
        When a client did not answer, from its first silence to its next answer.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns of X, if all are strings.

    See Also
    --------
    OneShot : Clusters of clients by their models.
    ConvexClustering : Clusters of points, their number found.

    Notes
    -----
    Clients cluster by the method of Awasthi and Sheffet: k-means among the rows' first singular
    directions, then Lloyd's iteration from the means of rows that are much nearer to one centre
    than to all others. The server begins with the centres of one client (under "auto" with the
    centre of most rows) and adds the farthest until there are k, so that a single row far from all
    others may become a cluster.

    A centre of one row is that row: a client of few rows shows them. Places of a federation may
    refuse for such clients (:class:`~skcfl.federation.SitePolicy`, ``min_rows``).

    As a method for clients, by ``client_labels_``, it sees features only: of no use where clusters
    differ in the target given the features.

    References
    ----------
    .. [1] D. K. Dennis, T. Li, V. Smith. "Heterogeneity for the Win: One-Shot Federated
       Clustering". ICML 2021. arXiv:2103.00697.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import KFED
    >>> X = np.array([[0.0], [0.1], [5.0], [5.1], [5.2], [9.0], [9.1], [0.2]])
    >>> site = ["a", "a", "a", "a", "b", "b", "b", "c"]
    >>> kfed = KFED(3, n_local=2, random_state=0).fit(X, groups=site)
    >>> kfed.labels_
    array([0, 0, 1, 1, 1, 2, 2, 0])
    >>> kfed.predict([[8.0]])
    array([2])
    """

    _parameter_constraints = {
        "n_clusters": [Count(1)],
        "n_local": [Count(1), StrOptions({"auto"})],
    }

    n_clusters: int = 8
    _: KW_ONLY
    n_local: int | Literal["auto"] = "auto"
    group_col: str | int | None = None
    n_jobs: int | None = None
    random_state: RandomState = None
    verbose: int = 0

    def _centres(self, pool):
        given = self.n_local != "auto"
        return pool.ask(
            LocalCentres, min(self.n_local, self.n_clusters) if given else self.n_clusters
        )

    def _merge(self, centres, counts):
        return merge_centres(centres, counts, self.n_clusters, self.n_local != "auto")
