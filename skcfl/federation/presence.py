"""Who of the clients answers, as the server sees it."""

import warnings
from contextlib import contextmanager

import numpy as np

from .._checks import caller_level
from ..calls import CALLS
from ..exceptions import FederationError, MissingClientWarning
from .absences import Absences

# Values that are not finite in a row, in searches along lines, after which a client is rejected.
PATIENCE = 20
# Calls in a row that a client has to miss to be lost for good, times its longest silence before.
LOST = 10
# Times that a fit starts again because calls that need all clients lacked some of them.
MOST_REPEATS = 2


def _named(ids):
    """Some ids, and dots for others."""
    return ", ".join([*map(repr, ids[:5].tolist()), *["..."] * (len(ids) > 5)])


class ClientsLost(Exception):
    """Raised in a fit that starts again without the clients that its presence has lost."""


@contextmanager
def comparing(pool, by_sums=False):
    """Compare candidates in here.

    The fit starts again at once if clients elsewhere were away when needed, and are back.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    by_sums : bool, default=False
        Whether candidates are compared by sums over the clients, so that all calls need all.
    """
    with needing_all(pool, by_sums):
        yield
    if pool.travels:
        pool.presence.check_skipped()


@contextmanager
def needing_all(pool, needed=True):
    """Let calls that else go on without silent clients need all of them in here."""
    presence = pool.presence
    before, presence.needs_all = presence.needs_all, needed
    try:
        yield
    finally:
        presence.needs_all = before


