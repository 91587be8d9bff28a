"""One call: asked, its answers checked, the silent asked again, the non-finite rejected."""

import numpy as np

from ..calls.answers import check_answers, questions
from ..calls.finite_sums import are_finite
from ..calls.first_order import Present
from ..calls.letters import sizes_of
from ..clients.last_answers import Forgotten
from ..exceptions import FederationError
from .sites import answer_without

# Times that a client leaves a kind of call unanswered, present each time, before it is left out.
REFUSALS = 10


class Exchange:
    """A call to the clients of a pool, and their answers as far as they have come.

    Parameters
    ----------
    pool : ClientPool
        Who is asked.
    site : Site
        Where the clients are.
    call : type
        What is asked, a class of :mod:`skcfl.calls`.
    sent : dict
        Its arguments.
    start : ndarray of shape (n_clients, n_params) or None
        Models that clients go on from, which they may not have been sent.
    n_shared : int
        How many parameters all models have in common and are sent once.

    Attributes
    ----------
    answers : dict of str to ndarray
        What has come.
    answered : ndarray of shape (n_clients,) of bool or None
        Who has answered; None is everybody.
    away : ndarray of shape (n_clients,) of bool
        Who was needed and is in a place that does not answer at all.
    """

    def __init__(self, pool, site, call, sent, start, n_shared):
        self.pool, self.site, self.call = pool, site, call
        self.sent, self.start, self.n_shared = sent, start, n_shared
        self.presence, self.places = pool.presence, pool.places
        self.answers, self.answered = {}, None
        self.away, self.searching = np.zeros(pool.n_clients, dtype=bool), False

    def ask(self, known, later, searching):
        """Ask everybody who is not out; other parameters as of :meth:`ClientPool.ask`."""
        out, self.searching = self.pool._is_out, searching
        if self.call.least_clients > 1:
            self._require_enough(~out)
        try:
            self.answers = self._answers_of(out)
        except Forgotten:
            self.sent = {**self.sent, self.call.start: self.start, "own": None}
            self.answers = self._answers_of(out)
        self.answered = self.answers.pop("answered", None)
        left_out = self.answers.pop("non_finite", None)
        sizes = sizes_of(self.pool, self.sent)
        check_answers(self.call.name, self.answers, self.sent, sizes)
        if left_out is not None or not are_finite(self.answers.values()):
            self._reject(left_out, searching)
        elif self.call.searched:
            self.presence.strange[self.places] = 0
        self._book(self.call, self.sent, self.answers, sizes, known, later)

    def complete(self, whole, final=False):
        """Ask those who were silent again, all of them if the call needs everybody.

        Clients that give no answer to a final call have no part in the fit.
        """
        kind = self.call.name, self.pool._some_rows
        self.presence.record(kind, self.pool._at, self.answered)
        if self.answered is None:
            return
        if whole or self.presence.needs_all:
            self._ask_again(whole)
        self._insist(kind)
        if final:
            self._ask_last()
        if self.answered.all():
            self.answered = None

    def _answers_of(self, out):
        if out.any():
            return answer_without(self.site, self.call.name, self.sent, ~out)
        return self.site.answer(self.call.name, self.sent)

    def _require_enough(self, asked):
        some = np.flatnonzero(asked & ~self.pool.without_rows)
        if len(some) and not self.call.is_of_enough(self.sent, some):
            raise FederationError(
                f"{self.call.name} asks for sums over at least "
                f"least_clients={self.call.least_clients} clients; one would be over fewer."
            )

    def _book(self, call, sent, answers, sizes, known=False, later=False):
        """Count what clients were asked and have answered."""
        if not self.pool.ledger.counts:
            return
        down, up = call.floats(sent, sizes, known, later, self.n_shared)
        shared, own = call.bytes(sent, answers)
        self.pool.ledger.book(
            down=down,
            up=up,
            clients=sizes["n"],
            shared_bytes=shared,
            own_bytes=own,
            envelope=call.envelope(sent, answers),
        )

    # ------------------------------------------------------------------ who was silent

    def _ask_again(self, whole):
        """Ask those who were silent until they answer, or often enough.

        Who is there may have refused, as under a policy: in a comparison that only lacks sums, the
        first time without an answer is the last.
        """
        before = None
        for left in reversed(range(1 + self.presence.retries)):
            lost, here = ~self.answered & ~self.pool._is_out, self.site.reachable
            self.away = lost & ~here
            lost &= here
            left, before = left and (whole or lost.sum() != before), lost.sum()
            if not (left and lost.any() and self._ask_some(np.flatnonzero(lost))):
                return

    def _insist(self, kind):
        """Ask for a first answer to a kind of call; exclude who is there and gives none.

        A client that misses a round comes back in the next one. One that answers other calls and
        never this kind, such as a site of another version, would count in some of the sums of a
        fit and not in others.
        """
        while not (self.call.proof or self.call is Present):
            unheard = self.presence.unheard(kind, self.places)
            silent = np.flatnonzero(~self.answered & unheard)
            lost = self._there(silent)
            # A policy that refuses a part of the rows refuses every call about it.
            refused = silent[self.site.reachable[silent]] if self.pool._some_rows else lost
            self.presence.refused[kind][self.places[refused]] = True
            failed = self.presence.failed[kind][self.places[lost]] >= REFUSALS
            if failed.any():
                self.presence.exclude(kind, self.places[lost[failed]])
            if not (len(lost) and (failed.all() or self._ask_some(lost[~failed]))):
                return

    def _ask_last(self):
        """Ask silent clients again as soon as they are there; the others have no part."""
        lost = ~self.answered & ~self.pool._is_out
        for _ in range(1 + self.presence.retries):
            here = self._there(np.flatnonzero(lost))
            if not (len(here) and self._ask_some(here)):
                break
            lost = ~self.answered & ~self.pool._is_out
        self.presence.unfinished[self.places[lost]] = True

    def _there(self, clients):
        """Those of some clients, by their positions, that say that they are there."""
        if not len(clients):
            return clients
        here = self.site.subset(clients).answer(Present.name, {})
        self._book(Present, {}, {}, {"n": len(clients)})
        return clients[here.get("answered", slice(None))]

    def _ask_some(self, lost):
        """Ask some clients again, who were silent; False if they are too few for a sum."""
        call = self.call
        if not call.is_of_enough(self.sent, lost):
            return False
        own = {name: call.own(name, value, lost) for name, value in self.sent.items()}
        site = self.site.subset(lost)
        try:
            more = site.answer(call.name, own)
        except Forgotten:
            own.update({call.start: self.start[lost], "own": None})
            more = site.answer(call.name, own)
        sizes = {**sizes_of(self.pool, own), "n": len(lost)}
        self._book(call, own, more, sizes)
        back = more.pop("answered", np.ones(len(lost), dtype=bool))
        bad = more.pop("non_finite", np.zeros(len(lost), dtype=bool)) & back
        self.presence.reject(self.places[lost[bad]])
        back &= ~bad
        check_answers(call.name, more, own, sizes)
        finite = True
        for name, value in more.items():
            if call.is_of_clients(name):
                self.answers[name][lost[back]] = value[back]
                finite &= name in call.unbounded or are_finite([value[back]])
            else:
                self.answers[name] = self.answers[name] + value
        self.answered[lost[back]] = True
        self.presence.record((call.name, self.pool._some_rows), self.places[lost], back)
        if not finite:
            self._reject(None, self.searching)
        return True

    # ------------------------------------------------------------- who is not finite

    def _reject(self, left_out, searching):
        """Reject the clients whose answers, or parts of a sum, are not finite.

        Where most of those who were asked the same have no finite answer, the question is to
        blame, a model that diverged, and not the clients.
        """
        call, answers, n = self.call, self.answers, self.pool.n_clients
        asked = ~self.pool.without_rows
        if self.answered is not None:
            asked &= self.answered
        bad = self._without_finite_entries(asked)
        left_out = np.zeros(n, dtype=bool) if left_out is None else left_out & asked
        bad |= left_out & ~self._excused(left_out, asked)
        if searching:
            bad = self.presence.patient(self.places, bad)
        self._spoil(left_out & ~bad)
        in_sums = bad & ~left_out
        if not bad.any():
            return
        self.presence.reject(self.places[bad])
        self.answered = ~bad if self.answered is None else self.answered & ~bad
        if call.sums and in_sums.any():
            self._require_enough(self.answered)
            answers.update(answer_without(self.site, call.name, self.sent, self.answered))
            also = answers.pop("non_finite", np.zeros(n, dtype=bool))
            self.answered = answers.pop("answered") & ~also
            return
        for name in filter(call.is_of_clients, call.up):
            answers[name][bad] = 0

    def _spoil(self, left_out):
        """Make sums NaN that lack clients for which the models are to blame."""
        if not left_out.any():
            return
        about = slice(None)
        if "choice" in self.answers or self.sent.get("labels") is not None:
            about = np.unique(questions(self.sent, self.answers, len(left_out))[left_out])
        for name in self.call.sums:
            spoilt = np.array(self.answers[name])
            spoilt[about if self.call.whose_up[name] == "K" else ...] = np.nan
            self.answers[name] = spoilt

    def _without_finite_entries(self, asked):
        """Clients whose own entries are not finite, where the question is not to blame."""
        answers, sent = self.answers, self.sent
        bad = np.zeros(len(asked), dtype=bool)
        for name in filter(self.call.is_of_clients, self.call.up):
            if name not in self.call.unbounded:
                bad |= _not_finite(name, answers[name], sent.get("fixed"), asked)
        bad &= asked
        return bad & ~self._excused(bad, asked)

    def _excused(self, bad, asked):
        """Clients without a finite answer of which the question is to blame."""
        if not bad.any():
            return bad
        answers, sent = self.answers, self.sent
        arguments = sent if self.start is None else {**sent, "w": self.start}
        excused = _to_blame(questions(arguments, answers, len(asked)), bad, asked)
        if "losses" in answers and "choice" in answers:
            # A model that suits most clients has not diverged, whoever says that it chose it.
            fixed, losses = sent["fixed"], answers["losses"]
            most = np.sqrt(np.finfo(losses.dtype).max)
            suits = (np.abs(losses[asked]) < most).mean(axis=0) > 0.5
            excused &= ~suits[answers["choice"]] | (fixed is not None and fixed >= 0)
        return excused


