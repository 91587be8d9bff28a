"""What clients have answered about, in a file: see ``query_log`` of :class:`SitePolicy`."""

import contextlib
import hashlib
import os
import sqlite3

import numpy as np
from scipy import sparse

from .sites import Refused

#: Seconds that a host waits for the file while others write to it.
WAIT = 60.0
TABLES = """
CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, value REAL);
CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, cell INTEGER, weight REAL);
"""


def row_keys(X, y, ids, codes, weights=None):
    """Keys by which rows are known again: equal rows of a client are numbered.

    Parameters
    ----------
    X : {ndarray, CSR matrix} of shape (n_rows, n_features)
        Features.
    y : array-like of shape (n_rows,) or None
        Targets.
    ids : ndarray of shape (n_clients,)
        Ids of the clients.
    codes : ndarray of shape (n_rows,)
        Client of each row.
    weights : array-like of shape (n_rows,), default=None
        Weights of the rows.

    Returns
    -------
    keys : list of bytes
    """
    names, seen, keys = _texts(ids), {}, []
    targets = _texts(np.zeros(len(codes)) if y is None else np.asarray(y))
    weights = _texts(np.ones(len(codes)) if weights is None else np.asarray(weights))
    for code, *about, x in zip(codes.tolist(), targets, weights, _bytes_of(X), strict=True):
        digest = hashlib.sha256("/".join([names[code], *about, ""]).encode() + x)
        number = seen[digest.digest()] = seen.get(digest.digest(), -1) + 1
        digest.update(number.to_bytes(8, "big"))
        keys.append(digest.digest())
    return keys


def _texts(values):
    """Values as text, the same for the same number of any type."""
    if values.dtype.kind == "f":
        return [str(int(v)) if v.is_integer() else repr(v) for v in values.tolist()]
    return [str(int(v)) if isinstance(v, bool) else str(v) for v in values.tolist()]


def _bytes_of(X):
    """The columns and values of each row that are not zero."""
    X = sparse.csr_array(X, copy=True)
    X.sum_duplicates()
    X.eliminate_zeros()
    parts = X.indices.astype(np.int64), X.data.astype(float)
    spans = zip(X.indptr[:-1].tolist(), X.indptr[1:].tolist(), strict=True)
    return (b"".join(part[a:b].tobytes() for part in parts) for a, b in spans)


class QueryLog:
    """A file of what has been answered, by every host that has it.

    Parameters
    ----------
    path : path-like
        The file; made if it is not there.

    Raises
    ------
    ValueError
        If there can be no such file, or it is another one.
    """

    def __init__(self, path):
        self.path = path
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            with self._connected() as file:
                file.executescript(TABLES)
        except (OSError, sqlite3.Error) as error:
            raise ValueError(
                f"query_log must be a file that a policy has made, or can make; got "
                f"{os.fspath(path)!r}: {error}"
            ) from error

    def _connected(self):
        return contextlib.closing(sqlite3.connect(self.path, WAIT, isolation_level=None))

    @contextlib.contextmanager
    def open(self):
        """The file, which no other host reads or writes meanwhile; Refused if it has failed."""
        try:
            with self._connected() as file:
                file.execute("BEGIN IMMEDIATE")
                yield Entries(file)
                file.execute("COMMIT")
        except sqlite3.Error as error:
            raise Refused(f"it cannot write its query_log: {error}") from error


class Entries:
    """Entries of an open file, none of which stays unless all do.

    Parameters
    ----------
    file : sqlite3.Connection
        The file, in a transaction.
    """

    def __init__(self, file):
        self._file = file

    def number(self, name):
        """A number, None if it was never set."""
        found = self._file.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
        return None if found is None else found[0]

    def set(self, name, value):
        """Keep a number."""
        self._file.execute("REPLACE INTO numbers VALUES (?, ?)", (name, value))

    def rows(self):
        """Cell and weight of each row, by its key."""
        return {key: about for key, *about in self._file.execute("SELECT * FROM rows")}

    def keep(self, rows):
        """Keep (key, cell, weight) of some rows."""
        self._file.executemany("REPLACE INTO rows VALUES (?, ?, ?)", rows)
