"""Which columns hold no finite numbers, and what to do about it."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from .._checks import is_missing

# Columns that a message names.
NAMED = 5
WAYS_OUT = {
    "text or categories": (
        "Encode them before, in two lines: encode = make_column_transformer((OneHotEncoder("
        'handle_unknown="ignore", sparse_output=False), {columns}), remainder="passthrough"); '
        "model = make_pipeline(encode, {name}()).fit(X, y, {step}__groups=groups)."
    ),
    "dates or times": (
        "Turn them into numbers before, in two lines: X = X.copy(); X[{first}] = "
        '(X[{first}] - X[{first}].min()) / numpy.timedelta64(1, "D").'
    ),
    "missing values (NaN, None or NA)": (
        "Fill them in before, in two lines: fill = make_column_transformer((SimpleImputer("
        'add_indicator=True), {columns}), remainder="passthrough"); '
        "model = make_pipeline(fill, {name}()).fit(X, y, {step}__groups=groups)."
    ),
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
    found: dict[str, list] = {kind: [] for kind in WAYS_OUT}
    for k, label in enumerate(names):
        kind = kind_of(X.iloc[:, k] if is_frame else X[:, k])
        if kind:
            found[kind].append(label)
    name = "PartialPoolingRegressor" if estimator is None else type(estimator).__name__
    texts = []
    for kind, columns in found.items():
        if columns:
            some = ", ".join(map(repr, columns[:NAMED])) + ", ..." * (len(columns) > NAMED)
            word = "Columns" if len(columns) > 1 else "Column"
            way = WAYS_OUT[kind].format(
                columns=f"[{some}]", first=repr(columns[0]), name=name, step=name.lower()
            )
            texts.append(f"{word} {some} of X: {kind}. {way}")
    return " ".join(texts)


def kind_of(column):
    """What is wrong with a column, "" if nothing is."""
    dtype = column.dtype
    kind = getattr(dtype, "kind", "O")
    if kind in "mM":
        return "dates or times"
    if kind in "SU":
        return "text or categories"
    if kind in "biu" and isinstance(dtype, np.dtype):
        return ""
    if kind in "fc" and isinstance(dtype, np.dtype):
        return "missing values (NaN, None or NA)" if np.isnan(column).any() else ""
    values = np.asarray(column, dtype=object).tolist()
    there = [value for value in values if not is_missing(value)]
    if any(hasattr(value, "year") or hasattr(value, "total_seconds") for value in there):
        return "dates or times"
    if any(isinstance(value, str | bytes) and not _is_number(value) for value in there):
        return "text or categories"
    return "missing values (NaN, None or NA)" if len(there) < len(values) else ""


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True
