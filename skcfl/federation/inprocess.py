"""Clients simulated in this process.

Rows never leave this module: a server holds a :class:`~skcfl.federation.ClientPool`, which asks
:class:`InProcessSite` by the calls of :mod:`skcfl.calls`.
"""

import copy

import numpy as np
from scipy import sparse

from .._checks import whole_number
from ..calls import CALLS
from ..clients.blocks import BLOCK_BYTES, copies_of, gathered, make_blocks
from ..clients.draws import dealt, order_of_rows, shuffled
from ..clients.kept import ClientMemory
from ..clients.last_answers import Forgotten, LastAnswers
from ..numerics.by_cluster import weight_by_cluster
from ..numerics.regression_trees import forest_outputs
from ..numerics.threads import at_once, over_parts
from .checking import check_numbers, check_trees
from .pool import ClientPool
from .scaling import dense_copy
from .sites import Site

# Multiplications of one call below which threads cost more than they save.
PARALLEL_WORK = 5e7
#: Most folds of the rows of a place, each of which takes a list of all of them.
MAX_FOLDS = 1000
# Steps from a site to others, each a method with an underscore before its name.
STEPS = frozenset({"subset", "penalised", "held_out", "folds"})
STEPS |= {"without_levels", "without_trees", "linearised"}


class InProcessSite(Site):
    """Clients of this process, their rows in blocks.

    Parameters
    ----------
    model : LocalModel
        Bound local model.
    X : {ndarray, sparse matrix} of shape (n_rows, n_features)
        Features.
    y : ndarray of shape (n_rows,) or None
        Targets (class codes for classifiers).
    codes : ndarray of shape (n_rows,)
        Position of the client that owns each row.
    n_clients : int
        Number of clients.  The objective of one that owns no row is zero, without the local
        penalty, which a client whose rows all weigh nothing keeps.
    sample_weight : ndarray of shape (n_rows,), default=None
        Row weights; rows that weigh nothing are not stored.
    n_jobs : int, default=None
        Threads over blocks of clients, used where a call is big enough to pay.
    block_bytes : int, default=BLOCK_BYTES
        Bytes of rows that are computed on together: by default what fits a core's cache.
    places : ndarray of shape (n_clients,), default=None
        Positions of the clients in the whole federation, by which they draw; None if these are
        all.
    scaling : Scaling, default=None
        Units of the features; None if they are those of `X`.
    row_ids : ndarray of shape (n_rows,), default=None
        Numbers by which a policy knows the rows; None if there is no policy.
    offset : ndarray of shape (n_rows, n_outputs), default=None
        What is added to raw predictions; None is nothing.

    Attributes
    ----------
    cuts : ndarray of shape (n_features, n_bins - 1) or None
        Ends of the bins of the features; None is one bin each.
    row_ids : ndarray or None
        Those of the rows of the site that weigh something, by client.
    min_rows : int, default=1
        Rows that a client holds out at least, and keeps.
    """

    min_rows = 1

    def __init__(
        self,
        model,
        X,
        y,
        codes,
        n_clients,
        sample_weight=None,
        n_jobs=None,
        block_bytes=BLOCK_BYTES,
        places=None,
        scaling=None,
        row_ids=None,
        offset=None,
    ):
        self.cuts = None
        self.n_jobs = n_jobs
        self.places = np.arange(n_clients) if places is None else np.asarray(places)
        codes = np.asarray(codes)
        self.without_rows = np.bincount(codes, minlength=n_clients) == 0
        target = model.encode(y, X.shape[0])
        if offset is not None:
            model, target = model.beside(target.T, offset.T)
            target = target.T
        self.model = model
        if sample_weight is None:
            weights = np.ones(len(codes))
        else:
            weights = np.asarray(sample_weight, dtype=float)
            if (weights == 0).any():
                keep = np.flatnonzero(weights > 0)
                X, target, codes, weights = X[keep], target[keep], codes[keep], weights[keep]
                row_ids = None if row_ids is None else row_ids[keep]
        self._block_bytes = block_bytes
        if sparse.issparse(X):
            # Units of dense rows have means, which leave no zeros.
            units = (each for each in (model.scaling_, scaling) if each is not None)
            dense = model.fits_whole or any(each.mean.any() for each in units)
            X = dense_copy(X) if dense else sparse.csr_array(X)
        model.try_rows(X, target)

        def design(rows):
            return model.design(rows if scaling is None else scaling.transform(rows))

        each = over_parts(X.size, self.n_jobs)
        order = order_of_rows(codes, X, target, weights, each=each)
        self.row_ids = None if row_ids is None else row_ids[order]
        self._store(X, target, weights, codes, n_clients, design, order)

    @classmethod
    def of_design(cls, model, design, target, weights, codes, without_rows):
        """Site of rows of a design matrix, encoded targets and positive weights.

        Parameters
        ----------
        model : LocalModel
            Bound local model.
        design : ndarray of shape (n_rows, n_columns)
            Design matrix.
        target : ndarray of shape (n_rows, q)
            Targets as the model encodes them.
        weights : ndarray of shape (n_rows,)
            Weights of the rows.
        codes : ndarray of shape (n_rows,)
            Position of the client that owns each row, ascending.
        without_rows : ndarray of shape (n_clients,) of bool
            Which clients own no row.
        """
        site = cls.__new__(cls)
        site.model, site.cuts, site.n_jobs, site.row_ids = model, None, None, None
        site.places, site.without_rows = np.arange(len(without_rows)), without_rows
        site._block_bytes = BLOCK_BYTES
        site._store(design, target, weights, codes, len(without_rows))
        return site

    def _store(self, X, target, weights, codes, n_clients, design=None, order=None):
        # Copies: a view would keep all rows alive, which are in the blocks from here on.
        self._no_rows = (
            (X[:0] if design is None else design(X[:0])).copy(),
            target[:0].copy(),
            np.zeros(0),
            np.zeros(0, dtype=np.intp),
        )
        # Blocks hold the clients with rows; what others answer is what arrays begin with.
        owners = np.flatnonzero(~self.without_rows)
        place = np.cumsum(~self.without_rows) - 1
        blocks = make_blocks(
            X,
            target,
            weights,
            place[codes],
            len(owners),
            design=design,
            each=over_parts(X.size, self.n_jobs),
            order=order,
            block_bytes=self._block_bytes,
        )
        self._blocks = [(block, None, owners[block.clients]) for block in blocks]
        self._forget()
        self.client_weights = weight_by_cluster(codes, weights, n_clients)
        self.client_sizes = np.bincount(codes, minlength=n_clients)

    def _forget(self):
        """Begin with no models kept; those of these clients will be at `at` of the memory."""
        self.memory, self.at = LastAnswers(self.n_clients), slice(None)
        self.state = ClientMemory(self.n_clients)

    def positions(self, clients):
        """Where the memory, which pools of some clients share, has those of some clients."""
        return np.arange(len(self.memory.known))[self.at][clients]

    @property
    def n_clients(self):
        """Number of clients."""
        return len(self.places)

    def answer(self, call, arguments):
        """Let the clients compute a call of the table."""
        return CALLS[call].answer(self, **arguments)

    @property
    def entries(self):
        """Where the state has what these clients keep."""
        return self.positions(slice(None))

    def each(self, function, passes=1):
        """Call ``function(block, slots)`` for every block; slots are the clients' places.

        Parameters
        ----------
        function : callable
        passes : int, default=1
            About how many passes over the rows a function takes.
        """

        def work(some):
            # A model that diverges answers infinity or NaN: for the server to see, no warning.
            with np.errstate(over="ignore", invalid="ignore"):
                for block, index, slots in some:
                    part = block if index is None else block.take(index)
                    if own is None:
                        function(part, slots)
                    else:
                        self._with_own(function, part, slots)

        own = self.model.own
        if own is not None:
            none = np.zeros((0, int(own.sum())), self.model.dtype)
            self.state.keep("own", self.entries[:0], none)
        # To ask for the number of threads takes longer than a small call.
        per_row = self.model.n_params * passes
        if len(self._blocks) == 1 or self.client_sizes.sum() * per_row < PARALLEL_WORK:
            return work(self._blocks)
        at_once(lambda some: work([some]), self._blocks, self.n_jobs)

    def _taken(self):
        """Yield the blocks of these clients' rows, and the clients' places."""
        for block, index, slots in self._blocks:
            yield block if index is None else block.take(index), slots

    def _with_own(self, function, block, slots):
        """Call a function on a block whose clients have what they keep for themselves."""
        clients = self.entries[slots]
        nothing = np.zeros((len(slots), int(self.model.own.sum())), self.model.dtype)
        known = self.state.knows("own", clients)
        block = copy.copy(block)  # others may be at work on the same rows
        block.own = self.state.recall("own", clients, nothing), known
        function(block, slots)
        self.state.keep("own", clients[known], block.own[0][known])

    def starts(self, sent, own, dtype=None):
        """Models that clients go on from: those sent, or what they have answered last."""
        if own is None:
            return sent
        lacking = own & ~self.memory.known[self.at] & ~self.without_rows
        if lacking.any():
            raise Forgotten(
                f"{lacking.sum()} clients were asked to continue from their last answers, but "
                "have given none."
            )
        models = self.memory.continued(self.at, own, sent)
        return models if dtype is None else models.astype(dtype, copy=False)

    # -------------------------------------------------------------------- other sites

    def derive(self, step, *arguments):
        """Sites of the same clients, of some of them, or of parts of their rows."""
        if step not in STEPS:
            raise KeyError(step)
        return getattr(self, f"_{step}")(*arguments)

    def _changed(self, model, blocks, no_rows):
        """Site of the same clients with other blocks, pairs of each and its clients' slots."""
        site = copy.copy(self)
        site.model, site._no_rows = model, no_rows
        site._blocks = [(block, None, slots) for block, slots in blocks]
        site._forget()
        return site

    def _subset(self, clients):
        """Site of some of the clients, in the given order."""
        place = np.full(self.n_clients, -1)
        place[clients] = np.arange(len(clients))
        site = copy.copy(self)
        site._blocks = []
        for block, index, slots in self._blocks:
            here = np.flatnonzero(place[slots] >= 0)
            if len(here) == len(slots):
                site._blocks.append((block, index, place[slots]))
            elif len(here):
                of_block = here if index is None else index[here]
                site._blocks.append((block, of_block, place[slots[here]]))
        site._blocks = gathered(site._blocks)
        site.places, site.at = self.places[clients], self.positions(clients)
        if self.row_ids is not None:
            starts, sizes = np.cumsum(self.client_sizes) - self.client_sizes, self.client_sizes
            before = np.cumsum(sizes[clients]) - sizes[clients]
            at = np.repeat(starts[clients] - before, sizes[clients])
            site.row_ids = self.row_ids[at + np.arange(len(at))]
        site.client_weights = self.client_weights[clients]
        site.client_sizes = self.client_sizes[clients]
        site.without_rows = self.without_rows[clients]
        return [site]

    def _penalised(self, alpha):
        """Site of the same rows under another local penalty, None for the same one."""
        site = copy.copy(self)
        if alpha is None:
            # Clients of models with parts of their own do not forget these.
            site.memory = LastAnswers(len(self.memory.known))
            if self.model.own is None:
                site.state = ClientMemory(len(self.memory.known))
            return [site]
        site.model = self.model.penalised(alpha)
        # What blocks remember of their rows holds under one penalty.
        site._blocks = [(copy.copy(block), *where) for block, *where in self._blocks]
        for block, *_ in site._blocks:
            block.cache = {}
        site._forget()
        return [site]

    def _without_levels(self, root, spreads, effects):
        """Site of the features, the effects of the levels taken from the targets."""
        blocks = []
        for block, slots in self._taken():
            about = block, self.client_weights[slots], root, spreads, effects
            blocks.append((self.model.without_levels(*about), slots))
        X, *others = self._no_rows
        no_rows = X[:, : self.model.n_columns], *others
        return [self._changed(self.model.plain_of(), blocks, no_rows)]

    def _without_trees(self, trees, cuts):
        """Site of the same features, the values of trees beside the predictions."""
        d, C, blocks = self.model.n_features, self.model.n_outputs, []
        trees = check_trees("trees", trees, d, C)
        cuts = check_numbers("cuts", cuts, (d, np.shape(cuts)[-1]))
        for block, slots in self._taken():
            c, n, p = block.shape
            rows = block.dense().reshape(c * n, p)[:, :d]
            values = forest_outputs(rows, trees, C, block.cache)
            offset = values.reshape(c, n, C).transpose(0, 2, 1)
            _, y = self.model.beside(block.y, offset)
            rest = block.with_targets(y)
            rest.cache["modes"] = block.cache.get("modes")  # where the search of others begins
            blocks.append((rest, slots))
        X, y, *others = self._no_rows
        model, y = self.model.beside(y.T, np.zeros((C, 0)))
        site = self._changed(model, blocks, (X, y.T, *others))
        site.cuts = cuts
        return [site]

    def bins_of(self, block):
        """Bin of each row of a block by feature, (n_rows, d)."""
        if "bins" not in block.cache:
            d = self.model.n_features
            ends = np.zeros((d, 0)) if self.cuts is None else self.cuts
            rows = block.dense().reshape(-1, block.shape[2])
            bins = [cuts.searchsorted(x) for cuts, x in zip(ends, rows.T[:d], strict=True)]
            block.cache["bins"] = np.stack(bins, axis=1)
        return block.cache["bins"]

    def _linearised(self, root, spreads, effects):
        """Site of rows of squared errors with the clients' posteriors, without their levels."""
        blocks, client_weights = [], self.client_weights.copy()
        for block, slots in self._taken():
            about = block, self.client_weights[slots], root, spreads, effects
            made, client_weights[slots] = self.model.linearised(*about)
            made.copies = copies_of(block.exact[1] * about[1][:, None])
            blocks.append((made, slots))
        X, y, *others = self._no_rows
        no_rows = X[:, : self.model.n_columns], y.astype(float), *others
        site = self._changed(self.model.gaussian_of(), blocks, no_rows)
        site.client_weights = client_weights
        return [site]

    def _held_out(self, fraction, seed, undivided=False):
        """Two parts of each client's rows: to train on, held out; all in both of some clients."""
        rows = self.rows()
        codes, size = rows[3], self.client_sizes
        least = self.min_rows
        most = np.maximum(size - least, least)
        n_held = np.clip(np.round(fraction * size).astype(int), least, most)
        held = shuffled(seed, self.places, codes) < n_held[codes]
        both = ((size < 2 * least) | undivided)[codes]
        return self._parts(rows, ~held | both, held | both)

    def _folds(self, n_folds, seed, undivided=False):
        """Every row held out once, but for the only row of a client, and those of some clients."""
        n_folds = whole_number(n_folds, "n_folds", 2, MAX_FOLDS)
        rows = self.rows()
        codes, classes = rows[3], None
        if self.model.estimator_type == "classifier":
            classes = np.unique(rows[1], axis=0, return_inverse=True)[1].ravel()
        fold = dealt(n_folds, seed, self.places, codes, None, classes, least=self.min_rows)
        fold[np.broadcast_to(undivided, self.n_clients)[codes]] = -1
        pairs = [self._parts(rows, fold != k, fold == k) for k in range(n_folds)]
        return [site for pair in pairs for site in pair]

    def _parts(self, rows, train, held):
        """Sites of rows to train on and of others, whose clients are the same."""
        parts = [self._part(rows, train), self._part(rows, held)]
        if self.model.own is not None:
            parts[1].state = parts[0].state
        return parts

    def _part(self, rows, mask):
        """Site of some of the rows that :meth:`rows` returned."""
        site = copy.copy(self)
        site._store(*(part[np.flatnonzero(mask)] for part in rows), self.n_clients)
        site.row_ids = None if self.row_ids is None else self.row_ids[mask]
        return site

    def rows(self):
        """All rows by client: design matrix, targets, weights, owners."""
        parts = [self._no_rows]
        for block, slots in self._taken():
            c, n, d = block.shape
            real = (np.arange(n) < block.lengths[:, None]).ravel()
            X = block.X if sparse.issparse(block.X) else block.X.reshape(c * n, d)
            y, w = block.exact
            y = y.transpose(0, 2, 1).reshape(c * n, -1)
            w = w * self.client_weights[slots][:, None]
            place = np.flatnonzero(real)
            parts.append((X[place], y[place], w.ravel()[place], np.repeat(slots, n)[place]))
        X, y, w, codes = zip(*parts, strict=True)
        codes = np.concatenate(codes)
        order = np.argsort(codes, kind="stable")
        X = sparse.csr_array(sparse.vstack(X)) if sparse.issparse(X[0]) else np.concatenate(X)
        return X[order], np.concatenate(y)[order], np.concatenate(w)[order], codes[order]


def open_rows(model, *rows, random_state=None, scaling=None, **more):
    """Pool of clients of this process; arguments as of InProcessSite and ClientPool."""
    return ClientPool(InProcessSite(model, *rows, **more), model, random_state, scaling)
