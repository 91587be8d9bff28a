"""A site of its own: rows that it loads itself, and what it answers a server about them.

Bytes come in and bytes go out, whatever carries them; the server's end is
:class:`~skcfl.federation.wire.WireTransport`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from typing import Any

import numpy as np
from sklearn.utils.validation import _num_samples

from ..calls import CALLS
from ..clients.ids import check_ids, encode
from ..clients.last_answers import Forgotten
from ..exceptions import MessageError, PrivacyError
from .hosted_parts import Host
from .policy import check_policy, is_silent
from .row_calls import ROW_CALLS
from .serialization import MAX_BYTES, array_bytes, dumps, loads, number_of
from .sites import PlaceLost, Refused
from .transport import SEVERAL

#: What a server may ask: about the clients, and what the tables of calls have.
ASKED = frozenset(
    {"answer", "facts", "hello", "release", *ROW_CALLS}
    | {"exact", "exact_moments", "mask_key", "mask_agree", "released"}
)
#: What it may have made of the rows, which stays at the site.
MADE = frozenset(
    {"__getitem__", "capped", "derive", "folds", "judged_by", "made", "rows", "scaled", "scored"}
    | {"site", "weighed", "without"}
)

#: Numbers of messages that a site remembers: it does not answer a copy anew.
MOST_NUMBERS = 1000

logger = logging.getLogger(__name__)
#: What was answered: job, site, call, clients, rows, and how often the job has asked this.
audit_logger = logging.getLogger("skcfl.audit")


class SiteRows:
    """Rows of one site, which loads them itself: to be subclassed by whoever owns them.

    Parameters
    ----------
    name : str
        Name of the site in the federation.

    Attributes
    ----------
    policy : SitePolicy or None
        What the site agrees to; None is everything.
    trusted : tuple of str
        Modules of the user's own local models and losses, which the site has too.  Messages that
        name classes of others are refused.
    max_bytes : int
        Largest message, in bytes, that the site reads; 2**30 by default.
    n_jobs : int or None
        Threads of a computation over clients.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skcfl.federation import SitePolicy, SiteRows
    >>> class Clinic(SiteRows):
    ...     policy = SitePolicy(min_rows=20)
    ...
    ...     def load(self):
    ...         X, y = load_diabetes(return_X_y=True)
    ...         return X, y, None
    >>> Clinic("north").named()[2][:2]
    array(['north', 'north'], dtype='<U5')
    """

    policy = None
    trusted = ()
    max_bytes = MAX_BYTES
    n_jobs = None

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self) -> tuple[Any, ...]:
        """The rows.

        Returns
        -------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Features.
        y : array-like of shape (n_samples,) or None
            Targets.
        groups : array-like of shape (n_samples,) or None
            Id of each row's client; None if the site is one client.
        sample_weight : array-like of shape (n_samples,), optional
            Weight of each row.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method load().")

    def named(self) -> tuple[Any, ...]:
        """What :meth:`load` returns, with ids that are the site's: "site/id", or "site".

        Returns
        -------
        rows : tuple
            X, y, groups and, if there are any, weights.
        """
        loaded = self.load()
        if not isinstance(loaded, tuple | list) or len(loaded) not in (3, 4):
            raise ValueError("load() must return X, y, groups or X, y, groups, sample_weight.")
        X, y, groups, *weights = loaded
        n_rows = _num_samples(X)
        if n_rows == 0:
            raise ValueError("load() returned no row.")
        if groups is None:
            return X, y, np.repeat(self.name, n_rows), *weights
        ids, codes = encode(check_ids(groups, n_rows, "groups"))
        named = np.array([f"{self.name}/{value}" for value in ids.tolist()])
        if len(np.unique(named)) < len(named):
            raise ValueError("groups must hold ids that differ as text.")
        return X, y, named[codes], *weights


