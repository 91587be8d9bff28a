"""Progress of a fit: the one hook of all loops, for lines on the screen and for callbacks.

A fit is a tree of tasks:

    fit
        n_clusters      candidate, candidate, ...       what is tried and judged
        starts          start (rounds), ...             each with stages of its own
        polished starts polished start (polishing), ...
        rounds          round, round, ...               or iterations, exchanges, ...
        polishing       polishing step, ...

A loop opens a stage and tells it of every item that is done; it is asked to end where a callback
of scikit-learn (1.9 or newer) returns True:

    with loop("round", max_iter) as rounds:
        for k in rounds:
            ...
            rounds.tell(objective=objective)
            if small_enough:
                break

The listener is a context variable, so that nothing has to be handed down: there is none outside
of a fit, in worker threads and in `quiet` parts.  A stage names no rows: what callbacks are given
is handed over by the estimator that was given it.
"""

import logging
import time
from contextlib import contextmanager
from contextvars import ContextVar

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9
    from functools import wraps

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing: this scikit-learn has no callbacks."""

    def with_callbacks(method):
        """As in newer versions, without callbacks."""

        @wraps(method)
        def unmanaged(*args, **kwargs):
            return method(*args, **kwargs)

        return unmanaged


# Seconds without a line after which verbose=1 says where a stage is.
PATIENCE = 10.0
# Seconds between two lines of the log about items of a stage; those between are for debugging.
LOGGED_EVERY = 1.0

logger = logging.getLogger("skcfl.fit")

_listener = ContextVar("skcfl_progress", default=None)


def loop(item, most, name=None, sure=False):
    """A stage of many short items: communication rounds, iterations of a solver, folds.

    ``verbose=1`` prints a line at its end, ``verbose=2`` a line per item.

    Parameters
    ----------
    item : str
        What an item is called, in the singular.
    most : int or None
        Largest number of items.
    name : str, default=None
        Name of the stage; None is `item` in the plural.
    sure : bool, default=False
        True if there will be so many.

    Returns
    -------
    stage : Stage
    """
    return _stage(name or f"{item}s", item, most, sure, False)


def series(name, item, total, sure=True):
    """A stage of long items, which may have stages of their own: starts, values that are tried.

    ``verbose=1`` prints a line per item. What is one item only is no stage.

    Parameters
    ----------
    name : str
        Name of the stage.
    item : str
        What an item is called, in the singular.
    total : int or None
        Number of items.
    sure : bool, default=True
        Whether there will be so many, or that many at most.

    Returns
    -------
    stage : Stage
    """
    return _stage(name, item, total, sure, True)


def _stage(name, item, total, sure, long):
    progress = _listener.get()
    if progress is None or (long and sure and total == 1):
        return Stage(total)
    return _Followed(progress, name, item, total, sure, long)


def remark(text):
    """Print something that is of interest to ``verbose=1``, outside of all stages."""
    progress = _listener.get()
    if progress is not None and progress.verbose:
        progress.print(text)


def announce(text):
    """Log a warning, which is seen where no logging is configured, and print it as a remark."""
    logger.warning(text)
    remark(text)


@contextmanager
def quiet():
    """Hide the progress of what runs in here."""
    token = _listener.set(None)
    try:
        yield
    finally:
        _listener.reset(token)


class Stage:
    """Items one after another, without any display.

    Attributes
    ----------
    stopped : bool
        True if a callback has asked to end this stage.
    """

    stopped = False

    def __init__(self, total=None):
        self.total = total

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def __iter__(self):
        """Numbers of the items, from 1, until the last one or a callback's end."""
        k = 0
        while (self.total is None or k < self.total) and not self.stopped:
            k += 1
            self.begin(k)
            yield k

    def begin(self, k=None):
        """Begin an item, number `k`, if none has begun; the loop over a stage does."""

    def tell(self, result=None, k=None, **values):
        """The item has ended.

        Parameters
        ----------
        result : callable, default=None
            ``result()`` is the Result as if the fit ended here, for callbacks that ask for it.
        k : int, default=None
            Number of the item, where that is more than one after the last.
        **values : float, int or str
            To be printed.

        Returns
        -------
        stop : bool
            If True, end the stage.
        """
        return False

    @contextmanager
    def item(self, label=None, leaf=False):
        """An item with stages of its own; it gives a function to tell of its values by.

        Parameters
        ----------
        label : str, default=None
            What it is, in the line that is printed.
        leaf : bool, default=False
            If True, callbacks do not see its stages.
        """
        yield _nothing

    def remark(self, text):
        """Print something that is of interest to ``verbose=2``."""


