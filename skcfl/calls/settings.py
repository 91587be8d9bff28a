"""Bounds of what a message may set: without them a short one would occupy a site for ever."""

from math import prod

import numpy as np

from .._checks import LARGEST
from ..exceptions import MessageError
from .letters import LETTERS

#: Largest integer that a call may be sent, unless its class says otherwise.
MOST_WHOLE = 10**5
#: Most numbers of an answer: no message has more.
MOST_ANSWERED = 2**27
#: How often something is repeated, one inside the other: their product has the bound, too.
REPEATS = ("steps", "n_moves", "share_steps", "max_iter")
#: Integers of any size: seeds, and rows of a batch, which are no more than there are.
ANY_SIZE = frozenset({"draw", "key", "batch_size"})
#: Numbers of models, and the smallest of each.
OF_MODELS = {"labels": 0, "fixed": -1, "begun": -1}
MASKS = frozenset({"counted", "shared", "blended", "own"})


def check_settings(call, arguments, sizes):
    """Raise a MessageError if integers, masks or weights are not what clients may be sent.

    Parameters
    ----------
    call : type
        Class of the call.
    arguments : dict
        Arguments of it, of the right shapes.
    sizes : dict of str to int
        Values of the letters of shapes.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, value in given.items():
        words = call.words_down[name]
        if name in OF_MODELS:
            least, models = OF_MODELS[name], np.asarray(value)
            if not ((models >= least) & (models < sizes["K"])).all():
                raise MessageError(f"{call.name} takes {name} from {least} to {sizes['K'] - 1}.")
        elif name == "dtype":
            if np.dtype(value) not in LARGEST:
                raise MessageError(f"{call.name} takes dtype float32 or float64, got {value}.")
        elif name in MASKS:
            if np.asarray(value).dtype.kind != "b":
                raise MessageError(f"{call.name} takes {name} of booleans.")
        elif name == "weights" and words == ("n",):
            if not (np.isfinite(value) & (np.asarray(value) >= 0)).all():
                raise MessageError(f"{call.name} takes finite weights that are not negative.")
        elif name in REPEATS or not (words or name in ANY_SIZE):
            floats = name in REPEATS or name in LETTERS
            _check(call, name, _largest(value, floats), call.most.get(name, MOST_WHOLE))
    often = [max(_largest(given[name], True), 1) for name in REPEATS if name in given]
    _check(call, " times ".join(REPEATS), prod(often), MOST_WHOLE)
    answered = sum(prod(shape) for shape in call.shapes(arguments, sizes).values())
    if answered > MOST_ANSWERED:
        raise MessageError(f"{call.name} would be answered by {answered:.3g} numbers.")


def _check(call, name, value, most):
    if not value <= most:  # nor by what is no number
        raise MessageError(f"{call.name} takes {name} of at most {most}, got {value:.6g}.")


def _largest(value, floats):
    """The largest integer in a value, or float where it may be one; a list has the sum of its."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value)  # of any size
    if isinstance(value, tuple | list):
        return sum(_largest(each, True) for each in value)
    numbers = np.asarray(value)
    kinds = "iuf" if floats else "iu"
    return float(np.abs(numbers).max(initial=0)) if numbers.dtype.kind in kinds else 0
