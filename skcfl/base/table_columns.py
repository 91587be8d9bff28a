"""Columns of a data frame that are no numbers: categories, and numbers that lack values."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from .._checks import is_missing
from ..federation.wrong_columns import describe_wrong_columns, kind_of

# Most levels of a category, as in scikit-learn's boosted trees.
MOST_LEVELS = 255


class TableColumns:
    """Numbers in the place of categories and missing values of a data frame, by scikit-learn.

    Parameters
    ----------
    X : DataFrame of shape (n_samples, n_columns)
        Rows of the fit.
    texts, gaps : list of int
        Positions of the columns of categories, and of numbers that lack values.

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

    def __init__(self, X: Any, texts: list[int], gaps: list[int]) -> None:
        X = _named(X)
        encoder = OneHotEncoder(drop="first", handle_unknown="ignore", sparse_output=False)
        complete = FunctionTransformer(with_nan, feature_names_out="one-to-one")
        self.transformer = make_column_transformer(
            (make_pipeline(complete, encoder), texts),
            (SimpleImputer(add_indicator=True, keep_empty_features=True), gaps),
            remainder="passthrough",
            verbose_feature_names_out=False,
        ).fit(X)
        self.user_names = np.array(X.columns, dtype=object)
        self.names = self.transformer.get_feature_names_out()
        ends: Any = []
        if texts:
            fitted = self.transformer.transformers_[0][1][-1]
            ends = np.cumsum([len(levels) - 1 for levels in fitted.categories_])
        by_column = np.split(self.names, ends)
        self.levels = dict(zip(self.user_names[texts], by_column, strict=False))

    @classmethod
    def of(cls, X: Any, kept: Collection[int]) -> TableColumns | None:
        """How the columns of a frame are encoded but some; None if there is nothing to encode.

        Raises
        ------
        ValueError
            If a category has too many levels, or mixes text and numbers, or a column has dates.
        """
        if not hasattr(X, "iloc"):  # no frame of pandas
            return None
        texts, gaps, dates = [], [], []
        for j in (j for j in range(X.shape[1]) if j not in kept):
            column = X.iloc[:, j]
            kind = kind_of(column)
            if kind == "dates or times":
                dates.append(j)
            elif kind == "text or categories" or column.dtype == "category":
                _check_levels(column)
                texts.append(j)
            elif kind:
                gaps.append(j)
        if dates:
            raise ValueError(describe_wrong_columns(X.iloc[:, dates], None))
        return cls(X, texts, gaps) if texts or gaps else None

    def made(self, X: Any) -> Any:
        """The features of rows, a frame if these are one."""
        if not hasattr(X, "iloc"):
            return np.asarray(self.transformer.transform(X), dtype=float)
        made = np.asarray(self.transformer.transform(_named(X)), dtype=float)
        return type(X)(made, columns=self.names)


def _named(X: Any) -> Any:
    """A frame with text for names, where they are numbers those that scikit-learn gives."""
    if all(isinstance(name, str) for name in X.columns):
        return X
    return X.set_axis([f"x{j}" for j in range(X.shape[1])], axis=1)


def with_nan(X: Any) -> Any:
    """Categories with NaN in the place of every missing value."""
    return X.astype(object).where(X.notna(), np.nan) if hasattr(X, "notna") else X


def _check_levels(column: Any) -> None:
    levels = [level for level in column.unique().tolist() if not is_missing(level)]
    if len({isinstance(level, str) for level in levels}) > 1:
        raise ValueError(
            f"column {column.name!r} of X mixes text and other values: turn it into one type, as "
            f"by X[{column.name!r}].astype(str)."
        )
    if len(levels) > MOST_LEVELS:
        raise ValueError(
            f"column {column.name!r} of X has {len(levels)} levels, more than {MOST_LEVELS}: name "
            "it in crossed or nested, so that each level has a random intercept, or leave it out."
        )
