"""Crossed and nested groupings of rows: their columns, and the effects of their levels."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import _safe_indexing

from .._checks import is_missing
from .._typing import Array, ClientIds
from ..clients.ids import check_ids, encode, locate
from ..federation.ledger import Ledger
from ..federation.made import MadeFederation, MadeHello, distinct_values, quantiles
from ..federation.made_columns import Columns
from ..models import LinearModel
from ..models._levelled import LevelledModel
from ..pooling.basis_options import SplineBasis, TreeBasis
from .posterior_predictions import PosteriorPredictions

if TYPE_CHECKING:
    from ..federation.federation import Federation
    from ..federation.pool import ClientPool


# Shares of the rows at the outer knots: few rows are beyond them, where curves are straight.
OUTER_KNOTS = 0.01, 0.99
# Least distance of two knots, as a part of that of the outer ones.
LEAST_STEP = 1e-3


class LevelEffects(PosteriorPredictions):
    """Base of the estimator of rows that may belong to other groupings than clients.

    A subclass has the parameters ``crossed`` and ``nested``.
    """

    crossed: Any
    nested: Any

    #: How the columns of the fit are made of the user's; None if they are the same.
    _columns: Columns | None = None
    #: Levels of the groupings by position of their column, where these are no numbers.
    _encodings: dict[int, Array]
    #: Crossed effects, and nested ones by client, of the codes of the levels.
    _effects: tuple[list[Array], list[Array]]

    # ------------------------------------------------------------------------- columns

    def _groupings(self, names: Array) -> tuple[list[int], list[int]]:
        """Positions of the columns of the crossed and the nested groupings."""
        crossed, nested = (
            [self._position(entry, names, name) for entry in _listed(getattr(self, name))]
            for name in ("crossed", "nested")
        )
        if len({*crossed, *nested}) < len(crossed) + len(nested):
            raise ValueError(
                "crossed and nested must name each column once, got "
                f"crossed={self.crossed!r}, nested={self.nested!r}."
            )
        return crossed, nested

    def _position(self, entry: Any, names: Array, parameter: str) -> int:
        """Position of a column that a user gave by name or by position."""
        found: Any = np.flatnonzero(names == entry) if isinstance(entry, str) else []
        if isinstance(entry, Integral) and not isinstance(entry, (bool, np.bool_)):
            at = int(entry)
            found = [at % len(names)] if -len(names) <= at < len(names) else []
        if len(found) != 1:
            allowed = "'all', 'intercept' or a list" if parameter == "random" else "a list"
            raise ValueError(
                f"{parameter} must be {allowed} of features, names of {names.tolist()} or their "
                f"positions; got {entry!r} in it."
            )
        return int(found[0])

    def _take_ids(
        self, X: Any, groups: ClientIds | None, header: Any = None, reset: bool = False
    ) -> tuple[Any, Any]:
        X, ids = super()._take_ids(X, groups, header, reset)
        if reset:
            header._columns, header._encodings = None, {}
            if _listed(self.crossed) or _listed(self.nested):
                names = self._feature_names(header, X.shape[1])
                X = self._encoded(X, sum(self._groupings(names), []), header)
            _refuse_categories(X)
        elif self._columns is not None:
            X = self._encoded(X, list(self._encodings), self)
            X = self._check_features(X, dtype=float)
            X = self._columns.made(X)[:, : len(self._columns.names)]
        return X, ids

    def _encoded(self, X: Any, positions: list[int], header: Any) -> Any:
        """X with numbers in the place of levels that are none, which a header knows or learns."""
        found = {j: np.asarray(_safe_indexing(X, j, axis=1)) for j in positions}
        found = {j: column for j, column in found.items() if column.dtype.kind not in "biuf"}
        if not found:
            return X
        others = [j for j in range(X.shape[1]) if j not in found]
        _refuse_categories(_safe_indexing(X, others, axis=1))
        out = np.empty((X.shape[0], X.shape[1]))
        if others:
            out[:, others] = np.asarray(_safe_indexing(X, others, axis=1), dtype=float)
        for j, column in found.items():
            name = repr(str(X.columns[j])) if hasattr(X, "columns") else j
            missing = sum(map(is_missing, column.tolist()))
            if missing:
                raise ValueError(
                    f"column {name} of X must have a level in every row, got {missing} missing "
                    "(NaN, None or NA). Drop the rows or give them a level."
                )
            ids = check_ids(column, None, f"column {name} of X")
            if j in header._encodings:
                out[:, j], _ = locate(header._encodings[j], ids)
            else:
                header._encodings[j], out[:, j] = encode(ids)
        return out

    def _check_features(self, X: Any, dtype: Any) -> Any:
        # There may be groupings and no features.
        none = X.shape[1] == 0 and self._columns is not None and len(self._columns.names) == 0
        return X if none else super()._check_features(X, dtype)

    @property
    def _n_model_features(self) -> int:
        return self.model_.n_features if self._columns is None else self._columns.n_features

    def _feature_names(self, header: Any, n_features: int) -> Array:
        columns = getattr(header, "_columns", None)
        if columns is not None and n_features == len(columns.names):
            return np.array(columns.names, dtype=object)
        return super()._feature_names(header, n_features)

    # ----------------------------------------------------------------------------- fit

    def _made(
        self,
        federation: Federation,
        hello: Any,
        header: Any,
        basis: SplineBasis | TreeBasis | None,
        before: Any = None,
    ) -> tuple[Any, Any]:
        """The federation with the columns of the fit, and its hello; a basis makes curves."""
        header._columns, header._encodings = None, getattr(header, "_encodings", {})
        names = self._feature_names(header, hello.n_features)
        crossed, nested = self._groupings(names)
        codes = [*crossed, *nested]
        if not codes and not isinstance(basis, SplineBasis):
            return federation, hello
        hello = replace(hello, dtype=np.dtype(float))
        model = self._local_model().bind(
            hello.n_features, None if hello.classes is None else len(hello.classes), float
        )
        kept = [j for j in range(hello.n_features) if j not in codes]
        recipe = [("same", j, np.zeros(0)) for j in kept]
        new_names = [str(names[j]) for j in kept]
        about = federation, model, hello, header
        for j, values in self._curves(*about, kept, basis, before):
            recipe.append(("curve", j, values))
            width = len(values) + int(values[0]) - 4
            new_names += [f"{names[j]} curve {k + 1}" for k in range(width)]
        levels = distinct_values(federation, model, hello, codes) if codes else []
        recipe += [("codes", j, values) for j, values in zip(codes, levels, strict=True)]
        header._levels = [
            header._encodings[j][values.astype(int)] if j in header._encodings else values
            for j, values in zip(codes, levels, strict=True)
        ]
        header._grouping_names = [str(names[j]) for j in codes]
        if len(recipe) == len(kept) and not codes:
            return federation, hello  # no feature has a curve
        header._columns = columns = Columns(hello.n_features, recipe, new_names, len(codes))
        sizes = [len(values) for values in levels]
        split = tuple(sizes[: len(crossed)]), tuple(sizes[len(crossed) :])
        return MadeFederation(federation, columns), MadeHello.of(hello, columns, split)

    def _curves(
        self,
        federation: Any,
        model: Any,
        hello: Any,
        header: Any,
        kept: list[int],
        basis: SplineBasis | TreeBasis | None,
        before: Any,
    ) -> list[tuple[int, Array]]:
        """Columns that have curves, each with the degree and the knots."""
        if not isinstance(basis, SplineBasis):
            return []
        shares = np.linspace(*OUTER_KNOTS, basis.n_knots)
        knots, n_values = self._quantiles_at(federation, model, hello, header, shares, before)
        curves = []
        for j in kept:
            if n_values[j] <= 2 * (basis.n_knots - 1):
                continue
            places = knots[j]
            if (np.diff(places) <= LEAST_STEP * (places[-1] - places[0])).any():
                # Many rows of one value: knots at equal distances.
                places = np.linspace(places[0], places[-1], basis.n_knots)
            curves.append((j, np.append(float(basis.degree), places)))
        return curves

    def _quantiles_at(
        self, federation: Any, model: Any, hello: Any, header: Any, shares: Array, before: Any
    ) -> tuple[Array, Array]:
        """Quantiles of the features, and bounds of their different values, asked for once."""
        known = getattr(header, "_quantiles", None)
        if known is not None and np.isin(shares, known[0]).all():
            return known[1][:, np.searchsorted(known[0], shares)], known[2]
        ledger = Ledger()
        header._asked = [*getattr(header, "_asked", []), ledger]
        return quantiles(federation, model, hello, shares, ledger, before)

    def _model_of(self, hello: Any) -> Any:
        model = super()._model_of(hello)
        crossed, nested = getattr(hello, "levels", ((), ()))
        if not (crossed or nested):
            return model
        if type(model) is not LinearModel:
            raise ValueError(
                "crossed and nested need a LinearModel, with rows that are dense, got "
                f"{type(model).__name__}."
            )
        about = model.loss, model.fit_intercept, model.standardize, model.class_weight
        return LevelledModel(*about, crossed, nested)

    def _end(self, task: Any) -> None:
        pool = task.pool
        if self._has_levels:
            step = "without_levels" if pool.model.quadratic else "linearised"
            pool = pool.without_effects(step, *self._level_arguments)
        self._gather(pool, len(self.groups_))

    # ------------------------------------------------------------------------- predict

    @property
    def _has_levels(self) -> bool:
        """True if the levels of a row are a part of its prediction."""
        return self._columns is not None and self._columns.n_codes > 0

    @property
    def _predicts_by_client(self) -> bool:
        return not self._has_levels

    def _decide(self, X: Any, groups: ClientIds | None) -> Array:
        raw = super()._decide(X, groups)
        return raw + self._added(X, groups)[:, None] if self._has_levels else raw

    def _added(self, X: Any, groups: ClientIds | None, nested: bool = True) -> Array:
        """Effects of the levels of rows; those of levels not seen are 0."""
        assert self._columns is not None
        X, ids = PosteriorPredictions._take_ids(self, X, groups)
        X = self._check_features(self._encoded(X, list(self._encodings), self), dtype=float)
        codes, total = self._columns.codes(X), np.zeros(X.shape[0])
        crossed, inside = self._effects
        for column, effects in zip(codes.T, crossed, strict=False):
            total += np.where(column >= 0, effects[np.maximum(column, 0)], 0.0)
        if inside and nested:
            if ids is None:
                at = np.zeros(X.shape[0], dtype=np.intp)
            else:
                at, _ = locate(self.groups_, np.asarray(ids))
            for column, effects in zip(codes.T[len(crossed) :], inside, strict=True):
                known = (column >= 0) & (at >= 0) & (at < len(effects))
                found = effects[np.where(known, at, 0), np.where(known, column, 0)]
                total += np.where(known, np.nan_to_num(found), 0.0)
        return total

    def _new_clients(
        self, X: Any, y: Any, groups: ClientIds | None, with_targets: bool = True
    ) -> tuple[ClientPool, Array | None]:
        if self._has_levels and with_targets and y is not None:
            if not self.model_.quadratic:
                raise ValueError(
                    "new clients and new rows need loss='squared_error' where rows have crossed "
                    f"or nested levels, got loss={self.model_.loss!r}: fit again with all rows."
                )
            y = np.asarray(y, dtype=float) - self._added(X, groups)
        return super()._new_clients(X, y, groups, with_targets)


def _listed(given: Any) -> list[Any]:
    """Columns that a user gave: none, one, or several."""
    if given is None:
        return []
    return [given] if isinstance(given, (str, Integral)) else list(given)


def _refuse_categories(X: Any) -> None:
    """Raise an error if columns of a frame hold categories, or lack values."""
    if not hasattr(X, "iloc"):  # no frame of pandas
        return
    texts = []
    for name, kind in dict(X.dtypes).items():
        if getattr(kind, "kind", "O") not in "biuf":
            try:
                np.asarray(X[name]).astype(float)
            except (ValueError, TypeError):
                texts.append(str(name))
    if texts:
        raise ValueError(
            f"X has columns of categories, {texts[:5]}: name those with ids of other groupings in "
            "crossed or nested, or put make_column_transformer((OneHotEncoder(drop='first', "
            f"handle_unknown='ignore'), {texts[:5]}), remainder='passthrough') before the "
            "estimator in a pipeline."
        )
    gaps = [str(name) for name in X.columns if bool(np.asarray(X[name].isna()).any())]
    if gaps:
        raise ValueError(
            f"X lacks values (contains NaN) in {gaps[:5]}: put SimpleImputer(add_indicator=True) "
            "before the estimator in a pipeline."
        )


def by_level(levels: Array, effects: Array) -> dict[Hashable, float]:
    """Effects by the level as the user wrote it."""
    return dict(zip(levels.tolist(), effects.tolist(), strict=True))
