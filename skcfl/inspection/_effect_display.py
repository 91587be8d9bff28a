"""The curve of a feature: the population's with its interval, and clients' curves."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from .._typing import ArrayLike, Groups
from ._axes import LEVEL, LONGEST, Axes, Display, check_name, check_shows, text_of

# Clients up to which each curve has its name in the legend.
NAMED = 10


@dataclass(eq=False, repr=False)
class EffectDisplay(Display):
    """What a feature adds to predictions: a curve of the population, and clients' curves.

    Create it with :meth:`from_estimator`; all parameters are stored as attributes.

    Parameters
    ----------
    values : array-like of shape (n_values,)
        Values of the feature.
    effect : array-like of shape (n_values,)
        The population's curve.
    std : array-like of shape (n_values,)
        Standard deviations of its errors.
    client_effects : array-like of shape (n_clients, n_values) or None, default=None
        Clients' curves.
    groups : array-like of shape (n_clients,) or None, default=None
        Their ids.
    name : str or None, default=None
        Name of the feature.

    Attributes
    ----------
    line_ : matplotlib Line2D
        The population's curve.
    interval_ : matplotlib PolyCollection
        Its interval.
    client_lines_ : list of matplotlib Line2D
        The clients' curves.
    ax_ : matplotlib Axes
        Axes with the plot.
    figure_ : matplotlib Figure
        Figure with the axes.

    See Also
    --------
    skcfl.PartialPooling : The estimator of such curves, with ``basis="splines"``.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import PartialPoolingRegressor
    >>> from skcfl.inspection import EffectDisplay
    >>> rng = np.random.default_rng(0)
    >>> x, pig = rng.uniform(-3, 3, size=300), np.repeat(np.arange(15), 20)
    >>> y = np.sin(x) + 0.1 * rng.normal(size=300)
    >>> model = PartialPoolingRegressor(basis="splines").fit(x[:, None], y, groups=pig)
    >>> display = EffectDisplay.from_estimator(model, "x0", groups=[0, 1])
    >>> len(display.client_lines_)
    2
    """

    _: KW_ONLY
    values: ArrayLike
    effect: ArrayLike
    std: ArrayLike
    client_effects: ArrayLike | None = None
    groups: Any = None
    name: str | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        feature: str | int,
        groups: Groups = None,
        *,
        values: ArrayLike | None = None,
        level: float = 0.95,
        ax: Axes | None = None,
    ) -> EffectDisplay:
        """Draw the effect of a feature of a fitted estimator.

        Parameters
        ----------
        estimator : PartialPooling, PartialPoolingClassifier or PartialPoolingRegressor
            Fitted.
        feature : str or int
            Name or position of the feature.
        groups : array-like of shape (n_clients,), default=None
            Clients to draw the curves of.
        values : array-like of shape (n_values,), default=None
            Values of the feature; None is a grid.
        level : float, default=0.95
            Probability of the interval, in (0, 1).
        ax : matplotlib Axes, default=None
            Axes to draw in; None makes a figure.

        Returns
        -------
        display : EffectDisplay

        Raises
        ------
        NotFittedError
            If it is not fitted.
        ValueError
            If `estimator` has no effects of features.
        """
        check_shows(estimator, "partial_effect", "fit PartialPooling, which has curves")
        x, effect, std = estimator.partial_effect(feature, values=values)
        curves = None
        if groups is not None:
            curves = estimator.partial_effect(feature, groups, values=x)[1]
        name = feature if isinstance(feature, str) else f"feature {feature}"
        display = cls(
            values=x, effect=effect, std=std, client_effects=curves, groups=groups, name=name
        )
        return display.plot(ax, level=level)

    def plot(self, ax: Axes | None = None, *, level: float = 0.95) -> EffectDisplay:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw in; None makes a figure.
        level : float, default=0.95
            Probability of the interval, in (0, 1).

        Returns
        -------
        self : EffectDisplay

        Raises
        ------
        ValueError
            If the lengths differ, or `level` is not between 0 and 1.
        """
        if not LEVEL.is_satisfied_by(level):
            raise ValueError(f"level must be a number between 0 and 1, got {level!r}.")
        given = self.values, self.effect, self.std
        x, effect, std = (np.asarray(one, dtype=float) for one in given)
        if not (x.ndim == 1 and x.shape == effect.shape == std.shape):
            raise ValueError(
                "values, effect and std must have one axis of the same length, got shapes "
                f"{x.shape}, {effect.shape} and {std.shape}."
            )
        self.name = check_name(self.name)
        ax = self._take_axes(ax)
        curves = np.zeros((0, len(x)))
        if self.client_effects is not None:
            curves = np.asarray(self.client_effects)
        names = [None] * len(curves) if self.groups is None else list(self.groups)
        few = len(curves) <= NAMED
        self.client_lines_ = [
            ax.plot(
                x, curve, linewidth=1, alpha=0.7, label=text_of(name) if few else "_nolegend_"
            )[0]
            for curve, name in zip(curves, names, strict=True)
        ]
        half = norm.ppf(0.5 + 0.5 * level) * std
        (self.line_,) = ax.plot(x, effect, color="black", linewidth=2, label="population")
        self.interval_ = ax.fill_between(
            x, effect - half, effect + half, color="black", alpha=0.15, linewidth=0
        )
        ax.set(
            xlabel=text_of(self.name or "feature", 2 * LONGEST), ylabel="part of the prediction"
        )
        if len(curves) and few:
            # matplotlib leaves out lines with labels that begin with "_", unless they are given.
            lines = [*self.client_lines_, self.line_]
            ax.legend(lines, [line.get_label() for line in lines], title="client")
        return self
