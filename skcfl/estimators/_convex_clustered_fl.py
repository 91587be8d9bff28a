"""Convex clustering of clients: fusion on the complete graph."""

from ..base.everyday import everyday
from ._base_fusion import Fusion


@everyday(networks=False, graph="auto", penalty="auto")
class ConvexClusteredFL(Fusion):
    r"""Convex clustering federated learning with any convex local model.

    For an unknown number of clusters of clients, if a proof of the clusters is wanted;
    with the squared penalty also for clients that differ by degrees. Not for networks
    (:class:`GTV`, :class:`FPFC`, :class:`IFCA`), and not for thousands of clients on the
    complete graph, with more pairs than fit in memory (``graph="knn"``).

    .. math:: \min_{x_1, \dots, x_N} \; \sum_i f_i(x_i)
              + \lambda \sum_{i<j} w_{ij} \|x_i - x_j\|

    Every client has a model :math:`x_i`, and the norms make models of alike clients equal: the
    number of clusters is found and not given (Armacki et al. [1]_).  :math:`f_i` is the mean
    loss of client i's rows plus its local penalty, so that every client counts once, whatever
    its number of rows.  The problem is convex: the fit does not depend on a start, and comes
    with a bound of its error, ``dual_gap_``, and often with a proof that its clusters are the
    exact solution's at ``lam_``, ``partition_optimal_``.  That is no proof that the clusters are
    real.

    The complete graph is the paper's, and the default of the generic class.  With few rows per
    client clusters that are there may be a solution on it for no ``lam``; ``graph="auto"``, the
    default of the everyday classes, also tries the graph of nearest neighbours.

    {parameters}

    {attributes}

    See Also
    --------
    ConvexClusteredFLClassifier : The same with a linear classifier.
    ConvexClusteredFLRegressor : The same with a linear regressor.
    ConvexClustering : Convex clustering of points.
    IFCA : Number of clusters given.

    Notes
    -----
    Each pair counts once and nothing is divided by the number of clients N.  The paper's
    problem (3) sums over ordered pairs and divides by N: its lambda is ``lam / (2 N)``; in its
    (14), without the division, ``lam / 2``.  With ``penalty="squared_l2"`` :math:`\phi(z) =
    \|z\|^2 / 2`, and the problem is the paper's (4), whose gamma, over ordered pairs and with
    the division by N, is ``lam / (4 N)``; it draws models together but makes none equal.

    ``lam="auto"`` goes by rows held out inside the clients: of a fifth or a third of every
    client's rows in turn, the loss under models fitted to the others.  What competes is exactly
    what may be returned, penalised and refitted models, from one per client to one for all.  Of
    the members within a standard error of the best (of the difference, over clients; one and a
    quarter for one model for all, two for clusters that are the same in all folds) the one of
    fewest models is taken, so that chance forms no clusters and hides none.

    ``search=LamSearch("bic")`` goes by *partitions* instead.  It judges every one met on a path of
    ``lam`` by its refitted models, each cluster's best model on the pooled rows of its clients,
    with a Bayesian information criterion:

    .. math:: D\Bigl(\sum_k \frac{n_k L_k + L_k^0}{n_k + 1}\Bigr) + \sum_k p_k \log(1 + n_k)
              + p \log \sum_k \frac{n_k}{1 + n_k} + 2 \log S(N, K) + 2 \log K

    Cluster k of the K has :math:`n_k` rows (the sum of their weights), of total loss :math:`L_k`
    under its model and :math:`L_k^0` under the common model of all clients; :math:`p_k` is the
    number p of parameters, or of rows if there are fewer.  The deviance D is twice the loss, or
    :math:`(n - p) \log` of it where the size of the noise is unknown (squared error and Huber).
    With fewer rows per client than parameters it asks for one cluster.  The first terms are the
    evidence of the models under priors with the information of one row about a common model [2]_,
    so that a client which interpolates its
    few rows gains nothing by it.  The last say that the :math:`S(N, K)` partitions of N clients
    into K clusters are equally probable beforehand, and K with probability like 1/K.  Clients
    send their losses only.  For "squared_hinge", which is no likelihood, the criterion is a rule
    of thumb; where prediction is the aim choose ``lam`` by cross-validation.

    References
    ----------
    .. [1] A. Armacki, D. Bajovic, D. Jakovetic, S. Kar. "Personalized Federated Learning via
       Convex Clustering". IEEE International Smart Cities Conference, 2022.
    .. [2] R. E. Kass, L. Wasserman. "A Reference Bayesian Test for Nested Hypotheses and its
       Relationship to the Schwarz Criterion". Journal of the American Statistical
       Association 90, 1995.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFL, LamSearch
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.models import LinearModel
    >>> data = make_clustered_regression(n_clients=12, n_clusters=2, random_state=0)
    >>> search = LamSearch("bic")
    >>> fusion = ConvexClusteredFL(LinearModel(loss="huber"), graph="knn", search=search)
    >>> fusion.fit(data.X, data.y, groups=data.groups).cluster_sizes_
    array([6, 6])
    """
