"""Blocks against a loop over clients that shares no code with them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from trials import examples

from skcfl.clients.blocks import (
    FEW,
    FREE_PADDING,
    MIN_FILL,
    Block,
    SparseBlock,
    _cuts,
    gathered,
    make_blocks,
)
from skcfl.models import LinearModel

seeds = st.integers(0, 2**32 - 1)
# Ragged on purpose: empty clients, clients of one row, a few long ones.
sizes = st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5, 9, 30]), min_size=1, max_size=12)
block_bytes = st.sampled_from([1, 200, 3000, 2**21])


class Rows:
    """Rows of clients in a random order."""

    def __init__(self, sizes, seed, d=3, q=2, dtype=float, as_sparse=False):
        rng = np.random.default_rng(seed)
        self.sizes, self.m = np.array(sizes), len(sizes)
        self.codes = rng.permutation(np.repeat(np.arange(self.m), sizes))
        n = len(self.codes)
        X = rng.normal(size=(n, d)) * (rng.uniform(size=(n, d)) < 0.6)
        self.X, self.y = X.astype(dtype), rng.normal(size=(n, q)).astype(dtype)
        self.weights = rng.integers(1, 4, size=n).astype(float)
        self.design = sparse.csr_array(self.X) if as_sparse else self.X

    def blocks(self, **options):
        return make_blocks(self.design, self.y, self.weights, self.codes, self.m, **options)

    def of(self, i):
        mine = self.codes == i
        w = self.weights[mine]
        return self.X[mine], self.y[mine], w / w.sum() if mine.any() else w


def forms(test):
    return pytest.mark.parametrize("as_sparse", [False, True], ids=["dense", "csr"])(test)


@forms
@examples(14)
@given(sizes=sizes, seed=seeds, size=block_bytes)
def test_every_row_is_stored_once_in_order(as_sparse, sizes, seed, size):
    """In blocks that are small, and full but for little padding."""
    rows = Rows(sizes, seed, as_sparse=as_sparse)
    blocks = rows.blocks(block_bytes=size)
    clients = np.concatenate([b.clients for b in blocks])
    assert_array_equal(np.sort(clients), np.arange(rows.m))
    for block in blocks:
        assert isinstance(block, SparseBlock if as_sparse else Block)
        c, n, d = block.shape
        X = block.dense()
        assert (block.y.shape, X.shape) == ((c, 2, n), (c, n, d))
        some = np.array([True, False, True])
        assert_array_equal(block.columns(some).dense(), X[:, :, some])
        if not as_sparse:
            full = (block.lengths >= MIN_FILL * n).all()
            assert n == max(block.lengths.max(), 1) and (c == 1 or X.nbytes <= size)
            assert c == 1 or full or 8 * d * (n - block.lengths).sum() <= FREE_PADDING
        for k, i in enumerate(block.clients):
            A, y, w = rows.of(i)
            length = len(A)
            assert block.lengths[k] == length
            for stored, own in ((X[k], A), (block.y[k].T, y)):
                assert_array_equal(stored[:length], own)
                assert not stored[length:].any()  # padding: nothing anywhere
            assert_allclose(block.weights[k, :length], w, rtol=1e-15)
            assert not block.weights[k, length:].any()
            assert_allclose(block.weights[k].sum(), float(length > 0), rtol=1e-14)


def test_small_blocks_are_padded_large_ones_are_full():
    assert _cuts(np.array([100, 80, 50, 3, 0]), 80, 2**22) == [0, 5]
    assert _cuts(np.array([16000, 12000, 11960, 40, 0]), 80, 2**22) == [0, 1, 3, 5]
    assert _cuts(np.array([16000, 15600, 13200, 12760]), 80, 2**30) == [0, 3, 4]
    assert _cuts(np.array([100, 80, 50]), 80, 16000) == [0, 2, 3]


@forms
def test_weighted_gram_is_kept_where_it_is_small(as_sparse):
    """And a Hessian of it is the caller's own."""
    rows = Rows([9, 6, 4], 0, as_sparse=as_sparse)
    kept, model = [], LinearModel(alpha=0.5, fit_intercept=False).bind(3)
    for block in rows.blocks(block_bytes=1):
        w = np.ones((len(block.clients), 3))
        for _ in range(2):
            assert_allclose(block.weighted_gram(), block.gram(block.weights), atol=1e-15)
            H = model.hessian(block, w)
            assert_allclose(H, block.weighted_gram() + 0.5 * np.eye(3), atol=1e-15)
            H[:] = 0.0
        kept.append(block.weighted_gram() is block.weighted_gram())
    assert kept == [True, True, False]


