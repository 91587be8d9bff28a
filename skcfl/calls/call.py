"""A call: one exchange between the server and the clients, as one object.

The server's half of a federation (:class:`~skcfl.federation.ClientPool`) asks by a class of this
room, and the holder of the rows (:class:`~skcfl.federation.sites.Site`) answers.  The class
describes the arguments and answers, the kernel of a block of clients, and the values in place of a
silent client.  Arguments are split between sites by it, answers are joined and checked, and the
ledger is booked: nothing else in the package knows a call by its name.

Shapes are words: ``n`` is the number of clients, ``K`` that of models, ``p`` the number of
parameters of a model, ``s`` of those that clients share, ``C`` of classes, ``f`` of features,
``v`` and ``m`` of vectors, ``h`` of centres, ``u`` of nested groupings, ``e`` of effects, ``t`` of
trees, ``l`` of their splits, ``k`` of leaves (``j`` with curvatures), ``b`` of bins, ``q`` of
numbers that represent a row, ``R`` the root of a covariance, a matrix or a diagonal, and ``H`` a
symmetric matrix, its diagonal or the three numbers that clients may send in its place.  What
begins with ``n`` has an entry for each client, which that client alone is sent or sends; other
arguments are sent to all, and other answers are sums over the clients.

A client keeps its last answer, and is not sent it again: ``own`` is a mask of the clients that go
on from it, and the argument with the starts is None if all do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from inspect import Parameter, Signature
from math import prod
from types import FunctionType
from typing import ClassVar

import numpy as np

from ..numerics.by_cluster import least_number, sum_by_cluster, without_small
from ..numerics.matrices import in_a_row
from .answer_bounds import ANY
from .finite_sums import are_finite, non_finite
from .letters import sizes_of

#: Arguments that are integers or flags, and no floats.
WHOLE = frozenset({"labels", "fixed", "begun", "steps", "members", "counted", "shared", "blended"})
# Bytes of JSON around a request and around its reply, by an array and by another value in them, of
# skcfl.federation.serialization: what benchmarks/wires.py --bytes finds.
REQUEST_BYTES, REPLY_BYTES, ARRAY_BYTES, VALUE_BYTES = 60, 20, 46, 10
_EITHER = Parameter.POSITIONAL_OR_KEYWORD

#: Arguments that multiply how far clients move.
MOVED_BY = ("steps", "step_size", "rho", "move")

#: Every call by its name, which is that of its class in lower case.
CALLS: dict[str, type[Call]] = {}


def without_instances(cls):
    """Make the functions of a class class methods, and return its name in lower case."""
    for name, value in list(vars(cls).items()):
        if isinstance(value, FunctionType):
            setattr(cls, name, classmethod(value))
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def _read(shapes):
    words = {name: shape.split() for name, shape in shapes.items()}
    return {k: tuple(int(w) if w.isdigit() else w for w in v) for k, v in words.items()}


class Call:
    """Base of the calls, classes without instances.

    A subclass is in the table `CALLS` once it is defined, unless ``abstract=True``.  Its
    attributes below describe the messages, its functions are class methods.  It has a
    :meth:`kernel`, or an :meth:`answer` if clients do not compute block by block.

    Attributes
    ----------
    down : dict of str to str
        Shape of each argument, in the order in which the server's algorithms give them.
    defaults : dict of str to object
        Default values of arguments.
    computed : frozenset of str
        Arguments that the server's algorithms do not give: the clients that go on from a last
        answer, the seeds of draws, the number of clients with rows in each cluster.
    up : dict of str to str
        Shape of each answer.
    free : frozenset of str
        Arguments and answers that are not counted: settings, such as a number of steps.
    known : str, default=""
        Argument that clients may know already: models that they were sent in the call before, to
        judge, or have computed themselves.
    start : str, default=""
        Argument with models that clients go on from; clients that have theirs are not sent it.
    always_last : bool, default=False
        True if starts, where there are any, are compared with the clients' last answers in every
        call; else where the server says so.
    keep : str, default=""
        Answer of models that the clients keep, one each, to go on from later.
    whole : bool, default=True
        True if the call requires all clients: silent ones are retried; rounds do without them.
    remembers : bool, default=False
        True if clients keep something for later calls: lost clients must not compute.
    unbounded : frozenset of str
        Answers that need not be finite, such as bounds of unknown values.
    minimised : bool or str, default=False
        True if clients answer only if they know the minima, proximal points and second derivatives
        of their models; a name is that of the argument that asks for it.
    proof : bool, default=False
        True if the answers are for proofs and reports only. A client that never answers has its
        part in the fit, which proves nothing; one that never answers another call has none.
    searched : bool, default=False
        True if searches along lines look at the answers.
    about : {"", "classes", "counts", "parts"}, default=""
        Rows that an entry of an answer is about, where it is not all rows of a client: those of a
        class, those that the answer "counts", or those of a bin, leaf or level.
    bounds : dict of str to Bound
        Bounds of answers from elsewhere, if not any floats, see ``skcfl.calls.answer_bounds``.
    always_draws : bool, default=False
        True if clients draw even if they take all of their rows.
    precise : bool, default=True
        True if answers are in double precision, whatever the type of the models.
    exact : bool, default=False
        True if arguments are, too.
    effort : str, default=""
        How many passes over the rows a call takes, as a product of the words of shapes.
    lesser_axes : tuple, default=("p",)
        Axes of what clients send in the place of a symmetric matrix.
    adds : frozenset of str
        Sums by cluster; the kernel gives each client's part, (c, ...): they are added up with the
        clients' "weights", by their "labels", or by the "choice" that is also answered.
    most : dict of str to int
        Largest values of integer settings, where they are not ``settings.MOST_WHOLE``.
    least_clients : int, default=1
        The least number of clients that a sum may be over; of fewer it is never asked.
    """

    name: ClassVar[str] = ""
    down: ClassVar[dict[str, str]] = {}
    defaults: ClassVar[Mapping[str, object]] = {}
    computed: ClassVar[Collection[str]] = frozenset({"own", "draw", "members", "largest"})
    up: ClassVar[dict[str, str]] = {}
    free: ClassVar[Collection[str]] = frozenset()
    known: ClassVar[str] = ""
    start: ClassVar[str] = ""
    always_last: ClassVar[bool] = False
    keep: ClassVar[str] = ""
    whole: ClassVar[bool] = True
    remembers: ClassVar[bool] = False
    unbounded: ClassVar[Collection[str]] = frozenset()
    minimised: ClassVar[bool | str] = False
    proof: ClassVar[bool] = False
    searched: ClassVar[bool] = False
    about: ClassVar[str] = ""
    bounds: ClassVar[dict] = {}
    always_draws: ClassVar[bool] = False
    precise: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    effort: ClassVar[str] = ""
    lesser_axes: ClassVar[tuple] = ("p",)
    adds: ClassVar[Collection[str]] = frozenset()
    most: ClassVar[Mapping[str, int]] = {}
    least_clients: ClassVar[int] = 1

    def __init_subclass__(cls, abstract=False):
        cls.name = without_instances(cls)
        if not abstract:
            CALLS[cls.name] = cls
        # Read once: calls are many and may be small.
        empty, cls.order = Parameter.empty, [name for name in cls.down if name not in cls.computed]
        cls.signature = Signature(
            [Parameter(name, _EITHER, default=cls.defaults.get(name, empty)) for name in cls.order]
        )
        cls.words, cls.words_down = _read(cls.up), _read(cls.down)
        cls.sums = [name for name, shape in cls.up.items() if not shape.startswith("n")]
        # Owners of the entries: "n" the clients, "K" the models.
        cls.whose_down = {name: shape[:1] for name, shape in cls.down.items()}
        cls.whose_up = {name: shape[:1] for name, shape in cls.up.items()}
        cls.counted_down = [name for name in cls.down if name not in cls.free]
        cls.counted_up = [name for name in cls.up if name not in cls.free]

    # ------------------------------------------------------------------ at the server

    @classmethod
    def asked(cls, pool, *args, **arguments):
        """Arguments as they go down: in their types, with an entry for every client.

        Parameters
        ----------
        pool : ClientPool
            Who is asked.
        *args, **arguments : object
            Arguments that the server's algorithms give.

        Returns
        -------
        arguments : dict
        """
        given = {**cls.defaults, **dict(zip(cls.order, args, strict=False)), **arguments}
        twice = any(name in arguments for name in cls.order[: len(args)])
        if len(given) != len(cls.order) or len(args) > len(given) or twice:
            cls.signature.bind(*args, **arguments)  # a description of the error
        if "weights" in cls.defaults and np.array_equal(given["weights"], pool.client_weights):
            given["weights"] = None  # what clients count by unless said
        if "labels" in given and len(given.get("theta", ())) == 1:
            given["labels"] = np.broadcast_to(0, pool.n_clients)
        sent = {name: cls.cast(pool, name, given[name]) for name in cls.order}
        for name in ("shift", "damping"):
            if name in sent:  # a number for all models
                sent[name] = np.broadcast_to(sent[name], (len(sent["theta"]),))
        if "members" in cls.down:
            # Clients with rows of positive weight.
            counted = pool.client_sizes > 0
            if sent.get("weights") is not None:
                counted &= sent["weights"] != 0.0
            members = np.bincount(sent["labels"], counted, len(sent["theta"]))
            sent["members"] = members.astype(np.intp)
        if "draw" in cls.down and "draw" in cls.computed:
            sent["draw"] = pool.draw(sent.get("batch_size"), cls.always_draws)
        return sent

    @classmethod
    def cast(cls, pool, name, value):
        """An argument in its type, that of the models or double precision, for every client."""
        words = cls.words_down[name]
        if value is None or not words:
            value = tuple(value) if isinstance(value, list) else value
            return value.item() if isinstance(value, np.generic) else value
        dtype = float if cls.exact else pool.dtype
        if name not in WHOLE and getattr(value, "dtype", None) != dtype:
            with np.errstate(over="ignore"):  # a step too long for the type diverges, as it should
                value = np.asarray(value, dtype=dtype)
        if words[0] != "n":
            return np.ascontiguousarray(value) if np.ndim(value) else value
        ready = isinstance(value, np.ndarray) and value.ndim == len(words)
        if ready and len(value) == pool.n_clients:
            return value
        tail = (pool.n_params,) if words[1:] == ("p",) else np.shape(value)[1 - len(words) :]
        return np.broadcast_to(value, (pool.n_clients, *(tail if len(words) > 1 else ())))

    @classmethod
    def result(cls, pool, answers, arguments, start):
        """The answer for the server's algorithms: the only one, or all in the order of `up`."""
        values = tuple(answers[name] for name in cls.up)
        return values[0] if len(values) == 1 else values or None

    @staticmethod
    def fill(pool, answers, lost, arguments, start, whole):
        """Put what stands for the answers of silent clients, zeros if nothing else does, in place.

        Parameters
        ----------
        pool : ClientPool
            Pool of the clients that were called.
        answers : dict of str to ndarray
            Answers of all clients.
        lost : ndarray of int
            Positions of the silent ones.
        arguments : dict
            Arguments that were sent.
        start : ndarray of shape (n_clients, n_params) or None
            Models to go on from.
        whole : bool
            True if all were needed.
        """

    @classmethod
    def is_of_enough(cls, arguments, clients):
        """Whether sums over some clients, by their positions, are over `least_clients` or more."""
        if cls.least_clients == 1 or not cls.sums:
            return True
        labels = arguments.get("labels")
        if labels is None:
            return len(clients) >= cls.least_clients
        return np.unique(labels[clients], return_counts=True)[1].min() >= cls.least_clients

    @classmethod
    def least_summed(cls, site, arguments, answers, units):
        """The least number of clients that a sum of the answers of a site is over.

        Clients of unequal weights count as fewer, where these are not the weights of their rows;
        clients that are to take no steps beside others do not count.

        Parameters
        ----------
        site : InProcessSite
            The clients.
        arguments, answers : dict
            Of the call.
        units : ndarray of shape (n_clients,)
            Weights of the rows of the clients that are in the sums, zero of the others.

        Returns
        -------
        least : float
        """
        given = arguments.get("weights") if cls.whose_down.get("weights") == "n" else None
        parts = site.client_weights if given is None else given
        parts = np.where(units > 0, parts * arguments.get("counted", 1.0), 0.0)
        labels = answers.get("choice", arguments.get("labels"))
        labels = np.zeros(len(units), dtype=np.intp) if labels is None else labels
        moved_by = [arguments[name] for name in MOVED_BY if cls.whose_down.get(name) == "n"]
        for sizes in (*moved_by, prod(np.abs(sizes) for sizes in moved_by)):
            parts = without_small(parts, sizes, labels)
        return least_number(parts, units, labels)

    @classmethod
    def needs_minima(cls, arguments):
        """True if a call with these arguments is answered for minimised models only."""
        return cls.minimised is True or bool(arguments.get(cls.minimised))

    # ------------------------------------------------------------------ at the clients

    @classmethod
    def begin(cls, clients, answers, arguments):
        """Put what clients without rows answer, zeros if nothing else does, in place."""

    @staticmethod
    def kernel(clients, block, slots, **arguments):
        """Answers of the clients of a block in the order of `up`, sums over them for the others.

        Parameters
        ----------
        clients : InProcessSite
            The clients, with their kept state.
        block : Block
            Their rows.
        slots : ndarray of shape (c,)
            Their positions.
        **arguments : object
            Their arguments, with the clusters that they are in.
        """
        raise NotImplementedError

    @classmethod
    def answer(cls, clients, **arguments):
        """Answers of clients of this process.

        Parameters
        ----------
        clients : InProcessSite
            They.
        **arguments : object
            Their arguments.

        Returns
        -------
        answers : dict of str to ndarray
            Clients with a non-finite part of a sum are in no sum; if there are any, "non_finite"
            is a mask, an ndarray of shape (n_clients,) of bool.
        """
        sizes = sizes_of(clients, arguments)
        if "weights" in cls.defaults and arguments["weights"] is None:
            arguments["weights"] = clients.client_weights
        if cls.start:
            dtype = arguments.get("dtype", None if cls.precise else clients.model.dtype)
            own = arguments.pop("own")
            arguments[cls.start] = clients.starts(arguments[cls.start], own, dtype)
        out = cls.silence(arguments, sizes, clients.model)
        parts, left_out = {}, np.zeros(clients.n_clients, dtype=bool)
        cls.begin(clients, out, arguments)

        def computed(block, slots):
            """Entries of some clients, their sums, and the clusters that these are about."""
            # Copies, as slots are numbers: kernels may work in place.
            own = {
                name: value[slots] if value is not None and cls.whose_down[name] == "n" else value
                for name, value in arguments.items()
            }
            own, used = cls.narrowed(own)
            values = dict(zip(cls.up, cls.kernel(clients, block, slots, **own), strict=True))
            if cls.adds:
                left_out[slots] = cls._add_up(values, own)
            return values, {name: values.pop(name) for name in cls.sums}, used

        def work(block, slots):
            values, *sums = computed(block, slots)
            for name, value in values.items():
                out[name][slots] = value
            parts[int(slots[0])] = sums

        passes = cls.passes(sizes, arguments)
        clients.each(work, passes)
        if not cls.sums:
            return cls._kept(clients, out, arguments)
        # In the order of the clients, whatever thread was first.
        total = cls._total(out, parts)
        if not (cls.adds or cls.are_finite(total)):

            def mend(block, slots):
                key = int(slots[0])
                if cls.are_finite(parts[key][0]):
                    return

                def is_finite(some):
                    return cls.are_finite(computed(block.take(some), slots[some])[1])

                bad = non_finite(is_finite, len(slots))
                left_out[slots] = bad
                del parts[key]
                if not bad.all():
                    _, *parts[key] = computed(block.take(~bad), slots[~bad])

            clients.each(mend, passes)
            total = cls._total(out, parts)
        if not cls.are_finite(total):  # finite numbers with a sum that overflows
            left_out, total = ~clients.without_rows, {}
        if left_out.any():
            out["non_finite"] = left_out
        out.update(total)
        return cls._kept(clients, out, arguments)

    @classmethod
    def _kept(cls, clients, out, arguments):
        """The answers, after clients have kept the models that they go on from."""
        if cls.keep and arguments.get("keep", True):
            clients.memory.keep(clients.at, out[cls.keep])
        return out

    @classmethod
    def _add_up(cls, values, own):
        """Replace clients' parts by sums by cluster; mask of non-finite clients."""
        labels = values["choice"] if "choice" in values else own["labels"]
        bad = np.zeros(len(labels), dtype=bool)

        def sums():
            good = slice(None) if not bad.any() else ~bad
            about = labels[good], len(own["theta"]), own["weights"][good]
            # In double precision: networks' sums are then the same wherever their clients are.
            parts = {name: np.asarray(values[name][good], dtype=float) for name in cls.adds}
            return {name: sum_by_cluster(part, *about) for name, part in parts.items()}

        found = sums()
        if not are_finite(found.values()):
            for name in cls.adds:
                bad |= ~np.isfinite(values[name]).all(axis=1)
            found = sums()
        values.update(found)
        return bad

    @classmethod
    def single(cls, site, arguments):
        """Answers with the part of each client for sums, each a separate cluster."""
        labels = arguments["labels"]
        own = cls._of_models(arguments, labels)
        ones = np.ones(len(labels))
        return site.answer(cls.name, {**own, "labels": np.arange(len(labels)), "weights": ones})

    @classmethod
    def _of_models(cls, arguments, some):
        """Arguments of some of the models."""
        return {
            name: value[some] if value is not None and cls.whose_down[name] == "K" else value
            for name, value in arguments.items()
        }

    @classmethod
    def _total(cls, out, parts):
        """Sums over the blocks, always in the same order."""
        total = {name: np.array(out[name]) for name in cls.sums}
        for key in sorted(parts):
            shares, used = parts[key]
            for name, value in shares.items():
                if used is None or cls.whose_up[name] != "K":
                    total[name] = total[name] + value
                else:
                    total[name][used] += value
        return total

    @classmethod
    def are_finite(cls, answers):
        """True if the sums among some answers are finite, where they have to be."""
        return are_finite(answers[name] for name in cls.sums if name not in cls.unbounded)

    @classmethod
    def passes(cls, sizes, arguments):
        """About how many passes over the rows a call takes."""
        return prod(sizes[word] for word in cls.effort.split())

    # ------------------------------------------------------------------------- shapes

    @classmethod
    def is_of_clients(cls, name):
        """True if an answer has an entry per client; others are sums."""
        return cls.whose_up[name] == "n"

    @classmethod
    def is_of_classes(cls, arguments):
        """True if answers to these arguments are about the rows of each class."""
        return cls.about == "classes"

    @classmethod
    def is_single(cls):
        """Whether clients send arrays of the size of a model or of rows each, and no sums."""
        sizes = {*"psqfHvh"}
        return any(words[:1] == ("n",) and sizes & {*words} for words in cls.words.values())

    @classmethod
    def is_summed(cls):
        """Whether clients send sums only, and are all sent the same."""
        return bool(cls.up) and "n" not in {*cls.whose_up.values(), *cls.whose_down.values()}

    @classmethod
    def own(cls, name, value, clients):
        """An argument as some of the clients are sent it."""
        if value is None or cls.whose_down[name] != "n":
            return value
        if is_same(value):
            return np.broadcast_to(value[:1], (len(clients), *value.shape[1:]))
        return value[in_a_row(clients)]

    @classmethod
    def packed(cls, arguments):
        """Arguments as they travel: values for all clients are there once."""
        return {
            name: value[:1] if cls.whose_down[name] == "n" and is_same(value) else value
            for name, value in arguments.items()
        }

    @classmethod
    def unpacked(cls, arguments, n_clients):
        """Arguments of :meth:`packed` with an entry per client again."""
        return {
            name: np.broadcast_to(value, (n_clients, *value.shape[1:]))
            if cls.down[name].startswith("n") and value is not None and len(value) == 1
            else value
            for name, value in arguments.items()
        }

    @classmethod
    def narrowed(cls, arguments):
        """Arguments without the models of clusters that none of the clients are in.

        Parameters
        ----------
        arguments : dict
            Arguments of some of the clients.

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
        if len(models) > len(labels):
            used, labels = np.unique(labels, return_inverse=True)
        else:
            used = np.flatnonzero(np.bincount(labels, minlength=len(models)))
            if len(used) == len(models):
                return arguments, None
            labels = np.searchsorted(used, labels)
        return {**cls._of_models(arguments, used), "labels": labels}, used

    @classmethod
    def shapes(cls, arguments, sizes):
        """Shape of each answer.

        Parameters
        ----------
        arguments : dict
            Arguments that are sent.
        sizes : dict of str to int
            Values of the letters of shapes.

        Returns
        -------
        shapes : dict of str to tuple of int
        """
        dense = bool(arguments.get("dense"))
        symmetric = ("p", "p") if dense else cls.lesser_axes
        axes = {
            "H": tuple(sizes.get(word, word) for word in symmetric),
            "R": np.shape(arguments.get("root")),
        }
        return {
            name: tuple(n for word in words for n in axes.get(word, (sizes.get(word, word),)))
            for name, words in cls.words.items()
        }

    @classmethod
    def silence(cls, arguments, sizes, model):
        """Zeros of the shapes and types of the answers, dict of str to ndarray."""
        dtype = np.float64 if cls.precise else arguments.get("dtype", model.dtype)
        types = {"i": np.intp, "b": np.bool_, "f": dtype}
        out = {
            name: np.zeros(shape, dtype=types[cls.bounds.get(name, ANY).kind])
            for name, shape in cls.shapes(arguments, sizes).items()
        }
        return {**out, **{name: out[name].astype(float) for name in cls.adds}}

    # -------------------------------------------------------------------------- costs

    @classmethod
    def count(cls, sizes, arguments):
        """Floats that all clients are sent and send, where the shapes do not tell; else None."""

    @classmethod
    def floats(cls, arguments, sizes, known=False, later=False, n_shared=0):
        """Floats that go down and come up.

        Parameters
        ----------
        arguments : dict
            Arguments that are sent; None is not.
        sizes : dict of str to int
            Values of the letters of shapes.
        known : bool, default=False
            True if the clients have the argument `known` already.
        later : bool, default=False
            True if the clients keep their answers, and send them when they are asked to.
        n_shared : int, default=0
            How many parameters all models have in common and are sent once.

        Returns
        -------
        down, up : int
        """
        counted = cls.count({**sizes, "shared": n_shared}, arguments)
        if counted is not None:
            down, up = counted
            return 0 if known else down, up
        down = 0
        for name in cls.counted_down:
            if (known and name == cls.known) or arguments.get(name) is None:
                continue
            size = np.size(arguments[name])
            if name == cls.start and arguments["own"] is not None:
                size = sizes["p"] * int((~arguments["own"]).sum())
            if cls.whose_down[name] != "n":
                size = sizes["n"] * (size - max(sizes["K"] - 1, 0) * n_shared)
            down += size
        if later:
            return down, 0
        words = map(cls.words.get, cls.counted_up)
        return down, sum(prod(map(sizes.get, some, some)) for some in words)

    @classmethod
    def bytes(cls, arguments, answers):
        """Bytes of the messages of a place that holds all the clients of a call.

        All that travels, which is more than :meth:`floats` counts: settings, and models that the
        clients were sent before.  Models of clusters that are mostly single-client are counted as
        the client's, see :meth:`narrowed`.

        Parameters
        ----------
        arguments, answers : dict
            Arguments and answers.

        Returns
        -------
        shared_bytes : tuple of int
            Bytes up and down of values for all clients, or summed over them.
        own_bytes : tuple of int
            Bytes up and down of values of single clients.
        """
        own_words, labels = "n", arguments.get("labels")
        if (
            labels is not None
            and "theta" in arguments
            and 2 * len(arguments["theta"]) > len(labels)
        ):
            own_words = "nK"
        shared_up = own_up = shared_down = own_down = 0
        for name, whose in cls.whose_up.items():
            size = getattr(answers.get(name), "nbytes", 8)
            if whose and whose in own_words:
                own_up += size
            else:
                shared_up += size
        for name, whose in cls.whose_down.items():
            value = arguments.get(name)
            if not isinstance(value, np.ndarray | np.generic):
                continue
            if whose == "n" and is_same(value):
                shared_down += value.nbytes // len(value)
            elif whose and whose in own_words:
                own_down += value.nbytes
            else:
                shared_down += value.nbytes
        return (shared_up, shared_down), (own_up, own_down)

    @classmethod
    def envelope(cls, arguments, answers):
        """Bytes ``(up, down)`` around the values of a request and of its answer: names, shapes."""
        down = REQUEST_BYTES + len(cls.name)
        for name, value in arguments.items():
            down += len(name) + (ARRAY_BYTES if isinstance(value, np.ndarray) else VALUE_BYTES)
        return REPLY_BYTES + sum(len(name) + ARRAY_BYTES for name in answers), down


def is_same(value):
    """True if an array holds one entry for all clients, as ``np.broadcast_to`` makes it."""
    return isinstance(value, np.ndarray) and value.strides[:1] == (0,) and len(value) > 1
