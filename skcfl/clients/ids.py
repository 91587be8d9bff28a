"""Validation, encoding and lookup of group ids (one id per row, naming the row's client).

An array of ids that passed :func:`check_ids` is one-dimensional, complete and of one kind. Ids of
fit and of predict are compared by value within a kind (3 and 3.0 are the same client, "3" is not).
Ids that cannot be sorted are in the order of their ``repr``.
"""

import datetime
import itertools
from collections import defaultdict

import numpy as np
from scipy import sparse

from .._checks import about, is_missing

_NUMBERS = ("bool", "int", "float")


def column_position(column, names, n_columns):
    """Position of the group column.

    Parameters
    ----------
    column : str or int
        Name, or position, negative from the end.
    names : array-like of shape (n_columns,) or None
        Names of the columns of X, None if they have none.
    n_columns : int
        Number of columns of X.

    Returns
    -------
    position : int
        From 0 to ``n_columns - 1``.

    Raises
    ------
    ValueError
        If there is no such column, or more than one.
    """
    if isinstance(column, (bool, np.bool_)):
        raise ValueError(f"group_col must be a column's name or position, got {column}.")
    if not isinstance(column, str):
        if not -n_columns <= column < n_columns:
            raise ValueError(f"group_col={column} is out of range: X has {n_columns} columns.")
        return _beside(column, int(column) % n_columns, n_columns)
    if names is None:
        raise ValueError(
            f"group_col={column!r} is a name, but X has no column names. Pass a DataFrame, or the "
            "position of the column."
        )
    found = [k for k, name in enumerate(names) if name == column]
    if len(found) != 1:
        raise ValueError(
            f"group_col={column!r} must name one column of X, found {len(found)} such columns "
            f"among {list(names)}."
        )
    return _beside(column, found[0], n_columns)


def _beside(column, position, n_columns):
    """The position, if another column is there for a feature."""
    if n_columns == 1:
        raise ValueError(
            f"group_col={column!r} is the only column of X: besides the ids X must have a feature."
        )
    return position


def check_ids(groups, n_samples=None, name="groups"):
    """Validate group ids.

    Parameters
    ----------
    groups : array-like of shape (n_samples,)
        One id per row: str, bytes, bool, int, float, datetime or any other hashable type, the same
        for all rows.
    n_samples : int, default=None
        Number of rows of X, None if there may be any number.
    name : str, default="groups"
        Name of the ids in messages.

    Returns
    -------
    ids : ndarray of shape (n_samples,)
        A numpy dtype if there is one for the ids, else dtype object.

    Raises
    ------
    ValueError
        If an id is missing (NaN, None, NaT, NA, masked) or not hashable, ids are of mixed types,
        or the shape is wrong.
    """
    if isinstance(groups, (str, bytes)):
        raise ValueError(
            f"{name} must hold one id per row, got {groups!r}. To take ids from a column of X, "
            f"set group_col={groups!r} on the estimator."
        )
    ids = _as_vector(groups, name)
    if n_samples is not None and len(ids) != n_samples:
        raise ValueError(
            f"{name} must hold one id per row: got {len(ids)} ids for {n_samples} rows of X."
        )
    if ids.dtype.kind == "O":
        return _check_objects(ids, name)
    if ids.dtype.kind == "c":
        return _check_objects(ids.astype(object), name)
    if ids.dtype.kind not in "biufUSMm":
        raise ValueError(
            f"{name} of dtype {ids.dtype} cannot serve as ids; use str, int or datetime."
        )
    if ids.dtype.kind == "f":
        _check_floats(ids, name)
    if ids.dtype.kind in "Mm" and np.isnat(ids).any():
        _refuse_missing(np.isnat(ids), name)
    return ids


def encode(ids):
    """Sorted unique ids and each row's position among them.

    Parameters
    ----------
    ids : ndarray of shape (n_samples,)
        Validated by :func:`check_ids`.

    Returns
    -------
    unique : ndarray of shape (n_clients,)
        Sorted.
    codes : ndarray of shape (n_samples,), dtype intp
        ``unique[codes]`` equals ``ids``.
    """
    if ids.dtype.kind != "O":
        first = np.ones(len(ids), dtype=bool)
        first[1:] = ids[1:] != ids[:-1]
        if 2 * first.sum() < len(ids):  # rows of a client often lie together
            unique, codes = encode(ids[first])
            return unique, codes[np.cumsum(first) - 1]
        if (ids[1:] > ids[:-1]).all():
            return ids, np.arange(len(ids))
    if ids.dtype.kind not in "OUS":
        unique, codes = np.unique(ids, return_inverse=True)
        return unique, codes.astype(np.intp, copy=False)
    # hashing is several times faster than sorting strings
    position = defaultdict()
    position.default_factory = position.__len__
    values = map(position.__getitem__, ids.tolist())
    codes = np.fromiter(values, dtype=np.intp, count=len(ids))
    ordered = _ordered(position)
    rank = np.empty(len(ordered), dtype=np.intp)
    rank[[position[value] for value in ordered]] = np.arange(len(ordered))
    return np.fromiter(ordered, dtype=ids.dtype, count=len(ordered)), rank[codes]


