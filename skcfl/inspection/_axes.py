"""matplotlib, loaded when something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from .._checks import about

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    Axes = Any


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
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError(
                f"{type(self).__name__}.plot needs matplotlib, which is not installed. Install "
                "it, or skcfl with its extra: python -m pip install 'skcfl[plot]'."
            ) from error
        if ax is None:
            _, ax = plt.subplots()
        elif not isinstance(ax, plt.Axes):
            raise TypeError(f"ax must be matplotlib Axes or None, got {type(ax).__name__}.")
        self.ax_, self.figure_ = ax, ax.figure
        return ax
