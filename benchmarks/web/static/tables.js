// Tables of the report: a click on the name of a column sorts by it, up, down, and back.
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

// A link to a row of a table that is folded opens it.
function reveal() {
  const target = document.querySelector(":target");
  const details = target?.closest("details");
  if (!details || details.open) return;
  details.open = true;
  target.scrollIntoView();
}

for (const table of document.querySelectorAll("section .scroll > table:not(.matrix, .transcripts)")) sortable(table);
addEventListener("hashchange", reveal);
reveal();

// What is folded is printed, too.
const opened = [];
addEventListener("beforeprint", () => {
  opened.push(...document.querySelectorAll("main details:not([open])"));
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of opened.splice(0)) details.open = false;
});
