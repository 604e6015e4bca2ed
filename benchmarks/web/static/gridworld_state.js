/* The state of the gridworld page, the edits of its world, and the address that stands for it.
 *
 * A state is {tab, large, selected, world, at, learning}: the world as `GridworldEngine.makeModel`
 * takes it, with gamma; at, the step of each plan that is shown, a number or "end"; learning, the
 * settings of the learners and the episodes to run.
 */
"use strict";

const GridworldState = (() => {
  const { cellOf, indexOf } = GridworldEngine;
  const PLANNERS = ["policy", "value"];
  const END = "end";
  // Limits of the numbers; those of the world are also the limits of an address.
  const LIMITS = {
    rows: [2, 12],
    columns: [2, 12],
    gamma: [0, 1],
    slip: [0, 1],
    stepCost: [0, 1],
    bumpCost: [0, 10],
    goalReward: [-100, 100],
    trapReward: [-100, 100],
    reward: [-100, 100],
    alpha: [0.01, 1],
    epsilon: [0, 1],
    seed: [0, 99],
    episodes: [0, 100000],
  };
  const WHOLE = ["rows", "columns", "seed", "episodes"];
  const SIZE = ["rows", "columns"];
  const NUMBERS = ["gamma", "slip", "stepCost", "bumpCost", "goalReward", "trapReward"];
  const WORLD = [...SIZE, ...NUMBERS];
  const LEARNING = ["alpha", "epsilon", "seed", "episodes"];
  // Lists of cells in a world: of each kind of thing, its list; in an address, its field.
  const LISTS = { goal: "goals", trap: "traps", wall: "walls" };
  const FIELDS = { goal: "goals", trap: "traps", walls: "walls" };

  // Worlds to begin with, by group: what differs from the first one.
  const ROOMS = {
    "Open room, 8 × 8": {},
    "Past the trap": {
      rows: 7,
      columns: 7,
      start: [6, 0],
      goals: [[6, 6]],
      traps: [[6, 3]],
      trapReward: -5,
      stepCost: 0.05,
    },
    "Four rooms": {
      rows: 9,
      columns: 9,
      goals: [[8, 8]],
      traps: [[6, 6]],
      walls: [
        ...[0, 1, 3].map((row) => [row, 4]),
        ...[0, 1, 3, 4, 5, 7, 8].map((column) => [4, column]),
        ...[5, 7, 8].map((row) => [row, 4]),
      ],
    },
    "On ice": { slip: 0.65, gamma: 0.95 },
    "A goal behind walls": {
      walls: [
        [6, 6],
        [6, 7],
        [7, 6],
      ],
    },
  };
  const BOOK = {
    "Example 3.5: jumps": {
      rows: 5,
      columns: 5,
      start: [2, 2],
      goals: [],
      traps: [],
      jumps: [
        [0, 1, 4, 1, 10],
        [0, 3, 2, 3, 5],
      ],
      bumpCost: 1,
    },
    "Example 4.1: γ = 1": {
      rows: 4,
      columns: 4,
      start: [1, 2],
      goals: [
        [0, 0],
        [3, 3],
      ],
      traps: [],
      gamma: 1,
      stepCost: 1,
      goalReward: 0,
    },
    "Example 6.6: cliff": {
      rows: 4,
      columns: 12,
      start: [3, 0],
      goals: [[3, 11]],
      traps: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map((column) => [3, column]),
      gamma: 1,
      stepCost: 1,
      goalReward: 0,
      trapReward: -99, // and the step's cost: -100
      restart: true,
    },
    "Example 8.1: Dyna maze": {
      rows: 6,
      columns: 9,
      start: [2, 0],
      goals: [[0, 8]],
      traps: [],
      walls: [
        [0, 7],
        [1, 2],
        [1, 7],
        [2, 2],
        [2, 7],
        [3, 2],
        [4, 5],
      ],
      gamma: 0.95,
    },
  };
  const EXAMPLES = { Rooms: ROOMS, "Sutton and Barto": BOOK };

  /** The state that the page begins with, for its first world. */
  const beginning = (first) => ({
    tab: "plan",
    large: false,
    selected: null,
    world: structuredClone(first),
    at: { policy: 0, value: 0 },
    learning: { alpha: 0.5, epsilon: 0.2, seed: 0, episodes: 0 },
  });

  // ---- Edits ---------------------------------------------------------------------------------

  const same = (cell, [row, column]) => cell[0] === row && cell[1] === column;
  const holds = (list, cell) => list.some((other) => same(other, cell));

  /** What is in a cell: start, goal, trap, wall, jump (a jump begins or ends there), or "". */
  function kindOf(world, cell) {
    if (same(world.start, cell)) return "start";
    const kind = Object.keys(LISTS).find((name) => holds(world[LISTS[name]], cell));
    if (kind) return kind;
    return world.jumps.some((jump) => same(jump, cell) || same(jump.slice(2), cell)) ? "jump" : "";
  }

  /** A list of cells with one more, row by row. */
  const withCell = (list, cell) => [...list, cell].sort(([a, b], [c, d]) => a - c || b - d);

  /** Take a cell's goal, trap or wall away, or the jump that begins or ends there. */
  function clear(world, cell) {
    for (const list of Object.values(LISTS)) {
      world[list] = world[list].filter((other) => !same(other, cell));
    }
    world.jumps = world.jumps.filter((jump) => !same(jump, cell) && !same(jump.slice(2), cell));
  }

  /** Put a goal, trap or wall, or the start, into a free cell. */
  function place(world, kind, cell) {
    if (kind === "start") world.start = cell;
    else world[LISTS[kind]] = withCell(world[LISTS[kind]], cell);
  }

  /** What a cell pays for being entered in place of its kind's reward; null for nothing else. */
  function setReward(world, [row, column], reward) {
    world.rewards = world.rewards.filter((other) => !same(other, [row, column]));
    if (reward !== null) world.rewards = withCell(world.rewards, [row, column, reward]);
  }

  /** Fit everything into a grid of another size: what is outside goes, but the start, the first goal
   * and the first trap, which move inside. */
  function fitInto(world, { rows, columns }) {
    Object.assign(world, { rows, columns });
    const inside = ([row, column]) => row < rows && column < columns;
    const moved = ([row, column]) => {
      const corner = indexOf([Math.min(row, rows - 1), Math.min(column, columns - 1)], world);
      const X = rows * columns;
      const places = Array.from({ length: X }, (_, k) => cellOf((corner + X - k) % X, world));
      return places.find((cell) => !kindOf(world, cell));
    };
    const before = Object.values(LISTS).map((list) => world[list]);
    for (const list of Object.values(LISTS)) world[list] = world[list].filter(inside);
    world.jumps = world.jumps.filter((jump) => inside(jump) && inside(jump.slice(2)));
    world.rewards = world.rewards.filter(inside);
    if (!inside(world.start)) world.start = moved(world.start) || [0, 0];
    ["goals", "traps"].forEach((list, k) => {
      const cell = before[k].length && !world[list].length && moved(before[k][0]);
      if (cell) world[list] = [cell];
    });
  }

  // ---- The address ---------------------------------------------------------------------------

  const written = (cells) => cells.map((cell) => cell.join(".")).join("_");
  const writtenSize = ({ rows, columns }) => (rows === columns ? rows : `${rows}x${columns}`);
  const writtenRewards = (rewards) =>
    rewards.map(([row, column, reward]) => `${row}.${column}:${reward}`).join("_");
  const writtenJumps = (jumps) =>
    jumps.map(([a, b, c, d, reward]) => `${a}.${b}:${c}.${d}:${reward}`).join("_");

  /** All fields of an address. */
  const allFields = ({ tab, large, world, at, learning }) => ({
    tab,
    size: writtenSize(world),
    ...Object.fromEntries(NUMBERS.map((name) => [name, world[name]])),
    start: written([world.start]),
    ...Object.fromEntries(
      Object.entries(FIELDS).map(([name, list]) => [name, written(world[list])]),
    ),
    rewards: writtenRewards(world.rewards),
    jumps: writtenJumps(world.jumps),
    restart: world.restart ? "yes" : "no",
    ...at,
    ...learning,
    large: large ? "yes" : "no",
  });

  /** What differs from the beginning, as fields of an address. */
  function fieldsOf(state, first) {
    const usual = allFields(beginning(first));
    const differs = ([name, value]) => String(value) !== String(usual[name]);
    return Object.fromEntries(Object.entries(allFields(state)).filter(differs));
  }

  /** The number of a field; throws a sentence where it is none, or out of its limits. */
  function numberOf(name, text) {
    const [low, high] = LIMITS[name];
    const value = Number(text);
    const decimals = WHOLE.includes(name) ? 0 : 2; // which all numbers of the page have
    const fits = text.trim() !== "" && value >= low && value <= high;
    if (!fits || value !== Number(value.toFixed(decimals))) {
      const kind = decimals ? "a number" : "a whole number";
      const end = fits && decimals ? ", with two decimals" : "";
      throw new Error(`${name} ${text || "''"}: must be ${kind} from ${low} to ${high}${end}`);
    }
    return value;
  }

  /** Rows and columns of a field: 8, or 4x12. */
  function sizeOf(text) {
    const [rows, columns = rows, ...more] = text.split("x");
    if (more.length) throw new Error(`size ${text}: must be as 8, or 4x12`);
    return { rows: numberOf("rows", rows), columns: numberOf("columns", columns) };
  }

  /** The cell of a text as 3.4; throws a sentence where it is outside. */
  function cellIn(name, text, { rows, columns }) {
    const cell = text.split(".").map((part) => (part.trim() === "" ? NaN : Number(part)));
    const [row, column] = cell;
    const whole = cell.length === 2 && cell.every((x) => Number.isInteger(x) && x >= 0);
    if (!whole || row >= rows || column >= columns) {
      throw new Error(`${name} ${text}: is no cell of a grid of ${rows} by ${columns}`);
    }
    return cell;
  }

  const parts = (text) => text.split("_").filter(Boolean);

  /** The cells and the reward of a part as 3.4:0.5 or 3.4:5.6:0.5. */
  function paying(name, part, count, world) {
    const texts = part.split(":");
    if (texts.length !== count + 1)
      throw new Error(`${name} ${part}: must have ${count + 1} parts`);
    const cells = texts.slice(0, count).flatMap((text) => cellIn(name, text, world));
    return [...cells, numberOf("reward", texts[count])];
  }

  /** The state that fields of an address stand for; throws a sentence where one is wrong. */
  function stateOf(fields, first) {
    const found = beginning(first);
    const { world } = found;
    const read = (name, use) => name in fields && use(fields[name]);
    for (const name of NUMBERS) read(name, (text) => (world[name] = numberOf(name, text)));
    for (const name of LEARNING)
      read(name, (text) => (found.learning[name] = numberOf(name, text)));
    read("size", (text) => fitInto(world, sizeOf(text)));
    read("start", (text) => (world.start = cellIn("start", text, world)));
    for (const [name, list] of Object.entries(FIELDS)) {
      read(name, (text) => {
        const cells = parts(text).map((part) => cellIn(name, part, world));
        world[list] = cells.reduce(withCell, []);
      });
    }
    for (const [name, count] of [
      ["rewards", 1],
      ["jumps", 2],
    ]) {
      read(name, (text) => {
        const paid = parts(text).map((part) => paying(name, part, count, world));
        world[name] = paid.reduce(withCell, []);
      });
    }
    world.restart = fields.restart === "yes";
    checkPlaces(world);
    for (const name of PLANNERS) {
      read(name, (text) => {
        found.at[name] = text === END ? END : Number(text);
        if (text !== END && !(Number.isInteger(found.at[name]) && found.at[name] >= 0)) {
          throw new Error(`${name} ${text}: must be a step as 3, or ${END}`);
        }
      });
    }
    found.tab = fields.tab === "learn" ? "learn" : "plan";
    found.large = fields.large === "yes";
    return found;
  }

  /** Throws a sentence where two things share a cell, or a jump leads to a wall or a trap. */
  function checkPlaces(world) {
    const taken = new Map();
    const take = (name, cell) => {
      const key = `${cell[0]}.${cell[1]}`;
      if (taken.has(key)) throw new Error(`${name} ${key}: ${taken.get(key)} is there already`);
      taken.set(key, name);
    };
    take("start", world.start);
    for (const name of Object.keys(LISTS)) {
      for (const cell of world[LISTS[name]]) take(name === "wall" ? "a wall" : name, cell);
    }
    for (const jump of world.jumps) take("a jump", jump);
    for (const [row, column, to, other] of world.jumps) {
      const end = [to, other];
      const isBad = ["wall", "trap"].includes(kindOf(world, end)) || same(end, [row, column]);
      if (isBad) throw new Error(`jumps ${row}.${column}:${end.join(".")}: leads nowhere`);
    }
    const rewarded = new Set(world.rewards.map(([row, column]) => `${row}.${column}`));
    if (rewarded.size < world.rewards.length) throw new Error("rewards: one for each cell");
  }

  return {
    EXAMPLES,
    END,
    LIMITS,
    SIZE,
    WORLD,
    beginning,
    kindOf,
    clear,
    place,
    setReward,
    fieldsOf,
    stateOf,
    numberOf,
    fitInto,
  };
})();
