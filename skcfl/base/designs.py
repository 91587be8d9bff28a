"""Columns of a fit that are made of the user's, and what predictions have beside linear models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.utils import _safe_indexing

from .._checks import is_missing
from .._typing import Array
from ..clients.ids import check_ids, encode, family, locate
from ..federation.ledger import Ledger
from ..federation.made import MadeFederation, MadeHello, distinct_values, quantiles
from ..federation.made_columns import Columns, bends, check_dense, spline_of
from ..pooling.basis_options import SplineBasis, TreeBasis
from .table_columns import positions_of

# Shares of the rows at the outer knots: few rows are beyond them, where curves are straight.
OUTER_KNOTS = 0.01, 0.99
# Least distance of two knots, as a part of that of the outer ones.
LEAST_STEP = 1e-3
# Integers from here on are not all floats.
ROUNDED = 2.0**53


@dataclass
class Design:
    """Columns of a fit that are made of the user's.

    Attributes
    ----------
    columns : Columns or None
        How they are made; None if they are the same.
    encodings : dict of int to ndarray
        Levels of the groupings by position of their column, where floats do not hold them.
    places : list of int
        Positions of the columns of the groupings, where the user has them.
    """

    columns: Columns | None = None
    encodings: dict[int, Array] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)

    def made(self, X: Any) -> Array:
        """Features of the fit of rows with the user's columns."""
        assert self.columns is not None
        return self.columns.made(X)[:, : len(self.columns.names)]

    def encoded(self, X: Any, positions: Iterable[int] | None = None) -> Any:
        """X with codes in the place of levels that floats do not hold, below 0 if not seen.

        With positions of the columns of the groupings their levels are learned.
        """
        among = self.encodings if positions is None else positions
        self.places = self.places if positions is None else list(positions)
        if among:
            check_dense(X)
        found = {j: np.asarray(_safe_indexing(X, j, axis=1)) for j in among}
        if positions is not None:
            found = {j: column for j, column in found.items() if not _are_exact(column)}
        is_frame = hasattr(X, "isetitem")
        if found:
            made: Any = X.copy(deep=False) if is_frame else np.array(X, dtype=object)
            X = made
        for j, column in found.items():
            name = repr(str(X.columns[j])) if is_frame else j
            missing = sum(map(is_missing, column.tolist()))
            if missing:
                raise ValueError(
                    f"column {name} of X must have a level in every row, got {missing} missing "
                    "(NaN, None or NA). Drop the rows or give them a level."
                )
            ids = check_ids(column, None, f"column {name} of X")
            if positions is None:
                levels = self.encodings[j]
                if family(levels) != family(ids):
                    raise ValueError(
                        f"column {name} of X holds levels of type {ids.dtype}, and of type "
                        f"{levels.dtype} in fit: pass levels of the type of the fit."
                    )
                codes, _ = locate(levels, ids)
                unseen = codes < 0
                codes[unseen] = -1 - encode(ids[unseen])[1]
            else:
                self.encodings[j], codes = encode(ids)
            if is_frame:
                X.isetitem(j, codes)
            else:
                X[:, j] = codes
        return X

    def plain(self, plain: Any) -> Any:
        """A client's plain linear model, behind the curves in a pipeline if there are some."""
        if self.columns is None or not self.columns.is_curve.any():
            return plain
        recipe = self.columns.recipe
        curves = [(j, values) for name, j, values in recipe if name == "curve"]
        kept = [j for name, j, _ in recipe if name == "same"]
        steps: list[Any] = [("same", "passthrough", kept)]
        coef = np.atleast_2d(plain.coef_)
        parts, at = [coef[:, : len(kept)]], len(kept)
        rows = np.zeros((2, self.columns.n_features))
        for j, values in curves:
            turn = bends(values)
            parts.append(coef[:, at : at + turn.shape[1]] @ turn.T)
            at += turn.shape[1]
            steps.append((f"curve {j}", spline_of(values), [j]))
            rows[:, j] = values[[1, -1]]
        return behind(ColumnTransformer(steps).fit(rows), plain, np.hstack(parts))


