"""Data frames with columns that are no numbers: categories, and numbers that lack values."""

from __future__ import annotations

import copy
from collections.abc import Collection
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from sklearn.utils import check_array

from .._checks import about, is_missing
from .._typing import Array
from ..federation.wrong_columns import describe_wrong_columns, is_text, kind_of

if TYPE_CHECKING:
    from ..federation.federation import Federation
    from .of_clients import OfClients as Host
else:
    Host = object

# Most levels of a category, as in scikit-learn's boosted trees.
MOST_LEVELS = 255


class TakesTables(Host):
    """Mixin of estimators that take data frames with categories and missing values."""

    _table: TableColumns | None = None

    def _numbers(self, X: Any, header: Any, kept: Collection[int] = ()) -> Any:
        """X with numbers in the place of categories and missing values, but in some columns."""
        table = self._table
        if header is not None:
            table = header._table = TableColumns.of(X, kept)
        return X if table is None else table.made(X)

    @property
    def _n_user_features(self) -> int:
        return super()._n_user_features if self._table is None else len(self._table.user_names)

    def _feature_names(self, header: Any, n_features: int) -> Array:
        table = header._table
        if table is not None and n_features == len(table.names):
            return np.array(table.names, dtype=object)
        return super()._feature_names(header, n_features)

    def _introduced(self, federation: Federation) -> Any:
        hello, header = super()._introduced(federation)
        header._table = None
        return hello, header

    def _replace_attributes(self, header: Any, fitted: dict[str, Any]) -> None:
        super()._replace_attributes(header, fitted)
        self._table = header._table

    def _behind_table(self, plain: Any) -> Any:
        """A client's plain model behind what encodes a frame, in a pipeline."""
        if self._table is None or not isinstance(plain, BaseEstimator):  # a module of PyTorch
            return plain
        plain.__dict__.pop("feature_names_in_", None)
        # A copy: who fits the pipeline again fits its steps.
        return make_pipeline(copy.deepcopy(self._table.transformer), plain)


def positions_of(header: Any, entry: Any, names: Array, parameter: str) -> list[int]:
    """Positions among features of what is made of a column, given by name or by position."""
    table, found = header._table, [entry]
    if table is not None and (isinstance(entry, Integral) or entry not in names):
        name = table.user_names[position_of(entry, table.user_names, parameter)]
        found = list(table.levels.get(name, [name]))
    return [position_of(one, names, parameter) for one in found]


def position_of(entry: Any, names: Array, parameter: str) -> int:
    """Position of a column that a user gave by name or by position."""
    found: Any = np.flatnonzero(names == entry) if isinstance(entry, str) else []
    if isinstance(entry, Integral) and not isinstance(entry, (bool, np.bool_)):
        at = int(entry)
        found = [at % len(names)] if -len(names) <= at < len(names) else []
    if len(found) != 1:
        if parameter == "feature":
            raise ValueError(
                f"feature must be one of {names.tolist()} or a position, got {entry!r}."
            )
        allowed = "'all', 'intercept' or a list" if parameter == "random" else "a list"
        raise ValueError(
            f"{parameter} must be {allowed} of features, names of {names.tolist()} or their "
            f"positions; got {entry!r} in it."
        )
    return int(found[0])


