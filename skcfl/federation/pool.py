"""The federation as the server sees it: calls, and what the server keeps of their answers."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_random_state

from .._checks import caller_level
from .._typing import Array, ArrayLike, RandomState
from ..calls.call import CALLS
from ..calls.curvatures import Spectrum
from ..calls.first_order import Present
from ..clients.last_answers import LastAnswers
from ..exceptions import FederationError
from .ledger import Ledger
from .one_exchange import Exchange
from .presence import Presence
from .scaling import UserUnits
from .turns import check_turn

if TYPE_CHECKING:
    from ..calls.call import Call
    from ..models import LocalModel
    from .scaling import Scaling
    from .sites import Site


#: Why a search ends that holds rows out, and what to do.
NO_ROWS = (
    "no client holds rows out: under a SitePolicy it holds out min_rows of its rows or more, "
    "keeps as many, and holds out no others than before. Give n_clusters, lam or alpha as "
    "numbers, or lower min_rows"
)


#: Least share of the weight with which clients that hold rows out judge without a warning.
LEAST_JUDGED = 0.5


class Seeds:
    """Seeds of what clients draw: drawn once by the server, when first needed, then counted."""

    def __init__(self, random_state):
        self.random_state, self.seed, self.count = random_state, None, 0

    def __next__(self):
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
    row_weights : ndarray of shape (n_clients,)
        `client_weights`, of linearised rows those before the linearisation.
    without_rows : ndarray of shape (n_clients,) of bool
        Which clients own no row, so that nothing is known of their models but who they are.
    places : ndarray of shape (n_clients,)
        Positions of the clients in the whole federation.
    presence : Presence
        Who answers.
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
        self.reseed(random_state)
        self.ledger = Ledger()
        self.places, self._at = np.arange(site.n_clients), slice(None)
        self.presence = Presence(self.places) if presence is None else presence
        self._some_rows = some_rows
        self._take(site)
        #: Ratios of the spreads of clients in other units to the others', by client and feature,
        #: which is -1 for the target.
        self.other_units: dict[tuple[int, int], float] = {}
        measured = model.scaling_ if scaling is None else scaling
        if measured is not None:
            n, d = self.n_clients, len(measured.scale)
            for up in (4 * d + 1, d):
                sums = 8 * up, 8 * d
                self.ledger.book(up=n * up, down=n * d, clients=n, shared_bytes=sums)

    def _take(self, site, row_weights=None):
        """Hold another site, of which nothing is known but who is there."""
        self._site = site
        self.n_clients = site.n_clients
        self.client_weights, self.client_sizes = site.client_weights, site.client_sizes
        self.row_weights = site.client_weights if row_weights is None else row_weights
        self.without_rows = site.without_rows
        self.n_samples = int(self.client_sizes.sum())
        self.n_params = self.model.n_params
        self.dtype = np.dtype(self.model.dtype)
        self._spectrum = self.answered = None
        # Last model that each client returned; it is not resent as a start.
        self._memory = LastAnswers(len(self.presence.ids))

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
        final: bool = False,
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
            (``collect``); what is returned is what they will send.
        final : bool, default=False
            Whether the answers are the clients' fitted models, which nothing replaces: silent
            clients are asked again once they are there.  Without an answer they are missing.
        n_shared : int, default=0
            How many parameters all models have in common and are sent once.

        Returns
        -------
        answers : object
            What the call says.
        """
        check_turn()
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
        exchange = Exchange(self, self._site, call, sent, start, n_shared)
        exchange.ask(known, later, searching)
        if whole is None:
            whole = call.whole or (call.always_last and start is None)
        exchange.complete(whole, final)
        answers, answered, sent = exchange.answers, exchange.answered, exchange.sent
        self.answered = answered
        self.presence.note(self.places, answered, whole)
        if answered is not None and not (final or call.proof or call is Present):
            # Not clients that are there and do not answer, as under a policy.
            self.presence.skipped[self.places[exchange.away & ~answered]] = True
        if call.keep and sent.get("keep", True):
            models = answers[call.keep]
            if answered is None:
                self._memory.keep(self._at, models)
            else:
                self._memory.keep(self.places[answered], models[answered])
        patient = self.travels and call is not Present
        if not (call.proof or self._some_rows):
            # A client that fails these only, as under a policy, is there; and a place that is
            # started again comes back.
            self.presence.check(patient)
        elif self.presence.is_away(patient) and call is not Present:
            # Rather than search in every fold without it.
            self.ask(Present)
            self.presence.check(patient)
        if answered is not None:
            call.fill(self, answers, np.flatnonzero(~answered), sent, start, whole)
        return call.result(self, answers, sent, start)

    def _news(self, call, start):
        """Models to send (None if all clients have theirs), and which clients have theirs."""
        own = self._memory.same(self._at, start)
        if call.always_last:
            own |= self.without_rows  # they make nothing of a start
        return None if own.all() else start, own

    @property
    def _is_out(self):
        """Clients that are not asked any more: rejected, or excluded."""
        return (self.presence.rejected | self.presence.excluded)[self._at]

    @property
    def rejected(self) -> Array:
        """Clients that have sent what is not finite, (n_clients,) of bool."""
        return (self.presence.rejected | self.presence.banned)[self._at]

    @property
    def steady(self) -> bool:
        """Whether sums of one call and the next are of the same clients, as far as is known.

        They are where who does not answer never did again: who is dead, or rejected.
        """
        return self.answered is None or not self.presence.returned

    def heard(self, clients: Array) -> Array:
        """Which of some clients, by their positions, have ever answered."""
        return self.presence.heard[self.places[clients]]

    def roll_call(self) -> tuple[Array, bool]:
        """Who is missing at the end.

        Returns
        -------
        missing : ndarray of shape (n_clients,) of bool
            Clients that do not answer, asked once more if any was ever silent, those that never
            answered a kind of call or a final one, and those that the fit left out because they
            were lost; not those whose answers were rejected.
        complete : bool
            Whether everything that needs all clients was computed with all.
        """
        if self.presence.faulty:
            self.ask(Present)
        presence = self.presence
        missed = (presence.missed > 0) | presence.gone | presence.without_part()
        complete = not (presence.incomplete or presence.left_out.any())
        return missed[self.places] & ~self.rejected, complete

    def lane(self, seed: RandomState = None, remembers: bool = True) -> ClientPool:
        """The same clients with a ledger of their own, for a task that does not wait for others.

        Parameters
        ----------
        seed : int, RandomState instance or None, default=None
            Where the draws of server and clients begin; None goes on with those of this pool.
        remembers : bool, default=True
            Whether the lane has last answers of its own, as tasks of several calls need.
        """
        pool = copy.copy(self)
        pool.ledger = type(self.ledger)()
        if remembers:
            pool._take(self._site.penalised(None), self.row_weights)
            pool._spectrum = self._spectrum
        if seed is not None:
            pool.reseed(seed)
        return pool

    def relay(self, up: int = 0, down: int = 0, sums: bool = False, calls: int = 1) -> None:
        """Book what clients send each other through the server.

        Parameters
        ----------
        up, down : int
            Floats, of all clients together.
        sums : bool, default=False
            Whether these are sums over the clients, and what is the same for all of them.
        calls : int, default=1
            Exchanges; 0 for what goes with another one.
        """
        size = self.n_clients if sums else 1
        about = {"shared_bytes" if sums else "own_bytes": (8 * up // size, 8 * down // size)}
        clients = self.n_clients * calls
        self.ledger.book(up=up, down=down, clients=clients, calls=int(calls), **about)

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

    def penalised(self, alpha: float, book: bool = True) -> ClientPool:
        """Pool of the same clients under another local penalty.

        Parameters
        ----------
        alpha : float
            The penalty.
        book : bool, default=True
            If False, nothing is booked: the calls that follow hand the penalty over.

        Returns
        -------
        pool : ClientPool
            Shares rows, ledger and random state.
        """
        if book and alpha == self.model.alpha_:
            return self
        if book:
            self.relay(down=self.n_clients, sums=True, calls=0)  # with the next call
        pool = copy.copy(self)
        pool.model = self.model.penalised(alpha)
        pool._take(self._site.penalised(alpha), self.row_weights)
        if self._spectrum is not None:
            # The server knows the penalty, and what the clients have said of their losses.
            old, new = self.model.decay, pool.model.decay
            high, low = new.max() - old.max(), new.min() - old.min()
            shift = np.array([[high], [low], [high]])
            pool._spectrum = np.where(self.without_rows, self._spectrum, self._spectrum + shift)
        return pool

    def without_effects(self, step: str, *arguments: Array) -> ClientPool:
        """The same clients, what their targets owe to levels or trees taken from these.

        Parameters
        ----------
        step : {"without_levels", "linearised", "without_trees"}
            Effects of levels under squared error; under another loss, with rows of squared errors
            whose posteriors are those of Laplace's approximation; values of trees.
        *arguments : ndarray
            See ``skcfl.calls.levels_asked.LevelSlopes``, ``level_modes_asked.LevelModes`` and
            ``skcfl.numerics.regression_trees``.

        Returns
        -------
        pool : ClientPool
            After levels the model is a plain linear one. Shares ledger and random state.
        """
        pool, trees = copy.copy(self), step == "without_trees"
        # New are the effects, not root and spreads; trees go with the next call.
        sent = sum(map(np.size, arguments if trees else arguments[2:]))
        self.relay(down=self.n_clients * sent, sums=True, calls=not trees)
        if not trees:
            exact = step == "without_levels"
            pool.model = self.model.plain_of() if exact else self.model.gaussian_of()
        pool._take(self._site.derive(step, *arguments)[0], self.row_weights)
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
        """
        draws = always or batch_size is not None or self.model.stochastic
        return next(self._seeds) if draws else None

    # ------------------------------------------------------------------- what is known

    def spectrum(self) -> tuple[Array, Array, Array]:
        """Curvature of the clients' objectives, for automatic steps; asked once.

        Returns
        -------
        lipschitz : ndarray of shape (n_clients,)
            Upper bounds ``L_i`` of the curvature.
        strong : ndarray of shape (n_clients,)
            Lower bounds ``mu_i``.
        mean : ndarray of shape (n_clients,)
            Geometric means of the curvature over the directions.
        """
        if self._spectrum is None:
            self._spectrum = self.ask(Spectrum).T
        self._spectrum.flags.writeable = False
        return tuple(self._spectrum)

    # -------------------------------------------------------------------- other pools

    def subset(self, clients: ArrayLike) -> ClientPool:
        """Pool of some of the clients, in the given order; shares ledger and random state.

        Parameters
        ----------
        clients : array-like
            Positions, each at most once, or a mask.
        """
        clients = np.arange(self.n_clients)[clients]  # type: ignore[index]
        if len(np.unique(clients)) < len(clients):
            raise ValueError(f"Each client can be in a subset once, got {clients!r}.")
        pool = self._derived(self._site.subset(clients))
        pool.places = pool._at = self.places[clients]
        pool.row_weights = self.row_weights[clients]
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
        divided = (held.client_sizes > 0) & (train.client_sizes < self.client_sizes)
        self._warn_of_few(train.client_sizes > 0, divided, "others choose by rows to train on")
        return self._derived(train, True), self._derived(held, True)

    def deal_folds(
        self, n_folds: int, random_state: RandomState = None, n_judged: int | None = None
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
        n_judged : int, default=None
            Number of folds that are returned: the first ones, or those in which clients of most
            weight hold rows out where fewer than half of these do so in the first ones. None is
            all.

        Returns
        -------
        folds : list of tuple of ClientPool
            ``(train, held)`` of each fold; every row is held out once, but for the only row of a
            client, which is in all the training pools.  They share this pool's ledger and random
            state.
        """
        seed = check_random_state(random_state).randint(np.iinfo(np.int32).max)
        folds = self._site.folds(n_folds, seed)
        train, held = np.any([[p.client_sizes > 0 for p in pair] for pair in folds], axis=0)
        if (self.client_sizes > 1).any() and train.any() and not held.any():
            most = self.client_sizes.max()
            raise FederationError(f"{NO_ROWS}. The largest client has {most} rows.")
        self._warn_of_few(train, held, "judge for all")
        judged = np.array([self.client_weights @ (held.client_sizes > 0) for _, held in folds])
        first = np.arange(n_folds if n_judged is None else n_judged)
        best = np.sort(np.argsort(-judged, kind="stable")[: len(first)])
        few = judged[first].sum() < LEAST_JUDGED * judged[best].sum()
        some = [folds[k] for k in (best if few else first)]
        return [(self._derived(train, True), self._derived(held, True)) for train, held in some]

    def _warn_of_few(self, trained: Array, hold_out: Array, result: str) -> None:
        """Warn if clients that hold rows out have less than half of the weight."""
        able, weights = self.client_sizes > 1, self.client_weights
        if weights[hold_out].sum() < LEAST_JUDGED * weights[able & trained].sum():
            warnings.warn(
                f"{np.count_nonzero(hold_out)} of {np.count_nonzero(able)} clients hold rows out, "
                f"and {result}: under a SitePolicy others have fewer than two times min_rows rows "
                "or have held out other ones. Give n_clusters, lam or alpha as numbers, or lower "
                "min_rows.",
                stacklevel=caller_level(),
            )

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
