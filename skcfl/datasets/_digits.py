"""scikit-learn's handwritten digits as a federation."""

from __future__ import annotations

from numbers import Integral
from typing import Literal

import numpy as np
from sklearn.datasets import load_digits

from skcfl._checks import Count
from skcfl._typing import ArrayLike, Data, RandomState, Sizes, validate_params
from skcfl.datasets._deal import CLUSTERS, PARTITION
from skcfl.datasets._layout import clients_of_clusters
from skcfl.datasets._partitions import COPIES, ROTATION_ID, check_angles, partition_rotations

# The paper's choices: IFCA has 0 and 180 for two clusters, all four for four.
_DEFAULT_ANGLES = {1: (0,), 2: (0, 180), 3: (0, 90, 180), 4: (0, 90, 180, 270)}


@validate_params(
    PARTITION
    | COPIES
    | {
        "n_rotations": [Count(1, 4), "array-like"],
        "clients_per_rotation": CLUSTERS["clients_per_cluster"],
        "scale": ["boolean"],
        "return_X_y_groups": ["boolean"],
    }
)
def make_rotated_digits(
    n_rotations: int | ArrayLike = 4,
    clients_per_rotation: int | ArrayLike = 5,
    *,
    samples_per_client: Sizes | None = None,
    copies: Literal["one", "all"] = "one",
    scale: bool = True,
    id_format: str | None = ROTATION_ID,
    shuffle: bool = True,
    random_state: RandomState = None,
    return_X_y_groups: bool = False,
) -> Data:
    """Make the handwritten digits federated by rotation: a cluster of clients for each angle.

    The 1797 real 8 x 8 images of :func:`sklearn.datasets.load_digits`, shipped with scikit-learn,
    in the way of IFCA's rotated MNIST [1]_. For other images see :func:`partition_rotations`.

    Parameters
    ----------
    n_rotations : int or array-like of int, default=4
        Number of clusters, 1 to 4 (angles 0; 0 and 180; 0, 90 and 180; all four), or their angles
        in degrees, counter-clockwise: different multiples of 90.
    clients_per_rotation : int or array-like of shape (n_rotations,), default=5
        Number of clients for each angle.
    samples_per_client : int, tuple (low, high) or array-like of shape (n_clients,), default=None
        Rows of a client, as in :func:`partition_iid`. None uses all images.
    copies : {"one", "all"}, default="one"
        "one": an image is in one rotation only (about 90 rows per client by default). "all": in
        all of them, once each (about 360), as IFCA does.
    scale : bool, default=True
        If True, scale pixels from 0..16 to [0, 1].
    id_format : str or None, default="rot{angle:03d}-client{member:0{width}d}"
        Format of the clients' ids, with the fields ``angle``, ``member`` (number for this angle),
        ``client``, ``cluster`` and ``width``; None gives the integers 0, 1, ...
    shuffle : bool, default=True
        True if rows are in random order; otherwise sorted by client.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws.
    return_X_y_groups : bool, default=False
        If True, return ``(X, y, groups)`` instead of the Bunch.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes

        - X : ndarray of shape (n_rows, 64)
        - y : ndarray of shape (n_rows,), the digits
        - groups : ndarray of shape (n_rows,), the client of each row
        - labels : ndarray of shape (n_clients,), the cluster of each client, in the order of
          ``np.unique(groups)``
        - angles : ndarray of shape (n_clusters,), the angle of each cluster
        - index : ndarray of shape (n_rows,), the number of the image in ``load_digits()``
        - DESCR : str

    (X, y, groups) : tuple
        If `return_X_y_groups`.

    Raises
    ------
    ValueError
        If there are too few images or a parameter is out of its range.

    References
    ----------
    .. [1] Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated
       learning", NeurIPS 2020, Section 6.2.

    Examples
    --------
    >>> from skcfl.datasets import make_rotated_digits
    >>> data = make_rotated_digits(random_state=0)
    >>> data.X.shape, data.labels.shape
    ((1797, 64), (20,))
    >>> "rot090-client03" in data.groups
    True
    """
    if isinstance(n_rotations, Integral):
        n_rotations = _DEFAULT_ANGLES[n_rotations]
    angles = check_angles(n_rotations, "n_rotations")
    clients_of_clusters(clients_per_rotation, len(angles), "clients_per_rotation")
    digits = load_digits()
    data = partition_rotations(
        digits.data / 16 if scale else digits.data,
        digits.target,
        angles,
        clients_per_rotation,
        samples_per_client=samples_per_client,
        copies=copies,
        id_format=id_format,
        shuffle=shuffle,
        random_state=random_state,
    )
    if return_X_y_groups:
        return data.X, data.y, data.groups
    sizes = np.unique(data.groups, return_counts=True)[1]
    data.DESCR = (
        f"Handwritten digits, rotated: {len(data.y)} rows of {len(sizes)} clients with "
        f"{sizes.min()} to {sizes.max()} rows each, in {len(angles)} clusters, turned by "
        f"{', '.join(map(str, angles.tolist()))} degrees.\n\n{digits.DESCR}"
    )
    return data
