// Draws the figures of the report's chapters, from the data of figures.py.
"use strict";

(async () => {
  const places = [...document.querySelectorAll("[data-chart]")];
  if (!places.length) return;
  const figures = await unpack("page-charts");
  const kinds = { lines, scores_by_value: scores, scatter_grid: scatter, plane, forest, boards };
  const waiting = new Set(places);
  const draw = (place) => {
    if (!waiting.delete(place)) return;
    const figure = figures[place.dataset.chart];
    place.textContent = "";
    kinds[figure.kind](place, figure);
  };
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) if (isIntersecting) draw(target);
    },
    { rootMargin: "600px" },
  );
  for (const place of places) seen.observe(place);
  addEventListener("beforeprint", () => places.forEach(draw));
})();

// ---- What charts are made of ------------------------------------------------------------------

const GAP = 24; // pixels between panels

// Panels side by side, one `draw(panel, width)` for each, drawn again when `redraw` is called.
// begin: what is called with the width of a panel before all are drawn.
function grid(holder, panels, draw, smallest = 320, begin = () => {}) {
  const box = element("div", { class: "panels", style: `--smallest: ${smallest}px` });
  const cells = panels.map((panel) => {
    const cell = element("div", { class: "panel" });
    if (panel.title) cell.append(element("div", { class: "panel-title" }, panel.title));
    const inner = element("div");
    cell.append(inner);
    box.append(cell);
    return [panel, inner];
  });
  holder.append(box);
  let width = 0;
  const redraw = () => {
    if (!width) return;
    const columns = Math.max(1, Math.min(panels.length, Math.floor((width + GAP) / (smallest + GAP))));
    const own = Math.floor((width - GAP * (columns - 1)) / columns);
    begin(own);
    for (const [panel, inner] of cells) inner.replaceChildren(draw(panel, own));
  };
  drawWhenSized(box, (now) => { width = now; redraw(); });
  return redraw;
}

// Buttons that show and hide the lines of a name in all panels.
function legend(names, change) {
  const hidden = new Set();
  const box = element("div", { class: "legend" });
  names.forEach(([name, place]) => {
    const button = element("button", { type: "button", "aria-pressed": "true" }, swatch(place), name);
    button.addEventListener("click", () => {
      hidden.has(name) ? hidden.delete(name) : hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      change();
    });
    box.append(button);
  });
  return { box, isShown: (name) => box.hidden || !hidden.has(name) };
}

// ---- Kinds of figures -------------------------------------------------------------------------

// Lines have their names at their ends; where these do not fit in all panels, or lie on lines, there
// is a legend.
function lines(holder, figure) {
  const place = new Map(figure.names.map((name, i) => [name, i]));
  const there = figure.names.filter((name) => figure.panels.some((p) => p.lines.some((l) => l.name === name)));
  const shared = figure.share_y ? extent(figure.panels, figure) : null;
  const panels = figure.panels.map((panel) => ({ ...panel, ...rowsOf(panel, figure, place) }));
  let redraw = () => {};
  const { box, isShown } = legend(there.map((name) => [name, place.get(name)]), () => redraw());
  const margin = (panel, width) => labelMargin(panel.ends, d3.extent(panel.rows, (r) => r.x), width, panelHeight(width), figure.log_x);
  const isNamed = (panel, width) => {
    const right = margin(panel, width);
    if (right == null) return false;
    const own = [...d3.group(panel.rows, (row) => row.name).values()];
    return !onLines(linesPanel(panel, figure, place, shared, width, right), panel.ends, own);
  };
  const begin = (width) => { box.hidden = panels.every((panel) => isNamed(panel, width)); };
  const draw = (panel, width) => {
    const rows = panel.rows.filter((row) => isShown(row.name));
    return linesPanel({ ...panel, rows }, figure, place, shared, width, box.hidden ? margin(panel, width) : null);
  };
  holder.append(box);
  if (figure.legend) holder.append(element("p", { class: "note" }, figure.legend));
  redraw = grid(holder, panels, draw, panels.length > 1 ? 320 : 480, begin);
}

