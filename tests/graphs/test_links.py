"""Shortest links between groups of points."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial.distance import cdist
from trials import examples

from skcfl.graphs import links as _links
from skcfl.graphs.links import shortest_links


@examples(20)
@given(
    seed=st.integers(0, 10**6), few=st.sampled_from([0, 3, 32]), sample=st.sampled_from([1, 256])
)
def test_links_are_those_of_the_minimum_spanning_tree(seed, few, sample):
    rng = np.random.RandomState(seed)
    n, d = rng.randint(2, 120), rng.randint(1, 6)
    points = np.sort(rng.standard_normal((n, d)), axis=0) + 3.0 * rng.randint(3, size=(n, 1))
    if rng.rand() < 0.3:
        points = np.round(points)  # ties, points at one place
    labels = rng.randint(rng.randint(1, 10 if rng.rand() < 0.5 else n + 1), size=n)
    if rng.rand() < 0.5:
        labels.sort()  # by place, so that groups are large and far from each other
    labels = np.unique(labels, return_inverse=True)[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_links, "FEW", few)
        patch.setattr(_links, "SAMPLE", sample)
        heads, tails = shortest_links(points, labels)
    K, D = int(labels.max()) + 1, cdist(points, points)
    between = np.full((K, K), np.inf)
    np.minimum.at(between, (labels[:, None], labels), D)
    # A tree of the distances plus one, since zeros would be no links.
    finite = np.where(np.isinf(between), 0.0, between + 1.0)
    np.fill_diagonal(finite, 0.0)
    tree = minimum_spanning_tree(finite)
    assert (heads < tails).all() and (labels[heads] != labels[tails]).all()
    joined = np.zeros((K, K))
    joined[labels[heads], labels[tails]] = 1.0
    assert connected_components(joined, directed=False)[0] == 1
    # With ties a group may be linked twice, by links of the same length.
    assert len(heads) >= K - 1
    own = np.sort(D[heads, tails])
    best = np.sort(tree.data) - 1.0
    if len(own) == len(best):
        np.testing.assert_allclose(own, best, atol=1e-12)
    np.testing.assert_allclose(np.unique(own.round(9)), np.unique(best.round(9)))


def test_one_group_needs_no_link():
    assert shortest_links(np.zeros((4, 2)), np.zeros(4, dtype=int)).shape == (2, 0)
