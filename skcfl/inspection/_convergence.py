"""Gap, bytes and other columns of the history of a fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from .._typing import Array, ArrayLike
from ._axes import Axes, Display, check_shows

LABELS = {
    "round": "round",
    "bytes": "sent so far",
    "gap": "duality gap",
    "change": "change of the models",
    "objective": "objective",
    "n_clusters": "clusters",
    "participants": "participants",
}
# Columns that fall towards zero: on a logarithmic axis.
FALLING = {"gap", "change"}


@dataclass(eq=False, repr=False)
class ConvergenceDisplay(Display):
    """How a fit converged: duality gap, bytes sent or another column, by round.

    Create it with :meth:`from_estimator`; all parameters are stored as attributes.

    Parameters
    ----------
    history : dict of str to array-like of shape (n_checks,)
        Columns by name, as ``history_`` of a fitted estimator. "round" is the number of rounds at
        each entry (one per entry where it is missing), "floats_up" and "floats_down" the numbers
        sent since the entry before.
    itemsize : int, default=8
        Bytes of a number sent.
    name : str or None, default=None
        Name of the fit for the legend.

    Attributes
    ----------
    columns_ : dict of str to ndarray
        The history, with "round" and the running total "bytes".
    line_ : matplotlib Line2D
        The curve.
    ax_ : matplotlib Axes
        Axes with the curve.
    figure_ : matplotlib Figure
        Figure with the axes.

    See Also
    --------
    ClusterPathDisplay : Models and clusters over the penalty.

    Notes
    -----
    The gap of the fusion methods is that between the best models and the best dual solution so
    far, a bound of how much the objective exceeds its minimum: it never rises.  A gap of exactly
    0 is drawn at the lower edge of the axes, an infinite one not at all.  The change of models is
    relative to their length, and infinite where they start at zero.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.inspection import ConvergenceDisplay
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> fusion = ConvexClusteredFLRegressor(lam=0.1).fit(data.X, data.y, groups=data.groups)
    >>> display = ConvergenceDisplay.from_estimator(fusion)
    >>> bool(display.line_.get_ydata()[-1] == fusion.dual_gap_)
    True
    >>> by_bytes = display.plot(x="bytes")
    """

    _: KW_ONLY
    history: Mapping[str, ArrayLike]
    itemsize: int = 8
    name: str | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        x: Literal["round", "bytes"] | str = "round",
        y: Literal["gap", "bytes"] | str | None = None,
        name: str | None = None,
        ax: Axes | None = None,
        **line_kw: Any,
    ) -> ConvergenceDisplay:
        """Draw the convergence of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            Fitted, with a ``history_``.
        x : {"round", "bytes"} or str, default="round"
            Quantity on the horizontal axis, as in :meth:`plot`.
        y : {"gap", "bytes"} or str, default=None
            Quantity on the vertical axis, as in :meth:`plot`.
        name : str or None, default=None
            Name for the legend; None is the estimator's class.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        **line_kw : dict
            Passed to matplotlib's ``plot``.

        Returns
        -------
        display : ConvergenceDisplay
            With the curve drawn.
        """
        check_shows(estimator, "history_", "fit one that works in rounds, such as IFCA")
        points = getattr(estimator, "cluster_centers_", None)
        display = cls(
            history=estimator.history_,
            itemsize=(estimator.cluster_params_ if points is None else points).dtype.itemsize,
            name=type(estimator).__name__ if name is None else name,
        )
        return display.plot(ax, x=x, y=y, **line_kw)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        x: Literal["round", "bytes"] | str = "round",
        y: Literal["gap", "bytes"] | str | None = None,
        name: str | None = None,
        **line_kw: Any,
    ) -> ConvergenceDisplay:
        """Draw one column of the history over another.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        x : {"round", "bytes"} or str, default="round"
            Horizontal axis: "round", "bytes" (the running total sent up and down), or any column
            of the history.
        y : {"gap", "bytes"} or str, default=None
            Vertical axis, likewise; None is "gap" where the history has one, else "change", else
            "objective".
        name : str or None, default=None
            Name for the legend; None is the one given before.
        **line_kw : dict
            Passed to matplotlib's ``plot``.

        Returns
        -------
        display : ConvergenceDisplay
            This display.

        Raises
        ------
        ValueError
            If the history has no such column.
        """
        self.columns_ = self._columns()
        if y is None:
            y = next((c for c in ("gap", "change", "objective") if c in self.columns_), "bytes")
        for parameter, value in (("x", x), ("y", y)):
            if not isinstance(value, str) or value not in self.columns_:
                raise ValueError(
                    f"{parameter} must be a column of the history, one of "
                    f"{sorted(self.columns_)}, got {value!r}."
                )
        name = self.name if name is None else name
        ax = self._draw_line(ax, self.columns_[x], self.columns_[y], name, line_kw)
        for axis, column in ((ax.xaxis, x), (ax.yaxis, y)):
            axis.set_label_text(LABELS.get(column, column))
            if column == "bytes":
                axis.set_major_formatter(_byte_formatter())
        if y in FALLING:
            ax.set_yscale("log", nonpositive="clip")
        return self

    def _columns(self) -> dict[str, Array]:
        columns = {key: np.asarray(value) for key, value in self.history.items()}
        if not columns:
            raise ValueError("The history is empty: this estimator records nothing by round.")
        n = len(next(iter(columns.values())))
        columns.setdefault("round", np.arange(1, n + 1))
        if "floats_up" in columns and "floats_down" in columns:
            sent = columns["floats_up"] + columns["floats_down"]
            columns["bytes"] = np.cumsum(sent) * self.itemsize
        return columns


def _byte_formatter() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(unit="B")