// The points of a panel that can be drawn, and the last one of each line.
function rowsOf(panel, figure, place) {
  const rows = panel.lines.flatMap((line) => line.x.map((x, i) => (
    { name: line.name, place: place.get(line.name), n: line.n, x, y: line.y[i], low: line.low[i], high: line.high[i] })));
  const kept = rows.filter((r) => r.y != null && (!figure.log_x || r.x > 0) && (!panel.log_y || r.y > 0));
  return { rows: kept, ends: [...d3.rollup(kept, (own) => own[d3.maxIndex(own, (r) => r.x)], (r) => r.name).values()] };
}

const panelHeight = (width) => Math.round(Math.min(380, Math.max(210, 0.6 * width)));

// The extent of y over all panels, floors respected.
function extent(panels, figure) {
  const values = panels.flatMap((p) => p.lines.flatMap((l) => [...l.y, ...l.low, ...l.high]));
  return d3.extent([...values, figure.threshold].filter((y) => y != null));
}

// margin: of the names at the ends, null without them.
function linesPanel(panel, figure, place, shared, width, margin) {
  const own = d3.group(panel.rows, (row) => row.name);
  const stroke = (row) => colour(row.place);
  const y = { label: figure.ylabel || null, grid: !panel.log_y, type: panel.log_y ? "log" : "linear", nice: true };
  if (shared && !panel.log_y) y.domain = shared;
  if (panel.floor != null) { // whatever lies below is cut off
    y.domain = [panel.floor, d3.max(panel.rows, (r) => r.high ?? r.y)];
    y.clamp = true;
  }
  const title = (r) =>
    `${r.name}\n${figure.xlabel || "x"}: ${exact(r.x)}\n${interval(r.y, r.low, r.high)}${r.n ? `, n = ${r.n}` : ""}`;
  return chart(panel.title || figure.ylabel, {
    width,
    height: panelHeight(width),
    marginLeft: 48,
    marginBottom: 38,
    marginRight: margin ?? 16,
    x: { label: figure.xlabel || null, type: figure.log_x ? "log" : "linear", tickFormat: short, ticks: Math.max(3, (width - (margin ?? 0)) / 90) },
    y: { ...y, tickFormat: panel.log_y ? (v) => (Number.isInteger(Math.log10(v)) ? short(v) : "") : short },
    marks: [
      panel.log_y ? powers(panel.rows) : null,
      figure.threshold == null ? null : Plot.ruleY([figure.threshold], { stroke: "var(--soft)", strokeDasharray: "5 4" }),
      Plot.areaY(panel.rows.filter((r) => r.low != null && r.high != null), {
        x: "x", y1: "low", y2: "high", z: "name", fill: stroke, fillOpacity: 0.14,
      }),
      ...[...own.values()].flatMap((rows) => line(rows, rows[0].place, figure.log_x)),
      margin == null ? null : labels(panel.ends),
      ...pointed(panel.rows, { x: "x", y: "y", title, fill: stroke, maxRadius: 60 }),
    ],
  });
}

// Lines at powers of ten, for a logarithmic axis: Plot's own grid has a line per tick.
function powers(rows) {
  const [low, high] = d3.extent(rows, (r) => Math.log10(r.y));
  return Plot.gridY(d3.range(Math.floor(low), Math.ceil(high) + 1).map((k) => 10 ** k));
}

