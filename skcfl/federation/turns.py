"""Tasks in lockstep: threads of which one runs at a time, the others wait for their answers.

A task runs until it has sent its messages, and hands its turn to the next one.  When all have
sent theirs, the first takes the answers to its own.  So the messages of all tasks are on the way
at the same time, in an order that depends on nothing but the tasks, and nothing needs a lock.
"""

from __future__ import annotations

import threading
from contextvars import copy_context

from .._progress import quiet

_here = threading.local()


class Abandoned(BaseException):
    """Raised in a task that is not needed any more, because another one has failed."""


class Meter:
    """Bytes that have travelled in the turns of one task.

    Parameters
    ----------
    wire : callable or None
        Returns the bytes ``(up, down)`` that have travelled; None where there is no wire.
    """

    def __init__(self, wire):
        self.wire, self.own, self.since = getattr(wire, "wire", wire), (0, 0), None

    def __call__(self):
        """Bytes ``(up, down)`` in the turns so far."""
        if self.since is None:
            return self.own
        return tuple(a + b - c for a, b, c in zip(self.own, self.wire(), self.since, strict=True))

    def turn(self, begins):
        """A turn begins, or ends."""
        if self.wire is not None:
            self.own, self.since = self(), self.wire() if begins else None


def in_turns(tasks, meters=None):
    """Results of tasks that run in lockstep.

    Parameters
    ----------
    tasks : sequence of callable
        What to run; tasks may run others in lockstep.
    meters : sequence of Meter, default=None
        One for each task.

    Returns
    -------
    results : list

    Raises
    ------
    Exception
        The first that a task raises; the others end before their next message.
    """
    if not len(tasks):
        return []
    group = _Group(getattr(_here, "lane", None))
    meters = [Meter(None) for _ in tasks] if meters is None else meters
    lanes = [_Lane(*pair, group) for pair in zip(tasks, meters, strict=True)]
    group.begin(lanes)
    try:
        group.ended.acquire()
    except BaseException as error:  # the user's interrupt
        group.error = error
        group.ended.acquire()
    if group.error is not None:
        raise group.error
    return [lane.result for lane in lanes]


def pass_turn():
    """Let the other tasks send their messages; to be called before answers are waited for."""
    lane = getattr(_here, "lane", None)
    if lane is not None:
        lane.pass_on()


def check_turn():
    """Raise Abandoned in a task that is not needed any more; to be called before messages."""
    lane = getattr(_here, "lane", None)
    if lane is not None and lane.group.failed:
        raise Abandoned


class _Group:
    """Tasks that were begun together; `outer` is the one that waits for them, if any."""

    def __init__(self, outer):
        self.outer, self.error = outer, None
        self.ring = [] if outer is None else outer.group.ring
        self.left, self.ended = 0, threading.Semaphore(0)

    @property
    def failed(self):
        """Whether a task has failed, of these or of those around."""
        return self.error is not None or (self.outer is not None and self.outer.group.failed)

    def begin(self, lanes):
        """Let the tasks take the place of the one that waits for them."""
        self.left = len(lanes)
        place = 0 if self.outer is None else self.ring.index(self.outer)
        self.ring[place : place + 1] = lanes
        for lane in lanes:
            lane.start()
        lanes[0].turn.release()

    def end(self, lane):
        """Take a task out that has ended."""
        self.left -= 1
        place = self.ring.index(lane)
        if self.left:
            del self.ring[place]
            self.ring[place % len(self.ring)].turn.release()
        else:
            self.ring[place : place + 1] = [] if self.outer is None else [self.outer]
            self.ended.release()


class _Lane(threading.Thread):
    """A task and its turn."""

    def __init__(self, task, meter, group):
        super().__init__(daemon=True, name="skcfl lane")
        self.task, self.meter, self.group, self.result = task, meter, group, None
        self.turn, self.context = threading.Semaphore(0), copy_context()

    def run(self):
        """Run the task, in the context of who began it, from its first turn on."""
        self.turn.acquire()
        _here.lane = self
        self.meter.turn(True)
        try:
            self.result = self.context.run(self._quietly)
        except Abandoned:
            pass
        except BaseException as error:
            self.group.error = self.group.error or error
        finally:
            self.meter.turn(False)
            self.group.end(self)

    def _quietly(self):
        with quiet():
            check_turn()
            return self.task()

    def pass_on(self):
        """Let all others have their turns."""
        ring = self.group.ring
        following = ring[(ring.index(self) + 1) % len(ring)]
        if following is not self:
            self.meter.turn(False)
            following.turn.release()
            self.turn.acquire()
            self.meter.turn(True)
