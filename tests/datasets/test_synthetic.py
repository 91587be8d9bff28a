"""The generators: what they promise about clients, clusters and true parameters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import pdist
from scipy.special import expit, softmax

from skcfl.datasets import (
    make_clustered_classification,
    make_clustered_regression,
    make_ellipses,
    make_fedprox_classification,
)

GENERATORS = {
    "regression": make_clustered_regression,
    "classification": make_clustered_classification,
    "fedprox": make_fedprox_classification,
    "ellipses": make_ellipses,
}
generators = pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
seeds = st.integers(0, 2**31 - 1)


def clusters_of_rows(data):
    """Cluster of each row, by the documented alignment of labels."""
    return data.labels[np.unique(data.groups, return_inverse=True)[1]]


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert_array_equal(a[name], b[name], err_msg=name)


@generators
@given(
    n_clusters=st.integers(1, 5),
    more=st.integers(0, 6),
    low=st.integers(1, 8),
    width=st.integers(0, 5),
    shuffle=st.booleans(),
    seed=seeds,
)
def test_sizes_and_alignment(make, n_clusters, more, low, width, shuffle, seed):
    n_clients = n_clusters + more
    sizes = {"n_clients": n_clients, "n_clusters": n_clusters, "n_samples": (low, low + width)}
    data = make(**sizes, shuffle=shuffle, random_state=seed)
    ids, sizes = np.unique(data.groups, return_counts=True)
    assert len(data.X) == len(data.y) == len(data.groups) == sizes.sum()
    assert data.labels.shape == ids.shape == (n_clients,)
    assert sizes.min() >= low and sizes.max() <= low + width
    members = np.bincount(data.labels, minlength=n_clusters)
    assert members.max() - members.min() <= 1  # balanced
    assert len(data.coef) == len(data.intercept) == n_clusters
    assert data.groups.dtype.kind == "U"
    if not shuffle:
        assert_array_equal(data.groups, np.sort(data.groups))
        assert_array_equal(data.labels, np.sort(data.labels))


@generators
def test_random_state(make):
    data = make(random_state=3)
    assert_same(data, make(random_state=3))
    assert_same(data, make(random_state=np.random.RandomState(3)))
    rows = make(random_state=3, return_X_y_groups=True)
    for found, name in zip(rows, ("X", "y", "groups"), strict=True):
        assert_array_equal(found, data[name])
    a, b = make(random_state=3, n_samples=10), make(random_state=4, n_samples=10)
    assert not np.array_equal(a.X, b.X)
    assert not np.array_equal(a.labels, b.labels)
    for own in (a.groups, a.labels):  # shuffled
        assert not np.array_equal(own, np.sort(own))


@generators
def test_sizes_and_clusters_as_given(make):
    sizes = [5, 1, 7, 3]
    data = make(n_clients=4, n_clusters=2, n_samples=sizes, cluster_sizes=[3, 1], random_state=0)
    assert_array_equal(np.unique(data.groups, return_counts=True)[1], sizes)
    assert_array_equal(np.bincount(data.labels), [3, 1])
    data = make(n_clients=30, n_clusters=3, n_samples=2, cluster_sizes="random", random_state=0)
    assert np.bincount(data.labels, minlength=3).min() >= 1
    assert len(data.y) == 60


@generators
def test_ids(make):
    small = dict(n_clients=12, n_clusters=3, n_samples=2, random_state=0)
    data = make(**small, id_format=None)
    assert_array_equal(np.unique(data.groups), np.arange(12))
    data = make(**small, id_format="hospital {cluster}/{member}")
    ids = np.unique(data.groups)
    # the cluster in the id is the cluster in labels, so the two are aligned
    assert [int(i.split()[1].split("/")[0]) for i in ids] == data.labels.tolist()
    # 10 sorts before 2: ids need not sort like the numbers
    data = make(**small, id_format="{client}")
    assert set(data.groups) == {str(i) for i in range(12)}


REGRESSION = {
    "n_clusters": st.integers(1, 5),
    "n_features": st.integers(6, 12),
    "coef": st.sampled_from(["gaussian", "bernoulli", "binary", "sphere"]),
    "random_state": seeds,
}


@given(st.fixed_dictionaries(REGRESSION), st.sampled_from([0.0, 2.0]))
def test_regression_parameters_explain_y(options, bias):
    data = make_clustered_regression(separation=0.5, bias=bias, noise=0.0, **options)
    k = clusters_of_rows(data)
    assert_allclose(data.y, np.sum(data.X * data.coef[k], axis=1) + data.intercept[k], atol=1e-9)
    assert np.any(data.intercept) == (bias > 0)


@given(n_clusters=st.integers(2, 6), separation=st.floats(1e-4, 0.5), seed=seeds)
def test_regression_separation(n_clusters, separation, seed):
    def distances(**kwargs):
        data = make_clustered_regression(
            n_clusters=n_clusters, n_samples=1, random_state=seed, **kwargs
        )
        return pdist(data.coef), np.linalg.norm(data.coef, axis=1)

    assert_allclose(distances(separation=separation)[0].min(), separation, rtol=1e-6)
    # CLoVE C.1.1: on the sphere, distances in [Delta, 5 Delta]
    apart, norms = distances(coef="sphere", separation=separation, radius=2.0)
    assert_allclose(norms, 2.0)
    assert_allclose(apart.min(), separation, rtol=1e-4)
    assert apart.max() <= 5 * separation * (1 + 1e-6)
    # IFCA 6.1: norm R;  GTV: entries 0 and .5
    apart, norms = distances(coef="bernoulli", radius=0.1)
    assert_allclose(norms, 0.1)
    assert apart.min() > 0
    coef = make_clustered_regression(
        n_clusters=n_clusters, coef="binary", radius=0.5, n_samples=1, random_state=seed
    ).coef
    assert set(np.unique(coef)) <= {0.0, 0.5}
    assert len(np.unique(coef, axis=0)) == n_clusters


def test_regression_all_binary_vectors():
    # as many clusters as there are non-zero vectors: must end, and give each of them
    data = make_clustered_regression(
        n_clients=31, n_clusters=31, n_features=5, coef="binary", n_samples=1, random_state=0
    )
    assert len(np.unique(data.coef, axis=0)) == 31


def test_regression_noise():
    data = make_clustered_regression(n_samples=2000, noise=0.3, random_state=0)
    residual = data.y - np.sum(data.X * data.coef[clusters_of_rows(data)], axis=1)
    assert_allclose(residual.std(), 0.3, rtol=0.02)
    assert_allclose(data.X.mean(axis=0), 0, atol=0.03)
    assert_allclose(np.cov(data.X.T), np.eye(10), atol=0.03)


@pytest.mark.parametrize("make", [make_clustered_regression, make_clustered_classification])
def test_informative_features(make):
    data = make(n_features=8, n_informative=3, random_state=0)
    assert np.any(data.coef, axis=0).sum() == 3
    assert_array_equal(data.coef[0] != 0, data.coef[1] != 0)


def test_given_parameters():
    coef, bias = np.eye(3, 4), [1.0, 2.0, 3.0]
    for make in (make_clustered_regression, make_clustered_classification):
        data = make(n_features=4, coef=coef, bias=bias, random_state=0)
        assert_array_equal(data.coef, coef)
        assert_array_equal(data.intercept, bias)
    soft = np.arange(36.0).reshape(3, 3, 4)
    data = make_clustered_classification(n_features=4, n_classes=3, coef=soft, random_state=0)
    assert_allclose(data.coef.sum(axis=1), 0, atol=1e-12)
    assert_allclose(np.diff(data.coef, axis=1), np.diff(soft, axis=1))


@given(n_classes=st.integers(2, 5), seed=seeds)
def test_classification_without_noise(n_classes, seed):
    options = {"n_classes": n_classes, "temperature": 0, "bias": 1.0, "random_state": seed}
    data = make_clustered_classification(**options)
    k = clusters_of_rows(data)
    decision = np.einsum("n...j,nj->n...", data.coef[k], data.X) + data.intercept[k]
    expected = decision > 0 if n_classes == 2 else decision.argmax(axis=1)
    assert_array_equal(data.y, expected)
    flipped = make_clustered_classification(**options, flip_y=1.0)
    assert_array_equal(flipped.X, data.X)
    assert np.all(flipped.y != data.y)
    assert flipped.y.min() >= 0 and flipped.y.max() < n_classes


@given(n_classes=st.integers(2, 4), n_clusters=st.integers(2, 4), seed=seeds)
def test_classification_separation_and_gauge(n_classes, n_clusters, seed):
    data = make_clustered_classification(
        n_classes=n_classes, n_clusters=n_clusters, separation=2.0, bias=1.0, random_state=seed
    )
    heads = 1 if n_classes == 2 else n_classes
    apart = pdist(data.coef.reshape(n_clusters, -1) / np.sqrt(heads))
    assert_allclose(apart.min(), 2.0)
    if n_classes > 2:
        assert_allclose(data.coef.sum(axis=1), 0, atol=1e-12)
        assert_allclose(data.intercept.sum(axis=1), 0, atol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_labels_follow_the_model(n_classes, temperature):
    """The score equations hold at the truth: residuals are uncorrelated with the features."""
    sizes = {"n_clusters": 1, "n_features": 3, "n_samples": 4000, "random_state": 0}
    sizes |= {"n_classes": n_classes, "temperature": temperature}
    data = make_clustered_classification(separation=2.0, bias=1.0, **sizes)
    decision = (data.X @ data.coef[0].T + data.intercept[0]) / temperature
    proba = expit(decision) if n_classes == 2 else softmax(decision, axis=1)
    onehot = data.y if n_classes == 2 else np.eye(n_classes)[data.y]
    design = np.column_stack([np.ones(len(data.X)), data.X])
    score = design.T @ (onehot - proba) / len(data.X)
    assert_allclose(score, 0, atol=4 * 0.5 / np.sqrt(len(data.X)))


@pytest.mark.parametrize("seed", range(4))
def test_default_clusters_are_separated(seed):
    """Every client's own cluster has the least loss at the true parameters."""
    data = make_clustered_regression(random_state=seed)
    losses = (data.X @ data.coef.T + data.intercept - data.y[:, None]) ** 2
    assert_best_is_own(data, losses)
    data = make_clustered_classification(random_state=seed)
    decision = data.X @ data.coef.T + data.intercept
    assert_best_is_own(data, np.logaddexp(0, decision) - data.y[:, None] * decision)