def _are_exact(levels: Array) -> bool:
    """If True, levels are numbers that floats hold."""
    return levels.dtype.kind in "biuf" and bool((np.abs(levels.astype(float)) < ROUNDED).all())


def behind(transformer: Any, plain: Any, coef: Array) -> Any:
    """A pipeline of a transformer and a plain linear model with coefficients of its columns."""
    plain.coef_ = coef.reshape(*plain.coef_.shape[:-1], coef.shape[1])
    plain.n_features_in_ = coef.shape[1]
    if hasattr(plain, "feature_names_in_"):
        del plain.feature_names_in_
    return make_pipeline(transformer, plain)


@dataclass
class Draft:
    """What is found on the way to a fit, and is no part of it.

    Attributes
    ----------
    federation, hello, groups
        The clients, with the user's columns.
    before : Presence or None
        Clients as an earlier attempt at the fit left them.
    basis : SplineBasis, TreeBasis or None
        What the columns are made for.
    chosen : SplineBasis, TreeBasis or None
        The basis that has won a competition with straight lines.
    losses : dict of str to float
        Mean loss of a row held out, by basis that competed.
    quantiles : tuple or None
        Shares of the rows, quantiles of the features, and bounds of their different values.
    ledgers : list of Ledger
        What was asked before the pool of the fit was there to count it.
    cuts : ndarray or None
        Ends of the bins of the features.
    grown : Forest or None
        Trees that the fit goes on with.
    groupings : list of (str, ndarray)
        Names and levels of the crossed groupings, then of the nested ones.
    """

    federation: Any = None
    hello: Any = None
    groups: Any = None
    before: Any = None
    basis: Any = None
    chosen: Any = None
    losses: dict[str, float] = field(default_factory=dict)
    quantiles: Any = None
    ledgers: list[Ledger] = field(default_factory=list)
    cuts: Any = None
    grown: Any = None
    groupings: list[tuple[str, Array]] = field(default_factory=list)

    def book(self, pool: Any) -> None:
        """Let a pool count what was asked before."""
        for ledger in self.ledgers:
            pool.ledger.take_over([ledger])
        self.ledgers = []

    def quantiles_at(self, estimator: Any, shares: Array) -> tuple[Array, Array]:
        """Quantiles of the features, and bounds of their different values, asked for once."""
        known = self.quantiles
        if known is not None and np.isin(shares, known[0]).all():
            return known[1][:, np.searchsorted(known[0], shares)], known[2]
        ledger = Ledger()
        self.ledgers = [*self.ledgers, ledger]
        return self.ask_quantiles(estimator, shares, ledger)

    def ask_quantiles(self, estimator: Any, shares: Array, ledger: Ledger) -> tuple[Array, Array]:
        """The same, asked of the clients."""
        wide, model = self.wide(estimator)
        return quantiles(self.federation, model, wide, shares, ledger, self.before)

    def wide(self, estimator: Any) -> tuple[Any, Any]:
        """The hello in double precision, and the local model of the user's columns."""
        wide = replace(self.hello, dtype=np.dtype(float))
        return wide, wide.bound(estimator._local_model())


class Effect:
    """What predictions have beside the clients' linear models: hooks of partial pooling."""

    #: If True, features determine it, which clients at other places have, too.
    of_features = True

    def attributes(self, estimator: Any, header: Any) -> dict[str, Any]:
        """Attributes that a fit publishes."""
        raise NotImplementedError

    def added(self, estimator: Any, raw: Array, X: Any, ids: Any) -> Array:
        """Raw predictions of rows with the user's columns, and with the effect."""
        raise NotImplementedError

    def variances(self, estimator: Any, X: Any, ids: Any) -> Any:
        """Variances of the predictions of rows that the effect adds to those of the clients."""
        return 0.0

    def added_to_clusters(self, estimator: Any, raw: Array, X: Any) -> Array:
        """The same of predictions by the models of clusters."""
        return raw

    def targets(self, estimator: Any, X: Any, y: Any, groups: Any) -> Any:
        """Targets of new rows without the effect, if it can be taken from them."""
        return y

    def weights(self, estimator: Any, X: Any, groups: Any, weights: Any) -> Any:
        """Weights of new rows, less where the effect is not known."""
        return weights

    def beside(self, estimator: Any, pool: Any) -> Any:
        """A pool in the units of the fit, with the effect beside the predictions of its models."""
        raise NotImplementedError

    def along(self, j: int, x: Array) -> Array | float:
        """The effect along a feature, zero on average over the rows of the fit."""
        return 0.0

    def plain(self, plain: Any) -> Any:
        """A client's plain model with the effect."""
        raise NotImplementedError

    def lines(self, fit: Any) -> list[str]:
        """Lines of the head of a summary."""
        return []


