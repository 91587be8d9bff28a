"""Blocks: the rows of several clients, padded to one length, and their matrix products.

A federation's rows are stored once, in blocks of about ``BLOCK_BYTES``.  A block holds
whole clients of similar size; shorter clients are padded with rows of zeros that weigh
nothing, so that every product over a block is one batched BLAS call and no code loops
over clients.  Blocks are small enough to stay in cache between the product that gives
the predictions and the one that gives the gradient.

Shapes, everywhere in the client side: ``c`` clients in the block, ``n`` rows per client
(with padding), ``d`` columns of the design matrix, ``C`` outputs per model, ``K`` models.
Rows come last, outputs before them: predictions are ``(c, C, n)`` or ``(c, K, C, n)``.
"""

import copy

import numpy as np
from scipy import sparse

from ..numerics.by_cluster import weight_by_cluster
from ..numerics.matrices import slices
from ..numerics.memory import require
from ..numerics.newton import MAX_DENSE
from ..numerics.threads import in_order

BLOCK_BYTES = 4 * 2**20
# A client at least this fraction of the longest one of its block may share the block.
MIN_FILL = 0.8
# Clients of a block are few where there are this many times more of others.
FEW = 8
# Bytes of design matrices up to which clients are gathered however many there are: what blocks
# remember of their rows lasts as long as the blocks.
GATHERED_BYTES = 2**26
# Bytes of padding that cost less than another block: calls on small arrays are mostly overhead.
FREE_PADDING = 256 * 2**10
# Rounding of weights, as a part of them.
WHOLE = 1e-9


