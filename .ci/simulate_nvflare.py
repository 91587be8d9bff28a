"""One fit in NVFlare's simulator, of the sites of examples/federation_sites, end to end.

Needs the extra ``nvflare``. The sites are processes of their own; what they and the server find
must be what one process finds on the same tables.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

SITES = Path(__file__).resolve().parents[1] / "examples" / "federation_sites"


def main():
    """Fit, and compare."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITES), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(SITES))
    from clinic import Clinic
    from nvflare.recipe import SimEnv

    from skcfl import IFCARegressor
    from skcfl.federation.nvflare import fit_recipe, load_fitted

    names = ["north", "south"]
    model = IFCARegressor(n_clusters=2, random_state=0)
    with tempfile.TemporaryDirectory() as folder:
        recipe = fit_recipe(model, "clinic:Clinic", min_sites=2)
        recipe.export(folder)
        files = {file.name for file in Path(folder).rglob("*") if file.is_file()}
        # No code: sites may forbid it.
        assert files == {"config_fed_client.json", "config_fed_server.json", "meta.json"}, files
        run = recipe.run(SimEnv(clients=names, workspace_root=folder, log_config="concise"))
        found = load_fitted(run.get_result())
        (report,) = Path(folder).rglob("skcfl_report.json")
        report = json.loads(report.read_text())
    rows = [Clinic(name).named() for name in names]
    wanted = model.fit(*(np.concatenate(part) for part in zip(*rows, strict=True)))
    assert found.groups_.tolist() == wanted.groups_.tolist() and len(found.groups_) == 5
    assert found.labels_.tolist() == wanted.labels_.tolist()
    np.testing.assert_allclose(found.params_, wanted.params_, rtol=1e-10)
    assert (found.calls_, found.floats_up_) == (wanted.calls_, wanted.floats_up_)
    assert found.missing_clients_.size == 0 and report["failures"] == []
    exchanges = report["messages"] / len(names)
    print(
        f"NVFlare's simulator: the fit of {len(names)} sites is that of one process; "
        f"{exchanges:.0f} exchanges, {1e3 * report['seconds'] / exchanges:.0f} ms each"
    )


if __name__ == "__main__":
    main()
