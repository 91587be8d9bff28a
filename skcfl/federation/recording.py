"""Places that write their answers into a journal, and read them from it again.

They stand before the places of a federation.  What clients remember for themselves is in no
journal: calls that make it are asked again, in their order, and so it is made anew.
"""

import warnings

import numpy as np

from ..calls import CALLS
from ..calls.summed import GradientSums
from ..clients.last_answers import Forgotten, LastAnswers
from ..exceptions import CheckpointError
from .fanout import joined
from .journal import digest
from .sites import PlaceLost, Site, answer_without, count_derived
from .turns import pass_turn

#: Questions about rows before a fit, asked again to see that the rows are the same.
CHECKED = frozenset({"class_totals", "moments"})
#: Further questions about rows.
KEPT = frozenset({"scores", "testable"})
#: What rows make of themselves.
STEPS = frozenset({"capped", "judged_by", "scaled", "weighed", "without"})
#: Largest relative difference of sums over the same rows, of another processor.
SAME = 1e-5
#: The same of losses and gradients of one question, in double precision, and what is left of
#: gradients that sum to zero, relative to the largest one.
SAME_ROWS, SUMMED_TO_ZERO = 1e-9, 1e-14


def recorded(parts, kind, journal, hello, wire_bytes, rows):
    """Places with their answers in a journal.

    Parameters
    ----------
    parts : list of Place
        The rows of the fit.
    kind : {"classifier", "regressor", None}
        Kind of the targets.
    journal : Journal
        What has them.
    hello : Handshake
        What the clients have said of themselves.
    wire_bytes : callable
        Bytes ``(up, down)`` that have travelled.
    rows : callable
        ``rows(model, hello)`` opens the rows once more.

    Returns
    -------
    parts : list of RecordedRows

    Raises
    ------
    CheckpointError
        If the journal is of other clients, or they have other rows.
    """
    about = {
        "ids": hello.ids,
        "features": (hello.n_features, hello.feature_names, hello.dtype.str, hello.row_shape),
        "classes": hello.classes,
        "numbers of rows": hello.sizes,
        "weights": hello.weights,
    }
    if journal.begin({name: digest(value).hex() for name, value in about.items()}):
        _check_rows(rows, kind, journal, hello, wire_bytes)
    # A fit may open the same clients with several sets of columns.
    columns = about["features"], getattr(hello, "columns", None)
    return [
        RecordedRows(part, Recorder(journal, wire_bytes), digest(hello.ids[part.places], columns))
        for part in parts
    ]


def _check_rows(rows, kind, journal, hello, wire_bytes):
    """Raise a CheckpointError if rows are not those of the fit that began the journal.

    Each fit asks one question, whatever its method: the clients' losses under a model of zeros,
    and one sum of their gradients there, as rounds ask for: no gradient of a client is sent, which
    may be a row.  It has weights of its own, so that rows that change places are seen, too.
    """
    n_classes = None if hello.classes is None else len(hello.classes)
    model = journal.models[kind].bind(hello.n_features, n_classes, hello.dtype)
    key, ids = digest("rows", model, hello.ids), hello.ids
    found = journal.take(key)
    # A policy ends the fit of the rows with which it refuses a call: these are of no fit.
    site = joined([(part.site(model), part.places) for part in rows(model, hello)])
    counted = np.ones(len(ids), dtype=bool) if found is None else found["answered"]
    weights = counted * hello.weights * np.random.RandomState(0).uniform(0.5, 1.5, len(ids))
    sent = {"theta": np.zeros((1, model.n_params)), "labels": np.zeros(len(ids), dtype=np.intp)}
    try:
        answers = site.answer(
            GradientSums.name, {**sent, "weights": weights, "dtype": np.dtype(float)}
        )
    except PlaceLost as error:
        return _warn(journal, error)
    answered = answers.get("answered", np.ones(len(ids), dtype=bool))
    silent = counted & ~answered
    seen = {name: answers[name] for name in ("values", "gradients")}
    if found is None:
        return journal.add(key, {**seen, "answered": answered}, wire_bytes())
    before = found["gradients"]
    alike = np.isclose(seen["values"], found["values"], SAME_ROWS, 0.0, equal_nan=True)
    wrong = counted & answered & ~alike
    what = f"those of clients {ids[wrong].tolist()[:5]} are" if wrong.any() else ""
    if silent.any():
        _warn(journal, f"{np.count_nonzero(silent)} clients do not answer")
    else:
        rounding = SAME_ROWS * np.abs(before) + SUMMED_TO_ZERO * np.abs(before).max(initial=0.0)
        if not (np.abs(seen["gradients"] - before) <= rounding).all():
            what = what or "a sum of gradients over the clients is"
    if what:
        raise CheckpointError(
            f"checkpoint={str(journal.path)!r} is of other rows: {what} not the same. To begin "
            "anew, delete it."
        )


