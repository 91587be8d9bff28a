"""matplotlib, loaded when something is drawn."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from .._checks import Interval, about, needs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    Axes = Any

# Clusters with separate colours, and the colour of the others.
COLOURS, GREY = 10, "0.65"
# Characters of a client's name in a picture.
LONGEST = 30
# Probabilities of intervals.
LEVEL = Interval(Real, 0, 1, closed="neither")


def colour_of(cluster: int, most: int = COLOURS) -> str:
    """Colour of a cluster, grey beyond the first ones and of -1, which is none."""
    return f"C{cluster}" if 0 <= cluster < most else GREY


def text_of(name: Any, longest: int = LONGEST) -> str:
    """Text of an id or a feature: not read as a formula, and shortened in the middle."""
    text, half = str(name), longest // 2
    if len(text) > longest:
        text = f"{text[: half - 1]}…{text[-half:]}"
    return text.replace("$", r"\$")


def name_clients(
    axis: Any, order: Any, groups: Any, most: int, label: str = "clients", **text: Any
) -> None:
    """Name clients along an axis, in an order, where they are few; else label the axis.

    Parameters
    ----------
    axis : matplotlib Axis
        Horizontal or vertical.
    order : ndarray of shape (n_clients,)
        Positions of the clients, in the order of their places.
    groups : sequence or None
        Their ids; None takes the positions.
    most : int
        Clients up to which each has its name.
    label : str
        What is there if they are more.
    **text
        Properties of the names.

    Raises
    ------
    ValueError
        If there is not one id per client.
    """
    if groups is not None and len(groups) != len(order):
        raise ValueError(
            f"groups must have one id for each of the {len(order)} clients, got {len(groups)}."
        )
    if len(order) > most:
        axis.set_ticks([])
        axis.set_label_text(label)
        return
    names = order if groups is None else (groups[i] for i in order)
    axis.set_ticks(range(len(order)), list(map(text_of, names)), **text)


def mark_of_one(x: Any) -> dict[str, str]:
    """Style of a line: a marker if it has one point, which has no length to draw."""
    return {"marker": "o"} if len(x) == 1 else {}


def check_name(name: Any) -> str | None:
    """Return the name of a curve, a string or None.

    Raises
    ------
    TypeError
        If it is something else.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a string or None, got {type(name).__name__}.")
    return name


def check_shows(estimator: Any, name: str, way: str) -> None:
    """Check that an estimator is fitted and has what is drawn.

    Parameters
    ----------
    estimator : object
        Any.
    name : str
        The attribute that is drawn.
    way : str
        What to fit instead if there is none.

    Raises
    ------
    NotFittedError
        If it is not fitted.
    ValueError
        If a fit gives it no such attribute.
    """
    with about("estimator"):
        check_is_fitted(estimator)
    if not hasattr(estimator, name):
        raise ValueError(f"estimator, {type(estimator).__name__}, has no {name}: {way}.")


class Display:
    """Base of the displays, which keep the axes that they have drawn on."""

    def _take_axes(self, ax: Any) -> Any:
        """Return `ax`, or the axes of a new figure where it is None, and keep it.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        TypeError
            If `ax` is something else.
        """
        with needs(
            f"{type(self).__name__}.plot needs matplotlib, which is not installed. Install it, or "
            "skcfl with its extra: python -m pip install 'skcfl[plot]'."
        ):
            import matplotlib.pyplot as plt
        if ax is None:
            _, ax = plt.subplots(layout="tight")
        elif not isinstance(ax, plt.Axes):
            raise TypeError(f"ax must be matplotlib Axes or None, got {type(ax).__name__}.")
        self.ax_, self.figure_ = ax, ax.figure
        return ax

    def _draw_line(self, ax: Any, x: Any, y: Any, name: Any, line_kw: dict[str, Any]) -> Any:
        """Draw a line, with its name in a legend if it has one, and return the axes."""
        name = check_name(name)
        ax = self._take_axes(ax)
        line_kw = {"label": name, **mark_of_one(x), **line_kw}
        (self.line_,) = ax.plot(x, y, **line_kw)
        if line_kw["label"] is not None:
            ax.legend(frameon=False)
        return ax
