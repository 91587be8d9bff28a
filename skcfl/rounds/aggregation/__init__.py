"""Operators that make one vector of the messages of a cluster's clients: one file an operator.

A leaf package: arrays in, arrays out.  Clients may be false.  What an operator bears is its
breakdown point: the share of false clients, by weight, from which on they can carry its value
anywhere.

============================  ==================  ===================================
name                          breakdown point     cost
============================  ==================  ===================================
``mean``                      0                   one product
``median``                    1/2                 a sort of each coordinate
``trimmed_mean``              ``trim``            a sort of each coordinate
``geometric_median``          1/2                 some products
``krum``                      ``trim``            distances of all pairs in a cluster
``centered_clipping``         1/2                 the median's and some products
============================  ==================  ===================================
"""

from .aggregator import Aggregator, Layout, aggregate_by_cluster, median_by_cluster
from .centered_clipping import CenteredClipping
from .geometric_median import GeometricMedian
from .krum import Krum
from .mean import Mean
from .median import Median
from .trimmed_mean import TrimmedMean

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "CenteredClipping",
    "GeometricMedian",
    "Krum",
    "Layout",
    "Mean",
    "Median",
    "TrimmedMean",
    "aggregate_by_cluster",
    "is_operator",
    "make_aggregator",
    "median_by_cluster",
]

#: Operators by the name that users know.
AGGREGATORS = {
    one.name: one for one in (Mean, Median, TrimmedMean, GeometricMedian, Krum, CenteredClipping)
}


def is_operator(value):
    """True if an object is an operator: has the method, and is neither a class nor data.

    Tables have a method of this name, too, which does something else.

    Parameters
    ----------
    value : object
        What was given.

    Returns
    -------
    is_operator : bool

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.rounds.aggregation import Median, is_operator
    >>> is_operator(Median()), is_operator(Median), is_operator(np.ones(3))
    (True, False, False)
    """
    data = hasattr(value, "__array__") or type(value).__module__.partition(".")[0] == "pandas"
    return callable(getattr(value, "aggregate", None)) and not data and not isinstance(value, type)


def make_aggregator(aggregation):
    """Operator of a name, None for the plain mean.

    Parameters
    ----------
    aggregation : str or object
        The name of an operator with default parameters, or an object with the method
        ``aggregate(messages, weights)``, which is returned as it is.

    Returns
    -------
    aggregator : object or None

    Raises
    ------
    TypeError
        If an object has no such method.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.rounds.aggregation import make_aggregator
    >>> messages = np.array([[0.0], [1.0], [1.5], [2.0], [1e6]])
    >>> for name in ("median", "trimmed_mean", "geometric_median"):
    ...     print(name, make_aggregator(name).aggregate(messages, np.ones(5)).round(2))
    median [1.5]
    trimmed_mean [1.5]
    geometric_median [1.5]
    """
    if not isinstance(aggregation, str):
        if not is_operator(aggregation):
            raise TypeError(
                f"aggregation must be one of {sorted(AGGREGATORS)} or an object with a method "
                f"aggregate(messages, weights), got {type(aggregation).__name__}."
            )
        return aggregation
    return None if aggregation == "mean" else AGGREGATORS[aggregation]()