def _ordered(values):
    """Different ids in an order that does not depend on the order of the rows."""
    try:
        ordered = sorted(values)
        # sorted() takes a partial order too, as that of sets
        total = all(a < b for a, b in itertools.pairwise(ordered))
    except (TypeError, ValueError):
        total = False
    return ordered if total else sorted(values, key=_spelled)


def _spelled(value):
    """Text to sort an id by; sets show their elements in no order."""
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(_spelled, value)))
    return repr(value)


def locate(known, ids):
    """Find each row's id among the ids seen in fit.

    Parameters
    ----------
    known : ndarray of shape (n_clients,)
        Sorted unique ids.
    ids : ndarray of shape (n_samples,)
        Validated by :func:`check_ids`.

    Returns
    -------
    positions : ndarray of shape (n_samples,), dtype intp
        Position among ``known``, -1 where unseen.
    unseen : ndarray
        The unique ids that are not in ``known``.
    """
    unique, codes = encode(ids)
    if not len(known) or family(known) != family(unique):
        found = np.full(len(unique), -1, dtype=np.intp)
    elif unique.dtype.kind != "O" and (known.dtype.kind in "MmUS" or known.dtype == unique.dtype):
        # numpy compares dates across units, Python values do not
        found = np.searchsorted(known, unique).clip(max=len(known) - 1)
        found[known[found] != unique] = -1
    else:
        table = {value: k for k, value in enumerate(known.tolist())}
        found = np.array([table.get(value, -1) for value in unique.tolist()], dtype=np.intp)
    return found[codes], unique[found < 0]


def describe_unseen(known, unseen, at_most=5):
    """Say which ids are unseen, and why if their kind is not that of the known ids."""
    shown = ", ".join(repr(value) for value in unseen[:at_most].tolist())
    dots = ", ..." if len(unseen) > at_most else ""
    text = f"{len(unseen)} group id(s) not seen in fit: [{shown}{dots}]"
    if len(known) and family(known) != family(unseen):  # a private fit knows none
        text += (
            f". They are of another type than the ids seen in fit: {_spell(unseen)} now, "
            f"{_spell(known)} in fit, such as {known[:1].tolist()[0]!r}"
        )
    return text


def joined_ids(ids, others):
    """Two arrays of ids of one kind as one."""
    if ids.dtype.kind == "O" or others.dtype.kind == "O":
        joined = np.empty(len(ids) + len(others), dtype=object)
        joined[: len(ids)], joined[len(ids) :] = ids, others
        return joined
    return np.concatenate([ids, others])


def _as_vector(groups, name):
    if sparse.issparse(groups):
        raise ValueError(f"{name} must be a one-dimensional array of ids, got a sparse matrix.")
    if np.ma.isMaskedArray(groups) and np.ma.getmaskarray(groups).any():
        _refuse_missing(np.ma.getmaskarray(groups).ravel(), name)
    if isinstance(groups, (list, tuple, range)):
        # np.asarray would turn [1, "a"] into strings and None beside str into "None", and
        # array[:] = groups would split tuples
        return np.fromiter(groups, dtype=object, count=len(groups))
    ids = np.asarray(groups)
    if ids.ndim != 1:
        raise ValueError(
            f"{name} must be one-dimensional with one id per row, got {type(groups).__name__} of "
            f"shape {ids.shape}. If a client is named by several columns, join them into one id."
        )
    return ids


