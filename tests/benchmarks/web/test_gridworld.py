"""The gridworld page: its numbers against the algorithms' own, in a real browser."""

from __future__ import annotations

import json
import re
from itertools import chain, count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.algos import policy_iteration, q_learning, sarsa, value_iteration
from manyseeds.benchmarks.web.gridworld import first_world
from manyseeds.benchmarks.web.page import HERE
from manyseeds.envs.tabular import grid
from manyseeds.runs.planning import Sweep
from tests.algos.test_planning import solved
from tests.benchmarks.web.test_browser import opened

World = dict[str, Any]
PAGE = "gridworld.html"
DEFAULT: World = {
    "rows": 8,
    "columns": 8,
    "start": [0, 0],
    "goals": [[7, 7]],
    "traps": [[4, 4]],
    "walls": [],
    "rewards": [],
    "jumps": [],
    "gamma": 0.9,
    "slip": 0.0,
    "stepCost": 0.0,
    "bumpCost": 0.0,
    "goalReward": 1.0,
    "trapReward": -1.0,
    "restart": False,
}


def random_world(seed: int, **settings: Any) -> World:
    """A world with every setting drawn; the goals may be cut off, or there may be none."""
    rng = np.random.default_rng(seed)
    rows, columns = (int(x) for x in rng.integers(3, 11, 2))
    cells = [list(divmod(int(x), columns)) for x in rng.permutation(rows * columns)]

    def take(most: int) -> list[list[int]]:
        return [cells.pop() for _ in range(min(int(rng.integers(0, most + 1)), len(cells) - 2))]

    start, goals, traps = cells.pop(), [cells.pop(), *take(2)], take(3)
    walls = take(rows * columns // 4)
    jumps = [[*cells.pop(), *start, float(rng.normal())] for _ in take(1)]
    rewards = [[*cell, float(rng.normal())] for cell in [*take(3), goals[-1]]]
    return {
        "rows": rows,
        "columns": columns,
        "start": start,
        "goals": goals if rng.uniform() < 0.9 else [],
        "traps": traps,
        "walls": walls,
        "rewards": rewards,
        "jumps": jumps,
        "gamma": float(rng.choice([0.0, 0.5, 0.9, 0.95, rng.uniform(0, 0.99)])),
        "slip": float(rng.choice([0.0, 0.2, 2 / 3, rng.uniform()])),
        "stepCost": float(rng.choice([0.0, 0.04, rng.uniform(-0.1, 1)])),
        "bumpCost": float(rng.choice([0.0, rng.uniform()])),
        "goalReward": float(rng.choice([1.0, 10.0, rng.normal()])),
        "trapReward": float(rng.choice([-1.0, -10.0, rng.normal()])),
        "restart": bool(rng.uniform() < 0.3),
        **settings,
    }


def outcome(world: World, state: int, direction: int) -> tuple[int, float]:
    """The cell that a step in a direction leads to, and its reward; made without the engine."""
    cell, start = [*divmod(state, world["columns"])], world["start"]
    if cell in world["goals"] + world["traps"] + world["walls"]:
        return state, 0.0
    reward = -world["stepCost"]
    for *ends, pays in world["jumps"]:
        if ends[:2] == cell:
            return ends[2] * world["columns"] + ends[3], reward + pays
    move = envs.gridworld.MOVES[direction]
    sizes = world["rows"], world["columns"]
    to = [min(max(x + dx, 0), n - 1) for x, dx, n in zip(cell, move, sizes, strict=True)]
    if to == cell or to in world["walls"]:
        return state, reward - world["bumpCost"]
    kinds = ("goal" * (to in world["goals"])) or ("trap" * (to in world["traps"]))
    pays = {tuple(at): x for *at, x in world["rewards"]}.get(
        tuple(to), world[f"{kinds}Reward"] if kinds else 0.0
    )
    if kinds == "trap" and world["restart"]:
        to = start
    return to[0] * world["columns"] + to[1], reward + pays


def environment(world: World) -> envs.TabularEnv:
    """The world with tables P and R. R is the mean where two directions lead to one cell."""
    X = world["rows"] * world["columns"]

    def at(cells: list[list[int]]) -> list[int]:
        return [row * world["columns"] + column for row, column in cells]

    P = torch.zeros(4, X, X, dtype=torch.float64)
    paid = torch.zeros_like(P)
    for state in range(X):
        for action in range(4):
            for turn, p in (
                (0, 1 - world["slip"]),
                (1, world["slip"] / 2),
                (-1, world["slip"] / 2),
            ):
                to, reward = outcome(world, state, (action + turn) % 4)
                P[action, state, to] += p
                paid[action, state, to] += p * reward
    ends = torch.zeros(X, dtype=torch.bool)
    ends[at(world["goals"] + world["traps"] + world["walls"])] = True
    first = torch.zeros(X, dtype=torch.float64)
    first[at([world["start"]])] = 1.0
    spec = envs.EnvSpec("World-v0", num_actions=4, time_limit=1000, num_states=X)
    layout = envs.Layout({"": grid(world["rows"], world["columns"])}, ("←", "↓", "→", "↑"))
    return envs.TabularEnv(spec, P, paid / P.clamp(min=1e-300), ends, first, layout)


def undiscounted(name: str, world: World) -> list[Sweep]:
    """The sweeps of an algorithm's own functions at gamma 1, which its flags do not take.

    Its rules are the page's: the tolerance bounds the residual, an evaluation stops at a 200th of
    it, and is solved exactly after 1,000 sweeps.
    """
    env, sweeps = environment(world), []
    V = torch.zeros_like(env.start)

    def record(iteration: int) -> tuple[Tensor, float, float]:
        q = value_iteration.action_values(V, env, 1.0)
        residual = (q.amax(0) - V).abs().max().item()
        actions = value_iteration.greedy(q).tolist()
        sweeps.append(Sweep(iteration, residual, V.tolist(), actions))
        return q, residual, 1e-10 * max(1.0, V.abs().max().item())

    if name == "value":
        while True:
            q, residual, accuracy = record(0)
            if residual <= accuracy:
                return sweeps
            V = q.amax(0)
    policy = torch.full((len(V), 4), 0.25, dtype=V.dtype)
    for iteration in count(1):
        ways = [SimpleNamespace(gamma=1.0, tolerance=0, evaluation=x) for x in ("sweeps", "exact")]
        by_sweeps, exact = (policy_iteration.evaluate(V, policy, env, config) for config in ways)
        for values in chain(islice(by_sweeps, 1000), exact):
            change, V = (values - V).abs().max().item(), values
            q, residual, accuracy = record(iteration)
            if change <= accuracy / 200:
                break
        if residual <= accuracy:
            return sweeps
        policy = policy_iteration.improve(policy, V, q, accuracy)
    raise AssertionError


def ending(world: World) -> bool:
    """Whether some way leads to an end from every cell."""
    env = environment(world)
    reached = env.ends.clone()
    for _ in env.ends:
        reached |= ((env.P > 0) & reached).any(-1).any(0)
    return bool(reached.all())


ENDLESS = {"stepCost": 0.3, "gamma": 1.0, "rewards": [], "jumps": [], "trapReward": -1.0}
CORNERS: World = {**DEFAULT, "goals": [[7, 7], [0, 7]], "traps": [[4, 4], [4, 5]], "gamma": 1.0}
CORNERS |= {"stepCost": 1.0, "rewards": [[2, 2, 0.5], [7, 7, -3.0]], "bumpCost": 0.5}
UNDISCOUNTED = [
    {**DEFAULT, "gamma": 1.0},
    CORNERS,
    *(random_world(seed, **ENDLESS) for seed in range(100, 110)),
]
WORLDS = [
    DEFAULT,
    {**CORNERS, "gamma": 0.95},
    # In world 10 a change equals the bound of an evaluation up to rounding.
    *(random_world(seed) for seed in range(41) if seed != 10),
]
AROUND = [[1, 2], [3, 2], [2, 1], [2, 3]]
CLOSED = {**DEFAULT, "rows": 4, "columns": 4, "goals": [[3, 3]], "traps": [[3, 0]]}
CLOSED |= {"walls": [[0, 1], [1, 0]]}
MORE = [pytest.param(world, marks=pytest.mark.slow) for world in WORLDS[9:]]


def test_default_world_is_the_project_s_own() -> None:
    first = first_world()
    assert first == {**DEFAULT, "start": (0, 0), "goals": [(7, 7)], "traps": [(4, 4)]}
    ours, native = environment(DEFAULT), envs.make_tabular("Gridworld-v0")
    for name in ("P", "ends"):
        assert torch.equal(getattr(ours, name), getattr(native, name))
    assert torch.equal(ours.P * ours.R, native.P * native.R)


SWEEPS = """([world, name]) => {
  const model = GridworldEngine.makeModel(world);
  let plans;
  try { plans = GridworldEngine.plan(model, world.gamma); } catch (error) { return error.reason; }
  return plans[name]
    .filter((step) => step.kind === "sweep" || (name === "value" && step.kind === "start"))
    .map((step) => {
      const q = GridworldEngine.actionValues(step.V, model, world.gamma);
      return {
        V: [...step.V], residual: step.residual, iteration: step.iteration ?? 0,
        actions: [...step.V.keys()].map((s) => GridworldEngine.greedyActions(q, s)[0]),
      };
    });
}"""


@pytest.mark.parametrize("algorithm", ["policy", "value"])
@pytest.mark.parametrize("world", [*WORLDS[:9], *UNDISCOUNTED, *MORE])
def test_sweeps_are_the_algorithms(engine: Any, algorithm: str, world: World) -> None:
    """Values, residual and greedy action of every sweep, the sweeps and the policies counted."""
    steps = engine.evaluate(SWEEPS, [world, algorithm])
    if world["gamma"] == 1 and not ending(world):
        assert steps == "no way"
        return
    if world["gamma"] == 1:
        sweeps = undiscounted(algorithm, world)
    else:
        sweeps = solved(algorithm, environment(world), gamma=world["gamma"])[1].sweeps
    assert len(steps) == len(sweeps)
    for ours, theirs in zip(steps, sweeps, strict=True):
        np.testing.assert_allclose(ours["V"], theirs.values, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(ours["residual"], theirs.residual, rtol=1e-9, atol=1e-9)
        assert ours["iteration"] == theirs.iteration
        assert ours["actions"] == theirs.actions


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"walls": [[0, 1], [1, 0]]}, "no way"),
        ({"goals": [], "traps": [], "gamma": 1}, "no way"),
        ({"rewards": [[2, 2, 1]]}, "endless gain"),
        ({"rewards": [[2, 2, 1]], "stepCost": 0.6}, ""),
        ({"jumps": [[2, 2, 2, 4, 4]], "stepCost": 1}, "endless gain"),
        ({"goals": []}, "endless rest"),
        ({"goals": [], "stepCost": 0.1}, ""),
        ({"goalReward": -5, "rewards": [[2, 2, 1], *([*x, -1] for x in AROUND)]}, "too slow"),
    ],
)
def test_no_discount_where_it_is_not_proper(
    engine: Any, changes: dict[str, Any], reason: str
) -> None:
    world = {**DEFAULT, **changes, "gamma": 1}
    found = engine.evaluate(SWEEPS, [world, "value"])
    assert (found if isinstance(found, str) else "") == reason