def assert_best_is_own(data, row_losses):
    client = np.unique(data.groups, return_inverse=True)[1]
    losses = np.zeros((len(data.labels), row_losses.shape[1]))
    np.add.at(losses, client, row_losses)
    assert_array_equal(losses.argmin(axis=1), data.labels)


def test_fedprox():
    data = make_fedprox_classification(n_clients=20, n_samples=400, random_state=0)
    assert data.coef.shape == (4, 10, 20)
    assert_allclose(data.coef.sum(axis=1), 0, atol=1e-12)
    k = clusters_of_rows(data)
    decision = np.einsum("ncj,nj->nc", data.coef[k], data.X) + data.intercept[k]
    assert_array_equal(data.y, decision.argmax(axis=1))
    assert_allclose(data.X.var(axis=0), np.arange(1, 21) ** -1.2, rtol=0.1)
    assert_allclose(data.X.mean(axis=0), 0, atol=0.05)


def test_fedprox_feature_means():
    data = make_fedprox_classification(n_clients=8, n_samples=500, beta=1.0, random_state=0)
    means = np.array([data.X[data.groups == i].mean(axis=0) for i in np.unique(data.groups)])
    assert np.all(means.std(axis=0) > 0.3)  # clients differ, also inside a cluster
    two = make_fedprox_classification(n_clients=4, n_classes=2, n_samples=5, random_state=0)
    assert two.coef.shape == (4, 2, 20)


