"""Warnings of the package."""

__all__ = ["SingleClientWarning"]


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
