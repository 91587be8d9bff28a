"""Operators in the place of the mean: what false clients can do to them, and what they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import adjusted_rand_score
from trials import examples

from skcfl.numerics.quantiles import weighted_median
from skcfl.rounds.aggregation import (
    AGGREGATORS,
    Layout,
    aggregate_by_cluster,
    make_aggregator,
    median_by_cluster,
)
from skcfl.rounds.aggregation.aggregator import lengths
from skcfl.rounds.aggregation.geometric_median import GeometricMedian
from skcfl.rounds.point_clusters import cluster_points
from skcfl.rounds.suspicion import excess, unserved

NAMES = sorted(AGGREGATORS)
ROBUST = sorted(set(NAMES) - {"mean"})
TRIM = 0.3
OPERATORS = {name: cls() for name, cls in AGGREGATORS.items()}
for name in ("trimmed_mean", "krum"):
    OPERATORS[name].set_params(trim=TRIM)
OPERATORS["geometric_median"] = GeometricMedian(max_iter=1000, tol=1e-8)
# Share of false clients that each bears, for 11 clients.
BEARS = {"median": 5, "trimmed_mean": 3, "geometric_median": 5, "krum": 3, "centered_clipping": 5}

vectors = hnp.arrays(float, (11, 3), elements=st.floats(-10, 10, width=32))
far = st.floats(1e2, 1e200)


@pytest.mark.parametrize("name", ROBUST)
@examples(9)
@given(honest=vectors, size=far, seed=st.integers(0, 99))
def test_breakdown_point(name, honest, size, seed):
    """However far away the false ones are, the value stays near the honest ones."""
    n_false, rng = BEARS[name], np.random.RandomState(seed)
    messages = honest.copy()
    direction = np.sign(rng.normal(size=3)) if seed % 2 else np.sign(rng.normal(size=(n_false, 3)))
    messages[:n_false] = size * direction
    good = honest[n_false:]
    out = OPERATORS[name].aggregate(messages, np.ones(11))
    if name in {"median", "trimmed_mean"}:
        assert (out >= good.min(axis=0) - 1e-9).all() and (out <= good.max(axis=0) + 1e-9).all()
        return
    # About the honest mean; b = 5 of 11 for the geometric median: 2 (1 - b) / (1 - 2 b) = 12.
    centre = good.mean(axis=0)
    radius = lengths(good - centre).max()
    factor = {"geometric_median": 12.0, "krum": 1.0, "centered_clipping": 12.0}[name]
    assert lengths(out - centre) <= factor * radius + 1e-6


def test_weighted_medians_are_those_of_repeated_numbers():
    rng = np.random.RandomState(4)
    values, weights = rng.normal(size=(5, 7)), rng.randint(1, 4, (5, 7))
    for row, own in zip(values, weights, strict=True):
        out = weighted_median(row, own.astype(float))
        assert out == pytest.approx(np.median(np.repeat(row, own)))
    assert weighted_median(np.array([1.0, np.inf, np.inf]), np.ones(3)) == np.inf


def test_names_and_objects():
    assert make_aggregator("mean") is None
    assert make_aggregator("trimmed_mean").trim == 0.2
    operator = OPERATORS["median"]
    assert make_aggregator(operator) is operator
    with pytest.raises(TypeError, match="aggregate"):
        make_aggregator(object())


@examples(9)
@given(seed=st.integers(0, 999), equal=st.booleans())
def test_medians_of_numbers_by_cluster(seed, equal):
    """One sort for all clusters, and one for each."""
    rng = np.random.RandomState(seed)
    labels, values = rng.choice([0, 1, 3, 4], 20), np.round(rng.normal(size=20), 1)
    weights = np.ones(20) if equal else rng.choice([0.0, 0.5, 1.0, 3.0], 20)
    weights[labels == 4] = 0.0
    found = median_by_cluster(values, labels, 5, weights)
    one_by_one = OPERATORS["median"]
    wanted = aggregate_by_cluster(one_by_one, values[:, None], labels, 5, weights)[:, 0]
    assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@examples(5)
@given(seed=st.integers(0, 999))
def test_all_clusters_at_once(name, seed):
    """Of any weights, alike or not, all or some there: as cluster by cluster, padded."""
    rng, operator = np.random.RandomState(seed), OPERATORS[name]
    labels, messages = rng.choice([0, 0, 1, 3], 20), rng.normal(size=(20, 3))
    layout = Layout(labels, 4)
    alike, absent = rng.choice([1.0, 3.0], 4)[labels], rng.uniform(size=20) > 0.3
    for weights in (np.ones(20), alike, alike * absent, rng.uniform(1, 2, 20), np.zeros(20)):
        wanted = np.zeros((4, 3))
        for k in np.unique(labels):
            mine = weights[labels == k] if weights[labels == k].any() else np.ones(20)
            mine = mine[: (labels == k).sum()]
            there = mine > 0
            wanted[k] = operator.aggregate(messages[labels == k][there], mine[there])
        for _ in range(2):
            found = aggregate_by_cluster(operator, messages, labels, 4, weights, layout)
            assert_allclose(found, wanted, atol=1e-5 if name == "geometric_median" else 1e-12)


@examples(9)
@given(seed=st.integers(0, 999), n=st.integers(0, 30))
def test_who_is_served_by_no_model(seed, n):
    rng = np.random.RandomState(seed)
    losses, labels = rng.uniform(size=n) ** rng.choice([1, 9, 40]), rng.randint(0, 3, n)
    weights = rng.choice([0.0, 1.0, 2.0], n)
    out = excess(losses, labels, 3, weights)
    badly = unserved(losses, labels, 3, weights)
    assert_array_equal(np.zeros(n, dtype=bool) if badly is None else badly, out > 1.0)


def test_a_layout_is_of_its_clusters():
    labels = np.array([0, 1, 1, 0, 2, 1])
    layout = Layout(labels, 4)
    assert layout.is_of(labels.copy(), 4)
    assert not layout.is_of(labels, 3) and not layout.is_of(labels[::-1], 4)
    messages = np.random.RandomState(0).normal(size=(6, 2))
    arguments = OPERATORS["median"], messages, labels, 4, np.ones(6)
    out = aggregate_by_cluster(*arguments)
    assert_array_equal(aggregate_by_cluster(*arguments, layout), out)
    # A few large clusters beside many small ones are not padded to one size.
    sizes = [60, 2, 3, 2, 4, 3, 2]
    batches = Layout(np.repeat(np.arange(7), sizes), 7).batches
    assert sum(members.size for _, members, _ in batches) < 2 * sum(sizes)


def test_the_median_of_most_of_the_weight_is_found_exactly():
    """Steps towards a message that is the median become ever shorter, and end on their way."""
    rng = np.random.default_rng(0)
    for seed in range(50):
        n, p = rng.integers(3, 7), rng.integers(2, 4)
        messages, weights = rng.normal(size=(n, p)), rng.integers(1, 5, size=n).astype(float)
        weights[0] = weights[1:].sum()  # exactly half
        found = GeometricMedian().aggregate(messages, weights)
        assert_allclose(found, messages[0], err_msg=str(seed))


@pytest.mark.parametrize("n_params", [1, 6])
def test_the_median_of_two_of_the_same_weight_is_their_middle(n_params):
    """Rounding chose one of them, or the middle."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        messages, weights = rng.normal(size=(2, n_params)), np.full(2, rng.uniform())
        found = GeometricMedian().aggregate(messages, weights)
        assert_allclose(found, messages.mean(axis=0), atol=1e-12)


@pytest.mark.parametrize("far", [1e4, 1e12])
def test_small_clusters_beside_a_tight_one_are_kept(far):
    """Most clients have no effects at all, and others are far away in units of the noise."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], [14, 3, 3])
    points = np.eye(3)[[2, 0, 1]][truth] * (truth > 0)[:, None] + rng.normal(size=(20, 3)) / far
    labels, kept = cluster_points(points, 3, "trimmed", np.random.RandomState(0), 0.25)
    assert adjusted_rand_score(truth, labels) == 1.0


@pytest.mark.parametrize("far", [1e4, 1e12])
def test_one_that_is_very_far_away_is_left_out(far):
    """Though the clusters of networks are so little apart that merging them costs hardly more."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(20, 200))
    points[10:] += 0.4
    points[3] *= far
    labels, kept = cluster_points(points, 2, "trimmed", np.random.RandomState(0), 0.25)
    assert not kept[3] and kept.sum() >= 15
    honest = np.arange(20) != 3
    assert len(np.unique(labels[honest])) == 2
