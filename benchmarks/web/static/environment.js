// The page of an environment: its switches, whose state is in the address, the curves, and the
// details of a run.
"use strict";

const ABOUT = {
  iqm: "IQM over seeds with its 95% bootstrap interval, computed when the site was written.",
  mean: "Mean over seeds with its 95% bootstrap interval, computed when the site was written.",
  median: "Median over seeds, computed in this page from the seeds' curves; no interval.",
  seeds: "One line per seed. A click on a line shows where it is from.",
};

// ---- The state and the address ----------------------------------------------------------------

const defaults = (data) => ({
  algorithms: [...new Set(data.runs.map((run) => run.algorithm))],
  sb3: false, show: "iqm", common: false, normalised: false, log: data.log_x, run: "", seed: "",
});

function readState(data) {
  const state = defaults(data);
  const given = new URLSearchParams(location.hash.slice(1));
  const known = state.algorithms;
  if (given.has("algorithms")) state.algorithms = known.filter((a) => given.get("algorithms").split(",").includes(a));
  for (const name of ["sb3", "common", "normalised", "log"]) if (given.has(name)) state[name] = given.get(name) === "1";
  if (ABOUT[given.get("show")]) state.show = given.get("show");
  if (data.runs.some((run) => run.key === given.get("run"))) state.run = given.get("run");
  if (/^\d+$/.test(given.get("seed") ?? "")) state.seed = given.get("seed");
  if (data.random == null || data.reference == null) state.normalised = false;
  return state;
}

function writeState(state, data) {
  const plain = defaults(data);
  const given = new URLSearchParams();
  if (state.algorithms.length < plain.algorithms.length) given.set("algorithms", state.algorithms.join(","));
  for (const name of ["sb3", "common", "normalised", "log"]) if (state[name] !== plain[name]) given.set(name, state[name] ? "1" : "0");
  if (state.show !== plain.show) given.set("show", state.show);
  if (state.run) given.set("run", state.run);
  if (state.seed) given.set("seed", state.seed);
  const hash = given.toString().replaceAll("%2C", ",");
  if (hash !== location.hash.slice(1)) history.replaceState(null, "", `#${hash}`);
}

// ---- What is drawn ----------------------------------------------------------------------------

const label = (run) => (run.side === "SB3" ? `SB3's ${run.name}` : run.name);

function shownRuns(data, state) {
  const runs = data.runs.filter((run) => state.algorithms.includes(run.algorithm));
  return runs.filter((run) => run.side !== "SB3" || state.sb3);
}

// The points of each line: a statistic over seeds, or all seeds. until: of the beginning alone, to
// the first point at or after it.
function linesOf(data, state, until) {
  const runs = shownRuns(data, state);
  const end = state.common ? d3.min(runs, (run) => run.budget) : Infinity;
  const scale = state.normalised ? (y) => (y - data.random) / (data.reference - data.random) : (y) => y;
  const kept = (run) => d3.range(run.x.length).filter((i) => run.x[i] <= end && !(run.x[i - 1] >= until) && (!state.log || run.x[i] > 0));
  const point = (run, i, y, low, high, seed) => ({
    run, seed, x: run.x[i], y: scale(y), low: low == null ? null : scale(low), high: high == null ? null : scale(high),
  });
  if (state.show === "seeds") {
    return runs.flatMap((run) => run.curves.map((curve, s) => ({
      run, seed: run.seeds[s], points: kept(run).map((i) => point(run, i, curve[i], null, null, run.seeds[s])),
    })));
  }
  return runs.map((run) => {
    const found = state.show === "median"
      ? { y: run.x.map((_, i) => d3.median(run.curves, (curve) => curve[i])), low: [], high: [] }
      : run[state.show];
    return { run, seed: null, points: kept(run).map((i) => point(run, i, found.y[i], found.low[i], found.high[i], null)) };
  });
}

function text(point) {
  const seed = point.seed == null ? `n = ${point.run.seeds.length}` : `seed ${point.seed}`;
  return `${label(point.run)}, ${seed}\n${exact(point.x)} timesteps\n${interval(point.y, point.low, point.high)}`;
}

