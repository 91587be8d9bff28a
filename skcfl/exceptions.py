"""Warnings and errors of the package."""

__all__ = ["NotEnoughMemoryError", "SingleClientWarning"]


class NotEnoughMemoryError(MemoryError):
    """Raised before something is allocated that does not fit into the memory available.

    The message says how much is needed, how much there is, and what would fit.

    Examples
    --------
    >>> from skcfl.exceptions import NotEnoughMemoryError
    >>> issubclass(NotEnoughMemoryError, MemoryError)
    True
    """


class SingleClientWarning(UserWarning):
    """Issued by ``fit`` when nothing says which rows belong to which client.

    All rows are then one client and one model is fitted, which is rarely what the user of a
    clustered method wants. Pass ``groups=`` to ``fit``, or set ``group_col``. The usual cause is a
    tool such as ``GridSearchCV`` that hands ``groups`` to the splitter and not to the estimator.

    Examples
    --------
    >>> import warnings
    >>> from skcfl.exceptions import SingleClientWarning
    >>> warnings.simplefilter("error", SingleClientWarning)  # refuse to go on
    >>> warnings.simplefilter("default", SingleClientWarning)  # back to a warning
    """
