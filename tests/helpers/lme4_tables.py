"""Tables of lme4 that are small."""

import numpy as np
import pandas as pd

# Diameters of 24 plates (rows) and 6 samples of penicillin (Davies and Goldsmith 1972).
PENICILLIN = """
272326232321 272326232321 252125242420 262325232320 252226222320 242225232219 242023212219
262226242421 242124222220 242124232219 262326242421 252226242420 262426242522 262326232320
262325242422 252225232320 252124232320 252224232319 242123212119 262326242421 252124222218
252225222220 242124222419 242124222118
"""
# Strengths of 10 batches of a paste, three casks each, twice (the same).
PASTES = """
62.8 62.6 60.1 62.3 62.7 63.1 60.0 61.4 57.5 56.9 61.1 58.9 58.7 57.5 63.9 63.1 65.4 63.7 57.1
56.4 56.9 58.6 64.7 64.5 55.1 55.1 54.7 54.2 58.8 57.5 63.4 64.9 59.3 58.1 60.5 60.0 62.5 62.6
61.0 58.7 56.9 57.7 59.2 59.4 65.2 66.0 64.8 64.1 54.8 54.8 64.0 64.0 57.7 56.8 58.3 59.3 59.2
59.2 58.9 56.6
"""
# Yields of six batches of a dyestuff (the same).
DYESTUFF = """
1545 1440 1440 1520 1580 1540 1555 1490 1560 1495 1595 1550 1605 1510 1560
1445 1440 1595 1465 1545 1595 1630 1515 1635 1625 1520 1455 1450 1480 1445
"""
# Cases of a disease, and animals, of 15 herds at up to four times (Lesnoff et al. 2004).
CASES = """
2 3 4 0 3 1 1 8 2 0 2 2 0 2 0 5 0 0 1 3 0 0 1 8 1 3 0 12 2 0 0 0 1 1 0 2 0 5 3 1 2 1 0 0 1 2 0 0
11 0 0 0 1 1 1 0
"""
ANIMALS = """
14 12 9 5 22 18 21 22 16 16 20 10 10 9 6 18 25 24 4 17 17 18 20 16 10 9 5 34 9 6 8 6 22 22 18 22 25
27 22 22 10 8 6 5 21 24 19 23 19 2 3 2 19 15 15 15
"""


def penicillin():
    text = "".join(PENICILLIN.split())
    y = np.array([float(text[k : k + 2]) for k in range(0, len(text), 2)])
    frame = pd.DataFrame({"sample": np.tile(list("ABCDEF"), 24)})
    return frame, y, np.repeat(np.arange(24), 6)


def pastes():
    y = np.array(PASTES.split(), dtype=float)
    frame = pd.DataFrame({"cask": np.tile(np.repeat(list("abc"), 2), 10)})
    return frame, y, np.repeat(list("ABCDEFGHIJ"), 6)


def dyestuff():
    yields = np.array(DYESTUFF.split(), dtype=float)
    return pd.DataFrame({"Yield": yields, "Batch": np.repeat(list("ABCDEF"), 5)})


def cbpp():
    """Incidence of a disease of cattle in herds: cases and animals at four times."""
    herds = np.repeat(np.arange(15), [4, 3] + [4] * 5 + [1] + [4] * 7)
    counts = np.unique(herds, return_counts=True)[1]
    period = np.concatenate([np.arange(1, count + 1) for count in counts]).astype(str)
    columns = {"cases": np.array(CASES.split(), int), "animals": np.array(ANIMALS.split(), int)}
    return pd.DataFrame({"herd": herds, "period": period, **columns})
