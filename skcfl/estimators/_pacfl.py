"""PACFL: clusters of clients with rows that span similar subspaces."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._checks import POSITIVE, Count
from ..base.everyday import everyday
from ..calls.descriptions import Subspaces
from ..numerics.by_cluster import numbered_by_size
from ..rounds.one_shot_clusters import Partition, heard, spread_labels
from ..rounds.subspaces import (
    ANGLES,
    angle_clusters,
    joint_dimension,
    orthonormal,
    principal_angles,
)
from ._base_once import ClustersOnce


@dataclass
class Spanned(Partition):
    """A partition, and the clients' subspaces in a space of `span`, by which newcomers go."""

    bases: np.ndarray
    dims: np.ndarray
    span: int


@everyday
class PACFL(ClustersOnce):
    """Clusters by principal angles between the clients' subspaces (PACFL), with any local model.

    For clusters that differ in their features, such as rotated images, found before any
    training. Not for clusters with the same features and other targets, such as swapped
    labels, which it cannot see (:class:`IFCA`).

    Before any training each client sends the first left singular vectors of its rows, class by
    class; the server clusters the clients by the principal angles between their subspaces, and
    trains a model for each cluster by federated averaging [1]_.

    Parameters
    ----------
    n_clusters : int or "auto"
        Number of clusters. "auto" tries 1, 2, ... on three quarters of every client's rows, four
        times over (linear models with fewer than 500 rows in all: nine tenths, ten times), for as
        long as the loss on the others falls by more than its standard error and 1 %, then a model
        for each client; ``search_`` has what was tried. With `distance_threshold` the number is
        found.
    n_vectors : int
        Singular vectors that a client sends of each of its classes (of all its rows, of
        regressions). More span so much that the smallest angles vanish; so many that they
        would span all features are cut to one less than the features, over all classes, or of
        all rows together where there are not more features than classes. Features that others
        determine (copies, sums, constants) do not count.
    angle : {"smallest", "mean", "largest"}
        Which of the principal angles of two clients' subspaces, in degrees, is their distance.
        "smallest" is the paper's first choice; the mean separated rotated digits for any
        number of vectors, the smallest for few only.
    linkage : {"average", "complete", "single"}
        Linkage of the hierarchical clustering.
    distance_threshold : float or None
        Degrees at which the tree is cut, so that the number of clusters is found; None cuts
        at `n_clusters`.

    {attributes}

    See Also
    --------
    PACFLClassifier : The same with a linear classifier or a network.
    PACFLRegressor : The same with a linear regressor or a network.
    FlexCFL : Clusters by the clients' first updates.

    Notes
    -----
    It sees the features only: it separates clients with images that are rotated in different ways,
    but not clients that hold the same images under swapped labels, nor clusters of regressions
    with the same features. A few directions of a client's rows leave the client. Rows are not
    centred: with ``standardize=False`` means far from zero are a direction of all clients.

    The published code takes the least entry of ``arccos(U_i' U_j)``, with neither the singular
    values of that product nor absolute values: it depends on the arbitrary signs and order of
    singular vectors (the same subspace in another basis is at 41 degrees from itself). Here angles
    are the principal ones, those of ``scipy.linalg.subspace_angles``.

    ``assign`` needs no targets: without `y` the directions of all rows of a new client are
    compared with those of the clusters' clients.

    References
    ----------
    .. [1] S. Vahidian, M. Morafah, W. Wang, V. Kungurtsev, C. Chen, M. Shah, B. Lin. "Efficient
       Distribution Similarity Identification in Clustered Federated Learning via Principal Angles
       between Client Data Subspaces". AAAI 2023. arXiv:2209.10526.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.metrics import adjusted_rand_score
    >>> from skcfl import PACFL, Training
    >>> from skcfl.datasets import partition_rotations
    >>> from skcfl.models import LinearModel
    >>> images, digits = load_digits(return_X_y=True)
    >>> data = partition_rotations(images / 16, digits, random_state=0)
    >>> model = LinearModel("log_loss", standardize=False)
    >>> brief = Training(polish=False)
    >>> pacfl = PACFL(model, n_clusters=4, training=brief, max_iter=5, tol=0)
    >>> pacfl = pacfl.fit(data.X, data.y, groups=data.groups)
    >>> adjusted_rand_score(data.labels, pacfl.labels_)
    1.0
    """

    # New clients go by what the clusters were found by.
    _mixes_newcomers = False

    _assigns_by_features = True

    _parameter_constraints = {
        "n_vectors": [Count(1)],
        "angle": [StrOptions(set(ANGLES))],
        "linkage": [StrOptions({"average", "complete", "single"})],
        "distance_threshold": [POSITIVE, None],
    }

    _: KW_ONLY
    n_vectors: int = 3
    angle: Literal["smallest", "mean", "largest"] = "mean"
    linkage: Literal["average", "complete", "single"] = "average"
    distance_threshold: float | None = None
    max_iter: int | Literal["auto"] = "auto"

    def _finds_number(self):
        if self.distance_threshold is not None and self.n_clusters != "auto":
            raise ValueError(
                "distance_threshold finds the number of clusters: n_clusters must be 'auto', got "
                f"{self.n_clusters!r}."
            )
        return self.distance_threshold is not None

    def _bases(self, pool, by_class=True, span=None):
        """Bases of the clients' subspaces, their dimensions, and that of the space they are in."""
        n_classes, most = pool.model.n_classes or 1, (span or pool.model.n_features) - 1
        # Between spaces of all directions there are no angles but rounding.
        if most < n_classes:
            by_class, n_classes = False, 1
        n_vectors = min(self.n_vectors, max(most // n_classes, 1))
        n_columns = n_vectors * n_classes
        if not by_class:
            n_vectors = n_columns
        Q, dims = orthonormal(pool.ask(Subspaces, n_vectors, n_columns, by_class))
        if span is None:
            span = joint_dimension(Q, n_columns)
            if span <= n_columns:  # features that others determine
                return self._bases(pool, by_class, max(span, 1))
            span = pool.model.n_features
        return Q, dims, span

    def _evidence(self, pool, options):
        bases, dims, span = self._bases(pool)
        degrees = principal_angles(bases, dims, angle=self.angle)
        return bases, dims, span, degrees, heard(pool)

    def _partition(self, pool, evidence, n_clusters, options):
        bases, dims, span, degrees, known = evidence
        degrees = degrees[np.ix_(known, known)]
        labels = angle_clusters(degrees, n_clusters, self.distance_threshold, self.linkage)
        labels = spread_labels(labels, known)
        labels = numbered_by_size(labels)[1]
        theta = np.repeat(pool.start()[None], labels.max() + 1, axis=0)
        return Spanned(labels, theta, bases, dims, span)

    def _clusters_of(self, pool):
        return self._nearest(pool, True)

    def _clusters_by_features(self, pool):
        return self._nearest(pool, False)

    def _nearest(self, pool, by_class):
        """Clusters with subspaces at the least mean angle from those of new clients."""
        found = self._found_by
        if found is None:  # a model for each client
            return super()._clusters_of(pool)
        new, dims, _ = self._bases(pool, by_class, found.span)
        degrees = principal_angles(new, dims, found.bases, found.dims, self.angle)
        member = found.labels[:, None] == np.arange(len(found.theta))
        return (degrees @ (member / member.sum(axis=0))).argmin(axis=1)
