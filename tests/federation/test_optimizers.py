"""Optimisers against the textbook, batches against their promises."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from trials import examples

from skcfl.clients.blocks import Block
from skcfl.clients.optimizers import Batches

seeds = st.integers(0, 2**32 - 1)


# --------------------------------------------------------------------------------- batches


def block_of(lengths, padded, seed=0, first=0):
    """Block whose rows carry their own number in the design and the target."""
    rng = np.random.default_rng(seed)
    lengths, c = np.array(lengths), len(lengths)
    X = np.broadcast_to(np.arange(padded, dtype=float)[None, :, None], (c, padded, 1)).copy()
    weights = rng.uniform(1, 2, size=(c, padded)) * (np.arange(padded) < lengths[:, None])
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    return Block(X, X.transpose(0, 2, 1).copy(), weights, first + np.arange(c), lengths)


lengths = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@examples(14)
@given(lengths=lengths, size=st.integers(1, 12), seed=seeds)
def test_an_epoch_visits_every_row_once(lengths, size, seed):
    block = block_of(lengths, max(*lengths, 1))
    seeds = np.random.default_rng(seed).integers(2**63, size=len(lengths)).astype(np.uint64)
    batches = Batches(block, size, seeds)
    visits = [[] for _ in lengths]
    for _ in range(3 * 9):
        batch = batches.next()
        assert batch.shape[1] <= size
        for k, n in enumerate(lengths):
            real = batch.weights[k] > 0
            rows = batch.X[k, real, 0].astype(int)
            assert_array_equal(batch.y[k, 0, real].astype(int), rows)
            visits[k].append(rows)
            if n:
                own = block.weights[k, rows]
                assert_allclose(batch.weights[k, real], own / own.sum(), rtol=1e-14)
            else:
                assert not real.any()
    for k, n in enumerate(lengths):
        per_epoch = max(-(-n // size), 1)
        for start in range(0, 27 - per_epoch + 1, per_epoch):
            epoch = np.concatenate(visits[k][start : start + per_epoch])
            assert sorted(epoch) == list(range(n))


def test_orders_are_fair():
    """The first row of an epoch is any row with the same frequency; no two orders are alike."""
    batches = Batches(block_of([5] * 100, 5), 1, np.arange(100, dtype=np.uint64))
    rows = np.stack([batches.next().X[:, 0, 0].copy() for _ in range(5 * 40)])
    counts = np.bincount(rows[::5].astype(int).ravel(), minlength=5)
    assert_allclose(counts / 4000, 0.2, atol=0.03)
    # Clients share no order, nor do epochs: a permutation of 50 does not come twice.
    batches = Batches(block_of([50, 50], 50), 50, np.array([1, 2], dtype=np.uint64))
    epochs = [batches.next().X[:, :, 0].copy() for _ in range(3)]
    assert len({tuple(order) for epoch in epochs for order in epoch}) == 6
