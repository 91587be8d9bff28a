"""How many clusters: grow their number for as long as rows that were held out gain by it.

Every client deals its rows to `N_FOLDS` folds; to `FEW_FOLDS` where all clients together have few
rows, so that the models that are judged have seen most of them.  For K = 1, 2, ... fit on all
folds but one, and judge by the mean loss of each client's model on the rows of that one,
``h_i(K)``, averaged over the folds.  Models of few rows are worth more once they have all, which
is corrected, for exact local models but those of counts and classes (``numerics/optimism.py``).  K
replaces a smaller number B if

    mean_i [h_i(B) - h_i(K)]  >  max(standard error of that mean, MIN_GAIN * mean_i h_i(B)),

clients weighted by their rows; for log-densities, whose zero depends on units, ``h_i(1) - h_i(B)``
takes the place of ``h_i(B)`` on the right.  The clients are given and only their rows are drawn:
the error is that of a client's folds about its mean.  If two outliers gain all there is to gain,
the spread of the clients about the mean of all would call that chance.

After `PATIENCE` numbers without a replacement one model per client competes: where it loses, the
search is over; where it wins, the clients may be a continuum, the steps grow, and the search ends
`PATIENCE` steps after the last replacement.  Last, the numbers that were stepped over next to the
best are tried.

One model per client replaces one model for all by `ONE_EACH` standard errors: it takes part
without a search, and where clients do not differ it is clearly worse.  Clusters it replaces if its
loss is less: clusters that exist save nearly all clients the noise of a model each.  If clients
may be false, it has to serve most of them better, too: false ones may gain much by their own.

Numbers that will be tried whatever comes of those before them, `PATIENCE` after a replacement, are
fitted at the same time, and judged one after the other.  Clients' models of few rows do not tell
what two more clusters gain: one number is fitted at a time then.

What does not depend on K is done once: the clients' own models, which are the last candidate, are
also what clusters are added from.  K starts from the models of the largest number fitted before;
each model to add is the client's whose model lowers the clients' losses most.  A client's model
fits its own rows too well, and counts there as no better than the median client is served, which
is enough for an outlier; with no more rows than parameters it does not count there.  Clusters are
fitted again where a client's model in the place of one of theirs lowers the losses, by `MIN_GAIN`
at least: two may have one model, and a third two.  If clients have little more rows than
parameters, models after a few steps take the place of minimisers, which fit the noise.  The
method's own starts compete if all rows are few, or clients have fewer rows than parameters and
clusters are few.  The silhouette of loss vectors, which knows no single cluster, is not used.
"""

from functools import partial
from itertools import islice

import numpy as np

from .._progress import loop, quiet, series
from ..calls.first_order import Losses, OwnLosses
from ..federation.lanes import asked_at_once, lanes_of, together
from ..federation.presence import comparing
from ..numerics.once import once
from ..numerics.optimism import with_all_rows
from ..numerics.quantiles import weighted_median
from .alpha import is_automatic
from .judges import MOST_LOSS

__all__ = ["find_n_clusters"]

# Folds, and their number where all clients together have fewer rows than FEW_ROWS.
N_FOLDS, FEW_FOLDS, FEW_ROWS = 4, 10, 500
# Numbers of clusters in a row without a gain after which the search ends.
PATIENCE = 2
# Least relative gain that makes another cluster worth its models.
MIN_GAIN = 0.01
# Standard errors by which one model per client has to be better than one model for all.
ONE_EACH = 0.5
# Steps of the number, relative to it (at least one), in clear clusters and on a continuum.
STEP, LONG_STEP = 0.25, 0.5
# Rows of the median client, for each parameter, between which clusters are added from models after
# a few steps. Benchmark: benchmarks/generated.py --kinds "15 f" "25 f" --first 100 --draws 10: of
# the 20 draws IFCA is exact on 14 (10 without), CLoVE on 15 (9). With fewer rows it is on fewer.
# Below the larger one clusters are added one at a time: "40 f" --first 200 --draws 4 is exact on
# 8 of 8 draws so, two at a time on 1.
NOISY_ROWS = 1.0, 2.0
# Clusters up to which starts are drawn, too, where clients have fewer rows than parameters: more
# take many times the seconds. Benchmark: benchmarks/generated.py --kinds "30 f" "40 f" "100 f"
# --first 100 --draws 6: of 18 draws IFCA is exact on 17 (10 without).
MOST_DRAWN = 6
# Final fits that lose this part of what clusters gained on rows held out have too few. Benchmark:
# benchmarks/robust.py --methods CFL --attacks noise --seeds 4: the index of the honest clients'
# clusters is 1 for regressions under "geometric_median" (.84 to .93 without).
LOST_GAIN = 0.1
# Clients that search for the number, and for starts, where there are more than twice as many:
# clusters of one client in a hundred have ten of them.
SAMPLE = 1000
# Clients whose models may become those of new clusters.
MAX_CANDIDATES = 256


