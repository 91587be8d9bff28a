"""Bounds of answers: what a place may send, whoever it is, checked where the server receives it.

A place in another process may have another version, a defect, or bad intentions.  An answer that
no honest place could give is no answer: the place is lost, with a reason, and the fit goes on
without it.  False answers that an honest client could give, such as a wrong gradient, are left to
robust aggregation.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod

import numpy as np

from .._checks import LARGEST
from ..calls.answer_bounds import FLOATS, SLACK, OutOfBounds, sum_to

#: Most rows of all clients of a place: integers up to it are exact in double precision.
MOST_ROWS = 2**53
#: Largest number.
MOST = float(np.finfo(float).max)
#: Longest name of a part in messages.
LONGEST_NAME = 200


def require(holds, reason):
    """Raise OutOfBounds with a reason unless something holds."""
    if not holds:
        raise OutOfBounds(reason)


# --------------------------------------------------------------------------- before a model


def is_count(value, least=0):
    """Whether a value is an integer in a range, and no boolean."""
    integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return integer and least <= value <= MOST_ROWS


def _is_array(value, shape, kinds):
    """Whether a value is an array of a shape and of some kinds of dtype."""
    return isinstance(value, np.ndarray) and value.shape == shape and value.dtype.kind in kinds


def _is_sorted(values):
    """Whether the entries of an array ascend, each once."""
    return bool((values[1:] > values[:-1]).all())


def check_hello(said, kind, hello_type, site=None):
    """Raise OutOfBounds unless a host's hello is well formed.

    Parameters
    ----------
    said : object
        What it has sent: a list of number, name and Hello of each of its parts.
    kind : {"classifier", "regressor", None}
        What it was asked for.
    hello_type : type
        Hello.
    site : str, default=None
        Name of the site if the host is one: the ids of its clients begin with it.
    """
    parts = isinstance(said, list) and (site is None or len(said) == 1)
    require(parts, "its hello is no list of parts")
    for part in said:
        named = isinstance(part, tuple) and len(part) == 3 and is_count(part[0])
        named = named and isinstance(part[1], str) and len(part[1]) <= LONGEST_NAME
        require(named, "its hello is no list of parts")
        hello = part[2]
        whole = isinstance(hello, hello_type)
        whole = whole and vars(hello).keys() == {one.name for one in fields(hello_type)}
        require(whole, "its hello is not whole")
        _check_clients(hello, site)
        _check_features(hello)
        _check_classes(hello.classes, kind, hello.n_rows if hello.privacy is None else MOST_ROWS)
        _check_terms(hello.privacy)


def check_ids(ids, site):
    """Raise OutOfBounds unless ids are those of clients of a site; None is any place."""
    require(isinstance(ids, np.ndarray) and ids.ndim == 1 and len(ids) > 0, "it names no clients")
    if site is not None:
        require(ids.dtype.kind == "U", "the ids of its clients are no text")
        own = np.strings.startswith(ids, f"{site}/") | (ids == site)
        require(own.all(), f"the ids of its clients do not begin with {site + '/'!r}")
    if ids.dtype.kind != "O":  # others are sorted by the server
        require(_is_sorted(ids), "the ids of its clients are not sorted, each once")


def _check_clients(hello, site):
    check_ids(hello.ids, site)
    n = len(hello.ids)
    sizes, weights = hello.sizes, hello.weights
    require(_is_array(sizes, (n,), "iu"), f"it has {n} clients and no size of each")
    total = float(sizes.sum(dtype=float))
    require((sizes > 0).all() and total <= MOST_ROWS, "the sizes of its clients are not positive")
    require(
        is_count(hello.n_rows) and hello.n_rows == total,
        f"n_rows={hello.n_rows!r:.20} is not the sum of the sizes of its clients, {total:.0f}",
    )
    require(_is_array(weights, (n,), "f"), f"it has {n} clients and no weight of each")
    honest = np.isfinite(weights) & (weights >= 0) & (weights <= LARGEST[FLOATS[1]])
    require(honest.all(), "the weights of its clients are negative or not finite")


def _check_features(hello):
    n, names, shape = hello.n_features, hello.feature_names, hello.row_shape
    require(is_count(n, 1), f"n_features={n!r:.20} is no positive integer")
    if names is not None:
        text = isinstance(names, np.ndarray) and names.shape == (n,)
        text = text and all(isinstance(name, str) for name in names.tolist())
        require(text, f"it has {n} features and other names")
    known = isinstance(hello.dtype, np.dtype) and hello.dtype in FLOATS
    require(known, f"its features are of type {hello.dtype!r:.40}")
    if shape is not None:
        whole = isinstance(shape, tuple) and all(is_count(size, 1) for size in shape)
        require(whole and prod(shape) == n, "the shape of its rows is not that of its features")


def _check_classes(classes, kind, n_rows):
    if kind != "classifier":
        require(classes is None, "it names classes and was not asked for them")
        return
    whole = isinstance(classes, np.ndarray) and classes.ndim == 1
    require(whole and 0 < len(classes) <= n_rows, "it names no classes")
    require(classes.dtype.kind in "biufUSO", f"its classes are of type {classes.dtype}")
    text = classes.dtype.kind != "O" or all(isinstance(one, str) for one in classes.tolist())
    require(text and _is_sorted(classes), "its classes are not sorted, each once")


def _check_terms(terms):
    """The declared privacy of a place: numbers, and arrays of finite numbers."""
    if terms is None:
        return
    need = {"epsilon", "delta", "n_fits", "left", "masked", "participation"}
    known = {*need, "features", "target", "classes"}
    whole = isinstance(terms, dict) and need <= terms.keys() <= known
    require(whole, "it declares a privacy that is not whole")
    for name in ("epsilon", "delta", "left"):
        value = terms[name]
        require(isinstance(value, float) and value >= 0.0, f"its {name} is no number")
    require(terms["epsilon"] > 0 and 0 < terms["delta"] < 1, "its epsilon and delta are none")
    require("features" in terms or terms["epsilon"] == np.inf, "it declares noise without bounds")
    share = terms["participation"]
    require(isinstance(share, float) and 0.0 < share <= 1.0, "its participation is no probability")
    finite = terms["epsilon"] < np.inf or terms["masked"] > 1
    require(is_count(terms["masked"]) and finite, "it answers without noise or masks")
    require(is_count(terms["n_fits"], 1), "its n_fits is no positive integer")
    for name in terms.keys() & {"features", "target"}:
        ends = terms[name]
        array = isinstance(ends, np.ndarray) and ends.dtype.kind == "f" and 1 <= ends.ndim <= 2
        whole = array and len(ends) == 2 and (ends[0] < ends[1]).all()
        require(whole, f"its {name} are no bounds")
    if "classes" in terms:
        _check_classes(terms["classes"], "classifier", MOST_ROWS)


@dataclass(frozen=True)
class Limits:
    """What a place has said of its clients, which later answers must not exceed.

    Attributes
    ----------
    sizes : ndarray of shape (n_clients,)
        Number of rows of each client.
    weights : ndarray of shape (n_clients,)
        Total weight of each client.
    n_features : int
    """

    sizes: np.ndarray
    weights: np.ndarray
    n_features: int

    @property
    def n_rows(self):
        """Number of rows."""
        return int(self.sizes.sum())

    @property
    def total(self):
        """Total weight, with its rounding."""
        return float(self.weights.sum()) * (1 + SLACK)

    def check_facts(self, facts):
        """The facts, in the limits' own arrays where equal; OutOfBounds if they exceed these."""
        n = len(self.sizes)
        whole = isinstance(facts, tuple) and len(facts) == 3
        kinds = zip(facts if whole else (), ("iu", "f", "b"), strict=False)
        require(
            whole and all(_is_array(value, (n,), kind) for value, kind in kinds),
            "what it says of its clients is not one size, weight and flag of each",
        )
        sizes, weights, without_rows = facts
        within = ((sizes >= 0) & (sizes <= self.sizes)).all()
        require(within, "the sizes of its clients exceed those of its hello")
        within = ((weights >= 0) & (weights <= self.weights * (1 + SLACK))).all()
        require(within, "the weights of its clients exceed those of its hello")
        none = (sizes > 0) | (weights == 0)
        require(none.all() and not (without_rows & (sizes > 0)).any(), "rows of clients without")
        sizes = self.sizes if np.array_equal(sizes, self.sizes) else sizes
        weights = self.weights if np.array_equal(weights, self.weights) else weights
        return sizes, weights, without_rows


