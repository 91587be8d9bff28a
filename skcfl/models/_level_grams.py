"""Linear models of rows that belong to levels of other groupings: crossed and nested intercepts.

The rows of client i are ``y = D beta + D b_i + E w + N_i v_i + e`` with the design matrix D of a
linear model, random coefficients ``b_i ~ N(0, phi R R')`` of the client, effects ``w`` of levels
that many clients meet (crossed) and effects ``v_i ~ N(0, phi diag(s^2))`` of levels inside the
client (nested).  ``b_i`` and ``v_i`` are the client's own: it takes them out, with
``V_i = I + D R R' D' + N_i diag(s^2) N_i'``, and sends sums of ``U' V_i^-1 U`` and
``log det(V_i)``, ``U = (D, E, y)``.  All of it follows from the products ``G`` of the columns
``(U, N_i)``, which a client computes once. ``y`` are targets less the predictions of the model's
``origin``, so that products of targets far from zero lose no digits:

    V_i^-1 = I - Z (I + Z'Z)^-1 Z',   Z = (D R, N_i diag(s)).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..clients.blocks import Block
from ..numerics.matrices import root_of


class LevelsMixin:
    """Linear models of rows that may belong to levels of other groupings."""

    #: Number of levels of each crossed and each nested grouping.
    crossed: tuple[int, ...] = ()
    nested: tuple[int, ...] = ()

    def level_grams(self, block, weights):
        """Products of the columns of each client of a block, kept for later calls."""
        if "level grams" not in block.cache:
            d, X = self.n_columns, block.dense()
            y = block.y[:, 0] - X[:, :, :d] @ self.origin
            roots = np.sqrt(block.weights * weights[:, None])
            block.cache["level grams"] = [
                LevelGram.of(self, X[i, :n, :d], X[i, :n, d:], y[i, :n], roots[i, :n])
                for i, n in enumerate(block.lengths)
            ]
        return block.cache["level grams"]

    def without_levels(self, block, weights, root, spreads, effects):
        """Block of the features, the effects of the levels of its clients taken from the targets.

        Parameters
        ----------
        block : Block
            Clients.
        weights : ndarray of shape (c,)
            Total weights of their rows.
        root, spreads, effects : ndarray
            See ``skcfl.calls.levels_asked.LevelSlopes``.
        """
        d, X = self.n_columns, block.dense()
        y = block.y.copy()
        for i, gram in enumerate(self.level_grams(block, weights)):
            n = block.lengths[i]
            y[i, 0, :n] -= self._level_effects(gram, X[i, :n, d:], root, spreads, effects)
        X = np.ascontiguousarray(X[:, :, :d])
        return Block(X, y, block.weights, block.clients, block.lengths)

    def _level_effects(self, gram, codes, root, spreads, effects):
        """Effects of the levels of a client's rows."""
        codes, d, q = codes.astype(np.intp), self.n_columns, root.shape[1]
        total = np.zeros(len(codes))
        starts = np.cumsum([d, *self.crossed])
        for f, column in enumerate(codes.T[: len(self.crossed)]):
            total += np.where(column >= 0, effects[starts[f] + np.maximum(column, 0)], 0.0)
        if len(spreads):
            inside = gram.client_effects(root, spreads, effects)[q:] * spreads[gram.owners]
            for f, column in enumerate(codes.T[len(self.crossed) :]):
                table = np.zeros(max(self.nested[f], 1))
                mine = gram.owners == f
                table[gram.levels[mine]] = inside[mine]
                total += np.where(column >= 0, table[np.maximum(column, 0)], 0.0)
        return total