function draw(data, state, width, until = Infinity) {
  const lines = linesOf(data, state, until);
  const points = lines.flatMap((line) => line.points);
  const seeds = state.show === "seeds";
  const threshold = state.normalised && data.threshold != null
    ? (data.threshold - data.random) / (data.reference - data.random) : data.threshold;
  const marks = d3.groups(lines, (own) => own.run).flatMap(([run, own]) => line(own.flatMap((l) => l.points), run.place, state.log, {
    strokeDasharray: run.side === "SB3" ? "6 4" : null, z: (p) => p.seed ?? -1,
    ...(seeds && { strokeWidth: 1, strokeOpacity: Math.max(0.25, Math.min(0.8, 12 / run.seeds.length)) }),
  }).slice(0, seeds ? 1 : 2));
  const bands = seeds ? [] : lines.map((own) => Plot.areaY(own.points.filter((p) => p.low != null), {
    x: "x", y1: "low", y2: "high", fill: colour(own.run.place), fillOpacity: 0.13,
  }));
  const narrow = width < 500;
  const height = narrow ? 320 : 440;
  const ends = endsOf(lines);
  const drawn = (margin) => chart(`Learning curves on ${data.env}${until < Infinity ? ", early learning" : ""}`, {
    width, height, marginLeft: 56, marginRight: margin ?? 16, marginBottom: 42,
    x: {
      label: "timesteps per seed", type: state.log ? "log" : "linear", tickFormat: short,
      ticks: Math.max(3, Math.floor(width / 110)), nice: !state.log,
    },
    y: { label: state.normalised ? "normalised score" : "greedy return", grid: true, nice: true },
    marks: [
      threshold == null ? null : Plot.ruleY([threshold], { stroke: "var(--soft)", strokeDasharray: "5 4" }),
      ...bands, ...marks,
      threshold == null || narrow ? null : Plot.text([threshold], {
        y: (y) => y, frameAnchor: "left", text: ["reward threshold"], textAnchor: "start", dx: 4, dy: -8,
        fill: "var(--soft)", stroke: "var(--page)", strokeWidth: 3,
      }),
      margin == null ? null : labels(ends),
      ...pointed(points, { x: "x", y: "y", title: text, fill: (p) => colour(p.run.place), maxRadius: 80 }),
    ],
  });
  // Without names where they lie on lines: the switches are a legend.
  const margin = labelMargin(ends, d3.extent(points, (p) => p.x), width, height, state.log);
  let plot = drawn(margin);
  if (margin != null && onLines(plot, ends, lines.map((own) => own.points))) plot = drawn(null);
  if (points.length) emphasise(plot, lines);
  return plot;
}

// Where the name of each run stands: at the end of its line, of many seeds at their median.
function endsOf(lines) {
  return d3.groups(lines.filter((own) => own.points.length), (own) => own.run).map(([run, own]) => {
    const last = own.map((l) => l.points[l.points.length - 1]);
    return { name: label(run), place: run.place, x: last[0].x, y: d3.median(last, (p) => p.y) };
  });
}

// Draw the line under the pointer once more, above all others and below the pointer's text.
function emphasise(plot, lines) {
  const x = plot.scale("x"), y = plot.scale("y");
  const path = d3.line((p) => x.apply(p.x), (p) => y.apply(p.y));
  const over = d3.select(plot).insert("path", ".at").attr("class", "over").attr("fill", "none")
    .attr("stroke-width", 3).attr("pointer-events", "none");
  plot.addEventListener("input", () => {
    const found = plot.value && lines.find((own) => own.run === plot.value.run && own.seed === plot.value.seed);
    over.attr("d", found ? path(found.points) : null).style("stroke", found ? colour(found.run.place) : null);
  });
}

// ---- The details of a run ---------------------------------------------------------------------

