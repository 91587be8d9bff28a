"""What is asked of rows before there is a model, by name, and names of calls that users give."""

from collections.abc import Collection

from ..calls import CALLS

#: What is asked of the rows of a place, beside a model or before there is one: sums over them.
ROW_CALLS = {
    "class_totals": "weight of the rows of each class",
    "moments": "sums, or each client's means and spreads, from which features are scaled",
    "below": "weight of the rows at most some values, from which quantiles are found",
    "distinct": "different values of columns that hold the levels of groupings",
    "testable": "number of rows that can be held out",
    "scores": "mean scores of the rows of a fold under the clients' models",
    "correct": "weight of the rows whose class is predicted",
    "target_sums": "sum of the targets",
    "squares": "sums of squared errors",
    "total_loss": "sum of the losses",
}

#: What tells a server where to cut, by what is made of rows there: parts that may have one row.
#: None needs nothing of the kind.
TOLD_BY = {
    **dict.fromkeys(("same", "subset", "penalised", "held_out", "folds")),
    **dict.fromkeys(("curve", "trees", "without_trees"), "below"),
    **dict.fromkeys(("codes", "without_levels", "linearised"), "distinct"),
}


def check_calls(calls, known=CALLS):
    """Some names of calls as a set; an error names what is none.

    Parameters
    ----------
    calls : str or collection of str
        One name, or several.
    known : collection of str, default=CALLS
        Those that there are.

    Returns
    -------
    calls : frozenset of str
    """
    if not isinstance(calls, Collection):
        raise TypeError(f"calls must be names of calls, {sorted(known)}, got {calls!r}.")
    calls = {calls} if isinstance(calls, str) else set(calls)
    unknown = sorted(map(str, calls - set(known)))
    if unknown:
        raise ValueError(
            f"calls must be names of calls, {sorted(known)}, got {', '.join(unknown)}."
        )
    return frozenset(calls)