def find_n_clusters(pool, fit, rng, local=None, grow=None, robust=False, judge=None, memory=None):
    """Choose the number of clusters by held-out loss, then fit on all rows.

    Parameters
    ----------
    pool : ClientPool
        The federation.  A sample of its clients searches where they are many.
    fit : callable
        ``fit(pool, n_clusters, start, remembered, drawn)`` returns a Result: from the models
        `start` (n_clusters, n_params) if that is not None; if `drawn` (also) from starts of its
        own. `remembered` is an object of the fold, for what does not depend on the number, and
        None in the fit to all rows.
    rng : RandomState
        Source of the folds.
    local : callable, default=None
        ``local(pool)`` returns the Result of a model for each client, the last number to try;
        None leaves that out.
    grow : callable, default=None
        With this K clusters start from the models of fewer; needs `local`. ``grow(pool)`` returns
        the clients' models after a few steps from a common start, (n_clients, n_params).
    robust : bool, default=False
        Whether some clients may be false: no client's loss then counts for more than some times
        the median of the least losses so far, and no correction is made.
    judge : callable, default=None
        ``judge(held, result)`` returns the loss of each client's rows that were held out, for
        methods that do not predict by the model of the client's cluster.
    memory : callable, default=None
        ``memory()`` returns what fits remember that do not run at the same time. None remembers
        in one object a fold: a number is then fitted when those before it are judged.

    Returns
    -------
    result : Result
        Of the chosen number, on all rows.  Its history has the rounds of all fits, one after the
        other, with the column "searched" (the K of the fit, 0 for the final one);
        ``extra["search"]`` has one entry per number tried: "n_clusters" (asked for), "found" (not
        empty, mean of the folds), "held_out_loss", "gain" and "standard_error" (against the
        best number before), "accepted", "floats_up" and "floats_down".
    """
    search = _Search(pool, fit, rng, local, grow, robust, judge, memory)
    with comparing(pool):
        best = search.run()
    pool.ledger.since_mark()
    result = search.final(best, best)
    search.histories.append((0, result.history))
    result.history = _join(search.histories)
    result.n_iter = len(result.history["searched"])
    result.extra["search"] = {name: np.array(column) for name, column in search.record.items()}
    return result


def sample(pool, rng):
    """The clients of a federation, or some of them where there are very many."""
    if pool.n_clients <= 2 * SAMPLE:
        return pool
    return pool.subset(np.sort(rng.choice(pool.n_clients, SAMPLE, replace=False)))


