"""Splits inside every client.

Rows of one client and one class are a *cell*. Every cell gives each fold the same number of rows,
and the remainder, fewer rows than there are folds, is dealt so that the number of rows of a
client, of a class and of all differs by at most one between folds, too. That this is always
possible is de Werra's theorem on balanced colourings of bipartite graphs: clients and classes are
the nodes, the remaining rows the edges, the folds the colours.
"""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import BaseCrossValidator
from sklearn.model_selection._split import GroupsConsumerMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import _num_samples

from .._checks import about, is_missing, refuse_masked, whole_number
from .._typing import Array, Groups, IntArray, MatrixLike, RandomState, Targets
from ..clients.ids import check_ids, encode
from ._columns import ids_in_column


class ClientKFold(GroupsConsumerMixin, BaseCrossValidator):
    """K folds inside every client, stratified by class.

    Each client's rows are spread evenly over the folds, so that no fold meets a client it has
    not trained on; ``GroupKFold`` does the opposite and holds out whole clients. If y is
    discrete, folds have equal shares of each class, too.

    Between any two folds, the number of test rows differs by at most one: in all, of any client,
    of any class, and of any class of any client.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds, at least 2. A client with fewer rows has each of them in another fold.
    group_col : str, int or None, default=None
        Column of X that holds the client ids, as in the estimators: a name if X is a DataFrame,
        or a position, negative from the end. None takes them from ``groups``.
    shuffle : bool, default=True
        True if the folds are drawn at random. Without it neighbouring rows of a client and a class
        stay together.
    random_state : int, RandomState instance or None, default=None
        Seed of the draw. Pass an int for the same folds in every call, as halving searches
        require. Only with ``shuffle``.
    singletons : {"train", "test"}, default="train"
        Fold of the row of a client with a single row. "train" keeps it in all training folds, and
        it is never tested. "test" deals it like any other; while it is tested, its client is
        missing from the training rows, so the estimator needs ``unseen="average"`` or
        ``"largest"``.

    Raises
    ------
    ValueError
        From the constructor, if a parameter is not valid; from ``split``, if nothing names the
        clients, both ``groups`` and ``group_col`` do, the ids are not valid, or fewer than
        ``n_splits`` rows can be tested.

    See Also
    --------
    sklearn.model_selection.StratifiedKFold : Knows classes only, can leave clients out.
    sklearn.model_selection.GroupKFold : Holds out whole clients.

    Notes
    -----
    y counts as discrete if it is not of a float type or if all values are integers, as
    in scikit-learn. A continuous y and one with several columns are not stratified.

    As in scikit-learn, ``groups`` is asked for under metadata routing, here unless ``group_col``
    is set.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.model_selection import ClientKFold
    >>> shop = np.array(["a"] * 4 + ["b"] * 3 + ["c"])
    >>> sales = np.linspace(0.5, 4.0, 8)
    >>> X = sales.reshape(-1, 1)
    >>> for train, test in ClientKFold(2, shuffle=False).split(X, sales, groups=shop):
    ...     print(shop[train], shop[test])
    ['a' 'a' 'b' 'c'] ['a' 'a' 'b' 'b']
    ['a' 'a' 'b' 'b' 'c'] ['a' 'a' 'b']
    """

    n_splits: int
    group_col: str | int | None
    shuffle: bool
    random_state: RandomState
    singletons: Literal["train", "test"]

    def __init__(
        self,
        n_splits: int = 5,
        *,
        group_col: str | int | None = None,
        shuffle: bool = True,
        random_state: RandomState = None,
        singletons: Literal["train", "test"] = "train",
    ) -> None:
        self.n_splits = whole_number(n_splits, "n_splits", 2)
        if group_col is not None and not isinstance(group_col, (str, Integral)):
            raise ValueError(
                f"group_col must be a column's name, its position or None, got {group_col!r}."
            )
        if not isinstance(shuffle, (bool, np.bool_)):
            raise ValueError(f"shuffle must be True or False, got {shuffle!r}.")
        if not shuffle and random_state is not None:
            raise ValueError(
                f"random_state={random_state!r} has no effect with shuffle=False. Leave it out, "
                "or set shuffle=True."
            )
        if not isinstance(singletons, str) or singletons not in ("train", "test"):
            raise ValueError(f"singletons must be 'train' or 'test', got {singletons!r}.")
        self.group_col = group_col
        self.shuffle = bool(shuffle)
        self.random_state = random_state
        self.singletons = singletons

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds.

        Parameters
        ----------
        X, y, groups : object, default=None
            Not used, there for compatibility.

        Returns
        -------
        n_splits : int
            Number of folds.
        """
        return self.n_splits

    def split(
        self, X: MatrixLike, y: Targets = None, groups: Groups = None
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Generate training and test rows.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows of all clients, in any order. Without ``group_col`` only their number is used.
        y : array-like of shape (n_samples,), default=None
            Targets, to stratify by if they are discrete.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client. Needed without ``group_col``, refused with it.

        Yields
        ------
        train : ndarray of shape (n_train,)
            Positions of the training rows, sorted. All clients are among them, if no client's
            only row is tested (see ``singletons``).
        test : ndarray of shape (n_test,)
            Positions of the test rows, sorted. Over all folds each row is tested once, or never
            if it is its client's only row.
        """
        folds = self._folds(X, y, groups)
        for k in range(self.n_splits):
            yield np.flatnonzero(folds != k), np.flatnonzero(folds == k)

    def get_metadata_routing(self) -> Any:
        """Metadata that ``split`` asks for.

        Returns
        -------
        routing : MetadataRequest
            Asks for ``groups``, unless ``group_col`` is set.
        """
        routing = super().get_metadata_routing()
        if self.group_col is not None:
            routing.split.add_request(param="groups", alias=False)
        return routing

    def _folds(self, X: MatrixLike, y: Targets, groups: Groups) -> Array:
        """Fold in which each row is tested, -1 for rows that stay in training."""
        with about("X"):
            n_samples = _num_samples(X)
        with about("y"):
            check_consistent_length(X, y)
        _, clients = encode(self._ids(X, groups, n_samples))
        classes = _encode_classes(y)
        if classes is None:
            classes = np.zeros(n_samples, dtype=np.intp)

        dealt = np.ones(n_samples, dtype=bool)
        if self.singletons == "train":
            dealt = np.bincount(clients)[clients] > 1
        n_dealt = np.count_nonzero(dealt)
        if n_dealt < self.n_splits:
            singles = n_samples - n_dealt
            hint = (
                f" {singles} client(s) have a single row, which singletons='train' never tests."
                if singles
                else ""
            )
            raise ValueError(
                f"n_splits={self.n_splits} is more than the number of rows that can be tested, "
                f"{n_dealt}.{hint}"
            )
        with about("random_state"):
            rng = check_random_state(self.random_state) if self.shuffle else None
        folds = np.full(n_samples, -1, dtype=np.intp)
        folds[dealt] = _deal(clients[dealt], classes[dealt], self.n_splits, rng)
        return folds

    def _ids(self, X: MatrixLike, groups: Groups, n_samples: int) -> Array:
        if self.group_col is not None:
            if groups is not None:
                raise ValueError(
                    f"ClientKFold got groups, but has group_col={self.group_col!r} too. The ids "
                    "come from one place: leave groups out, or set group_col=None."
                )
            return ids_in_column(X, self.group_col)
        if groups is None:
            raise ValueError(
                "ClientKFold needs to know the client of each row: pass groups= with one id "
                "per row, or set group_col to the column of X that holds them."
            )
        return check_ids(groups, n_samples)


