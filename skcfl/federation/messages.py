"""Every exchange between the server and the clients, in one table.

The server's half of a federation (:class:`~skcfl.federation.ClientPool`) asks by a name of
:data:`CALLS`, and whoever holds rows (:class:`~skcfl.federation.sites.Site`) answers.  The table
says what goes down and what comes up: arguments are split between sites by it, answers are joined
and their shapes checked, and the ledger is booked, here and nowhere else.

Shapes are words: ``n`` is the number of clients, ``K`` that of models, ``p`` the number of
parameters of a model, ``s`` of those that clients share, ``C`` of classes, ``f`` of features,
``v`` and ``m`` of vectors, ``h`` of centres, ``q`` that of the numbers of a row's representation,
``R`` the root of a covariance, a matrix or a diagonal, and ``H`` a symmetric matrix, its diagonal
or the three numbers that clients may send in its place.  What begins with ``n`` has an entry for
each client, which that client alone is sent or sends; other arguments are sent to all, and other
answers are sums over the clients.

What a client has answered last it keeps, and is not sent again: ``own`` says who goes on from
that model, and the argument with the starts is None where all do.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import isfinite, prod

import numpy as np

from .bounds import (
    CLIENTS,
    COUNTS,
    DIGESTS,
    FLAGS,
    LABELS,
    NOT_NEGATIVE,
    SHARES,
    TOTAL,
    UNIT,
)


def _word(word):
    return int(word) if word.isdigit() else word


@dataclass(frozen=True)
class Message:
    """What one call sends down and up.

    Attributes
    ----------
    down : dict of str to str
        Shape of each argument.
    up : dict of str to str
        Shape of each answer.
    free : frozenset of str
        Arguments and answers that are not counted: settings of a computation, such as its number
        of steps, and models that the clients were sent in the call before, to judge.
    start : str, default=""
        Argument with models that clients go on from, which are sent only to those who do not
        have theirs.
    keep : str, default=""
        Answer of models that the clients keep, each its own, to go on from later.
    count : callable, default=None
        ``count(sizes, arguments)``: floats down and up, where the shapes do not tell.
    whole : bool, default=True
        Whether all clients are needed, so that those who are silent are asked again; a round
        goes on without them.
    remembers : bool, default=False
        Whether clients keep something for later calls: those who are lost must not compute.
    unbounded : frozenset of str
        Answers that need not be finite, such as bounds of what is not known.
    minimised : bool or str, default=False
        Whether clients answer only if they know the minima, proximal points and second derivatives
        of their models; a name is that of the argument that asks for it.
    proof : bool, default=False
        Whether the answers are for proofs and reports only. A client that never answers has its
        part in the fit, of which nothing is proved; one that never answers another call has none.
    about : {"", "classes", "counts"}, default=""
        Rows that an entry of an answer is about, where it is not all rows of a client: those of a
        class, or those that the answer "counts".
    bounds : dict of str to Bound
        What answers from elsewhere must be, where floats of any size are not allowed, see
        :mod:`skcfl.federation.bounds`.
    """

    down: dict = field(default_factory=dict)
    up: dict = field(default_factory=dict)
    free: frozenset = frozenset()
    start: str = ""
    keep: str = ""
    count: object = None
    whole: bool = True
    remembers: bool = False
    unbounded: frozenset = frozenset()
    minimised: bool | str = False
    proof: bool = False
    about: str = ""
    bounds: dict = field(default_factory=dict)

    def __post_init__(self):
        # Read once: calls are many and may be small.
        read = {
            "words": {name: tuple(map(_word, shape.split())) for name, shape in self.up.items()},
            "words_down": {
                name: tuple(map(_word, shape.split())) for name, shape in self.down.items()
            },
            # Whose entries they have: "n" the clients', "K" the models'.
            "whose_down": {name: shape[:1] for name, shape in self.down.items()},
            "whose_up": {name: shape[:1] for name, shape in self.up.items()},
            "counted_down": [name for name in self.down if name not in self.free],
            "counted_up": [name for name in self.up if name not in self.free],
        }
        for name, value in read.items():
            object.__setattr__(self, name, value)

    def needs_minima(self, arguments):
        """Whether a call with these arguments is answered for minimised models only."""
        return self.minimised is True or bool(arguments.get(self.minimised))

    def own(self, name, value, clients):
        """An argument as some of the clients are sent it."""
        if value is None or not self.down[name].startswith("n"):
            return value
        if _is_same(value):
            return np.broadcast_to(value[:1], (len(clients), *value.shape[1:]))
        return value[clients]

    def packed(self, arguments):
        """Arguments as they travel: what is the same for all clients is there once."""
        return {
            name: value[:1] if self.down[name].startswith("n") and _is_same(value) else value
            for name, value in arguments.items()
        }

    def unpacked(self, arguments, n_clients):
        """Arguments of :meth:`packed` with an entry per client again."""
        return {
            name: np.broadcast_to(value, (n_clients, *value.shape[1:]))
            if self.down[name].startswith("n") and value is not None and len(value) == 1
            else value
            for name, value in arguments.items()
        }

    def narrowed(self, arguments):
        """Arguments without the models of clusters that none of the clients are in.

        Parameters
        ----------
        arguments : dict
            As some of the clients are sent them.

        Returns
        -------
        arguments : dict
            With `labels` among the clusters that are left.
        used : ndarray of shape (n_used,) or None
            Which these are; None is all of them.
        """
        labels, models = arguments.get("labels"), arguments.get("theta")
        if labels is None or models is None:
            return arguments, None
        used = np.flatnonzero(np.bincount(labels, minlength=len(models)))
        if len(used) == len(models):
            return arguments, None
        own = {
            name: value[used] if value is not None and self.down[name].startswith("K") else value
            for name, value in arguments.items()
        }
        return {**own, "labels": np.searchsorted(used, labels)}, used

    def is_of_clients(self, name):
        """Whether an answer has an entry per client; others are sums."""
        return self.up[name].startswith("n")


def _narrowed(sizes, arguments):
    """Floats of a best response: clients that are held to a model are sent that one only."""
    n, K, p, shared = sizes["n"], sizes["K"], sizes["p"], sizes["shared"]
    fixed = arguments["fixed"]
    held = 0 if fixed is None else int((fixed >= 0).sum())
    down = (n - held) * (K * (p - shared) + shared) + held * p
    return down, (n - held) * (K + 1) + held + n * p


def _triangles(sizes, arguments):
    """Floats of models down and symmetric matrices up."""
    n, p = sizes["n"], sizes["p"]
    return n * p, n * (p * (p + 1) // 2)


def _enclosures(sizes, arguments):
    n, p = sizes["n"], sizes["p"]
    return 2 * n * p, n * (p + 1 + (p * (p + 1) // 2 if arguments["dense"] else 3))


def _two_vectors(sizes, arguments):
    """Floats of a model and a vector down to every client, and one vector up."""
    return 2 * sizes["n"] * sizes["p"], sizes["n"] * sizes["p"]


def _mixture(sizes, arguments):
    """Floats of models and a dispersion down; shares, a value, the scatter and sums up.

    A client keeps its shares.
    """
    n, K, p = sizes["n"], sizes["K"], sizes["p"]
    up = n * (K + 2)
    if "steps" in arguments:
        return n * (K * p + 1), up + n * K * (p + 1)
    return n * (K * p + 1), up


def _mixture_sums(sizes, arguments):
    """The same with gradients and Hessians up."""
    n, K, p = sizes["n"], sizes["K"], sizes["p"]
    down, up = _mixture(sizes, arguments)
    return down, up + n * K * (p + p * (p + 1) // 2)


def _prior(sizes, arguments):
    """Floats of priors that share a covariance."""
    K, p, root = sizes["K"], sizes["p"], arguments["root"]
    scaled = isfinite(arguments["df"])
    return K * p + (p if root.ndim == 1 else p * (p + 1) // 2) + K + 1 + scaled


def _posterior_sums(sizes, arguments):
    """Floats of priors down and, by component, sums of posteriors up."""
    n, K, p = sizes["n"], sizes["K"], sizes["p"]
    triangle = p * (p + 1) // 2
    square = triangle if arguments["dense"] else p
    own = p if arguments["root"].ndim == 1 else triangle
    up = K * (1 + 2 * p + square) + own + p + square + 3
    if isfinite(arguments["df"]):  # or they are as many as there are clients, and nothing
        up += K + 1
    return n * _prior(sizes, arguments), n * up


def _posterior_products(sizes, arguments):
    """Floats of priors and vectors down, and their products up."""
    n, K, m, p = (sizes[letter] for letter in "nKmp")
    return n * (_prior(sizes, arguments) + K * m * p), n * K * m * p


def _left_out_sums(sizes, arguments):
    """Floats of priors and shares down, and a value and its derivatives in the shares up."""
    n, K, p = sizes["n"], sizes["K"], sizes["p"]
    triangle = p * (p + 1) // 2
    root, errors = arguments["root"], arguments["errors"]
    square = p if root.ndim == 2 else triangle
    down = K * (p + square + 2) + (0 if errors is None else K * triangle)
    return n * down, n * (1 + K + K * (K + 1) // 2)


def _posteriors(sizes, arguments):
    """Floats of priors down, and each client's posterior up."""
    n, K, p = sizes["n"], sizes["K"], sizes["p"]
    triangle = p * (p + 1) // 2
    square = triangle if arguments["dense"] else p
    errors = 0 if arguments["errors"] is None else K * triangle
    noise = isfinite(arguments["df"])  # or it is known
    return n * (_prior(sizes, arguments) + errors), n * (K + p + square + noise)


