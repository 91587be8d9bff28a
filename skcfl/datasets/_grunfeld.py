"""Grunfeld's investment data: a real table of firms, kept in the package."""

from __future__ import annotations

import csv
from importlib.resources import files

import numpy as np
from sklearn.utils import Bunch

from skcfl._checks import needs
from skcfl._typing import Data, validate_params

_DESCRIPTION = """\
Investment of eleven large firms of the United States, 1935 to 1954, 220 rows, from the thesis of
Yehuda Grunfeld (1958), as restored by Kleiber and Zeileis (2010). Public domain.

invest   gross investment of the year, million dollars of 1947 (the target)
value    market value of the firm at the end of the year before, million dollars of 1947
capital  stock of plant and equipment at the end of the year before, million dollars of 1947
"""


@validate_params({"as_frame": ["boolean"], "return_X_y_groups": ["boolean"]})
def load_grunfeld(*, as_frame: bool = False, return_X_y_groups: bool = False) -> Data:
    """Load Grunfeld's investment data: what eleven firms invested in each of twenty years.

    The classical table of random-coefficient models [1]_: firms respond to their market value and
    to their stock of capital, alike but not equally.  It is in the public domain and comes with
    the package [2]_.

    Parameters
    ----------
    as_frame : bool, default=False
        True if X, y and groups are pandas objects; the frame ``X`` has the column "firm" too, for
        ``group_col="firm"``. Needs pandas.
    return_X_y_groups : bool, default=False
        If True, return ``(X, y, groups)`` instead of the Bunch.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes

        X : ndarray of shape (220, 2)
            Market value and capital stock, in millions of dollars of 1947.
        y : ndarray of shape (220,)
            Gross investment, in millions of dollars of 1947.
        groups : ndarray of shape (220,) of str
            The firm.
        years : ndarray of shape (220,) of int
            1935 to 1954.
        feature_names : list of str
            "value" and "capital".
        DESCR : str
            Description.

    References
    ----------
    .. [1] P. A. V. B. Swamy. "Efficient Inference in a Random Coefficient Regression Model".
       Econometrica 38, 1970.
    .. [2] C. Kleiber, A. Zeileis. "The Grunfeld Data at 50". German Economic Review 11, 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import PartialPoolingRegressor
    >>> from skcfl.datasets import load_grunfeld
    >>> data = load_grunfeld()
    >>> model = PartialPoolingRegressor(n_clusters=1)
    >>> model = model.fit(np.log(data.X), np.log(data.y), groups=data.groups)
    >>> len(model.groups_)
    11
    """
    with files("skcfl.datasets").joinpath("data/grunfeld.csv").open(encoding="ascii") as file:
        rows = list(csv.DictReader(file))
    names = ["value", "capital"]
    X = np.array([[float(row[name]) for name in names] for row in rows])
    y = np.array([float(row["invest"]) for row in rows])
    groups = np.array([row["firm"] for row in rows])
    years = np.array([int(row["year"]) for row in rows])
    if as_frame:
        with needs("as_frame=True needs pandas (pip install pandas)."):
            import pandas as pd
        groups = pd.Series(groups, name="firm")
        y = pd.Series(y, name="invest")
        X = pd.DataFrame(X, columns=names).assign(firm=groups)
    if return_X_y_groups:
        return X, y, groups
    return Bunch(X=X, y=y, groups=groups, years=years, feature_names=names, DESCR=_DESCRIPTION)
