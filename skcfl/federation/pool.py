"""The federation as the server sees it: calls, and what the server keeps of their answers."""

from __future__ import annotations

import copy
import warnings
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state

from .._checks import caller_level
from .._typing import Array, ArrayLike, DTypeLike, Optimizer, RandomState
from ..exceptions import FederationError, MissingClientWarning
from ..numerics.by_cluster import sum_by_cluster
from ..numerics.newton import MAX_DENSE
from .answers import check_answers, questions
from .last_answers import Forgotten, LastAnswers
from .ledger import Ledger
from .messages import (
    CALLS,
    count_bytes,
    count_floats,
    sizes_of,
)
from .personal_pool import PersonalCalls
from .sites import answer_without

if TYPE_CHECKING:
    from ..models import LocalModel
    from .scaling import Scaling
    from .sites import Site

# Steps to the size of the noise of losses that are no parabolas, and its least ratio to the
# targets' variance, far below any real noise.
NOISE_STEPS, LEAST_NOISE = 20, 1e-6
# Relative fall of the loss in such a step below which there are no more.
SETTLED_NOISE = 1e-12
# Halvings of such a step, after which models are as good as they get.
MOST_HALVINGS = 30
# Automatic penalty below which it is rounding beside the curvature of standardised features.
LEAST_ALPHA = 1e-20
# Values that are not finite in a row, in searches along lines, after which a client is rejected.
PATIENCE = 20
# Calls in a row that a client has to miss to be lost for good, times its longest silence before.
LOST = 10
# Clients that are looked for one by one where a sum over them is not finite.
MOST_CULPRITS = 32
# Times that a client leaves a kind of call unanswered, present each time, before it is left out.
REFUSALS = 10
# Calls whose values searches along lines look at.
SEARCHED = {"objectives", "objectives_gradients", "mixture", "mixture_sums"}

# Calls whose models stay as they were sent where a client is silent.
STAY = {"moreau_update", "meta_update", "recall", "partial_update", "blended_update"}


class Seeds:
    """Seeds of what clients draw: drawn once by the server, when first needed, then counted."""

    def __init__(self, random_state):
        self.random_state = random_state
        self.seed, self.count = None, 0

    def next(self):
        """The seed and the number of the draw, the same for all clients."""
        if self.seed is None:
            self.seed = int(self.random_state.randint(np.iinfo(np.int32).max))
        self.count += 1
        return self.seed, self.count


def _named(ids):
    """Some ids, and dots for others."""
    return ", ".join([*map(repr, ids[:5].tolist()), *["..."] * (len(ids) > 5)])


class ClientsLost(Exception):
    """Raised in a fit that starts again without the clients that its presence has lost."""


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
        self.ids, self.min_clients, self.retries = ids, min_clients, retries
        nobody = np.zeros(len(ids), dtype=bool)
        #: Clients left out because an earlier attempt rejected them, and those that it lost.
        self.banned = nobody if before is None else before.banned | before.rejected
        self.gone = nobody if before is None else (before.gone | before.lost) & ~self.banned
        #: If True, a lost or rejected client ends the attempt with ClientsLost.
        self.starts_again = False
        #: Calls in a row that each client has missed, asked again or not, and the most after which
        #: it came back.
        self.silent, self.longest = np.zeros((2, len(ids)), dtype=int)
        #: Calls in a row that each has not answered, and whether anybody ever did not.
        self.missed, self.faulty = np.zeros(len(ids), dtype=int), False
        #: Whether somebody who did not answer did so later.
        self.returned = False
        #: Who has ever answered, where somebody did not.
        self.heard = np.ones(len(ids), dtype=bool)
        #: Whether something that needs all clients was computed without some.
        self.incomplete = False
        self.calls = 0
        #: Who has sent what is not finite, and is not listened to any more.
        self.rejected = np.zeros(len(ids), dtype=bool)
        #: Values in a row that were not finite, where that may be the matter of the model; so many
        #: that nobody is waited for before the first one that was.
        self.strange = np.full(len(ids), PATIENCE - 1)
        #: By kind of call and whether it is about some of the rows only, as in a fold: which
        #: clients have ever answered it, and how often each has not.
        self.answered = {}
        self.failed = {}
        #: Clients that are not asked again because they never answer one kind of call.
        self.excluded = np.zeros(len(ids), dtype=bool)
        self._check_number()

    def note(self, places, answered, whole):
        """What a call has shown of some clients; `answered` is None if all did."""
        self.calls += 1
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
                f"{_named(np.asarray(self.ids)[lost])} did not when last asked."
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
        if kind not in self.answered:
            self.answered[kind] = np.zeros(len(self.ids), dtype=bool)
            self.failed[kind] = np.zeros(len(self.ids), dtype=int)
        if answered is None:
            self.answered[kind][places] = True
        else:
            self.answered[kind][places] |= answered
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
        """Clients that have never answered some kind of call that they were asked, a mask."""
        out = self.excluded.copy()
        for (call, some_rows), answered in self.answered.items():
            if not (some_rows or CALLS[call].proof):
                out |= ~answered & (self.failed[call, some_rows] > 0)
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

    def check(self, patient):
        """Raise ClientsLost if the fit can start again and has to.

        If `patient`, a silent client may come back until the end of the attempt.
        """
        lost = self.excluded if patient else self.lost
        if self.starts_again and (self.rejected | lost).any():
            raise ClientsLost

    def reject(self, places):
        """Listen no more to clients whose answers are not finite."""
        self.rejected[places] = True

    def patient(self, places, bad):
        """Which of some clients whose values are not finite are rejected for it."""
        self.strange[places] = np.where(bad, self.strange[places] + 1, 0)
        return self.strange[places] >= PATIENCE