// Scores of seeds at each value of a setting, with their IQM.
function scores(holder, figure) {
  const place = new Map(figure.names.map((name, i) => [name, i]));
  let redraw = () => {};
  const named = figure.names.filter((name) => name).map((name) => [name, place.get(name)]);
  const { box, isShown } = legend(named, () => redraw());
  const draw = (panel, width) => {
    const shift = (p) => (figure.names.length > 1 ? (place.get(p.name) - (figure.names.length - 1) / 2) * 10 : 0);
    const shown = panel.points.filter((p) => isShown(p.name));
    const title = (p) => [p.name, p.value, `IQM ${interval(p.y, p.low, p.high)}, n = ${p.seeds.length}`].filter(Boolean).join("\n");
    const longest = d3.max(panel.values, (v) => v.length);
    const slanted = longest * panel.values.length * 7 > width - 60;
    const marks = d3.groups(shown, (p) => p.name).flatMap(([name, points]) => {
      const dx = shift(points[0]);
      const stroke = colour(place.get(name));
      const seeds = points.flatMap((p) => p.seeds.map((y) => ({ ...p, y })));
      return [
        Plot.dot(seeds, { x: "value", y: "y", dx, r: 1.8, fill: stroke, fillOpacity: 0.35 }),
        Plot.ruleX(points, { x: "value", y1: "low", y2: "high", dx, stroke, strokeWidth: 2 }),
        Plot.dot(points, { x: "value", y: "y", dx, r: 4, fill: stroke, symbol: symbol(place.get(name)) }),
        ...pointed(points, { x: "value", y: "y", dx, title, fill: stroke, maxRadius: 30 }),
      ];
    });
    return chart(panel.title, {
      width, height: 260 + (slanted ? 40 : 0), marginLeft: 52,
      marginBottom: slanted ? Math.min(110, 6 * longest + 24) : 34,
      x: { type: "point", domain: panel.values, label: figure.xlabel || null, tickRotate: slanted ? -35 : 0 },
      y: { type: figure.log_y ? "log" : "linear", grid: !figure.log_y, label: figure.ylabel || null, tickFormat: short, nice: true },
      marks: [figure.log_y ? powers(shown) : null, ...marks],
    });
  };
  if (named.length) holder.append(box);
  holder.append(element("p", { class: "note" }, figure.legend));
  redraw = grid(holder, figure.panels, draw, 320);
}

// Scores of configurations against each hyperparameter, a row of panels per environment.
function scatter(holder, figure) {
  holder.append(element("p", { class: "note" }, figure.legend));
  const domain = d3.extent(figure.panels.flatMap((p) => p.y));
  for (const [row, panels] of d3.groups(figure.panels, (p) => p.row)) {
    holder.append(element("div", { class: "row-title" }, row));
    const titled = panels.map((p) => ({ ...p, title: p.name }));
    grid(holder, titled, (p, width) => scatterPanel(p, domain, figure.ylabel, width), 190);
  }
}

function scatterPanel(panel, domain, ylabel, width) {
  const points = panel.x.map((x, i) => ({ x, y: panel.y[i] }));
  const parts = panel.line.x.map((x, i) => ({ x, y: panel.line.y[i], low: panel.line.low[i], high: panel.line.high[i] }));
  const word = (x) => panel.words[x] ?? exact(x);
  const words = panel.words.length > 0;
  const x = words
    ? { domain: [-0.5, panel.words.length - 0.5], ticks: d3.range(panel.words.length), tickFormat: (k) => panel.words[k] }
    : { type: panel.log ? "log" : "linear", ticks: 4, tickFormat: short };
  return chart(`${panel.row}: ${panel.name}`, {
    width, height: 180, marginLeft: 40,
    x: { ...x, label: null },
    y: { domain, grid: true, label: ylabel, tickFormat: short },
    marks: [
      Plot.dot(points, { x: "x", y: "y", r: 2, fill: "var(--soft)", fillOpacity: 0.5 }),
      words ? Plot.ruleX(parts, { x: "x", y1: "low", y2: "high", stroke: "var(--accent)", strokeWidth: 2 })
        : Plot.areaY(parts, { x: "x", y1: "low", y2: "high", fill: "var(--accent)", fillOpacity: 0.2 }),
      words ? null : Plot.lineY(parts, { x: "x", y: "y", stroke: "var(--accent)", strokeWidth: 2 }),
      Plot.dot(parts, { x: "x", y: "y", r: 3, fill: "var(--accent)" }),
      ...pointed(points, {
        x: "x", y: "y", fill: "var(--soft)", maxRadius: 30,
        title: (p) => `${panel.name} ${word(p.x)}\nscore ${exact(p.y)}`,
      }),
    ],
  });
}