@given(
    n_samples=st.integers(1, 40), n_pool=st.integers(40, 60), balanced=st.booleans(), seed=seeds
)
def test_ellipses(n_samples, n_pool, balanced, seed):
    data = make_ellipses(
        n_clients=9, n_samples=n_samples, n_pool=n_pool, balanced=balanced, random_state=seed
    )
    k = clusters_of_rows(data)
    for X, y, cluster in [(data.X, data.y, k), (data.X_test, data.y_test, data.labels_test)]:
        axis = data.coef[cluster]
        along = np.sum(X * axis, axis=1) - 1.6 * y
        across = X[:, 1] * axis[:, 0] - X[:, 0] * axis[:, 1]
        assert np.all((along / 2.6) ** 2 + (across / 0.8) ** 2 <= 1 + 1e-9)
    for client in np.unique(data.groups):
        mine = data.groups == client
        assert len(np.unique(data.index[mine])) == n_samples  # no row twice in a client
        if balanced:
            assert abs(data.y[mine].sum()) <= 1
    # a pool's row is one row
    keys = np.column_stack([k, data.index])
    assert len(np.unique(np.column_stack([keys, data.X, data.y]), axis=0)) == len(
        np.unique(keys, axis=0)
    )


def test_ellipses_match_the_paper():
    """The best separator is right in 86.5 % of the rows (maths of the circular segment)."""
    data = make_ellipses(n_test=20000, random_state=0)
    decision = np.sum(data.X_test * data.coef[data.labels_test], axis=1)
    t = 1.6 / 2.6
    exact = 1 - (np.arccos(t) - t * np.sqrt(1 - t**2)) / np.pi
    assert_allclose(np.mean((decision > 0) == (data.y_test > 0)), exact, atol=0.005)
    assert_allclose(exact, 0.865, atol=0.001)
    # test rows change nothing else
    plain = make_ellipses(n_test=0, random_state=0)
    assert_array_equal(plain.X, data.X)
    assert plain.X_test.shape == (0, 2)
    given = make_ellipses(angles=[0, 90, 45], random_state=0)
    assert_allclose(given.coef[1], [0, 1], atol=1e-15)


