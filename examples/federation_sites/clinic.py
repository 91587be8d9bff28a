"""What every site has itself: where its rows are, and what it agrees to
=====================================================================
"""

import os
from pathlib import Path

import pandas as pd

from skcfl.federation import SitePolicy, SiteRows

HERE = Path(__file__).resolve().parent


class Clinic(SiteRows):
    # Answers that fewer than ten patients of a ward stand behind stay here.
    policy = SitePolicy(min_rows=10)

    def load(self):
        folder = Path(os.environ.get("CLINIC_DATA", HERE / "data"))
        table = pd.read_csv(folder / f"{self.name}.csv")
        # With the names of the columns: of arrays nobody sees that the order is another one.
        return table[["age", "severity", "dose"]].astype(float), table["stay"], table["ward"]
