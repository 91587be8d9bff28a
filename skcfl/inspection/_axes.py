"""matplotlib, loaded when something is drawn."""

from __future__ import annotations

from typing import Any


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


def axes_or_new(ax: Any, caller: str) -> Any:
    """Return `ax`, or the axes of a new figure where it is None.

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
            f"{caller} needs matplotlib, which is not installed. Install it, or skcfl with its "
            "extra: python -m pip install 'skcfl[plot]'."
        ) from error
    if ax is None:
        _, ax = plt.subplots()
    elif not isinstance(ax, plt.Axes):
        raise TypeError(f"ax must be matplotlib Axes or None, got {type(ax).__name__}.")
    return ax