class _Search:
    """The folds and the numbers of clusters tried on them."""

    COLUMNS = ("n_clusters", "found", "held_out_loss", "gain", "standard_error", "accepted")

    def __init__(self, pool, fit, rng, local, grow, robust, judge, memory):
        self.pool, self.fit, self.local = pool, fit, local
        self.robust, self.judge, self.grow = robust, judge, grow
        #: Under "auto" the penalty of the pool is the prior of one model.
        self.unit = pool.model.alpha_ if is_automatic(pool) else None
        part = sample(pool, rng)
        self.n, self.part = part.n_clients, part
        exact = pool.can_answer("solve")
        few = exact and pool.n_samples < FEW_ROWS
        n_folds = FEW_FOLDS if few else N_FOLDS
        model = pool.model
        # A relative gain means nothing for losses without a least value, such as those of counts,
        self.min_gain = MIN_GAIN if model.grounded else 0.0
        #: nor for log-densities.
        self.grounded = judge is None or not model.unknown_scale
        #: If True, losses are corrected to those with all rows: for exact minimisers of losses
        #: with bounded curvature, because otherwise single rows decide. Models of classes gain
        #: less by more rows. Benchmark: benchmarks/real.py --methods IFCA, tables with log-loss.
        self.corrects = exact and model.grounded and model.bounded_curvature
        self.corrects &= model.estimator_type != "classifier" and not robust
        # A single client leaves nothing to choose.
        dealt = part.deal_folds(n_folds, rng) if self.n > 1 else []
        seeds = rng.randint(np.iinfo(np.int32).max, size=len(dealt))
        #: How many numbers are fitted at the same time, and what fits of a fold remember.
        self.width, self.memory = PATIENCE if memory else 1, memory or object
        rows = np.median(dealt[0][0].client_sizes) / part.n_params if dealt else np.inf
        if grow and rows < max(NOISY_ROWS):
            self.width = 1
        #: Largest number of clusters for which the starts of the method compete, too.
        self.most_drawn = np.inf if few else MOST_DRAWN * (exact and rows < 1.0)
        self.folds = [_Fold(self, *pair, seed) for pair, seed in zip(dealt, seeds, strict=True)]
        #: Weights of the rows that each fold (rows) holds out of each client (columns).
        self.held = np.array([fold.held.client_weights for fold in self.folds]).reshape(-1, self.n)
        self.share = self.held / max(self.held.sum(), 1e-300)
        #: Losses by fold and client, NaN without an answer.
        self.losses, self.histories = {}, []
        #: Results of the folds that are not judged yet, by number.
        self.fitted = {}
        self.record = {name: [] for name in (*self.COLUMNS, "floats_up", "floats_down")}

    def penalised(self, pool, n_models):
        """The pool under the prior of so many models."""
        return pool if self.unit is None else pool.penalised(n_models * self.unit)

    def run(self):
        """The best number; that of all clients is a model each."""
        last = self.n if self.local is None else self.n - 1
        with series("n_clusters", "candidate", self._most(last), sure=False) as self.progress:
            self._try(1)
            best = K = 1
            waiting, step, continuum, numbers = 0, STEP, False, []
            while K < last and not self.progress.stopped:
                if not numbers:
                    certain = min(PATIENCE - waiting, self.width)
                    numbers = list(islice(_numbers(K, step, last), certain))
                K, *numbers = numbers
                accepted = self._try(K, best, numbers)
                best, waiting = (K, 0) if accepted else (best, waiting + 1)
                if waiting >= PATIENCE:
                    if continuum or self.local is None or not self._try(self.n, best):
                        break
                    continuum, step, waiting = True, LONG_STEP, 0
            if self.progress.stopped:
                return best
            if self.local is not None and self.n > 1:
                if self.n not in self.losses:
                    self._try(self.n, best)
                if self._one_each(best):
                    return self.n
            return best if continuum else self._refine(best)

    def _most(self, last):
        """How many numbers are tried at most, but for those between at the end."""
        most = 1 + len(list(_numbers(1, STEP, last)))
        return most + (self.local is not None and self.n > 1)

    def _refine(self, best):
        """The best of the numbers between the neighbours that were tried."""
        while not self.progress.stopped:
            tried = sorted(self.losses)
            place = tried.index(best)
            if best - tried[max(place - 1, 0)] > 1:
                K = (best + tried[place - 1]) // 2
                self._try(K, tried[place - 1])
                if not self._better(best, K)[0]:
                    best = K
            elif tried[min(place + 1, len(tried) - 1)] - best > 1 and tried[place + 1] < self.n:
                K = (best + tried[place + 1]) // 2
                best = K if self._try(K, best) else best
            else:
                break
        return best

    def _try(self, K, best=None, then=()):
        """Judge a number of clusters: whether it is better than the best so far.

        Those that will be tried `then` are fitted with it.
        """
        label = f"{K} cluster{'s' if K > 1 else ''}"
        if self.local is not None and K == self.n > 1:
            label = "one model per client"
        with self.progress.item(label, leaf=True) as tell:
            if K not in self.fitted:
                self._fit([K, *then])
            accepted = self._judge(K, best)
            verdict = {} if best is None else {"verdict": "better" if accepted else "no better"}
            tell(held_out_loss=self.record["held_out_loss"][-1], **verdict)
        return accepted

    def _fit(self, numbers):
        """Fit numbers of clusters, and judge them by the rows held out, at the same time."""
        self.fitted |= {K: [] for K in numbers}
        tasks = [partial(fold.judge, numbers) for fold in self.folds]
        lanes = [fold.held for fold in self.folds]
        with loop("fold", len(self.folds), sure=True) as folds:
            for judged in together(tasks, lanes, self.pool.ledger):
                for K, result in zip(numbers, judged, strict=True):
                    self.fitted[K].append(result)
                folds.tell()

    def _judge(self, K, best):
        """Whether a number of clusters that was fitted is better than the best."""
        fitted = self.fitted.pop(K)
        found = [len(np.unique(result.labels)) for result, *_ in fitted]
        self.histories += [(K, result.history) for result, *_ in fitted]
        losses = np.array([held for _, held, _ in fitted]).reshape(self.held.shape)
        up, down = np.sum([sent for *_, sent in fitted], axis=0) if fitted else (0, 0)
        self.losses[K] = np.where(self.held > 0, losses, 0.0)
        accepted, gain, error = (True, np.nan, np.nan) if best is None else self._better(K, best)
        if best is not None and self.local is not None and K == self.n:
            accepted = self._one_each(best)
        loss = self._mean(K)
        row = (K, np.mean(found) if found else K, loss, gain, error, accepted, up, down)
        for name, value in zip(self.record, row, strict=True):
            self.record[name].append(value)
        return accepted

    def _better(self, K, before):
        """Whether K clusters gain enough over others; the mean gain and its standard error."""
        gain, error = self._gain(K, before)
        return gain == np.inf or gain > max(error, self._least(before)), gain, error

    def _least(self, before):
        """Least gain over a number of clusters that makes more of them worth their models."""
        loss = self._mean(before)
        if self.grounded:
            return self.min_gain * abs(loss)
        # Where the zero of the losses means nothing, a part of what the clusters have brought.
        return self.min_gain * max(self._mean(1) - loss, 0.0)

    def _one_each(self, best):
        """Whether one model per client is to be preferred to the best of fewer."""
        gain, error = self._gain(self.n, best)
        if self.robust and not self._most_gain(best):
            return False
        if best == 1:
            least = self.min_gain * abs(self._mean(1))
            return gain == np.inf or gain > max(ONE_EACH * error, least)
        return gain > 0.0

    def _most_gain(self, best):
        """Whether own models serve most clients better than the best clusters."""
        gains = self._by_client(self._counted(best) - self._counted(self.n))
        return weighted_median(gains, self.held.sum(axis=0)) > 0.0

    def _mean(self, K):
        """Mean held-out loss, as it counts."""
        losses = self._counted(K)
        here = ~np.isnan(losses)
        return float(np.sum(self._share_of(here) * np.where(here, losses, 0.0)))

    def _share_of(self, here):
        """Shares of the rows, of those that there are answers about."""
        if here.all():
            return self.share
        share = np.where(here, self.share, 0.0)
        return share / max(share.sum(), 1e-300)

    def _counted(self, K):
        """Held-out losses as they count, (n_folds, n_clients)."""
        return self._capped(self.losses[K])

    def _capped(self, losses):
        """Losses as they count: if clients may be false, at most some times a median."""
        if not self.robust or not self.held.any():
            return losses
        means = [self._by_client(h) for h in self.losses.values()]
        most = MOST_LOSS * np.median(np.min(means, axis=0)[self.held.any(axis=0)])
        return np.minimum(losses, most) if most > 0 else losses

    def _by_client(self, values):
        """Means over a client's rows held out."""
        here = ~np.isnan(values)
        held, values = np.where(here, self.held, 0.0), np.where(here, values, 0.0)
        return np.sum(held * values, axis=0) / np.maximum(held.sum(axis=0), 1e-300)

    def _gain(self, K, before):
        """Mean gain of K clusters over others, and its standard error."""
        before, losses = self._counted(before), self._counted(K)
        # Who did not answer about one of them judges neither.
        here = ~(np.isnan(before) | np.isnan(losses))
        before, losses = np.where(here, before, 0.0), np.where(here, losses, 0.0)
        share, held = self._share_of(here), np.where(here, self.held, 0.0)
        with np.errstate(invalid="ignore"):
            gain = before - losses
        if not np.isfinite(gain).all():
            return np.inf if np.isfinite(losses).all() else -np.inf, 0.0
        mean, n_folds = float(np.sum(share * gain)), np.count_nonzero(held, axis=0)
        # A single fold has no mean to compare with.
        own = np.where(here, gain, np.nan)
        centre = np.where(n_folds > 1, self._by_client(own), mean)
        lost = np.where(n_folds > 1, n_folds / np.maximum(n_folds - 1, 1), 1.0)
        error = float(np.sqrt(np.sum(lost * (share * (gain - centre)) ** 2)))
        return mean, error

    def final(self, K, best):
        """The fit on all rows, of K clusters: the `best` number, or more if those fit badly."""
        one_each = self.local is not None and K == self.n > 1
        pool = self.penalised(self.pool, self.pool.n_clients if one_each else K)
        if one_each:
            result = self.local(pool)
        else:
            start = self._best_models(pool, K)
            result = self.fit(pool, K, start, None, start is None or K <= self.most_drawn)
            if start is None and self.robust and 1 < K < max(self.losses.keys() - {self.n}):
                own = self._capped(pool.ask(OwnLosses, result.cluster_params[result.labels]))
                loss = self._mean(best)
                most = loss + LOST_GAIN * (self._mean(1) - loss)
                here = ~np.isnan(own)
                if np.average(own[here], weights=pool.client_weights[here]) > most:
                    # Clusters of false clients have taken the place of others.
                    self.histories.append((K, result.history))
                    return self.final(K + 1, best)
        if self.unit is not None:
            result.model = pool.model
        return result

    def _best_models(self, pool, K):
        """The models of one of the folds, those of least loss; None without any."""
        some = [fold.models[K] for fold in self.folds if K in fold.models]
        if not some:
            return None
        losses = pool.ask(Losses, np.concatenate(some), whole=True)
        losses = losses.reshape(pool.n_clients, len(some), -1).min(axis=2).T
        if self.robust:
            losses = [np.minimum(own, MOST_LOSS * np.median(own)) for own in losses]
        losses = [pool.client_weights @ own for own in losses]
        return some[int(np.argmin(np.nan_to_num(losses, nan=np.inf)))]


