"""Linear models of rows with columns that hold the codes of levels."""

from __future__ import annotations

import numpy as np

from .._typing import ClassWeight
from ._linear import LinearModel


class LevelledModel(LinearModel):
    """Linear model of rows with further columns, which hold the codes of levels.

    The last columns of the rows are the codes of the crossed groupings, then those of the nested
    ones, from 0; -1 is no level.  They are no features: parameters are those of a linear model of
    the other columns.

    Parameters
    ----------
    loss, fit_intercept, standardize, class_weight
        As of :class:`LinearModel`, without a penalty.
    crossed, nested : sequence of int
        Number of levels of each grouping.
    """

    def __init__(
        self,
        loss: str = "squared_error",
        fit_intercept: bool = True,
        standardize: bool = True,
        class_weight: ClassWeight = None,
        crossed: tuple[int, ...] = (),
        nested: tuple[int, ...] = (),
    ) -> None:
        super().__init__(loss, 0.0, fit_intercept, standardize, class_weight)
        self.crossed = crossed
        self.nested = nested

    @property
    def n_groupings(self):
        """Number of columns with codes."""
        return len(self.crossed) + len(self.nested)

    @property
    def has_units(self):
        """True if the mean of the targets is needed: products are of targets about it."""
        return self.quadratic or super().has_units

    def _bind(self):
        self.n_features -= self.n_groupings
        super()._bind()

    def to_message(self):
        """Parts with the number of all columns, which the shape of the data is."""
        parts = super().to_message()
        if "bound" in parts:
            n_features, *others = parts["bound"]
            parts["bound"] = n_features + self.n_groupings, *others
        parts["params"] = {name: parts["params"][name] for name in self._get_param_names()}
        return parts

    def design(self, X):
        """Design matrix of the features, and the codes behind it."""
        return np.hstack([super().design(X[:, : self.n_features]), X[:, self.n_features :]])

    def plain_of(self):
        """The bound linear model of the features."""
        about = self.fit_intercept, self.standardize, self.class_weight
        bound = LinearModel(self.loss, 0.0, *about)
        # Not bind: there may be groupings and no features.
        bound.n_features, bound.n_classes = self.n_features, self.n_classes
        bound.dtype = self.dtype
        bound._bind()
        units = vars(self).get("units_")
        return bound if units is None else bound.in_units(*units)

    def gaussian_of(self):
        """The bound linear model of the features with squared errors."""
        bound = self.plain_of()
        bound.loss, bound.class_weight, bound.n_classes = "squared_error", None, None
        bound._bind()
        return bound

    def spared(self, scaling):
        """A scaling of all columns that leaves the codes as they are."""
        mean, scale = scaling.mean.copy(), scaling.scale.copy()
        mean[self.n_features :], scale[self.n_features :] = 0.0, 1.0
        return type(scaling)(mean, scale)

    def of_features(self, scaling):
        """The scaling of the features."""
        return type(scaling)(scaling.mean[: self.n_features], scaling.scale[: self.n_features])
