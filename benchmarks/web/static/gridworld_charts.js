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
    const lines = made.flatMap((rows, k) => [
      Plot.line(rows, {
        x: "sweep",
        y,
        stroke: colour(k),
        strokeDasharray: DASHES[k],
        strokeWidth: 1.75,
      }),
      Plot.text(rows.slice(-1), {
        x: "sweep",
        y,
        text: () => plans[k].name,
        fill: colour(k),
        dx: k ? 6 : -8,
        dy: k ? 12 : -12,
        textAnchor: k ? "start" : "end",
      }),
    ]);
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
    figure.replaceChildren(
      Plot.plot({
        ...frameOf(figure),
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
      }),
    );
  }

  const frameOf = (figure) => ({
    width: Math.max(300, figure.clientWidth),
    height: 280,
    style: STYLE,
    marginLeft: 56,
    marginBottom: 40,
    marginRight: 24,
  });

  /** The mean return of the last episodes, at each episode: rows of a chart. */
  function meanReturns(returns) {
    const rows = [];
    let sum = 0;
    returns.forEach((value, k) => {
      sum += value - (k >= WINDOW ? returns[k - WINDOW] : 0);
      rows.push({ episode: k + 1, mean: sum / Math.min(k + 1, WINDOW) });
    });
    return rows;
  }

  /** The mean return of some learners: [{name, returns}], over so many episodes. */
  function drawReturns(figure, learners, episodes) {
    const lines = learners.map(({ returns }) => thinned(meanReturns(returns)));
    const lastOf = (rows) => rows.at(-1)?.mean ?? 0;
    const highest = Math.max(...lines.map(lastOf));
    const above = lines.findIndex((rows) => lastOf(rows) === highest);
    const marks = learners.flatMap(({ name }, k) => {
      const rows = lines[k];
      const line = Plot.line(rows, {
        x: "episode",
        y: "mean",
        stroke: colour(k),
        strokeDasharray: DASHES[k],
        strokeWidth: 1.75,
      });
      return [
        line,
        Plot.text(rows.slice(-1), {
          x: "episode",
          y: "mean",
          text: () => name,
          fill: colour(k),
          textAnchor: "end",
          dy: k === above ? -10 : 12,
        }),
      ];
    });
    figure.replaceChildren(
      Plot.plot({
        ...frameOf(figure),
        x: { label: "episodes", domain: [0, Math.max(10, episodes)], nice: true },
        y: { label: "mean return", grid: true, nice: true, tickFormat: GridworldBoard.decimal },
        marks,
      }),
    );
  }

  return { WINDOW, drawResiduals, drawReturns };
})();