def _check_objects(ids, name):
    values = ids.tolist()
    types = set(map(type, values))
    if not types <= {str, bytes, bool, int}:
        missing = np.fromiter(map(is_missing, values), dtype=bool, count=len(values))
        if missing.any():
            _refuse_missing(missing, name)
    kinds = sorted({_kind(t) for t in types})
    if any(issubclass(t, (list, np.ndarray)) for t in types):
        raise ValueError(
            f"{name} must be one-dimensional with one id per row, got elements of type "
            f"{', '.join(kinds)}. If a client is named by several columns, join them into one id."
        )
    if len(kinds) > 1:
        raise ValueError(
            f"{name} must hold ids of one type, got a mixture of {', '.join(kinds)}. Convert "
            "them first, for example with .astype(str)."
        )
    kind = kinds[0] if kinds else "str"
    if kind in _NUMBERS:
        typed = np.array(values)
        if kind == "float":
            _check_floats(typed, name)
        # numpy rounds a mixture of integers beyond 64 bits to floats: these stay Python integers
        if kind != "int" or typed.dtype.kind in "iu":
            ids = typed
    elif kind == "datetime":
        ids = _naive_datetimes(values, ids, name)
    elif kind in ("date", "datetime64", "timedelta64"):
        ids = np.array([np.datetime64(v) if kind == "date" else v for v in values])
    elif kind not in ("str", "bytes"):
        try:
            set(values)
        except TypeError as error:
            raise ValueError(
                f"{name} must hold ids that can be hashed, such as str or int; got elements of "
                f"type {kind} ({error})."
            ) from error
    return ids


def _naive_datetimes(values, ids, name):
    """Use numpy's dates where there is no time zone; pandas holds these so already."""
    aware = {value.tzinfo is not None for value in values}
    if aware == {False}:
        # to_datetime64 keeps the nanoseconds of a pandas Timestamp
        return np.array(
            [
                v.to_datetime64() if hasattr(v, "to_datetime64") else np.datetime64(v)
                for v in values
            ]
        )
    if len(aware) > 1:
        raise ValueError(
            f"{name} must hold ids of one type, got dates with and without time zone."
        )
    return ids


def _check_floats(ids, name):
    if np.isnan(ids).any():
        _refuse_missing(np.isnan(ids), name)
    # a larger number may stand for several clients with the same float
    limit = 2.0 ** (np.finfo(ids.dtype).nmant + 1)
    if np.abs(ids).max(initial=0.0) >= limit:
        raise ValueError(
            f"{name} of dtype {ids.dtype} holds {ids[np.abs(ids).argmax()]}: from {limit:.0f} on "
            "the type cannot tell neighbouring integers apart. Pass the ids as int or str."
        )


def _refuse_missing(missing, name):
    raise ValueError(
        f"{name} must name a client in every row, got {int(missing.sum())} missing id(s) (NaN, "
        f"None, NA or masked), the first in row {int(missing.argmax())}. Drop the rows or give "
        "them an id."
    )


def _kind(t):
    """Sort of id of a type; numpy's and Python's scalars are of one kind."""
    for kind, bases in (
        ("bool", (bool, np.bool_)),
        ("int", (int, np.integer)),
        ("float", (float, np.floating)),
        ("str", (str,)),
        ("bytes", (bytes,)),
        ("datetime", (datetime.datetime,)),
        ("date", (datetime.date,)),
    ):
        if issubclass(t, bases):
            return kind
    return t.__name__


def family(ids):
    """Sorts of ids that can be compared."""
    kind = ids.dtype.kind
    if kind in "biuf":
        return "number"
    if kind == "O":
        kind = _kind(type(ids[0])) if len(ids) else "str"
        return "number" if kind in _NUMBERS else kind
    return {"U": "str", "S": "bytes"}.get(kind, kind)


def _spell(ids):
    """Name the dtype, and behind dtype object the type of the elements."""
    if ids.dtype.kind == "O" and len(ids):
        return f"dtype object ({type(ids[0]).__name__})"
    return f"dtype {ids.dtype}"


def labels_of(labels, groups, name="labels"):
    """Labels of the clients as codes 0..K-1, aligned with the sorted ids."""
    if groups is None or labels is None:
        n_clients = 1 if groups is None else len(groups)
        return np.zeros(n_clients, dtype=np.intp)
    if isinstance(labels, dict):
        missing = [g for g in groups.tolist() if g not in labels]
        if missing:
            raise ValueError(
                f"{name} has no entry for {len(missing)} of {len(groups)} clients: "
                f"{missing[:5]}. Give the label of every id in groups."
            )
        labels = [labels[g] for g in groups.tolist()]
    with about(name):
        shape = np.shape(labels)
    if shape != groups.shape:
        raise ValueError(
            f"{name} must have one entry per client, {len(groups)} in the order of the sorted "
            f"ids, got an array of shape {shape}."
        )
    return encode(check_ids(labels, name=name))[1]
