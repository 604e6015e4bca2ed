/* The gridworld page: its state, its address, and what is drawn from them.
 *
 * What is shown is a function of the state alone: the world, the step of each method, and the
 * settings of the learners. An edit changes the state; everything is then computed again and drawn.
 */
"use strict";

const Gridworld = (() => {
  const { decimal } = GridworldBoard;
  const { ACTIONS, NoValues, cellOf, indexOf } = GridworldEngine;
  const { EXAMPLES, END, LIMITS, SIZE, WORLD, beginning, kindOf, numberOf } = GridworldState;
  const { WINDOW } = GridworldCharts;
  const { find, all, say } = Interactive;
  const WORLDS = Object.assign({}, ...Object.values(EXAMPLES));
  const PLANNERS = ["policy", "value"];
  const LEARNERS = ["q_learning", "sarsa"];
  const NAMES = {
    policy: "Policy iteration",
    value: "Value iteration",
    q_learning: "Q-learning",
    sarsa: "SARSA",
  };
  const FRAME_MS = 30; // of learning, between two looks at the page
  const WALK_MS = 180; // a step of a walk
  const DISCOUNT = 0.99; // where a world has no values without
  const SWEEPING = ["reward", "erase"]; // brushes that act on whatever they are drawn over
  // Why a world has no values without discount, and what to do.
  const WHY = {
    "no way": (cell) =>
      `${cell} has no way to an end of the episode. Remove a wall or add a goal, then set γ to 1`,
    "endless gain": (cell) =>
      `from ${cell} a walk can gain reward for ever. Raise the step cost, then set γ to 1`,
    "endless rest": () =>
      "a walk that never ends costs nothing and beats every end. Add a step cost, then set γ to 1",
    "too slow": () => "the values do not converge. Add a step cost, then set γ to 1",
  };

  let first; // the world that the page begins with
  let state;
  let problem = "";
  const boards = {};
  const shown = { plans: {}, learners: null, model: null };

  /** Read the address; a wrong one gives the beginning and a line that says why. */
  function readAddress() {
    try {
      state = GridworldState.stateOf(Interactive.readFields(), first);
      problem = "";
    } catch (error) {
      state = beginning(first);
      problem = `The address of this page was not understood. ${error.message}.`;
    }
  }

  const writeAddress = () => Interactive.writeFields(GridworldState.fieldsOf(state, first));

  // ---- Edits -------------------------------------------------------------------------------

  let scheduled = false;

  /** Compute and draw once before the next frame, however many edits there are. */
  function changed() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      solve();
      draw();
    });
  }

  function edit(change) {
    change(state.world);
    problem = "";
    changed();
  }

  function move(kind, from, to) {
    edit((world) => {
      if (kind !== "start") GridworldState.clear(world, cellOf(from, world));
      GridworldState.place(world, kind, cellOf(to, world));
    });
  }

  const brush = () => find('[name="brush"]:checked').value;

  /** Use the brush on some cells; toggles: take away what it would paint. */
  function paint(places, toggles) {
    const use = { reward: paintReward, erase }[brush()] || paintThing;
    try {
      edit((world) => places.forEach((place) => use(world, cellOf(place, world), toggles)));
    } catch (error) {
      problem = `${error.message}.`; // no number in the brush of rewards
      changed();
    }
  }

  function paintThing(world, cell, toggles) {
    const kind = kindOf(world, cell);
    if (!kind) GridworldState.place(world, brush(), cell);
    else if (toggles && kind === brush()) GridworldState.clear(world, cell);
  }

  function paintReward(world, cell, toggles) {
    if (kindOf(world, cell) === "wall") return;
    const reward = numberOf("reward", find("#reward").value);
    const isSet = GridworldEngine.entryRewards(world)[indexOf(cell, world)] === reward;
    GridworldState.setReward(world, cell, toggles && isSet ? null : reward);
  }

  function erase(world, cell) {
    GridworldState.clear(world, cell);
    GridworldState.setReward(world, cell, null);
  }

  /** Take over a number that was typed or dragged; a wrong one is told and left alone. */
  function setNumber(name, text) {
    try {
      const value = numberOf(name, text);
      if (SIZE.includes(name))
        GridworldState.fitInto(state.world, { ...state.world, [name]: value });
      else if (WORLD.includes(name)) state.world[name] = value;
      else state.learning[name] = value;
      problem = "";
    } catch (error) {
      problem = `${error.message}.`;
    }
    changed();
  }

  // ---- Computing ---------------------------------------------------------------------------

  /** Compute what the state asks for, of the tab that is shown. */
  function solve() {
    shown.model = GridworldEngine.makeModel(state.world);
    try {
      shown.plans = GridworldEngine.plan(shown.model, state.world.gamma);
    } catch (error) {
      if (!(error instanceof NoValues)) throw error;
      const why = WHY[error.reason](placeName(error.state));
      problem = `γ = 1 has no finite, single values here, so γ is ${DISCOUNT}: ${why}.`;
      state.world.gamma = DISCOUNT;
      shown.plans = GridworldEngine.plan(shown.model, DISCOUNT);
    }
    if (state.tab === "learn") restartLearners();
  }

  /** The number of the step of a plan that is shown. */
  const placeOf = (name) => {
    const last = shown.plans[name].length - 1;
    return state.at[name] === END ? last : Math.min(state.at[name], last);
  };

  /** Show another step of a plan; its last one stays the last when the world changes. */
  function goTo(name, place) {
    const last = shown.plans[name].length - 1;
    state.at[name] = place >= last ? END : Math.max(0, place);
  }

  const MOVES = {
    start: () => 0,
    back: (name) => placeOf(name) - 1,
    step: (name) => placeOf(name) + 1,
    end: (name) => shown.plans[name].length - 1,
    improve(name) {
      const steps = shown.plans[name];
      const next = steps.findIndex((step, k) => k > placeOf(name) && step.kind === "improvement");
      return next < 0 ? steps.length - 1 : next;
    },
  };

  const settingsOf = () => ({ ...state.learning, gamma: state.world.gamma });

  /** Begin anew and run to the episode of the state, in pieces that leave the page usable. */
  function restartLearners() {
    shown.learners = Object.fromEntries(
      LEARNERS.map((name) => [name, GridworldEngine.makeLearner(name, shown.model, settingsOf())]),
    );
    runEpisodes();
  }

  let running = 0; // a later run ends the former

  function runEpisodes() {
    const mine = ++running;
    const settings = settingsOf();
    const piece = () => {
      if (mine !== running) return;
      const until = performance.now() + FRAME_MS;
      const behind = () =>
        LEARNERS.filter((name) => shown.learners[name].returns.length < settings.episodes);
      let left = behind();
      while (left.length && performance.now() < until) {
        for (let k = 0; k < 200; k++) {
          for (const name of left) {
            if (shown.learners[name].returns.length < settings.episodes) {
              GridworldEngine.learn(shown.learners[name], shown.model, settings);
            }
          }
        }
        left = behind();
      }
      drawLearners();
      if (left.length) requestAnimationFrame(piece);
    };
    piece();
  }

  function stepLearners() {
    for (const name of LEARNERS)
      GridworldEngine.learn(shown.learners[name], shown.model, settingsOf());
    state.learning.episodes = Math.min(
      ...LEARNERS.map((name) => shown.learners[name].returns.length),
    );
    drawLearners();
    writeAddress();
  }

  let walking = 0;

  function walk(on) {
    clearInterval(walking);
    walking = on ? setInterval(stepLearners, WALK_MS) : 0;
    find('[data-learn="walk"]').setAttribute("aria-pressed", String(on));
    find('[data-learn="walk"]').textContent = on ? "Pause" : "Walk";
  }

  function learnMore(what) {
    if (what === "walk") return walk(!walking);
    walk(false);
    if (what === "step") return stepLearners();
    const done = Math.max(...LEARNERS.map((name) => shown.learners[name].returns.length));
    state.learning.episodes =
      what === "over" ? 0 : Math.min(done + Number(what), LIMITS.episodes[1]);
    if (what === "over") restartLearners();
    else runEpisodes();
    writeAddress();
  }

  // ---- Drawing -----------------------------------------------------------------------------

  function draw() {
    for (const tab of ["plan", "learn"]) {
      find(`[data-tab="${tab}"]`).hidden = tab !== state.tab;
      find(`#${tab}`).hidden = tab !== state.tab;
      find(`#tab-${tab}`).setAttribute("aria-selected", String(tab === state.tab));
      find(`#tab-${tab}`).tabIndex = tab === state.tab ? 0 : -1;
    }
    find(".learning").hidden = state.tab !== "learn";
    if (state.tab !== "learn") walk(false);
    document.documentElement.classList.toggle("large", state.large);
    find("#large").setAttribute("aria-pressed", String(state.large));
    Interactive.tell(problem);
    const { rows, columns } = state.world;
    for (const pair of all(".methods")) pair.classList.toggle("wide", columns > 1.5 * rows);
    drawSettings();
    if (state.tab === "plan") {
      for (const name of PLANNERS) drawPlan(name);
      drawStory();
      drawSums();
      const plans = PLANNERS.map((name) => ({
        name: NAMES[name],
        steps: shown.plans[name],
        here: shown.plans[name][placeOf(name)],
      }));
      GridworldCharts.drawResiduals(find("#residuals"), plans);
    } else {
      drawLearners();
    }
    writeAddress();
  }

  const settingOf = (name) => state.learning[name] ?? state.world[name];

  function drawSettings() {
    for (const setting of all("[data-setting]")) {
      for (const input of all("input", setting)) {
        if (input !== document.activeElement) input.value = settingOf(setting.dataset.setting);
      }
    }
    find("#restart").value = state.world.restart ? "yes" : "no";
    find("#reward").hidden = brush() !== "reward";
    const match = Object.keys(WORLDS).find(
      (name) => JSON.stringify({ ...first, ...WORLDS[name] }) === JSON.stringify(state.world),
    );
    find("#example").value = match || "";
  }

  /** The part of a view that all boards share. */
  function worldView(values) {
    const { model } = shown;
    const { world } = state;
    const cells = Array.from(values, (_, place) => cellOf(place, world));
    const kinds = cells.map((cell) => kindOf(world, cell));
    const pays = GridworldEngine.entryRewards(world);
    // Rewards give the scale of colours, until values are larger.
    const sizes = [world.goalReward, world.trapReward, ...pays, ...values].map(Math.abs);
    const marks = kinds.map((kind, place) => {
      const isTerminal = kind === "goal" || kind === "trap";
      return kind !== "wall" && (isTerminal || pays[place]) ? signed(pays[place]) : "";
    });
    world.jumps.forEach((jump, k) => {
      const letter = "ABCDEFGH"[k % 8];
      marks[indexOf(jump, world)] = `${letter} ${signed(jump[4])}`;
      marks[indexOf(jump.slice(2), world)] = `${letter}′`;
    });
    const { columns } = world;
    return { columns, values, kinds, marks, scale: Math.max(1e-9, ...sizes), ends: model.ends };
  }

  const signed = (x) => (x > 0 ? "+" : "") + decimal(x);

  const placeName = (place) => {
    const [row, column] = cellOf(place, state.world);
    return `row ${row + 1}, column ${column + 1}`;
  };

  /** What a board says of a cell, besides its value: its place with all that is there, and the best
   * actions. */
  function aboutCell(view, place, actions) {
    const [kind, mark] = [view.kinds[place], view.marks[place]];
    const parts = [
      kind === "jump" ? "" : kind || "empty",
      mark && `${/^[A-H]/.test(mark) ? "jump" : "reward"} ${mark}`,
    ];
    const what = `${placeName(place)}: ${parts.filter(Boolean).join(", ")}`;
    return { what, best: actions.map((action) => ACTIONS[action]).join(", ") };
  }

  function drawPlan(name) {
    const steps = shown.plans[name];
    const place = placeOf(name);
    const step = steps[place];
    const q = GridworldEngine.actionValues(step.V, shown.model, state.world.gamma);
    const view = worldView(step.V);
    view.arrows = (cell) => arrowsOf(step, q, cell);
    view.about = (cell) => aboutCell(view, cell, GridworldEngine.greedyActions(q, cell));
    boards[name].draw(view);
    const root = find(`.method[data-method="${name}"]`);
    find(".status", root).textContent = statusOf(name, place);
    const scrubber = find(".scrubber", root);
    scrubber.max = steps.length - 1;
    scrubber.value = place;
    scrubber.setAttribute("aria-valuetext", `${place} of ${steps.length - 1}`);
    const atEnd = place === steps.length - 1;
    for (const button of all("[data-do]", root)) {
      const forward = ["step", "improve", "end"].includes(button.dataset.do);
      button.setAttribute("aria-disabled", String(forward ? atEnd : place === 0));
    }
    const next = atEnd ? step : steps[place + 1];
    find('[data-do="step"]', root).textContent = atEnd
      ? "Done"
      : { improvement: "Improve", end: "Improve", sweep: "Sweep" }[next.kind];
  }

  /** The buttons that step both methods at once. */
  function drawStory() {
    const atStart = PLANNERS.every((name) => placeOf(name) === 0);
    const atEnd = PLANNERS.every((name) => placeOf(name) === shown.plans[name].length - 1);
    for (const button of all("[data-all]")) {
      const forward = ["step", "end"].includes(button.dataset.all);
      button.setAttribute("aria-disabled", String(forward ? atEnd : atStart));
    }
    find('[data-all="step"]').textContent = atStart
      ? "Start: sweep once"
      : atEnd
        ? "Done"
        : "Next step";
  }

  /** The class of each arrow of a cell: solid for the policy's action, even for those of the random
   * policy, faint for actions that are best for the values but not the policy's. */
  function arrowsOf(step, q, cell) {
    const best = GridworldEngine.greedyActions(q, cell);
    if (!step.policy) return bestArrows(best);
    const action = step.policy[cell];
    if (action === GridworldEngine.RANDOM) return bestArrows([0, 1, 2, 3]);
    const arrows = Object.fromEntries(best.map((other) => [other, "faint"]));
    return { ...arrows, [action]: "solid" };
  }

  /** The arrows of the best actions: even where all four are equally good. */
  function bestArrows(best) {
    const name = best.length < ACTIONS.length ? "solid" : "even";
    return Object.fromEntries(best.map((action) => [action, name]));
  }

  const counted = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
  /** A size that is shown as 0.00 only where it is 0. */
  const size = (x) => (x > 0 && x < 0.01 ? "less than 0.01" : decimal(x));

  /** What a step of a plan has done, in a sentence or two. */
  function statusOf(name, place) {
    const steps = shown.plans[name];
    const step = steps[place];
    if (name === "value") {
      if (step.kind === "start") return "Start: all values are 0.";
      const count = `Sweep ${step.sweep} of ${steps.length - 1}.`;
      const { gamma, stepCost } = state.world;
      if (place === steps.length - 1) {
        const hurry = gamma === 1 && stepCost === 0 ? " Long ways are as good as short ones." : "";
        return `${count} All values are optimal.${hurry}`;
      }
      const text = `${count} Bellman residual ${size(step.residual)}`;
      if (gamma === 1) return `${text}.`;
      const bound = step.residual / (1 - gamma);
      return `${text}: no value is further than ${size(bound)} from V*.`;
    }
    const policy = step.iteration === 1 ? "the random policy" : `policy ${step.iteration}`;
    if (step.kind === "start") return "Start: all values are 0, and the policy is random.";
    if (step.kind === "sweep") {
      const isDone = step.solved || step.change <= step.enough;
      const done = isDone ? ` ${capital(policy)} is evaluated.` : "";
      const how = step.solved
        ? "The rest of the sweeps is solved as linear equations"
        : `Sweep ${step.sweep}`;
      return `${how}, evaluating ${policy}: largest change ${size(step.change)}.${done}`;
    }
    if (step.kind === "end") {
      return (
        `The best actions are those of ${policy}: it is optimal. ` +
        `${counted(step.iteration, "policy").replace("policys", "policies")}, ${counted(step.sweep, "sweep")}.`
      );
    }
    return (
      `Improved to policy ${step.iteration}: ${counted(step.changed.length, "cell")} changed. ` +
      "Its values are not known yet."
    );
  }

  const capital = (text) => text[0].toUpperCase() + text.slice(1);

  // ---- One cell ----------------------------------------------------------------------------

  function drawSums() {
    const place = selectedPlace();
    find("#cell-title").textContent = `One cell: ${placeName(place)}`;
    for (const name of PLANNERS) {
      const step = shown.plans[name][placeOf(name)];
      find(`.cell-sum[data-method="${name}"]`).replaceChildren(...sumOf(name, step, place));
    }
  }

  const selectedPlace = () =>
    state.selected !== null && state.selected < shown.model.X ? state.selected : shown.model.start;

  /** The next sweep of a cell, with its numbers. */
  function sumOf(name, step, place) {
    const title = element("h3", {}, NAMES[name]);
    const { model } = shown;
    if (model.ends[place]) {
      const what = model.isWall[place] ? "A wall" : "The episode ends here, so the cell";
      return [title, element("p", {}, `${what} has no value of its own.`)];
    }
    const q = GridworldEngine.actionValues(step.V, model, state.world.gamma).subarray(
      4 * place,
      4 * place + 4,
    );
    const best = GridworldEngine.greedyActions(q, 0);
    const columns = ["action", "reward", "γ × next value", "Q"];
    const head = columns.map((text) => element("th", { scope: "col" }, text));
    const table = element("table", { class: "sums" }, element("tr", {}, ...head));
    q.forEach((value, action) => {
      const reward = model.r[4 * place + action];
      const next = state.world.gamma ? (value - reward) / state.world.gamma : 0;
      const product = `${decimal(state.world.gamma)} × ${decimal(next)}`;
      const texts = [ACTIONS[action], decimal(reward), product, decimal(value)];
      const cells = texts.map((text) => element("td", {}, text));
      table.append(element("tr", { class: best.includes(action) ? "best" : "" }, ...cells));
    });
    return [title, table, element("p", { class: "equation" }, backupOf(name, step, place, q))];
  }

  function backupOf(name, step, place, q) {
    const top = Math.max(...q);
    if (name === "value") return `next sweep: V = max of the Q = ${decimal(top)}`;
    const action = step.policy[place];
    if (action === GridworldEngine.RANDOM) {
      return `next sweep: V = ¼ of the sum of the Q = ${decimal((q[0] + q[1] + q[2] + q[3]) / 4)}`;
    }
    return `next sweep: V = Q of the policy's action, ${ACTIONS[action]} = ${decimal(q[action])}`;
  }

  // ---- Learners ----------------------------------------------------------------------------

  function drawLearners() {
    if (!shown.learners) return;
    for (const name of LEARNERS) drawLearner(name);
    const learners = LEARNERS.map((name) => ({
      name: NAMES[name],
      returns: shown.learners[name].returns,
    }));
    GridworldCharts.drawReturns(find("#returns"), learners, state.learning.episodes);
  }

  function drawLearner(name) {
    const learner = shown.learners[name];
    const view = worldView(GridworldEngine.best(learner.q));
    const best = (cell) => GridworldEngine.greedyActions(learner.q, cell);
    view.arrows = (cell) => bestArrows(best(cell));
    view.about = (cell) => aboutCell(view, cell, best(cell));
    view.walker = learner.state;
    view.path = learner.path.length > 1 ? learner.path : learner.lastPath || [];
    boards[name].draw(view);
    const root = find(`.method[data-method="${name}"]`);
    const recent = learner.returns.slice(-WINDOW);
    const mean = recent.length ? recent.reduce((sum, x) => sum + x, 0) / recent.length : null;
    const optimal = shown.plans.value.at(-1).V[shown.model.start];
    find(".status", root).textContent =
      `${counted(learner.returns.length, "episode")}, ${counted(learner.steps, "step")}. ` +
      `Value of the start ${decimal(view.values[shown.model.start])} (V* ${decimal(optimal)}). ` +
      (mean === null ? "" : `Mean return of the last ${recent.length}: ${decimal(mean)}.`);
    find(".now", root).textContent = lastUpdate(learner);
  }

  const bracketed = (x) => (x < 0 ? `(${decimal(x)})` : decimal(x));

  /** The latest update with its numbers. */
  function lastUpdate(learner) {
    const x = learner.last;
    if (!x) return "No step yet.";
    const { alpha } = state.learning;
    const gamma = state.world.gamma;
    const next = x.terminated ? 0 : gamma && (x.target - x.reward) / gamma;
    return (
      `${ACTIONS[x.action]} from ${placeName(x.state)}: ${decimal(x.after)} = ` +
      `${decimal(x.before)} + ${decimal(alpha)} × [ ${decimal(x.reward)} + ` +
      `${decimal(gamma)} × ${decimal(next)} − ${bracketed(x.before)} ]`
    );
  }

  // ---- The page ----------------------------------------------------------------------------

  function choose(name) {
    state.tab = name;
    changed();
    find(`#tab-${name}`).focus();
  }

  function listen() {
    for (const setting of all("[data-setting]")) {
      for (const input of all("input", setting)) {
        const { setting: name } = setting.dataset;
        Interactive.follow(
          input,
          (text) => setNumber(name, text),
          () => settingOf(name),
        );
      }
    }
    for (const button of all("[data-do]")) {
      const name = button.closest(".method").dataset.method;
      button.addEventListener("click", () => {
        goTo(name, MOVES[button.dataset.do](name));
        draw();
      });
    }
    for (const button of all("[data-all]")) {
      button.addEventListener("click", () => {
        for (const name of PLANNERS) goTo(name, MOVES[button.dataset.all](name));
        draw();
      });
    }
    for (const input of all('[name="brush"]')) input.addEventListener("change", drawSettings);
    for (const scrubber of all(".scrubber")) {
      const name = scrubber.closest(".method").dataset.method;
      scrubber.addEventListener("input", () => {
        goTo(name, Number(scrubber.value));
        draw();
      });
    }
    for (const button of all("[data-learn]")) {
      button.addEventListener("click", () => learnMore(button.dataset.learn));
    }
    for (const tab of ["plan", "learn"]) {
      const button = find(`#tab-${tab}`);
      button.addEventListener("click", () => choose(tab));
      button.addEventListener("keydown", (event) => {
        if (["ArrowLeft", "ArrowRight"].includes(event.key))
          choose(tab === "plan" ? "learn" : "plan");
      });
    }
    for (const form of all("form"))
      form.addEventListener("submit", (event) => event.preventDefault());
    find("#example").addEventListener("change", (event) => {
      const example = WORLDS[event.target.value];
      if (!example) return;
      state.at = beginning(first).at;
      edit(() => (state.world = structuredClone({ ...first, ...example })));
    });
    find("#restart").addEventListener("change", (event) => {
      edit((world) => (world.restart = event.target.value === "yes"));
    });
    find("#large").addEventListener("click", () => {
      state.large = !state.large;
      changed();
    });
    find("#reset").addEventListener("click", () => {
      state = { ...beginning(first), tab: state.tab, large: state.large };
      changed();
    });
    find("#copy").addEventListener("click", Interactive.copyLink);
    addEventListener("hashchange", () => {
      readAddress();
      changed();
    });
    addEventListener("resize", changed);
  }

  function select(place) {
    if (place === state.selected) return;
    state.selected = place;
    if (state.tab === "plan") drawSums();
  }

  /** Begin, with the first world. */
  function open(world) {
    first = world;
    for (const [label, worlds] of Object.entries(EXAMPLES)) {
      const options = Object.keys(worlds).map((name) => new Option(name, name));
      find("#example").append(element("optgroup", { label }, ...options));
    }
    for (const name of [...PLANNERS, ...LEARNERS]) {
      const element = find(`.method[data-method="${name}"] .grid`);
      boards[name] = new GridworldBoard.Board(element, {
        move,
        paint,
        select,
        say,
        sweeps: () => SWEEPING.includes(brush()),
      });
    }
    find(".app").hidden = false;
    readAddress();
    listen();
    solve();
    draw();
  }

  return { open };
})();
