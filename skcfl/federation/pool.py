"""The federation as the server sees it: calls, and what the server keeps of their answers."""

from __future__ import annotations

import copy
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_random_state

from .._typing import Array, ArrayLike, RandomState
from ..calls.answers import check_answers, questions
from ..calls.call import CALLS, sizes_of
from ..calls.curvatures import Spectrum
from ..calls.first_order import Present
from ..clients.last_answers import Forgotten, LastAnswers
from .ledger import Ledger
from .presence import Presence
from .scaling import UserUnits
from .sites import answer_without

if TYPE_CHECKING:
    from ..calls.call import Call
    from ..models import LocalModel
    from .scaling import Scaling
    from .sites import Site

# Clients that are looked for one by one where a sum over them is not finite.
MOST_CULPRITS = 32
# Times that a client leaves a kind of call unanswered, present each time, before it is left out.
REFUSALS = 10


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


class ClientPool:
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
        self._spectrum = self.answered = None
        # What every client has answered last: it is told to go on from there, not sent it.
        self._memory = LastAnswers(len(self._presence.ids))

    def _derived(self, site, some_rows=False):
        pool = copy.copy(self)
        pool._some_rows |= some_rows
        pool._take(site)
        return pool

    def ask(
        self,
        call: type[Call],
        *args: Any,
        whole: bool | None = None,
        searching: bool | None = None,
        known: bool = False,
        last: bool = False,
        later: bool = False,
        n_shared: int = 0,
        **arguments: Any,
    ) -> Any:
        """One exchange with the clients: answers checked, costs booked.

        Clients whose answers are not finite are out from then on, as if they had not answered; in
        a search along a line, where a model can be too far away, once that has lasted.

        Parameters
        ----------
        call : type
            What is asked, a class of :mod:`skcfl.calls`.
        *args, **arguments : object
            Its arguments; the class has their shapes and defaults.
        whole : bool, default=None
            Whether those who are silent are asked again; None is what the call says.
        searching : bool, default=None
            Whether models may be too far away for the arithmetic of some clients, as they may in a
            search along a line: values that are not finite are then taken for what they are, and
            a client is rejected for the first one, or for many in a row.  In rounds a client is
            rejected at once.  None is what the call says.
        known : bool, default=False
            Whether the clients have the argument `known` of the call already: they were sent it
            in the call before, to judge, or know it themselves.  It is not counted.
        last : bool, default=False
            Whether clients go on from the models that they have answered with last, and keep what
            they train: they are sent, and it is counted, only starts that are others.
        later : bool, default=False
            Whether clients keep the models, and send them when training is over
            (:meth:`collect`); what is returned is what they will send.
        n_shared : int, default=0
            How many parameters all models have in common and are sent once.

        Returns
        -------
        answers : object
            What the call says.
        """
        sent = call.asked(self, *args, **arguments)
        if not self.can_answer(call.name, **sent):
            which = "" if call.minimised is True else f"({call.minimised}=True)"
            # Rather than do something like it.
            raise ValueError(
                f"{call.name}{which} needs a local model with second derivatives and exact "
                f"proximal points, got {type(self.model).__name__}. Such models are trained: "
                "LocalUpdate takes steps, with center= and rho= towards a proximal point."
            )
        searching, start = call.searched if searching is None else searching, None
        if call.start:
            own = None
            if (last or call.always_last) and sent[call.start] is not None:
                start = sent[call.start]
                sent[call.start], own = self._news(call, start)
            sent["own"] = own
        if later or (last and "keep" in sent):
            sent["keep"] = True
        answers, sent = self._listen(call.name, sent, start)
        answered = answers.pop("answered", None)
        sizes = sizes_of(self, sent)
        check_answers(call.name, answers, sent, sizes)
        if not _are_finite(answers.values()):
            answered = self._reject(call.name, sent, answers, answered, start, searching)
        elif call.searched:
            self._presence.strange[self._places] = 0
        self._book(call.name, sent, answers, sizes, known, later, n_shared)
        if whole is None:
            whole = call.whole or (call.always_last and start is None)
        self._presence.record((call.name, self._some_rows), self._at, answered)
        if answered is not None:
            again = call.name, sent, answers, answered, n_shared, start
            if whole:
                self._ask_again(*again)
            self._insist(*again)
        if answered is not None and answered.all():
            answered = None
        self.answered = answered
        self._presence.note(self._places, answered, whole)
        if call.keep and sent.get("keep", True):
            models = answers[call.keep]
            if answered is None:
                self._memory.keep(self._at, models)
            else:
                self._memory.keep(self._places[answered], models[answered])
        if not (call.proof or self._some_rows):
            # A client that fails these only, as under a policy, is there; and a place that is
            # started again comes back.
            self._presence.check(patient=self.travels and call is not Present)
        if answered is not None:
            call.fill(self, answers, np.flatnonzero(~answered), sent, start, whole)
        return call.result(self, answers, sent, start)

    def _book(self, call, arguments, answers, sizes, known=False, later=False, n_shared=0):
        """Count what clients were asked and have answered."""
        down, up = CALLS[call].floats(arguments, sizes, known, later, n_shared)
        shared, own = CALLS[call].bytes(arguments, answers)
        self.ledger.book(down=down, up=up, clients=sizes["n"], shared_bytes=shared, own_bytes=own)

    def _news(self, call, start):
        """Models to send, None where nobody needs one, and which clients have theirs."""
        own = self._memory.same(self._at, start)
        if call.always_last:
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
        while not (CALLS[call].proof or call == Present.name):
            lost = np.flatnonzero(~answered & presence.unheard(kind, self._places))
            if len(lost):
                here = self._site.subset(lost).answer(Present.name, {})
                self._book(Present.name, {}, {}, {"n": len(lost)})
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
        sizes = {**sizes_of(self, own), "n": len(lost)}
        self._book(call, own, more, sizes, n_shared=shared)
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
        if "choice" in answers:
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
        # A place may have been lost meanwhile: its part of the sum is no answer.
        gone = bool(sums) and not self._site.reachable.all()
        if not (bad.any() or gone):
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
        shared, mine = message.bytes(own, answers)
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

    def heard(self, clients: Array) -> Array:
        """Which of some clients, by their positions, have ever answered."""
        return self._presence.heard[self._places[clients]]

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
            self.ask(Present)
        presence = self._presence
        missed = (presence.missed > 0) | presence.gone | presence.without_part()
        complete = not (presence.incomplete or presence.left_out.any())
        return missed[self._places] & ~self.rejected, complete

    def lane(self, seed: RandomState = None, remembers: bool = True) -> ClientPool:
        """The same clients with a ledger of their own, for a task that does not wait for others.

        Parameters
        ----------
        seed : int, RandomState instance or None, default=None
            Where the draws of server and clients begin; None goes on with those of this pool.
        remembers : bool, default=True
            Whether the lane has last answers of its own, as tasks of several calls need.

        Returns
        -------
        pool : ClientPool
        """
        pool = copy.copy(self)
        pool.ledger = Ledger()
        if remembers:
            pool._take(self._site.penalised(None))
            pool._spectrum = self._spectrum
        if seed is not None:
            pool.reseed(seed)
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

    def penalised(self, alpha: float, told: bool = True) -> ClientPool:
        """Pool of the same clients under another local penalty, of which they are told.

        Parameters
        ----------
        alpha : float
            The penalty.
        told : bool, default=True
            Whether that is booked; False where the calls that follow say it themselves.

        Returns
        -------
        pool : ClientPool
            Shares rows, ledger and random state.
        """
        if told and alpha == self.model.alpha_:
            return self
        if told:
            # It goes with the next call.
            self.ledger.book(down=self.n_clients, shared_bytes=(0, 8), calls=0)
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
    def units(self) -> UserUnits:
        """Parameters in the user's units, and back."""
        return UserUnits(self.model, self.scaling)

    def draw(self, batch_size: int | None = None, always: bool = False) -> tuple[int, int] | None:
        """What clients draw by in a call: the seed and the number of the draw.

        Parameters
        ----------
        batch_size : int or None, default=None
            Rows of their batches; None is all of them, with which there is nothing to draw unless
            the model draws.
        always : bool, default=False
            Whether clients draw in any case.

        Returns
        -------
        draw : tuple of int or None
        """
        draws = always or batch_size is not None or self.model.stochastic
        return self._seeds.next() if draws else None

    # ------------------------------------------------------------------- what is known

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
            self._spectrum = np.ascontiguousarray(self.ask(Spectrum).T)
        return tuple(self._spectrum.copy())

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

    def start(self) -> Array:
        """The common start of local training, (n_params,); a network's is drawn."""
        return self.model.start(self.random_state)

    @property
    def typical_size(self) -> float:
        """Median number of rows of the clients that have any."""
        return float(np.median(self.client_sizes[~self.without_rows]))

    @property
    def travels(self) -> bool:
        """Whether the clients are elsewhere, and several pools better ask at the same time."""
        return self._site.travels

    def can_answer(self, call: str, **arguments: Any) -> bool:
        """Whether clients of this local model answer a call, with these arguments."""
        return self.model.second_order or not CALLS[call].needs_minima(arguments)


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
