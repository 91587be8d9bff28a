"""Federated data: generators with known clusters, partitions of any ``(X, y)``, a real table.

Every function returns a :class:`sklearn.utils.Bunch` with the rows ``X``, ``y`` and the client of
each row, ``groups``; generators and partitions also with the true cluster of each client,
``labels``, aligned with ``np.unique(groups)``.
"""

from skcfl.datasets._corrupt import corrupt
from skcfl.datasets._digits import make_rotated_digits
from skcfl.datasets._ellipses import make_ellipses
from skcfl.datasets._grunfeld import load_grunfeld
from skcfl.datasets._label_skew import (
    partition_dirichlet,
    partition_dominant_class,
    partition_label_skew,
    partition_missing_class,
)
from skcfl.datasets._partitions import (
    partition_feature_permutations,
    partition_iid,
    partition_label_swaps,
    partition_rotations,
    rotate_images,
)
from skcfl.datasets._synthetic import (
    make_clustered_classification,
    make_clustered_regression,
    make_fedprox_classification,
)

__all__ = [
    "load_grunfeld",
    "corrupt",
    "make_clustered_classification",
    "make_clustered_regression",
    "make_ellipses",
    "make_fedprox_classification",
    "make_rotated_digits",
    "partition_dirichlet",
    "partition_dominant_class",
    "partition_feature_permutations",
    "partition_iid",
    "partition_label_skew",
    "partition_label_swaps",
    "partition_missing_class",
    "partition_rotations",
    "rotate_images",
]
