"""Three clinics, each with its own table, find out which of their wards are alike.
================================================================================

In NVFlare's simulator (the extra ``nvflare``), from the root of the repository::

    python examples/federation_sites/job.py

With ``--prod FOLDER``, the startup kit of an administrator, it runs at a provisioned server and
clinics, on this machine or elsewhere; see README.rst.
"""

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SITES = ["north", "south", "east"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prod", metavar="FOLDER", help="startup kit of an administrator")
    parser.add_argument("--workspace", default="/tmp/nvflare/skcfl", help="of the simulator")
    arguments = parser.parse_args()

    # The simulated sites are processes that look for clinic.py here.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(HERE))
    from nvflare.recipe import ProdEnv, SimEnv

    from skcfl import IFCARegressor
    from skcfl.federation.nvflare import fit_recipe, load_fitted

    if arguments.prod:
        # The kit's folder has the administrator's name, which the certificate is for.
        kit = Path(arguments.prod).resolve()
        env = ProdEnv(startup_kit_location=str(kit), username=kit.name)
    else:
        env = SimEnv(clients=SITES, workspace_root=arguments.workspace)
    recipe = fit_recipe(
        IFCARegressor(n_clusters=2, random_state=0),
        "clinic:Clinic",
        name="wards",
        min_sites=len(SITES),
    )
    run = recipe.run(env)
    try:
        folder = run.get_result(clean_up=False)
    except KeyboardInterrupt:
        kit = arguments.prod
        print(f"\nThe job goes on. To end it: nvflare job abort {run.job_id} --startup-kit {kit}")
        sys.stdout.flush()
        os._exit(130)  # threads of NVFlare's session would keep this process
    model = load_fitted(folder)
    lost = set(model.missing_clients_)
    for ward, label in zip(model.groups_, model.labels_, strict=True):
        print(f"{ward}: {'missing' if ward in lost else f'cluster {label}'}")
    for name, values in zip(model.coef_names_, model.cluster_coef_.T, strict=True):
        print(f"{name}: {' '.join(f'{value:.2f}' for value in values)}")
    print(f"{model.calls_} calls, {model.floats_up_} floats up, {model.floats_down_} down")


if __name__ == "__main__":
    main()