def _score_sums(sizes, arguments):
    """Floats of a model down; a value, a gradient and a curvature up."""
    n, p = sizes["n"], sizes["p"]
    return n * p, n * (1 + p + p * (p + 1) // 2)


def _score_draws(sizes, arguments):
    """Floats of a model, a curvature and moves down; sums of scores, or of their squares, up."""
    n, p, m = sizes["n"], sizes["p"], sizes["m"]
    triangle = p * (p + 1) // 2
    if arguments["moves"] is None:
        return n * (p + triangle), n * (p * m + triangle + m)
    return n * (p + triangle + p * m), n * (p * m + triangle + m)


def _named(*names):
    return frozenset(names)


# How clients train, which is not counted.
_TRAINING = ("steps", "rates", "rho", "optimizer", "batch_size", "draw")


CALLS = {
    "assign": Message({"labels": "n"}, whole=False),
    "present": Message(),
    "losses": Message({"theta": "K p"}, {"losses": "n K"}, whole=False),
    "best_response": Message(
        {"theta": "K p", "fixed": "n"},
        {"losses": "n K", "choice": "n", "gradients": "n p"},
        count=_narrowed,
        whole=False,
        bounds={"choice": LABELS},
    ),
    "objectives": Message({"w": "n p", "own": "n"}, {"values": "n"}, _named("own"), "w"),
    "objectives_gradients": Message(
        {"w": "n p", "own": "n", "dtype": ""},
        {"values": "n", "gradients": "n p"},
        _named("own", "dtype"),
        start="w",
    ),
    "local_update": Message(
        {
            **{"w": "n p", "own": "n", "center": "n p", "steps": "n", "rates": "n", "rho": "n"},
            **{"optimizer": "", "batch_size": "", "draw": "", "monotone": "", "keep": ""},
        },
        {"w": "n p"},
        _named("own", "steps", "rates", "rho", "optimizer", "batch_size", "draw")
        | _named("monotone", "keep"),
        start="w",
        keep="w",
        whole=False,
    ),
    "hessians": Message(
        {"theta": "K p", "labels": "n", "weights": "n", "damping": "K", "members": "K"},
        {"H": "K p p"},
        count=_triangles,
        minimised=True,
    ),
    "hessian_products": Message(
        {"theta": "K p", "u": "K p", "labels": "n", "damping": "K"},
        {"products": "n p"},
        count=_two_vectors,
        minimised=True,
    ),
    "hessian_solves": Message(
        {"theta": "K p", "u": "K p", "labels": "n", "shift": "K", "damping": "K"},
        {"solutions": "n p"},
        count=_two_vectors,
        minimised=True,
    ),
    "solve": Message(
        {},
        {"w": "n p", "converged": "n"},
        _named("converged"),
        keep="w",
        minimised=True,
        bounds={"converged": FLAGS},
    ),
    "prox": Message(
        {"v": "n p", "rho": "n", "x0": "n p", "own": "n", "max_iter": ""},
        {"x": "n p"},
        _named("rho", "own", "max_iter"),
        start="x0",
        keep="x",
        whole=False,
        minimised=True,
    ),
    "conjugate": Message(
        {"s": "n p", "x0": "n p", "own": "n", "largest": "", "allowed": ""},
        {"bounds": "n"},
        _named("own", "largest", "allowed"),
        start="x0",
        unbounded=_named("bounds"),
        minimised=True,
        proof=True,
    ),
    "rounding": Message(
        {"w": "n p"},
        {"rounding": "n"},
        _named("w"),
        unbounded=_named("rounding"),
        minimised=True,
        proof=True,
        bounds={"rounding": NOT_NEGATIVE},
    ),
    "enclosure": Message(
        {"theta": "K p", "box": "K p", "labels": "n", "dense": "", "members": "K"},
        {"rounding": "n p", "drift": "n", "floor": "K H"},
        count=_enclosures,
        unbounded=_named("rounding", "drift", "floor"),
        minimised=True,
        proof=True,
        bounds={"rounding": NOT_NEGATIVE, "drift": NOT_NEGATIVE},
    ),
    "posterior_sums": Message(
        {
            **{"theta": "K p", "root": "R", "weights": "K", "dispersion": "", "df": ""},
            **{"dense": ""},
        },
        {
            **{"counts": "K", "precisions": "K", "deviations": "K p", "squares": "1 R"},
            **{"slopes": "K p", "curvature": "K H", "pull": "p", "coupling": "H"},
            **{"scatter": "", "tails": "", "evidence": "", "weight": ""},
        },
        count=_posterior_sums,
        whole=False,
        minimised=True,
        bounds={"counts": CLIENTS, "precisions": NOT_NEGATIVE, "weight": TOTAL},
    ),
    "posterior_products": Message(
        {
            **{"theta": "K p", "root": "R", "weights": "K", "dispersion": "", "df": ""},
            **{"vectors": "K m p"},
        },
        {"products": "K m p"},
        count=_posterior_products,
        minimised=True,
    ),
    "left_out_sums": Message(
        {
            **{"theta": "K p", "root": "K R", "dispersion": "K", "errors": "K p p"},
            **{"shares": "K"},
        },
        {"value": "", "slopes": "K", "curvature": "K K"},
        count=_left_out_sums,
        whole=False,
        minimised=True,
    ),
    "posteriors": Message(
        {
            **{"theta": "K p", "root": "R", "weights": "K", "dispersion": "", "df": ""},
            **{"errors": "K p p", "dense": ""},
        },
        {"responsibilities": "n K", "means": "n p", "covariances": "n H", "noise": "n"},
        count=_posteriors,
        minimised=True,
        bounds={"responsibilities": SHARES, "noise": NOT_NEGATIVE},
    ),
    "score_sums": Message(
        {"theta": "K p", "labels": "n", "counted": "n", "within": ""},
        {"values": "K", "gradients": "K p", "curvature": "K p p"},
        count=_score_sums,
        whole=False,
        minimised=True,
        proof=True,
    ),
    "score_draws": Message(
        {
            **{"theta": "K p", "labels": "n", "counted": "n", "within": "", "inverse": "K p p"},
            **{"moves": "K p m", "normal": "", "draw": "", "n_draws": ""},
        },
        {"sums": "K p m", "squares": "p m", "meat": "K p p", "row_meat": "K p p", "scatter": "m"},
        count=_score_draws,
        whole=False,
        minimised=True,
        proof=True,
    ),
    "moreau_update": Message(
        {
            **{"w": "n p", "steps": "n", "rates": "n", "rho": "n", "moves": "n"},
            **{"optimizer": "", "batch_size": "", "draw": "", "n_moves": "", "personal": ""},
        },
        {"w": "n p"},
        _named(*_TRAINING, "moves", "n_moves", "personal"),
        whole=False,
    ),
    "meta_update": Message(
        {
            **{"w": "n p", "steps": "n", "rates": "n", "inner": "n"},
            **{"optimizer": "", "batch_size": "", "draw": "", "exact": ""},
        },
        {"w": "n p"},
        _named(*_TRAINING, "inner", "exact"),
        whole=False,
        minimised="exact",
    ),
    "keep": Message({"w": "n p"}, remembers=True),
    "recall": Message({"w": "n p"}, {"w": "n p"}, keep="w"),
    "personal_step": Message(
        {
            **{"center": "n p", "steps": "n", "rates": "n", "rho": "n"},
            **{"optimizer": "", "batch_size": "", "draw": ""},
        },
        {},
        _named(*_TRAINING),
        whole=False,
        remembers=True,
    ),
    "partial_update": Message(
        {
            **{"w": "n s", "shared": "p", "prototypes": "C q", "strength": "", "stages": ""},
            **{"rates": "n", "optimizer": "", "batch_size": "", "draw": ""},
        },
        {"w": "n s", "values": "n"},
        _named(*_TRAINING, "shared", "strength", "stages"),
        whole=False,
        remembers=True,
    ),
    "blended_update": Message(
        {
            **{"w": "n p", "blended": "p", "steps": "n", "rates": "n", "blend_rate": ""},
            **{"share": "", "tol": "", "optimizer": "", "batch_size": "", "draw": ""},
        },
        {"w": "n p", "values": "n"},
        _named(*_TRAINING, "blended", "blend_rate", "share", "tol"),
        whole=False,
        remembers=True,
    ),
    "prototype_update": Message(
        {
            **{"prototypes": "C q", "strength": "", "steps": "n", "rates": "n"},
            **{"optimizer": "", "batch_size": "", "draw": ""},
        },
        {"means": "n C q", "counts": "n C", "values": "n"},
        _named(*_TRAINING, "strength"),
        whole=False,
        remembers=True,
        about="classes",
        bounds={"counts": COUNTS},
    ),
    "class_statistics": Message(
        {"w": "n p"},
        {"means": "n C q", "counts": "n C", "squares": "n"},
        whole=False,
        about="classes",
        bounds={"counts": COUNTS, "squares": NOT_NEGATIVE},
    ),
    "mixture": Message(
        {"theta": "K p", "shares": "n K", "dispersion": "", "share_steps": ""},
        {"shares": "n K", "values": "n", "scatter": "n"},
        _named("shares", "dispersion"),
        count=_mixture,
        bounds={"shares": SHARES},
    ),
    "mixture_sums": Message(
        {"theta": "K p", "shares": "n K", "dispersion": "", "share_steps": ""},
        {
            **{"shares": "n K", "values": "n", "scatter": "n"},
            **{"gradients": "K p", "hessians": "K p p"},
        },
        count=_mixture_sums,
        whole=False,
        minimised=True,
        bounds={"shares": SHARES},
    ),
    "mixture_update": Message(
        {
            **{"theta": "K p", "shares": "n K", "dispersion": "", "share_steps": ""},
            **{"steps": "", "rate": ""},
            **{"optimizer": "", "batch_size": "", "draw": ""},
        },
        {"shares": "n K", "values": "n", "scatter": "n", "moves": "K p", "masses": "K"},
        count=_mixture,
        whole=False,
        bounds={"shares": SHARES, "masses": TOTAL},
    ),
    "local_centres": Message(
        {"n_centres": "", "draw": ""},
        {"centres": "n h f", "counts": "n h"},
        _named("n_centres", "draw"),
        about="counts",
        bounds={"counts": COUNTS},
    ),
    "subspaces": Message(
        {"n_vectors": "", "n_columns": "", "by_class": ""},
        {"bases": "n f v"},
        _named("n_vectors", "n_columns", "by_class"),
        about="classes",
        bounds={"bases": UNIT},
    ),
    "fingerprints": Message(
        {"key": "", "targets": ""},
        {"digests": "n 2"},
        _named("key", "targets"),
        unbounded=_named("digests"),
        bounds={"digests": DIGESTS},
    ),
    "spectrum": Message(
        {}, {"spectrum": "n 3"}, minimised=True, bounds={"spectrum": NOT_NEGATIVE}
    ),
}

#: What is asked of the rows of a place, beside a model or before there is one: sums over them.
ROW_CALLS = {
    "class_totals": "weight of the rows of each class",
    "moments": "sums, or each client's means and spreads, from which features are scaled",
    "testable": "number of rows that can be held out",
    "scores": "mean scores of the rows of a fold under the clients' models",
    "correct": "weight of the rows whose class is predicted",
    "target_sums": "sum of the targets",
    "squares": "sums of squared errors",
    "total_loss": "sum of the losses",
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


def _is_same(value):
    """Whether an array holds one entry for all clients, as ``np.broadcast_to`` makes it."""
    return isinstance(value, np.ndarray) and value.strides[:1] == (0,) and len(value) > 1


def sizes_of(pool, arguments, shared=0):
    """What the letters of the shapes stand for in a call."""
    models, mask = arguments.get("theta"), arguments.get("shared")
    vectors = arguments.get("vectors")
    return {
        "n": pool.n_clients,
        "p": pool.model.n_params,
        "s": pool.model.n_params if mask is None else int(mask.sum()),
        "K": 0 if models is None else len(models),
        "C": pool.model.n_classes or 0,
        "q": pool.model.n_representation,
        "f": pool.model.n_features,
        "v": arguments.get("n_columns", 0),
        # Observed scores are the first of the drawn ones.
        "m": arguments.get("n_draws", -1) + 1 if vectors is None else vectors.shape[1],
        "h": arguments.get("n_centres", 0),
        "shared": shared,
    }


def count_floats(call, arguments, sizes, kept=(), later=False):
    """Floats that go down and come up.

    Parameters
    ----------
    call : str
        Name of the call.
    arguments : dict
        What is sent; None is not.
    sizes : dict of str to int
        What the letters stand for.
    kept : collection of str, default=()
        Arguments that the clients have already, or know themselves.
    later : bool, default=False
        Whether the clients keep their answers, and send them when they are asked to.

    Returns
    -------
    down, up : int
    """
    message = CALLS[call]
    if message.count is not None:
        down, up = message.count(sizes, arguments)
        return 0 if kept else down, up
    down = 0
    for name in message.counted_down:
        if name in kept or arguments.get(name) is None:
            continue
        size = np.size(arguments[name])
        if name == message.start and arguments["own"] is not None:
            size = sizes["p"] * int((~arguments["own"]).sum())
        if message.whose_down[name] != "n":
            size = sizes["n"] * (size - max(sizes["K"] - 1, 0) * sizes["shared"])
        down += size
    if later:
        return down, 0
    words = map(message.words.get, message.counted_up)
    return down, sum(prod(map(sizes.get, some, some)) for some in words)


def count_bytes(call, arguments, answers):
    """Bytes of the messages of a place that holds all the clients of a call.

    All that travels, which is more than :func:`count_floats` counts: settings, and models that
    the clients were sent before.  Models of clusters that are mostly of one client are counted as
    the client's own, see :meth:`Message.narrowed`.

    Parameters
    ----------
    call : str
        Name of the call.
    arguments, answers : dict
        What is sent, and what comes back.

    Returns
    -------
    shared_bytes : tuple of int
        Bytes up and down of what is for all clients, or summed over them.
    own_bytes : tuple of int
        Bytes up and down of what is each client's own.
    """
    message, own_words = CALLS[call], "n"
    labels = arguments.get("labels")
    if labels is not None and "theta" in arguments and 2 * len(arguments["theta"]) > len(labels):
        own_words = "nK"
    shared_up = own_up = shared_down = own_down = 0
    for name, whose in message.whose_up.items():
        size = getattr(answers.get(name), "nbytes", 8)
        if whose and whose in own_words:
            own_up += size
        else:
            shared_up += size
    for name, whose in message.whose_down.items():
        value = arguments.get(name)
        if not isinstance(value, np.ndarray | np.generic):
            continue
        if whose == "n" and _is_same(value):
            shared_down += value.nbytes // len(value)
        elif whose and whose in own_words:
            own_down += value.nbytes
        else:
            shared_down += value.nbytes
    return (shared_up, shared_down), (own_up, own_down)
