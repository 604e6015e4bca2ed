// What all pages with charts share: data, colours, numbers, text.
"use strict";

// The JSON of an element that `packed` of page.py has filled.
async function unpack(id) {
  const text = document.getElementById(id).textContent.trim();
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const COLOURS = 8; // --c0 to --c7 in site.css
const DASHES = ["none", "6 4", "2 3", "8 3 2 3"];
const colour = (place) => `var(--c${place % COLOURS})`;
const dash = (place) => DASHES[Math.floor(place / COLOURS) % DASHES.length];

// 100k, 1M, 0.25; 1e-4 for what is small.
function short(x) {
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1000) return d3.format("~s")(x).replace("G", "B");
  return size < 0.001 ? d3.format(".0e")(x).replace("−", "-") : d3.format("~g")(x);
}

// A number with four significant digits and separators.
const exact = (x) => d3.format(Math.abs(x) >= 1000 ? ",.0f" : ".4~g")(x);

// A difference, as +0.012.
const signed = (x) => d3.format("+.3~f")(x);

const interval = (y, low, high) =>
  low == null || high == null ? exact(y) : `${exact(y)} [${exact(low)}, ${exact(high)}]`;

// An element with text and attributes; text is never read as HTML.
function element(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...content);
  return made;
}

// Options of every chart: text in the page's font and colours.
const STYLE = { fontFamily: "inherit", fontSize: "12px", background: "none", overflow: "visible" };

// Draw again whenever the width of an element changes.
function drawWhenSized(holder, draw) {
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(holder.clientWidth);
    if (now && now !== width) draw((width = now));
  }).observe(holder);
}

// A point of a legend: a short line in its colour.
function swatch(place) {
  const svg = d3.create("svg").attr("width", 22).attr("height", 10).attr("aria-hidden", "true");
  svg.append("line").attr("x1", 1).attr("x2", 21).attr("y1", 5).attr("y2", 5)
    .style("stroke", colour(place)).attr("stroke-width", 2.5)
    .attr("stroke-dasharray", dash(place));
  return svg.node();
}