// A point per name, with the intervals of its x and of its y.
function plane(holder, figure) {
  const points = figure.points.map((p, place) => ({
    name: p.name, place, x: p.x[0], xl: p.x[1], xh: p.x[2], y: p.y[0], yl: p.y[1], yh: p.y[2],
  }));
  const stroke = (p) => colour(p.place);
  const title = (p) => `${p.name}\n${figure.xlabel}: ${interval(p.x, p.xl, p.xh)}\n${figure.ylabel}: ${interval(p.y, p.yl, p.yh)}`;
  grid(holder, [{}], (_, width) => chart(figure.ylabel, {
    width: Math.min(width, 640), height: 360, marginLeft: 48, marginRight: 90,
    x: { label: figure.xlabel, grid: true, nice: true, tickFormat: short },
    y: { label: figure.ylabel, grid: true, nice: true, tickFormat: short },
    marks: [
      Plot.ruleY(points, { y: "y", x1: "xl", x2: "xh", stroke }),
      Plot.ruleX(points, { x: "x", y1: "yl", y2: "yh", stroke }),
      ...points.map((p) => Plot.dot([p], { x: "x", y: "y", r: 4, fill: stroke(p), symbol: symbol(p.place) })),
      labels(points),
      ...pointed(points, { x: "x", y: "y", title, fill: stroke, maxRadius: 40 }),
    ],
  }), 480);
}

// Differences with their intervals, a row each, around a line at 0 and the band of the margin.
// Everything is placed in percent of a row's width: nothing is drawn again when it changes.
function forest(holder, figure) {
  const all = figure.panels.flatMap((panel) => panel.rows);
  const ends = [0, ...all.flatMap((row) => [row.low, row.high])];
  const widest = d3.max(all, (row) => row.margin);
  if (widest != null) ends.push(-1.2 * widest, 1.2 * widest);
  const x = d3.scaleLinear(d3.extent(ends.filter((end) => end != null)), [1, 99]).nice(5);
  const percent = (value) => `${x(value).toFixed(2)}%`;
  const box = element("div", { class: "panels", style: "--smallest: 460px" });
  for (const panel of figure.panels) {
    const label = d3.max(panel.rows, (row) => row.label.length);
    const word = d3.max(panel.rows, (row) => row.word.length);
    const list = element("ul", { class: label > 32 ? "forest long" : "forest", style: `--label: ${label}; --word: ${word}` });
    for (const row of panel.rows) {
      list.append(element("li", {},
        element("span", { class: "forest-label" }, row.href ? element("a", { href: row.href }, row.label) : row.label),
        forestRow(row, percent),
        element("span", { class: `forest-word ${DIFFERENCES[row.word] ? row.word : ""}` }, row.word)));
    }
    const cell = element("div", { class: "panel" }, list, forestAxis(x.ticks(5), figure.xlabel, percent, list));
    if (panel.title) cell.prepend(element("div", { class: "panel-title" }, panel.title));
    box.append(cell);
  }
  holder.append(box);
}

// The marker of each word, which tells it without its colour.
const DIFFERENCES = {
  better: "M0,-6L5.5,4H-5.5Z", worse: "M0,6L5.5,-4H-5.5Z", equivalent: "M-4,0a4,4 0 1 0 8,0a4,4 0 1 0 -8,0",
  undecided: "M-4,0a4,4 0 1 0 8,0a4,4 0 1 0 -8,0", saturated: "M-4,-4H4V4H-4Z",
  ceiling: "M-4,-4H4V4H-4Z",
};

