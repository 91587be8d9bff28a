"""The ledger counts; what every call of a pool books is tested with the pool."""

from hypothesis import given
from hypothesis import strategies as st
from trials import examples

from skcfl.federation.ledger import Ledger

amounts = st.integers(0, 10**12)


@examples(18)
@given(rounds=st.lists(st.lists(st.tuples(amounts, amounts), max_size=4), max_size=5))
def test_rounds_add_up_to_the_totals(rounds):
    ledger, marks = Ledger(), []
    for calls in rounds:
        for up, down in calls:
            ledger.book(up=up, down=down)
        marks.append(ledger.since_mark())
    assert marks == [(sum(u for u, _ in c), sum(d for _, d in c)) for c in rounds]
    assert (ledger.up, ledger.down) == tuple(map(sum, zip(*marks, strict=True))) or not marks
    assert ledger.since_mark() == (0, 0)


def test_counts_are_plain_integers():
    """They end up in attributes and pickles: no numpy scalars, and no overflow."""
    import numpy as np

    ledger = Ledger()
    ledger.book(up=np.int32(2**31 - 1), down=np.float64(3.0))
    ledger.book(up=np.int32(2**31 - 1))
    assert (ledger.up, ledger.down) == (2**32 - 2, 3)
    assert type(ledger.up) is type(ledger.down) is int


def test_what_travels_together_counts_as_the_longest_series():
    total, others = Ledger(), [Ledger(), Ledger(), Ledger()]
    total.book(up=1, clients=4)
    for k, ledger in enumerate(others):
        for _ in range(2 * k):
            ledger.book(up=3, down=5, clients=4 - k, shared_bytes=(8, 0), own_bytes=(0, 16))
    total.take_over(others)
    assert (total.up, total.down) == (1 + 6 * 3, 6 * 5)
    assert (total.calls, total.client_calls) == (1 + 4, 4 + 4 * 2)
    assert (total.shared_bytes, total.own_bytes) == ((48, 0), (0, 96))
    for ledger in others:
        # All but the time of the last mark.
        assert {**vars(ledger), "_mark": 0} == {**vars(Ledger()), "_mark": 0}
        assert ledger.since_mark() == (0, 0)


def test_a_round_counts_what_has_travelled():
    ledger, travelled = Ledger(), [(0, 0)]
    ledger.wire = lambda: travelled[-1]
    ledger.close_round()
    ledger.book(up=3, down=4)
    ledger.book(up=1)
    travelled.append((100, 70))
    columns = ledger.close_round()
    assert columns.pop("seconds") >= 0.0
    assert tuple(columns) == ("floats_up", "floats_down", "calls", "bytes_up", "bytes_down")
    assert tuple(columns.values()) == (4, 4, 2, 100, 70)
    assert ledger.wire_bytes == (100, 70) and ledger.since_mark() == (0, 0)
    # The exchanges of others that asked at the same time travel by the same wire.
    other = Ledger()
    other.wire = ledger.wire
    ledger.take_over([other])
    assert other.wire_bytes == (100, 70) and Ledger().wire_bytes == (0, 0)
    assert other.close_round()["bytes_up"] == 0
