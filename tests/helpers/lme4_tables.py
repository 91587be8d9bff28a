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


def penicillin():
    text = "".join(PENICILLIN.split())
    y = np.array([float(text[k : k + 2]) for k in range(0, len(text), 2)])
    frame = pd.DataFrame({"sample": np.tile(list("ABCDEF"), 24)})
    return frame, y, np.repeat(np.arange(24), 6)


def pastes():
    y = np.array(PASTES.split(), dtype=float)
    frame = pd.DataFrame({"cask": np.tile(np.repeat(list("abc"), 2), 10)})
    return frame, y, np.repeat(list("ABCDEFGHIJ"), 6)
