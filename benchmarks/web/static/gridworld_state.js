/* The state of the gridworld page, and the address that stands for it.
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
    gamma: [0, 0.99],
    slip: [0, 1],
    stepCost: [0, 1],
    goalReward: [-10, 10],
    trapReward: [-10, 10],
    size: [4, 10],
    alpha: [0.01, 1],
    epsilon: [0, 1],
    seed: [0, 99],
    episodes: [0, 100000],
  };
  const WHOLE = ["size", "seed", "episodes"];
  const WORLD = ["size", "gamma", "slip", "stepCost", "goalReward", "trapReward"];
  const LEARNING = ["alpha", "epsilon", "seed", "episodes"];
  const THINGS = ["start", "goal", "trap"];

  const EXAMPLES = {
    "Open room": {},
    "Past the trap": {
      size: 7,
      start: [6, 0],
      goal: [6, 6],
      trap: [6, 3],
      trapReward: -5,
      stepCost: 0.05,
    },
    "Four rooms": {
      size: 9,
      start: [0, 0],
      goal: [8, 8],
      trap: [6, 6],
      walls: [0, 1, 3, 4, 5, 7, 8].flatMap((k) =>
        k === 4
          ? [[4, 4]]
          : [
              [4, k],
              [k, 4],
            ],
      ),
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

  /** The state that the page begins with, for its first world. */
  const beginning = (first) => ({
    tab: "plan",
    large: false,
    selected: null,
    world: structuredClone(first),
    at: { policy: END, value: END },
    learning: { alpha: 0.5, epsilon: 0.2, seed: 0, episodes: 0 },
  });

  const written = (cells) => cells.map((cell) => cell.join(".")).join("_");

  /** What differs from the beginning, as fields of an address. */
  function fieldsOf(state, first) {
    const usual = beginning(first);
    const fields = {};
    const put = (name, value, other) => {
      if (String(value) !== String(other)) fields[name] = value;
    };
    put("tab", state.tab, usual.tab);
    for (const name of WORLD) put(name, state.world[name], usual.world[name]);
    for (const name of THINGS)
      put(name, written([state.world[name]]), written([usual.world[name]]));
    put("walls", written(state.world.walls), "");
    for (const name of PLANNERS) put(name, state.at[name], END);
    for (const name of LEARNING) put(name, state.learning[name], usual.learning[name]);
    if (state.large) fields.large = "yes";
    return fields;
  }

  /** The number of a field; throws a sentence where it is none, or out of its limits. */
  function numberOf(name, text) {
    const [low, high] = LIMITS[name];
    const value = Number(text);
    const fits = text.trim() !== "" && value >= low && value <= high;
    if (!fits || (WHOLE.includes(name) && !Number.isInteger(value))) {
      const kind = WHOLE.includes(name) ? "a whole number" : "a number";
      throw new Error(`${name} ${text || "''"}: must be ${kind} from ${low} to ${high}`);
    }
    return value;
  }

  /** The cells of a field as [row, column]; throws a sentence where one is outside. */
  function cellsOf(name, text, size) {
    return text
      .split("_")
      .filter(Boolean)
      .map((part) => {
        const cell = part.split(".").map(Number);
        const inside =
          cell.length === 2 && cell.every((x) => Number.isInteger(x) && x >= 0 && x < size);
        if (!inside) throw new Error(`${name} ${part}: is no cell of a grid of ${size} by ${size}`);
        return cell;
      });
  }

  /** The state that fields of an address stand for; throws a sentence where one is wrong. */
  function stateOf(fields, first) {
    const found = beginning(first);
    for (const name of WORLD) if (name in fields) found.world[name] = numberOf(name, fields[name]);
    for (const name of LEARNING) {
      if (name in fields) found.learning[name] = numberOf(name, fields[name]);
    }
    const { size } = found.world;
    fitInto(found.world, size);
    for (const name of THINGS) {
      if (!(name in fields)) continue;
      [found.world[name]] = cellsOf(name, fields[name], size);
      if (!found.world[name]) throw new Error(`${name}: must be a cell as 3.4, row and column`);
    }
    if ("walls" in fields) found.world.walls = cellsOf("walls", fields.walls, size);
    checkPlaces(found.world);
    for (const name of PLANNERS) {
      if (name in fields && fields[name] !== END) {
        found.at[name] = Number(fields[name]);
        if (!Number.isInteger(found.at[name]) || found.at[name] < 0) {
          throw new Error(`${name} ${fields[name]}: must be a step as 3, or ${END}`);
        }
      }
    }
    found.tab = fields.tab === "learn" ? "learn" : "plan";
    found.large = fields.large === "yes";
    return found;
  }

  /** Throws a sentence where two things share a cell. */
  function checkPlaces(world) {
    const taken = new Map();
    const places = [
      ...THINGS.map((name) => [name, world[name]]),
      ...world.walls.map((w) => ["a wall", w]),
    ];
    for (const [name, cell] of places) {
      const key = cell.join(".");
      if (taken.has(key)) throw new Error(`${name} ${key}: ${taken.get(key)} is there already`);
      taken.set(key, name);
    }
  }

  /** Move what is outside a grid of a size into it, each thing to a cell of its own. */
  function fitInto(world, size) {
    const inside = ([row, column]) => [Math.min(row, size - 1), Math.min(column, size - 1)];
    const taken = new Set();
    for (const name of THINGS) {
      let place = indexOf(inside(world[name]), size);
      while (taken.has(place)) place = (place + size * size - 1) % (size * size);
      taken.add(place);
      world[name] = cellOf(place, size);
    }
    world.walls = world.walls.filter(
      (wall) => wall.every((x) => x < size) && !taken.has(indexOf(wall, size)),
    );
    world.size = size;
  }

  return { EXAMPLES, END, LIMITS, WORLD, THINGS, beginning, fieldsOf, stateOf, numberOf, fitInto };
})();
