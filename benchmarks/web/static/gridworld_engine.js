/* Planning and learning in a gridworld, without any page.
 *
 * The equations, their order and their rules for ties and for stopping are those of
 * algos/policy_iteration.py, algos/value_iteration.py, algos/q_learning.py and algos/sarsa.py;
 * tests/benchmarks/web/test_gridworld.py compares them sweep by sweep.
 *
 * Shapes: X = rows * columns states, numbered row by row; A = 4 actions. Arrays of pairs are flat:
 * entry (state, action) of q [X, A] is q[state * 4 + action].
 */
"use strict";

const GridworldEngine = (() => {
  const ACTIONS = ["left", "down", "right", "up"];
  const MOVES = [
    [0, -1],
    [1, 0],
    [0, 1],
    [-1, 0],
  ]; // (row, column) of each action
  const A = ACTIONS.length;
  const OUTCOMES = 3; // of a step: as intended, or slipped to either side
  const RANDOM = -1; // in a policy: all four actions with probability 1/4
  const TOLERANCE = 1e-10; // PlanningConfig.tolerance
  const ROUNDING = 16 * Number.EPSILON;
  const TIED = 1e-12;
  const MOST_SWEEPS = { policy: 1000, value: 5000 }; // at gamma 1, of an evaluation and of a plan
  const TIME_LIMIT = 1000; // steps of an episode; planning knows no limit

  // ---- The world ---------------------------------------------------------------------------

  const indexOf = ([row, column], { columns }) => row * columns + column;
  const cellOf = (state, { columns }) => [Math.floor(state / columns), state % columns];

  /** The cell that one step in a direction leads to; the border and walls stop it. */
  function neighbour(state, direction, world, isWall) {
    const [row, column] = cellOf(state, world);
    const to = [row + MOVES[direction][0], column + MOVES[direction][1]];
    const inside = to[0] >= 0 && to[0] < world.rows && to[1] >= 0 && to[1] < world.columns;
    const target = inside ? indexOf(to, world) : state;
    return isWall[target] ? state : target;
  }

  /** What each cell pays for being entered, [X]; the cost of the step is not subtracted. */
  function entryRewards(world) {
    const pays = new Float64Array(world.rows * world.columns);
    for (const cell of world.goals) pays[indexOf(cell, world)] = world.goalReward;
    for (const cell of world.traps) pays[indexOf(cell, world)] = world.trapReward;
    for (const [row, column, reward] of world.rewards) {
      pays[indexOf([row, column], world)] = reward;
    }
    return pays;
  }

  /** Rewards, successors and ends of a world.
   *
   * world: {rows, columns, start, goals, traps, walls, rewards, jumps, slip, stepCost, bumpCost,
   * goalReward, trapReward, restart}, cells as [row, column].
   *
   * - With probability slip a step goes to the left or to the right of the intended direction, half
   *   of it each (FrozenLake: 2/3).
   * - Every step costs stepCost, and bumpCost more where the border or a wall stops it.
   * - Entering a goal or a trap pays its reward and ends the episode. With restart, a trap leads
   *   back to the start instead (CliffWalking). rewards: [row, column, reward], what another cell
   *   pays, or this goal or trap.
   * - jumps: [row, column, row', column', reward]: from the first cell every action leads to the
   *   second one and pays the jump's reward, whatever the second cell pays.
   *
   * Returns {rows, columns, X, start, isWall [X], ends [X], successors [X, A, 3],
   * probabilities [3], rewards [X, A, 3], r [X, A]}. Walls, and traps that lead back, are states that
   * no step leads to; they count as ended.
   */
  function makeModel(world) {
    const { rows, columns } = world;
    const X = rows * columns;
    const start = indexOf(world.start, world);
    const isWall = new Uint8Array(X);
    for (const wall of world.walls) isWall[indexOf(wall, world)] = 1;
    const isTrap = new Uint8Array(X);
    for (const trap of world.traps) isTrap[indexOf(trap, world)] = 1;
    const ends = isWall.map((wall, state) => wall | isTrap[state]);
    for (const goal of world.goals) ends[indexOf(goal, world)] = 1;
    const pays = entryRewards(world);
    const jumps = new Map(world.jumps.map((jump) => [indexOf(jump, world), jump]));
    const stepFrom = (state, direction) => {
      if (ends[state]) return { next: state, reward: 0 };
      const jump = jumps.get(state);
      if (jump) return { next: indexOf(jump.slice(2), world), reward: jump[4] - world.stepCost };
      const next = neighbour(state, direction, world, isWall);
      const reward = (next === state ? -world.bumpCost : pays[next]) - world.stepCost;
      return { next: isTrap[next] && world.restart ? start : next, reward };
    };
    const probabilities = [1 - world.slip, world.slip / 2, world.slip / 2];
    const successors = new Int32Array(X * A * OUTCOMES);
    const rewards = new Float64Array(X * A * OUTCOMES);
    const r = new Float64Array(X * A);
    for (let state = 0; state < X; state++) {
      for (let action = 0; action < A; action++) {
        const directions = [action, (action + 3) % A, (action + 1) % A];
        directions.forEach((direction, k) => {
          const pair = state * A + action;
          const { next, reward } = stepFrom(state, direction);
          successors[pair * OUTCOMES + k] = next;
          rewards[pair * OUTCOMES + k] = reward;
          r[pair] += probabilities[k] * reward;
        });
      }
    }
    return { rows, columns, X, start, isWall, ends, successors, probabilities, rewards, r };
  }

  // ---- Planning ----------------------------------------------------------------------------

  /** Q(s, a) = r(s, a) + gamma sum_s' P(s'|s, a) V(s') of all pairs, [X, A]; 0 in ended states. */
  function actionValues(V, model, gamma) {
    const { ends, successors, r } = model;
    const [straight, left, right] = model.probabilities;
    const q = new Float64Array(r.length);
    for (let pair = 0, k = 0; pair < q.length; pair++, k += OUTCOMES) {
      if (ends[pair >> 2]) continue; // A = 4
      const next =
        straight * V[successors[k]] + left * V[successors[k + 1]] + right * V[successors[k + 2]];
      q[pair] = r[pair] + gamma * next;
    }
    return q;
  }

  const rowOf = (q, state) => q.subarray(state * A, (state + 1) * A);

  /** max_a Q(s, a) of one state. */
  const bestIn = (q, state) =>
    Math.max(q[state * A], q[state * A + 1], q[state * A + 2], q[state * A + 3]);

  /** max_a Q(s, a), [X]. */
  function best(q) {
    const top = new Float64Array(q.length / A);
    for (let state = 0; state < top.length; state++) top[state] = bestIn(q, state);
    return top;
  }

  /** The actions that are best in a state, where "tied" allows for rounding. */
  function greedyActions(q, state) {
    const row = rowOf(q, state);
    const top = bestIn(q, state);
    const least = top - TIED * Math.max(1, Math.abs(top));
    return [0, 1, 2, 3].filter((action) => row[action] >= least);
  }

  /** max |x - y| of two arrays [X]. */
  function largestDifference(x, y) {
    let largest = 0;
    for (let i = 0; i < x.length; i++) largest = Math.max(largest, Math.abs(x[i] - y[i]));
    return largest;
  }

  /** A Bellman residual below which all values are within tolerance * max(1, |V|) of V*.
   *
   * At gamma 1, which algos/ does not take, there is no such bound: there it is the tolerance.
   */
  function goalOfResidual(V, gamma) {
    let largest = 1;
    for (const value of V) largest = Math.max(largest, Math.abs(value));
    return Math.max(TOLERANCE * (gamma < 1 ? 1 - gamma : 1), ROUNDING) * largest;
  }

  /** V after one sweep of the evaluation of a policy [X]: sum_a pi(a|s) Q(s, a). */
  function evaluationSweep(policy, q) {
    const V = new Float64Array(policy.length);
    for (let state = 0; state < V.length; state++) {
      const pair = state * A;
      const isRandom = policy[state] === RANDOM;
      V[state] = isRandom
        ? (q[pair] + q[pair + 1] + q[pair + 2] + q[pair + 3]) / A
        : q[pair + policy[state]];
    }
    return V;
  }

  /** The policy [X] that is greedy for q wherever that is better than V by more than accuracy. */
  function improve(policy, V, q, accuracy) {
    const top = best(q);
    return policy.map((action, state) =>
      top[state] > V[state] + accuracy ? greedyActions(q, state)[0] : action,
    );
  }

  // ---- Without discount ----------------------------------------------------------------------

  /** The first state from which a policy [X] never reaches an end, or -1. */
  function neverEnding(policy, model) {
    const { X, ends, successors, probabilities } = model;
    const reaches = Uint8Array.from(ends);
    const leadsOn = (state, action) =>
      probabilities.some(
        (p, k) => p > 0 && reaches[successors[(state * A + action) * OUTCOMES + k]],
      );
    for (let before = -1, count = 0; count !== before;) {
      before = count;
      for (let state = 0; state < X; state++) {
        if (reaches[state]) continue;
        const actions = policy[state] === RANDOM ? [0, 1, 2, 3] : [policy[state]];
        if (actions.some((action) => leadsOn(state, action))) {
          reaches[state] = 1;
          count += 1;
        }
      }
    }
    return reaches.indexOf(0);
  }

  /** V of a policy [X] at gamma 1: r_pi + P_pi V = V, solved by elimination.
   *
   * From every state the policy has to reach an end.
   */
  function solveEvaluation(policy, model) {
    const { X, ends, successors, probabilities, r } = model;
    const rows = Array.from({ length: X }, (_, state) => {
      const row = new Float64Array(X + 1);
      row[state] = 1;
      if (ends[state]) return row;
      const actions = policy[state] === RANDOM ? [0, 1, 2, 3] : [policy[state]];
      for (const action of actions) {
        const pair = state * A + action;
        row[X] += r[pair] / actions.length;
        probabilities.forEach((p, k) => {
          row[successors[pair * OUTCOMES + k]] -= p / actions.length;
        });
      }
      return row;
    });
    for (let i = 0; i < X; i++) {
      let pivot = i;
      for (let j = i + 1; j < X; j++)
        if (Math.abs(rows[j][i]) > Math.abs(rows[pivot][i])) pivot = j;
      [rows[i], rows[pivot]] = [rows[pivot], rows[i]];
      for (let j = i + 1; j < X; j++) {
        const factor = rows[j][i] / rows[i][i];
        if (factor) for (let k = i; k <= X; k++) rows[j][k] -= factor * rows[i][k];
      }
    }
    const V = new Float64Array(X);
    for (let i = X - 1; i >= 0; i--) {
      let sum = rows[i][X];
      for (let k = i + 1; k < X; k++) sum -= rows[i][k] * V[k];
      V[i] = sum / rows[i][i];
    }
    return V;
  }

  /** Why a world has no values at gamma 1: a reason, and a state to name or -1. */
  class NoValues extends Error {
    constructor(reason, state = -1) {
      super(reason);
      Object.assign(this, { reason, state });
    }
  }

  // ---- Plans ---------------------------------------------------------------------------------

  /* A step of planning is what a reader sees after it:
   *   kind       "start", "sweep", "improvement", or "end"
   *   V          [X], the values
   *   policy     [X], an action or RANDOM (policy iteration only)
   *   iteration  how many policies have been evaluated, this one included (policy iteration only)
   *   sweep      how many sweeps have been made
   *   solved     whether these values were solved for, instead of a sweep
   *   change     max |V - V before|, of a sweep
   *   enough     the change at which an evaluation ends (policy iteration only)
   *   residual   max |max_a Q - V|, the Bellman residual
   *   changed    the states whose action an improvement has changed
   */

  /** All steps of policy iteration.
   *
   * At gamma 1 an evaluation that has not converged after MOST_SWEEPS is finished by solving for its
   * values, as --evaluation exact does. Throws NoValues where a policy never reaches an end: the
   * random one, because there is no way; a later one, because it gains by walking on for ever.
   */
  function policyIteration(model, gamma) {
    let V = new Float64Array(model.X);
    let policy = new Int8Array(model.X).fill(RANDOM);
    let q = actionValues(V, model, gamma);
    let residual = largestDifference(best(q), V);
    let [sweep, iteration] = [0, 1];
    const steps = [{ kind: "start", V, policy, iteration, sweep, residual }];
    while (true) {
      const stuck = gamma < 1 ? -1 : neverEnding(policy, model);
      if (stuck >= 0) throw new NoValues(iteration === 1 ? "no way" : "endless gain", stuck);
      let change;
      let enough;
      let solved = false;
      const last = sweep + (gamma < 1 ? Infinity : MOST_SWEEPS.policy);
      do {
        const before = V;
        solved = sweep === last;
        V = solved ? solveEvaluation(policy, model) : evaluationSweep(policy, q);
        q = actionValues(V, model, gamma);
        sweep += 1;
        change = largestDifference(V, before);
        // Half of what the improvement may overlook is left to the errors of the evaluation; at
        // gamma 1, where the errors add up over the steps of an episode, a hundredth of that.
        enough = goalOfResidual(V, gamma) / (gamma < 1 ? 2 : 200);
        residual = largestDifference(best(q), V);
        steps.push({
          kind: "sweep",
          V,
          policy,
          iteration,
          sweep,
          solved,
          change,
          enough,
          residual,
        });
      } while (change > enough && !solved);
      const accuracy = goalOfResidual(V, gamma);
      if (residual <= accuracy) {
        steps.push({ kind: "end", V, policy, iteration, sweep, residual, changed: [] });
        return steps;
      }
      const improved = improve(policy, V, q, accuracy);
      const changed = [];
      improved.forEach((action, state) => {
        if (action !== policy[state]) changed.push(state);
      });
      policy = improved;
      iteration += 1;
      steps.push({ kind: "improvement", V, policy, iteration, sweep, residual, changed });
    }
  }

  /** All steps of value iteration. Throws NoValues where it does not converge at gamma 1. */
  function valueIteration(model, gamma) {
    let V = new Float64Array(model.X);
    const steps = [];
    for (let sweep = 0; ; sweep++) {
      const top = best(actionValues(V, model, gamma));
      const residual = largestDifference(top, V);
      const change = sweep ? steps[sweep - 1].residual : undefined;
      steps.push({ kind: sweep ? "sweep" : "start", V, sweep, change, residual });
      if (residual <= goalOfResidual(V, gamma)) return steps;
      if (gamma === 1 && sweep === MOST_SWEEPS.value) throw new NoValues("too slow");
      V = top;
    }
  }

  /** The steps of both, {policy, value}. Throws NoValues where gamma 1 is not proper.
   *
   * With discount both find the same values. Without it, value iteration takes a walk that never
   * ends for one that is worth 0, and no policy that ends is worth that in some worlds.
   */
  function plan(model, gamma) {
    const policy = policyIteration(model, gamma);
    const value = valueIteration(model, gamma);
    const [V, W] = [policy.at(-1).V, value.at(-1).V];
    const scale = Math.max(1, ...V.map(Math.abs));
    if (gamma === 1 && largestDifference(V, W) > 1e-6 * scale) throw new NoValues("endless rest");
    return { policy, value };
  }

  // ---- Learning without a model ------------------------------------------------------------

  /** Uniform numbers in [0, 1) from a seed (mulberry32, Tommy Ettinger, public domain). */
  function uniforms(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let x = state;
      x = Math.imul(x ^ (x >>> 15), x | 1);
      x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
      return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
    };
  }

  /** The epsilon-greedy action in a state; ties between the best are broken at random.
   *
   * noise: three uniforms: whether to explore, with which action, how a tie is broken.
   */
  function act(q, state, epsilon, [explores, which, tie]) {
    if (explores < epsilon) return Math.floor(which * A);
    const row = rowOf(q, state);
    const top = bestIn(q, state);
    const tied = [0, 1, 2, 3].filter((action) => row[action] === top);
    return tied[Math.floor(tie * tied.length)];
  }

  /** A learner at the start of its first episode, with a table of zeros.
   *
   * algorithm: "q_learning" or "sarsa"; settings: {gamma, alpha, epsilon, seed}.
   */
  function makeLearner(algorithm, model, settings) {
    const learner = {
      algorithm,
      q: new Float64Array(model.X * A),
      uniform: uniforms(settings.seed),
      state: model.start,
      action: null, // SARSA's next action, already chosen
      steps: 0, // of all episodes
      length: 0, // of this episode
      episodeReturn: 0,
      returns: [], // undiscounted, of the episodes that have ended
      path: [model.start], // states of this episode
      last: null, // the latest transition
    };
    if (algorithm === "sarsa")
      learner.action = act(learner.q, model.start, settings.epsilon, three(learner));
    return learner;
  }

  const three = (learner) => [learner.uniform(), learner.uniform(), learner.uniform()];

  /** What a step leads to: one of the three outcomes, by a uniform number. */
  function outcome(model, state, action, uniform) {
    const [first, second] = model.probabilities;
    const k = uniform < first ? 0 : uniform < first + second ? 1 : 2;
    const place = (state * A + action) * OUTCOMES + k;
    return { next: model.successors[place], reward: model.rewards[place] };
  }

  /** One step and one update, in place.
   *
   * learner.last is then {state, action, reward, next, nextAction, terminated, truncated, target,
   * error, before, after}: Q(s, a) before and after, moved towards the target.
   */
  function learn(learner, model, { gamma, alpha, epsilon }) {
    const { q, state } = learner;
    const isSarsa = learner.algorithm === "sarsa";
    const action = isSarsa ? learner.action : act(q, state, epsilon, three(learner));
    const { next, reward } = outcome(model, state, action, learner.uniform());
    learner.length += 1;
    const terminated = model.ends[next] === 1;
    const truncated = !terminated && learner.length >= TIME_LIMIT;
    // SARSA chooses a' before the update, and takes it after it.
    const nextAction = isSarsa ? act(q, next, epsilon, three(learner)) : null;
    const nextValue = isSarsa ? q[next * A + nextAction] : bestIn(q, next);
    const target = reward + (terminated ? 0 : gamma * nextValue);
    const before = q[state * A + action];
    const error = target - before;
    const first = isSarsa ? act(q, model.start, epsilon, three(learner)) : null;
    q[state * A + action] = before + alpha * error;
    const after = q[state * A + action];
    learner.last = {
      state,
      action,
      reward,
      next,
      nextAction,
      terminated,
      truncated,
      target,
      error,
      before,
      after,
    };
    learner.steps += 1;
    learner.episodeReturn += reward;
    learner.path.push(next);
    learner.state = next;
    learner.action = nextAction;
    if (terminated || truncated) beginEpisode(learner, model, first);
  }

  /** Count the episode that has ended, and go back to the start. */
  function beginEpisode(learner, model, firstAction) {
    learner.returns.push(learner.episodeReturn);
    learner.lastPath = learner.path;
    Object.assign(learner, { state: model.start, action: firstAction, length: 0 });
    Object.assign(learner, { episodeReturn: 0, path: [model.start] });
  }

  return {
    ACTIONS,
    MOVES,
    RANDOM,
    TIME_LIMIT,
    act,
    indexOf,
    cellOf,
    makeModel,
    actionValues,
    best,
    greedyActions,
    goalOfResidual,
    NoValues,
    entryRewards,
    policyIteration,
    valueIteration,
    plan,
    makeLearner,
    learn,
  };
})();
