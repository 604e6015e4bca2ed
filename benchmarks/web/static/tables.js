// Tables of the report: a click on the name of a column sorts by it, up, down, and back; long ones are
// folded.
"use strict";

// What a cell is sorted by: the number that it begins with, else its text; empty cells are last.
function keyOf(cell) {
  const text = cell.textContent.trim();
  const number = /^[+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?/.exec(text);
  if (number) return [0, Number(number[0].replaceAll(",", "")), text];
  return [text ? 1 : 2, 0, text];
}

const before = (a, b) => a[0] - b[0] || a[1] - b[1] || a[2].localeCompare(b[2], "en");

function sortable(table) {
  const body = table.tBodies[0];
  if (!table.tHead || !body || body.rows.length < 3) return;
  const given = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (!head.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[head.ariaSort ?? "none"];
      for (const other of heads) other.ariaSort = null;
      head.ariaSort = next === "none" ? null : next;
      const sign = next === "descending" ? -1 : 1;
      const rows = given.map((row) => [keyOf(row.cells[column]), row]);
      if (next !== "none") rows.sort((a, b) => (a[0][0] === 2 || b[0][0] === 2 ? a[0][0] - b[0][0] : sign * before(a[0], b[0])));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

// A long table is folded; a link to one of its rows opens it.
const LONG = 15; // rows

function fold(table) {
  const rows = table.tBodies[0]?.rows.length ?? 0;
  if (rows <= LONG || table.closest("details")) return;
  const names = [...table.tHead?.rows[0].cells ?? []].map((cell) => cell.textContent.trim()).filter(Boolean);
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = `${rows} rows: ${names.join(", ")}`;
  const scroll = table.closest(".scroll");
  scroll.replaceWith(details);
  details.append(summary, scroll);
}

function reveal() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const details = target && target.closest("details");
  if (!details || details.open) return;
  details.open = true;
  target.scrollIntoView();
}

for (const table of document.querySelectorAll("section .scroll > table:not(.matrix, .transcripts)")) {
  sortable(table);
  fold(table);
}
addEventListener("hashchange", reveal);
reveal();

// What is folded is printed, too.
const opened = [];
addEventListener("beforeprint", () => {
  opened.push(...document.querySelectorAll("details:not([open])"));
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of opened.splice(0)) details.open = false;
});
