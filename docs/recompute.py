"""Five cells of the published tables again, from the raw curves: numpy and pandas alone.

.venv/bin/python docs/recompute.py
"""

from pathlib import Path

import numpy as np
import pandas as pd

RESULTS = Path(__file__).parents[1] / "results"
SCALES = {  # scores of a random policy and of the reference
    "CartPole-v1": (22.1, 500.0),
    "Acrobot-v1": (-498.9, -69.1),
    "Pendulum-v1": (-1232.0, -150.0),
}
CELLS = "CartPole-v1/ppo CartPole-v1/dqn Acrobot-v1/a2c Pendulum-v1/ppo Pendulum-v1/trpo"
scores, verdicts = (pd.read_csv(RESULTS / "tables" / f"{x}.csv") for x in ("scores", "verdicts"))


def seeds(env: str, algo: str, run: str) -> pd.DataFrame:
    """Of each seed of a run: its final score, the area under its curve, its late score."""
    rows = pd.read_parquet(RESULTS / "runs" / env / algo / "curve.parquet")
    rows = rows[(rows["run"] == run) & (rows["mode"] == "greedy") & (rows["seed"] < 1000)]
    curves = rows[rows["episodes"] == 32].pivot(
        index="seed", columns="timestep", values="return_mean"
    )
    at = curves.columns.to_numpy(dtype=float)
    auc = pd.Series(np.trapezoid(curves.to_numpy(), at) / at[-1], curves.index)
    # An evaluation of the last fifth may be late by as long as an update takes.
    late = curves.loc[:, at >= 0.775 * at[-1]].mean(axis=1)
    final = rows[rows["episodes"] == 100].set_index("seed")["return_mean"]
    return pd.DataFrame({"final": final, "auc": auc, "late": late}).sort_index()


failed = False
for env, algo in (cell.split("/") for cell in CELLS.split()):
    row = scores[(scores["env"] == env) & (scores["algo"] == algo) & scores["headline"]].iloc[0]
    ours, theirs = (seeds(env, name, row["run"]) for name in (algo, f"sb3-{algo}"))
    equal = [
        len(ours) == row["n"],
        *(np.isclose(ours[m].mean(), row[f"{m}_mean"]) for m in ("final", "auc")),
    ]
    for measure in ("auc", "late"):
        judged = verdicts[(verdicts["env"] == env) & (verdicts["algo"] == algo)]
        judged = judged[judged["measure"] == measure].iloc[0]
        d = ours[measure].iloc[:300].mean() - theirs[measure].iloc[: judged["look"]].mean()
        equal.append(np.isclose(d / (SCALES[env][1] - SCALES[env][0]), judged["difference"]))
    failed |= not all(equal)
    print(env, algo, f"{ours['final'].mean():.1f}", "equal" if all(equal) else f"differs: {equal}")
raise SystemExit(failed)
