/* A grid on the page: it draws values, arrows and things, and reports what is moved and painted.
 *
 * It knows nothing of planning. A view to draw is {columns, values [X], arrows(state) -> {action:
 * class}, scale, ends [X], kinds [X], marks [X], about(state), walker, path}: kinds are those of
 * GridworldState.kindOf; marks, a few letters for a corner of the cell; about, {what, best} in words.
 */
"use strict";

const GridworldBoard = (() => {
  const SIGNS = { start: "S", goal: "G", trap: "T" };
  const MOVABLE = ["start", "goal", "trap", "wall"];
  const POINTS = [
    // of the arrows, in a cell from -10 to 10
    "-9.7,0 -7.6,-2 -7.6,2",
    "0,9.7 -2,7.6 2,7.6",
    "9.7,0 7.6,-2 7.6,2",
    "0,-9.7 -2,-7.6 2,-7.6",
  ];
  const KEYS = { ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowRight: [0, 1], ArrowUp: [-1, 0] };
  const SVG = "http://www.w3.org/2000/svg";
  // Of a cell, the size of numbers between the arrows; of longer ones, above the arrows, at most.
  const LETTER = 0.22;
  const LONG = 5; // characters that fit between the arrows
  const GLYPH = 0.64; // the width of a digit, in its size

  /** A number as it stands everywhere on the page: with two decimals. */
  function decimal(x) {
    const text = Math.abs(x).toFixed(2);
    return x < 0 && Number(text) ? `−${text}` : text;
  }

  class Board {
    /** element: the empty grid.
     *
     * on: {move(kind, from, to), paint(states, toggles), select(state), say(text), sweeps()}: paint
     * uses the brush on cells, or takes away what it would paint, with toggles; sweeps() is whether
     * the brush also acts on things that could be moved.
     */
    constructor(element, on) {
      this.element = element;
      this.on = on;
      this.shape = "";
      this.focused = 0;
      this.carried = null; // what the keyboard has picked up: {kind, from, at}
      this.drag = null; // what the pointer holds: {kind or "paint", at, moved, paints}
      element.addEventListener("pointerdown", (event) => this.press(event));
      element.addEventListener("pointermove", (event) => this.move(event));
      element.addEventListener("pointerup", (event) => this.release(event));
      element.addEventListener("pointercancel", () => this.letGo());
      element.addEventListener("keydown", (event) => this.key(event));
      element.addEventListener("focusin", (event) => {
        if (event.target.state !== undefined) on.select(event.target.state);
      });
    }

    // ---- Drawing ---------------------------------------------------------------------------

    /** Make the cells of a shape anew. */
    build(rows, columns) {
      Object.assign(this, { rows, columns, shape: `${rows}x${columns}`, carried: null });
      this.focused = Math.min(this.focused, rows * columns - 1);
      this.element.style.setProperty("--rows", rows);
      this.element.style.setProperty("--columns", columns);
      this.cells = Array.from({ length: rows * columns }, (_, state) => makeCell(state));
      const lines = Array.from({ length: rows }, (_, row) => {
        const element = document.createElement("div");
        element.setAttribute("role", "row");
        element.append(...this.cells.slice(row * columns, (row + 1) * columns));
        return element;
      });
      this.path = document.createElementNS(SVG, "svg");
      this.path.setAttribute("class", "path");
      this.path.setAttribute("aria-hidden", "true");
      this.path.setAttribute("viewBox", `0 0 ${columns} ${rows}`);
      this.element.replaceChildren(...lines, this.path);
      this.cells[this.focused].tabIndex = 0;
    }

    draw(view) {
      const rows = view.values.length / view.columns;
      if (`${rows}x${view.columns}` !== this.shape) this.build(rows, view.columns);
      this.view = view;
      let longest = 4;
      this.cells.forEach((cell, state) => {
        longest = Math.max(longest, this.drawCell(cell, state).length);
      });
      const letter = longest > LONG ? Math.min(LETTER, 0.94 / (GLYPH * longest)) : LETTER;
      this.element.style.setProperty("--letter", letter);
      this.element.toggleAttribute("data-tight", longest > LONG);
      this.drawPath(view.path || [], view.walker);
    }

    /** Returns the number that the cell shows, "" for none. */
    drawCell(cell, state) {
      const { view } = this;
      const kind = view.kinds[state];
      const isEnd = view.ends[state] === 1;
      const value = view.values[state];
      const number = isEnd ? "" : decimal(value);
      if (cell.dataset.kind !== kind) cell.dataset.kind = kind;
      cell.style.setProperty("--share", isEnd ? 0 : Math.min(1, Math.abs(value) / view.scale));
      cell.dataset.sign = value < 0 ? "minus" : "plus";
      const { what, best } = view.about(state);
      write(cell.place, isEnd ? what : `${what}, value `);
      write(cell.number, number);
      write(cell.best, isEnd ? "" : `, best: ${best}`);
      write(cell.thing, SIGNS[kind] || "");
      write(cell.mark, view.marks[state]);
      const arrows = isEnd ? {} : view.arrows(state);
      cell.arrows.forEach((arrow, action) => {
        const name = arrows[action] || "none";
        if (arrow.getAttribute("class") !== name) arrow.setAttribute("class", name);
      });
      return number;
    }

    /** The way of an episode, and where the walker is. */
    drawPath(states, walker) {
      const { columns } = this;
      const center = (state) => [(state % columns) + 0.5, Math.floor(state / columns) + 0.5];
      const line = document.createElementNS(SVG, "polyline");
      line.setAttribute("points", states.map((state) => center(state).join(",")).join(" "));
      const parts = [line];
      if (walker !== undefined) {
        const dot = document.createElementNS(SVG, "circle");
        const [x, y] = center(walker);
        for (const [name, value] of [
          ["cx", x],
          ["cy", y + 0.3],
          ["r", 0.12],
        ]) {
          dot.setAttribute(name, value);
        }
        parts.push(dot);
      }
      this.path.replaceChildren(...parts);
    }

    // ---- The pointer -----------------------------------------------------------------------

    /** The state under a pointer, or undefined outside. */
    stateAt(event) {
      const box = this.element.getBoundingClientRect();
      const column = Math.floor(((event.clientX - box.left) / box.width) * this.columns);
      const row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
      const inside = row >= 0 && row < this.rows && column >= 0 && column < this.columns;
      return inside ? row * this.columns + column : undefined;
    }

    press(event) {
      if (event.button !== 0) return;
      const state = this.stateAt(event);
      if (state === undefined) return;
      const isMoved = !this.on.sweeps() && MOVABLE.includes(this.view.kinds[state]);
      const kind = isMoved ? this.view.kinds[state] : "paint";
      // A finger on an empty cell may be about to scroll: it paints only when it taps.
      this.drag = { kind, at: state, moved: false, paints: event.pointerType === "mouse" };
      if (isMoved || this.drag.paints) this.element.setPointerCapture(event.pointerId);
    }

    move(event) {
      const state = this.stateAt(event);
      if (state === undefined) return;
      if (!this.drag) {
        this.on.select(state);
        return;
      }
      const { kind, at, moved, paints } = this.drag;
      if (state === at) return;
      this.element.dataset.dragging = kind;
      if (kind === "paint") {
        if (!paints) return;
        const sweeps = this.on.sweeps();
        const cells = moved ? [state] : [at, state];
        this.on.paint(
          cells.filter((cell) => sweeps || !this.view.kinds[cell]),
          false,
        );
      } else if (this.view.kinds[state]) {
        return; // taken
      } else {
        this.on.move(kind, at, state);
      }
      Object.assign(this.drag, { at: state, moved: true });
    }

    release() {
      const { drag } = this;
      this.letGo();
      if (!drag || drag.moved) return;
      this.focus(drag.at);
      this.on.paint([drag.at], true);
    }

    letGo() {
      this.drag = null;
      delete this.element.dataset.dragging;
    }

    // ---- The keyboard ----------------------------------------------------------------------

    /** Move the focus to a cell: the only one that the Tab key reaches. */
    focus(state) {
      this.cells[this.focused].tabIndex = -1;
      this.focused = state;
      this.cells[state].tabIndex = 0;
      this.cells[state].focus({ preventScroll: true });
    }

    key(event) {
      const direction = KEYS[event.key];
      if (direction) this.go(direction);
      else if (event.key === "Enter" || event.key === " ") this.use();
      else if (event.key === "Escape" && this.carried) this.putBack();
      else return;
      event.preventDefault();
    }

    go([down, right]) {
      const row = Math.floor(this.focused / this.columns) + down;
      const column = (this.focused % this.columns) + right;
      if (row < 0 || row >= this.rows || column < 0 || column >= this.columns) return;
      const state = row * this.columns + column;
      if (this.carried) {
        if (this.view.kinds[state]) return;
        this.carry(state);
      }
      this.focus(state);
    }

    /** Move what the keyboard carries. */
    carry(state) {
      this.on.move(this.carried.kind, this.carried.at, state);
      this.carried.at = state;
    }

    /** Enter: put down what is carried, pick up a start, goal or trap, or paint. */
    use() {
      const state = this.focused;
      const kind = this.view.kinds[state];
      if (this.carried) {
        this.on.say(`${this.carried.kind} put down`);
        this.carried = null;
      } else if (SIGNS[kind] && !this.on.sweeps()) {
        this.carried = { kind, from: state, at: state };
        this.on.say(`${kind} picked up: arrow keys move it, Enter puts it down`);
      } else {
        this.on.paint([state], true);
      }
      this.element.dataset.carrying = this.carried ? "yes" : "no";
    }

    putBack() {
      const { kind, from } = this.carried;
      this.carry(from);
      this.carried = null;
      this.element.dataset.carrying = "no";
      this.focus(from);
      this.on.say(`${kind} put back`);
    }
  }

  /** Change the text of an element, where it is another one. */
  function write(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  /** A cell with its number, its arrows and what stands on it. */
  function makeCell(state) {
    const cell = document.createElement("div");
    cell.setAttribute("role", "gridcell");
    cell.className = "cell";
    cell.tabIndex = -1;
    cell.state = state;
    for (const name of ["place", "number", "best", "thing", "mark"]) {
      cell[name] = document.createElement("span");
      cell[name].className = ["place", "best"].includes(name) ? "unseen" : name;
    }
    // Both are in the words of place.
    for (const name of ["thing", "mark"]) cell[name].setAttribute("aria-hidden", "true");
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "-10 -10 20 20");
    svg.setAttribute("aria-hidden", "true");
    cell.arrows = POINTS.map((points, action) => {
      const arrow = document.createElementNS(SVG, "polygon");
      arrow.setAttribute("points", points);
      const holder = document.createElementNS(SVG, "g");
      if (action % 2 === 0) holder.setAttribute("class", "side");
      holder.append(arrow);
      svg.append(holder);
      return arrow;
    });
    cell.append(svg, cell.place, cell.number, cell.best, cell.thing, cell.mark);
    return cell;
  }

  return { Board, decimal };
})();