function forestRow(row, percent) {
  const { margin } = row;
  const svg = d3.create("svg").attr("class", `forest-row ${DIFFERENCES[row.word] ? row.word : ""}`).attr("role", "img");
  const line = (low, high, y1, y2, name) => svg.append("line").attr("class", name)
    .attr("x1", percent(low)).attr("x2", percent(high)).attr("y1", y1).attr("y2", y2);
  if (margin != null) {
    svg.append("rect").attr("class", "margin").attr("x", percent(-margin)).attr("y", 0).attr("height", "100%")
      .attr("width", `${parseFloat(percent(margin)) - parseFloat(percent(-margin))}%`);
  }
  line(0, 0, 0, "100%", "zero");
  if (row.value == null) return svg.attr("aria-label", "no difference to show").node();
  const says = `${signed(row.value)} [${signed(row.low)}, ${signed(row.high)}]${row.n ? `, n = ${row.n}` : ""}`;
  svg.attr("aria-label", says).append("title").text(says);
  if (row.low != null && row.high != null) line(row.low, row.high, "50%", "50%", "range");
  svg.append("svg").attr("x", percent(row.value)).attr("y", "50%").attr("overflow", "visible")
    .append("path").attr("class", "mark").attr("d", DIFFERENCES[row.word] ?? DIFFERENCES.equivalent);
  return svg.node();
}

function forestAxis(ticks, label, percent, list) {
  const svg = d3.create("svg").attr("class", "forest-axis").attr("aria-hidden", "true");
  const every = ticks.length > 5 ? 2 : 1; // counted from 0: more numbers would touch in a narrow row
  const zero = ticks.indexOf(0);
  for (const [i, tick] of ticks.entries()) {
    svg.append("line").attr("x1", percent(tick)).attr("x2", percent(tick)).attr("y1", 0).attr("y2", 5);
    if ((i - zero) % every) continue;
    const place = parseFloat(percent(tick)); // what is at an end stays inside
    svg.append("text").attr("x", percent(tick)).attr("y", 18).text(tick ? signed(tick) : "0")
      .style("text-anchor", place < 5 ? "start" : place > 95 ? "end" : "middle");
  }
  return element("div", { class: "forest-foot", style: list.getAttribute("style") },
    svg.node(), element("span", { class: "forest-xlabel" }, label));
}

// The steps of a plan: values and greedy actions of all states, with a slider over the steps.
function boards(holder, figure) {
  const last = figure.steps[figure.steps.length - 1];
  const open = (step, state) => !step.ends.includes(state);
  const limit = d3.max(last.values, (v, state) => (open(last, state) ? Math.abs(v) : 0)) || 1;
  const digits = Math.max(0, 2 - Math.floor(Math.log10(limit)));
  const title = element("output", { class: "panel-title" });
  const slider = element("input", {
    type: "range", min: 0, max: figure.steps.length - 1, value: figure.steps.length - 1, "aria-label": "step",
  });
  const box = element("div", { class: "boards" });
  const show = () => {
    const step = figure.steps[slider.value];
    title.textContent = step.title;
    box.replaceChildren(...figure.panels.map((panel) => board(panel, step, figure.marks, limit, digits)));
  };
  slider.addEventListener("input", show);
  holder.append(element("div", { class: "stepper" }, slider, title), box);
  show();
}

function board(panel, step, marks, limit, digits) {
  const rows = panel.states.map((row) => element("tr", {}, ...row.map((state) => {
    if (state < 0) return element("td", { class: "none" });
    const mark = marks[state] ?? "";
    if (step.ends.includes(state)) return element("td", { class: mark === "#" ? "wall" : "end" }, mark === "#" ? "" : mark);
    const value = step.values[state];
    const share = Math.round(Math.min(1, Math.abs(value) / limit) * 60);
    const tint = value < 0 ? "--c3" : "--c0";
    const shown = (+value.toFixed(digits) + 0).toString();
    return element("td", { style: `background: color-mix(in srgb, var(${tint}) ${share}%, transparent)` },
      element("span", { class: "value" }, shown), element("span", { class: "action" }, step.actions[state]),
      mark ? element("span", { class: "mark" }, mark) : "");
  })));
  return element("table", { class: "board" }, panel.title ? element("caption", {}, panel.title) : "", element("tbody", {}, ...rows));
}