class Block:
    """Dense block.

    Parameters
    ----------
    X : ndarray of shape (c, n, d)
        Design matrices; rows of padding are zero.
    y : ndarray of shape (c, q, n)
        Encoded targets, ``q`` of them a row (0 without targets).
    weights : ndarray of shape (c, n)
        Row weights, divided by the client's total: a client's row sums to 1, or to 0
        where the client has no rows.
    clients : ndarray of shape (c,)
        Positions of the clients in the federation.
    lengths : ndarray of shape (c,)
        Number of true rows of each client.
    exact : tuple of ndarray, default=None
        Targets and weights in double precision, where the block's own are not: second-order
        methods and proofs are about the objective that has these.
    """

    def __init__(self, X, y, weights, clients, lengths, exact=None):
        self.X = X
        self.y = y
        self.weights = weights
        self.clients = clients
        self.lengths = lengths
        self.exact = (y, weights) if exact is None else exact
        self.cache = {}
        #: Parameters that clients keep for themselves (c, q), and which clients do (c,), or None.
        self.own = None
        #: What ``copies_of`` weights says (c, n), of other weights than the block's, or None.
        self.copies = None

    @property
    def shape(self):
        """Clients, rows per client (with padding) and columns."""
        return self.X.shape

    @property
    def dtype(self):
        """Type of the design matrix."""
        return self.X.dtype

    @property
    def _about(self):
        """What a block has beside the design matrix."""
        return self.y, self.weights, self.clients, self.lengths

    def _made(self, X, *about):
        """Block of this kind with another design matrix."""
        return type(self)(X, *about)

    def forward_all(self, theta):
        """Predictions of every model on every client: (M, d) -> (c, M, n)."""
        return np.matmul(theta, self.X.transpose(0, 2, 1))

    def forward(self, w):
        """Predictions of each client's own models: (c, C, d) -> (c, C, n)."""
        return np.matmul(w, self.X.transpose(0, 2, 1))

    def backward(self, r):
        """Row values back to the columns: (c, C, n) -> (c, C, d)."""
        return np.matmul(r, self.X)

    def backward_all(self, r):
        """Row values back to the columns, summed over the clients: (c, M, n) -> (M, d)."""
        c, n, d = self.shape
        return r.transpose(1, 0, 2).reshape(-1, c * n) @ self.X.reshape(c * n, d)

    def times(self, w, out):
        """``X_i w_i`` of each client, written into `out`: (c, d, h) -> (c, n, h)."""
        np.matmul(self.X, w, out=out)

    def transposed_times(self, r, out):
        """``X_i' r_i`` of each client, written into `out`: (c, n, h) -> (c, d, h)."""
        np.matmul(self.X.transpose(0, 2, 1), r, out=out)

    def gram(self, h):
        """``X' diag(h) X`` of each client: (c, n) -> (c, d, d)."""
        return self.grams(h[:, None])[:, 0]

    def grams(self, h):
        """``X' diag(h_k) X`` of each client for several `h`: (c, k, n) -> (c, k, d, d)."""
        X = self.dense()[:, None]
        c, _, _, d = X.shape
        out = np.empty((c, h.shape[1], d, d), dtype=np.result_type(X, h))
        step = max(BLOCK_BYTES // max(X.nbytes, 1), 1)
        for part in slices(h.shape[1], step):
            np.matmul((X * h[:, part, :, None]).transpose(0, 1, 3, 2), X, out=out[:, part])
        return out

    def weighted_gram(self):
        """``X' diag(weights) X`` of each client, kept if at most half as large as the rows."""
        if "gram" in self.cache:
            return self.cache["gram"]
        G = self.gram(self.weights)
        if 2 * self.shape[2] <= self.shape[1]:
            self.cache["gram"] = G
        return G

    def squares(self):
        """Weighted sums of the squares of each column, (c, d)."""
        return np.matmul(self.weights[:, None, :], self.X**2)[:, 0]

    def row_gram(self, scale):
        """``X diag(scale) X'`` of each client: (c, d) -> (c, n, n)."""
        return np.matmul(self.X * scale[:, None, :], self.X.transpose(0, 2, 1))

    def column_forms(self, Q):
        """``x' Q x`` of each column x of each client: (c, n, n) -> (c, d)."""
        return np.einsum("cnd,cnd->cd", np.matmul(Q, self.X), self.X)

    def dense(self):
        """Design matrices as an array of shape (c, n, d)."""
        return self.X

    def take(self, index):
        """Block of some of the clients, by their places in this block."""
        about = (values[index] for values in self._about)
        exact = None
        if self.exact[1] is not self.weights:
            exact = tuple(values[index] for values in self.exact)
        return self._hand_on(self._made(self._of_clients(index), *about, exact), index)

    def by_client(self, some):
        """Blocks of one client each of some places, without padding; their caches are kept."""
        each = self.cache.setdefault("by client", {})
        for k in some:
            if k not in each:
                each[k] = self._of_client(k)
        return [self._lend(each[k], slice(k, k + 1)) for k in some]

    def _of_client(self, k):
        """Block of the client at place `k`; it has one row without weight if it has none."""
        some, n = slice(k, k + 1), max(int(self.lengths[k]), 1)
        exact = tuple(values[some, ..., :n] for values in self.exact)
        y, weights = _rounded(exact, self.dtype)
        about = y, weights, self.clients[some], self.lengths[some]
        return self._made(
            self.X[some, :n], *about, None if self.exact[1] is self.weights else exact
        )

    def parts(self, size):
        """Blocks of at most `size` of the clients each, and their places as a slice."""
        c = len(self.lengths)
        for some in slices(c, size):
            yield some, self if size >= c else self.take(some)

    def _of_clients(self, index):
        """Design matrix of some of the clients."""
        return self.X[index]

    def _hand_on(self, part, index=...):
        """`part` with the factors and directions of its clients, if this block has them."""
        for name in self.cache.keys() & {"factors", "row space"}:
            part.cache[name] = self.cache[name].take(index)
        part.copies = None if self.copies is None else self.copies[index]
        return self._lend(part, index)

    def _lend(self, part, index=...):
        """`part` with what its clients keep for themselves, in the same memory for slices."""
        part.own = None if self.own is None else tuple(values[index] for values in self.own)
        return part

    def columns(self, index):
        """Block with some of the columns of the design matrix."""
        return self._made(self.X[:, :, index], *self._about)

    def row_parts(self, size):
        """Rows of all clients, padding included, as blocks of one client of at most `size` rows.

        Yields the places of the rows, a slice of 0..c n, and the block.
        """
        c, n, d = self.shape
        X = self.X.reshape(c * n, d)
        y = self.y.transpose(1, 0, 2).reshape(self.y.shape[1], c * n)
        for some in slices(c * n, size):
            yield some, one_client(X[some], y[:, some])

    def together(self):
        """All rows, padding included, as those of one client."""
        if "together" not in self.cache:
            c, n, _ = self.shape
            ((_, self.cache["together"]),) = self.row_parts(c * n)
        return self.cache["together"]

    def batch(self, rows, weights, room=None):
        """Block of some rows of every client: rows (c, b), weights (c, b).

        `room` may be the design matrix of an earlier batch, which is overwritten.
        """
        c, n, _ = self.shape
        here = np.arange(c)[:, None]
        y = self.y[here[:, :, None], np.arange(self.y.shape[1])[None, :, None], rows[:, None, :]]
        X = self._rows(here * n + rows, room)
        return self._lend(self._made(X, y, weights, self.clients, self.lengths))

    def _rows(self, places, room):
        """Design matrix of rows at some places (c, b) of 0..c n."""
        c, n, d = self.shape
        # Without the mode numpy would write to a temporary array first.
        return np.take(self.X.reshape(c * n, d), places, axis=0, out=room, mode="clip")

    def row_sizes(self):
        """Euclidean lengths of the rows, (c, n)."""
        if "row sizes" not in self.cache:
            X = self.dense()
            self.cache["row sizes"] = np.sqrt(np.einsum("cnd,cnd->cn", X, X))
        return self.cache["row sizes"]

    def column_sizes(self):
        """Weighted root mean squares of the columns, (c, d)."""
        if "column sizes" not in self.cache:
            self.cache["column sizes"] = np.sqrt(self.squares())
        return self.cache["column sizes"]

    def magnitudes(self):
        """Block with the absolute values of the design matrices."""
        return self._made(abs(self.X), *self._about)

    def reweighted(self, weights):
        """Block of the same rows with other weights."""
        return self._lend(self._made(self.X, self.y, weights, self.clients, self.lengths))

    def transformed(self, frame):
        """Block of the rows times a matrix (d, d)."""
        part = Block(np.matmul(self.dense(), frame), *self._about, self.exact)
        part.copies = self.copies
        return part

    def with_targets(self, y):
        """Block of the same rows with other encoded targets, in double precision."""
        other = copy.copy(self)
        other.y, other.exact, other.cache = y, (y, self.exact[1]), {}
        return other

    def astype(self, dtype):
        """Same block in another floating type (itself if nothing changes)."""
        if self.dtype == dtype:
            return self
        y, weights = _rounded(self.exact, dtype)
        about = y, weights, self.clients, self.lengths, self.exact
        return self._hand_on(self._made(self.X.astype(dtype), *about))


class SparseBlock(Block):
    """Block with a CSR matrix of shape (c * n, d) as its design matrix.

    The products of each client with its own model are one product with the block
    diagonal matrix that has the same data, its column indices shifted by client.
    """

    @property
    def shape(self):
        """Clients, rows per client (with padding) and columns."""
        return *self.weights.shape, self.X.shape[1]

    def _hand_on(self, part, index=...):
        own = self.cache.get("own columns")
        if own is not None:
            own = own if index is ... else own.take(index)
            part.cache["own columns"] = own.astype(part.dtype)
        return super()._hand_on(part, index)

    def _diagonal(self):
        if "diagonal" not in self.cache:
            c, n, d = self.shape
            owner = np.repeat(np.arange(c * n) // n, np.diff(self.X.indptr))
            indices = self.X.indices + owner.astype(np.int64) * d
            self.cache["diagonal"] = sparse.csr_array(
                (self.X.data, indices, self.X.indptr), shape=(c * n, c * d)
            )
        return self.cache["diagonal"]

    def forward_all(self, theta):
        """Predictions of every model on every client: (M, d) -> (c, M, n)."""
        c, n, _ = self.shape
        return (self.X @ theta.T).reshape(c, n, len(theta)).transpose(0, 2, 1)

    def forward(self, w):
        """Predictions of each client's own models: (c, C, d) -> (c, C, n)."""
        c, n, d = self.shape
        outputs = w.shape[1]
        columns = w.transpose(0, 2, 1).reshape(c * d, outputs)
        return (self._diagonal() @ columns).reshape(c, n, outputs).transpose(0, 2, 1)

    def backward(self, r):
        """Row values back to the columns: (c, C, n) -> (c, C, d)."""
        c, n, d = self.shape
        outputs = r.shape[1]
        rows = r.transpose(0, 2, 1).reshape(c * n, outputs)
        return (self._diagonal().T @ rows).reshape(c, d, outputs).transpose(0, 2, 1)

    def backward_all(self, r):
        """Row values back to the columns, summed over the clients: (c, M, n) -> (M, d)."""
        return (self.X.T @ r.transpose(0, 2, 1).reshape(self.X.shape[0], -1)).T

    def times(self, w, out):
        """``X_i w_i`` of each client, written into `out`: (c, d, h) -> (c, n, h)."""
        c, n, d = self.shape
        out[...] = (self._diagonal() @ w.reshape(c * d, -1)).reshape(out.shape)

    def transposed_times(self, r, out):
        """``X_i' r_i`` of each client, written into `out`: (c, n, h) -> (c, d, h)."""
        c, n, d = self.shape
        out[...] = (self._diagonal().T @ r.reshape(c * n, -1)).reshape(out.shape)

    def squares(self):
        """Weighted sums of the squares of each column, (c, d)."""
        c, _, d = self.shape
        X = self._diagonal()
        squared = sparse.csr_array((X.data**2, X.indices, X.indptr), shape=X.shape)
        return (squared.T @ self.weights.ravel()).reshape(c, d)

    def row_gram(self, scale):
        """``X diag(scale) X'`` of each client: (c, d) -> (c, n, n)."""
        c, n, _ = self.shape
        X = self._diagonal()
        scaled = X.data * scale.ravel()[X.indices]
        products = sparse.csr_array((scaled, X.indices, X.indptr), shape=X.shape) @ X.T
        products = sparse.coo_array(products)
        out = np.zeros((c, n, n), dtype=products.dtype)
        i, j = products.coords
        out[i // n, i % n, j % n] = products.data
        return out

    def column_forms(self, Q):
        """``x' Q x`` of each column x of each client: (c, n, n) -> (c, d)."""
        c, n, d = self.shape
        own = self.own_columns()
        columns, X = (None, self.X) if own is None else (own.columns, own.block.X)
        width = X.shape[1]
        out = np.zeros((c, d))
        for i in range(c):
            first, last = X.indptr[i * n], X.indptr[(i + 1) * n]
            indices, data = X.indices[first:last], X.data[first:last]
            indptr = X.indptr[i * n : (i + 1) * n + 1] - first
            # Columns as rows, so that the product has one row for each that the client touches.
            mine = sparse.csc_array((data, indices, indptr), shape=(width, n))
            products = mine @ Q[i]
            row = np.repeat(np.arange(n), np.diff(indptr))
            forms = np.bincount(indices, data * products[indices, row], minlength=width)
            out[i, slice(None) if columns is None else columns[i]] = forms
        return out

    def dense(self):
        """Design matrices as an array of shape (c, n, d)."""
        c, n, d = self.shape
        require(
            c * n * d * self.dtype.itemsize,
            f"Dense copies of {c * n} sparse rows of {d} columns",
            "Methods of first order, as IFCA, FedAvg or CLoVE, leave rows sparse; or take fewer "
            "columns (feature selection, hashing or a projection).",
        )
        return self.X.toarray().reshape(self.shape)

    def row_sizes(self):
        """Euclidean lengths of the rows, (c, n)."""
        if "row sizes" not in self.cache:
            squares = np.asarray(self.X.multiply(self.X).sum(axis=1)).ravel()
            self.cache["row sizes"] = np.sqrt(squares).reshape(self.shape[:2])
        return self.cache["row sizes"]

    def scaled(self, factors):
        """Block of the same rows times factors (c, n)."""
        X = self.X
        data = X.data * np.repeat(factors.ravel(), np.diff(X.indptr))
        X = sparse.csr_array((data, X.indices, X.indptr), shape=X.shape)
        return self._made(X, *self._about)

    def _rows(self, places, room=None):
        return sparse.csr_array(self.X[places.ravel()])

    def _of_clients(self, index):
        c, n, _ = self.shape
        return self._rows(np.arange(c)[index, None] * n + np.arange(n))

    def columns(self, index):
        """Block with some of the columns of the design matrix."""
        X = sparse.csr_array(self.X[:, np.flatnonzero(index)])
        return self._made(X, *self._about)

    def own_columns(self):
        """The columns that each client's rows touch, None where that is no smaller problem."""
        if "own columns" not in self.cache:
            self.cache["own columns"] = OwnColumns.of(self)
        return self.cache["own columns"]


class OwnColumns:
    """The columns that the rows of each client of a sparse block touch.

    Attributes
    ----------
    columns : ndarray of shape (c, s)
        Numbers of the columns, ascending; clients with fewer than `s` have others too.
    block : SparseBlock
        The same rows, column j of a client being its ``columns[j]``.
    """

    def __init__(self, columns, block):
        self.columns, self.block = columns, block

    @classmethod
    def of(cls, block):
        """Columns of a block; None if a client touches most of the columns."""
        c, n, d = block.shape
        X = block.X
        owner = np.repeat(np.arange(c * n) // n, np.diff(X.indptr)).astype(np.int64)
        entries = owner * d + X.indices
        used = np.unique(entries)
        counts = np.bincount(used // d, minlength=c)
        s = int(counts.max())
        if 2 * s > d:
            return None
        columns = np.empty((c, s), dtype=np.int64)
        for i, mine in enumerate(np.split(used % d, np.cumsum(counts)[:-1])):
            # The first s columns have enough that the client does not touch.
            rest = np.setdiff1d(np.arange(s), mine, assume_unique=True)[: s - len(mine)]
            columns[i] = np.sort(np.concatenate([mine, rest]))
        flat = (np.arange(c)[:, None] * d + columns).ravel()
        indices = np.searchsorted(flat, entries) - owner * s
        Xs = sparse.csr_array((X.data, indices, X.indptr), shape=(c * n, s))
        exact = None if block.exact[1] is block.weights else block.exact
        return cls(columns, SparseBlock(Xs, *block._about, exact))

    def inside(self, W):
        """Values of the columns in models: (c, C, d) -> (c, C, s)."""
        return np.take_along_axis(W, self._places(W), axis=2)

    def put(self, W, inner):
        """Give the columns in the models `W` the values `inner` (in place)."""
        np.put_along_axis(W, self._places(W), inner, axis=2)

    def _places(self, W):
        c, s = self.columns.shape
        return np.broadcast_to(self.columns[:, None, :], (c, W.shape[1], s))

    def take(self, index):
        """Values of some of the clients."""
        return OwnColumns(self.columns[index], self.block.take(index))

    def astype(self, dtype):
        """The same in another floating type."""
        return OwnColumns(self.columns, self.block.astype(dtype))


def copies_of(weights):
    """How many rows each row stands for: its weight, or 0 where that is no whole number.

    Weights (c, n) are no parts of their client's.  Rows without weight are one row.
    """
    whole = np.rint(weights)
    known = (np.abs(weights - whole) <= WHOLE * weights) & (WHOLE * weights < 0.25)
    return np.where(known, np.maximum(whole, 1.0), 0.0)


def one_client(X, y=None):
    """Block of one client with rows `X` (n, d), dense or CSR, and encoded targets (q, n)."""
    n = X.shape[0]
    y = np.empty((0, n), X.dtype) if y is None else y
    weights = np.full((1, n), 1.0 / n, X.dtype)
    about = y[None], weights, np.zeros(1, dtype=np.intp), np.array([n])
    return SparseBlock(X, *about) if sparse.issparse(X) else Block(X[None], *about)


def _cuts(lengths, row_bytes, block_bytes):
    """Places where to cut the clients, sorted by decreasing length, into blocks."""
    cuts, start, n = [0], 0, len(lengths)
    while start < n:
        rows = max(lengths[start], 1)
        most = max(int(block_bytes // (rows * row_bytes)), 1)
        # Lengths decrease, so the first client that is too short ends the block.
        rest = lengths[start : start + most]
        padding = np.cumsum(rows - rest) * row_bytes
        short = start + max(
            np.searchsorted(-rest, -MIN_FILL * rows, side="right"),
            np.searchsorted(padding, FREE_PADDING, side="right"),
        )
        start = int(min(start + most, max(short, start + 1)))
        cuts.append(start)
    return cuts


def _rounded(exact, dtype):
    """Targets, but class codes, and weights in a floating type."""
    y, weights = exact
    y = y.astype(dtype, copy=False) if y.dtype.kind == "f" else y
    return y, weights.astype(dtype, copy=False)


def make_blocks(
    X,
    y,
    weights,
    codes,
    n_clients,
    block_bytes=BLOCK_BYTES,
    design=None,
    each=in_order,
    order=None,
):
    """Sort rows by client and store them in blocks.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n_rows, n_features)
        Features.
    y : ndarray of shape (n_rows, q)
        Encoded targets.
    weights : ndarray of shape (n_rows,)
        Positive row weights.
    codes : ndarray of shape (n_rows,)
        Position of the client that owns each row.
    n_clients : int
        Number of clients; some may own no row.
    block_bytes : int
        Size of the design matrix of a block.
    design : callable, default=None
        Makes design matrices (n, d) of features (n, n_features), row by row: dense ones block by
        block, so that there is no copy of all rows beside the blocks.  None is `X` itself.
    each : callable, default=in_order
        ``each(function, items)`` makes dense blocks, which do not depend on each other.
    order : ndarray of shape (n_rows,), default=None
        Positions of the rows, sorted by client; None keeps the order of each client's rows.

    Returns
    -------
    blocks : list of Block
        Every client is in exactly one of them.
    """
    counts = np.bincount(codes, minlength=n_clients)
    totals = weight_by_cluster(codes, weights, n_clients)
    order = np.argsort(codes, kind="stable") if order is None else order
    first = np.concatenate([[0], np.cumsum(counts)])
    by_length = np.argsort(-counts, kind="stable")
    is_sparse = sparse.issparse(X)
    if design is None:
        design = np.asarray
    elif is_sparse:
        X = design(X)
    n_columns, dtype = X.shape[1], X.dtype
    if not is_sparse:
        n_columns, dtype = (empty := design(X[:0])).shape[1], empty.dtype
    if is_sparse:
        # Values and indices, or the dense copy that second-order methods would make.
        per_row = 12.0 * X.nnz / max(X.shape[0], 1)
        row_bytes = max(per_row, 8.0 * min(n_columns, MAX_DENSE), 16.0)
    else:
        row_bytes = max(n_columns, 1) * dtype.itemsize
    share = weights / totals[codes] if len(codes) else weights
    cuts = _cuts(counts[by_length], row_bytes, block_bytes)

    def made(cut):
        clients = by_length[slice(*cut)]
        lengths = counts[clients]
        n = max(int(lengths.max()), 1)
        real = np.arange(n) < lengths[:, None]
        source = order[(first[clients][:, None] + np.arange(n))[real]]
        if len(source) and (np.diff(source) == 1).all():
            source = slice(source[0], source[-1] + 1)  # no copy of rows that lie in order
        w = np.zeros((len(clients), n))
        w[real] = share[source]
        yb = np.zeros((len(clients), y.shape[1], n), dtype=y.dtype)
        yb.transpose(0, 2, 1)[real] = y[source]
        about = *_rounded((yb, w), dtype), clients, lengths
        about += () if dtype == np.float64 else ((yb, w),)
        if is_sparse:
            place = np.flatnonzero(real)
            size = np.zeros(real.size, dtype=np.int64)
            rows = X[source]
            rows.sum_duplicates()
            size[place] = np.diff(rows.indptr)
            indptr = np.concatenate([[0], np.cumsum(size)])
            Xb = sparse.csr_array((rows.data, rows.indices, indptr), shape=(real.size, n_columns))
            return SparseBlock(Xb, *about)
        rows = design(X[source])
        if real.all() and not np.may_share_memory(rows, X):
            return Block(np.ascontiguousarray(rows).reshape(len(clients), n, n_columns), *about)
        Xb = np.zeros((len(clients), n, n_columns), dtype=dtype)
        Xb[real] = rows
        return Block(Xb, *about)

    pairs = list(zip(cuts[:-1], cuts[1:], strict=True))
    return in_order(made, pairs) if is_sparse else each(made, pairs)


def gathered(parts, block_bytes=BLOCK_BYTES):
    """Some clients of each of many dense blocks, in new blocks.

    Parameters
    ----------
    parts : list of (Block, ndarray or None, ndarray)
        Blocks, positions of clients in them (None is all), and what is known of these clients.
    block_bytes : int
        Size of the design matrix of a block.

    Returns
    -------
    parts : list of (Block, ndarray or None, ndarray)
        The same clients; large parts of blocks as they were.
    """
    few, out, dense = {}, [], []
    for part in parts:
        block, index, _ = part
        free = index is not None and type(block) is Block and "factors" not in block.cache
        free = free and block.copies is None
        (dense if free else out).append(part)
    total = sum(len(index) * block.X[0].nbytes for block, index, _ in dense)
    for block, index, slots in dense:
        c, n, d = block.shape
        if total <= GATHERED_BYTES or FEW * len(index) <= c:
            few.setdefault((n, d, block.dtype), []).append((block, index, slots))
        else:
            out.append((block, index, slots))
    for (n, d, dtype), alike in few.items():
        taken = [block.take(index) for block, index, _ in alike]
        names = "X", "y", "weights", "clients", "lengths"
        values = [np.concatenate([getattr(part, name) for part in taken]) for name in names]
        exact = None
        if taken[0].exact[1] is not taken[0].weights:
            exact = tuple(map(np.concatenate, zip(*(part.exact for part in taken), strict=True)))
        whole = Block(*values, exact)
        slots = np.concatenate([slots for *_, slots in alike])
        step = max(int(block_bytes // max(n * d * dtype.itemsize, 1)), 1)
        for some in slices(len(slots), step):
            out.append((whole.take(some), None, slots[some]))
    return out
