"""The partitions: whose rows, how many, of which classes, and what was done to them."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from trials import examples

from skcfl.datasets import (
    partition_dirichlet,
    partition_dominant_class,
    partition_feature_permutations,
    partition_iid,
    partition_label_skew,
    partition_label_swaps,
    partition_missing_class,
    partition_rotations,
)

PARTITIONS = {
    "iid": lambda X, y, **kw: partition_iid(X, y, 20, **kw),
    "rotations": lambda X, y, **kw: partition_rotations(X, y, **kw),
    "feature_permutations": lambda X, y, **kw: partition_feature_permutations(X, y, 4, **kw),
    "label_swaps": lambda X, y, **kw: partition_label_swaps(X, y, 4, **kw),
    "label_skew": lambda X, y, **kw: partition_label_skew(X, y, 4, **kw),
    "missing_class": lambda X, y, **kw: partition_missing_class(X, y, 4, **kw),
    "dominant_class": lambda X, y, **kw: partition_dominant_class(X, y, 4, **kw),
    "dirichlet": lambda X, y, **kw: partition_dirichlet(X, y, 4, alpha=5.0, **kw),
}
partitions = pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
BY_CLASS = ["label_skew", "missing_class", "dominant_class", "dirichlet"]
seeds = st.integers(0, 2**31 - 1)


def rows(n=1000, n_classes=10, seed=0, n_features=16):
    """Rows that can be told apart, with every class."""
    rng = np.random.default_rng(seed)
    X = np.arange(n * n_features, dtype=float).reshape(n, n_features)
    return X, rng.permutation(np.arange(n) % n_classes)


def clients(data):
    return np.unique(data.groups, return_inverse=True)[1]


def class_counts(data, y):
    """(n_clients, n_classes): rows of each original class of each client."""
    client = clients(data)
    classes, codes = np.unique(y, return_inverse=True)
    counts = np.zeros((len(data.labels), len(classes)), dtype=int)
    np.add.at(counts, (client, codes[data.index]), 1)
    return counts


# ----------------------------------------------------------------------------- all partitions


@partitions
@examples(10)
@given(
    samples=st.none() | st.integers(2, 20) | st.just((2, 15)), shuffle=st.booleans(), seed=seeds
)
def test_each_row_once_and_labels_aligned(partition, samples, shuffle, seed):
    X, y = rows()
    data = partition(X, y, samples_per_client=samples, shuffle=shuffle, random_state=seed)
    assert len(data.X) == len(data.y) == len(data.groups) == len(data.index)
    assert len(np.unique(data.index)) == len(data.index)
    sizes = np.unique(data.groups, return_counts=True)[1]
    assert sizes.shape == data.labels.shape == (20,)
    if samples is None:
        if partition not in [PARTITIONS[name] for name in BY_CLASS[:-1]]:
            assert len(data.y) == len(y)
            assert np.ptp(sizes) <= 1 or partition is not PARTITIONS["iid"]
        else:
            assert np.ptp(sizes) == 0
    elif samples == (2, 15):
        assert sizes.min() >= 2 and sizes.max() <= 15 and len(set(sizes)) > 1
    else:
        assert_array_equal(sizes, samples)
    assert data.groups.dtype.kind == "U"
    assert data.labels.min() == 0
    if not shuffle:
        assert_array_equal(data.groups, np.sort(data.groups))


@partitions
def test_random_state(partition):
    X, y = rows()
    a, b, c = (partition(X, y, random_state=seed) for seed in (1, 1, 2))
    for name in a:
        if name == "cluster_classes":
            assert [own.tolist() for own in a[name]] == [own.tolist() for own in b[name]]
        else:
            assert_array_equal(a[name], b[name])
    assert not np.array_equal(a.index[:100], c.index[:100])


@partitions
def test_same_federation_for_test_rows(partition):
    """One seed gives training and test rows the same clients, clusters and design."""
    train = partition(*rows(), random_state=5, samples_per_client=20)
    test = partition(*rows(400, seed=1), random_state=5, samples_per_client=(4, 8))
    assert_array_equal(np.unique(train.groups), np.unique(test.groups))
    assert_array_equal(train.labels, test.labels)
    for name in set(train) - {"X", "y", "groups", "index"}:
        for a, b in zip(train[name], test[name], strict=True):
            assert_array_equal(a, b)


@partitions
def test_replace(partition):
    X, y = rows(200)
    data = partition(X, y, samples_per_client=25, replace=True, random_state=0)
    assert len(data.y) == 20 * 25
    assert len(np.unique(data.index)) < len(data.index)
    pairs = np.column_stack([clients(data), data.index])
    assert len(np.unique(pairs, axis=0)) == len(pairs)  # never twice to one client
    with pytest.raises(ValueError, match="samples_per_client must be given"):
        partition(X, y, replace=True)


@partitions
def test_ids(partition):
    X, y = rows()
    data = partition(X, y, id_format="{cluster}:{member}", random_state=0)
    assert [int(i.split(":")[0]) for i in np.unique(data.groups)] == data.labels.tolist()
    data = partition(X, y, id_format=None, random_state=0)
    assert_array_equal(np.unique(data.groups), np.arange(20))


@partitions
def test_too_few_rows(partition):
    X, y = rows(100)
    with pytest.raises(ValueError, match="asks for .* rows"):
        partition(X, y, samples_per_client=50, random_state=0)
    with pytest.raises(ValueError, match="too few"):
        partition(X[:10], np.arange(10), random_state=0)
    with pytest.raises(ValueError, match="asks for .* rows"):
        partition(X, y, samples_per_client=101, replace=True, random_state=0)


@partitions
def test_bad_rows(partition):
    X, y = rows(100)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        partition(X, y[:-1])
    with pytest.raises(ValueError, match="1d"):
        partition(X, np.column_stack([y, y]))
    for samples in (0, (3, 2), [1, 2], "all"):
        with pytest.raises(ValueError, match="samples_per_client"):
            partition(X, y, samples_per_client=samples)


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name != "rotations"])
def test_containers(name):
    """Frames stay frames, unless columns are permuted; sparse stays sparse; labels may be text."""
    X, y = rows()
    y = np.array(["abcdefghij"[c] for c in y])
    expected = PARTITIONS[name](X, y, random_state=0)
    assert set(expected.y) <= set("abcdefghij")
    sparse = PARTITIONS[name](sp.coo_matrix(X), y, random_state=0)
    assert sparse.X.format == "csr"
    assert_array_equal(sparse.X.toarray(), expected.X)
    lists = PARTITIONS[name](X.tolist(), y.tolist(), random_state=0)
    assert_array_equal(lists.X, expected.X)
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    table = PARTITIONS[name](frame, pd.Series(y), random_state=0)
    assert_array_equal(np.asarray(table.X), expected.X)
    assert_array_equal(table.y, expected.y)
    if name in ("iid", "feature_permutations"):  # targets may be of any kind
        data = PARTITIONS[name](X, np.arange(1000) + 0.5, random_state=0)
        assert_array_equal(data.y, data.index + 0.5)
        assert name != "iid" or (data.X == X[data.index]).all()
    if name != "feature_permutations":
        assert table.X.columns.tolist() == frame.columns.tolist()


@partitions
def test_one_client_and_ragged_clusters(partition):
    X, y = rows()
    if partition is PARTITIONS["iid"]:
        data = partition_iid(X, y, 1, random_state=0)
        assert set(data.labels) == {0} and len(data.y) == len(y)
        return
    data = partition(X, y, clients_per_cluster=[1, 3, 2, 4], random_state=0)
    assert_array_equal(np.bincount(data.labels), [1, 3, 2, 4])
    with pytest.raises(ValueError, match="clients_per_cluster"):
        partition(X, y, clients_per_cluster=[1, 3])


# ----------------------------------------------------------------------------- features


@examples(10)
@given(copies=st.sampled_from(["one", "all"]), seed=seeds)
def test_copies(copies, seed):
    X, y = rows(200)
    for name in ["rotations", "feature_permutations", "label_swaps"]:
        data = PARTITIONS[name](X, y, copies=copies, random_state=seed)
        cluster = data.labels[clients(data)]
        if copies == "one":
            assert_array_equal(np.sort(data.index), np.arange(200))
        else:
            for k in range(4):
                assert_array_equal(np.sort(data.index[cluster == k]), np.arange(200))


@given(seed=seeds)
def test_rotations_turn_back(seed):
    X, y = rows(100)
    data = partition_rotations(X, y, (180, 90), 3, random_state=seed)
    images = X.reshape(-1, 4, 4)
    for row, i, k in zip(data.X, data.index, data.labels[clients(data)], strict=True):
        assert_array_equal(row.reshape(4, 4), np.rot90(images[i], (2, 1)[k]))
    stack = partition_rotations(images, y, (180, 90), 3, random_state=seed)
    assert_array_equal(stack.X.reshape(len(X), -1), data.X)
    assert partition_rotations(X, y, (0, 180), image_shape=(2, 8)).X.shape == X.shape


@given(n_clusters=st.integers(1, 5), keep_first=st.booleans(), sparse=st.booleans(), seed=seeds)
def test_feature_permutations(n_clusters, keep_first, sparse, seed):
    X, y = rows(60, n_features=5)
    stored, how = sp.csr_matrix(X) if sparse else X, {"random_state": seed}
    data = partition_feature_permutations(stored, y, n_clusters, 2, keep_first=keep_first, **how)
    assert len(np.unique(data.permutations, axis=0)) == n_clusters
    assert_array_equal(np.sort(data.permutations, axis=1), np.tile(np.arange(5), (n_clusters, 1)))
    if keep_first:
        assert_array_equal(data.permutations[0], np.arange(5))
    order = data.permutations[data.labels[clients(data)]]
    out = data.X.toarray() if sparse else data.X
    assert_array_equal(out, np.take_along_axis(X[data.index], order, axis=1))
    if sparse:
        assert data.X.has_sorted_indices
    how["permutations"] = data.permutations
    again = partition_feature_permutations(X, y, n_clusters, 2, **how)
    assert_array_equal(again.permutations, data.permutations)


# ----------------------------------------------------------------------------- concept shift


@examples(15)
@given(
    n_clusters=st.integers(1, 6), n_swaps=st.integers(1, 3), keep_first=st.booleans(), seed=seeds
)
def test_label_swaps(n_clusters, n_swaps, keep_first, seed):
    X, y = rows(300)
    y = y * 10 - 3  # classes need not be codes
    data = partition_label_swaps(
        X, y, n_clusters, 3, n_swaps=n_swaps, keep_first=keep_first, random_state=seed
    )
    classes = np.unique(y)
    assert_array_equal(data.classes, classes)
    assert_array_equal(np.sort(data.permutations, axis=1), np.tile(classes, (n_clusters, 1)))
    moved = data.permutations != classes
    swapped = np.full(n_clusters, 2 * n_swaps)
    if keep_first:
        swapped[0] = 0
    assert_array_equal(moved.sum(axis=1), swapped)
    pairs = []
    for k in range(n_clusters):
        codes = np.searchsorted(classes, data.permutations[k])
        assert_array_equal(codes[codes], np.arange(10))  # swaps undo themselves
        pairs += [(a, b) for a, b in enumerate(codes) if a < b]
    assert len(set(pairs)) == len(pairs)  # no pair in two clusters
    # undone, labels are those of the original rows
    cluster = data.labels[clients(data)]
    codes = (data.permutations[cluster] == data.y[:, None]).argmax(axis=1)
    assert_array_equal(classes[codes], y[data.index])
    assert_array_equal(data.X, X[data.index])


def test_label_permutations():
    X, y = rows(300)
    data = partition_label_swaps(X, y, 6, n_swaps="random", random_state=0)
    assert len(np.unique(data.permutations, axis=0)) == 6
    assert (data.permutations != np.arange(10)).mean() > 0.7
    answers = np.where(y < 5, "no", "yes")
    binary = partition_label_swaps(X, answers, 2, n_swaps=1, keep_first=True, random_state=0)
    assert binary.permutations.tolist() == [["no", "yes"], ["yes", "no"]]
    swaps = np.array([[0, 1, 2], [2, 0, 1]])
    given = partition_label_swaps(X, y % 3, 2, permutations=swaps, random_state=0)
    assert_array_equal(given.y, swaps[given.labels[clients(given)], (y % 3)[given.index]])


# ----------------------------------------------------------------------------- label skew


SKEWED = {
    "n_unique": st.integers(1, 2),
    "n_shared": st.integers(0, 2),
    "sharing": st.sampled_from(["common", "pairwise"]),
    "samples_per_client": st.none() | st.integers(4, 20),
    "random_state": seeds,
}


@given(st.integers(1, 4), st.fixed_dictionaries(SKEWED))
def test_label_skew(n_clusters, options):
    X, y = rows(4000)
    data = partition_label_skew(X, y, n_clusters, 5, **options)
    counts = class_counts(data, y)
    owned, n_shared = counts > 0, options["n_shared"]
    size = options["n_unique"] + n_shared
    assert np.all(owned.sum(axis=1) == size)
    for client, k in enumerate(data.labels):
        assert_array_equal(np.flatnonzero(owned[client]), data.cluster_classes[k])
        mine = counts[client][owned[client]]
        assert mine.max() - mine.min() <= 1
    by_cluster = np.array([owned[data.labels == k].all(axis=0) for k in range(n_clusters)])
    common = (by_cluster.astype(int) @ by_cluster.T.astype(int))[~np.eye(n_clusters, dtype=bool)]
    if options["sharing"] == "common":
        assert np.all(common == n_shared)
    else:
        assert np.all((common >= n_shared) & (common < size))
    assert_array_equal(data.y, y[data.index])


def test_label_skew_given_classes():
    X, y = rows()
    y = np.array(list("abcdefghij"))[y]
    data = partition_label_skew(X, y, 2, cluster_classes=[["b", "a"], ["c"]], random_state=0)
    assert [own.tolist() for own in data.cluster_classes] == [["a", "b"], ["c"]]
    assert set(data.y) == {"a", "b", "c"}


@examples(10)
@given(alpha=st.sampled_from([1e-3, 0.1, 0.5, 10.0]), seed=seeds)
def test_uneven_shares_keep_the_clusters(alpha, seed):
    X, y = rows()
    kw = dict(samples_per_client=20, random_state=seed)
    for partition in (partition_label_skew, partition_missing_class, partition_dominant_class):
        data, even = partition(X, y, alpha=alpha, **kw), partition(X, y, **kw)
        counts, even_counts = class_counts(data, y), class_counts(even, y)
        assert_array_equal(data.labels, even.labels)
        for k in range(5):
            assert_array_equal(
                counts[data.labels == k].sum(axis=0), even_counts[data.labels == k].sum(axis=0)
            )
        assert counts.sum(axis=1).min() >= 1
        assert len(np.unique(counts.sum(axis=1))) > 1  # ragged


@given(fraction=st.floats(0, 1), samples=st.integers(1, 40), seed=seeds)
def test_dominant_class(fraction, samples, seed):
    X, y = rows(2000)
    data = partition_dominant_class(
        X, y, 4, 2, fraction=fraction, samples_per_client=samples, random_state=seed
    )
    assert len(set(data.dominant_classes.tolist())) == 4
    expected = np.full((4, 10), (1 - fraction) / 10)
    expected[np.arange(4), data.dominant_classes] += fraction
    assert np.all(np.abs(class_counts(data, y) - samples * expected[data.labels]) < 1 + 1e-6)


@given(seed=seeds, last_complete=st.booleans())
def test_missing_class(seed, last_complete):
    X, y = rows(500)
    data = partition_missing_class(X, y, 5, 2, last_complete=last_complete, random_state=seed)
    missing = class_counts(data, y) == 0
    for client, k in enumerate(data.labels):
        expected = [data.missing_classes[k]] if k < len(data.missing_classes) else []
        assert_array_equal(np.flatnonzero(missing[client]), expected)
    assert len(data.missing_classes) == 5 - last_complete


@given(
    alpha=st.sampled_from([1e-4, 0.05, 0.5, 100.0]),
    n_clusters=st.integers(1, 6),
    per_cluster=st.integers(1, 4),
    min_samples=st.integers(1, 5),
    seed=seeds,
)
def test_dirichlet_shares_all_rows(alpha, n_clusters, per_cluster, min_samples, seed):
    X, y = rows(300)
    data = partition_dirichlet(
        X, y, n_clusters, per_cluster, alpha=alpha, min_samples=min_samples, random_state=seed
    )
    assert_array_equal(np.sort(data.index), np.arange(300))
    counts = class_counts(data, y)
    assert counts.sum(axis=1).min() >= min_samples
    assert_allclose(data.proportions.sum(axis=0), 1)
    if alpha == 100.0:  # nearly even, so nobody was topped up
        by_cluster = np.array([counts[data.labels == k].sum(axis=0) for k in range(n_clusters)])
        assert np.all(np.abs(by_cluster - 30 * data.proportions) < 1 + 1e-6)
        for k in range(n_clusters):
            assert np.ptp(counts[data.labels == k], axis=0).max() <= 1


@examples(10)
@given(alpha=st.sampled_from([0.05, 0.5, 100.0]), seed=seeds)
def test_dirichlet_of_given_sizes(alpha, seed):
    X, y = rows(5000)
    data = partition_dirichlet(X, y, 5, 2, alpha=alpha, samples_per_client=50, random_state=seed)
    assert_allclose(data.proportions.sum(axis=1), 1)
    counts = class_counts(data, y)
    assert np.all(np.abs(counts - 50 * data.proportions[data.labels]) < 1 + 1e-6)


def test_dirichlet_skew_grows_as_alpha_falls():
    X, y = rows(2000)

    def largest_share(alpha):
        data = partition_dirichlet(X, y, 20, 1, alpha=alpha, random_state=0)
        counts = class_counts(data, y)
        return (counts.max(axis=1) / counts.sum(axis=1)).mean()

    assert largest_share(0.05) > largest_share(0.5) > largest_share(100) > 0.1


def test_dirichlet_given_proportions():
    X, y = rows(300, n_classes=3)
    proportions = [[0.5, 0.5, 0], [0, 0.2, 0.8]]
    data = partition_dirichlet(
        X, y, 2, 3, proportions=proportions, samples_per_client=10, random_state=0
    )
    assert_array_equal(class_counts(data, y), 10 * np.array(proportions)[data.labels])


# ----------------------------------------------------------------------------- refusals

SKEW, SWAPS = partition_label_skew, partition_label_swaps
PAIRWISE = dict(n_unique=1, sharing="pairwise")
TWO = dict(n_features=2)
PAIR = {**TWO, "n_clusters": 2}


@pytest.mark.parametrize(
    ("partition", "kwargs", "message"),
    [
        (partition_rotations, dict(angles=(0, 30)), "angles must be multiples of 90"),
        (partition_rotations, dict(angles=(90, 450)), "angles must be different"),
        (partition_rotations, dict(image_shape=(2, 8)), "angles must be multiples of 180"),
        (partition_feature_permutations, TWO, "n_clusters=5 different random permutations of 2"),
        *(
            (partition_feature_permutations, {**PAIR, "permutations": bad}, "must have the shape")
            for bad in ([[0, 1]], [[0, 1], [0, 0]], [[0, 1, 2]] * 2)
        ),
        (SWAPS, dict(n_classes=3), "n_swaps=2 disjoint pairs need 4 classes, y has 3"),
        (SWAPS, dict(n_classes=2, n_swaps=1), "n_clusters=5 with n_swaps=1 different pairs"),
        (SWAPS, dict(n_swaps=0), "n_swaps.*range"),
        (SWAPS, dict(n_swaps="all"), "n_swaps.*random"),
        (SWAPS, dict(n_classes=2, n_swaps="random"), "different random permutations of 2"),
        *(
            (SWAPS, dict(n_classes=4, permutations=bad), "permutations must have the shape")
            for bad in ([[0, 1, 2, 3]], [[0, 1, 2, 2]] * 5, [list("abcd")] * 5)
        ),
        (SKEW, dict(n_unique=3), "need 15 classes for 5 clusters, y has 10"),
        (SKEW, dict(n_unique=0), "n_unique .* n_shared must be at least 1"),
        (SKEW, dict(n_unique=0, n_shared=2), "n_unique must be positive"),
        (SKEW, dict(n_unique=-1), "n_unique.*range"),
        (SKEW, {**PAIRWISE, "n_shared": 10}, "are 11 classes per cluster, y has 10"),
        (SKEW, {**PAIRWISE, "n_shared": 8, "n_classes": 4}, "9 classes per cluster, y has 4"),
        (
            SKEW,
            {**PAIRWISE, "n_clusters": 8, "n_shared": 2, "n_classes": 4},
            "no 8 different sets of 3 of 4 classes",
        ),
        (SKEW, dict(cluster_classes=[[0]]), "n_clusters=5 entries, got 1"),
        (SKEW, dict(cluster_classes=[[0]] * 4 + [[11]]), r"cluster_classes\[4\]"),
        (SKEW, dict(cluster_classes=[[0]] * 4 + [[]]), r"cluster_classes\[4\]"),
        (SKEW, dict(samples_per_client=1), "a client owns 2 classes"),
        (
            SKEW,
            dict(n=100, samples_per_client=20),
            r"asks for 50 rows of class \d for all clients, but y has 10",
        ),
        (SKEW, dict(alpha=0), "alpha.*range"),
        (partition_missing_class, dict(n_clusters=12), "missing_classes must be different"),
        (partition_missing_class, dict(missing_classes=[1, 1, 2, 3]), "4 different classes"),
        (partition_missing_class, dict(missing_classes=[1, 2, 3, 11]), "must be classes of y"),
        (partition_missing_class, dict(n_clusters=2, n_classes=1), "at least two classes"),
        (partition_dominant_class, dict(n_clusters=11), "dominant_classes must be different"),
        (partition_dominant_class, dict(fraction=1.1), "fraction.*range"),
        (partition_dominant_class, dict(dominant_classes=[0, 1]), "5 different classes"),
        (partition_dirichlet, dict(alpha=-1), "alpha.*range"),
        (partition_dirichlet, dict(min_samples=100), "too few for 25 clients"),
        (partition_dirichlet, dict(proportions=np.ones((5, 10)) / 10), "samples_per_client must"),
        (
            partition_dirichlet,
            dict(proportions=np.ones((5, 10)), samples_per_client=2),
            "rows sum to 1",
        ),
        *(
            (partition, {"half": True}, "Unknown label type")
            for partition in map(PARTITIONS.get, BY_CLASS)
        ),
    ],
)
def test_refusals(partition, kwargs, message):
    shape = {name: kwargs[name] for name in ("n", "n_classes", "n_features") if name in kwargs}
    X, y = rows(**shape)
    options = {name: value for name, value in kwargs.items() if name not in (*shape, "half")}
    with pytest.raises(ValueError, match=message):
        partition(X, y + 0.5 if "half" in kwargs else y, **options)
