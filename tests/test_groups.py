"""Group ids: what is accepted, what is refused and how, encoding and lookup."""

import datetime
import decimal
import enum
import fractions
import re
import uuid

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import sparse

from skcfl.clients.ids import check_ids, column_position, describe_unseen, encode, locate


class Site(enum.Enum):
    NORTH = 1
    SOUTH = 2


DAY, NEXT = pd.Timestamp("2024-03-01"), pd.Timestamp("2024-03-02")
IDS = {
    "list of str": ["b", "a", "b"],
    "tuple of str": ("b", "a", "b"),
    "numpy str": np.array(["b", "a", "b"]),
    "object str": np.array(["b", "a", "b"], dtype=object),
    "bytes": [b"b", b"a", b"b"],
    "list of int": [7, -1, 7],
    "numpy int": np.array([7, -1, 7], dtype=np.int8),
    "unsigned": np.array([7, 1, 7], dtype=np.uint64),
    "object int": np.array([7, -1, 7], dtype=object),
    "int and numpy int": [7, np.int64(-1), np.int32(7)],
    "beyond 64 bits": [2**70, -1, 2**70],
    "bool": [True, False, True],
    "float": [0.5, -1.0, 0.5],
    "series": pd.Series(["b", "a", "b"], index=[5, 5, 1]),
    "pandas string": pd.Series(["b", "a", "b"], dtype="string"),
    "pandas Int64": pd.Series([7, -1, 7], dtype="Int64"),
    "pandas boolean": pd.Series([True, False, True], dtype="boolean"),
    "categorical": pd.Categorical(["b", "a", "b"], categories=["c", "b", "a", "d"]),
    "ordered categorical": pd.Series(
        pd.Categorical([7, 3, 7], categories=[7, 5, 3], ordered=True)
    ),
    "index": pd.Index(["b", "a", "b"]),
    "datetime64": np.array([NEXT, DAY, NEXT], dtype="datetime64[ns]"),
    "pandas dates": pd.Series([NEXT, DAY, NEXT]),
    "dates with time zone": pd.Series([NEXT, DAY, NEXT]).dt.tz_localize("Europe/Paris"),
    "datetimes": [datetime.datetime(2024, 3, 2), datetime.datetime(2024, 3, 1)] * 2,
    "timestamps": [NEXT, DAY, NEXT],
    "date objects": [datetime.date(2024, 3, 2), datetime.date(2024, 3, 1)] * 2,
    "timedelta": np.array([2, 1, 2], dtype="timedelta64[s]"),
    "period": pd.Series([NEXT, DAY, NEXT]).dt.to_period("D"),
    "uuid": [uuid.UUID(int=2), uuid.UUID(int=1), uuid.UUID(int=2)],
    "range": range(3),
    "enum": [Site.SOUTH, Site.NORTH, Site.SOUTH],
    "tuples": [("b", 1), ("a", 2), ("b", 1)],
    "decimals": [decimal.Decimal("2.5"), decimal.Decimal(1), decimal.Decimal("2.5")],
    "fractions": [fractions.Fraction(1, 2), fractions.Fraction(1, 3), fractions.Fraction(1, 2)],
    "sets": [frozenset("ab"), frozenset("c"), frozenset("ba")],
    "complex": np.array([1j, 2.0, 1j]),
    "masked nowhere": np.ma.array(["b", "a", "b"]),
    "strings that look like numbers": ["10", "9", "1"],
    "rounded to floats": [2**63, 2**63 + 1, -1],
    "nanoseconds": [pd.Timestamp(1), pd.Timestamp(2)],
}


UNSORTABLE = {"enum", "sets", "complex"}


