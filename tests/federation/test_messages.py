"""The table of calls: what comes up is checked, what is sent is counted."""

import numpy as np

from skcfl.calls import CALLS, Call

SIZES = dict(n=5, K=3, p=4, s=2, C=3, q=2, f=6, v=3, h=2, m=2, u=2, k=3, j=3, b=4, e=3)


def call_of(down, up):
    return type("Probe", (Call,), {"down": down, "up": up}, abstract=True)


def test_what_is_counted():
    theta, w = np.zeros((3, 4)), np.zeros((5, 4))
    own = np.array([True, False, True, True, False])
    objectives = {"w": w, "own": None}
    update = {**objectives, "center": None, "steps": np.ones(5)}
    prototypes = np.zeros((3, 2))
    partial = {"w": w[:, :2], "shared": np.arange(4) < 2, "prototypes": prototypes}
    for call, arguments, how, *wanted in (
        ("objectives", {"w": w, "own": own}, {}, 8, 5),
        ("objectives", {"w": None, "own": ~own | own}, {}, 0, 5),
        ("local_update", update, {"later": True}, 20, 0),
        ("partial_update", partial, {}, 5 * 2 + 5 * 6, 5 * 2 + 5),
        ("partial_moves", {**partial, "theta": theta[:, :2]}, {}, 5 * 2, 5 * 2 + 5),
        ("prototype_update", {"prototypes": None}, {}, 0, 5 * (6 + 3 + 1)),
    ):
        assert CALLS[call].floats(arguments, SIZES, **how) == tuple(wanted), (call, how)


def test_bytes_of_a_place():
    """Up and down: what travels once, and what is each client's own."""
    theta, w, labels = np.zeros((3, 4), np.float32), np.zeros((5, 4)), np.arange(5) % 3
    answers = {"losses": np.zeros((5, 3))}
    assert CALLS["losses"].bytes({"theta": theta}, answers) == ((0, 48), (120, 0))
    objectives = {"w": w, "own": np.ones(5, dtype=bool)}
    assert CALLS["objectives"].bytes(objectives, {"values": w[:, 0]}) == ((0, 0), (40, 165))
    own = {"theta": w[:2], "labels": labels, "weights": None, "damping": np.zeros(2)}
    H = {"H": np.zeros((2, 4, 4))}
    assert CALLS["hessians"].bytes(own, H) == ((256, 64 + 16), (0, 40))
    own["theta"] = w[:3]  # most clusters are of one client
    assert CALLS["hessians"].bytes(own, H) == ((0, 0), (256, 96 + 16 + 40))


def test_what_is_the_same_for_all_clients_travels_once():
    down = {"w": "n p", "rates": "n", "own": "n", "theta": "K p", "steps": ""}
    message = call_of(down, {})
    w, rates = np.arange(4.0), np.arange(5.0)
    sent = {
        **{"w": np.broadcast_to(w, (5, 4)), "rates": rates, "own": None, "steps": 3},
        "theta": np.broadcast_to(w, (3, 4)),
    }
    some = {name: message.own(name, value, [4, 1]) for name, value in sent.items()}
    assert some["w"].tolist() == [w.tolist()] * 2 and some["rates"].tolist() == [4, 1]
    for arguments, n in ((sent, 5), (some, 2)):
        packed = message.packed(arguments)
        assert packed["w"].shape == (1, 4) and packed["rates"] is arguments["rates"]
        assert packed["theta"] is sent["theta"] and packed["steps"] == 3
        for name, value in message.unpacked(packed, n).items():
            assert np.array_equal(value, arguments[name])
    told = {"w": sent["w"], "own": None}
    assert CALLS["objectives"].bytes(told, {"values": rates}) == ((0, 32), (40, 0))