@pytest.mark.parametrize(("dtype", "copied"), [(np.float64, 0), (np.float32, 2**20)])
def test_few_clients_of_many_blocks_are_gathered(dtype, copied, monkeypatch):
    """The same rows in fewer blocks; parts that are large, sparse or factored stay."""
    monkeypatch.setattr("skcfl.clients.blocks.GATHERED_BYTES", copied)
    rows = Rows([5] * 10 * FEW, 0, dtype=dtype)
    blocks = rows.blocks(block_bytes=2 * FEW * 5 * 3 * np.dtype(dtype).itemsize)
    assert [len(block.clients) for block in blocks] == [2 * FEW] * 5
    places = [np.array([1, 4]), np.array([0]), None, np.arange(3), np.array([2])]
    blocks[4].cache["factors"] = np.zeros(2 * FEW)
    parts = [
        (block, index, block.clients[slice(None) if index is None else index])
        for block, index in zip(blocks, places, strict=True)
    ]
    out = gathered(parts)
    assert [len(slots) for *_, slots in out] == ([2 * FEW, 1, 6] if copied else [2 * FEW, 1, 3, 3])
    assert [part[0] for part in out[:-1]] == [blocks[2], blocks[4], blocks[3]][: len(out) - 1]
    block, index, slots = out[-1]
    assert index is None and block.dtype == dtype
    assert_array_equal(slots, np.concatenate([parts[k][2] for k in (0, 1, 3)[: 2 + bool(copied)]]))
    for k, i in enumerate(slots):
        A, y, w = rows.of(i)
        assert_array_equal(block.X[k], A)
        assert_array_equal(block.y[k].T, y)
        assert_allclose(block.exact[1][k], w, rtol=1e-15)
    # In blocks of the size that blocks have.
    single = [slots.tolist() for *_, slots in gathered(parts[:2], block_bytes=1)]
    assert single == [[i] for i in slots[:3]]
    blocks = Rows([5] * 40, 0, as_sparse=True).blocks(block_bytes=3000)
    few = [(block, np.array([0]), block.clients[:1]) for block in blocks]
    assert len(few) > 1 and gathered(few) == few


@forms
def test_a_client_that_overflows_leaves_its_neighbours_alone(as_sparse):
    block = Rows([4, 4, 3], 0, as_sparse=as_sparse).blocks()[0]
    c, n, d = block.shape
    w, r = np.ones((c, 1, d)), np.ones((c, 1, n))
    clean = block.forward(w), block.backward(r)
    w[0], r[0] = np.nan, np.nan
    assert_array_equal(block.forward(w)[1:], clean[0][1:])
    assert_array_equal(block.backward(r)[1:], clean[1][1:])


def test_csr_in_any_form():
    """Unsorted indices, explicit zeros and duplicates mean what scipy says they mean."""
    data = np.array([1.0, 2.0, 0.0, 3.0, 4.0])
    X = sparse.csr_array((data, np.array([2, 0, 1, 1, 1]), np.array([0, 2, 3, 5])), shape=(3, 3))
    A = X.toarray()[[0, 2]]
    blocks = make_blocks(X, np.zeros((3, 1)), np.ones(3), np.array([1, 0, 1]), 2)
    (block,) = [b for b in blocks if 1 in b.clients]
    c, n, _ = block.shape
    k = block.clients.tolist().index(1)
    assert_array_equal(block.dense()[k, :2], A)
    assert_allclose(block.gram(np.ones((c, n)))[k], A.T @ A)
    assert_allclose(block.backward(np.ones((c, 1, n)))[k, 0], A.sum(axis=0))
