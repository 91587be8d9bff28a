"""Sums and means by cluster."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from trials import examples

from skcfl.numerics import by_cluster
from skcfl.numerics.by_cluster import (
    mean_by_cluster,
    numbered,
    share_in_cluster,
    sum_by_cluster,
)

seeds = st.integers(0, 2**32 - 1)
# By dense matrices and by sparse ones.
BOTH = pytest.mark.parametrize("few", [0, 1000])


@BOTH
@examples(7)
@given(seed=seeds, n=st.integers(1, 12), K=st.integers(1, 4))
def test_sums_are_those_of_each_cluster(few, seed, n, K):
    rng = np.random.default_rng(seed)
    messages, labels, u = rng.normal(size=(n, 3)), rng.integers(K, size=n), rng.uniform(size=n)
    u[rng.random(n) < 0.2] = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_cluster, "FEW", few)
        for weights in (None, u):
            wanted = np.zeros((K, 3))
            np.add.at(wanted, labels, messages if weights is None else u[:, None] * messages)
            assert_allclose(sum_by_cluster(messages, labels, K, weights), wanted, atol=1e-13)
        single = sum_by_cluster(messages.astype(np.float32), labels, K, u)
        assert single.dtype == np.float32
        assert_allclose(single, wanted, rtol=1e-5, atol=1e-5)


@BOTH
def test_a_client_that_diverged_is_the_matter_of_its_cluster(few, monkeypatch):
    monkeypatch.setattr(by_cluster, "FEW", few)
    messages = np.array([[1.0, 2.0], [np.inf, np.nan], [3.0, 4.0], [np.nan, np.inf]])
    weights = np.array([1.0, 2.0, 3.0, 0.0])
    summed = sum_by_cluster(messages, np.array([0, 1, 0, 0]), 3, weights)
    assert_array_equal(summed, [[10.0, 14.0], [np.inf, np.nan], [0.0, 0.0]])
    assert_array_equal(weights, [1.0, 2.0, 3.0, 0.0])


@examples(7)
@given(seed=seeds, n=st.integers(1, 12))
def test_means_are_averages_of_each_cluster(seed, n):
    rng = np.random.default_rng(seed)
    values, labels = rng.normal(size=(n, 2)), numbered(rng.integers(4, size=n))
    weights = rng.uniform(0.1, 1.0, size=n)
    for u in (None, weights):
        means = mean_by_cluster(values, labels, u)
        for k, mean in enumerate(means):
            own = None if u is None else u[labels == k]
            assert_allclose(mean, np.average(values[labels == k], axis=0, weights=own))


def test_clients_that_weigh_nothing_count_alike_where_nobody_weighs():
    labels, weights = np.array([0, 0, 1, 1]), np.array([1.0, 3.0, 0.0, 0.0])
    assert_array_equal(share_in_cluster(weights, labels), [0.25, 0.75, 0.5, 0.5])
    assert_array_equal(share_in_cluster(weights > 0, labels, 3), [0.5, 0.5, 0.5, 0.5])
    values = np.array([[1.0], [5.0], [2.0], [4.0]])
    assert_array_equal(mean_by_cluster(values, labels, weights), [[4.0], [3.0]])


def test_equal_partitions_have_equal_numbers():
    assert_array_equal(numbered(np.array([7, 2, 7, 5])), [0, 1, 0, 2])
