"""Which columns hold no finite numbers, and what to do about it."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from .._checks import is_missing

# Columns that a message names.
NAMED = 5
DATES = "dates or times"
# What encodes the columns of a kind.
STEPS = {
    "text or categories": ('OneHotEncoder(handle_unknown="ignore", sparse_output=False)'),
    "missing values (NaN, None or NA)": "SimpleImputer(add_indicator=True)",
}


def describe_wrong_columns(X, estimator):
    """Say which columns of a table hold text, dates or missing values, and the way out; or "".

    Parameters
    ----------
    X : {ndarray, DataFrame} of shape (n_samples, n_features)
        Features that are no finite numbers.
    estimator : object or None
        The estimator that refuses them.
    """
    if sparse.issparse(X) or len(getattr(X, "shape", ())) != 2:
        return ""
    names = list(getattr(X, "columns", range(X.shape[1])))
    is_frame = hasattr(X, "iloc")
    if not is_frame:
        X = np.asarray(X)
    found: dict[str, list] = {kind: [] for kind in (*STEPS, DATES)}
    for k, label in enumerate(names):
        column = X.iloc[:, k] if is_frame else X[:, k]
        kind = "text or categories" if is_frame and is_text(column) else kind_of(column)
        if kind:
            found[kind].append(label)
    texts, steps = [], []
    for kind, columns in found.items():
        if columns:
            some = ", ".join(map(repr, columns[:NAMED])) + ", ..." * (len(columns) > NAMED)
            texts.append(f"Column{'s' * (len(columns) > 1)} {some} of X: {kind}.")
            if kind in STEPS:
                steps.append(f"({STEPS[kind]}, [{some}])")
    if found[DATES]:
        k = names.index(found[DATES][0])
        written = f"X[{names[k]!r}]" if is_frame else f"X[:, {k}]"
        days = days_of(X.iloc[:, k] if is_frame else X[:, k], written)
        texts.append(
            f"Turn them into numbers before, in two lines{' of pandas' * is_frame}: X = X.copy(); "
            f"{written} = {days}."
        )
    if steps:
        encoder = f'make_column_transformer({", ".join(steps)}, remainder="passthrough")'
        if estimator is None:
            then = "X = encode.fit_transform(X)"
        else:
            name = type(estimator).__name__
            then = (
                f"model = make_pipeline(encode, {name}()).fit(X, y, {name.lower()}__groups=groups)"
            )
        texts.append(f"Encode them before, in two lines: encode = {encoder}; {then}.")
    return " ".join(texts)


def days_of(column, written):
    """An expression for the days of a column of dates since its first one.

    Parameters
    ----------
    column : Series or ndarray
        The dates.
    written : str
        An expression for them.
    """
    dtype = column.dtype
    if hasattr(dtype, "categories"):
        dtype = dtype.categories.dtype
        written = f"{written}.astype({written}.cat.categories.dtype)"
    if hasattr(dtype, "freq"):
        written += ".dt.to_timestamp()"
    return f'({written} - {written}.min()) / numpy.timedelta64(1, "D")'


def kind_of(column):
    """What is wrong with a column, "" if nothing is."""
    dtype = column.dtype
    kind = getattr(dtype, "kind", "O")
    if kind in "mM":
        return DATES
    if kind in "SU":
        return "text or categories"
    if kind in "biu" and isinstance(dtype, np.dtype):
        return ""
    if kind in "fc" and isinstance(dtype, np.dtype):
        return "missing values (NaN, None or NA)" if np.isnan(column).any() else ""
    values = np.asarray(column, dtype=object).tolist()
    there = [value for value in values if not is_missing(value)]
    if any(hasattr(value, "year") or hasattr(value, "total_seconds") for value in there):
        return DATES
    if any(isinstance(value, str | bytes) and not _is_number(value) for value in there):
        return "text or categories"
    return "missing values (NaN, None or NA)" if len(there) < len(values) else ""


def is_text(column):
    """Whether values are text, as codes of digits are, whatever numbers they spell."""
    numeric = getattr(column.dtype, "kind", "O") in "biufc"
    return not numeric and any(isinstance(value, str) for value in column.tolist())


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True
