"""Places that write their answers into a journal, and read them from it again.

They stand before the places of a federation.  What clients remember for themselves is in no
journal: calls that make it are asked again, in their order, and so it is made anew.
"""

from contextlib import suppress

import numpy as np

from ..calls import CALLS
from ..clients.last_answers import Forgotten, LastAnswers
from ..exceptions import CheckpointError
from .journal import digest
from .sites import PlaceLost, Site, answer_without, count_derived
from .turns import pass_turn

#: Questions about rows before a fit, asked again to see that the rows are the same.
CHECKED = frozenset({"class_totals", "moments"})
#: Further questions about rows.
KEPT = frozenset({"scores", "testable"})
#: What rows make of themselves.
STEPS = frozenset({"capped", "judged_by", "scaled", "weighed", "without"})
#: Answers by which other rows are seen, wherever the models are.
LOSSES = frozenset({"losses", "values", "evidence"})
#: Calls of a place that are compared with those of before.
COMPARED = 2
#: Largest relative difference of sums over the same rows, of another processor.
SAME = 1e-5


def recorded(parts, journal, hello, wire_bytes):
    """Places with their answers in a journal.

    Parameters
    ----------
    parts : list of Place
        The rows of the fit.
    journal : Journal
        What has them.
    hello : Handshake
        What the clients have said of themselves.
    wire_bytes : callable
        Bytes ``(up, down)`` that have travelled.

    Returns
    -------
    parts : list of RecordedRows
    """
    about = {
        "ids": hello.ids,
        "features": (hello.n_features, hello.feature_names, hello.dtype.str, hello.row_shape),
        "classes": hello.classes,
        "numbers of rows": hello.sizes,
        "weights": hello.weights,
    }
    journal.begin({name: digest(value).hex() for name, value in about.items()})
    # A fit may open the same clients with several sets of columns.
    columns = about["features"], getattr(hello, "columns", None)
    return [
        RecordedRows(part, Recorder(journal, wire_bytes), digest(hello.ids[part.places], columns))
        for part in parts
    ]


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
    same : set of str
        Calls that the place has answered as before, see :meth:`check`.
    """

    def __init__(self, journal, wire_bytes):
        self.journal, self.wire_bytes, self.reachable = journal, wire_bytes, None
        self.same = set()

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
            compare = self._compared(message, sent, found)
            return lambda: compare() or self._read(message, sent, found)
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

    def _compared(self, message, sent, found):
        """Ask for losses once more, the first time, to see that the rows are the same.

        What is returned waits for the answer, and raises a CheckpointError if it is another one.
        """
        before, name = found.get("answers", {}), message.name
        trains = "steps" in message.down or message.keep or sent.get("own") is not None
        if trains or "answered" in before or not LOSSES & before.keys():
            return nothing
        if name in self.recorder.same or len(self.recorder.same) == COMPARED:
            return nothing
        self.recorder.same.add(name)
        wait = self.inner.begin(name, sent)

        def compare():
            with suppress(PlaceLost):
                answers = wait()
                if "answered" not in answers:  # all have answered
                    self.recorder.check(name, _losses_of(answers), _losses_of(before))

        return compare

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


def nothing():
    """Compare nothing."""


def _losses_of(answers):
    """Losses and their gradients, which may be zero, as one array in double precision."""
    kept = LOSSES | {"gradients", "slopes"}
    return np.concatenate([np.ravel(v).astype(float) for k, v in answers.items() if k in kept])


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
