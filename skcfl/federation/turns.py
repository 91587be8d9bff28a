"""Tasks in lockstep: threads of which one runs at a time, the others wait for their answers.

A task runs until it waits for answers, and hands its turn to the next one.  When all wait, the
requests of all go to each host in one message.  What is sent depends on nothing but the tasks, and
nothing needs a lock.
"""

import threading
from contextlib import contextmanager
from contextvars import copy_context

from .._progress import quiet

_here = threading.local()


class Abandoned(BaseException):
    """Raised in a task that is not needed any more, because another one has failed."""


class Meter:
    """Bytes of one task: of messages that several tasks share, equal parts."""

    def __init__(self):
        self.up = self.down = 0.0

    def __call__(self):
        """Bytes ``(up, down)`` so far."""
        return int(self.up), int(self.down)


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
    meters = [Meter() for _ in tasks] if meters is None else meters
    lanes = [_Lane(*pair, group) for pair in zip(tasks, meters, strict=True)]
    group.begin(lanes)
    try:
        group.ended.acquire()
    except BaseException as error:  # the user's interrupt
        group.error = error
        group.ended.acquire()
    if group.outer is None:
        group.ring.dismiss()
    if group.error is not None:
        raise group.error
    return [lane.result for lane in lanes]


def pass_turn():
    """Let the other tasks send their messages; to be called before answers are waited for."""
    lane = getattr(_here, "lane", None)
    if lane is not None:
        lane.pass_on()


def post(transport, request):
    """Send a request; those of other tasks to the same host go in the same message.

    Parameters
    ----------
    transport : Transport
        The way to the host.
    request : tuple
        As of :meth:`Transport.start`.

    Returns
    -------
    wait : callable
        As of :meth:`Transport.start`.
    """
    lane = getattr(_here, "lane", None)
    if lane is not None:
        return _Ticket(lane.group.ring, lane.meter, transport, request).wait
    held = getattr(_here, "held", None)
    if held is not None:
        return _Ticket(held, Meter(), transport, request).wait
    return transport.start(request)


@contextmanager
def in_one_message():
    """Send the requests that are posted inside in one message a host, at the end.

    Requests of a task in lockstep wait for those of the other tasks anyway.
    """
    if getattr(_here, "lane", None) is not None or getattr(_here, "held", None) is not None:
        yield
        return
    _here.held = _Ring()
    try:
        yield
        _here.held.send()
    finally:
        _here.held = None


def check_turn():
    """Raise Abandoned in a task that is not needed any more; to be called before messages."""
    lane = getattr(_here, "lane", None)
    if lane is not None and lane.group.failed:
        raise Abandoned


class _Ring(list):
    """Tasks in the order of their turns, and requests that are not sent yet, by host."""

    def __init__(self):
        super().__init__()
        self.waiting = {}
        #: Threads without a task.
        self.idle = []

    def dismiss(self):
        """End the threads, of which none has a task."""
        for worker in self.idle:
            worker.turn.release()
        for worker in self.idle:
            worker.join()

    def send(self):
        """Send what waits, one message a host."""
        waiting, self.waiting = self.waiting, {}
        for tickets in waiting.values():
            _Message(tickets)


class _Ticket:
    """A request of a task."""

    def __init__(self, ring, meter, transport, request):
        self.ring, self.meter = ring, meter
        self.transport, self.request, self.message = transport, request, None
        self.ring.waiting.setdefault(id(transport), []).append(self)

    def wait(self):
        """The reply, or what was raised for it."""
        if self.message is None:
            self.ring.send()
        message, self.message = self.message, None  # no cycle that holds what is large
        return message.reply(self)


class _Message:
    """Requests of several tasks to one host."""

    def __init__(self, tickets):
        self.tickets, self.transport, self.replies = tickets, tickets[0].transport, None
        before = self.transport.wire_bytes[1]
        try:
            self.receive = self.transport.start_several([ticket.request for ticket in tickets])
        except Exception as error:
            self.receive, self.replies = None, [error] * len(tickets)
        for ticket in tickets:
            ticket.message = self
            ticket.meter.down += (self.transport.wire_bytes[1] - before) / len(tickets)

    def reply(self, ticket):
        """The reply to one of the requests."""
        if self.replies is None:
            before = self.transport.wire_bytes[0]
            try:
                self.replies = self.receive()
            except Exception as error:
                self.replies = [error] * len(self.tickets)
            self.receive = None
            for each in self.tickets:
                each.meter.up += (self.transport.wire_bytes[0] - before) / len(self.tickets)
        reply = self.replies[self.tickets.index(ticket)]
        if isinstance(reply, Exception):
            raise reply
        return reply


class _Group:
    """Tasks that were begun together; `outer` is the one that waits for them, if any."""

    def __init__(self, outer):
        self.outer, self.error = outer, None
        self.ring = _Ring() if outer is None else outer.group.ring
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


class _Worker(threading.Thread):
    """A thread for one task after the other: to start one takes as long as a small request."""

    def __init__(self):
        super().__init__(daemon=True, name="skcfl lane")
        self.turn, self.lane = threading.Semaphore(0), None
        self.start()

    def run(self):
        """Run tasks, each when it has its turn, until there is none."""
        while True:
            self.turn.acquire()
            if self.lane is None:
                return
            self.lane.run(self)


class _Lane:
    """A task and its turn."""

    def __init__(self, task, meter, group):
        self.task, self.meter, self.group, self.result = task, meter, group, None
        self.turn, self.context = None, copy_context()

    def start(self):
        """Take a thread, which waits for its turn."""
        idle = self.group.ring.idle
        worker = idle.pop() if idle else _Worker()
        worker.lane, self.turn = self, worker.turn

    def run(self, worker):
        """Run the task, in the context of who began it."""
        _here.lane = self
        try:
            self.result = self.context.run(self._quietly)
        except Abandoned:
            pass
        except BaseException as error:
            self.group.error = self.group.error or error
        finally:
            worker.lane = None
            self.group.ring.idle.append(worker)
            self.group.end(self)

    def _quietly(self):
        with quiet():
            check_turn()
            return self.task()

    def pass_on(self):
        """Let all others have their turns; requests are sent once one of them waits."""
        ring = self.group.ring
        following = ring[(ring.index(self) + 1) % len(ring)]
        if following is not self:
            following.turn.release()
            self.turn.acquire()