def groupings(estimator: Any, header: Any, n_features: int) -> tuple[list[int], list[int]]:
    """Positions of the columns of the crossed and the nested groupings."""
    names = estimator._feature_names(header, n_features)
    crossed, nested = (
        [
            j
            for one in listed(getattr(estimator, name))
            for j in positions_of(header, one, names, name)
        ]
        for name in ("crossed", "nested")
    )
    if len({*crossed, *nested}) < len(crossed) + len(nested):
        raise ValueError(
            "crossed and nested must name each column once, got "
            f"crossed={estimator.crossed!r}, nested={estimator.nested!r}."
        )
    return crossed, nested


def grouped(estimator: Any) -> bool:
    """True if levels of crossed or nested groupings are fitted, even of none."""
    return estimator.crossed is not None or estimator.nested is not None


def listed(given: Any) -> list[Any]:
    """Columns that a user gave: none, one, or several."""
    if given is None:
        return []
    return [given] if isinstance(given, (str, Integral)) else list(given)


def made(
    estimator: Any, hello: Any, header: Any, basis: SplineBasis | TreeBasis | None
) -> tuple[Any, Any]:
    """The federation with the columns of the fit, and its hello; a basis makes curves."""
    draft = header._draft
    header._design = design = replace(header._design, columns=None)
    names = estimator._feature_names(header, hello.n_features)
    crossed, nested = groupings(estimator, header, hello.n_features)
    codes = [*crossed, *nested]
    # Frames that were encoded have their columns in another order.
    places = dict(zip(codes, design.places, strict=bool(design.places)))
    encodings = {j: design.encodings.get(place) for j, place in places.items()}
    if not codes and not isinstance(basis, SplineBasis):
        return draft.federation, hello
    wide, model = draft.wide(estimator)
    kept = [j for j in range(hello.n_features) if j not in codes]
    recipe = [("same", j, np.zeros(0)) for j in kept]
    new_names = [str(names[j]) for j in kept]
    for j, values in _curves(estimator, draft, kept, basis):
        recipe.append(("curve", j, values))
        width = len(values) + int(values[0]) - 4
        new_names += [f"{names[j]} curve {k + 1}" for k in range(width)]
    levels = distinct_values(draft.federation, model, wide, codes) if codes else []
    for j, values in zip(codes, levels, strict=True):
        if not _are_exact(values):
            raise ValueError(
                f"levels of column {names[j]} of X must be below 2**53 in a federation, where "
                "they are floats: number them from 0."
            )
    recipe += [("codes", j, values) for j, values in zip(codes, levels, strict=True)]
    draft.groupings = [
        (
            str(names[j]),
            values if (found := encodings.get(j)) is None else found[values.astype(int)],
        )
        for j, values in zip(codes, levels, strict=True)
    ]
    if len(recipe) == len(kept) and not codes:
        return draft.federation, wide  # no feature has a curve
    columns = design.columns = Columns(hello.n_features, recipe, new_names, len(codes))
    sizes = [len(values) for values in levels]
    split = tuple(sizes[: len(crossed)]), tuple(sizes[len(crossed) :])
    return MadeFederation(draft.federation, columns), MadeHello.of(wide, columns, split)


def _curves(
    estimator: Any, draft: Draft, kept: list[int], basis: SplineBasis | TreeBasis | None
) -> list[tuple[int, Array]]:
    """Columns that have curves, each with the degree and the knots."""
    if not isinstance(basis, SplineBasis):
        return []
    shares = np.linspace(*OUTER_KNOTS, basis.n_knots)
    knots, n_values = draft.quantiles_at(estimator, shares)
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