# What rows are asked for beside the calls of the table: functions of the answer, the arguments,
# the limits of the place, and a dictionary of its earlier answers.


def _is_number(value):
    number = isinstance(value, float | int | np.floating | np.integer)
    return number and bool(abs(value) <= MOST)  # integers of Python have no bound


def _pair(value):
    whole = isinstance(value, tuple) and len(value) == 2 and all(map(_is_number, value))
    require(whole, "it does not answer two finite numbers")
    return value


def _weighted_sum(value, arguments, limits, earlier):
    _, weight = _pair(value)
    require(0 <= weight <= limits.total, "a weight exceeds those of its hello")


def _correct(value, arguments, limits, earlier):
    _weighted_sum(value, arguments, limits, earlier)
    require(0 <= value[0] <= value[1] * (1 + SLACK), "more is correct than there is")


def _squares(value, arguments, limits, earlier):
    require(min(_pair(value)) >= 0, "a sum of squares is negative")


def _class_totals(value, arguments, limits, earlier):
    whole = _is_array(value, arguments, "iuf") and bool((value >= 0).all())
    within = whole and value.sum() <= limits.total
    require(within, "the weights of its classes are negative or exceed those of its hello")


def _below(value, arguments, limits, earlier):
    d, m = np.shape(arguments[0])
    whole = _is_array(value, (d, m + 1), "f") and bool(np.isfinite(value).all())
    within = whole and bool((value[:, :1] >= 0).all())
    within = within and bool((value[:, -1] <= limits.total * (1 + SLACK)).all())
    within = within and bool((np.diff(value, axis=1) >= -SLACK * limits.total).all())
    require(within, "the weights of its rows fall, are negative or exceed those of its hello")