def _not_finite(name, answer, fixed, asked):
    """Which clients' entries of an answer are not finite, (n_clients,) of bool."""
    wrong = ~np.isfinite(answer)
    if name != "losses":
        return wrong.reshape(len(wrong), -1).any(axis=1)
    # A loss may overflow under models that are others', not under all.
    overflows = np.isposinf(answer) & np.isfinite(answer).any(axis=1, keepdims=True)
    if fixed is None:
        wrong &= ~overflows
    else:
        # Losses under models that a client was not sent.
        free = fixed[:, None] < 0
        wrong &= (free & ~overflows) | (fixed[:, None] == np.arange(answer.shape[1]))
    # A model under which most have no finite loss has diverged.
    return (wrong & (wrong[asked].mean(axis=0) <= 0.5)).any(axis=1)


def _to_blame(asked_about, bad, asked):
    """Whether the question, and not the client, is to blame for an answer that is not finite.

    It is where most of those who were asked the same have none; one who was asked alone is
    compared with all.
    """
    size = np.bincount(asked_about[asked], minlength=asked_about.max() + 1)
    share = np.bincount(asked_about[bad], minlength=len(size)) / np.maximum(size, 1)
    share[size == 1] = bad.sum() / asked.sum()
    return (share > 0.5)[asked_about]