class Presence:
    """Who answers, as the server sees it; shared by the pools of one federation.

    Parameters
    ----------
    ids : array-like of shape (n_clients,)
        The clients' ids.
    min_clients : int, default=1
        How many have to answer: to be counted out, a client was asked `retries` times more than
        once in a row, be it in rounds, of which many go on without it.
    retries : int, default=10
        How often those who are silent are asked again where all are needed.
    before : Presence, default=None
        Presence in an earlier attempt at the same fit.  The clients that it lost or rejected are
        left out of this attempt: they have no rows.
    """

    def __init__(self, ids, min_clients=1, retries=10, before=None):
        self.ids, self.min_clients, self.retries = np.asarray(ids), min_clients, retries
        none = np.zeros(len(ids), dtype=bool)
        #: Clients left out because an earlier attempt rejected them, and those that it lost.
        self.banned = none if before is None else before.banned | before.rejected
        self.gone = none if before is None else (before.gone | before.lost) & ~self.banned
        #: If True, a lost or rejected client ends the attempt with ClientsLost.
        self.starts_again = False
        #: Calls in a row that each client has missed, asked again or not, and the most after which
        #: it came back.
        self.silent, self.longest = np.zeros((2, len(ids)), dtype=np.int32)
        #: Calls in a row that each has not answered, and whether anybody ever did not.
        self.missed, self.faulty = np.zeros(len(ids), dtype=np.int32), False
        #: Whether somebody who did not answer did so later.
        self.returned = False
        #: Who has ever answered, where somebody did not.
        self.heard = np.ones(len(ids), dtype=bool)
        #: Clients in this process under a policy, without which they would answer.
        self.guarded = none.copy()
        #: Whether something that needs all clients was computed without some.
        self.incomplete = False
        #: Clients that gave no answer to a final call, so that their models are not known, and
        #: clients that were away in a call that needs all.
        self.unfinished, self.skipped = np.zeros((2, len(ids)), dtype=bool)
        #: Whether calls that else go on without silent clients need all of them.
        self.needs_all = False
        #: Times that the fit has started again with those who came back.
        self.repeats = 0 if before is None else before.repeats
        self.calls = 0
        #: Clients that sent non-finite values, and those that never answer one kind of call: both
        #: are not asked again.
        self.rejected, self.excluded = np.zeros((2, len(ids)), dtype=bool)
        #: Non-finite answers in a row, where the model may be to blame.  Starts at PATIENCE - 1 so
        #: that a client that has never sent a finite value is rejected at once.
        self.strange = np.full(len(ids), PATIENCE - 1, dtype=np.int32)
        #: By kind of call and whether it is about some of the rows only, as in a fold: which
        #: clients have ever answered it, and how often each has not, where some have not.
        self.answered = {}
        self.failed = {}
        #: Which clients gave no answer to a kind of call although they were there.
        self.refused = {}
        #: Which clients were away, and when, in earlier attempts, too.
        self.absences = Absences(self.ids) if before is None else before.absences
        self._check_number()

    def note(self, places, answered, whole):
        """What a call has shown of some clients; `answered` is None if all did."""
        self.calls += 1
        # Who was rejected has answered.
        out = self.left_out | self.rejected
        here = ~out[places] if out.any() else slice(None)
        self.absences.note(places[here], None if answered is None else answered[here])
        if answered is None:
            if self.faulty:
                self._come_back(places)
                self.heard[places] = True
            return
        if not self.faulty:
            self.faulty, self.heard[:] = True, self.calls > 1
        self._come_back(places[answered])
        self.silent[places[~answered]] += 1
        # Who is needed has been asked again already.
        times = 1 + self.retries * whole
        self.missed[places] = np.where(answered, 0, self.missed[places] + times)
        self.heard[places] |= answered
        self.incomplete |= whole and not answered.all()
        self._check_number()

    def _check_number(self):
        """Raise a FederationError if too few clients answer."""
        lost = (self.missed > self.retries) | self.left_out
        n = len(lost) - int(lost.sum())
        if n < self.min_clients:
            raise FederationError(
                f"{n} of {len(self.ids)} clients answer, and min_clients={self.min_clients}: "
                f"{_named(self.ids[lost])} did not when last asked{self._refused(lost)}."
            )

    def _refused(self, clients):
        """What some clients never answered though they were there, for a message."""
        never = []
        for (call, some_rows), refused in self.refused.items():
            if (refused & ~self.answered[call, some_rows])[clients].all():
                never.append(f"{call!r} about some of their rows" if some_rows else repr(call))
        if not never:
            return ""
        return (
            f", and have never answered {' or '.join(never)}, as where a policy or too few rows "
            "do not allow it"
        )

    def _come_back(self, places):
        """Note that some clients answer, which may have been silent."""
        self.returned |= bool(self.missed[places].any())
        self.longest[places] = np.maximum(self.longest[places], self.silent[places])
        self.missed[places] = self.silent[places] = 0

    def record(self, kind, places, answered):
        """Note which clients have answered a kind of call, and which have not.

        Parameters
        ----------
        kind : tuple of (str, bool)
            Name of the call, and whether it is about some of the rows only.
        places : slice or ndarray of shape (m,)
            Clients that were asked.
        answered : ndarray of shape (m,) of bool or None
            Which of them have answered; None is all.
        """
        if answered is None and isinstance(places, slice):
            self.answered[kind] = np.True_  # everybody
            return
        known = np.array(np.broadcast_to(self.answered.get(kind, False), len(self.ids)))
        known[places] |= True if answered is None else answered
        self.answered[kind] = known
        if answered is None:
            return
        if kind not in self.failed:
            self.failed[kind] = np.zeros(len(self.ids), dtype=np.int32)
            self.refused[kind] = np.zeros(len(self.ids), dtype=bool)
        self.failed[kind][places] += ~answered

    def unheard(self, kind, places):
        """Clients that have never answered a kind of call and are not known to be away, a mask."""
        known = self.answered[kind] | self.excluded | self.rejected
        return ~known[places] & (self.missed[places] <= self.retries)

    def exclude(self, kind, places):
        """Ask some clients nothing more, because they never answer one kind of call."""
        self.excluded[places], self.heard[places] = True, False
        self.missed[places] = np.maximum(self.missed[places], self.retries + 1)
        times = int(self.failed[kind][places].min())
        warnings.warn(
            f"{len(places)} of {len(self.ids)} clients left all of {times} calls of {kind[0]!r} "
            f"unanswered while they answered others: {_named(self.ids[places])}. The fit goes on "
            "without them (missing_clients_).",
            MissingClientWarning,
            stacklevel=caller_level(),
        )

    def without_part(self):
        """Clients that have never answered some kind of call, or a final one, a mask."""
        out = self.excluded | self.unfinished
        for (call, some_rows), failed in self.failed.items():
            if not (some_rows or CALLS[call].proof):
                out |= ~self.answered[call, some_rows] & (failed > 0)
        return out

    @property
    def left_out(self):
        """Clients that this attempt is without from the start, (n_clients,) of bool."""
        return self.gone | self.banned

    @property
    def lost(self):
        """Clients that are silent for good, (n_clients,) of bool.

        A straggler, which was silent before and came back, is given more time.
        """
        return (self.silent > LOST * np.clip(self.longest, 1, LOST)) | self.excluded

    @property
    def undecided(self):
        """Clients that are silent, perhaps not for good, (n_clients,) of bool."""
        return (self.silent > 0) & ~self.lost & ~self.rejected

    def is_away(self, patient):
        """Whether the fit can start again without somebody, who was silent for too long.

        If `patient`, a silent client may come back until the end of the attempt.
        """
        return self.starts_again and not patient and bool(self.lost.any())

    def check(self, patient):
        """Raise ClientsLost if the fit can start again and has to, see :meth:`is_away`."""
        if self.starts_again:
            lost = self.excluded if patient else self.lost
            if (self.rejected | lost).any():
                raise ClientsLost

    def check_skipped(self, last=False):
        """Raise ClientsLost if calls that need all clients lacked some that are back.

        What was computed meanwhile lacks them: a graph, a start, the choice of a candidate. A fit
        that may not start again any more names them missing at its end, which is `last`.
        """
        back = self._back
        if not (self.starts_again and back.any()):
            return
        if self.repeats < MOST_REPEATS:
            self.repeats += 1
            raise ClientsLost
        if last:
            self.unfinished |= back
            warnings.warn(
                f"{int(back.sum())} of {len(back)} clients were away when they were needed, in "
                f"each of {1 + MOST_REPEATS} attempts: {_named(self.ids[back])}. What "
                "was computed meanwhile lacks them (missing_clients_).",
                MissingClientWarning,
                stacklevel=caller_level(),
            )

    @property
    def _back(self):
        """Clients that were away when they were needed, and answer again."""
        return self.skipped & (self.missed == 0) & ~self.rejected & ~self.left_out

    def why_again(self):
        """The text that says why the fit starts again, and names the clients."""
        away = (self.rejected | self.lost) & ~self.left_out
        if not away.any():
            back = self._back
            return (
                f"{int(back.sum())} of {len(back)} clients were away when they were needed, and "
                f"answer again: {_named(self.ids[back])}. The fit starts again with them."
            )
        return (
            f"{int(away.sum())} of {len(away)} clients were lost or rejected: "
            f"{_named(self.ids[away])}. The fit starts again without them."
        )

    def warn_of_refusals(self):
        """Warn of clients that are lost because their policy in this process makes them silent.

        Sites elsewhere say so themselves.
        """
        silent = self.lost & self.guarded & ~(self.left_out | self.rejected | self.excluded)
        if silent.any():
            warnings.warn(
                f"{int(silent.sum())} of {len(silent)} clients do not answer: "
                f"{_named(self.ids[silent])}. Under their SitePolicy clients of fewer than "
                "min_rows rows are silent, and so are clients that have answered about other "
                "parts of their rows. The fit starts again without them (missing_clients_).",
                MissingClientWarning,
                stacklevel=caller_level(),
            )

    def reject(self, places):
        """Listen no more to clients whose answers are not finite."""
        self.rejected[places] = True

    def patient(self, places, bad):
        """Which of some clients whose values are not finite are rejected for it."""
        self.strange[places] = np.where(bad, self.strange[places] + 1, 0)
        return self.strange[places] >= PATIENCE