def _numbers(K, step, last):
    """Numbers of clusters that follow one, up to the last."""
    while K < last:
        K = min(K + max(int(step * K), 1), last)
        yield K


class _Fold:
    """Training rows, held-out rows, and the models fitted so far."""

    def __init__(self, search, train, held, seed):
        self.search, self.train = search, train.lane(int(seed))
        self.held = held.lane()
        self.held.ledger = self.train.ledger
        self.memories = [search.memory() for _ in range(search.width)]
        self.models = {}
        self._own = None
        #: Models of the last number of clusters, and the losses of the clients under them.
        self._left = None, None

    def judge(self, numbers):
        """Result, losses of held-out rows and floats sent for each of some numbers of clusters."""
        ledger = self.train.ledger
        up, down = ledger.up, ledger.down
        starts = self._starts(numbers)
        prepared = np.array([ledger.up - up, ledger.down - down])
        lanes = [self.train] if len(numbers) == 1 else lanes_of(self.train, len(numbers))
        last = [K == numbers[-1] for K in numbers]
        each = zip(numbers, lanes, starts, self.memories, last, strict=False)
        tasks = [partial(self._judge, *known) for known in each]
        with quiet():
            judged = list(together(tasks, lanes, ledger))
        judged[0][-1][:] += prepared
        return judged

    def _judge(self, K, train, start, remembered, last):
        """Result of K clusters, each client's mean loss on the rows held out, and floats sent."""
        ledger, held = train.ledger, self.held.lane()
        held.ledger = ledger
        up, down = ledger.up, ledger.down
        result = self._fit(K, train, start, remembered)
        losses, left = self._losses(result, train, held)
        # Benchmark: benchmarks/generated.py --kinds "8 c" "12 clu" --first 200 --draws 12: of the
        # 29 draws that can be exact IFCA is on 18 (13 without), CLoVE on 19 (17).
        swapped = None if left is None or K == 1 else self._swapped(result.cluster_params, left)
        if swapped is not None:
            again, before = self._fit(K, train, swapped, remembered), result
            then = self._losses(again, train, held)
            if self._sum(then[1]) < self._sum(left):
                result, (losses, left) = again, then
            result.history = _in_turn([before.history, again.history])
        if self.search.grow:
            self.models[K] = result.cluster_params
        if last and left is not None:
            self._left = result.cluster_params, left
        return result, losses, np.array([ledger.up - up, ledger.down - down])

    def _losses(self, result, train, held):
        """Mean loss of each client's model on its rows that were held out, as of all its rows.

        And those of the other rows under each model, where more clusters start from these.
        """
        search = self.search
        if search.judge is not None:
            losses = search.judge(held, result)
            losses = np.where(np.isnan(losses), np.inf, losses)
            if held.answered is not None:
                losses = np.where(held.answered, losses, np.nan)
            return losses, None
        theta, left = result.cluster_params, None
        W, pools = theta[result.labels], [held, train][: 1 + search.corrects]
        asked = [(pool, lambda pool: pool.ask(OwnLosses, W)) for pool in pools]
        if search.grow and len(theta) < search.n:
            asked.append((train, lambda pool: pool.ask(Losses, theta, whole=True)))
        losses = asked_at_once(*asked)
        if len(losses) > len(pools):
            left = self._counted(losses.pop())
        if not search.corrects:
            return losses[0], left
        return with_all_rows(*losses, held.client_weights, train.client_weights), left

    def _counted(self, losses):
        """Losses under some models as they count for where to start."""
        losses = np.nan_to_num(losses, nan=np.inf, posinf=1e300)
        if not self.search.robust:
            return losses
        return np.minimum(losses, MOST_LOSS * np.median(losses.min(axis=1)))

    def _sum(self, losses):
        """Sum of the clients' least losses."""
        return float(self.train.client_weights @ losses.min(axis=1))

    def _fit(self, K, train, start, remembered):
        """Result of K clusters on the rows to fit."""
        search = self.search
        if search.local is not None and K == search.n > 1:
            return self._local()
        pool = search.penalised(train, K)
        drawn = start is None or K <= search.most_drawn
        return search.fit(pool, K, start, remembered, drawn)

    def _local(self):
        """Result of a model for each client."""
        if self._own is None:
            self._own = self.search.local(self.search.penalised(self.train, self.train.n_clients))
        return self._own

    def _starts(self, numbers):
        """Models to start from: those of fewer clusters, and clients' that help others most."""
        train, search = self.train, self.search
        one_each = search.n if search.local is not None else np.inf
        if search.grow is None or not 1 < numbers[0] < one_each:
            return [None] * len(numbers)
        theta = self.models[max(K for K in self.models if K < numbers[0])]
        known, left = self._left
        if known is not theta:
            left = self._counted(train.ask(Losses, theta, whole=True))
        starts = []
        for K in range(len(theta) + 1, numbers[-1] + 1):
            _, model, column = self._most_helpful(left)
            theta, left = np.vstack([theta, model]), np.hstack([left, column])
            if K in numbers:
                starts.append(theta)
        return starts

    @once
    def _candidates(self):
        """Models that may become those of clusters, the clients', and all clients' losses."""
        train, (least, most) = self.train, NOISY_ROWS
        noisy = least < np.median(train.client_sizes) / train.n_params < most
        models = self.search.grow(train) if noisy else self._local().cluster_params
        some = np.arange(len(models))
        if len(some) > MAX_CANDIDATES:
            some = np.sort(train.random_state.choice(some, MAX_CANDIDATES, replace=False))
        losses = np.nan_to_num(train.ask(Losses, models[some], whole=True), nan=np.inf)
        if not noisy:
            # A model with no more rows than parameters interpolates them.
            few = np.flatnonzero(train.client_sizes[some] <= train.n_params)
            losses[some[few], few] = np.inf
        return some, models[some], losses

    def _most_helpful(self, left, typical=None):
        """The candidate that lowers the clients' losses under some models, (n, K), most.

        Returns the sum of the losses with it, its model, and its column of losses.
        """
        some, models, losses = self._candidates
        typical = np.median(left.min(axis=1)) if typical is None else typical
        losses, at = losses.copy(), (some, np.arange(len(some)))
        losses[at] = np.maximum(losses[at], typical)
        sums = self.train.client_weights @ np.minimum(left.min(axis=1)[:, None], losses)
        pick = int(sums.argmin())
        return sums[pick], models[pick], losses[:, [pick]]

    def _swapped(self, theta, left):
        """The models with one of them replaced by a candidate, None if that gains too little."""
        typical = np.median(left.min(axis=1))
        swaps = [
            self._most_helpful(np.delete(left, k, axis=1), typical) for k in range(len(theta))
        ]
        k = int(np.argmin([loss for loss, *_ in swaps]))
        now = self._sum(left)
        if not now - swaps[k][0] > self.search.min_gain * abs(now):
            return None
        return np.vstack([np.delete(theta, k, axis=0), swaps[k][1]])


def _in_turn(histories):
    """Histories of several fits, one after the other."""
    lengths = [len(history["objective"]) for history in histories]
    joined = {}
    for name in dict.fromkeys(name for history in histories for name in history):
        # One model per client has no clusters to compare.
        each = zip(histories, lengths, strict=True)
        joined[name] = np.concatenate([h.get(name, np.full(n, np.nan)) for h, n in each])
    return joined


def _join(histories):
    """The same, with the K that each tried."""
    lengths = [len(history["objective"]) for _, history in histories]
    tried = np.repeat([K for K, _ in histories], lengths)
    return _in_turn([history for _, history in histories]) | {"searched": tried}