def test_boards_of_sutton_and_barto(engine: Any) -> None:
    """Numbers of the book's figures 3.2, 3.5, 4.1, and the shortest ways of examples 6.6, 8.1."""
    engine.add_script_tag(path=HERE / "static" / "gridworld_state.js")
    found = engine.evaluate(
        """() => Object.values(GridworldState.EXAMPLES["Sutton and Barto"]).map((changes) => {
          const world = { ...FIRST, ...changes };
          const model = GridworldEngine.makeModel(world);
          const { policy, value } = GridworldEngine.plan(model, world.gamma);
          const improved = policy.find((step) => step.kind === "improvement");
          return { random: [...improved.V], optimal: [...value.at(-1).V], start: model.start };
        })""".replace("FIRST", json.dumps(first_world()))
    )
    jumps, corners, cliff, maze = found
    random = "3.3 8.8 4.4 5.3 1.5 1.5 3.0 2.3 1.9 0.5 0.1 0.7 0.7 0.4 -0.4 -1.0 -0.4 -0.4 -0.6 -1.2"
    random += " -1.9 -1.3 -1.2 -1.4 -2.0"
    optimal = "22.0 24.4 22.0 19.4 17.5 19.8 22.0 19.8 17.8 16.0 17.8 19.8 17.8 16.0 14.4 16.0 17.8"
    optimal += " 16.0 14.4 13.0 14.4 16.0 14.4 13.0 11.7"
    for ours, printed in ((jumps["random"], random), (jumps["optimal"], optimal)):
        np.testing.assert_allclose(ours, [float(x) for x in printed.split()], atol=0.0501)
    expected = [0, -14, -20, -22, -14, -18, -20, -20, -20, -20, -18, -14, -22, -20, -14, 0]
    np.testing.assert_allclose(corners["random"], expected, atol=1e-7)
    assert cliff["optimal"][cliff["start"]] == -13
    assert maze["optimal"][maze["start"]] == pytest.approx(0.95**13)  # 14 steps


