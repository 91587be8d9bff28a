"""Calls in which clients describe their rows: digests, sums, centres, directions, classes."""

from hashlib import blake2b

import numpy as np
from scipy import sparse

from ..clients.draws import mixed
from ..clients.local_clusters import local_kmeans
from ..numerics.matrices import quotient
from ..numerics.threads import at_once, libraries, one_thread
from .answer_bounds import COUNTS, DIGESTS, NOT_NEGATIVE, TOTAL, UNIT
from .call import Call

# Singular values below this part of the largest are rounding.
RANK = 1e-9


class Fingerprints(Call):
    """Digests of the clients' rows that do not depend on their order.

    Two clients have the same digest only if they have the same rows, targets and weights, but
    for one chance in ``2 ** 106``: their objectives are then one function.

    Parameters
    ----------
    key : int
        Key of the digests, so that those of different fits cannot be compared.
    targets : bool, default=True
        If False, the digests leave out the targets: equal ones then mean equal Hessians of
        least squares.

    Returns
    -------
    digests : ndarray of shape (n_clients, 2)
        NaN of silent clients.
    """

    down = {"key": "", "targets": ""}
    defaults = {"targets": True}
    up = {"digests": "n 2"}
    free = frozenset({"key", "targets"})
    whole = False
    proof = True
    unbounded = frozenset({"digests"})
    bounds = {"digests": DIGESTS}

    def answer(cls, clients, key, targets):
        def digest(X, target, weights):
            total = weights.sum()
            share = weights / total if total > 0 else weights
            columns = [X, target, share] if targets else [X, share]
            rows = np.column_stack(columns).astype(float) + 0.0  # no negative zeros
            rows = np.ascontiguousarray(rows[np.lexsort(rows.T)])
            code = blake2b(rows.tobytes(), digest_size=16, key=key.to_bytes(8, "little"))
            return np.frombuffer(code.digest(), dtype="<u8") >> np.uint64(11)

        digests = np.zeros((clients.n_clients, 2))
        for i, own in enumerate(_rows_of_each(clients)):
            digests[i] = digest(*own)
        return {"digests": digests}

    def fill(cls, pool, answers, lost, arguments, start, whole):
        answers["digests"][lost] = np.nan


class FeatureSums(Call):
    """Sums of the features over the rows of the clients.

    Parameters
    ----------
    counted : ndarray of shape (n_clients,) of bool, default=True
        Clients that are in the sums.

    Returns
    -------
    weight : float
        Total weight of the rows.
    sums, squares : ndarray of shape (n_features,)
        Weighted sums of the features, and of their squares, in the units of the pool.
    """

    down = {"counted": "n"}
    defaults = {"counted": True}
    up = {"weight": "", "sums": "f", "squares": "f"}
    whole = False
    minimised = True
    proof = True
    bounds = {"weight": TOTAL, "squares": NOT_NEGATIVE}

    def kernel(cls, clients, block, slots, counted):
        n, d = clients.client_weights[slots] * counted, clients.model.n_features
        block = block.astype(np.float64)
        sums = block.backward(block.weights[:, None])[:, 0], block.squares()
        return n.sum(), *(n @ each[:, :d] for each in sums)


class LocalCentres(Call):
    """Centres of k-means on each client's own rows, by Awasthi and Sheffet's method.

    Parameters
    ----------
    n_centres : int
        Most centres of a client, which has no more than different rows.

    Returns
    -------
    centres : ndarray of shape (n_clients, n_centres, n_features)
    counts : ndarray of shape (n_clients, n_centres)
        Rows of each centre; zero where there is none.
    """

    down = {"n_centres": "", "draw": ""}
    up = {"centres": "n h f", "counts": "n h"}
    free = frozenset({"n_centres", "draw"})
    most = {"n_centres": 10_000}
    always_draws = True
    about = "counts"
    bounds = {"counts": COUNTS}

    def answer(cls, clients, n_centres, draw):
        rows = list(_rows_of_each(clients))
        centres = np.zeros((clients.n_clients, n_centres, clients.model.n_features))
        counts = np.zeros((clients.n_clients, n_centres))
        seeds = mixed(*draw, clients.places) % np.uint64(2**31)

        def work(i):
            X, _, weights = rows[i]
            with openmp.limit(limits=1):  # of this thread
                found, size = local_kmeans(X.astype(float), n_centres, int(seeds[i]), weights)
            # Weights are stored as shares: ties are not to be broken by their rounding.
            size = np.round(size, min(12 - int(np.ceil(np.log10(size.sum()))), 300))
            centres[i, : len(found)], counts[i, : len(found)] = found, size

        # One thread per client: k-means on few rows does not gain by more.
        openmp = libraries().select(user_api="openmp")
        with one_thread():
            at_once(work, np.flatnonzero(clients.client_sizes), clients.n_jobs)
        return {"centres": centres, "counts": counts}