def _encode_classes(y: Targets) -> Array | None:
    """Class of each row, None if y has no classes."""
    if y is None:
        return None
    refuse_masked(y, "y")
    with about("y"):
        y = np.asarray(y)
    if y.dtype.kind == "O" and any(map(is_missing, y.ravel().tolist())):
        raise ValueError("y must hold classes of one type, one in every row, got missing values.")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    # counted rather than checked for NaN: the estimator says what is wrong with targets
    if y.ndim != 1 or (y.dtype.kind == "f" and (y != np.floor(y)).any()):
        return None
    try:
        return np.unique(y, return_inverse=True)[1]
    except TypeError as error:
        raise ValueError(f"y must hold classes of one type to stratify by: {error}.") from error


def _deal(
    clients: Array, classes: Array, n_folds: int, rng: np.random.RandomState | None
) -> Array:
    """Fold of each row.

    Parameters
    ----------
    clients, classes : ndarray of int of shape (n_samples,)
        Codes from 0.
    n_folds : int
        Number of folds.
    rng : RandomState or None
        None deals in the order of rows, clients and classes.

    Returns
    -------
    folds : ndarray of int of shape (n_samples,)
        From 0 to ``n_folds - 1``.
    """
    n_classes = classes.max() + 1
    cells, cell, sizes = np.unique(
        clients * n_classes + classes, return_inverse=True, return_counts=True
    )
    extra = _deal_remainders(sizes % n_folds, cells // n_classes, cells % n_classes, n_folds, rng)
    if rng is not None:  # every fold is as likely as any other to get a remainder
        extra = extra[:, rng.permutation(n_folds)]
    counts = (sizes // n_folds)[:, None] + extra

    order = np.arange(len(cell)) if rng is None else rng.permutation(len(cell))
    order = order[np.argsort(cell[order], kind="stable")]
    folds = np.empty(len(cell), dtype=np.intp)
    folds[order] = np.repeat(np.tile(np.arange(n_folds), len(cells)), counts.ravel())
    return folds


def _deal_remainders(
    remainders: Array, client: Array, label: Array, n_folds: int, rng: np.random.RandomState | None
) -> Array:
    """Which folds get one more row of each cell.

    Parameters
    ----------
    remainders : ndarray of int of shape (n_cells,)
        Rows to deal, fewer than ``n_folds`` in each cell.
    client, label : ndarray of int of shape (n_cells,)
        The client and the class of each cell; cells are sorted by client.
    n_folds : int
        Number of folds.
    rng : RandomState or None
        None starts from the given order of the cells.

    Returns
    -------
    extra : ndarray of bool of shape (n_cells, n_folds)
        Its sums over the cells of a client, over those of a class and over all cells differ by at
        most one between folds.
    """
    order = np.arange(len(client))
    if rng is not None:
        turn = rng.permutation(client.max() + 1)
        order = np.lexsort((rng.permutation(len(client)), turn[client]))
    # Dealt in turn, client after client: right for cells, clients and the whole.
    cells = np.repeat(order, remainders[order])
    extra = np.zeros((len(client), n_folds), dtype=bool, order="F")
    extra[cells, np.arange(len(cells)) % n_folds] = True

    # Classes lie across the clients. While one differs by more than one between two folds, deal
    # the rows of these two folds anew. The sum of the squared class counts falls every time.
    totals = np.stack([np.bincount(label, weights=column) for column in extra.T])
    while (gaps := np.ptp(totals, axis=0)).max() > 1:
        worst = totals[:, gaps.argmax()]
        a, b = worst.argmax(), worst.argmin()
        either = np.flatnonzero(extra[:, a] != extra[:, b])
        half = _halve(client[either], label[either])
        extra[either, a], extra[either, b] = half, ~half
        for k in (a, b):
            totals[k] = np.bincount(label, weights=extra[:, k])
    return extra


def _halve(left: Array, right: Array) -> Array:
    """Split the edges of a bipartite graph in two, evenly at every node and in all.

    Parameters
    ----------
    left, right : ndarray of int of shape (n_edges,)
        The ends of the edges.

    Returns
    -------
    half : ndarray of bool of shape (n_edges,)
        At every node and in all, True and False differ by at most one.
    """
    n_edges = len(left)
    # One more node on either side, joined to the nodes of odd degree, makes all degrees even.
    odd_left = np.flatnonzero(np.bincount(left) % 2)
    odd_right = np.flatnonzero(np.bincount(right) % 2)
    new_left, new_right = left.max() + 1, right.max() + 1
    joint = len(odd_left) % 2  # as odd as len(odd_right): both are as odd as n_edges
    left = np.concatenate([left, odd_left, np.full(len(odd_right) + joint, new_left)])
    right = np.concatenate(
        [right, np.full(len(odd_left), new_right), odd_right, np.full(joint, new_right)]
    )
    # Edges are paired at each node. Two pairings make cycles of even length, and two steps
    # along a cycle keep the side: each cycle falls into two orbits, one for either side.
    partner_left, partner_right = _pair(left), _pair(right)
    step = partner_right[partner_left]
    n_nodes = len(step)
    links = sparse.csr_array(
        (np.ones(n_nodes, dtype=np.int8), step, np.arange(n_nodes + 1)), shape=(n_nodes, n_nodes)
    )
    _, orbit = connected_components(links, directed=False)
    return (orbit < orbit[partner_left])[:n_edges]


def _pair(nodes: Array) -> Any:
    """Partner of each edge: edges at one node, an even number, are paired in their order."""
    order = np.argsort(nodes, kind="stable")
    partner = np.empty(len(nodes), dtype=np.intp)
    partner[order[::2]], partner[order[1::2]] = order[1::2], order[::2]
    return partner
