/* The numbers of one group of completions: advantages, ratios, clipping, weights, the loss.
 *
 * The equations are those of llm_track/grpo.py, dr_grpo.py, dapo.py and rlhf_ppo.py, with the
 * group as the whole minibatch; tests/benchmarks/web/test_grpo.py compares them with these files.
 *
 * Shapes: G completions of a prompt; completion i has |o_i| tokens. Arrays are by completion, then
 * by token.
 */
"use strict";

const GrpoEngine = (() => {
  const EPS = 1e-4; // added to the deviation, as in the track
  const WHITEN_EPS = 1e-8; // added to the variance when PPO whitens

  const sum = (values) => values.reduce((total, x) => total + x, 0);
  const mean = (values) => sum(values) / values.length;

  /** The sample's deviation (ddof 1). */
  function deviation(values) {
    const center = mean(values);
    return Math.sqrt(sum(values.map((x) => (x - center) ** 2)) / (values.length - 1));
  }

  // ---- Rewards -----------------------------------------------------------------------------

  /** What an answer loses the nearer it ends to the limit (DAPO, eq. 13); 0 without a cache. */
  function overlongPunishment(length, longest, cache) {
    if (cache === 0) return 0;
    return Math.min(0, Math.max(-1, (longest - cache - length) / cache));
  }

  /** The parts of a completion's reward, by name.
   *
   * settings: {signed, formatWeight, overlongCache, missingEosPenalty, longest}.
   */
  function rewardParts(completion, settings) {
    const { right, format, ended, tokens } = completion;
    const accuracy = settings.signed ? 2 * right - 1 : Number(right);
    return {
      accuracy,
      format: settings.formatWeight * format,
      overlong: overlongPunishment(tokens.length, settings.longest, settings.overlongCache),
      cutOff: ended ? 0 : -settings.missingEosPenalty,
    };
  }

  // ---- Advantages --------------------------------------------------------------------------

  /** Rewards [G] compared within their group, [G]; 0 where all are equal. */
  function groupAdvantages(rewards, divides) {
    if (Math.max(...rewards) === Math.min(...rewards)) return rewards.map(() => 0);
    const [center, spread] = [mean(rewards), divides ? deviation(rewards) + EPS : 1];
    return rewards.map((reward) => (reward - center) / spread);
  }

  /** Generalised advantage estimates of a completion's tokens, from its reward and the critic.
   *
   * Every token pays beta times its log-ratio to the reference; the last one has the reward.
   */
  function gae(completion, reward, { kl, gamma, lambda }) {
    const { old, reference, values } = completion;
    const advantages = new Array(old.length);
    let [next, following] = [0, 0];
    for (let t = old.length - 1; t >= 0; t--) {
      const received = -kl * (old[t] - reference[t]) + (t === old.length - 1 ? reward : 0);
      const delta = received + gamma * next - values[t];
      following = delta + gamma * lambda * following;
      advantages[t] = following;
      next = values[t];
    }
    return advantages;
  }

  /** Advantages of all tokens with mean 0 and variance 1 over the group. */
  function whiten(advantages) {
    const every = advantages.flat();
    const center = mean(every);
    const variance = mean(every.map((x) => (x - center) ** 2));
    const scale = 1 / Math.sqrt(variance + WHITEN_EPS);
    return advantages.map((row) => row.map((x) => (x - center) * scale));
  }

  // ---- The loss ----------------------------------------------------------------------------

  /** The weight of each token of a completion of so many tokens.
   *
   * normalise: "completion": 1 / (N |o_i|); "tokens": 1 / sum |o_i|; "constant": 1 / (N T_max), all
   * over the N completions that are learned from.
   */
  function tokenWeight(length, counts, { normalise, longest }) {
    if (normalise === "completion") return 1 / (length * Math.max(counts.completions, 1));
    if (normalise === "tokens") return 1 / Math.max(counts.tokens, 1);
    return 1 / (Math.max(counts.completions, 1) * longest);
  }

  /** Between which the ratio has a gradient: [low, high]. A low epsilon of 0 clips nothing. */
  function clipBounds({ clipLow, clipHigh }) {
    if (clipLow === 0) return [-Infinity, Infinity];
    return [1 - clipLow, 1 + (clipHigh || clipLow)];
  }

  /** One token's term of the objective.
   *
   * {advantage, ratio, unclipped, clipped, kl, beta, outside, stopped, objective, slope}: slope is the
   * derivative of the term by the token's log-probability; stopped where the clip takes the
   * gradient away, outside where the ratio is beyond the bounds on either side.
   */
  function tokenTerm(completion, t, advantage, settings) {
    const [low, high] = clipBounds(settings);
    const ratio = Math.exp(completion.current[t] - completion.old[t]);
    const bounded = Math.min(Math.max(ratio, low), high);
    const [unclipped, clipped] = [ratio * advantage, bounded * advantage];
    const stopped = clipped < unclipped;
    const difference = completion.reference[t] - completion.current[t];
    const kl = Math.exp(difference) - difference - 1; // k3
    const beta = settings.advantage === "group" ? settings.kl : 0; // PPO has it in the reward
    return {
      advantage,
      ratio,
      unclipped,
      clipped,
      kl,
      beta,
      outside: ratio < low || ratio > high,
      stopped,
      objective: Math.min(unclipped, clipped) - beta * kl,
      slope: (stopped ? 0 : unclipped) + beta * (Math.exp(difference) - 1),
    };
  }

  /** Everything that the page shows of a group.
   *
   * completions: [{tokens, old, current, reference, values, right, format, ended, reward?}]; a
   * reward that is given replaces the rules'. settings: those of the functions above, and
   * {advantage: "group" or "critic", std, dynamicSampling, overlongFiltering}.
   *
   * Returns {rewards, mean, std, kept, loss, clipfrac, counts, rows}; a row is a completion:
   * {parts, reward, advantage, learned, weight, tokens}, a token what `tokenTerm` returns with
   * {weight, push}: push is the derivative of the objective by the token's log-probability.
   */
  function compute(completions, settings) {
    const parts = completions.map((completion) => rewardParts(completion, settings));
    const rewards = completions.map(
      (completion, i) => completion.reward ?? sum(Object.values(parts[i])),
    );
    const right = completions.filter((completion) => completion.right).length;
    const kept = !settings.dynamicSampling || (right > 0 && right < completions.length);
    const ofGroup = groupAdvantages(rewards, settings.std);
    const advantages =
      settings.advantage === "group"
        ? completions.map(({ old }, i) => old.map(() => ofGroup[i]))
        : whiten(completions.map((completion, i) => gae(completion, rewards[i], settings)));
    const learned = completions.map(({ ended }) => kept && (ended || !settings.overlongFiltering));
    const counts = {
      completions: learned.filter(Boolean).length,
      tokens: sum(completions.map(({ old }, i) => (learned[i] ? old.length : 0))),
    };
    const rows = completions.map((completion, i) => {
      const weight = learned[i] ? tokenWeight(completion.old.length, counts, settings) : 0;
      const tokens = completion.old.map((_, t) => {
        const term = tokenTerm(completion, t, advantages[i][t], settings);
        return { ...term, weight, push: weight * term.slope };
      });
      const advantage = mean(advantages[i]);
      return {
        parts: parts[i],
        reward: rewards[i],
        advantage,
        learned: learned[i],
        weight,
        tokens,
      };
    });
    const every = rows.flatMap((row) => row.tokens);
    return {
      rewards,
      kept,
      counts,
      rows,
      mean: mean(rewards),
      std: deviation(rewards),
      loss: -sum(every.map((token) => token.weight * token.objective)),
      clipfrac: sum(every.map((token) => (token.outside ? token.weight : 0))),
    };
  }

  // ---- Means over all groups -----------------------------------------------------------------

  /** P(k of n), [n + 1], of answers that are right with probability p, 0 < p < 1. */
  function binomial(n, p) {
    const found = [(1 - p) ** n];
    for (let k = 0; k < n; k++) found.push((found[k] * ((n - k) / (k + 1)) * p) / (1 - p));
    return found;
  }

  /** What a prompt's groups give on average: G answers, each right with probability p, R = 1 or 0.
   *
   * Returns a function of p in (0, 1), with {mixed, exact, all, kept}: mixed is the probability
   * that a group is, the others are {right, wrong, factor} for R - p, for all groups and for mixed
   * groups only. right and wrong are the mean advantages of such an answer. factor: the mean of A
   * times the gradient of log pi is factor times the gradient of p. As the gradient of log p is
   * grad p / p and that of log(1 - p) is -grad p / (1 - p), it is right - wrong over all groups.
   * Groups that are not mixed have A = 0: without them the mean is divided by P(mixed).
   */
  function expected(G, std) {
    const counts = [...Array(G + 1).keys()]; // of right answers, which come first
    const advantages = counts.map((k) => groupAdvantages(Array(G).fill(0).fill(1, 0, k), std));
    return (p) => {
      const others = binomial(G - 1, p); // how many of the others are right
      const right = sum(others.map((chance, k) => chance * advantages[k + 1][0]));
      const wrong = sum(others.map((chance, k) => chance * advantages[k][G - 1]));
      const mixed = sum(binomial(G, p).slice(1, G));
      const scale = std ? Math.sqrt(p * (1 - p)) : 1;
      return {
        mixed,
        exact: { right: (1 - p) / scale, wrong: -p / scale, factor: 1 / scale },
        all: { right, wrong, factor: right - wrong },
        kept: {
          right: right / sum(others.slice(0, G - 1)),
          wrong: wrong / sum(others.slice(1)),
          factor: (right - wrong) / mixed,
        },
      };
    };
  }

  return { compute, expected, clipBounds, EPS };
})();