class Subspaces(Call):
    """First directions of the clients' rows: left singular vectors of (features x rows).

    Rows count with the root of their weight, and are not centred.

    Parameters
    ----------
    n_vectors : int
        Vectors of each matrix.
    n_columns : int
        Vectors of each client, zero where it has fewer.
    by_class : bool
        If True, each of a client's classes is a matrix (classifiers); if False, all of its rows.

    Returns
    -------
    bases : ndarray of shape (n_clients, n_features, n_columns)
        Orthonormal within a class; zero of clients without rows or answer.
    """

    down = {"n_vectors": "", "n_columns": "", "by_class": ""}
    up = {"bases": "n f v"}
    free = frozenset({"n_vectors", "n_columns", "by_class"})
    about = "classes"
    bounds = {"bases": UNIT}

    def is_of_classes(cls, arguments):
        return bool(arguments["by_class"])

    def answer(cls, clients, n_vectors, n_columns, by_class):
        bases = np.zeros((clients.n_clients, clients.model.n_features, n_columns))
        by_class = by_class and clients.model.estimator_type == "classifier"
        # One decomposition per client and class: their matrices have unlike shapes.
        for i, (X, target, weights) in enumerate(_rows_of_each(clients)):
            X = X * np.sqrt(weights)[:, None]
            codes = np.zeros(len(X), dtype=np.intp)
            if by_class and len(X):
                codes = np.unique(target, axis=0, return_inverse=True)[1].ravel()
            place = 0
            for code in np.unique(codes):
                _, size, vectors = np.linalg.svd(X[codes == code], full_matrices=False)
                real = size > RANK * size.max(initial=0.0)
                vectors = vectors[real][:n_vectors].T
                bases[i, :, place : place + vectors.shape[1]] = vectors
                place += vectors.shape[1]
        return {"bases": bases}


class ClassStatistics(Call):
    """What clients say of their rows' representations under their models.

    Parameters
    ----------
    w : ndarray of shape (n_clients, n_params)
        One model per client.

    Returns
    -------
    means : ndarray of shape (n_clients, n_classes, n_representation)
        Weighted means of each class, zero of classes without rows.
    counts : ndarray of shape (n_clients, n_classes)
        Weight of the rows of each class.
    squares : ndarray of shape (n_clients,)
        Weighted mean of the squared lengths.
    """

    down = {"w": "n p"}
    up = {"means": "n C q", "counts": "n C", "squares": "n"}
    known = "w"
    whole = False
    about = "classes"
    bounds = {"counts": COUNTS, "squares": NOT_NEGATIVE}

    def kernel(cls, clients, block, slots, w):
        A = clients.model.representation(block, w).astype(np.float64)
        C = clients.model.n_classes
        own = clients.model.classes_of(block)[:, None, :] == np.arange(C)[:, None]
        share = own * block.exact[1][:, None, :]
        total = share.sum(axis=2)
        sums = np.matmul(share, A)
        means = quotient(sums, total[..., None])
        squares = np.einsum("cnq,cnq,cn->c", A, A, block.exact[1])
        return means, total * clients.client_weights[slots][:, None], squares


def _rows_of_each(clients):
    """Features, encoded targets and weights of each client's rows."""
    design, target, weights, _ = clients.rows()
    first = np.concatenate([[0], np.cumsum(clients.client_sizes)])
    for start, stop in zip(first[:-1], first[1:], strict=True):
        X = design[start:stop][:, : clients.model.n_features]
        yield X.toarray() if sparse.issparse(X) else X, target[start:stop], weights[start:stop]
