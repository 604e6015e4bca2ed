"""The gridworld page: its numbers against the algorithms' own, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyseeds import envs
from manyseeds.algos import q_learning, sarsa, value_iteration
from manyseeds.envs.tabular import deterministic, grid
from tests.algos.test_planning import solved
from tests.benchmarks.web.test_browser import opened

World = dict[str, Any]
PAGE = "gridworld.html"
DEFAULT: World = {
    "size": 8,
    "start": [0, 0],
    "goal": [7, 7],
    "trap": [4, 4],
    "walls": [],
    "gamma": 0.9,
    "slip": 0.0,
    "stepCost": 0.0,
    "goalReward": 1.0,
    "trapReward": -1.0,
}


def random_world(seed: int) -> World:
    """A world with every setting drawn; the goal may be cut off."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(4, 11))
    cells = [list(divmod(int(x), size)) for x in rng.permutation(size**2)]
    return {
        "size": size,
        "start": cells[0],
        "goal": cells[1],
        "trap": cells[2],
        "walls": cells[3 : 3 + rng.integers(0, size**2 // 4)],
        "gamma": float(rng.choice([0.0, 0.5, 0.9, 0.95, rng.uniform(0, 0.99)])),
        "slip": float(rng.choice([0.0, 0.2, 2 / 3, rng.uniform()])),
        "stepCost": float(rng.choice([0.0, 0.04, rng.uniform(-0.1, 1)])),
        "goalReward": float(rng.choice([1.0, 10.0, rng.normal()])),
        "trapReward": float(rng.choice([-1.0, -10.0, rng.normal()])),
    }


WORLDS = [DEFAULT, *(random_world(seed) for seed in range(40))]
CLOSED = {**DEFAULT, "size": 4, "goal": [3, 3], "trap": [3, 0], "walls": [[0, 1], [1, 0]]}
MORE = [pytest.param(world, marks=pytest.mark.slow) for world in WORLDS[9:]]


def environment(world: World) -> envs.TabularEnv:
    """The world with tables P and R, made without the engine."""
    size, X = world["size"], world["size"] ** 2
    start, goal, trap = (
        row * size + column for row, column in map(world.get, ("start", "goal", "trap"))
    )
    walls = {row * size + column for row, column in world["walls"]}

    def move(state: int, action: int) -> tuple[int, float]:
        row, column = divmod(state, size)
        down, right = envs.gridworld.MOVES[action]
        to = [min(max(x, 0), size - 1) for x in (row + down, column + right)]
        target = to[0] * size + to[1]
        return (state if target in walls else target), 0.0

    intended, _ = deterministic(X, 4, move)
    sides = (intended.roll(1, 0) + intended.roll(-1, 0)) / 2
    ends = torch.zeros(X, dtype=torch.bool)
    ends[[goal, trap, *walls]] = True
    P = (1 - world["slip"]) * intended + world["slip"] * sides
    P[:, ends] = torch.eye(X, dtype=torch.float64)[ends]
    entered = torch.full((X,), -world["stepCost"], dtype=torch.float64)
    entered[goal] += world["goalReward"]
    entered[trap] += world["trapReward"]
    R = entered.expand(4, X, X) * ~ends.view(1, X, 1)
    first = torch.zeros(X, dtype=torch.float64)
    first[start] = 1.0
    spec = envs.EnvSpec("World-v0", num_actions=4, time_limit=1000, num_states=X)
    layout = envs.Layout({"": grid(size, size)}, ("←", "↓", "→", "↑"))
    return envs.TabularEnv(spec, P, R, ends, first, layout)


def test_default_world_is_the_project_s_own() -> None:
    ours, native = environment(DEFAULT), envs.make_tabular("Gridworld-v0")
    for name in ("P", "ends"):
        assert torch.equal(getattr(ours, name), getattr(native, name))
    assert torch.equal(ours.P * ours.R, native.P * native.R)


@pytest.mark.parametrize("algorithm", ["policy", "value"])
@pytest.mark.parametrize("world", [*WORLDS[:9], *MORE])
def test_sweeps_are_the_algorithms(engine: Any, algorithm: str, world: World) -> None:
    """Values, residual and greedy action of every sweep, the sweeps and the policies counted."""
    settings = {"evaluation": "sweeps"} if algorithm == "policy" else {}
    values, plan = solved(algorithm, environment(world), gamma=world["gamma"], **settings)
    steps = engine.evaluate(
        """([world, name]) => {
          const model = GridworldEngine.makeModel(world);
          return GridworldEngine[name + "Iteration"](model, world.gamma)
            .filter((step) => step.kind === "sweep" || (name === "value" && step.kind === "start"))
            .map((step) => {
              const q = GridworldEngine.actionValues(step.V, model, world.gamma);
              return {
                V: [...step.V], residual: step.residual, iteration: step.iteration ?? 0,
                actions: [...step.V.keys()].map((s) => GridworldEngine.greedyActions(q, s)[0]),
              };
            });
        }""",
        [world, algorithm],
    )
    assert len(steps) == len(plan.sweeps)
    np.testing.assert_allclose(steps[-1]["V"], values, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(steps, plan.sweeps, strict=True):
        np.testing.assert_allclose(ours["V"], theirs.values, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(ours["residual"], theirs.residual, rtol=1e-9, atol=1e-9)
        assert ours["iteration"] == theirs.iteration
        assert ours["actions"] == theirs.actions


@pytest.mark.parametrize("module", [q_learning, sarsa])
@pytest.mark.parametrize("world", [*WORLDS[:4], CLOSED, *MORE[:8]])
def test_learners_are_the_algorithms(engine: Any, module: Any, world: World) -> None:
    """From the page's random numbers the project's own functions make the same walk and table."""
    name, env = module.__name__.rpartition(".")[2], environment(world)
    steps = 1100 if world is CLOSED else 400  # only there an episode ends at the time limit
    straight = environment({**world, "slip": 0.0}).P
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
        action, end = x["action"], straight[(x["action"] + turn) % 4, state].argmax().item()
        assert x["next"] == end
        np.testing.assert_allclose(x["reward"], env.R[action, state, end])
        length += 1
        assert x["terminated"] == env.ends[end]
        assert x["truncated"] == (length == 1000 and not env.ends[end])
        obs, actions, final = (torch.tensor([[value]]) for value in (state, action, end))
        reward = torch.tensor([[x["reward"]]], dtype=torch.float64)
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
        error = module.td_error(q, obs, actions, reward, next_values, ended, gamma)
        module.add_(q, obs, actions, alpha * error)
        length = 0 if over else length
    np.testing.assert_allclose(found["q"], q.flatten(), rtol=1e-9, atol=1e-9)


# ---- The page --------------------------------------------------------------------------------


def optimum(world: World) -> tuple[np.ndarray, np.ndarray]:
    """V* [X] and whether each action is among the best [X, A], by the project's own functions."""
    env = environment(world)
    values, _ = solved("value", env, gamma=world["gamma"])
    r = value_iteration.expected_reward(env.P, env.R)
    q = value_iteration.action_values(torch.from_numpy(values), env.P, r, env.ends, world["gamma"])
    best = (q >= q.amax(0) - 1e-12) & ~env.ends
    return values, best.T.numpy()


def check_shown(page: Any, method: str, world: World) -> None:
    """The board of a method shows the optimum of a world, values and all tied arrows."""
    values, best = optimum(world)
    board = f'.method[data-method="{method}"] .grid'
    numbers = page.locator(f"{board} .number").all_inner_texts()
    ends = environment(world).ends.tolist()
    for text, value, end in zip(numbers, values, ends, strict=True):
        shown = float(text.replace("\N{MINUS SIGN}", "-") or 0)
        assert end == (text == "")
        assert shown == pytest.approx(value, rel=0.5 if "e" in text else 0.01, abs=0.006)
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


def test_discount_and_goal_as_a_reader_changes_them(browser: Any, site: Path) -> None:
    with opened(browser, site, PAGE) as page:
        check_shown(page, "value", DEFAULT)
        page.get_by_label("Discount").fill("0.5")
        drag(page, cell(page, "value", 7, 7), cell(page, "value", 2, 5))
        settle(page)
        changed = {**DEFAULT, "gamma": 0.5, "goal": [2, 5]}
        for method in ("policy", "value"):
            check_shown(page, method, changed)
        assert page.evaluate("location.hash") == "#gamma=0.5&goal=2.5"
        page.reload()
        check_shown(page, "policy", changed)
        page.get_by_role("button", name="Reset").click()
        settle(page)
        check_shown(page, "policy", DEFAULT)


def test_numbers_as_they_are_typed(browser: Any, site: Path) -> None:
    """Half a number is waited for; a wrong one is told, and leaves what counted before."""
    changed = {**DEFAULT, "gamma": 0.5}
    with opened(browser, site, PAGE) as page:
        gamma, problem = page.get_by_label("Discount"), page.locator(".problem")
        gamma.click(click_count=3)
        for key in "0.5":
            page.keyboard.type(key)
            assert not problem.is_visible()
        settle(page)
        check_shown(page, "value", changed)
        gamma.fill("3")
        settle(page)
        assert "gamma 3: must be a number from 0 to 0.99" in problem.inner_text()
        page.keyboard.press("Tab")
        assert gamma.input_value() == "0.5"
        check_shown(page, "value", changed)


def test_start_trap_and_walls_are_dragged(browser: Any, site: Path) -> None:
    with opened(browser, site, PAGE) as page:
        drag(page, cell(page, "policy", 0, 0), cell(page, "policy", 3, 0))
        drag(page, cell(page, "policy", 4, 4), cell(page, "policy", 6, 7))
        cell(page, "policy", 2, 2).click()
        drag(page, cell(page, "policy", 2, 2), cell(page, "policy", 2, 4))
        drag(page, cell(page, "policy", 5, 1), cell(page, "policy", 5, 3))  # paints three
        drag(page, cell(page, "policy", 7, 7), cell(page, "policy", 6, 7))  # taken: stays
        settle(page)
        world = {**DEFAULT, "start": [3, 0], "trap": [6, 7]}
        world["walls"] = [[2, 4], [5, 1], [5, 2], [5, 3]]
        check_shown(page, "value", world)
        assert "start=3.0&trap=6.7&walls=2.4_5.1_5.2_5.3" in page.evaluate("location.hash")
        cell(page, "policy", 5, 2).click()
        settle(page)
        check_shown(page, "value", {**world, "walls": [[2, 4], [5, 1], [5, 3]]})


@pytest.mark.slow
def test_a_finger_builds_walls_and_drags(browser: Any, site: Path) -> None:
    with opened(browser, site, PAGE, 390, has_touch=True, is_mobile=True) as page:
        cell(page, "policy", 2, 2).tap()
        settle(page)
        check_shown(page, "policy", {**DEFAULT, "walls": [[2, 2]]})
        cell(page, "policy", 2, 2).tap()
        settle(page)
        check_shown(page, "policy", DEFAULT)

        swipe(page, cell(page, "policy", 7, 7), cell(page, "policy", 5, 7))  # the goal: dragged
        check_shown(page, "policy", {**DEFAULT, "goal": [5, 7]})
        before = page.evaluate("scrollY")
        swipe(page, cell(page, "policy", 6, 2), cell(page, "policy", 2, 2))  # empty: scrolls
        check_shown(page, "policy", {**DEFAULT, "goal": [5, 7]})
        assert page.evaluate("scrollY") > before


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


def test_keyboard_moves_things_and_builds_walls(browser: Any, site: Path) -> None:
    with opened(browser, site, PAGE) as page:
        cell(page, "policy", 0, 0).focus()
        for key in ("Enter", "ArrowDown", "ArrowDown", "Enter"):  # the start, two rows down
            page.keyboard.press(key)
            settle(page)
        for key in ("ArrowRight", "Enter"):  # a wall beside it
            page.keyboard.press(key)
            settle(page)
        world = {**DEFAULT, "start": [2, 0], "walls": [[2, 1]]}
        check_shown(page, "policy", world)
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == (
            "row 3, column 2: wall"
        )
        page.keyboard.press("ArrowLeft")
        for key in ("Enter", "ArrowDown", "Escape"):  # and back
            page.keyboard.press(key)
            settle(page)
        check_shown(page, "policy", world)


@pytest.mark.slow
def test_steps_of_both_methods(browser: Any, site: Path) -> None:
    with opened(browser, site, PAGE) as page:

        def press(method: str, *names: str) -> str:
            """What is said after the last of these buttons."""
            box = page.locator(f'.method[data-method="{method}"]')
            for name in names:
                box.get_by_role("button", name=name, exact=True).click()
            return str(box.locator(".status").inner_text())

        assert "Sweep 2 of 14" in press("value", "Start", "Sweep", "Sweep")
        numbers = page.locator('.method[data-method="value"] .number').all_inner_texts()
        assert sorted(x for x in numbers if x not in ("", "0")) == ["0.900"] * 3 + ["1.000"] * 2
        assert "Sweep 1 of 14" in press("value", "Back")
        assert "evaluating the random policy" in press("policy", "Start", "Sweep")
        assert "Improved to policy 2" in press("policy", "Next improvement")
        assert "The random policy is evaluated" in press("policy", "Back")
        press("policy", "Improve", "End")
        check_shown(page, "policy", DEFAULT)
        assert page.evaluate("location.hash") == "#value=1"


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
