"""k-FED: clusters of rows in one exchange."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.metrics import adjusted_rand_score

from skcfl import KFED
from skcfl.clients.local_clusters import local_kmeans
from skcfl.rounds.merged_centres import merge_centres


def gaussians(seed, k=9, k_local=3, n_clients=12, rows=40, d=6, apart=12.0):
    """Clients with rows of k_local of k well-separated Gaussians."""
    rng = np.random.RandomState(seed)
    centres = rng.standard_normal((k, d))
    centres *= apart / pdist(centres).min()
    mine = np.array([(np.arange(k_local) + i * k_local) % k for i in range(n_clients)])
    groups = np.repeat(np.arange(n_clients), rows * k_local)
    labels = np.repeat(mine.ravel(), rows)
    X = centres[labels] + rng.standard_normal((len(labels), d))
    order = rng.permutation(len(X))
    return X[order], groups[order], labels[order], centres


@pytest.mark.parametrize("n_local", [3, "auto"])
@pytest.mark.parametrize("seed", range(2))
def test_guarantee_on_well_separated_gaussians(n_local, seed):
    """Every row is in its cluster, and centres are means of k n / k' rows."""
    X, groups, labels, centres = gaussians(seed)
    kfed = KFED(9, n_local=n_local, random_state=0).fit(X, groups=groups)
    assert adjusted_rand_score(labels, kfed.labels_) == 1.0
    means = np.array([X[kfed.labels_ == k].mean(axis=0) for k in range(9)])
    np.testing.assert_allclose(kfed.cluster_centers_, means, atol=1e-8)
    np.testing.assert_array_equal(kfed.predict(X), kfed.labels_)
    if n_local == 3:
        assert kfed.calls_ == 2 + 1 and kfed.floats_up_ == 12 * 3 * (6 + 1)


def test_clients_of_one_cluster_each():
    X, groups, labels, _ = gaussians(0, k=3, k_local=1)
    kfed = KFED(3, n_local=1).fit(X, groups=groups)
    owners = np.array([labels[groups == i][0] for i in range(12)])
    assert adjusted_rand_score(owners, kfed.client_labels_) == 1.0


def test_merging():
    """Farthest first: what no client's centre is near to is found, and empty places are left."""
    centres = np.array([[[0.0], [1.0]], [[0.1], [9.0]], [[5.0], [0.0]]])
    counts = np.array([[5, 5], [3, 3], [2, 0]])
    labels, merged = merge_centres(centres, counts, 4, True)
    assert labels.tolist() == [[0, 1], [0, 2], [3, -1]]
    np.testing.assert_allclose(merged[0], (5 * 0.0 + 3 * 0.1) / 8)
    labels, merged = merge_centres(centres, counts, 9, False)
    assert len(merged) == 5


def test_local_clusters_and_bad_input():
    centres, counts = local_kmeans(np.ones((4, 2)), 3, 0)
    assert centres.tolist() == [[1.0, 1.0]] and counts.tolist() == [4]
    with pytest.raises(ValueError, match="n_samples=2 should be >= n_clusters=8"):
        KFED().fit(np.ones((2, 2)), groups=[0, 1])
    with pytest.raises(ValueError, match="groups"):
        KFED(2).fit(np.ones((3, 2)), groups=[0, 1, None])