class ClientPool(PersonalCalls):
    """The server's half of a federation: asks the clients, counts, and holds no row.

    Parameters
    ----------
    site : Site
        Where the clients are.
    model : LocalModel
        Bound local model, of which the server uses the shapes and the penalty.
    random_state : int, RandomState instance or None, default=None
        Source of the server's draws, and of the seed of the clients'.
    scaling : Scaling, default=None
        How the clients' features are scaled: what they and the server sent each other for that is
        counted.
    presence : Presence, default=None
        Who the clients are, and how many have to answer.
    some_rows : bool, default=False
        Whether the rows are parts of the clients' rows, such as those of a fold.

    Attributes
    ----------
    n_clients, n_samples, n_params : int
        Clients, stored rows and parameters of a model.
    client_weights : ndarray of shape (n_clients,)
        ``n_i``, the sum of each client's sample weights.
    client_sizes : ndarray of shape (n_clients,)
        Number of rows of each client.
    without_rows : ndarray of shape (n_clients,) of bool
        Which clients own no row, so that nothing is known of their models but who they are.
    ledger : Ledger
        Floats sent so far.
    answered : ndarray of shape (n_clients,) of bool or None
        Who answered the last call; None if all did.
    """

    def __init__(
        self,
        site: Site,
        model: LocalModel,
        random_state: RandomState = None,
        scaling: Scaling | None = None,
        presence: Presence | None = None,
        some_rows: bool = False,
    ) -> None:
        self.model = model
        self.scaling = scaling
        self.random_state = check_random_state(random_state)
        self.ledger = Ledger()
        self._seeds = Seeds(self.random_state)
        self._places, self._at = np.arange(site.n_clients), slice(None)
        self._presence = Presence(self._places) if presence is None else presence
        self._some_rows = some_rows
        self._take(site)
        #: Ratios of the spreads of clients in other units to the others', by client and feature,
        #: which is -1 for the target.
        self.other_units: dict[tuple[int, int], float] = {}
        if scaling is not None:
            n, d = self.n_clients, len(scaling.scale)
            for up in (4 * d + 1, d):
                sums = 8 * up, 8 * d
                self.ledger.book(up=n * up, down=n * d, clients=n, shared_bytes=sums)

    def _take(self, site):
        """Hold another site, of which nothing is known but who is there."""
        self._site = site
        self.n_clients = site.n_clients
        self.client_weights, self.client_sizes = site.client_weights, site.client_sizes
        self.without_rows = site.without_rows
        self.n_samples = int(self.client_sizes.sum())
        self.n_params = self.model.n_params
        self.dtype = np.dtype(self.model.dtype)
        self._alpha_unit = self._spectrum = self.answered = None
        # What every client has answered last: it is told to go on from there, not sent it.
        self._memory = LastAnswers(len(self._presence.ids))

    def _derived(self, site, some_rows=False):
        pool = copy.copy(self)
        pool._some_rows |= some_rows
        pool._take(site)
        return pool

    def _ask(
        self,
        call,
        arguments,
        shared=0,
        kept=(),
        later=False,
        whole=None,
        start=None,
        keep=True,
        searching=False,
    ):
        """One exchange with the clients: answers by name, shapes checked, floats booked.

        `whole` says whether the silent are asked again; None is what the table says.  Models to
        go on from, `start`, are sent to those clients whose last answers they are not.  Clients
        whose answers are not finite are out from then on, as if they had not answered; in a
        search along a line, where a model can be too far away, once that has lasted.
        """
        message = CALLS[call]
        if not self.can_answer(call, **arguments):
            which = "" if message.minimised is True else f"({message.minimised}=True)"
            # Rather than do something like it.
            raise ValueError(
                f"{call}{which} needs a local model with second derivatives and exact proximal "
                f"points, got {self.model_name}. Such models are trained: local_update() takes "
                "steps, with center= and rho= towards a proximal point."
            )
        if message.start:
            sent, own = arguments.get(message.start), None
            if start is not None:
                sent, own = self._news(call, start)
            arguments = {**arguments, message.start: sent, "own": own}
        answers, arguments = self._listen(call, arguments, start)
        answered = answers.pop("answered", None)
        sizes = sizes_of(self, arguments, shared)
        check_answers(call, answers, arguments, sizes)
        if not _are_finite(answers.values()):
            answered = self._reject(call, arguments, answers, answered, start, searching)
        elif call in SEARCHED:
            self._presence.strange[self._places] = 0
        self._book(call, arguments, answers, sizes, kept, later)
        if whole is None:
            whole = message.whole or (call == "prox" and start is None)
        self._presence.record((call, self._some_rows), self._at, answered)
        if answered is not None:
            again = call, arguments, answers, answered, shared, start
            if whole:
                self._ask_again(*again)
            self._insist(*again)
        if answered is not None and answered.all():
            answered = None
        self.answered = answered
        self._presence.note(self._places, answered, whole)
        if message.keep and keep:
            models = answers[message.keep]
            if answered is None:
                self._memory.keep(self._at, models)
            else:
                self._memory.keep(self._places[answered], models[answered])
        if not (message.proof or self._some_rows):
            # A client that fails these only, as under a policy, is there; and a place that is
            # started again comes back.
            self._presence.check(patient=self.travels and call != "present")
        if answered is not None:
            self._fill(call, arguments, answers, np.flatnonzero(~answered), whole, start)
        return tuple(answers[name] for name in message.up)

    def _book(self, call, arguments, answers, sizes, kept=(), later=False):
        """Count what clients were asked and have answered."""
        down, up = count_floats(call, arguments, sizes, kept, later)
        shared, own = count_bytes(call, arguments, answers)
        self.ledger.book(down=down, up=up, clients=sizes["n"], shared_bytes=shared, own_bytes=own)

    def _news(self, call, start):
        """Models to send, None where nobody needs one, and which clients have theirs."""
        own = self._memory.same(self._at, start)
        if call in {"prox", "conjugate"}:
            own |= self.without_rows  # they make nothing of a start
        return None if own.all() else start, own

    def _ask_again(self, call, arguments, answers, answered, shared, start):
        """Ask those who were silent until they answer, or often enough; in place."""
        for _ in range(self._presence.retries):
            lost = np.flatnonzero(~answered & ~self._is_out & self._site.reachable)
            if len(lost) == 0:
                return
            self._ask_some(lost, call, arguments, answers, answered, shared, start)

    def _insist(self, call, arguments, answers, answered, shared, start):
        """Ask for a first answer to a kind of call; exclude who is there and gives none; in place.

        A client that misses a round comes back in the next one. One that answers other calls and
        never this kind, such as a site of another version, would count in some of the sums of a
        fit and not in others.
        """
        presence, kind = self._presence, (call, self._some_rows)
        while not (CALLS[call].proof or call == "present"):
            lost = np.flatnonzero(~answered & presence.unheard(kind, self._places))
            if len(lost):
                here = self._site.subset(lost).answer("present", {})
                self._book("present", {}, {}, {"n": len(lost)})
                lost = lost[here.get("answered", slice(None))]
            if len(lost) == 0:
                return
            failed = presence.failed[kind][self._places[lost]] >= REFUSALS
            if failed.any():
                presence.exclude(kind, self._places[lost[failed]])
            if not failed.all():
                self._ask_some(lost[~failed], call, arguments, answers, answered, shared, start)

    def _ask_some(self, lost, call, arguments, answers, answered, shared, start):
        """Ask some clients again, who were silent; in place."""
        message = CALLS[call]
        own = {name: message.own(name, value, lost) for name, value in arguments.items()}
        site = self._site.subset(lost)
        try:
            more = site.answer(call, own)
        except Forgotten:
            own.update({message.start: start[lost], "own": None})
            more = site.answer(call, own)
        self._book(call, own, more, {**sizes_of(self, own, shared), "n": len(lost)})
        back = more.pop("answered", np.ones(len(lost), dtype=bool))
        for name, value in more.items():
            if message.is_of_clients(name):
                answers[name][lost[back]] = value[back]
            else:
                answers[name] = answers[name] + value
        answered[lost[back]] = True
        self._presence.record((call, self._some_rows), self._places[lost], back)

    def _listen(self, call, arguments, start):
        """Answers of those who are not out, and what they were sent for it."""
        out = self._is_out

        def ask(arguments):
            if out.any():
                return answer_without(self._site, call, arguments, ~out)
            return self._site.answer(call, arguments)

        try:
            return ask(arguments), arguments
        except Forgotten:
            arguments = {**arguments, CALLS[call].start: start, "own": None}
            return ask(arguments), arguments

    def _reject(self, call, arguments, answers, answered, start, searching):
        """Reject the clients whose answers are not finite, in place; who else has answered.

        Where most of those who were asked the same have no finite answer, the question is to
        blame, a model that diverged, and not the clients.
        """
        message = CALLS[call]
        asked = ~self.without_rows if answered is None else answered & ~self.without_rows
        bad, excused = np.zeros((2, self.n_clients), dtype=bool)
        for name in filter(message.is_of_clients, message.up):
            if name not in message.unbounded:
                bad |= _not_finite(name, answers[name], arguments.get("fixed"), asked)
        bad &= asked
        if bad.any():
            told = arguments if start is None else {**arguments, "w": start}
            excused = _to_blame(questions(told, answers, self.n_clients), bad, asked)
        if call == "best_response":
            # A model that suits most clients has not diverged, whoever says that it chose it.
            fixed, losses = arguments["fixed"], answers["losses"]
            most = np.sqrt(np.finfo(losses.dtype).max)
            suits = (np.abs(losses[asked]) < most).mean(axis=0) > 0.5
            excused &= ~suits[answers["choice"]] | (fixed is not None and fixed >= 0)
        bad &= ~excused
        if searching:
            bad = self._presence.patient(self._places, bad)
        sums = [name for name in message.up if not message.is_of_clients(name)]
        if not _are_finite(answers[name] for name in sums):
            culprits = self._culprits(call, arguments, np.flatnonzero(asked))
            # One more than are looked for, or most of few: the models diverged.
            if len(culprits) <= min(MOST_CULPRITS, asked.sum() // 2):
                bad[culprits] = True
            else:
                bad |= self._false_places(call, arguments, asked)
        if not bad.any():
            return answered
        self._presence.reject(self._places[bad])
        answered = ~bad if answered is None else answered & ~bad
        if sums:
            answers.update(answer_without(self._site, call, arguments, answered))
            return answers.pop("answered")
        for value in answers.values():
            value[bad] = 0
        return answered

    def _false_places(self, call, arguments, asked):
        """Clients of places whose sums are not finite, a mask; nobody if they are most clients.

        A place that sends such sums for each of its many clients is to blame itself.
        """
        false = np.zeros(self.n_clients, dtype=bool)
        for clients in self._site.places_of():
            some = clients[asked[clients]]
            false[some] = len(some) > 0 and not self._is_sum_finite(call, arguments, some)
        return false & (false.sum() <= asked.sum() // 2)

    def _is_sum_finite(self, call, arguments, some):
        """Whether the answers of some clients about a sum are finite."""
        message = CALLS[call]
        own = {name: message.own(name, value, some) for name, value in arguments.items()}
        answers = self._site.subset(some).answer(call, own)
        shared, mine = count_bytes(call, own, answers)
        self.ledger.book(
            down=len(some) * self.n_params,
            up=len(some),
            clients=len(some),
            shared_bytes=shared,
            own_bytes=mine,
        )
        return _are_finite(answers[name] for name in message.up)

    def _culprits(self, call, arguments, clients):
        """Those of some clients whose own part of a sum is not finite, found by halves."""
        found, parts = [], [clients]
        while parts and len(found) <= MOST_CULPRITS:
            some = parts.pop()
            if self._is_sum_finite(call, arguments, some):
                continue
            if len(some) == 1:
                found.append(int(some[0]))
            else:
                parts += np.array_split(some, 2)
        return found

    @property
    def _is_out(self):
        """Clients that are not asked any more: rejected, or excluded."""
        return (self._presence.rejected | self._presence.excluded)[self._at]

    @property
    def rejected(self) -> Array:
        """Clients that have sent what is not finite, (n_clients,) of bool."""
        return (self._presence.rejected | self._presence.banned)[self._at]

    @property
    def presence(self) -> Presence:
        """Who answers."""
        return self._presence

    @property
    def steady(self) -> bool:
        """Whether sums of one call and the next are of the same clients, as far as is known.

        They are where who does not answer never did again: who is dead, or rejected.
        """
        return self.answered is None or not self._presence.returned

    def _fill(self, call, arguments, answers, lost, whole, start):
        """What the server takes for the answers of clients that gave none, in place.

        Losses are not known, and count nothing where all were needed.  A client keeps its last
        model; of one that never answered nothing is known, as of a client without rows.  All else
        is zero, a client's share in a sum.
        """
        if call in {"losses", "best_response"}:
            answers["losses"][lost] = 0.0 if whole else np.nan
        elif call == "fingerprints":
            answers["digests"][lost] = np.nan
        elif call in STAY:
            answers["w"][lost] = arguments["w"][lost]
        elif call == "local_update":
            center = arguments["center"]
            answers["w"][lost] = (arguments["w"] if start is None else start)[lost]
            if center is not None:
                new = lost[~self._presence.heard[self._places[lost]]]
                answers["w"][new] = center[new]
        elif call == "prox":
            if start is not None:
                answers["x"][lost] = start[lost]
            heard = self._presence.heard[self._places[lost]] & (start is not None)
            answers["x"][lost[~heard]] = arguments["v"][lost[~heard]]
        elif call.startswith("mixture"):
            answers["shares"][lost] = arguments["shares"][lost]
        elif call == "posteriors":
            # Nothing is known of them but the prior.
            theta, weights = arguments["theta"], arguments["weights"]
            answers["responsibilities"][lost] = weights
            answers["means"][lost] = weights @ theta
            names = "theta", "root", "weights", "errors", "dense", "df"
            own = prior_covariance(*(arguments[name] for name in names))
            answers["covariances"][lost] = own
            answers["noise"][lost] = arguments["dispersion"] * prior_variance(arguments["df"])
        elif call == "solve":
            answers["converged"][lost] = True

    def roll_call(self) -> tuple[Array, bool]:
        """Who is missing at the end.

        Returns
        -------
        missing : ndarray of shape (n_clients,) of bool
            Clients that do not answer, asked once more if any was ever silent, those that never
            answered a kind of call, and those that the fit left out because they were lost; not
            those whose answers were rejected.
        complete : bool
            Whether everything that needs all clients was computed with all.
        """
        if self._presence.faulty:
            self._ask("present", {})
        presence = self._presence
        missed = (presence.missed > 0) | presence.gone | presence.without_part()
        complete = not (presence.incomplete or presence.left_out.any())
        return missed[self._places] & ~self.rejected, complete

    def with_ledger(self, ledger: Ledger) -> ClientPool:
        """The same clients, what is sent booked elsewhere."""
        pool = copy.copy(self)
        pool.ledger = ledger
        return pool

    def relay(self, up: int = 0, down: int = 0, sums: bool = False) -> None:
        """Book what clients send each other through the server, as one exchange.

        Parameters
        ----------
        up, down : int
            Floats, of all clients together.
        sums : bool, default=False
            Whether these are sums over the clients, and what is the same for all of them.
        """
        size = self.n_clients if sums else 1
        about = {"shared_bytes" if sums else "own_bytes": (8 * up // size, 8 * down // size)}
        self.ledger.book(up=up, down=down, clients=self.n_clients, **about)

    def reseed(self, seed: RandomState) -> None:
        """Draw from here on, server and clients, as a pool with this seed would.

        Parameters
        ----------
        seed : int, RandomState instance or None
            The seed.
        """
        self.random_state = check_random_state(seed)
        self._seeds = Seeds(self.random_state)

    # ------------------------------------------------------------ penalty and units

    @property
    def automatic_alpha(self) -> bool:
        """Whether the local penalty was left to the estimator."""
        return getattr(self.model, "alpha", None) == "auto"

    def penalised(self, alpha: float) -> ClientPool:
        """Pool of the same clients under another local penalty, of which they are told.

        Parameters
        ----------
        alpha : float
            The penalty.

        Returns
        -------
        pool : ClientPool
            Shares rows, ledger and random state.
        """
        if alpha == self.model.alpha_:
            return self
        self.relay(down=self.n_clients, sums=True)
        return self._penalised(alpha)

    def _penalised(self, alpha):
        pool = copy.copy(self)
        pool.model = self.model.penalised(alpha)
        pool._take(self._site.penalised(alpha))
        if self._spectrum is not None:
            # The server knows the penalty, and what the clients have said of their losses.
            old, new = self.model.decay, pool.model.decay
            high, low = new.max() - old.max(), new.min() - old.min()
            shift = np.array([[high], [low], [high]])
            pool._spectrum = np.where(self.without_rows, self._spectrum, self._spectrum + shift)
        return pool

    @property
    def alpha_unit(self) -> float:
        """Local penalty that is a standard normal prior of one model that all clients share.

        One over the weight of all rows.  Of losses whose dispersion is unknown times the ratio of
        the dispersion to that of the targets, because coefficients then have the targets' units:
        the residual variance of the pooled model over the variance, each with its degrees of
        freedom; 1 where models are too large for it or interpolate.
        """
        if self._alpha_unit is None:
            ratio = self._noise_ratio()
            unit = ratio / max(self.client_weights[~self.rejected].sum(), 1e-300)
            self._alpha_unit = max(unit, LEAST_ALPHA)
        return self._alpha_unit

    def _noise_ratio(self):
        model, n = self.model, self.client_weights[~self.rejected].sum()
        p = model.n_free
        known = self.can_answer("hessians") and model.unknown_scale
        if not (known and p <= MAX_DENSE and n > p + 1):
            return 1.0
        pool = self._penalised(0.0)
        constant = np.zeros(self.n_params, dtype=bool)
        if model.fit_intercept:
            constant[-1] = True
        start, losses = np.zeros((1, self.n_params)) + model.origin, []
        at_start = start, *pool._summed(start), pool._curvature(start)
        for free in (constant, ~np.zeros_like(constant)):
            losses.append(pool._least_loss(free, *at_start))
        n = self.client_weights[~self.rejected].sum()
        around, residual = losses[0] / max(n - 1.0, 1.0), losses[1] / max(n - p, 1.0)
        if not around > 0.0 or not np.isfinite([around, residual]).all():
            return 1.0
        share = float(np.clip(residual / around, LEAST_NOISE, 1.0))
        return float(model.prior_unit(share, around))

    def _least_loss(self, free, theta, value, gradient, H):
        """Loss of all rows under one model, the best one in some of its parameters.

        The search begins at `theta`, with the loss, its gradient and its Hessian there.
        """
        for k in range((1 if self.quadratic else NOISE_STEPS) if free.any() else 0):
            H = self._curvature(theta) if k else H
            ahead = self._lower(theta, _newton_step(gradient, H, free), value)
            if ahead is None:
                break
            theta, fallen, gradient = ahead
            settled = value - fallen <= SETTLED_NOISE * abs(fallen)
            value = fallen
            if settled:
                break
        return value

    def _summed(self, theta):
        """Loss of all rows under one model (1, n_params), and its gradient."""
        values, gradients = self.objectives_gradients(theta, float)
        # Losses that explode beyond a step too long: their gradients are not numbers.
        with np.errstate(over="ignore", invalid="ignore"):
            return float(self.client_weights @ values), self.client_weights @ gradients

    def _lower(self, theta, step, value):
        """The model after a step, the loss and the gradient there; None if no step lowers it."""
        # With all of its curvature a step never overshoots; where that has no bound it is halved.
        bounded = self.model.bounded_curvature
        for _ in range(MOST_HALVINGS):
            ahead = theta + step
            fallen, gradient = self._summed(ahead)
            if bounded or fallen <= value:
                return ahead, fallen, gradient
            step = 0.5 * step
        return None

    def _curvature(self, theta):
        """Damped Hessian of the loss of all rows under one model (1, n_params)."""
        together = np.zeros(self.n_clients, dtype=np.intp)
        return self.hessians(theta, together, damping=1.0)[0]

    def to_user(self, params: Array) -> Array:
        """Parameters (..., n_params) in the user's units."""
        return params if self.scaling is None else self.model.to_user(params, self.scaling)

    def user_map(self) -> Any:
        """The sparse matrix M (n_params, n_params) of :meth:`to_user`, ``M x``."""
        if self.scaling is None:
            return sparse.eye_array(self.n_params, format="csr")
        return self.model.user_map(self.scaling)

    def from_user(self, params: Array) -> Array:
        """Parameters (..., n_params) in the units of this pool, of those in the user's."""
        return params if self.scaling is None else self.model.from_user(params, self.scaling)

    def slopes_to_user(self, slopes: Array) -> Array:
        """Gradients (..., n_params) in the user's units."""
        if self.scaling is None:
            return slopes
        return self.model.slopes_to_user(slopes, self.scaling)

    def _draw(self, batch_size):
        """What clients draw by in a call, None if they draw nothing."""
        draws = batch_size is not None or self.model.stochastic
        return self._seeds.next() if draws else None

    def _own(self, w):
        """Parameters of each client, (n_clients, p), in the pool's type."""
        w = np.asarray(w, dtype=self.dtype)
        return np.broadcast_to(w, (self.n_clients, self.n_params))

    # --------------------------------------------------------------------- first order

    def assign(self, labels: Array) -> None:
        """Tell every client its cluster, which the server has chosen.

        Parameters
        ----------
        labels : ndarray of shape (n_clients,)
            Clusters.
        """
        self._ask("assign", {"labels": labels})

    def losses(self, theta: Array, shared: int = 0, whole: bool = False) -> Array:
        """Mean loss of each client under each model, without the local penalty.

        Parameters
        ----------
        theta : ndarray of shape (K, n_params)
            Models.
        shared : int, default=0
            How many parameters all models have in common and are sent once.
        whole : bool, default=False
            Whether all are needed: those who are silent are asked again, and have losses of zero
            if they stay silent, else NaN.

        Returns
        -------
        losses : ndarray of shape (n_clients, K)
        """
        theta = np.ascontiguousarray(theta, dtype=self.dtype)
        return self._ask("losses", {"theta": theta}, shared, whole=True if whole else None)[0]

    def own_losses(self, w: Array) -> Array:
        """Mean loss of each client under its own model, without the local penalty.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_params)
            One model per client.

        Returns
        -------
        losses : ndarray of shape (n_clients,)
            In double precision, infinity where it is no number; zero of clients without rows or
            answer, all of whom were asked again.
        """
        losses = np.asarray(self.objectives(w), dtype=float) - self.penalties(w)
        counted = self.client_weights > 0
        if self.answered is not None:
            counted &= self.answered
        return np.where(counted, np.where(np.isnan(losses), np.inf, losses), 0.0)

    def best_response(
        self, theta: Array, fixed: Array | None = None, shared: int = 0
    ) -> tuple[Array, Array, Array]:
        """Losses, best model and gradient at the best model, in one pass over the rows.

        Parameters
        ----------
        theta : ndarray of shape (K, n_params)
            Models.
        fixed : ndarray of shape (n_clients,), default=None
            Clients with a non-negative entry are sent that model only and keep it; their
            losses under the other models come back as infinity.
        shared : int, default=0
            How many parameters all models have in common and are sent once.

        Returns
        -------
        losses : ndarray of shape (n_clients, K)
            Without the local penalty.
        choice : ndarray of shape (n_clients,)
            Model of least loss.
        gradients : ndarray of shape (n_clients, n_params)
            Of each client's objective, with the local penalty, at its choice.
        """
        theta = np.ascontiguousarray(theta, dtype=self.dtype)
        return self._ask("best_response", {"theta": theta, "fixed": fixed}, shared)

    def objectives(
        self, w: Array, kept: bool = False, judged: bool = False, searching: bool = True
    ) -> Array:
        """Values ``f_i(w_i)`` with the local penalty: (n_clients, p) -> (n_clients,).

        `kept` and `judged` say that the clients have these models, as in :meth:`local_update`;
        `searching` is as of :meth:`objectives_gradients`.
        """
        w = self._own(w)
        told, start = ("w",) if judged else (), w if kept else None
        return self._ask("objectives", {"w": w}, kept=told, start=start, searching=searching)[0]

    def penalties(self, w: Array) -> Array:
        """Local penalty of models (m, p), known to the server: no message."""
        w = np.asarray(w)
        return 0.5 * (w * w) @ self.model.decay

    def gradients(self, w: Array) -> Array:
        """Gradients of ``f_i`` at ``w_i``: (n_clients, p) -> (n_clients, p)."""
        return self.objectives_gradients(w)[1]

    def objectives_gradients(
        self,
        w: Array,
        dtype: DTypeLike | None = None,
        kept: bool = False,
        judged: bool = False,
        searching: bool = True,
    ) -> tuple[Array, Array]:
        """Values and gradients of ``f_i`` at ``w_i`` in one pass.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_params)
            One model per client.
        dtype : dtype, default=None
            Type to compute in; second-order methods ask for float64.
        kept, judged : bool, default=False
            Whether the clients have these models, as in :meth:`local_update`.
        searching : bool, default=True
            Whether the models may be too far away for the arithmetic of some clients, as they may
            in a search along a line: values that are not finite are then taken for what they are,
            and a client is rejected for the first one, or for many in a row.  In rounds a client
            is rejected at once.

        Returns
        -------
        values : ndarray of shape (n_clients,)
        gradients : ndarray of shape (n_clients, n_params)
        """
        dtype = self.dtype if dtype is None else np.dtype(dtype)
        w = np.broadcast_to(np.asarray(w, dtype=dtype), (self.n_clients, self.n_params))
        arguments = {"w": w, "dtype": dtype}
        told = ("w",) if judged else ()
        start = w if kept else None
        return self._ask(
            "objectives_gradients", arguments, kept=told, start=start, searching=searching
        )

    def local_update(
        self,
        w: Array,
        steps: int | Array,
        step_size: float | Array,
        optimizer: Literal["sgd", "momentum", "adam"] = "sgd",
        batch_size: int | None = None,
        center: Array | None = None,
        rho: float | Array = 0.0,
        monotone: bool = False,
        kept: bool = False,
        later: bool = False,
        whole: bool = False,
        judged: bool = False,
    ) -> Array:
        """Let every client train its model for some steps on its own rows.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_params)
            Starts.
        steps : int or ndarray of shape (n_clients,)
            Optimiser updates; clients may differ.
        step_size : float or ndarray of shape (n_clients,)
            Step of each client.
        optimizer : {"sgd", "momentum", "adam"}, default="sgd"
            The optimiser, its state fresh in every call.
        batch_size : int or None, default=None
            Rows of a batch; None takes all rows, which makes "sgd" gradient descent.
        center : ndarray of shape (n_clients, n_params), default=None
            Centre of a proximal pull.
        rho : float or ndarray of shape (n_clients,), default=0.0
            Its strength: ``rho / 2 ||w - center||^2`` is added to the objective.
        monotone : bool, default=False
            Undo a step that raised a client's objective and halve the client's step from
            then on: the safeguard of automatic steps.  Only of "sgd" on all rows: other steps
            raise the objective by nature.
        kept : bool, default=False
            Whether clients go on from the models that they have answered with last, and keep
            what they train: they are sent, and it is counted, only starts that are others.
        later : bool, default=False
            Whether clients keep the models, and send them when training is over
            (:meth:`collect`); what is returned is what they will send.
        whole : bool, default=False
            Whether those who are silent are asked again.
        judged : bool, default=False
            Whether the starts are of models that clients were sent in the call before, to judge.

        Returns
        -------
        w : ndarray of shape (n_clients, n_params)
            Trained models. A client without rows has nothing to train on: it answers with the
            centre where it is pulled, else with its start.
        """
        if monotone and (optimizer != "sgd" or batch_size is not None):
            raise ValueError(
                "monotone=True is a safeguard of optimizer='sgd' on all rows, got "
                f"optimizer={optimizer!r} and batch_size={batch_size!r}."
            )
        n = self.n_clients
        with np.errstate(over="ignore"):  # a step too long for the type diverges, as it should
            rates = np.broadcast_to(np.asarray(step_size, dtype=self.dtype), (n,))
            rho = np.broadcast_to(np.asarray(rho, dtype=self.dtype), (n,))
        w = self._own(w)
        arguments = {
            "w": w,
            "center": None if center is None else self._own(center),
            "steps": np.broadcast_to(np.asarray(steps), (n,)),
            "rates": rates,
            "rho": rho,
            "optimizer": optimizer,
            "batch_size": batch_size,
            "draw": self._draw(batch_size),
            "monotone": monotone,
            "keep": kept or later,
        }
        told, again = ("w",) if judged else (), True if whole else None
        start = w if kept else None
        return self._ask(
            "local_update", arguments, 0, told, later, again, start, keep=arguments["keep"]
        )[0]

    def collect(self) -> None:
        """Book the models that clients have kept, as they send them; places have sent theirs."""
        self.ledger.book(up=self.n_clients * self.n_params, clients=self.n_clients)

    # -------------------------------------------------------------------- second order

    def hessians(
        self,
        theta: Array,
        labels: Array,
        weights: Array | None = None,
        damping: float | Array = 0.0,
    ) -> Array:
        """Hessians of the clusters' objectives, summed by cluster on the client side.

        Parameters
        ----------
        theta : ndarray of shape (K, n_params)
            Model of each cluster.
        labels : ndarray of shape (n_clients,)
            Cluster of each client.
        weights : ndarray of shape (n_clients,), default=None
            Weights ``u_i`` of the clients; ``n_i`` by default.
        damping : float or ndarray of shape (K,), default=0.0
            Between 0 and 1: how far to move to a curvature with which Newton steps never
            overshoot, where the second derivative vanishes (Huber).

        Returns
        -------
        H : ndarray of shape (K, n_params, n_params)
            ``sum_{i in C_k} u_i`` times the Hessian of ``f_i`` at ``theta_k``.

        Raises
        ------
        RowsShownError
            If a sum is that of one client with fewer rows than parameters, see
            :meth:`shows_rows`.  A client whose weight is zero is in no sum.
        """
        theta = np.asarray(theta, dtype=float)
        weights = self.client_weights if weights is None else weights
        arguments = {
            "theta": theta,
            "labels": labels,
            "weights": weights,
            "damping": np.broadcast_to(damping, (len(theta),)),
            "members": self._members(labels, len(theta), weights != 0.0),
        }
        return self._ask("hessians", arguments)[0]

    def _members(self, labels, n_clusters, counted=True):
        """Clients of each cluster with rows that weigh anything, (K,)."""
        return np.bincount(labels, counted & (self.client_sizes > 0), n_clusters).astype(np.intp)

    def shows_rows(self, labels: Array, n_clusters: int, counted: Array | bool = True) -> Array:
        """Clusters whose Hessians would show the rows of a client: they are of one with few.

        The Hessian of fewer rows than parameters is spanned by them, but for the penalty.  Such a
        client minimises its own objective (:meth:`solve`, :meth:`prox`), or solves with its
        Hessian (:meth:`hessian_solves`).

        Parameters
        ----------
        labels : ndarray of shape (n_clients,)
            Cluster of each client.
        n_clusters : int
            Number of clusters, K.
        counted : ndarray of shape (n_clients,) of bool, default=True
            Whose Hessians are summed; all by default.

        Returns
        -------
        shown : ndarray of shape (K,) of bool
        """
        few = np.bincount(labels, counted * self.client_sizes, n_clusters) < self.n_params
        alone = self._members(labels, n_clusters, counted) == 1
        return self.model.hessian_shows_rows & few & alone

    def hessian_products(
        self,
        theta: Array,
        u: Array,
        labels: Array,
        weights: Array | None = None,
        damping: float | Array = 0.0,
    ) -> Array:
        """Products of the clusters' Hessians with vectors, for models of many parameters.

        Parameters
        ----------
        theta, u : ndarray of shape (K, n_params)
            Model of each cluster, and the vector to multiply.
        labels : ndarray of shape (n_clients,)
            Cluster of each client.
        weights : ndarray of shape (n_clients,), default=None
            Weights ``u_i`` of the clients; ``n_i`` by default.
        damping : float or ndarray of shape (K,), default=0.0
            As for :meth:`hessians`.

        Returns
        -------
        products : ndarray of shape (K, n_params)
            ``sum_{i in C_k} u_i`` times the Hessian of ``f_i`` at ``theta_k`` times ``u_k``.
        """
        theta, u = np.asarray(theta, dtype=float), np.asarray(u, dtype=float)
        weights = self.client_weights if weights is None else weights
        damping = np.broadcast_to(damping, (len(theta),))
        arguments = {"theta": theta, "u": u, "labels": labels, "damping": damping}
        out = self._ask("hessian_products", arguments)[0]
        return sum_by_cluster(out, labels, len(theta), weights)

    def hessian_solves(
        self,
        theta: Array,
        u: Array,
        labels: Array,
        shift: float | Array,
        damping: float | Array = 0.0,
    ) -> Array:
        """Solutions ``x_i`` of each client's ``(H_i + shift I) x_i = u``, H at a model.

        Parameters
        ----------
        theta, u : ndarray of shape (K, n_params)
            Models, and right-hand sides.
        labels : ndarray of shape (n_clients,)
            Which of them is each client's.
        shift : float or ndarray of shape (K,)
            Positive.
        damping : float or ndarray of shape (K,), default=0.0
            As of :meth:`hessians`.

        Returns
        -------
        solutions : ndarray of shape (n_clients, n_params)
        """
        theta = np.asarray(theta, dtype=float)
        arguments = {
            "theta": theta,
            "u": np.asarray(u, dtype=float),
            "labels": labels,
            "shift": np.broadcast_to(np.asarray(shift, dtype=float), (len(theta),)),
            "damping": np.broadcast_to(damping, (len(theta),)),
        }
        return self._ask("hessian_solves", arguments)[0]

    def solve(self) -> tuple[Array, Array]:
        """Each client's own minimiser.

        Returns
        -------
        w : ndarray of shape (n_clients, n_params)
            Minimisers; where none exists (one class and a free intercept) a finite point
            whose objective is at its infimum to within rounding. Of clients without rows, which
            have no wish, zero.
        converged : ndarray of shape (n_clients,) of bool
        """
        return self._ask("solve", {})

    def prox(
        self,
        v: Array,
        rho: float | Array,
        x0: Array | None = None,
        max_iter: int = 100,
        kept: bool = False,
    ) -> Array:
        """Proximal points ``argmin f_i(x) + rho_i / 2 ||x - v_i||^2``.

        Parameters
        ----------
        v : ndarray of shape (n_clients, n_params)
            Centres.
        rho : float or ndarray of shape (n_clients,)
            Positive strengths.
        x0 : ndarray of shape (n_clients, n_params), default=None
            Starts; None are the centres. What a client has answered last, to this or to another
            call, it is not sent again. The answers that count for silent clients.
        max_iter : int, default=100
            Most Newton steps where there is no closed form.  A solver that asks again from the
            last answer needs no more than one or two.
        kept : bool, default=False
            Whether the clients know the centres themselves.

        Returns
        -------
        x : ndarray of shape (n_clients, n_params)

        Raises
        ------
        ValueError
            If the model has no second derivatives.  What its clients can do is train under the
            pull: :meth:`local_update` with `center` and `rho`, as long as the caller says.
        """
        arguments = {
            "v": np.broadcast_to(np.asarray(v, dtype=float), (self.n_clients, self.n_params)),
            "rho": np.broadcast_to(np.asarray(rho, dtype=float), (self.n_clients,)),
            "max_iter": max_iter,
        }
        return self._ask("prox", arguments, kept=("v",) if kept else (), start=x0)[0]

    def conjugate(self, s: Array, x0: Array | None = None, allowed: float = np.inf) -> Array:
        """Upper bounds of the conjugates ``f_i^*(s_i)``.

        Parameters
        ----------
        s : ndarray of shape (n_clients, n_params)
            Slopes.
        x0 : ndarray of shape (n_clients, n_params), default=None
            Starts of the search for the maximisers; as of :meth:`prox`, a client is not sent
            what it has answered last.
        allowed : float
            Difference of ``f_i(x) - <s_i, x>`` between a start and the maximiser beyond which the
            bound is good for nothing, and need not be near.

        Returns
        -------
        bounds : ndarray of shape (n_clients,)
            At least ``f_i^*(s_i)`` whatever the accuracy reached; infinite outside of
            the domain, which is zero alone for clients without rows.
        """
        s = np.broadcast_to(np.asarray(s, dtype=float), (self.n_clients, self.n_params))
        largest = float(np.abs(s).max(initial=0.0))
        arguments = {"s": s, "largest": largest, "allowed": float(allowed)}
        bounds = self._ask("conjugate", arguments, start=x0)[0]
        bounds = np.where(np.isnan(bounds), np.inf, bounds)  # what is no number bounds nothing
        if self.without_rows.any():
            # What rounding leaves of their slopes goes as far as the server's models of them.
            idle = np.flatnonzero(self.without_rows)
            way = 0.0 if x0 is None else np.abs(x0[idle])
            bounds[idle] += 2.0 * (np.abs(s[idle]) * way).sum(axis=1)
        return bounds

    def rounding(self, w: Array) -> Array:
        """Bounds of the rounding of the clients' objectives, in double precision.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_params)
            Models.

        Returns
        -------
        rounding : ndarray of shape (n_clients,)
            How far ``objectives_gradients(w, dtype=np.float64)[0]`` may be from exact.
        """
        w = np.broadcast_to(np.asarray(w, dtype=float), (self.n_clients, self.n_params))
        return self._ask("rounding", {"w": w})[0]

    def enclosure(
        self, theta: Array, labels: Array, box: Array, dense: bool
    ) -> tuple[Array, Array, Array]:
        """What is certain of the objectives of clusters in boxes about their models.

        Parameters
        ----------
        theta, box : ndarray of shape (K, n_params)
            Model of each cluster, and half the sides of its box.
        labels : ndarray of shape (n_clients,)
            Cluster of each client.
        dense : bool
            Whether clients send matrices, or numbers.  Where a matrix would show a client's rows
            it is the number, times the identity.

        Returns
        -------
        rounding : ndarray of shape (n_clients, n_params)
            Of the clients' gradients at the models, in double precision.
        drift : ndarray of shape (n_clients,)
            How far they move at most in the box, in the Euclidean norm.
        floor : ndarray of shape (K, n_params, n_params) or (K,)
            Matrices, or least eigenvalues, that the Hessians of the clusters' sums are not below
            in the box.
        """
        members = self._members(labels, len(theta))
        arguments = {
            **{"theta": theta, "box": box, "labels": labels, "dense": dense},
            "members": members,
        }
        rounding, drift, total = self._ask("enclosure", arguments)
        return rounding, drift, total if dense else least_curvature(*total.T)

    def fingerprints(self, key: int, targets: bool = True) -> Array:
        """Digests of the clients' rows that do not depend on their order.

        Two clients have the same digest only if they have the same rows, targets and weights, but
        for one chance in ``2 ** 106``: their objectives are then one function.

        Parameters
        ----------
        key : int
            Key of the digests, so that those of different fits cannot be compared.
        targets : bool, default=True
            If False, the digests leave out the targets: equal ones then mean equal Hessians of
            least squares.

        Returns
        -------
        digests : ndarray of shape (n_clients, 2)
        """
        return self._ask("fingerprints", {"key": int(key), "targets": bool(targets)})[0]

    def mixture(
        self, theta: Array, shares: Array, dispersion: float, share_steps: int = 1
    ) -> tuple[Array, Array, Array]:
        """Responsibilities of models for the clients' rows, under shares of their own.

        The density of a row of client i is proportional to
        ``sum_k shares_ik exp(-loss_k / dispersion)``.

        Parameters
        ----------
        theta : ndarray of shape (K, n_params)
            Models.
        shares : ndarray of shape (n_clients, K)
            Shares of the models, which each client keeps for itself.
        dispersion : float
            Of the losses.
        share_steps : int, default=1
            How often the shares are estimated anew, under models that stay.

        Returns
        -------
        shares : ndarray of shape (n_clients, K)
            Means of the rows' responsibilities.
        values : ndarray of shape (n_clients,)
            Minus the mean log-density of the rows; infinite where the loss of a row overflows
            under all models, which are then too far away (`searching` as in `objectives`).
        scatter : ndarray of shape (n_clients,)
            Mean loss of the rows, weighted by the responsibilities.
        """
        arguments = self._mixed(theta, shares, dispersion, share_steps)
        return self._ask("mixture", arguments, searching=True)

    def mixture_sums(
        self, theta: Array, shares: Array, dispersion: float, share_steps: int = 1
    ) -> tuple[Array, Array]:
        """The same, and sums over the clients of derivatives weighted by the responsibilities.

        Returns
        -------
        shares, values, scatter
            As from :meth:`mixture`.
        gradients : ndarray of shape (K, n_params)
            Of the rows' losses, without the local penalty.
        hessians : ndarray of shape (K, n_params, n_params)
            Likewise, with a curvature with which Newton steps do not overshoot.
        """
        arguments = self._mixed(theta, shares, dispersion, share_steps)
        return self._ask("mixture_sums", arguments, searching=True)

    def mixture_update(
        self,
        theta: Array,
        shares: Array,
        dispersion: float,
        steps: int,
        rate: float | Array,
        optimizer: Optimizer = "sgd",
        batch_size: int | None = None,
        share_steps: int = 1,
    ) -> tuple[Array, Array]:
        """Let every client train all models for some steps, its rows weighted by responsibility.

        Returns
        -------
        shares, values, scatter
            As from :meth:`mixture`.
        moves : ndarray of shape (K, n_params)
            Sums of what the models moved, weighted by the responsibilities' sums.
        masses : ndarray of shape (K,)
            Sums of the responsibilities.
        """
        arguments = self._mixed(theta, shares, dispersion, share_steps) | {
            "steps": steps,
            "rate": rate,
            "optimizer": optimizer,
            "batch_size": batch_size,
            "draw": self._draw(batch_size),
        }
        return self._ask("mixture_update", arguments)

    def _mixed(self, theta, shares, dispersion, share_steps):
        return {
            "theta": np.ascontiguousarray(theta, dtype=self.dtype),
            "shares": np.asarray(shares, dtype=float),
            "dispersion": float(dispersion),
            "share_steps": int(share_steps),
        }

    def local_centres(self, n_centres: int) -> tuple[Array, Array]:
        """Centres of k-means on each client's own rows, by Awasthi and Sheffet's method.

        Parameters
        ----------
        n_centres : int
            Most centres of a client, which has no more than different rows.

        Returns
        -------
        centres : ndarray of shape (n_clients, n_centres, n_features)
        counts : ndarray of shape (n_clients, n_centres)
            Rows of each centre; zero where there is none.
        """
        arguments = {"n_centres": int(n_centres), "draw": self._seeds.next()}
        return self._ask("local_centres", arguments)

    def subspaces(self, n_vectors: int, n_columns: int, by_class: bool) -> Array:
        """First directions of the clients' rows: left singular vectors of (features x rows).

        Rows count with the root of their weight, and are not centred.

        Parameters
        ----------
        n_vectors : int
            Vectors of each matrix.
        n_columns : int
            Vectors of each client, zero where it has fewer.
        by_class : bool
            Whether each of a client's classes is a matrix, of classifiers, or all of its rows.

        Returns
        -------
        bases : ndarray of shape (n_clients, n_features, n_columns)
            Orthonormal within a class; zero of clients without rows or answer.
        """
        arguments = {"n_vectors": n_vectors, "n_columns": n_columns, "by_class": by_class}
        return self._ask("subspaces", arguments)[0]

    def spectrum(self) -> tuple[Array, Array, Array]:
        """Curvature of the clients' objectives, for automatic steps.

        Returns
        -------
        lipschitz : ndarray of shape (n_clients,)
            Upper bounds ``L_i`` of the curvature.
        strong : ndarray of shape (n_clients,)
            Lower bounds ``mu_i``.
        mean : ndarray of shape (n_clients,)
            Geometric means of the curvature over the directions.

        Notes
        -----
        Clients are asked once; later calls, and pools of some of them, know the answers.
        """
        if self._spectrum is None:
            self._spectrum = np.ascontiguousarray(self._ask("spectrum", {})[0].T)
        return tuple(self._spectrum.copy())

    # ----------------------------------------------------------------- partial pooling

    def posterior_sums(
        self,
        theta: Array,
        root: Array,
        weights: Array,
        dispersion: float,
        df: float = np.inf,
        dense: bool = True,
    ) -> dict[str, Array]:
        """Sums of the clients' posteriors under normal priors that share a covariance ``L L'``.

        Parameters
        ----------
        theta : ndarray of shape (K, n_params)
            Means of the priors.
        root : ndarray of shape (n_params,) or (n_params, n_params)
            L; one axis is its diagonal.
        weights : ndarray of shape (K,)
            Probabilities of the priors.
        dispersion : float
            phi: the density of a client's rows is ``exp(-n_i f_i / phi)`` but for a constant.
        df : float, default=numpy.inf
            Degrees of freedom, more than 2, of precisions of the clients' own, by which phi and
            ``L L'`` are divided, with a gamma distribution of mean 1; of squared error.
            Infinite: all are 1.
        dense : bool, default=True
            Whether "curvature" and "coupling" are matrices; else clients send the diagonal of the
            one and the sums of the rows of the other.  False needs a diagonal root.

        Returns
        -------
        sums : dict of str to ndarray
            Over the clients that answer and have rows, with responsibilities ``r_ik``, modes
            ``m_ik``, posterior covariances ``V_ik`` and expected precisions ``t_ik``: "counts"
            (K,) of r; "precisions" (K,) of ``r t``; "deviations" (K, p) of ``r t (m - theta)``;
            "slopes" (K, p), the gradient of the log evidence in theta; "curvature" (K, p, p),
            minus its second derivative (in expectation, given t); in the coordinates u of
            ``x = theta + L u``, in sums over k too, "squares" (1, p, p), or with a diagonal root
            their diagonal (1, p), of ``r E(t u u')``, and "coupling" (p, p) and "pull" (p,), the
            quadratic and the linear term in alpha of the expected loss, times t, at
            ``x = theta + L diag(alpha) u``; "scatter", twice the expected sum of the rows'
            losses, times t; "tails" of ``r E(log t - t)``, 0 where all t are 1; "evidence", the
            marginal log-likelihood; "weight", the total weight.
        """
        arguments = {**_prior(theta, root, weights, dispersion, df), "dense": bool(dense)}
        names = CALLS["posterior_sums"].up
        return dict(zip(names, self._ask("posterior_sums", arguments), strict=True))

    def posterior_products(
        self,
        theta: Array,
        root: Array,
        weights: Array,
        dispersion: float,
        df: float,
        vectors: Array,
    ) -> Array:
        """Products of "curvature" of :meth:`posterior_sums` with vectors, for wide models.

        Parameters
        ----------
        theta, root, weights, dispersion, df
            As of :meth:`posterior_sums`; the root is a diagonal.
        vectors : ndarray of shape (K, m, n_params)
            m vectors for each component.

        Returns
        -------
        products : ndarray of shape (K, m, n_params)
        """
        arguments = _prior(theta, root, weights, dispersion, df)
        arguments["vectors"] = np.ascontiguousarray(vectors, dtype=float)
        return self._ask("posterior_products", arguments)[0]

    def left_out_sums(
        self,
        theta: Array,
        root: Array,
        dispersion: Array,
        shares: Array,
        errors: Array | None = None,
    ) -> tuple[float, Array, Array]:
        """Losses of the rows, each predicted without it by a mean of several posteriors.

        Clients predict each of their rows by their posterior given their other rows, under each
        of some priors, and mix the predictions.

        Parameters
        ----------
        theta : ndarray of shape (K, n_params)
            Means of the priors.
        root : ndarray of shape (K, n_params) or (K, n_params, n_params)
            Roots of their covariances ``L L'``, or diagonals of these.
        dispersion : ndarray of shape (K,)
            As of :meth:`posterior_sums`, under each prior.
        shares : ndarray of shape (K,)
            Of the priors in the mixed predictions, which sum to one.
        errors : ndarray of shape (K, n_params, n_params), default=None
            Covariances of the errors of theta, on which each row has had its part; None is none.

        Returns
        -------
        value : float
            Sum of the losses, with weights, over the clients that answer.
        slopes : ndarray of shape (K,)
            Derivatives of the value along moves of the shares whose sum is zero.
        curvature : ndarray of shape (K, K)
            Second derivatives.
        """
        arguments = {
            "theta": np.ascontiguousarray(theta, dtype=float),
            "root": np.ascontiguousarray(root, dtype=float),
            "dispersion": np.asarray(dispersion, dtype=float),
            "errors": errors,
            "shares": np.asarray(shares, dtype=float),
        }
        return self._ask("left_out_sums", arguments)

    def posteriors(
        self,
        theta: Array,
        root: Array,
        weights: Array,
        dispersion: float,
        df: float = np.inf,
        errors: Array | None = None,
        dense: bool = False,
    ) -> tuple[Array, Array, Array, Array]:
        """Each client's posterior.

        Parameters
        ----------
        theta, root, weights, dispersion, df
            As of :meth:`posterior_sums`.
        errors : ndarray of shape (K, n_params, n_params), default=None
            Covariances of the errors of theta, which are integrated out; None is none.
        dense : bool, default=False
            Whether clients send covariances and not variances alone.

        Returns
        -------
        responsibilities : ndarray of shape (n_clients, K)
        means : ndarray of shape (n_clients, n_params)
        covariances : ndarray of shape (n_clients, n_params) or (n_clients, n_params, n_params)
            Variances, or with `dense` covariances, between components too.
        noise : ndarray of shape (n_clients,)
            phi of each client, divided by its precision; an expectation.
        """
        prior = _prior(theta, root, weights, dispersion, df)
        arguments = {**prior, "errors": errors, "dense": dense}
        return self._ask("posteriors", arguments)

    def score_sums(
        self, theta: Array, labels: Array, counted: Array | None = None, within: bool = False
    ) -> tuple[Array, Array, Array]:
        """Losses of models that clients have in common, and their derivatives, by cluster.

        Parameters
        ----------
        theta : ndarray of shape (K, n_params)
            Models.
        labels : ndarray of shape (n_clients,)
            Which of them is each client's.
        counted : ndarray of shape (n_clients,) of bool, default=None
            Clients that are in the sums; None is all.
        within : bool, default=False
            If True, each client replaces the intercept by its own of least loss.

        Returns
        -------
        values : ndarray of shape (K,)
            Sums of the rows' losses, without the local penalty.
        gradients : ndarray of shape (K, n_params)
        curvature : ndarray of shape (K, n_params, n_params)
            With `within` derivatives of what is left after each client's intercept has followed,
            zero in the intercepts.
        """
        counted = np.ones(self.n_clients, dtype=bool) if counted is None else counted
        arguments = {"theta": np.ascontiguousarray(theta, dtype=float), "labels": labels}
        return self._ask("score_sums", {**arguments, "counted": counted, "within": within})

    def score_draws(
        self,
        theta: Array,
        labels: Array,
        inverse: Array,
        moves: Array | None = None,
        counted: Array | None = None,
        within: bool = False,
        normal: bool = False,
        n_draws: int = 255,
        draw: int = 0,
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Sums over clients of their scores, and of what the scores are under drawn signs.

        Parameters
        ----------
        theta, labels, counted, within
            As of :meth:`score_sums`.
        inverse : ndarray of shape (K, n_params, n_params)
            Inverses of the curvatures.
        moves : ndarray of shape (K, n_params, n_draws + 1), default=None
            By how much the models move under the observed and the drawn scores.  None asks for
            the sums that say so, and leaves "squares" and "meat" at zero.
        normal : bool, default=False
            If True, clients draw normal noise and not signs, of squared error.
        n_draws : int, default=255
            Number of draws.
        draw : int, default=0
            Seed of the signs.

        Returns
        -------
        sums : ndarray of shape (K, n_params, n_draws + 1)
            Scores by cluster: the observed ones, then those of drawn signs.
        squares : ndarray of shape (n_params, n_draws + 1)
            Sums over all clients of the squares of their scores at the moved models.
        meat, row_meat : ndarray of shape (K, n_params, n_params)
            Sums of outer products of the observed scores of clients and of rows.
        scatter : ndarray of shape (n_draws + 1,)
            Sums of squares of the residuals, and with `normal` of what is drawn in their place.
        """
        counted = np.ones(self.n_clients, dtype=bool) if counted is None else counted
        arguments = {
            **{"theta": np.ascontiguousarray(theta, dtype=float), "labels": labels},
            **{"counted": counted, "within": within, "inverse": inverse, "moves": moves},
            **{"normal": normal, "draw": int(draw), "n_draws": int(n_draws)},
        }
        return self._ask("score_draws", arguments)

    # -------------------------------------------------------------------- other pools

    def subset(self, clients: ArrayLike) -> ClientPool:
        """Pool of some of the clients, in the given order; shares ledger and random state.

        Parameters
        ----------
        clients : array-like
            Positions, each at most once, or a mask.

        Returns
        -------
        pool : ClientPool
        """
        clients = np.arange(self.n_clients)[clients]  # type: ignore[index]
        if len(np.unique(clients)) < len(clients):
            raise ValueError(f"Each client can be in a subset once, got {clients!r}.")
        pool = self._derived(self._site.subset(clients))
        pool._places = pool._at = self._places[clients]
        pool._memory = self._memory
        if self._spectrum is not None:
            pool._spectrum = self._spectrum[:, clients]
        return pool

    def hold_out(
        self, fraction: float, random_state: RandomState = None
    ) -> tuple[ClientPool, ClientPool]:
        """Split each client's rows in two.

        Parameters
        ----------
        fraction : float
            Share of each client's rows that is held out, at least one row; a client of
            one row is in both pools.
        random_state : int, RandomState instance or None, default=None
            Source of the split.

        Returns
        -------
        train, held : ClientPool
            They share this pool's ledger and random state.
        """
        seed = check_random_state(random_state).randint(np.iinfo(np.int32).max)
        train, held = self._site.held_out(fraction, seed)
        return self._derived(train, True), self._derived(held, True)

    def deal_folds(
        self, n_folds: int, random_state: RandomState = None
    ) -> list[tuple[ClientPool, ClientPool]]:
        """Deal each client's rows to folds, to judge on each what was fitted to the others.

        Each class of a classifier is dealt evenly, as by
        :class:`~skcfl.model_selection.ClientKFold`: otherwise a class that is frequent in a
        client's held-out rows is rare in those its model was fitted to.

        Parameters
        ----------
        n_folds : int
            Number of folds, at least 2.  A client of fewer rows has none in some of them.
        random_state : int, RandomState instance or None, default=None
            Source of the deal.

        Returns
        -------
        folds : list of tuple of ClientPool
            ``(train, held)`` of each fold; every row is held out once, but for the only row of a
            client, which is in all the training pools.  They share this pool's ledger and random
            state.
        """
        seed = check_random_state(random_state).randint(np.iinfo(np.int32).max)
        folds = self._site.folds(n_folds, seed)
        return [(self._derived(train, True), self._derived(held, True)) for train, held in folds]

    def init_params(self, n_models: int, random_state: Any = None) -> Array:
        """Random starts of the local model, (n_models, n_params)."""
        return self.model.init_params(n_models, random_state)

    def start(self) -> Array:
        """The common start of local training, (n_params,); a network's is drawn."""
        return self.model.start(self.random_state)

    def centre(self, theta: Array) -> Array:
        """Models with the same predictions, their free directions at zero."""
        return self.model.centre(theta)

    def pin(self, H: Array) -> Array:
        """Add curvature to the free directions of Hessians (m, p, p), in place."""
        return self.model.pin(H)

    @property
    def typical_size(self) -> float:
        """Median number of rows of the clients that have any."""
        return float(np.median(self.client_sizes[~self.without_rows]))

    @property
    def n_present(self) -> int:
        """Number of clients whose rows weigh anything."""
        return int((self.client_weights > 0).sum())

    @property
    def travels(self) -> bool:
        """Whether the clients are elsewhere, and several pools better ask at the same time."""
        return self._site.travels

    def can_answer(self, call: str, **arguments: Any) -> bool:
        """Whether clients of this local model answer a call, with these arguments."""
        return self.model.second_order or not CALLS[call].needs_minima(arguments)

    @property
    def quadratic(self) -> bool:
        """Whether clients' objectives are quadratic functions."""
        return self.model.quadratic

    @property
    def model_name(self) -> str:
        """Name of the local model's class, for messages."""
        return type(self.model).__name__

    @property
    def layer_slices(self) -> dict[str, slice]:
        """Slices of the parameter vector by layer name."""
        return self.model.layer_slices()


def _newton_step(g, H, free):
    """Newton step in some of the parameters, (1, n_params)."""
    step = np.zeros((1, len(g)))
    step[0, free] = -np.linalg.lstsq(H[np.ix_(free, free)], g[free], rcond=None)[0]
    return step


def _are_finite(arrays):
    """Whether all numbers of some arrays are finite, for sure: their squares may overflow."""
    return isfinite(sum([float(np.vdot(array, array)) for array in arrays]))


def _not_finite(name, answer, fixed, asked):
    """Which clients' entries of an answer are not finite, (n_clients,) of bool."""
    wrong = ~np.isfinite(answer)
    if name != "losses":
        return wrong.reshape(len(wrong), -1).any(axis=1)
    if fixed is not None:
        # Losses under models that a client was not sent.
        wrong &= (fixed[:, None] < 0) | (fixed[:, None] == np.arange(answer.shape[1]))
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


def _prior(theta, root, weights, dispersion, df):
    """Arguments of calls about posteriors."""
    return {
        "theta": np.ascontiguousarray(theta, dtype=float),
        "root": np.asarray(root, dtype=float),
        "weights": np.asarray(weights, dtype=float),
        "dispersion": float(dispersion),
        "df": float(df),
    }


def prior_variance(df: float) -> float:
    """Expectation of one over a precision of mean 1 with so many degrees of freedom."""
    return df / (df - 2.0) if np.isfinite(df) else 1.0


def prior_covariance(
    theta: Array,
    root: Array,
    weights: Array,
    errors: Array | None,
    dense: bool,
    df: float = np.inf,
) -> Array:
    """Covariance of a client of which nothing is known, or its diagonal."""
    away, root = theta - weights @ theta, np.sqrt(prior_variance(df)) * root
    if dense:
        covariance = np.diag(root**2) if root.ndim == 1 else root @ root.T
        covariance = covariance + (weights[:, None] * away).T @ away
        return covariance if errors is None else covariance + np.tensordot(weights, errors, 1)
    variance = root**2 if root.ndim == 1 else (root**2).sum(axis=1)
    variance = variance + weights @ away**2
    return variance if errors is None else variance + weights @ np.einsum("kpp->kp", errors)


def least_curvature(free: Array, size: Array, penalty: float) -> Array:
    """Least eigenvalues of sums of curvatures of linear models, (K,).

    With x the penalised parameters, of which rows of a size a and the penalty b know, and t the
    free ones of curvature m: ``(u + t)^2 >= t^2 c / (1 + c) - c u^2`` with ``c = b / (2 a)``
    leaves ``b / 2`` for x and ``m c / (1 + c)`` for t.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        c = np.where(penalty > 0, penalty / (2.0 * size), 0.0)
        both = np.minimum(0.5 * penalty, np.where(np.isinf(c), free, free * c / (1.0 + c)))
    return np.where(np.isinf(free), penalty, np.where(np.isinf(penalty), free, both))
