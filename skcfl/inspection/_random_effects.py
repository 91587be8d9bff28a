"""Effects of clients or levels with their intervals: the caterpillar plot of a mixed model."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any

import numpy as np
from scipy.stats import norm

from .._typing import Array, ArrayLike
from ._axes import LEVEL, LONGEST, Axes, Display, check_shows, colour_of, name_clients, text_of

# Clients up to which each has its name beside it.
NAMED = 60
# Names of effects that are no features.
AUTO, AT_MEAN = "auto", "at the mean row"


@dataclass(eq=False, repr=False)
class RandomEffectsDisplay(Display):
    """One coefficient of every client with its posterior interval, sorted: a caterpillar plot.

    Create it with :meth:`from_estimator`; all parameters are stored as attributes. Clients have
    the colour of their cluster, the ten largest clusters one each; dashed lines are the clusters'
    means, the fixed effects.

    Parameters
    ----------
    values : array-like of shape (n_clients,)
        Posterior means.
    std : array-like of shape (n_clients,)
        Posterior standard deviations.
    groups : array-like of shape (n_clients,) or None, default=None
        Ids of the clients.
    labels : array-like of shape (n_clients,) or None, default=None
        Cluster of each client, numbered from 0; None is one cluster.
    means : array-like of shape (n_clusters,) or None, default=None
        Means of the clusters.
    name : str or None, default=None
        Name of the coefficient.

    Attributes
    ----------
    order_ : ndarray of shape (n_clients,)
        Clients from the least value to the largest, as they stand from the bottom to the top.
    lower_, upper_ : ndarray of shape (n_clients,)
        Ends of the intervals.
    points_ : matplotlib PathCollection
        The values, in that order.
    intervals_ : matplotlib LineCollection
        The intervals, in that order.
    lines_ : list of matplotlib Line2D
        The means of the clusters.
    ax_ : matplotlib Axes
        Axes with the plot.
    figure_ : matplotlib Figure
        Figure with the axes.

    See Also
    --------
    skcfl.PartialPooling : The estimator whose clients have posteriors.

    Notes
    -----
    An interval holds the client's coefficient with the probability `level`, given the variances
    that were fitted; the errors of the clusters' means are included, as in ``params_std_``. The
    intervals of two clients may overlap although the clients differ.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import PartialPoolingRegressor
    >>> from skcfl.inspection import RandomEffectsDisplay
    >>> rng = np.random.default_rng(0)
    >>> school = np.repeat(np.arange(20), 8)
    >>> x = rng.normal(size=160)
    >>> y = (2 + rng.normal(size=20)[school]) * x + rng.normal(size=160)
    >>> model = PartialPoolingRegressor().fit(x[:, None], y, groups=school)
    >>> display = RandomEffectsDisplay.from_estimator(model, "x0")
    >>> bool(np.all(np.diff(display.values[display.order_]) >= 0))
    True
    """

    _: KW_ONLY
    values: ArrayLike
    std: ArrayLike
    groups: Array | Sequence[Hashable] | None = None
    labels: ArrayLike | None = None
    means: Array | Sequence[float] | None = None
    name: str | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        feature: str | int = "auto",
        *,
        output: Any = None,
        level: float = 0.95,
        ax: Axes | None = None,
    ) -> RandomEffectsDisplay:
        """Draw a coefficient of all clients of a fitted estimator.

        Parameters
        ----------
        estimator : PartialPooling, PartialPoolingClassifier or PartialPoolingRegressor
            Fitted.
        feature : str or int, default="auto"
            Name of a feature, its position in ``coef_names_``, or "intercept", the value where
            all features are zero. The name of a crossed grouping draws its levels in the place of
            the clients. "auto" is what differs most: the value at the mean row, or the effect of
            a standard deviation of a feature; of these effects "at the mean row" is one, too.
        output : object, default=None
            The class of the coefficient, of classifiers with more than two.
        level : float, default=0.95
            Probability of an interval, in (0, 1).
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.

        Returns
        -------
        display : RandomEffectsDisplay
            With the plot drawn.

        Raises
        ------
        ValueError
            If there is no such feature or class.
        """
        check_shows(estimator, "params_std_", "fit PartialPooling, which has posteriors")
        if isinstance(feature, str) and feature in (AUTO, AT_MEAN):
            return _of_effects(cls, estimator, feature, output).plot(ax, level=level)
        if isinstance(feature, str) and feature in estimator.crossed_effects_:
            display = _of_levels(cls, estimator, feature, output).plot(ax, level=level)
            if len(display.order_) > NAMED:
                display.ax_.set_ylabel("levels")
            return display
        at, name = _position(estimator, feature, output)
        display = cls(
            values=estimator.params_[:, at],
            std=estimator.params_std_[:, at],
            groups=estimator.groups_,
            labels=estimator.labels_,
            means=estimator.cluster_params_[:, at],
            name=name,
        )
        return display.plot(ax, level=level)

    def plot(self, ax: Axes | None = None, *, level: float = 0.95) -> RandomEffectsDisplay:
        """Draw values and intervals.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        level : float, default=0.95
            Probability of an interval, in (0, 1).

        Returns
        -------
        display : RandomEffectsDisplay
            This display.

        Raises
        ------
        ValueError
            If shapes do not agree, or `level` is no probability.
        """
        values, std = (np.asarray(part, dtype=float) for part in (self.values, self.std))
        labels = np.zeros(len(values), dtype=int) if self.labels is None else self.labels
        labels = np.asarray(labels)
        if values.ndim != 1 or not values.shape == std.shape == labels.shape:
            raise ValueError(
                "values, std and labels must have one entry per client; got the shapes "
                f"{values.shape}, {std.shape} and {labels.shape}."
            )
        if not LEVEL.is_satisfied_by(level):
            raise ValueError(f"level must be a probability in (0, 1), got {level!r}.")
        ax = self._take_axes(ax)
        away = norm.ppf(0.5 + 0.5 * level) * std
        self.lower_, self.upper_ = values - away, values + away
        self.order_ = order = np.argsort(values, kind="stable")
        heights = np.arange(len(values))
        colours = list(map(colour_of, labels[order]))
        self.intervals_ = ax.hlines(
            heights, self.lower_[order], self.upper_[order], colors=colours, linewidth=1.0
        )
        self.points_ = ax.scatter(values[order], heights, s=9, c=colours, zorder=3)
        self.lines_ = [
            ax.axvline(mean, color=colour_of(k), linestyle="--", linewidth=1)
            for k, mean in enumerate([] if self.means is None else self.means)
        ]
        most = 0 if self.groups is None else NAMED
        name_clients(ax.yaxis, order, self.groups, most, fontsize=7)
        if self.name is not None:
            ax.set_xlabel(text_of(self.name, 2 * LONGEST))
        return self


def _of_effects(cls: Any, estimator: Any, feature: str, output: Any) -> RandomEffectsDisplay:
    """Display of the effect that differs most, or of the value at the mean row."""
    names, values, std = estimator._client_effects()
    if std is None:
        raise ValueError(
            f"feature={feature!r} needs the covariances of the clients' coefficients, which would "
            "take more than 256 MB; name a feature."
        )
    spread = values.std(axis=0)
    model, some = estimator.model_, np.arange(len(names))
    at_mean = model.fit_intercept & (some % model.n_columns == model.n_columns - 1)
    if model.n_outputs > 1 and output is not None:
        first, _ = _position(estimator, 0, output)
        some = first + np.arange(model.n_columns)
    if feature == AT_MEAN:
        some = some[at_mean[some]]
        if len(some) == 0:
            raise ValueError(f"feature={AT_MEAN!r} needs models with an intercept.")
    at = some[spread[some].argmax()]
    means = estimator._cluster_effects()
    return cls(
        values=values[:, at],
        std=std[:, at],
        groups=estimator.groups_,
        labels=estimator.labels_,
        means=means[:, at],
        name=f"value {names[at]}"
        if at_mean[at]
        else f"effect of a standard deviation of {names[at]}",
    )


def _of_levels(cls: Any, estimator: Any, grouping: str, output: Any) -> RandomEffectsDisplay:
    """Display of the levels of a crossed grouping."""
    if output is not None:
        raise ValueError(f"output must be None for levels of a grouping, got {output!r}.")
    effects = estimator.crossed_effects_[grouping]
    std = estimator.crossed_effects_std_[grouping]
    return cls(
        values=np.array(list(effects.values())),
        std=np.array(list(std.values())),
        groups=list(effects),
        means=[0.0],
        name=f"effect of {grouping}",
    )


def _position(estimator: Any, feature: Any, output: Any) -> tuple[int, str]:
    """Position of a coefficient in the parameters of a model, and its name."""
    model, names = estimator.model_, list(map(str, estimator.coef_names_))
    if isinstance(feature, str):
        places = {name: place for place, name in enumerate(names)}
        if model.fit_intercept:
            places.setdefault("intercept", len(names))
        place = places.get(feature)
    else:
        whole = isinstance(feature, Integral) and not isinstance(feature, (bool, np.bool_))
        place = feature % len(names) if whole and -len(names) <= feature < len(names) else None
    if place is None:
        known = [*names, *["intercept"] * bool(model.fit_intercept), *estimator.crossed_effects_]
        raise ValueError(f"feature must be one of {known} or a position, got {feature!r}.")
    name = [*names, "intercept"][place]
    if model.n_outputs == 1:
        if output is not None:
            raise ValueError(
                f"output must be None where there is one model of all classes, got {output!r}."
            )
        return place, name
    found = np.flatnonzero(estimator.classes_ == output)
    if len(found) != 1:
        raise ValueError(f"output must be one of {estimator.classes_.tolist()}, got {output!r}.")
    return found[0] * model.n_columns + place, f"{name} | {output}"