def _nothing(**values):
    """Drops the values of an item that is not displayed."""


class _Followed(Stage):
    """A stage that is printed, or passed to callbacks."""

    def __init__(self, progress, name, item, total, sure, long):
        super().__init__(total)
        self.progress, self.name, self.unit = progress, name, item
        self.sure, self.long = sure, long
        self.k, self.label, self.values = 0, None, {}
        self.context = self.leaf = None

    def __enter__(self):
        progress = self.progress
        most = None if self.long and not self.sure else self.total
        self.context = progress.subtask(progress.context, self.name, most)
        self.depth = len(progress.open)
        progress.open.append(self)
        self.start = time.perf_counter()
        return self

    def __exit__(self, kind, *error):
        progress = self.progress
        if kind is None:
            if self.leaf is not None:  # an item that was left without a word
                progress.end(self.leaf)
            progress.end(self.context)
            if not self.long and self.k:
                progress.log([self, *progress.open[: self.depth]], ended=True)
                if progress.verbose == 1 and self.depth == 0:
                    progress.print(self._line(plural=True, left=False))
        progress.open.remove(self)

    def begin(self, k=None):
        self.k = self.k if k is None else k - 1
        room = self.total is None or self.k < self.total
        if self.leaf is None and self.context is not None and room:
            self.leaf = self.progress.subtask(self.context, self.unit, 0)

    def tell(self, result=None, k=None, **values):
        self.begin()
        self.k, self.values = self.k + 1 if k is None else k, values
        self._stop(self.progress.end(self.leaf, result))
        self.leaf = None
        self._print(2)
        return self.stopped

    @contextmanager
    def item(self, label=None, leaf=False):
        progress, outer = self.progress, self.progress.context
        context = progress.subtask(self.context, self.unit, 0 if leaf else None)
        self.k, self.label, self.values = self.k + 1, label, {}
        progress.context = None if leaf else context
        try:
            yield self.values.update
        finally:
            progress.context = outer
        self._stop(progress.end(context))
        self._print(1 + bool(self.depth))

    def remark(self, text):
        if self.progress.verbose >= 2:
            self.progress.print(f"{'  ' * (self.depth + 1)}{text}")

    def _stop(self, asked):
        self.stopped |= asked
        self.progress.stopped |= asked

    def _print(self, level):
        """Print the item that has ended, if that is of interest or nothing was for a while."""
        progress = self.progress
        progress.log([self, *progress.open[: self.depth]])
        if progress.verbose >= level:
            progress.print("  " * self.depth * (progress.verbose > 1) + self._line())
        elif progress.verbose and time.perf_counter() - progress.printed > PATIENCE:
            path = [stage._place() for stage in progress.open[:-1]]
            progress.print(", ".join([*path, self._line()]))

    def _place(self, plural=False):
        """Which item of how many."""
        most = "" if self.sure else "at most "
        total = "" if self.total is None else f" of {most}{max(self.total, self.k)}"
        if self.label is not None:
            return f"{self.label} ({self.k}{total})"
        return f"{self.name}: {self.k}{total}" if plural else f"{self.unit} {self.k}{total}"

    def _line(self, plural=False, left=True):
        """Position of the stage, its result, the time so far and the time that is left."""
        values = ", ".join(map(_written, self.values, self.values.values()))
        place = self._place(plural)
        spent = time.perf_counter() - self.start
        times = _seconds(spent)
        if left and self.total is not None and self.k < self.total:
            rest = _seconds(spent / self.k * (self.total - self.k))
            times += f", {'about' if self.sure else 'at most'} {rest} left"
        return f"{place}{(', ' if plural else ': ') + values if values else ''} ({times})"


