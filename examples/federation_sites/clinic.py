"""What every site has itself: where its rows are, and what it agrees to
=====================================================================
"""

import os
from pathlib import Path

import numpy as np

from skcfl.federation import SitePolicy, SiteRows

HERE = Path(__file__).resolve().parent


class Clinic(SiteRows):
    # Answers that fewer than ten patients of a ward stand behind stay here.
    policy = SitePolicy(min_rows=10)

    def load(self):
        folder = Path(os.environ.get("CLINIC_DATA", HERE / "data"))
        table = np.genfromtxt(
            folder / f"{self.name}.csv", delimiter=",", names=True, dtype=None, encoding="utf-8"
        )
        features = ("age", "severity", "dose")
        X = np.column_stack([table[name] for name in features]).astype(float)
        return X, table["stay"], table["ward"]
