/* A grid on the page: it draws values, arrows and things, and reports what is dragged.
 *
 * It knows nothing of planning. A view to draw is {values [X], arrows(state) -> {action: class},
 * scale, ends [X], walls (a Set of states), things ({start, goal, trap}: states), label(state),
 * walker, path}.
 */
"use strict";

const GridworldBoard = (() => {
  const SIGNS = { start: "S", goal: "G", trap: "T" };
  const POINTS = [
    // of the arrows, in a cell from -10 to 10
    "-9.7,0 -7.6,-2 -7.6,2",
    "0,9.7 -2,7.6 2,7.6",
    "9.7,0 7.6,-2 7.6,2",
    "0,-9.7 -2,-7.6 2,-7.6",
  ];
  const KEYS = { ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowRight: [0, 1], ArrowUp: [-1, 0] };
  const SVG = "http://www.w3.org/2000/svg";

  const NARROW = 46; // pixels of a cell that has room for four characters only

  /** A number in at most so many characters, as far as that is possible: 0.590, -0.59, 1e-4.
   *
   * With room for four the zero before the point goes: .590, -.59.
   */
  function inRoom(x, room) {
    if (x === 0) return "0";
    const size = Math.abs(x);
    const sign = x < 0 ? "−" : "";
    const zero = room < 5 && size < 1 ? 0 : 1; // whether it stands before the point
    const whole = Math.max(String(Math.floor(size)).length, 1) - 1 + zero;
    const decimals = Math.max(0, room - sign.length - whole - 1);
    const hasExponent = sign.length + "1e-4".length <= room;
    if (hasExponent && size < 0.5 * 10 ** -decimals) {
      return sign + size.toExponential(0).replace("e-", "e−");
    }
    const text = size.toFixed(decimals);
    return sign + (zero ? text : text.replace(/^0/, ""));
  }

  const inFive = (x) => inRoom(x, 5);

  class Board {
    /** element: the empty grid; on: {move(thing, state), wall(state, built), select(state), say(text)}. */
    constructor(element, on) {
      this.element = element;
      this.on = on;
      this.size = 0;
      this.focused = 0;
      this.carried = null; // what the keyboard has picked up: {thing, from}
      this.drag = null; // what the pointer holds: {thing or wall or paint, from, moved}
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

    /** Make the cells of a size anew. */
    build(size) {
      this.size = size;
      this.focused = Math.min(this.focused, size * size - 1);
      this.element.style.setProperty("--size", size);
      this.cells = Array.from({ length: size * size }, (_, state) => makeCell(state));
      const rows = Array.from({ length: size }, (_, row) => {
        const element = document.createElement("div");
        element.setAttribute("role", "row");
        element.append(...this.cells.slice(row * size, (row + 1) * size));
        return element;
      });
      this.path = document.createElementNS(SVG, "svg");
      this.path.setAttribute("class", "path");
      this.path.setAttribute("aria-hidden", "true");
      this.path.setAttribute("viewBox", `0 0 ${size} ${size}`);
      this.element.replaceChildren(...rows, this.path);
      this.cells[this.focused].tabIndex = 0;
    }

    draw(view) {
      const size = Math.sqrt(view.values.length);
      if (size !== this.size) this.build(size);
      this.view = view;
      this.room = this.element.clientWidth / size < NARROW ? 4 : 5;
      this.element.dataset.room = this.room;
      const thingAt = new Map(Object.entries(view.things).map(([thing, state]) => [state, thing]));
      this.cells.forEach((cell, state) => this.drawCell(cell, state, thingAt.get(state)));
      this.drawPath(view.path || [], view.walker);
    }

    drawCell(cell, state, thing) {
      const { view } = this;
      const isWall = view.walls.has(state);
      const isEnd = view.ends[state] === 1;
      const value = view.values[state];
      const kind = isWall ? "wall" : thing || "";
      if (cell.dataset.kind !== kind) cell.dataset.kind = kind;
      cell.style.setProperty("--share", isEnd ? 0 : Math.min(1, Math.abs(value) / view.scale));
      cell.dataset.sign = value < 0 ? "minus" : "plus";
      cell.thing.textContent = SIGNS[kind] || "";
      cell.number.textContent = isEnd ? "" : inRoom(value, this.room);
      const arrows = isEnd ? {} : view.arrows(state);
      cell.arrows.forEach((arrow, action) => {
        const name = arrows[action] || "none";
        if (arrow.getAttribute("class") !== name) arrow.setAttribute("class", name);
      });
      cell.setAttribute("aria-label", view.label(state));
    }

    /** The way of an episode, and where the walker is. */
    drawPath(states, walker) {
      const center = (state) => [(state % this.size) + 0.5, Math.floor(state / this.size) + 0.5];
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
      const column = Math.floor(((event.clientX - box.left) / box.width) * this.size);
      const row = Math.floor(((event.clientY - box.top) / box.height) * this.size);
      const inside = row >= 0 && row < this.size && column >= 0 && column < this.size;
      return inside ? row * this.size + column : undefined;
    }

    thingOf(state) {
      return Object.keys(SIGNS).find((thing) => this.view.things[thing] === state);
    }

    isFree(state) {
      return !this.thingOf(state) && !this.view.walls.has(state);
    }

    press(event) {
      if (event.button !== 0) return;
      const state = this.stateAt(event);
      if (state === undefined) return;
      const kind = this.thingOf(state) || (this.view.walls.has(state) ? "wall" : "empty");
      // A finger on an empty cell may be about to scroll: it builds a wall only when it taps.
      this.drag = { kind, at: state, moved: false, paints: event.pointerType === "mouse" };
      if (kind !== "empty" || this.drag.paints) this.element.setPointerCapture(event.pointerId);
    }

    move(event) {
      const state = this.stateAt(event);
      if (state === undefined) return;
      if (!this.drag) {
        this.on.select(state);
        return;
      }
      if (state === this.drag.at) return;
      this.element.dataset.dragging = this.drag.kind;
      if (this.drag.kind === "empty") this.paint(state);
      else if (this.isFree(state)) this.carryTo(state);
    }

    carryTo(state) {
      const { kind, at } = this.drag;
      if (kind === "wall") {
        this.on.wall(at, false);
        this.on.wall(state, true);
      } else {
        this.on.move(kind, state);
      }
      Object.assign(this.drag, { at: state, moved: true });
    }

    paint(state) {
      if (!this.drag.paints) return;
      if (!this.drag.moved) this.on.wall(this.drag.at, true);
      if (this.isFree(state)) this.on.wall(state, true);
      Object.assign(this.drag, { at: state, moved: true });
    }

    release() {
      const { drag } = this;
      this.letGo();
      if (!drag || drag.moved) return;
      this.focus(drag.at);
      if (drag.kind === "empty") this.on.wall(drag.at, true);
      if (drag.kind === "wall") this.on.wall(drag.at, false);
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
      const row = Math.floor(this.focused / this.size) + down;
      const column = (this.focused % this.size) + right;
      if (Math.min(row, column) < 0 || Math.max(row, column) >= this.size) return;
      const state = row * this.size + column;
      if (this.carried) {
        if (!this.isFree(state)) return;
        this.on.move(this.carried.thing, state);
      }
      this.focus(state);
    }

    use() {
      const state = this.focused;
      const thing = this.thingOf(state);
      if (this.carried) {
        this.on.say(`${this.carried.thing} put down`);
        this.carried = null;
      } else if (thing) {
        this.carried = { thing, from: state };
        this.on.say(`${thing} picked up: arrow keys move it, Enter puts it down`);
      } else {
        this.on.wall(state, !this.view.walls.has(state));
      }
      this.element.dataset.carrying = this.carried ? "yes" : "no";
    }

    putBack() {
      const { thing, from } = this.carried;
      this.carried = null;
      this.element.dataset.carrying = "no";
      this.on.move(thing, from);
      this.focus(from);
      this.on.say(`${thing} put back`);
    }
  }

  /** A cell with its number, its arrows and what stands on it. */
  function makeCell(state) {
    const cell = document.createElement("div");
    cell.setAttribute("role", "gridcell");
    cell.className = "cell";
    cell.tabIndex = -1;
    cell.state = state;
    cell.thing = document.createElement("span");
    cell.thing.className = "thing";
    cell.number = document.createElement("span");
    cell.number.className = "number";
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "-10 -10 20 20");
    svg.setAttribute("aria-hidden", "true");
    cell.arrows = POINTS.map((points) => {
      const arrow = document.createElementNS(SVG, "polygon");
      arrow.setAttribute("points", points);
      return arrow;
    });
    svg.append(...cell.arrows);
    cell.append(svg, cell.number, cell.thing);
    return cell;
  }

  return { Board, inFive };
})();