def _warn(journal, reason):
    warnings.warn(
        f"checkpoint={str(journal.path)!r}: not all rows are compared, {reason}.",
        UserWarning,
        stacklevel=2,
    )


class Recorder:
    """What the recorded places that are made from one place have in common.

    Parameters
    ----------
    journal : Journal
        What has the answers.
    wire_bytes : callable
        Bytes ``(up, down)`` that have travelled.

    Attributes
    ----------
    reachable : bool or None
        Whether the place was when it gave the answer that was read last; None if it was asked
        since.
    """

    def __init__(self, journal, wire_bytes):
        self.journal, self.wire_bytes, self.reachable = journal, wire_bytes, None

    def check(self, name, value, before):
        """Raise a CheckpointError if an answer is not that of before."""
        if not _alike(value, before):
            raise CheckpointError(
                f"checkpoint={str(self.journal.path)!r} is of other rows: a place answers {name} "
                "otherwise than before. To begin anew, delete it."
            )

    def take(self, key):
        """The answer to a question, None if it has to be asked."""
        found = self.journal.take(key)
        if found is None:
            return None
        self.reachable = found.get("reachable", True)
        return found

    def add(self, key, found, reachable=True):
        """Add an answer, and whether its place was reachable then."""
        found = found if reachable else {**found, "reachable": False}
        self.journal.add(key, found, self.wire_bytes())


class RecordedRows:
    """Rows of a place, or folds of them; in all but their answers they are the place itself.

    Parameters
    ----------
    inner : Endpoint
        The rows.
    recorder : Recorder
        The place's recorder.
    made : bytes
        Digest of how they were made.
    """

    def __init__(self, inner, recorder, made):
        self.inner, self.recorder, self.made = inner, recorder, made

    def __getattr__(self, name):
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        value = getattr(self.inner, name)
        if name not in STEPS:
            return value
        return lambda *arguments: self._of(value(*arguments), name, *arguments)

    def _of(self, inner, *how):
        return RecordedRows(inner, self.recorder, digest(self.made, how))

    def folds(self, n_folds, seed, by_class):
        """Training and test rows."""
        how = "folds", n_folds, seed, by_class
        return [self._of(fold, *how, k) for k, fold in enumerate(self.inner.folds(*how[1:]))]

    def site(self, model):
        """Site of the rows, under a model."""
        inner, made = self.inner.site(model), digest(self.made, "site", model)
        return RecordedSite(inner, self.recorder, made, model.own is not None)

    def start(self, name, *arguments):
        """Begin to answer; see :meth:`~skcfl.federation.sites.Endpoint.start`."""
        if name not in CHECKED | KEPT:
            return self.inner.start(name, *arguments)
        key = digest(self.made, name, arguments)
        found = self.recorder.take(key)
        if found is not None and name in KEPT:
            return lambda: found["answer"]
        wait = self.inner.start(name, *arguments)

        def answer():
            value = wait()
            if found is None:
                self.recorder.add(key, {"answer": value})
                return value
            self.recorder.check(name, value, found["answer"])
            return found["answer"]

        return answer


