"""Messages of calls: shapes, checks of answers from elsewhere, and silence."""

import numpy as np

from .answer_bounds import ANY, Asked, OutOfBounds
from .call import CALLS
from .settings import check_settings

#: Types of an argument without a shape.
PLAIN = bool | int | float | str | np.generic | np.ndarray | np.dtype
#: Such arguments that are tuples: seeds, and pairs of a number of steps and a mask of parameters.
SEEDS, STAGES = "draw", "stages"


def check_arguments(call, arguments, sizes):
    """Raise a ValueError if what a site is sent is not what the table says, or out of bounds.

    Parameters
    ----------
    call : str
        Name of the call.
    arguments : dict
        Arguments that came down.
    sizes : dict of str to int
        Values of the letters of shapes.
    """
    words_down, p = CALLS[call].words_down, sizes["p"]
    for name, value in arguments.items():
        words = words_down.get(name)
        if words is None:
            raise ValueError(f"{call} takes no argument {name!r}.")
        got = np.shape(value) if isinstance(value, np.ndarray | np.generic | list) else ()
        if not (value is None or words or got or _is_setting(name, value, p)):
            raise ValueError(f"{call} takes no {type(value).__name__} of this kind as {name}.")
        if value is None or not (words or got):
            continue
        wanted = tuple(map(sizes.get, words, words))
        root = words[-1:] == ("R",) and got in {(*wanted[:-1], p), (*wanted[:-1], p, p)}
        if got != wanted and not root:
            raise ValueError(f"{call} takes {name} of shape {wanted}, got {got}.")
    check_settings(CALLS[call], arguments, sizes)


def _is_setting(name, value, n_params):
    """If True, a value without a shape is one number or text, or a tuple that is meant."""
    if not isinstance(value, tuple):
        return isinstance(value, PLAIN)
    if name == SEEDS:
        return all(isinstance(seed, int | np.integer) for seed in value)
    return name == STAGES and all(
        isinstance(stage, tuple)
        and len(stage) == 2
        and isinstance(stage[0], int | np.integer)
        and (np.asarray(stage[1]).dtype, np.shape(stage[1])) == (bool, (n_params,))
        for stage in value
    )


def check_answers(call, answers, arguments, sizes):
    """Raise OutOfBounds if what came up is not what the table says.

    Parameters
    ----------
    call : str
        Name of the call.
    answers : dict of str to ndarray
        Answers of the clients.
    arguments : dict
        Arguments that they were sent.
    sizes : dict of str to int
        Values of the letters of shapes.
    """
    shapes = CALLS[call].shapes(arguments, sizes)
    if answers.keys() != shapes.keys():
        raise OutOfBounds(f"{call} must be answered by {list(shapes)}, got {list(answers)!r:.80}")
    for name, shape in shapes.items():
        if np.shape(answers[name]) != shape:
            got = np.shape(answers[name])
            raise OutOfBounds(f"{call} must answer {name} of shape {shape}, got {got}")


def received(call, answers, arguments, sizes, weights):
    """Answers of clients in another process, if they may be believed.

    Parameters
    ----------
    call, answers, arguments, sizes : object
        As of :func:`check_answers`; answers may be anything.
    weights : ndarray of shape (n_clients,)
        Total weight of each client's rows.

    Returns
    -------
    answers : dict of str to ndarray
        Writable, with "answered" if some of the clients are silent, and "non_finite" if some are
        in no sum.

    Raises
    ------
    OutOfBounds
        If they are not what the table says, or out of its bounds.
    """
    if not isinstance(answers, dict):
        raise OutOfBounds(f"{call} was answered by {type(answers).__name__}, not by arrays")
    masks = {name: answers[name] for name in ("answered", "non_finite") if name in answers}
    given = {name: value for name, value in answers.items() if name not in masks}
    if not all(isinstance(value, np.ndarray | np.generic | float) for value in given.values()):
        raise OutOfBounds(f"{call} was answered by something else than arrays of numbers")
    given = {name: np.require(value, requirements="W") for name, value in given.items()}
    check_answers(call, given, arguments, sizes)
    message, here = CALLS[call], masks.get("answered")
    for name, mask in masks.items():
        flags = isinstance(mask, np.ndarray) and mask.dtype.kind == "b"
        if not (flags and mask.shape == (sizes["n"],)):
            raise OutOfBounds(f"{call} must say of each client whether it is {name}")
    if here is not None:
        # Entries of silent clients mean nothing.
        arguments = {name: message.own(name, some, here) for name, some in arguments.items()}
        weights = weights[here]
    models = arguments.get("theta")
    asked = Asked(arguments, 0 if models is None else len(models), weights)
    with np.errstate(invalid="ignore", over="ignore"):
        for name, value in given.items():
            bound = message.bounds.get(name, ANY)
            mine = value if here is None or not message.is_of_clients(name) else value[here]
            if not (bound.has_type(value.dtype) and bound.holds(mine, asked)):
                raise OutOfBounds(f"{call} must answer {name} with {bound.text}")
    if not message.are_finite(given):
        raise OutOfBounds(f"{call} must be answered by finite sums")
    return {**given, **{name: mask.copy() for name, mask in masks.items()}}


def questions(arguments, answers, n_clients):
    """Values that the clients of a call were asked about.

    Parameters
    ----------
    arguments, answers : dict
        Arguments of the call, with the models that clients go on from.
    n_clients : int
        Number of clients.

    Returns
    -------
    questions : ndarray of shape (n_clients,)
        Codes, equal for those asked about the same model.
    """
    if "choice" in answers:
        return answers["choice"]
    if arguments.get("labels") is not None:
        return arguments["labels"]
    models = arguments.get("w")
    if models is None:
        return np.zeros(n_clients, dtype=np.intp)
    return np.unique(models, axis=0, return_inverse=True)[1].reshape(-1)