BAD = [
    (dict(n_clients=0), "n_clients.*range"),
    (dict(n_clients=2), "n_clusters=3 is more than n_clients=2"),
    (dict(n_samples=0), "n_samples.*range"),
    (dict(n_samples=(5, 2)), r"range \(low, high\)"),
    (dict(n_samples=(0, 2)), r"range \(low, high\)"),
    (dict(n_samples=(1, 2, 3)), r"range \(low, high\)"),
    (dict(n_samples=[5, 2]), "24 positive integers"),
    (dict(n_samples=[0] * 24), "24 positive integers"),
    (dict(cluster_sizes=[1, 2]), "cluster_sizes must be one size per cluster"),
    (dict(cluster_sizes=[1, 2, 3]), "sum to n_clients=24"),
    (dict(cluster_sizes="even"), "cluster_sizes"),
    (dict(coef="uniform"), "coef.*gaussian"),
    (dict(coef=np.ones((2, 2))), r"coef must have shape \(3, 10\)"),
    (dict(coef=np.full((3, 10), np.nan)), "coef must be"),
    (dict(coef=np.ones((3, 10)), n_informative=2), "n_informative must be None"),
    (dict(n_informative=11), "n_informative=11 is more than n_features=10"),
    (dict(coef="sphere", separation=1.9), "lower separation"),
    (dict(coef="sphere", n_features=1), "at least 2 informative"),
    (dict(coef="binary", n_features=1), "n_clusters=3 different non-zero"),
    (dict(separation=0), "separation.*range"),
    (dict(radius=-1), "radius.*range"),
    (dict(noise=-1), "noise.*range"),
    (dict(bias=[1, 2]), r"bias must have shape \(3,\)"),
    (dict(id_format="client"), "two clients the same id"),
    (dict(id_format="{name}"), "its fields are {client}, {member}, {cluster}, {width}"),
    (dict(id_format="{}"), "its fields are"),
    (dict(id_format=3), "id_format"),
    (dict(random_state="x"), "random_state"),
]
CLASSES, PROX = make_clustered_classification, make_fedprox_classification


@pytest.mark.parametrize(
    ("make", "kwargs", "message"),
    [
        *((make_clustered_regression, *bad) for bad in BAD),
        (CLASSES, dict(n_classes=1), "n_classes.*range"),
        (CLASSES, dict(temperature=-1), "temperature.*range"),
        (CLASSES, dict(flip_y=1.5), "flip_y.*range"),
        (CLASSES, dict(n_classes=3, coef=np.ones((3, 10))), r"\(3, 3, 10\)"),
        (CLASSES, dict(n_informative=20), "more than n_features=10"),
        (PROX, dict(beta=-1), "beta.*range"),
        (make_ellipses, dict(n_samples=300), "n_samples must be at most 200"),
        (make_ellipses, dict(semi_axes=(1, 0)), "semi_axes must be positive"),
        (make_ellipses, dict(semi_axes=(1,)), r"semi_axes must have shape \(2,\)"),
        (make_ellipses, dict(angles=[1, 2]), r"angles must have shape \(3,\)"),
    ],
)
def test_refusals(make, kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(**kwargs)