@dataclass
class LevelGram:
    """Products of the columns ``(D, E, y, N)`` of one client, each row times its root weight.

    Attributes
    ----------
    product : ndarray of shape (a + m, a + m)
        G, of a columns of ``U = (D, E, y)`` and m of N.
    places : ndarray of shape (a,)
        Places of the columns of U among those of all clients: coefficients, then the levels of
        each crossed grouping, then y.
    owners, levels : ndarray of shape (m,)
        Nested grouping of each column of N, and its level.
    """

    product: np.ndarray
    places: np.ndarray
    owners: np.ndarray
    levels: np.ndarray
    last: tuple = field(default=(), repr=False)

    @classmethod
    def of(cls, model, D, codes, y, roots):
        """Those of the rows of a client: design matrix, codes of levels, targets."""
        U, places, N, owners, levels = columns_of(model, D, codes)
        T = np.hstack([U, y[:, None], N]) * roots[:, None]
        last = model.n_columns + sum(model.crossed)
        return cls(T.T @ T, np.append(places, last), owners, levels)

    def taken_out(self, root, spreads):
        """What the client's own effects take out of products of columns, and ``log det(V)``.

        Parameters
        ----------
        root : ndarray of shape (d, q)
            R.
        spreads : ndarray of shape (n_nested,)
            s of each nested grouping.

        Returns
        -------
        half : ndarray of shape (q + m, a + m)
            H with ``(U, N)' V^-1 (U, N) = G - H'H``.
        log_det : float
        factor : ndarray of shape (q + m, q + m)
            Lower triangular F with ``FF' = I + Z'Z``.
        """
        known = self.last
        if known and np.array_equal(known[0], root) and np.array_equal(known[1], spreads):
            return known[2]
        d, q = root.shape
        sizes, a = spreads[self.owners], len(self.places)
        Z = np.empty((len(self.product), q + len(sizes)))
        Z[:, :q] = self.product[:, :d] @ root
        Z[:, q:] = self.product[:, a:] * sizes
        A = np.empty((Z.shape[1], Z.shape[1]))
        A[:q] = root.T @ Z[:d]
        A[q:] = sizes[:, None] * Z[a:]
        A[np.diag_indices_from(A)] += 1.0
        factor = root_of(A)
        half = np.linalg.solve(factor, Z.T)
        found = half, 2.0 * float(np.log(np.abs(np.diag(factor))).sum()), factor
        self.last = root.copy(), spreads.copy(), found
        return found

    def client_effects(self, root, spreads, effects):
        """Expected effects of the client: of its coefficients, by R, then of its levels, by s."""
        half, _, factor = self.taken_out(root, spreads)
        a = len(self.places)
        away = half[:, a - 1] - half[:, : a - 1] @ effects[self.places[:-1]]
        return np.linalg.solve(factor.T, away)


def columns_of(model, D, codes):
    """Columns of the levels that the rows of a client meet.

    Parameters
    ----------
    model : LinearModel
        Bound local model.
    D : ndarray of shape (n, d)
        Design matrix.
    codes : ndarray of shape (n, n_groupings)
        Codes of levels, -1 for none.

    Returns
    -------
    U : ndarray of shape (n, a)
        D, and a column for each crossed level.
    places : ndarray of shape (a,)
        Places of its columns among those of all clients.
    N : ndarray of shape (n, m)
        A column for each nested level.
    owners, levels : ndarray of shape (m,)
        Nested grouping of each of these, and its level.
    """
    starts = np.cumsum([model.n_columns, *model.crossed])
    columns, places = [D], [np.arange(model.n_columns)]
    none = np.zeros(0, dtype=np.intp)
    owners, levels, inside = [none], [none], [np.zeros((len(D), 0))]
    for f, column in enumerate(codes.T.astype(np.intp)):
        met = np.unique(column[column >= 0])
        incidence = (column[:, None] == met).astype(float)
        if f < len(model.crossed):
            columns.append(incidence)
            places.append(starts[f] + met)
        else:
            inside.append(incidence)
            owners.append(np.full(len(met), f - len(model.crossed)))
            levels.append(met)
    arrays = np.concatenate(places), np.hstack(inside), np.concatenate(owners)
    return np.hstack(columns), *arrays, np.concatenate(levels)