class TableColumns:
    """Numbers in the place of categories and missing values of a data frame, by scikit-learn.

    Parameters
    ----------
    X : DataFrame of shape (n_samples, n_columns)
        Rows of the fit.
    texts : dict of int to list
        Levels of the categories, by the positions of their columns.
    numbers : list of int
        Positions of the columns of numbers that may lack values.

    Attributes
    ----------
    transformer : ColumnTransformer
        What encodes the frame.
    user_names : ndarray of shape (n_columns,)
        Names of the frame's columns.
    names : ndarray of shape (n_features,)
        Names of the features: a category's levels but the first, a column with its mean in the
        place of missing values, an indicator of them, and the other columns.
    levels : dict of str to ndarray of str
        Names of the features of each category, by its column.
    """

    def __init__(self, X: Any, texts: dict[int, list[Any]], numbers: list[int]) -> None:
        X = _named(X)
        made = [f"{X.columns[j]}_{level}" for j, levels in texts.items() for level in levels[1:]]
        if clash := sorted({*made} & {X.columns[j] for j in range(X.shape[1]) if j not in texts}):
            raise ValueError(
                f"X has columns with the name that a level of a category gets: {clash}. A level "
                "is named by its column and itself: rename these columns."
            )
        encoder = OneHotEncoder(
            categories=list(texts.values()),
            drop="first",
            handle_unknown="ignore",
            sparse_output=False,
        )
        complete = FunctionTransformer(with_nan, feature_names_out="one-to-one")
        floats = FunctionTransformer(as_floats, feature_names_out="one-to-one")
        imputer = SimpleImputer(add_indicator=True, keep_empty_features=True)
        self.transformer = make_column_transformer(
            (make_pipeline(complete, encoder), list(texts)),
            (make_pipeline(floats, imputer), numbers),
            remainder="passthrough",
            verbose_feature_names_out=False,
        ).fit(X)
        self.user_names = np.array(X.columns, dtype=object)
        # A level of each category by its position, unless all of its values are missing.
        self._a_level = {j: levels[0] for j, levels in texts.items() if not is_missing(levels[0])}
        self.names = self.transformer.get_feature_names_out()
        ends = np.cumsum([len(levels) - 1 for levels in texts.values()])
        by_column = zip(texts, np.split(self.names, ends.astype(int)), strict=False)
        self.levels = {self.user_names[j]: names for j, names in by_column}

    @classmethod
    def of(cls, X: Any, kept: Collection[int]) -> TableColumns | None:
        """How the columns of a frame are encoded but some; None if there is nothing to encode.

        Raises
        ------
        ValueError
            If a category has too many levels, or mixes text and numbers, or a column has dates,
            or if no feature is left, as categories have one level each.
        """
        if not hasattr(X, "iloc"):  # no frame of pandas
            return None
        texts: dict[int, list[Any]] = {}
        numbers, dates, has_gaps = [], [], False
        for j in (j for j in range(X.shape[1]) if j not in kept):
            column = X.iloc[:, j]
            kind = kind_of(column)
            if kind == "dates or times":
                dates.append(j)
            elif kind == "text or categories" or column.dtype == "category" or is_text(column):
                texts[j] = _levels(column)
            elif column.dtype.kind != "c":
                has_gaps |= bool(kind)
                numbers.append(j)
        if dates:
            raise ValueError(describe_wrong_columns(X.iloc[:, dates], None))
        if not (texts or has_gaps):
            return None
        if len(texts) == X.shape[1] and all(len(levels) == 1 for levels in texts.values()):
            raise ValueError("X has no feature: its columns are categories of one level each.")
        with about("X"):
            return cls(X, texts, numbers)

    def made(self, X: Any) -> Any:
        """The features of rows, a frame if these are one."""
        is_frame = hasattr(X, "iloc")
        with about("X"):
            rows = _named(X) if is_frame else check_array(X, dtype=object, ensure_all_finite=False)
        for j, level in self._a_level.items():
            self._require_kind(j, level, rows.iloc[:, j] if is_frame else rows[:, j])
        with about("X"):
            made = np.asarray(self.transformer.transform(rows))
        return type(X)(made, columns=self.names) if is_frame else made

    def _require_kind(self, j: int, level: Any, column: Any) -> None:
        """Raise an error if a level was text in fit and a value is none, or the reverse."""
        was_text, name = isinstance(level, str), self.user_names[j]
        for value in column.tolist():
            if isinstance(value, str) != was_text and not is_missing(value):
                held, way = f"{level!r} in fit, no text", "give it the type that it had"
                if was_text:
                    held, way = "text in fit", f"read it as text, as by X[{name!r}].astype(str)"
                raise ValueError(f"column {name!r} of X held {held}, and holds {value!r}: {way}.")


def _named(X: Any) -> Any:
    """A frame with text for names, where they are numbers those that scikit-learn gives."""
    if all(isinstance(name, str) for name in X.columns):
        return X
    return X.set_axis([f"x{j}" for j in range(X.shape[1])], axis=1)


def with_nan(X: Any) -> Any:
    """Categories with NaN in the place of every missing value."""
    return X.astype(object).where(X.notna(), np.nan) if hasattr(X, "notna") else X


def as_floats(X: Any) -> Any:
    """Numbers, True and False with NaN in the place of every missing value."""
    objects = hasattr(X, "dtypes") and "O" in {dtype.kind for dtype in X.dtypes}
    return (with_nan(X) if objects else X).astype(float)


def _levels(column: Any) -> list[Any]:
    """Levels of a category, the first of which has no feature: as declared, or sorted."""
    there = column.unique().tolist()
    levels = [level for level in there if not is_missing(level)]
    if len({isinstance(level, str) for level in levels}) > 1:
        raise ValueError(
            f"column {column.name!r} of X mixes text and other values: turn it into one type, as "
            f"by X[{column.name!r}].astype(str)."
        )
    if len(levels) > MOST_LEVELS:
        raise ValueError(
            f"column {column.name!r} of X has {len(levels)} levels, more than {MOST_LEVELS}: "
            "group them, leave it out, turn text that spells numbers into numbers, or name it in "
            "crossed of PartialPooling, so that each level has a random intercept."
        )
    declared = getattr(column, "cat", None)
    order = sorted(levels) if declared is None else declared.categories.tolist()
    return [level for level in order if level in levels] + [np.nan] * (len(there) > len(levels))