def _distinct(value, arguments, limits, earlier):
    whole = isinstance(value, tuple) and len(value) == 2
    whole = whole and _is_array(value[1], (len(arguments[0]),), "iu")
    whole = whole and _is_array(value[0], (int(value[1].sum()),), "f")
    within = whole and bool(((value[1] >= 0) & (value[1] <= limits.n_rows)).all())
    require(within and bool(np.isfinite(value[0]).all()), "it has more values than rows")


def _testable(value, arguments, limits, earlier):
    whole = isinstance(value, tuple) and len(value) == 2 and is_count(value[0])
    whole = whole and isinstance(value[1], bool | np.bool_)
    require(whole and value[0] <= limits.n_rows, "it can test more rows than it has")


def _scores(value, arguments, limits, earlier):
    whole = isinstance(value, tuple) and len(value) == 2
    shape = (len(arguments[2]),)
    require(whole and _is_array(value[0], shape, "f"), "its scores are not one for each model")
    require(not (np.isnan(value[0]) | (value[0] == np.inf)).any(), "a score is NaN or infinite")
    most = max(limits.total, limits.n_rows)
    require(_is_number(value[1]) and 0 <= value[1] <= most, "it scores more rows than it has")


def _outputs(value, arguments, limits, earlier):
    whole = isinstance(value, np.ndarray) and value.shape[:1] == (limits.n_rows,)
    require(whole, "its outputs are not one for each row")


def _moments(value, arguments, limits, earlier):
    """Sums or means, and squares or spreads about a point that agree with them."""
    of, step, *means = arguments
    d = limits.n_features if of == "features" else 1
    n = len(limits.sizes)
    if step == "sums":
        require(isinstance(value, tuple) and len(value) == 5, "its moments are not five")
        n_rows, precision, stored, total, sums = value
        require(is_count(n_rows) and n_rows <= limits.n_rows, "it has more rows than it said")
        require(_is_number(precision) and 0 < precision < 1e-3, "its precision is no rounding")
        within = _is_number(total) and 0 <= total <= limits.total
        require(within, "its total weight exceeds those of its hello")
        if stored is not None:
            within = _is_array(stored, (d,), "f") and sum_to(stored[:, None], limits.total)
            require(within, "the weights of its values exceed those of its hello")
        _check_finite(sums, (d,), total * LARGEST[FLOATS[1]])
        earlier[of] = total, sums
    elif step == "squares":
        require(of in earlier, "it sends squares and has sent no sums")
        _check_finite(value, (d,), np.inf)
        _check_spread(value, *earlier[of], means[0])
    elif step == "levels":
        require(isinstance(value, tuple) and len(value) == 3, "its levels are not three")
        for part in value:
            _check_finite(part, (d,), np.inf)
        within = (np.minimum(value[0], value[2]) >= 0).all() and (value[0] <= limits.total).all()
        require(within, "the weights of its levels are negative or exceed those of its hello")
    elif step == "means":
        require(isinstance(value, tuple) and len(value) == 3, "its moments are not three")
        _, totals, centres = value
        within = _is_array(totals, (n,), "f") and (totals >= 0).all()
        within = within and (totals <= limits.weights * (1 + SLACK)).all()
        require(within, "the weights of its clients exceed those of its hello")
        _check_finite(centres, (n, d), LARGEST[FLOATS[1]])
        earlier[of] = (totals > 0)[:, None].astype(float), centres
    elif step == "spreads":
        require(of in earlier, "it sends spreads and has sent no means")
        _check_finite(value, (n, d), np.inf)
        require((value >= 0).all(), "a spread is negative")
        _check_spread(value**2, *earlier[of], means[0])


def _check_finite(values, shape, most):
    whole = _is_array(values, shape, "f") and np.isfinite(values).all()
    require(whole and (np.abs(values) <= most).all(), "its moments are not finite numbers")


def _check_spread(squares, total, sums, mean):
    """Squares about a point are at least those of the mean's distance from it (Cauchy-Schwarz)."""
    require((squares >= 0).all(), "a sum of squares is negative")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        away = np.abs(sums - total * mean) - SLACK * (np.abs(sums) + np.abs(total * mean))
        least = np.where(total > 0, np.maximum(away, 0.0) ** 2 / total, 0.0)
    require(
        not (squares < least * (1 - SLACK)).any(),
        "its sums of squares are too small for its sums of values",
    )


#: Checks of what rows are asked for, by the names of their methods.
EXITS = {
    "below": _below,
    "class_totals": _class_totals,
    "correct": _correct,
    "distinct": _distinct,
    "moments": _moments,
    "outputs": _outputs,
    "scores": _scores,
    "squares": _squares,
    "target_sums": _weighted_sum,
    "testable": _testable,
    "total_loss": _weighted_sum,
}
