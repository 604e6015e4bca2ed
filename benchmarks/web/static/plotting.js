// What charts of Observable Plot share: how lines look, their names, what the pointer is at.
"use strict";

// A line is told from others by its colour (--c0 to --c7 in site.css), and without it by its marker
// and its dashes.
const SYMBOLS = [
  d3.symbolCircle, d3.symbolTriangle, d3.symbolSquare, d3.symbolDiamond, { draw: pointDown },
  d3.symbolCross, d3.symbolStar, d3.symbolWye,
];
const DASHES = ["none", "7 3", "2 2.5", "8 3 2 3"];
const COLOURS = SYMBOLS.length;
const colour = (place) => `var(--c${place % COLOURS})`;
const dash = (place) => DASHES[(place + Math.floor(place / COLOURS)) % DASHES.length];
const symbol = (place) => SYMBOLS[(place + 2 * Math.floor(place / COLOURS)) % COLOURS]; // another where a colour comes again

// A triangle that stands on its tip.
function pointDown(context, size) {
  const r = 0.75 * Math.sqrt(size);
  context.moveTo(-r, -0.8 * r);
  context.lineTo(r, -0.8 * r);
  context.lineTo(0, r);
  context.closePath();
}

// How a line looks, for a legend.
function swatch(place, dashes = dash(place)) {
  const svg = d3.create("svg").attr("width", 26).attr("height", 12).attr("viewBox", "-13 -6 26 12").attr("aria-hidden", "true");
  svg.append("path").attr("d", "M-13,0H13").style("stroke", colour(place)).attr("stroke-width", 2.5).attr("stroke-dasharray", dashes);
  svg.append("path").attr("d", d3.symbol(symbol(place), 45)()).style("fill", colour(place));
  return svg.node();
}

// ---- Charts -------------------------------------------------------------------------------------

// Options of every chart: text in the page's font and colours.
const STYLE = { fontFamily: "inherit", fontSize: "12px", background: "none", overflow: "visible" };

// A chart of Observable Plot as one picture with a name. Plot names the parts, too, which readers of
// screens cannot reach.
function chart(name, options) {
  const plot = Plot.plot({ style: STYLE, ariaLabel: name, ...options });
  plot.setAttribute("role", "img");
  for (const part of plot.querySelectorAll("[aria-label]")) part.removeAttribute("aria-label");
  return plot;
}

// What the pointer is at: a dot, and a text above all lines.
function pointed(rows, { title, fill, maxRadius, ...places }) {
  const at = { ...places, maxRadius, ariaLabel: null };
  return [
    Plot.dot(rows, Plot.pointer({ ...at, r: 4.5, fill, className: "at" })),
    Plot.tip(rows, Plot.pointer({ ...at, title, className: "tip" })),
  ];
}

// A line with its dashes and markers. points: {x, y, ...}, in order.
function line(points, place, log, options = {}) {
  const stroke = colour(place);
  return [
    Plot.lineY(points, { x: "x", y: "y", stroke, strokeWidth: 2, strokeDasharray: dash(place), className: "curve", ...options }),
    Plot.dot(marked(points, place, log), { x: "x", y: "y", r: 3.5, fill: stroke, symbol: symbol(place) }),
  ];
}

// Of the points of a line, about five that get its marker; those of other lines lie elsewhere.
function marked(points, place, log) {
  if (points.length < 8) return points;
  const at = points.map((point) => (log ? Math.log(point.x) : point.x));
  const [first, last] = d3.extent(at);
  const shares = d3.range(5).map((k) => (k + ((place * 0.382 + 0.3) % 1)) / 5);
  return [...new Set(shares.map((share) => points[d3.minIndex(at, (x) => Math.abs(x - first - share * (last - first)))]))];
}

// ---- The names of lines, at their ends ----------------------------------------------------------

const LABEL = { size: 12, gap: 13, left: 20 }; // pixels: of text, between lines, from the end to text
const ruler = document.createElement("canvas").getContext("2d");

function textWidth(text) {
  ruler.font = `${LABEL.size}px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}

// The right margin that names at the ends of lines need, or null where they do not fit.
// ends: {name, place, x, y} in the units of the axes.
function labelMargin(ends, x, width, height, log) {
  const scale = (log ? d3.scaleLog() : d3.scaleLinear()).domain(x);
  const needed = (end) => LABEL.left + textWidth(end.name) + 4 - (1 - scale(end.x)) * 0.6 * width;
  const margin = Math.max(16, d3.max(ends, needed) ?? 0);
  return margin > 0.42 * width || ends.length * LABEL.gap > height - 60 ? null : margin;
}

// The names where their lines end, moved apart where they would lie on one another. x, y: to pixels;
// lowest, highest: pixels between which names stay.
function placed(ends, x, y, lowest, highest) {
  const names = ends.map((end) => ({ ...end, left: x(end.x), right: x(end.x) + LABEL.left + textWidth(end.name), from: y(end.y), top: y(end.y) }));
  names.sort((a, b) => a.top - b.top || a.place - b.place);
  for (let round = 0; round < 100; round++) {
    for (const [i, upper] of names.entries()) {
      for (const lower of names.slice(i + 1)) {
        if (upper.right < lower.left || lower.right < upper.left) continue;
        const missing = LABEL.gap - (lower.top - upper.top);
        if (missing <= 0) continue;
        upper.top = Math.max(highest, upper.top - missing / 2);
        lower.top = Math.min(lowest, lower.top + missing / 2);
      }
    }
  }
  return names;
}

// Whether a line passes through a name of a chart that has them. lines: the points of each.
function onLines(plot, ends, lines) {
  if (!ends.length) return false; // and there are no scales
  const x = plot.scale("x"), y = plot.scale("y");
  return placed(ends, x.apply, y.apply, ...y.range).some(({ left, right, top }) => {
    const first = left + LABEL.left / 2, half = LABEL.size / 2;
    return lines.some((points) => d3.pairs(points).some(([a, b]) => {
      const [[x0, y0], [x1, y1]] = d3.sort([a, b].map((p) => [x.apply(p.x), y.apply(p.y)]), (p) => p[0]);
      if (x1 < first || x0 > right) return false;
      const at = (place) => y0 + ((y1 - y0) * (place - x0)) / (x1 - x0);
      const through = x0 === x1 ? [y0, y1] : [at(Math.max(first, x0)), at(Math.min(right, x1))];
      return Math.min(...through) < top + half && Math.max(...through) > top - half;
    }));
  });
}

// A mark of Plot: the names with the markers of their lines.
function labels(ends) {
  return (_, { x, y }, channels, size) => {
    const group = d3.create("svg:g").attr("class", "end-labels");
    for (const { name, place, left, from, top } of placed(ends, x, y, size.height - size.marginBottom, size.marginTop)) {
      if (Math.abs(top - from) > 3) {
        group.append("path").attr("d", `M${left + 1},${from}L${left + 8},${top}`).attr("fill", "none").style("stroke", colour(place));
      }
      group.append("path").attr("d", d3.symbol(symbol(place), 40)()).style("fill", colour(place))
        .attr("transform", `translate(${left + 13},${top})`);
      group.append("text").attr("text-anchor", "start").attr("x", left + LABEL.left).attr("y", top).attr("dy", "0.32em").text(name);
    }
    return group.node();
  };
}