@pytest.mark.parametrize("module", [q_learning, sarsa])
@pytest.mark.parametrize("world", [*WORLDS[:4], CLOSED, *MORE[:8]])
def test_learners_are_the_algorithms(engine: Any, module: Any, world: World) -> None:
    """From the page's random numbers the project's own functions make the same walk and table."""
    name, env = module.__name__.rpartition(".")[2], environment(world)
    steps = 1100 if world is CLOSED else 400  # only there an episode ends at the time limit
    alpha, epsilon, gamma = 0.3, 0.2, world["gamma"]
    found = engine.evaluate(
        """([world, name, settings, steps]) => {
          const model = GridworldEngine.makeModel(world);
          const learner = GridworldEngine.makeLearner(name, model, settings);
          const { uniform } = learner;
          let drawn;
          learner.uniform = () => {
            drawn.push(uniform());
            return drawn.at(-1);
          };
          const transitions = [];
          for (let i = 0; i < steps; i++) {
            drawn = [];
            GridworldEngine.learn(learner, model, settings);
            transitions.push({ ...learner.last, drawn });
          }
          return { transitions, q: [...learner.q] };
        }""",
        [world, name, {"gamma": gamma, "alpha": alpha, "epsilon": epsilon, "seed": 3}, steps],
    )
    table = module.QTable.__new__(module.QTable)
    table.q = q = torch.zeros(1, len(env.ends), 4, dtype=torch.float64)

    def act(state: int, noise: list[float]) -> int:
        draw = torch.tensor([[noise]], dtype=torch.float64)
        return table.act(torch.tensor([[state]]), draw, torch.tensor([[epsilon]])).item()

    state, length = int(env.start.argmax()), 0
    next_action = None  # SARSA's, of which the page has drawn the first before it began
    for x in found["transitions"]:
        noise = x["drawn"]
        if name == "q_learning":
            choice, noise = noise[:3], noise[3:]
            assert x["action"] == act(state, choice)
        elif next_action is not None:
            assert x["action"] == next_action
        assert x["state"] == state
        turn = 0 if noise[0] < 1 - world["slip"] else -1 if noise[0] < 1 - world["slip"] / 2 else 1
        action = x["action"]
        end, reward = outcome(world, state, (action + turn) % 4)
        assert x["next"] == end
        np.testing.assert_allclose(x["reward"], reward)
        length += 1
        assert x["terminated"] == env.ends[end]
        assert x["truncated"] == (length == 1000 and not env.ends[end])
        obs, actions, final = (torch.tensor([[value]]) for value in (state, action, end))
        paid = torch.tensor([[x["reward"]]], dtype=torch.float64)
        over = x["terminated"] or x["truncated"]
        state = int(env.start.argmax()) if over else end
        if name == "sarsa":
            chosen = act(end, noise[1:4])
            assert x["nextAction"] == chosen
            next_values = sarsa.lookup(q, final, torch.tensor([[chosen]]))
            next_action = act(state, noise[4:]) if over else chosen
        else:
            next_values = q_learning.rows(q, final).amax(-1)
        ended = torch.tensor([[x["terminated"]]])
        error = module.td_error(q, obs, actions, paid, next_values, ended, gamma)
        module.add_(q, obs, actions, alpha * error)
        length = 0 if over else length
    np.testing.assert_allclose(found["q"], q.flatten(), rtol=1e-9, atol=1e-9)