class _Progress:
    """Printer and callbacks of a fit."""

    def __init__(self, estimator, context, given, published, costs=None):
        self.estimator, self.context = estimator, context
        self.costs, self.logged = costs, -LOGGED_EVERY
        self.given, self.published = given, published
        self.verbose = int(estimator.verbose)
        self.open, self.stopped = [], False
        self.start = self.printed = time.perf_counter()

    def print(self, text):
        """A line on the screen."""
        print(f"[{type(self.estimator).__name__}] {text}", flush=True)
        self.printed = time.perf_counter()

    def log(self, stages, ended=False):
        """Write a line about a stage, the first, in others, into the log."""
        now = time.perf_counter()
        due = (ended and len(stages) == 1) or now - self.logged >= LOGGED_EVERY
        level = logging.INFO if due else logging.DEBUG
        if not logger.isEnabledFor(level):
            return
        if level == logging.INFO:
            self.logged = now
        stage, *outer = stages
        places = [one._place() for one in outer]
        line = ", ".join([*places, stage._line(plural=ended, left=not ended)])
        costs = "" if self.costs is None else self.costs()
        name = type(self.estimator).__name__
        logger.log(level, "%s: %s%s", name, line, costs and f"; {costs}")

    def subtask(self, context, name, most):
        """Begin a task of callbacks, if there are any."""
        if context is None:
            return None
        task = context.subcontext(task_name=name, max_subtasks=most)
        return task.call_on_fit_task_begin(estimator=self.estimator, **self.given)

    def end(self, context, result=None):
        """End a task of callbacks; whether one of them asks to end what it is part of."""
        if context is None:
            return False
        attributes = None
        if result is not None and self.published is not None:
            attributes = lambda: self.published(result())  # noqa: E731
        return context.call_on_fit_task_end(
            estimator=self.estimator, reconstruction_attributes=attributes, **self.given
        )


@with_callbacks
def follow(estimator, solve, publish, given=None, published=None, costs=None):
    """Run a fit, and tell who listens.

    Parameters
    ----------
    estimator : estimator
        With the parameter ``verbose``.
    solve : callable
        ``solve()`` returns a result.
    publish : callable
        ``publish(result)`` gives the estimator its fitted attributes.
    given : dict, default=None
        What scikit-learn's callbacks are handed at every task, by name.
    published : callable, default=None
        ``published(result)``: the attributes of an estimator whose fit ends at a result on the
        way, None where it has none.
    costs : callable, default=None
        ``costs()``: what was sent so far, as text for the log.

    Returns
    -------
    result : Result
        What `solve` has returned.
    stopped : bool
        True if a callback has ended a stage.
    """
    context = None
    if hasattr(estimator, "_init_callback_context"):
        context = estimator._init_callback_context(max_subtasks=None)
    if not getattr(estimator, "_skl_callbacks", None):
        context = None
    logs = logger.isEnabledFor(logging.INFO)
    if context is None and not (estimator.verbose or logs):
        with quiet():
            result = solve()
        publish(result)
        return result, False
    progress = _Progress(estimator, context, given or {}, published, costs)
    if context is not None:
        context.call_on_fit_task_begin(estimator=estimator, **progress.given)
    token = _listener.set(progress)
    try:
        result = solve()
    finally:
        _listener.reset(token)
    publish(result)
    if context is not None:
        context.call_on_fit_task_end(
            estimator=estimator, reconstruction_attributes={}, **progress.given
        )
    if progress.verbose or logs:
        number = getattr(estimator, "n_clusters_", None)
        number = "" if number is None else f": {number} cluster{'s' if number > 1 else ''}"
        line = f"fitted{number} ({_seconds(time.perf_counter() - progress.start)})"
        if progress.verbose:
            progress.print(line)
        costs = "" if costs is None else f"; {costs()}"
        logger.info("%s: %s%s", type(estimator).__name__, line, costs)
    return result, progress.stopped


def _written(name, value):
    """A value and its name, as they are printed."""
    if isinstance(value, str):
        return value
    if name == "n_clusters":
        return f"{value} cluster{'s' if value > 1 else ''}"
    digits = 3 if name in {"change", "gap", "residual"} else 6
    return f"{name.replace('_', ' ').replace('held out', 'held-out')} {value:.{digits}g}"


def _seconds(seconds):
    """A time with its units."""
    if seconds < 9.95:
        return f"{seconds:.{1 if seconds >= 0.995 else 2}f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
