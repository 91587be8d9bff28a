"""PACFL: principal angles between the subspaces of clients' rows."""

import numpy as np
import pytest
from scipy.linalg import subspace_angles
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from skcfl import PACFLClassifier, PACFLRegressor, Training
from skcfl.datasets import partition_label_swaps, partition_rotations
from skcfl.rounds.subspaces import angle_clusters, orthonormal, principal_angles

IMAGES, DIGITS = load_digits(return_X_y=True)
IMAGES = IMAGES / 16
SHORT = {"training": Training(polish=False), "max_iter": 2, "tol": 0, "random_state": 0}
SHORT["standardize"] = False


def test_angles_are_scipys():
    """Of bases that are not orthonormal, of unlike dimensions, whatever signs and order."""
    rng = np.random.RandomState(0)
    bases = rng.standard_normal((4, 9, 3))
    bases[1] = -bases[0][:, ::-1] @ np.diag([1.0, 3.0, 0.2])
    bases[2, :, 2] = 0.0
    bases[3, :, 2] = bases[3, :, 0]
    columns = [3, 3, 2, 2]
    Q, dims = orthonormal(bases)
    assert dims.tolist() == columns
    found = {a: principal_angles(Q, dims, angle=a) for a in ("smallest", "mean", "largest")}
    for i in range(4):
        for j in range(4):
            a, b = bases[i][:, : columns[i]], bases[j][:, : columns[j]]
            wanted = np.degrees(subspace_angles(a, b))
            assert found["smallest"][i, j] == pytest.approx(wanted.min(), abs=1e-5)
            assert found["mean"][i, j] == pytest.approx(wanted.mean(), abs=1e-5)
            assert found["largest"][i, j] == pytest.approx(wanted.max(), abs=1e-5)
    assert found["largest"][0, 1] < 1e-5
    for degrees in found.values():  # each pair is compared once
        np.testing.assert_array_equal(degrees, degrees.T)


@pytest.mark.parametrize("n_vectors", [1, 3])
def test_rotations_are_seen_and_swapped_labels_are_not(n_vectors):
    data = partition_rotations(IMAGES, DIGITS, random_state=0)
    model = PACFLClassifier(4, n_vectors=n_vectors, **SHORT).fit(data.X, data.y, data.groups)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    # New clients go where they belong, without a label of theirs.
    np.testing.assert_array_equal(model.assign(data.X, groups=data.groups), model.labels_)
    np.testing.assert_array_equal(model.assign(data.X, data.y, data.groups), model.labels_)
    data = partition_label_swaps(IMAGES, DIGITS, random_state=0)
    model = PACFLClassifier(5, n_vectors=n_vectors, **SHORT).fit(data.X, data.y, data.groups)
    assert abs(adjusted_rand_score(data.labels, model.labels_)) < 0.1


def flat_clients(seed=0, kind=float):
    """Two planes in five dimensions, eight clients."""
    rng = np.random.RandomState(seed)
    planes = np.linalg.qr(rng.standard_normal((2, 5, 2)))[0]
    labels = np.arange(8) % 2
    groups = np.repeat(np.arange(8), 15)
    X = np.einsum("rk,rdk->rd", rng.standard_normal((120, 2)), planes[labels[groups]])
    return X, (X[:, 0] > 0).astype(kind), groups, labels


def test_a_threshold_in_degrees_finds_the_number():
    X, y, groups, labels = flat_clients()
    model = PACFLRegressor(distance_threshold=5.0, n_vectors=2, **SHORT)
    assert adjusted_rand_score(labels, model.fit(X, y, groups=groups).labels_) == 1.0
    with pytest.raises(ValueError, match="distance_threshold finds the number of clusters"):
        model.set_params(n_clusters=2).fit(X, y, groups=groups)


def test_weights_sparse_rows_and_what_is_sent():
    from scipy import sparse

    X, y, groups, labels = flat_clients()
    model = PACFLRegressor(2, n_vectors=2, **SHORT).fit(sparse.csr_array(X), y, groups=groups)
    assert adjusted_rand_score(labels, model.labels_) == 1.0
    # Rows of no weight do not count: those of another plane in the first client.
    X[:7] = X[15:22]
    weight = np.ones(len(y))
    weight[:7] = 0.0
    model.set_params(distance_threshold=5.0, n_clusters="auto")
    assert adjusted_rand_score(labels, model.fit(X, y, groups, weight).labels_) == 1.0
    assert adjusted_rand_score(labels, model.fit(X, y, groups).labels_) < 1.0
    few = PACFLRegressor(2, n_vectors=1, **SHORT).fit(X, y, groups=groups)
    more = PACFLRegressor(2, n_vectors=3, **SHORT).fit(X, y, groups=groups)
    assert more.floats_up_ - few.floats_up_ == 8 * 5 * 2


@pytest.mark.parametrize("determined", [False, True])
@pytest.mark.parametrize(("n_features", "n_vectors"), [(2, 3), (3, 3), (4, 100)])
def test_spaces_of_all_features_are_not_compared(n_features, n_vectors, determined):
    """As many vectors as features, or as others do not determine, would leave angles of zero."""
    rng = np.random.RandomState(0)
    groups, kind = np.repeat(np.arange(10), 20), np.arange(10) % 2
    X = 0.1 * rng.normal(size=(200, n_features))
    # The direction of least variance is the first feature's or the last one's.
    X[:, 1:-1] += 3.0 * rng.normal(size=(200, n_features - 2))
    X[np.arange(200), -kind[groups]] += 3.0 * rng.normal(size=200)
    if determined:
        X = X @ np.linalg.qr(rng.normal(size=(n_features + 2, n_features)))[0].T
    model = PACFLRegressor(2, n_vectors=n_vectors, angle="largest", **SHORT)
    model.fit(X, X.sum(axis=1), groups=groups)
    assert adjusted_rand_score(kind, model.labels_) == 1.0
    # As many classes as features have no vectors each, whatever the classes are.
    model = PACFLClassifier(2, n_vectors=n_vectors, angle="largest", **SHORT)
    model.fit(X, np.arange(200) % n_features, groups=groups)
    assert adjusted_rand_score(kind, model.labels_) == 1.0
    # New clients by as many, though their rows alone say nothing of the others'.
    assert model.assign(X[:20], groups=groups[:20]).tolist() == model.labels_[:1].tolist()


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
def test_equal_subspaces_are_one_cluster(linkage):
    """Whatever number is asked for: with one feature all clients span the same."""
    rng = np.random.RandomState(0)
    X, groups = rng.normal(size=(60, 1)), np.repeat(np.arange(6), 10)
    model = PACFLRegressor(3, linkage=linkage, **SHORT).fit(X, 2.0 * X[:, 0], groups=groups)
    assert model.n_clusters_ == 1
    apart = np.zeros((6, 6))
    apart[:2, 2:] = apart[2:, :2] = 40.0
    assert len(set(angle_clusters(apart, 4, None, linkage).tolist())) == 2
    assert len(set(angle_clusters(apart, 1, None, linkage).tolist())) == 1