# ---- The page --------------------------------------------------------------------------------

END = f"{PAGE}#policy=end&value=end"


def optimum(world: World) -> tuple[np.ndarray, np.ndarray]:
    """V* [X] and whether each action is among the best [X, A], by the project's own functions."""
    env, gamma = environment(world), world["gamma"]
    if gamma == 1:
        values = np.array(undiscounted("value", world)[-1].values)
    else:
        values, _ = solved("value", env, gamma=gamma)
    q = value_iteration.action_values(torch.from_numpy(values), env, gamma)
    best = (q >= q.amax(0) - 1e-12) & ~env.ends
    return values, best.T.numpy()


def check_shown(page: Any, method: str, world: World) -> None:
    """The board of a method shows the optimum of a world, values and all tied arrows."""
    values, best = optimum(world)
    board = f'.method[data-method="{method}"] .grid'
    ends = environment(world).ends.tolist()
    numbers = page.locator(f"{board} .number").all_inner_texts()
    for text, value, end in zip(numbers, values, ends, strict=True):
        assert end == (text == "")
        shown = float(text.replace("\N{MINUS SIGN}", "-") or 0)
        assert shown == pytest.approx(value, abs=0.005001)
    arrows = page.eval_on_selector_all(
        f"{board} .cell",
        "cells => cells.map((c) => [...c.querySelectorAll('polygon')]"
        ".map((p) => p.getAttribute('class') !== 'none'))",
    )
    assert arrows == best.tolist()