// choose: what is called with another run and seed.
function details(data, state, choose) {
  const run = data.runs.find((r) => r.key === state.run) ?? data.runs[0];
  const chosen = element("select", { "aria-label": "Run", id: "run" },
    ...data.runs.map((r) => element("option", { value: r.key, selected: r === run }, label(r))));
  chosen.addEventListener("change", () => choose({ run: chosen.value, seed: "" }));
  const index = run.seeds.indexOf(Number(state.seed));
  const seed = state.seed !== "" && index >= 0 ? Number(state.seed) : null;
  const seeds = element("select", { "aria-label": "Seed", id: "seed" },
    element("option", { value: "" }, "all seeds"),
    ...run.seeds.map((s) => element("option", { value: s, selected: s === seed }, `seed ${s}`)));
  seeds.addEventListener("change", () => choose({ run: run.key, seed: seeds.value }));
  const facts = [`n = ${run.seeds.length} seeds`, `${run.budget.toLocaleString("en")} timesteps per seed`];
  if (run.stale) facts.push("stale: its code has changed since");
  if (run.failures.length) facts.push(`failed seeds: ${run.failures.join(", ")}`);
  if (run.changes) facts.push(`not the preset: ${run.changes}`);
  const origins = run.origins
    .filter((origin) => seed == null || inRanges(seed, origin.seeds))
    .map((origin) => {
      const button = element("button", { type: "button" }, "Copy");
      button.addEventListener("click", () => copy(origin.command, button));
      return element("div", { class: "origin" },
        element("div", { class: "command" }, element("pre", {}, element("code", {}, origin.command)), button),
        element("p", { class: "note" }, `Seeds ${origin.seeds}: ${origin.commit}; ${origin.machine}; ${origin.versions}`));
    });
  const settings = element("dl", { class: "settings" }, ...Object.entries(run.settings).map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const films = Object.entries(run.films).map(([which, file]) => film(which, run[which], file, label(run)));
  return [
    element("h2", {}, "Run ", chosen, seeds),
    seed == null ? "" : element("p", {}, element("b", {}, `Seed ${seed}`),
      `: final score ${run.final[index]}${run.diverged[seed] ? `, diverged at timestep ${run.diverged[seed]}` : ""}`),
    element("p", { class: "note" }, facts.join("; ")),
    ...(films.length ? [element("div", { class: "films" }, ...films)] : []),
    ...origins,
    element("h3", {}, "Hyperparameters"), settings,
  ];
}

const inRanges = (seed, ranges) => ranges.split(", ").some((range) => {
  const [first, last = first] = range.split("-").map(Number);
  return first <= seed && seed <= last;
});

function film(which, seed, file, name) {
  const says = `${name}, ${which} seed (${seed})`;
  const shown = element("img", { src: file, alt: says, loading: "lazy" });
  return element("figure", {}, shown, element("figcaption", {}, says));
}

// ---- The page ---------------------------------------------------------------------------------

(async () => {
  const data = await unpack("page-data");
  const form = document.getElementById("switches");
  const holder = document.getElementById("curves");
  const panel = document.getElementById("run-details");
  let state = readState(data);
  let width = 0;

  const names = new Map(data.runs.map((run) => [run.algorithm, run]));
  for (const [algorithm, run] of names) {
    document.getElementById("algorithms").append(element("label", {},
      element("input", { type: "checkbox", name: "algorithm", value: algorithm }), swatch(run.place, "none"), run.name));
  }
  if (!data.runs.some((run) => run.side === "SB3")) form.sb3.closest("fieldset").hidden = true;
  if (data.random == null || data.reference == null) form.normalised.closest("label").hidden = true;

  const showChart = () => {
    for (const box of form.querySelectorAll("[name=algorithm]")) box.checked = state.algorithms.includes(box.value);
    for (const name of ["sb3", "common", "normalised", "log"]) form[name].checked = state[name];
    form.show.value = state.show;
    document.getElementById("about").textContent = ABOUT[state.show];
    if (!width) return;
    const shown = (until) => {
      const plot = draw(data, state, width, until);
      plot.addEventListener("click", () => {
        if (plot.value) choose({ run: plot.value.run.key, seed: plot.value.seed == null ? "" : String(plot.value.seed) });
      });
      return plot;
    };
    const early = data.early != null && !state.log; // a logarithmic axis shows it anyway
    holder.replaceChildren(shown(), ...(early ? [element("div", { class: "panel-title" }, "Early learning"), shown(data.early)] : []));
  };
  const showDetails = () => {
    const focused = panel.contains(document.activeElement) ? document.activeElement.id : "";
    panel.replaceChildren(...details(data, state, choose));
    if (focused) document.getElementById(focused).focus();
  };
  const choose = (run) => { // another run: the chart stays
    state = { ...state, ...run };
    showDetails();
    writeState(state, data);
  };
  const show = () => {
    showChart();
    showDetails();
    panel.hidden = form.hidden = false;
    writeState(state, data);
  };

  form.addEventListener("change", () => {
    state = {
      ...state,
      algorithms: [...form.querySelectorAll("[name=algorithm]:checked")].map((box) => box.value),
      sb3: form.sb3.checked, common: form.common.checked, normalised: form.normalised.checked,
      log: form.log.checked, show: form.show.value,
    };
    showChart();
    writeState(state, data);
  });
  window.addEventListener("hashchange", () => { state = readState(data); show(); });
  show();
  drawWhenSized(holder, (now) => { width = now; showChart(); });
})();
