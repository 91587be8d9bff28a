"""Random numbers that clients draw, from the seed of a fit and their id.

Neither where a client is, nor who else takes part, nor the order of the answers or of a client's
rows changes them.
"""

import numpy as np
from scipy import sparse

from ..numerics.by_cluster import order_by_label
from ..numerics.threads import in_order

# Increment and multipliers of the generator SplitMix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)

# Rows that are sorted at once, of whole clients: as many as a cache holds.
SORTED = 2**12
# Features that determine the order of rows; rows that are equal in these are ordered by hashes.
COMPARED = 4


def splitmix(x):
    """Splitmix64: a good hash of 64-bit integers, so that draws need no stored state."""
    with np.errstate(over="ignore"):
        x = x + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _FIRST
        x = (x ^ (x >> np.uint64(27))) * _SECOND
        return x ^ (x >> np.uint64(31))


def mixed(*keys):
    """One hash of several integers or arrays of them, ndarray of uint64."""
    out = np.uint64(0)
    for key in keys:
        out = splitmix(out ^ np.asarray(key).astype(np.uint64))
    return out


def order_of_rows(codes, X, *more, each=in_order):
    """Positions of rows, sorted by client, and those of a client by content.

    What a client draws about its rows then depends on the rows, and not on the order in which they
    were given.  Only equal rows stay in that order.

    Parameters
    ----------
    codes : ndarray of shape (n_rows,)
        Client of each row.
    X : {ndarray, CSR matrix} of shape (n_rows, n_features)
        Features.  The first `COMPARED` are compared by size, so that their units do not matter.
    *more : ndarray of shape (n_rows,) or (n_rows, q) or None
        Distinguishes rows of equal features: targets, weights.
    each : callable, default=in_order
        ``each(function, items)`` sorts the rows of some clients, which do not depend on others'.

    Returns
    -------
    order : ndarray of shape (n_rows,)
    """
    columns = X[:, :COMPARED]
    columns = list((columns.toarray() if sparse.issparse(X) else columns).T)
    order = order_by_label(codes, codes.max(initial=-1) + 1)
    # Rows may hold no features but the levels of other groupings.
    first = columns[0][order] if columns else np.zeros(len(order))
    codes_in_order = codes[order]
    starts = np.searchsorted(codes_in_order, np.unique(codes_in_order[::SORTED]))

    def sort(some):
        own = np.lexsort((first[some], codes_in_order[some]))
        order[some], first[some] = order[some][own], first[some][own]

    each(sort, list(map(slice, starts, np.append(starts[1:], len(order)))))
    same = (np.diff(codes_in_order) == 0) & (first[1:] == first[:-1])
    tied = np.append(same, False) | np.append(False, same)
    if tied.any():
        rows = order[tied]
        columns = [*(column[rows] for column in columns), fingerprints(X[rows])]
        for part in more:
            if part is not None:
                columns += list(part[rows].reshape(len(rows), -1).T)
        order[tied] = rows[np.lexsort((*columns[::-1], codes[rows]))]
    return order


def ranks(codes, order):
    """Place of each row among those of its client, of rows that an order sorts by client."""
    starts = np.cumsum(np.append(0, np.bincount(codes)))
    out = np.empty(len(order), dtype=np.intp)
    out[order] = np.arange(len(order)) - starts[codes[order]]
    return out


def shuffled(seed, numbers, codes, order=None, classes=None):
    """Place of each row among those of its client in a random order, by class if given.

    Parameters
    ----------
    seed : int
        The same for all clients.
    numbers : ndarray of shape (n_clients,)
        Numbers of the clients, by which they draw.
    codes : ndarray of shape (n_rows,)
        Client of each row.
    order : ndarray of shape (n_rows,), default=None
        Positions of the rows, sorted by client, in the order in which they draw; None takes rows
        that are sorted by client.
    classes : ndarray of shape (n_rows,), default=None
        Class of each row.
    """
    places = ranks(codes, np.arange(len(codes)) if order is None else order)
    key = mixed(seed, numbers[codes], places)
    return ranks(codes, np.lexsort((key, codes) if classes is None else (key, classes, codes)))


def dealt(n_folds, seed, numbers, codes, *rows, least=1):
    """Fold in which each row is held out, -1 for a client's only row; see :func:`shuffled`.

    A client holds out, and keeps, at least `least` rows: it has rows in fewer folds, or in none.
    """
    # Clients of few rows begin at different folds.
    first = (mixed(seed, numbers) % np.uint64(n_folds)).astype(np.intp)
    used = np.minimum(np.bincount(codes, minlength=len(numbers)) // least, n_folds)[codes]
    fold = (shuffled(seed, numbers, codes, *rows) % np.maximum(used, 1) + first[codes]) % n_folds
    return np.where(used > 1, fold, -1)


def fingerprints(X):
    """Hashes of rows, equal for equal rows, (n_rows,) of uint64."""
    if not sparse.issparse(X):
        out = np.zeros(len(X), dtype=np.uint64)
        for j, column in enumerate(X.T):
            out += _hashed(column, np.uint64(j))
        return out
    X = sparse.csr_array(X)
    total = np.append(np.uint64(0), np.cumsum(_hashed(X.data, X.indices.astype(np.uint64))))
    return total[X.indptr[1:]] - total[X.indptr[:-1]]


def _hashed(values, columns):
    """Hashes of numbers in columns, 0 of the number 0."""
    bits = np.asarray(values, dtype=np.float64).view(np.uint64)
    return np.where(values == 0, np.uint64(0), splitmix(bits ^ splitmix(columns)))