class SiteHost:
    """What answers a server at a site.

    It does what ``ASKED`` and ``MADE`` list and nothing else, reads no classes but those
    of local models, and sends numbers, text and arrays of them.  The logger ``skcfl.audit`` has a
    line for every answer.

    Parameters
    ----------
    rows : SiteRows
        What the site has.
    job : str, default=""
        Name of the job for which it answers.
    """

    def __init__(self, rows, job=""):
        if not isinstance(rows, SiteRows):
            raise TypeError(f"rows must be SiteRows, got {type(rows).__name__}.")
        check_policy(rows.policy)
        self.rows, self._label = rows, f"Site {rows.name!r}"
        about = {"policy": rows.policy, "site": rows.name}
        self._host = Host([(0, self._label, self._load)], rows.n_jobs, **about)
        self._lock, self.job, self._times = threading.Lock(), job, Counter()
        self._numbers, self._last = deque(maxlen=MOST_NUMBERS), b""

    def handle(self, message):
        """Answer a message.

        Parameters
        ----------
        message : bytes
            As a :class:`~skcfl.federation.wire.WireTransport` sends it.

        Returns
        -------
        reply : bytes
            What was asked, or why there is no answer.  Of what is wrong with the rows the text, of
            other errors the type: the rest is in the log of the site.  A copy of the last message
            has the same reply; it is not computed again.
        """
        number = 0
        with self._lock:  # one at a time: a server that no longer waits may ask again
            try:
                number = number_of(message)
                if number and number == number_of(self._last):
                    return self._last
                if number in self._numbers:
                    raise MessageError("it has answered this message before.")
                request = loads(message, self.rows.trusted, max_bytes=self.rows.max_bytes)
            except Exception as error:
                return dumps((*self._failure(error), None), number=number)
            try:
                if request[3] == SEVERAL:
                    reply = SEVERAL, self._replies(request[4][0]), None
                else:
                    reply = self._reply(request)
                reply = dumps(reply, packages=(), number=number)
            except Exception as error:
                reply = dumps((*self._failure(error), None), number=number)
            if number:
                self._numbers.append(number)
                self._last = reply
            return reply

    def _replies(self, requests):
        replies, size = [], 0
        for request in requests:
            replies.append(self._reply(request))
            size += array_bytes(replies[-1])
            if size > MAX_BYTES:
                raise MessageError(f"the replies have {size} bytes, more than {MAX_BYTES}.")
        return replies

    def _reply(self, request):
        """Status, value and note of the reply to a request."""
        try:
            status, value = self._answer(request)
        except Exception as error:
            status, value = "error", error
        if status == "error":
            return (*self._failure(value), None)
        return status, value, self._note(value, *request[4][:1])

    def _note(self, value, call=None):
        """Why some of the clients do not answer, None if all do."""
        answered = value.get("answered") if isinstance(value, dict) else None
        if answered is None or answered.all() or self.rows.policy is None:
            return None
        if is_silent(self.rows.policy, call):
            return f"its calls do not name {call}, and min_rows is {self.rows.policy.min_rows}"
        few = f"have fewer than min_rows={self.rows.policy.min_rows} rows"
        return f"clients, or parts of their rows, {few}"

    def _answer(self, request):
        _, recipe, _, name, arguments = request
        wrong = ({step[2] for step in recipe} - MADE) | ({name} - ASKED)
        if name == "answer" and arguments[0] not in CALLS:
            wrong = {arguments[0]}
        if wrong:
            raise Refused(f"it knows no message {', '.join(sorted(map(repr, wrong))):.80}")
        reply = self._host.ask(*request)
        if reply[0] == "done":
            self._audit(arguments[0] if name == "answer" else name, request[0], reply[1])
        return reply

    def _audit(self, call, key, value):
        """Write down what is answered."""
        thing = self._host.kept(key)
        sizes = getattr(thing, "client_sizes", None)  # of clients under a model
        answered = value.get("answered") if isinstance(value, dict) else None
        if sizes is not None and answered is not None:
            sizes = sizes[answered]
        self._times[call] += 1
        audit_logger.info(
            "job=%s site=%s call=%s clients=%s rows=%s times=%d",
            *(self.job, self.rows.name, call),
            "all" if sizes is None else np.count_nonzero(sizes),
            getattr(thing, "n_rows", "all") if sizes is None else int(sizes.sum()),
            self._times[call],
        )

    def _failure(self, error):
        if isinstance(error, Refused):
            logger.warning("%s does not answer: %s", self._label, error.args[0])
            return "refused", str(error)
        if isinstance(error, Forgotten):
            return "forgotten", str(error)
        if isinstance(error, MessageError | PlaceLost):  # they have nothing of the rows
            logger.error("%s does not answer: %s", self._label, error)
            return "lost", str(error)
        logger.error("%s does not answer", self._label, exc_info=error)
        if isinstance(error, PrivacyError):  # it names a file
            return "refused", "its account releases nothing, see its log"
        policy = self.rows.policy
        secret = policy is not None and policy.privacy is not None
        # Even the type of an error may tell of private rows.
        kind = "an error" if secret else type(error).__name__
        if isinstance(error, ValueError | TypeError) and str(error).startswith(self._label):
            if not secret and (policy is None or policy.min_rows == 1):
                return "invalid", str(error)
            # What is wrong may quote a row.
            return "invalid", f"{self._label}: {kind}, see its log"
        return "lost", f"{kind}, see its log"

    def _load(self):
        try:
            return self.rows.named()
        except ValueError as error:
            raise ValueError(f"{self._label}: {error}") from error
        except Exception as error:
            kind = type(error).__name__
            raise ValueError(f"{self._label}: load() raised {kind}, see its log.") from error