class RecordedSite(Site):
    """Clients under a model.

    Parameters
    ----------
    inner : Site
        The clients.
    recorder : Recorder
        The place's recorder.
    made : bytes
        Digest of how the site was made.
    remembers : bool
        If True, clients change a model of their own in every call, and all calls are asked again.
    lacked : LastAnswers, default=None
        Models that clients have answered with and their place does not have, as they were read
        from the journal; shared by the sites of some of the clients.
    at : slice or ndarray, default=slice(None)
        Positions of the clients of this site in `lacked`.
    """

    def __init__(self, inner, recorder, made, remembers, lacked=None, at=slice(None)):
        self.inner, self.recorder, self.made, self.remembers = inner, recorder, made, remembers
        self.lacked = LastAnswers(inner.n_clients) if lacked is None else lacked
        self.at, self.travels = at, inner.travels

    def __getattr__(self, name):
        # Sizes and weights; remote places are asked for them when they are first needed.
        if name not in {"client_sizes", "client_weights", "without_rows", "n_clients"}:
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def reachable(self):
        """Clients that may answer if a call is repeated."""
        seen = self.recorder.reachable
        return self.inner.reachable if seen is None else np.full(self.n_clients, seen)

    def derive(self, step, *arguments):
        """Sites of the same clients, of some of them, or of parts of their rows."""
        sites, made = self.inner.derive(step, *arguments), digest(self.made, step, arguments)
        memory = {}
        if step == "subset":
            memory = {"lacked": self.lacked, "at": self._positions(arguments[0])}
        return [
            RecordedSite(site, self.recorder, digest(made, k), self.remembers, **memory)
            for k, site in zip(range(count_derived(step, *arguments)), sites, strict=True)
        ]

    def answer(self, call, arguments):
        """Let the clients compute, unless they did before."""
        wait = self.begin(call, arguments)
        if self.travels:
            pass_turn()
        return wait()

    def begin(self, call, sent):
        """Begin to answer; see :meth:`~skcfl.federation.sites.Site.begin`."""
        message = CALLS[call]
        key = digest(self.made, call, message.packed(sent))
        found = self.recorder.take(key)
        again = found is not None and (self.remembers or message.remembers)
        if found is not None and not again:
            return lambda: self._read(message, sent, found)
        sent = self._with_lacked(message, sent)
        if again:
            return self._repeat(call, sent, found)
        self.recorder.reachable = None
        wait = self.inner.begin(call, sent)

        def answer():
            try:
                answers = wait()
            except Forgotten:
                self.recorder.add(key, {"forgotten": True})
                raise
            self._keep(message, sent, answers, True)
            reachable = "answered" not in answers or bool(self.inner.reachable.all())
            self.recorder.add(key, {"answers": answers}, reachable)
            return answers

        return answer

    def _positions(self, clients):
        return np.arange(len(self.lacked.known))[self.at][clients]

    def _with_lacked(self, message, sent):
        """Arguments with the starts that the place lacks, which the server takes it to have."""
        continuing = sent.get("own")
        models, known = self.lacked.of(self.at)
        if continuing is None or not (continuing & known).any():
            return sent
        start, lacking = sent[message.start], (continuing & known)[:, None]
        start = np.where(lacking, models, 0.0 if start is None else start)
        return {**sent, message.start: start.astype(models.dtype), "own": continuing & ~known}

    def _read(self, message, sent, found):
        """The answers that are in the journal."""
        if "forgotten" in found:
            raise Forgotten("the place did not have the clients' last answers.")
        self._keep(message, sent, found["answers"], False)
        return found["answers"]

    def _repeat(self, call, sent, found):
        """Let the clients do again what they remember, those that did it before."""
        if "forgotten" in found:
            return lambda: self._read(CALLS[call], sent, found)
        answered, wait = found["answers"].get("answered"), None
        if answered is None:
            wait = self.inner.begin(call, sent)

        def answer():
            if wait is not None:
                wait()
            elif answered.any():
                answer_without(self.inner, call, sent, answered, compute=False)
            self._keep(CALLS[call], sent, found["answers"], True)
            return found["answers"]

        return answer

    def _keep(self, message, sent, answers, asked):
        """Note if the place has the clients' last answers, or only the journal."""
        if not (message.keep and sent.get("keep", True)):
            return
        clients = answers.get("answered", slice(None))
        places = self._positions(clients)
        if asked:
            self.lacked.known[places] = False
        else:
            self.lacked.keep(places, answers[message.keep][clients])


def _alike(a, b):
    """Whether numbers are equal but for rounding, in arrays and lists of them."""
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if a is None or b is None:
        return a is b
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    scale = np.abs(b).max(initial=0.0)
    return np.allclose(a, b, rtol=SAME, atol=SAME * scale, equal_nan=True)