@pytest.mark.parametrize("name", IDS)
def test_accepted(name):
    given = IDS[name]
    ids = check_ids(given, len(given))
    unique, codes = encode(ids)
    assert codes.dtype == np.intp
    if name not in UNSORTABLE:
        assert list(unique) == sorted(set(unique.tolist())) or unique.dtype.kind == "M"
    assert encode(ids[::-1])[0].tolist() == unique.tolist()  # whatever the order of the rows
    assert (unique[codes] == ids).all()
    assert len(unique) == len(
        set(given if isinstance(given, list) else np.asarray(given).tolist())
    )  # no category without rows
    positions, unseen = locate(unique, ids)
    assert_array_equal(positions, codes)
    assert len(unseen) == 0


MISSING = {
    "None": ["a", None, "b"],
    "NaN beside str": ["a", float("nan"), "b"],
    "NaN": [1.0, np.nan, 2.0],
    "numpy NaN": np.array([1.0, np.nan, 2.0]),
    "NA": pd.Series(["a", pd.NA, "b"], dtype="string"),
    "NA among integers": pd.Series([1, pd.NA, 2], dtype="Int64"),
    "missing category": pd.Categorical(["a", None, "b"]),
    "pandas str": pd.Series(["a", None, "b"]),
    "NaT": np.array(["2024-03-01", "NaT", "2024-03-02"], dtype="datetime64[D]"),
    "NaT object": [DAY, pd.NaT, NEXT],
    "Decimal NaN": [decimal.Decimal(1), decimal.Decimal("NaN"), decimal.Decimal(2)],
    "signalling NaN": [decimal.Decimal(1), decimal.Decimal("sNaN"), decimal.Decimal(2)],
    "complex NaN": np.array([1j, np.nan, 2]),
    "masked": np.ma.array(["a", "b", "c"], mask=[0, 1, 0]),
    "masked integers": np.ma.array([1, 2, 3], mask=[0, 1, 0]),
    "masked constant": [1, np.ma.masked, 2],
    "tuple with NaN": [("a", 1.0), ("a", np.nan), ("b", 1.0)],
    "tuple with None": [("a", 1), ("a", None), ("b", 1)],
    "numpy NaT object": [np.datetime64("2024-03-01"), np.datetime64("NaT"), np.datetime64("2025")],
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_is_refused(name):
    for source in ("groups", "Column 'site'"):
        message = f"^{source} must name a client in every row, got 1 missing.* the first in row 1"
        with pytest.raises(ValueError, match=message):
            check_ids(MISSING[name], 3, source)


REFUSED = {
    "str and int": ([1, "a", 2], "one type, got a mixture of int, str"),
    "bool and int": ([1, True, 2], "one type, got a mixture of bool, int"),
    "int and float": ([1, 2.5, 2], "one type, got a mixture of float, int"),
    "str and bytes": (["a", b"a", "b"], "mixture of bytes, str"),
    "time zones": ([DAY, DAY.tz_localize("UTC"), DAY], "dates with and without time zone"),
    "lists": ([["a"], ["b"], ["c"]], "one-dimensional.*type list"),
    "column vector": (np.ones((3, 1)), r"one-dimensional.*ndarray of shape \(3, 1\)"),
    "two columns": (np.ones((3, 2), int), r"ndarray of shape \(3, 2\).*join them into one id"),
    "frame": (pd.DataFrame({"a": [1, 2, 3]}), r"DataFrame of shape \(3, 1\)"),
    "number": (3, r"one-dimensional.*int of shape \(\)"),
    "sparse": (sparse.csr_array(np.ones((3, 1))), "got a sparse matrix"),
    "name of a column": ("site", r"got 'site'.*set group_col='site'"),
    "structured": (np.zeros(3, dtype="i4,i4"), "dtype .* cannot serve as ids"),
    "unhashable": ([{1}, {2}, {3}], "hashed, such as str.*type set"),
    "list in a tuple": ([("a", [1]), ("b", [2]), ("c", [3])], "hashed, such as str.*type tuple"),
    "Decimal and int": ([decimal.Decimal(1), 2, 3], "mixture of Decimal, int"),
    "too short": (["a", "b"], "got 2 ids for 3 rows"),
    "too long": (np.arange(4), "got 4 ids for 3 rows"),
    "big floats": (np.array([1.0, 2.0**53, 3.0]), "dtype float64.*9007199254740992.*int or str"),
    "float32": (np.array([1, 2**24, 3], np.float32), "dtype float32 holds 16777216"),
    "infinite": ([1.0, np.inf, 3.0], "holds inf"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    groups, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        check_ids(groups, 3)


@given(
    st.sampled_from([st.text(), st.integers(-5, 5), st.floats(-2, 2)]).flatmap(
        lambda ids: st.tuples(st.lists(ids, unique=True), st.lists(ids, min_size=1))
    )
)
def test_locate_finds_what_is_there(both):
    known, wanted = both
    kind = check_ids(wanted, len(wanted)).dtype
    unique = encode(check_ids(known, len(known)))[0] if known else np.empty(0, dtype=kind)
    positions, unseen = locate(unique, check_ids(wanted, len(wanted)))
    for position, value in zip(positions, wanted, strict=True):
        assert (unique[position] == value) if value in known else position == -1
    assert unseen.tolist() == sorted(set(wanted) - set(known))


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        (["1", "2"], np.array(["1", "2"])),
        (np.array(["1", "2"]), pd.Series(["1", "2"], dtype="string")),
        ([1, 2], np.array([1.0, 2.0], dtype=np.float32)),
        (np.array([1, 2], dtype=np.uint64), [1, 2]),
        (np.array([DAY, NEXT], dtype="datetime64[ns]"), ["2024-03-01", "2024-03-02"]),
    ],
)
def test_same_ids_in_another_container(known, asked):
    if known[0] == DAY:
        asked = np.array(asked, dtype="datetime64[D]")
    unique, _ = encode(check_ids(known, 2))
    positions, unseen = locate(unique, check_ids(asked, 2))
    assert positions.tolist() == [0, 1]
    assert len(unseen) == 0


@pytest.mark.parametrize(
    ("known", "asked", "message"),
    [
        ([1, 3], ["3"], r"\['3'\].*another type.*dtype object \(str\) now, dtype int64 in fit"),
        (["3"], [3], r"\[3\].*dtype int64 now, dtype object \(str\) in fit, such as '3'"),
        ([3], [b"3"], r"\[b'3'\].*dtype object \(bytes\) now"),
        ([0], np.array([0], dtype="datetime64[ns]"), r"dtype datetime64\[ns\] now, dtype int64"),
    ],
)
def test_another_type_is_unseen_and_said(known, asked, message):
    unique, _ = encode(check_ids(known, len(known)))
    positions, unseen = locate(unique, check_ids(asked, len(asked)))
    assert (positions == -1).all()
    assert re.search(message, describe_unseen(unique, unseen))


def test_unseen_ids_are_listed_not_all():
    text = describe_unseen(np.array([0]), np.arange(1, 100))
    assert text == "99 group id(s) not seen in fit: [1, 2, 3, 4, 5, ...]"


@pytest.mark.parametrize(
    ("column", "names", "position"),
    [("b", list("abc"), 1), (0, None, 0), (2, list("abc"), 2), (-1, None, 2), (-3, None, 0)],
)
def test_column_position(column, names, position):
    assert column_position(column, names, 3) == position
    if not isinstance(column, str):
        assert column_position(np.int64(column), names, 3) == position


@pytest.mark.parametrize(
    ("column", "names", "message"),
    [
        ("d", ["a", "b", "c"], "group_col='d' must name one column of X, found 0 .*'a', 'b', 'c'"),
        ("a", ["a", "a", "c"], r"group_col='a' must name one column of X, found 2"),
        ("a", None, "group_col='a' is a name, but X has no column names"),
        (3, None, "group_col=3 is out of range: X has 3 columns"),
        (-4, ["a", "b", "c"], "group_col=-4 is out of range"),
        (True, None, "name or position, got True"),
        *((k, ["site"], f"group_col={k!r} is the only column of X") for k in (0, -1, "site")),
    ],
)
def test_bad_column(column, names, message):
    with pytest.raises(ValueError, match=message):
        column_position(column, names, 3 if names is None else len(names))