def cell(page: Any, method: str, row: int, column: int) -> Any:
    return page.locator(f'.method[data-method="{method}"] .cell').nth(row * 8 + column)


def drag(page: Any, start: Any, end: Any) -> None:
    """With the mouse, over the cells between."""
    boxes = [x.bounding_box() for x in (start, end)]
    points = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
    page.mouse.move(*points[0])
    page.mouse.down()
    page.mouse.move(*points[1], steps=12)
    page.mouse.up()


def settle(page: Any) -> None:
    """Until what was changed is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)
        settle(page)


def state(page: Any) -> str:
    """The address, without the steps that are shown."""
    return str(page.evaluate("location.hash")).removesuffix("policy=end&value=end").rstrip("&")


def test_it_begins_with_one_button_to_press(browser: Any, site: Path) -> None:
    with opened(browser, site, PAGE) as page:
        assert page.locator("button.main:visible").all_inner_texts() == ["Start: sweep once"]
        numbers = page.locator("#plan .number:not(:empty)")
        assert {*numbers.all_inner_texts()} == {"0.00"}
        page.locator("button.main:visible").click()
        for method, values in (("policy", ["-0.25"] * 4 + ["0.25"] * 2), ("value", ["1.00"] * 2)):
            texts = page.locator(f'.method[data-method="{method}"] .number').all_inner_texts()
            texts = [x.replace("\N{MINUS SIGN}", "-") for x in texts if x not in ("", "0.00")]
            assert sorted(texts) == values
        assert page.locator("button.main:visible").inner_text() == "Next step"
        assert page.evaluate("location.hash") == "#policy=1&value=1"
        page.get_by_role("tab", name="Learn by walking").click()
        settle(page)
        assert page.locator("button.main:visible").all_inner_texts() == ["One episode"]


def test_discount_and_goal_as_a_reader_changes_them(browser: Any, site: Path) -> None:
    with opened(browser, site, END) as page:
        check_shown(page, "value", DEFAULT)
        page.get_by_label("Discount").fill("0.5")
        drag(page, cell(page, "value", 7, 7), cell(page, "value", 2, 5))
        settle(page)
        changed = {**DEFAULT, "gamma": 0.5, "goals": [[2, 5]]}
        for method in ("policy", "value"):
            check_shown(page, method, changed)
        assert state(page) == "#gamma=0.5&goal=2.5"
        page.reload()
        check_shown(page, "policy", changed)
        page.get_by_role("button", name="Reset").click()
        page.get_by_role("button", name="Last").first.click()
        check_shown(page, "policy", DEFAULT)


def test_numbers_as_they_are_typed(browser: Any, site: Path) -> None:
    """Half a number is waited for; a wrong one is told, and leaves what counted before."""
    changed = {**DEFAULT, "gamma": 0.5}
    with opened(browser, site, END) as page:
        gamma, problem = page.get_by_label("Discount"), page.locator(".problem")
        gamma.click(click_count=3)
        for key in "0.5":
            page.keyboard.type(key)
            assert not problem.is_visible()
        settle(page)
        check_shown(page, "value", changed)
        for text, why in (("3", "from 0 to 1"), ("0.955", "from 0 to 1, with two decimals")):
            gamma.fill(text)
            settle(page)
            assert problem.inner_text() == f"gamma {text}: must be a number {why}."
        page.keyboard.press("Tab")
        assert gamma.input_value() == "0.5"
        check_shown(page, "value", changed)


def test_without_discount(browser: Any, site: Path) -> None:
    """Where a wall leaves a cell without a way to an end, the discount comes back, and why."""
    with opened(browser, site, f"{END}&goal=7.7_0.7&stepCost=1") as page:
        page.get_by_label("Discount").fill("1")
        settle(page)
        world = {**DEFAULT, "goals": [[7, 7], [0, 7]], "stepCost": 1.0, "gamma": 1.0}
        for method in ("policy", "value"):
            check_shown(page, method, world)
        cell(page, "policy", 0, 1).click()
        cell(page, "policy", 1, 0).click()
        settle(page)
        words = "so γ is 0.99: row 1, column 1 has no way to an end of the episode. Remove a wall"
        assert words in page.locator(".problem").inner_text()
        check_shown(page, "value", {**world, "walls": [[0, 1], [1, 0]], "gamma": 0.99})


def test_things_are_dragged_and_painted(browser: Any, site: Path) -> None:
    with opened(browser, site, END) as page:
        drag(page, cell(page, "policy", 0, 0), cell(page, "policy", 3, 0))
        drag(page, cell(page, "policy", 4, 4), cell(page, "policy", 6, 7))
        cell(page, "policy", 2, 2).click()
        drag(page, cell(page, "policy", 2, 2), cell(page, "policy", 2, 4))
        drag(page, cell(page, "policy", 5, 1), cell(page, "policy", 5, 3))  # paints three
        drag(page, cell(page, "policy", 7, 7), cell(page, "policy", 6, 7))  # taken: stays
        settle(page)
        world = {**DEFAULT, "start": [3, 0], "traps": [[6, 7]]}
        world["walls"] = [[2, 4], [5, 1], [5, 2], [5, 3]]
        check_shown(page, "value", world)
        assert state(page) == "#start=3.0&trap=6.7&walls=2.4_5.1_5.2_5.3"
        cell(page, "policy", 5, 2).click()
        page.get_by_role("radio", name="Trap").check()
        drag(page, cell(page, "value", 0, 6), cell(page, "value", 0, 7))
        page.get_by_role("radio", name="Goal").check()
        cell(page, "value", 1, 1).click()
        cell(page, "value", 5, 1).click()  # a wall: stays
        page.get_by_role("radio", name="Reward").check()
        page.locator("#reward").fill("-0.25")
        drag(page, cell(page, "value", 7, 5), cell(page, "value", 7, 7))  # the goal's, too
        page.locator("#reward").fill("1000")
        cell(page, "value", 3, 3).click()
        settle(page)
        words = "reward 1000: must be a number from -100 to 100."
        assert page.locator(".problem").inner_text() == words
        page.get_by_role("radio", name="Erase").check()
        drag(page, cell(page, "value", 7, 5), cell(page, "value", 6, 5))
        cell(page, "value", 5, 1).click()
        settle(page)
        world |= {"walls": [[2, 4], [5, 3]], "traps": [[0, 6], [0, 7], [6, 7]]}
        world |= {"goals": [[1, 1], [7, 7]], "rewards": [[7, 6, -0.25], [7, 7, -0.25]]}
        for method in ("policy", "value"):
            check_shown(page, method, world)
        label = "row 8, column 8: goal, reward \N{MINUS SIGN}0.25"
        assert page.get_by_role("gridcell", name=label, exact=True).count() == 2
        page.reload()
        check_shown(page, "value", world)


@pytest.mark.slow
def test_a_finger_builds_walls_and_drags(browser: Any, site: Path) -> None:
    with opened(browser, site, END, 390, has_touch=True, is_mobile=True) as page:
        cell(page, "policy", 2, 2).tap()
        settle(page)
        check_shown(page, "policy", {**DEFAULT, "walls": [[2, 2]]})
        cell(page, "policy", 2, 2).tap()
        settle(page)
        check_shown(page, "policy", DEFAULT)

        swipe(page, cell(page, "policy", 7, 7), cell(page, "policy", 5, 7))  # the goal: dragged
        check_shown(page, "policy", {**DEFAULT, "goals": [[5, 7]]})
        before = page.evaluate("scrollY")
        swipe(page, cell(page, "policy", 6, 2), cell(page, "policy", 2, 2))  # empty: scrolls
        check_shown(page, "policy", {**DEFAULT, "goals": [[5, 7]]})
        assert page.evaluate("scrollY") > before


def test_the_board_comes_first_on_a_phone(browser: Any, site: Path) -> None:
    with opened(browser, site, PAGE, 390) as page:
        top = page.locator(".grid").first.bounding_box()["y"]
        heading = page.locator("h1").bounding_box()
        assert top - heading["y"] - heading["height"] < 150
        assert page.locator(".knobs, .lead").first.bounding_box()["y"] > top
        for tab in ("Plan with a model", "Learn by walking"):
            page.get_by_role("tab", name=tab).click()
            bar = page.locator(".bar").bounding_box()
            assert bar["y"] + bar["height"] == 900  # of the window's height
            assert bar["height"] < 160


def swipe(page: Any, start: Any, end: Any) -> None:
    """With a finger, over the cells between."""
    start.scroll_into_view_if_needed()
    boxes = [x.bounding_box() for x in (start, end)]
    first, last = ((box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes)
    touch = page.context.new_cdp_session(page)

    def send(kind: str, *points: tuple[float, float]) -> None:
        at = [{"x": x, "y": y} for x, y in points]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})

    send("touchStart", first)
    for k in range(1, 9):
        send("touchMove", tuple(a + (b - a) * k / 8 for a, b in zip(first, last, strict=True)))
        settle(page)
    send("touchEnd")
    settle(page)


def test_keyboard_moves_and_paints(browser: Any, site: Path) -> None:
    with opened(browser, site, END) as page:
        cell(page, "policy", 0, 0).focus()
        press(page, "Enter", "ArrowDown", "ArrowDown", "Enter")  # the start, two rows down
        press(page, "ArrowRight", "Enter")  # a wall beside it
        world = {**DEFAULT, "start": [2, 0], "walls": [[2, 1]]}
        check_shown(page, "policy", world)
        assert page.evaluate("document.activeElement.textContent") == "row 3, column 2: wall"
        press(page, "ArrowLeft", "Enter", "ArrowDown", "Escape")  # and back
        check_shown(page, "policy", world)
        page.get_by_role("radio", name="Wall").focus()
        press(page, "ArrowRight")  # the brush of goals
        cell(page, "policy", 2, 0).focus()
        press(page, "ArrowDown", "Enter", "ArrowRight", "ArrowRight", "Enter", "Enter")
        press(page, "ArrowDown", "ArrowDown", "Escape")  # picked up, and put back
        check_shown(page, "policy", {**world, "goals": [[3, 0], [3, 2], [7, 7]]})


def test_examples(browser: Any, site: Path) -> None:
    """Each one gives an address that gives it back, at the start of its story."""
    with opened(browser, site, PAGE) as page:
        options = page.locator("#example option").all_inner_texts()[1:]
        assert len(options) == 9
        addresses = set()
        for name in options:
            page.locator("#example").select_option(name)
            settle(page)
            addresses.add(page.evaluate("location.hash"))
            page.reload()
            assert page.locator("#example").input_value() == name
            assert not page.locator(".problem").is_visible()
            assert page.locator("button.main:visible").inner_text() == "Start: sweep once"
        assert len(addresses) == 9


@pytest.mark.parametrize(
    "address", ["policy=60&value=5", "gamma=1&slip=0.5", "tab=learn&episodes=9"]
)
def test_one_number_format(browser: Any, site: Path, address: str) -> None:
    """Two decimals on boards, in tables, formulas, charts and what a screen reader reads."""
    with opened(browser, site, f"{PAGE}#{address}") as page:
        parts = page.evaluate(
            """[...document.querySelectorAll(".app :not(option)")].flatMap((e) => [...e.childNodes])
              .filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.data)"""
        )
        numbers = re.findall(r"\d+\.\d+(?:e\S+)?", "\n".join(parts))
        assert len(numbers) > 120
        assert not [x for x in numbers if not re.fullmatch(r"\d+\.\d\d", x)]


@pytest.mark.slow
def test_steps_of_both_methods(browser: Any, site: Path) -> None:
    with opened(browser, site, PAGE) as page:

        def click(method: str, *names: str) -> str:
            """What is said after the last of these buttons."""
            box = page.locator(f'.method[data-method="{method}"]')
            for name in names:
                box.get_by_role("button", name=name, exact=True).click()
            return str(box.locator(".status").inner_text())

        assert "Sweep 2 of 14" in click("value", "Sweep", "Sweep")
        numbers = page.locator('.method[data-method="value"] .number').all_inner_texts()
        assert sorted(x for x in numbers if x not in ("", "0.00")) == ["0.90"] * 3 + ["1.00"] * 2
        assert "Sweep 1 of 14" in click("value", "Back")
        assert "evaluating the random policy" in click("policy", "Sweep")
        assert "Improved to policy 2" in click("policy", "Next improvement")
        assert "The random policy is evaluated" in click("policy", "Back")
        assert page.evaluate("location.hash").endswith("&value=1")
        click("policy", "Improve", "Last")
        check_shown(page, "policy", DEFAULT)
        assert page.evaluate("location.hash") == "#policy=end&value=1"
        assert "all values are 0" in click("policy", "First")


@pytest.mark.slow
def test_learners_on_the_page(browser: Any, site: Path) -> None:
    with opened(browser, site, PAGE) as page:
        page.get_by_role("tab", name="Learn by walking").click()
        page.get_by_role("button", name="100 episodes", exact=True).click()
        status = page.locator('.method[data-method="q_learning"] .status')
        ready = """[...document.querySelectorAll("#learn .status")].every(
          (e) => e.textContent.startsWith("100 episodes"))"""
        page.wait_for_function(ready)
        first = status.inner_text()
        assert "episodes=100" in page.evaluate("location.hash")
        page.reload()
        page.wait_for_function(ready)
        assert status.inner_text() == first  # the same random numbers
        page.get_by_role("button", name="One step").click()
        page.get_by_role("button", name="Walk").click()
        page.wait_for_timeout(500)
        page.get_by_role("button", name="Pause").click()
        steps = int(status.inner_text().split("episodes, ")[1].split(" steps")[0].replace(",", ""))
        assert steps > int(first.split("episodes, ")[1].split(" steps")[0].replace(",", "")) + 1
