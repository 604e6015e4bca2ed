// What pages with scripts share: data, numbers, elements, sizes.
"use strict";

// The JSON of an element that `packed` of page.py has filled.
async function unpack(id) {
  const text = document.getElementById(id).textContent.trim();
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

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

const PAPER = 690; // pixels between the margins of a printed page
const sized = new Map(); // element to what draws its content
let printing = false;

// What is in a narrow column of the screen is in one of the paper, too.
const paperWidth = (holder) => Math.min(PAPER, Math.floor(holder.clientWidth) || PAPER);

// Draw whenever the width of an element changes, and for the width of paper before it is printed.
function drawWhenSized(holder, draw) {
  let width = 0;
  sized.set(holder, draw);
  if (printing) draw(paperWidth(holder));
  new ResizeObserver(() => {
    const now = Math.floor(holder.clientWidth);
    if (now && now !== width && !printing) draw((width = now));
  }).observe(holder);
}

addEventListener("beforeprint", () => {
  printing = true;
  for (const [holder, draw] of sized) draw(paperWidth(holder));
});
addEventListener("afterprint", () => {
  printing = false;
  for (const [holder, draw] of sized) if (holder.clientWidth) draw(Math.floor(holder.clientWidth));
});
