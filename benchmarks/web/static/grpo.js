/* The GRPO page: its state, its address, and what is drawn from them.
 *
 * What is shown is a function of the state: the group and its size, the settings, and the rewards and
 * marks that the reader has edited. The exact part (grpo_exact.js) has the size, and p.
 */
"use strict";

const Grpo = (() => {
  const { find, all } = Interactive;
  const { number, signed } = GrpoFormulas;
  const NAMES = { ppo: "PPO", grpo: "GRPO", dr_grpo: "Dr. GRPO", dapo: "DAPO" };
  const COLOURS = ["push", "advantage", "weight", "ratio"];
  const LIMITS = {
    lambda: [0, 1],
    missingEosPenalty: [0, 2],
    clipLow: [0, 1],
    clipHigh: [0, 2],
    kl: [0, 5],
    formatWeight: [0, 2],
    overlongCache: [0, 64],
    reward: [-10, 10],
    size: [2, 64],
    p: [0.01, 0.99],
  };
  const WHOLE = ["overlongCache", "size"];
  const CHOICES = {
    advantage: ["group", "critic"],
    normalise: ["completion", "tokens", "constant"],
  };
  const SWITCHES = ["std", "dynamicSampling", "signed", "overlongFiltering"];
  const EXACT = ["size", "p", "exactStd"]; // of the group, and of groups on average
  const SETTINGS = [
    ...Object.keys(CHOICES),
    ...SWITCHES,
    ...Object.keys(LIMITS).filter((x) => !EXACT.includes(x) && x !== "reward"),
  ];

  let groups;
  let methods;
  let state;
  let problem = "";
  let found; // what the engine has computed

  // ---- The state and its address -----------------------------------------------------------

  const beginning = () => ({
    group: Object.keys(groups)[0],
    method: "grpo",
    settings: { ...methods.grpo },
    rewards: {},
    flipped: [],
    size: Object.values(groups)[0].completions.length,
    p: 0.02,
    exactStd: false,
    colour: "push",
    token: [0, movedToken(Object.values(groups)[0])],
  });

  /** The token of a group's first completion whose probability has changed most. */
  function movedToken({ completions: [{ current, old }] }) {
    const changes = current.map((logprob, t) => Math.abs(logprob - old[t]));
    return changes.indexOf(Math.max(...changes));
  }

  /** What differs from the beginning, as fields of an address. */
  function fieldsOf() {
    const usual = beginning();
    const fields = {};
    for (const name of ["group", "method", "colour", ...EXACT])
      if (state[name] !== usual[name]) fields[name] = state[name];
    for (const name of SETTINGS) {
      if (state.settings[name] !== methods[state.method][name]) fields[name] = state.settings[name];
    }
    if (state.flipped.length) fields.flipped = state.flipped.map((i) => i + 1).join("_");
    const rewards = Object.entries(state.rewards).map(
      ([i, reward]) => `${Number(i) + 1}:${reward}`,
    );
    if (rewards.length) fields.rewards = rewards.join("_");
    return fields;
  }

  /** A number within the limits of a field; throws a sentence otherwise. */
  function numberOf(name, text) {
    const [low, high] = name === "overlongCache" ? [0, state.settings.longest] : LIMITS[name];
    const value = Number(text);
    const isWhole = WHOLE.includes(name);
    const isKind = !isWhole || Number.isInteger(value);
    if (text.trim() === "" || !isKind || !(value >= low && value <= high)) {
      throw new Error(
        `${name} ${text || "''"}: must be a ${isWhole ? "whole " : ""}number from ${low} to ${high}`,
      );
    }
    return value;
  }

  function oneOf(name, text, allowed) {
    if (!allowed.includes(text)) throw new Error(`${name} ${text}: must be ${allowed.join(", ")}`);
    return text;
  }

  const booleanOf = (name, text) => oneOf(name, text, ["true", "false"]) === "true";

  function settingOf(name, text) {
    if (CHOICES[name]) return oneOf(name, text, CHOICES[name]);
    if (SWITCHES.includes(name)) return booleanOf(name, text);
    return numberOf(name, text);
  }

  /** The completion that a field names, counted from 1. */
  function completionOf(name, text) {
    const i = Number(text) - 1;
    if (!Number.isInteger(i) || !groups[state.group].completions[i]) {
      throw new Error(`${name} ${text}: there is no such completion`);
    }
    return i;
  }

  /** Take over the fields of an address; throws a sentence where one is wrong. */
  function takeOver(fields) {
    if ("group" in fields) chooseGroup(oneOf("group", fields.group, Object.keys(groups)));
    if ("method" in fields) choose(oneOf("method", fields.method, Object.keys(methods)));
    if ("colour" in fields) state.colour = oneOf("colour", fields.colour, COLOURS);
    for (const name of ["size", "p"])
      if (name in fields) state[name] = numberOf(name, fields[name]);
    if ("exactStd" in fields) state.exactStd = booleanOf("exactStd", fields.exactStd);
    for (const name of SETTINGS)
      if (name in fields) state.settings[name] = settingOf(name, fields[name]);
    for (const text of (fields.flipped || "").split("_").filter(Boolean)) {
      state.flipped.push(completionOf("flipped", text));
    }
    for (const text of (fields.rewards || "").split("_").filter(Boolean)) {
      const [i, reward] = text.split(":");
      state.rewards[completionOf("rewards", i)] = numberOf("reward", reward || "");
    }
  }

  function readAddress() {
    state = beginning();
    problem = "";
    try {
      takeOver(Interactive.readFields());
    } catch (error) {
      state = beginning();
      problem = `The address of this page was not understood. ${error.message}.`;
    }
  }

  // ---- Edits -------------------------------------------------------------------------------

  function chooseGroup(group) {
    const token = [0, movedToken(groups[group])];
    Object.assign(state, { group, rewards: {}, flipped: [], token });
  }

  function choose(method) {
    state.method = method;
    state.settings = { ...methods[method] };
  }

  /** Change the state, then compute and draw; a wrong number is told and left alone. */
  function edit(change) {
    try {
      change();
      problem = "";
    } catch (error) {
      problem = `${error.message}.`;
    }
    draw();
  }

  function setReward(i, text) {
    if (text.trim() === "")
      delete state.rewards[i]; // back to the rules
    else state.rewards[i] = numberOf("reward", text);
  }

  function flip(i) {
    state.flipped = state.flipped.includes(i)
      ? state.flipped.filter((x) => x !== i)
      : [...state.flipped, i].sort((a, b) => a - b);
    delete state.rewards[i]; // the mark decides again
  }

  /** A row as it was measured. */
  function restore(i) {
    state.flipped = state.flipped.filter((x) => x !== i);
    delete state.rewards[i];
  }

  /** The completions of the group that is shown, with the reader's edits. */
  const completionsShown = () =>
    groups[state.group].completions.slice(0, state.size).map((completion, i) => {
      const flipped = state.flipped.includes(i);
      return {
        ...completion,
        right: completion.right !== flipped,
        flipped,
        reward: state.rewards[i],
        edited: flipped || i in state.rewards,
      };
    });

  const verdict = ({ right }) => (right ? "✓ right" : "✗ wrong");

  // ---- Drawing -----------------------------------------------------------------------------

  function draw() {
    const completions = completionsShown();
    found = GrpoEngine.compute(completions, state.settings);
    Interactive.tell(problem);
    drawSettings();
    drawCompletions(completions);
    drawToken();
    drawGroup(completions);
    drawBeside(completions);
    drawExact();
    Interactive.writeFields(fieldsOf());
  }

  function drawSettings() {
    for (const button of all("[data-method]")) {
      button.setAttribute("aria-pressed", String(button.dataset.method === state.method));
    }
    for (const about of all("[data-about]")) about.hidden = about.dataset.about !== state.method;
    find("#group").value = state.group;
    find("#colour").value = state.colour;
    find(".answer").textContent = `right answer: ${groups[state.group].answer}`;
    drawSize();
    find(".of-group").hidden = state.settings.advantage !== "group";
    find(".of-critic").hidden = state.settings.advantage !== "critic";
    for (const setting of all("[data-setting]")) {
      const { setting: name } = setting.dataset;
      const input = find("input, select", setting);
      setting.classList.toggle("changed", state.settings[name] !== methods[state.method][name]);
      if (input.type === "checkbox") input.checked = state.settings[name];
      else if (input !== document.activeElement) input.value = state.settings[name];
    }
  }

  /** The slider of the measured group, which has at most the completions that were measured. */
  function drawSize() {
    const measured = groups[state.group].completions.length;
    find("#size").max = measured;
    setSlider("#size", Math.min(state.size, measured));
    const which = state.size < measured ? `the first ${state.size} of` : "all";
    const beyond = `; G = ${state.size} counts in the exact part below`;
    find(".size-note").textContent =
      `${which} ${measured} measured completions${state.size > measured ? beyond : ""}`;
  }

  function setSlider(selector, value) {
    const slider = find(selector);
    slider.value = value;
    find("output", slider.parentElement).textContent = value;
  }

  function drawExact() {
    setSlider("#p", state.p);
    setSlider("#exact-size", state.size);
    find("#exact-std").value = state.exactStd;
    GrpoExact.draw(state.p, state.size, state.exactStd);
  }

  /** Make the rows of a group anew; `drawCompletions` fills them. */
  function buildCompletions(completions) {
    const rows = completions.map((completion, i) => {
      const row = element("div", { class: "completion" });
      row.mark = element("button", { class: "mark" });
      row.mark.type = "button";
      row.mark.addEventListener("click", () => edit(() => flip(i)));
      row.reward = element("input", { class: "reward" });
      Object.assign(row.reward, { type: "number", step: 0.1, min: -10, max: 10 });
      row.reward.addEventListener("input", () => edit(() => setReward(i, row.reward.value)));
      row.reward.addEventListener("change", () => (row.reward.value = rewardShown(found.rows[i])));
      row.restore = element("button", { class: "restore" }, "↺");
      Object.assign(row.restore, { type: "button", title: "Back to what was measured" });
      row.restore.setAttribute("aria-label", `Reset completion ${i + 1}`);
      row.restore.addEventListener("click", () => {
        edit(() => restore(i));
        row.mark.focus();
      });
      row.advantage = element("span", { class: "advantage" });
      row.tokens = element("div", { class: "tokens" });
      row.tokens.setAttribute("role", "listbox");
      row.tokens.setAttribute("aria-label", `Tokens of completion ${i + 1}`);
      row.spans = completion.tokens.map((text, t) => makeToken(text, i, t));
      row.tokens.append(...row.spans);
      row.append(row.mark, row.reward, row.restore, row.advantage, row.tokens);
      return row;
    });
    const list = find(".completions");
    list.replaceChildren(...rows);
    list.dataset.group = state.group;
    if (!rows[state.token[0]]) state.token = [0, movedToken(groups[state.group])];
  }

  const rewardShown = ({ reward }) => Number(reward.toFixed(4));

  function makeToken(text, i, t) {
    const [name, label] = text === "<eos>" ? ["token end", "end"] : ["token", text];
    const span = element("span", { class: name }, label);
    span.setAttribute("role", "option");
    span.place = [i, t];
    return span;
  }

  function drawCompletions(completions) {
    const list = find(".completions");
    const isSame = list.dataset.group === state.group;
    if (!isSame || list.children.length !== completions.length) buildCompletions(completions);
    const rows = list.children;
    const shown = (token) =>
      state.colour === "ratio" ? Math.log(token.ratio) : token[state.colour];
    const largest = Math.max(
      1e-12,
      ...found.rows.flatMap((row) => row.tokens.map((x) => Math.abs(shown(x)))),
    );
    found.rows.forEach((result, i) => {
      const row = rows[i];
      const { right, flipped, edited } = completions[i];
      row.classList.toggle("edited", edited);
      row.mark.replaceChildren(edited ? "edited" : verdict(completions[i]));
      if (flipped) row.mark.append(element("small", {}, ` to ${verdict(completions[i])}`));
      row.mark.dataset.right = edited ? "" : right;
      row.mark.title = `Mark it as ${right ? "wrong" : "right"}`;
      row.reward.setAttribute(
        "aria-label",
        `Reward of completion ${i + 1}${edited ? ", edited" : ""}`,
      );
      row.restore.hidden = !edited;
      if (row.reward !== document.activeElement) row.reward.value = rewardShown(result);
      const what = state.settings.advantage === "critic" ? "mean A" : "A";
      row.advantage.textContent = `${what} = ${signed(result.advantage)}`;
      result.tokens.forEach((token, t) =>
        paintToken(row.spans[t], token, result, shown(token) / largest),
      );
    });
  }

  function paintToken(span, token, row, share) {
    span.dataset.sign = share < 0 ? "minus" : "plus";
    span.style.setProperty("--share", Math.abs(share).toFixed(4));
    span.classList.toggle("stopped", token.stopped && row.learned);
    span.classList.toggle("left-out", !row.learned);
    const isSelected = span.place[0] === state.token[0] && span.place[1] === state.token[1];
    span.setAttribute("aria-selected", String(isSelected));
    span.tabIndex = isSelected ? 0 : -1;
    const notes = [token.stopped ? "clipped" : "", row.learned ? "" : "left out"].filter(Boolean);
    span.setAttribute(
      "aria-label",
      [
        `${span.textContent}: advantage ${number(token.advantage)}`,
        `ratio ${number(token.ratio)}`,
        ...notes,
      ].join(", "),
    );
  }

  // ---- One token ---------------------------------------------------------------------------

  function select(place) {
    state.token = place;
    const rows = find(".completions").children;
    for (const row of rows) {
      for (const span of row.spans) {
        const isSelected = span.place[0] === place[0] && span.place[1] === place[1];
        if ((span.getAttribute("aria-selected") === "true") !== isSelected) {
          span.setAttribute("aria-selected", String(isSelected));
          span.tabIndex = isSelected ? 0 : -1;
        }
      }
    }
    drawToken();
  }

  function drawToken() {
    const [i, t] = state.token;
    const completion = completionsShown()[i];
    const lines = GrpoFormulas.lines(completion, found, state.settings, i, t);
    find("#token-title").textContent =
      `Completion ${i + 1}, token ${t + 1}: ${completion.tokens[t]}`;
    find(".sums-list").replaceChildren(
      ...lines.flatMap(([name, text, say]) => {
        const sum = element("dd", {}, text);
        if (say) sum.append(element("span", { class: "say" }, say));
        return [element("dt", {}, name), sum];
      }),
    );
  }

  // ---- The group, and the methods beside each other ----------------------------------------

  function drawGroup(completions) {
    const right = completions.filter((x) => x.right).length;
    const learned = found.counts;
    const cut = completions.filter((x) => !x.ended).length;
    const edits = completions.filter((x) => x.edited).length;
    const parts = [
      `${right} of ${completions.length} ${edits ? "count as" : "are"} right, ${cut} cut off at ${state.settings.longest} tokens.`,
      ...(edits ? [`${edits} ${edits > 1 ? "rows are" : "row is"} edited.`] : []),
      `mean(R) = ${number(found.mean)}, std(R) = ${number(found.std)}.`,
      found.kept
        ? `${learned.completions} completions with ${learned.tokens} tokens are learned from.`
        : "Dynamic sampling discards this group and draws another prompt: nothing is learned from it.",
      `Loss ${number(found.loss, 4)}. Ratios outside the clip range: ${number(100 * found.clipfrac, 1)}% by weight.`,
    ];
    find(".group-sum").textContent = parts.join(" ");
  }

  /** A table of all methods: advantage and weight of each completion, and the loss. */
  function drawBeside(completions) {
    const results = Object.entries(methods).map(([name, settings]) => ({
      name,
      ...GrpoEngine.compute(completions, settings),
    }));
    const row = (first, ...cells) =>
      element("tr", {}, element("th", { scope: "row" }, first), ...cells);
    const wide = { colspan: 2, scope: "colgroup" };
    const pair = (a, w) => [element("td", {}, a), element("td", { class: "w" }, w)];
    const rows = completions.map(({ right, old, ended, edited }, i) =>
      row(
        `${i + 1} ${edited ? "edited," : right ? "✓" : "✗"} ${old.length} tokens${ended ? "" : ", cut off"}`,
        ...results.flatMap(({ rows: each }) =>
          pair(signed(each[i].advantage), number(1000 * each[i].weight, 2)),
        ),
      ),
    );
    find(".beside").replaceChildren(
      row("completion", ...results.map(({ name }) => element("th", wide, NAMES[name]))),
      element("tr", {}, element("td"), ...results.flatMap(() => pair("A", "w"))),
      ...rows,
      row("loss", ...results.map(({ loss }) => element("td", { colspan: 2 }, number(loss, 4)))),
    );
  }

  // ---- The page ----------------------------------------------------------------------------

  const KEYS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  function moveSelection(event) {
    const step = KEYS[event.key];
    if (!step || event.target.place === undefined) return;
    event.preventDefault();
    const rows = find(".completions").children;
    const [i, t] = event.target.place;
    const row = rows[Math.min(Math.max(i + step[0], 0), rows.length - 1)];
    const span = row.spans[Math.min(Math.max(t + step[1], 0), row.spans.length - 1)];
    select(span.place);
    span.focus();
  }

  function listen() {
    for (const button of all("[data-method]")) {
      button.addEventListener("click", () => edit(() => choose(button.dataset.method)));
    }
    for (const setting of all("[data-setting]")) {
      const { setting: name } = setting.dataset;
      const input = find("input, select", setting);
      const take = (text) => edit(() => (state.settings[name] = settingOf(name, text)));
      if (input.type === "checkbox") {
        input.addEventListener("input", () => take(String(input.checked)));
      } else {
        Interactive.follow(input, take, () => state.settings[name]);
      }
    }
    for (const form of all("form")) {
      form.addEventListener("submit", (event) => event.preventDefault());
    }
    for (const [selector, name] of [
      ["#size", "size"],
      ["#exact-size", "size"],
      ["#p", "p"],
    ]) {
      find(selector).addEventListener("input", (event) =>
        edit(() => (state[name] = numberOf(name, event.target.value))),
      );
    }
    find("#exact-std").addEventListener("change", (event) =>
      edit(() => (state.exactStd = event.target.value === "true")),
    );
    find("#group").addEventListener("change", (event) =>
      edit(() => chooseGroup(event.target.value)),
    );
    find("#colour").addEventListener("change", (event) =>
      edit(() => (state.colour = event.target.value)),
    );
    const list = find(".completions");
    list.addEventListener(
      "pointerover",
      (event) => event.target.place && select(event.target.place),
    );
    list.addEventListener("click", (event) => event.target.place && select(event.target.place));
    list.addEventListener("keydown", moveSelection);
    find("#reset").addEventListener("click", () => edit(() => (state = beginning())));
    find("#copy").addEventListener("click", Interactive.copyLink);
    addEventListener("hashchange", () => {
      readAddress();
      draw();
    });
  }

  /** Begin, with {groups, methods}. */
  function open(data) {
    ({ groups, methods } = data);
    find(".app").hidden = false;
    readAddress();
    listen();
    draw();
    drawWhenSized(find(".exact-results"), drawExact);
  }

  return { open };
})();
