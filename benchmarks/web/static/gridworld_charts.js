/* The charts of the gridworld page. Lines have the colours of site.js, by their place. */
"use strict";

const GridworldCharts = (() => {
  const POINTS = 300; // of a line
  const WINDOW = 100; // episodes whose mean return is shown

  /** At most so many rows, evenly, with the first and the last. */
  function thinned(rows) {
    if (rows.length <= POINTS) return rows;
    const last = rows.length - 1;
    const places = d3.range(POINTS).map((k) => Math.round((k * last) / (POINTS - 1)));
    return [...new Set(places)].map((k) => rows[k]);
  }

  /** Two decimals as everywhere; what these do not show, as a power of ten. */
  const tick = (y) =>
    y >= 0.01 ? GridworldBoard.decimal(y) : `10${superscript(Math.round(Math.log10(y)))}`;
  const superscript = (n) => `⁻${[...String(-n)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`;

  /** Round numbers between two: powers of ten, or where these are few, 1, 2 and 5 times them. */
  function logTicks(low, high) {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const step = Math.max(1, Math.ceil((last - first) / 6));
    const powers = d3.range(first, last + 1, step).map((k) => 10 ** k);
    const ticks = last - first > 3 ? powers : powers.flatMap((x) => [x, 2 * x, 5 * x]);
    return ticks.filter((x) => x >= low / 1.01 && x <= high * 1.01);
  }

  /** The residual of each sweep of some plans: [{name, steps, here}], here the step that is shown.
   *
   * The axis is logarithmic; 0 has a line of its own, the lowest.
   */
  function drawResiduals(figure, plans) {
    const made = plans.map(({ steps }) =>
      thinned(steps.filter((step) => ["start", "sweep"].includes(step.kind))),
    );
    const residuals = made.flat().map((step) => step.residual);
    const lowest = Math.min(1, ...residuals.filter((x) => x > 0));
    const highest = Math.max(lowest, ...residuals);
    const floor = lowest / 3;
    const y = (step) => step.residual || floor;
    const lines = made.map((rows, k) =>
      Plot.line(rows, {
        x: "sweep",
        y,
        stroke: colour(k),
        strokeDasharray: dash(k),
        strokeWidth: 2,
      }),
    );
    const ends = made.map((rows, place) => {
      const last = rows.at(-1);
      return { name: plans[place].name, place, x: last.sweep, y: y(last) };
    });
    const improvements = plans.map(({ steps }, k) =>
      Plot.dot(
        steps.filter((step) => step.kind === "improvement"),
        { x: "sweep", y, r: 3, fill: colour(k) },
      ),
    );
    const shown = plans.map(({ here }, k) =>
      Plot.dot([here], {
        x: "sweep",
        y,
        r: 6,
        stroke: colour(k),
        strokeWidth: 2,
        fill: "var(--page)",
      }),
    );
    const zero = residuals.includes(0)
      ? [
          Plot.ruleY([floor], { stroke: "var(--rule)", strokeDasharray: "3 3" }),
          Plot.text([floor], {
            y: (x) => x,
            frameAnchor: "left",
            text: [GridworldBoard.decimal(0)],
            textAnchor: "end",
            dx: -9,
          }),
        ]
      : [];
    draw(figure, ends, {
      x: { type: "sqrt", label: "sweeps", ticks: figure.clientWidth < 600 ? 4 : 8 },
      y: {
        type: "log",
        label: "Bellman residual",
        grid: true,
        tickFormat: tick,
        domain: [floor / 1.5, highest * 1.5],
        ticks: logTicks(lowest, highest),
      },
      marks: [...zero, ...lines, ...improvements, ...shown],
    });
  }

  /** Draw a chart with names at the ends of its lines: [{name, place, x, y}]. */
  function draw(figure, ends, { marks, ...options }) {
    const [width, height] = [Math.max(300, figure.clientWidth), 280];
    const domain = [0, Math.max(1, ...ends.map((end) => end.x))];
    const marginRight = labelMargin(ends, domain, width, height) ?? 24;
    const margins = { marginLeft: 66, marginBottom: 40, marginRight };
    const name = figure.getAttribute("aria-label");
    figure.replaceChildren(
      chart(name, { width, height, ...margins, ...options, marks: [...marks, labels(ends)] }),
    );
  }

  /** The mean return of the last episodes, at each episode: rows of a chart. */
  function meanReturns(returns) {
    const rows = [];
    let sum = 0;
    returns.forEach((value, k) => {
      sum += value - (k >= WINDOW ? returns[k - WINDOW] : 0);
      rows.push({ x: k + 1, y: sum / Math.min(k + 1, WINDOW) });
    });
    return rows;
  }

  /** The mean return of some learners: [{name, returns}], over so many episodes. */
  function drawReturns(figure, learners, episodes) {
    const lines = learners.map(({ returns }) => thinned(meanReturns(returns)));
    const ends = lines.flatMap((rows, place) =>
      rows.slice(-1).map((last) => ({ name: learners[place].name, place, ...last })),
    );
    draw(figure, ends, {
      x: { label: "episodes", domain: [0, Math.max(10, episodes)], nice: true },
      y: { label: "mean return", grid: true, nice: true, tickFormat: GridworldBoard.decimal },
      marks: lines.flatMap((rows, k) => line(rows, k)),
    });
  }

  return { WINDOW, drawResiduals, drawReturns };
})();
