"""The first message of a federation: what clients say of themselves before anything is fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import about
from ..clients.ids import encode, family, joined_ids
from .private_sums import joined_terms

if TYPE_CHECKING:
    from ..models import LocalModel


@dataclass
class Handshake:
    """The first message: what clients say of themselves before anything is fitted.

    Attributes
    ----------
    ids : ndarray of shape (n_clients,)
        Their ids, sorted.
    n_features : int
        Features of every row.
    feature_names : ndarray of shape (n_features,) or None
        Their names, where the rows have some.
    dtype : dtype
        Type of the features.
    classes : ndarray or None
        The classes that the clients know, sorted, where classes are asked for.
    n_rows : int
        Rows of all of them.
    row_shape : tuple of int or None
        Shape of a row, where rows have several axes and are stored flat.
    sizes, weights : ndarray of shape (n_clients,)
        Number of rows of each client, and their total weight.
    privacy : dict or None
        Terms of the clients' privacy, see :class:`~skcfl.federation.ClientPrivacy`; ids are then
        numbers, and the rest says nothing of the rows.
    """

    ids: np.ndarray
    n_features: int
    feature_names: np.ndarray | None
    dtype: np.dtype
    classes: np.ndarray | None = None
    n_rows: int = 0
    row_shape: tuple[int, ...] | None = None
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0))
    privacy: dict[str, Any] | None = None

    def bound(self, model: LocalModel) -> LocalModel:
        """A local model for the rows of these clients."""
        if self.row_shape is not None:
            model = model.for_rows(self.row_shape)
        n_classes = None if self.classes is None else len(self.classes)
        return model.bind(self.n_features, n_classes=n_classes, dtype=self.dtype)


def joined_hellos(said: Sequence[tuple[str, Handshake]]) -> Handshake:
    """What all clients say of themselves, of what those in each place say.

    Parameters
    ----------
    said : list of (str, Hello)
        Name of each place, for messages, and what its clients say.

    Returns
    -------
    hello : Handshake

    Raises
    ------
    ValueError
        If places do not agree on the features, their type or the kind of classes, or if a
        client's rows are in several.
    """
    first_name, first = said[0]
    for name, other in said[1:]:
        if other.n_features != first.n_features:
            raise ValueError(
                f"All clients must have the same features: those of {first_name} have "
                f"{first.n_features}, those of {name} {other.n_features}."
            )
        if other.row_shape != first.row_shape:
            raise ValueError(
                f"All rows must have one shape: those of {first_name} have "
                f"{first.row_shape or (first.n_features,)}, those of {name} "
                f"{other.row_shape or (other.n_features,)}."
            )
        names: Any = (first.feature_names, other.feature_names)
        if (names[0] is None) != (names[1] is None):
            lacks, has = (first_name, name) if names[0] is None else (name, first_name)
            raise ValueError(
                f"{lacks} has no names of the features, and {has} has some: an order of columns "
                "that differs would go unnoticed. Load a table with named columns in both."
            )
        if names[0] is not None and list(names[0]) != list(names[1]):
            raise ValueError(
                f"All clients must have the same features in the same order: {first_name} has "
                f"{names[0]}, {name} has {names[1]}."
            )
        if other.dtype != first.dtype:
            raise ValueError(
                f"All features must be of one type: those of {first_name} are {first.dtype}, "
                f"those of {name} {other.dtype}."
            )
        theirs: Any = other.classes
        if first.classes is not None and _kind_of(theirs) != _kind_of(first.classes):
            raise ValueError(
                f"y must hold classes of one type: in {first_name} they are such as "
                f"{first.classes[:1].tolist()[0]!r}, in {name} {theirs[:1].tolist()[0]!r}."
            )
        if family(other.ids) != family(first.ids):
            raise ValueError(
                f"groups must hold ids of one type: in {first_name} they are such as "
                f"{first.ids[:1].tolist()[0]!r}, in {name} {other.ids[:1].tolist()[0]!r}."
            )
    ids = first.ids
    for _, other in said[1:]:
        ids = joined_ids(ids, other.ids)
    unique, codes = encode(ids)
    counts = np.bincount(codes)
    if (counts > 1).any():
        twice = np.flatnonzero(counts > 1)
        owner = np.repeat(np.arange(len(said)), [len(one.ids) for _, one in said])
        where = [said[k][0] for k in owner[codes == twice[0]]]
        raise ValueError(
            f"A client's rows must be in one place: those of {unique[twice].tolist()[0]!r} are in "
            f"{' and '.join(where)}"
            + (f"; so are those of {unique[twice[1:5]].tolist()}." if len(twice) > 1 else ".")
        )
    classes = None
    if first.classes is not None:
        with about("y"):
            classes = np.unique(np.concatenate([one.classes for _, one in said]))
    n_rows = sum(one.n_rows for _, one in said)
    about_rows = first.n_features, first.feature_names, first.dtype, classes, n_rows
    order = np.argsort(codes)
    sizes, weights = (
        np.concatenate([getattr(one, name) for _, one in said])[order]
        for name in ("sizes", "weights")
    )
    terms = joined_terms(said)
    return Handshake(unique, *about_rows, first.row_shape, sizes, weights, terms)


def _kind_of(classes: Any) -> str:
    """What classes must share to be sorted together."""
    return "number" if classes.dtype.kind in "biuf" else classes.dtype.kind
