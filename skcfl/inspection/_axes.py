"""matplotlib, loaded when something is drawn."""

__all__ = ["axes_or_new"]


def axes_or_new(ax, caller):
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
