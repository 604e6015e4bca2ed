/* The numbers of the GRPO page as text: each equation with the current numbers put in. */
"use strict";

const GrpoFormulas = (() => {
  const UNCHANGED = 0.005; // a ratio so near to 1

  const minus = (text) => text.replaceAll("-", "−");
  const number = (x, digits = 3) => minus(x.toFixed(digits)).replace(/^−(0\.?0*)$/, "$1");
  const signed = (x) => (x > 0 ? "+" : "") + number(x);
  const bracketed = (x) => (number(x).startsWith("−") ? `(${number(x)})` : number(x));

  /** Three significant digits, or 1.2e−5. */
  function small(x) {
    if (x === 0) return "0";
    return minus(Math.abs(x) >= 0.001 ? x.toPrecision(3) : x.toExponential(1));
  }

  /** The lines of a token: [name, equation, what it means].
   *
   * completion: with the reader's edits; found: what `GrpoEngine.compute` returns; i, t: the places
   * of completion and token.
   */
  function lines(completion, found, settings, i, t) {
    const row = found.rows[i];
    const token = row.tokens[t];
    const all = [
      ["objective", ...objective(token, found, settings)],
      ["reward", rewardOf(completion, row, settings), ""],
      ["advantage", ...advantageOf(completion, row, found, settings, t)],
      ["ratio", ...ratioOf(completion, token, t)],
      ["clip", ...clipOf(token, settings)],
      ["KL", klOf(completion, token, t), ""],
      ["weight", weightOf(completion, row, found, settings), ""],
      ["push", ...pushOf(token, row)],
    ];
    return all.filter(([, equation]) => equation);
  }

  function objective(token, found, settings) {
    const clips = GrpoEngine.clipBounds(settings)[0] !== -Infinity;
    const term = clips ? "min( r A, clip(r, 1 − ε, 1 + ε) A )" : "r A";
    const kl = token.beta ? " − β k3" : "";
    return [
      `J = sum over all tokens of w [ ${term}${kl} ] = ${number(-found.loss, 4)}`,
      "To be made larger; the loss is −J. The numbers of the chosen token:",
    ];
  }

  function rewardOf(completion, row, settings) {
    if (completion.reward !== undefined) return `R = ${number(row.reward)}, your edit`;
    const { accuracy, format, overlong, cutOff } = row.parts;
    const parts = [
      `${number(accuracy, 2)} (${completion.right ? "right" : "wrong"}${completion.flipped ? ", your edit" : ""})`,
      `${number(format, 2)} (format)`,
    ];
    if (settings.overlongCache) parts.push(`${bracketed(overlong)} (length)`);
    if (cutOff) parts.push(`${bracketed(cutOff)} (cut off)`);
    return `R = ${parts.join(" + ")} = ${number(row.reward)}`;
  }

  function advantageOf(completion, row, found, settings, t) {
    if (settings.advantage === "critic") return criticAdvantage(completion, row, settings, t);
    if (Math.max(...found.rewards) === Math.min(...found.rewards)) {
      return ["A = 0", "All rewards are equal, so the group has nothing to compare."];
    }
    const difference = `(${number(row.reward)} − ${bracketed(found.mean)})`;
    const result = number(row.tokens[t].advantage);
    if (!settings.std) return [`A = R − mean(R) = ${difference} = ${result}`, ""];
    const spread = `(${number(found.std)} + 0.0001)`;
    return [`A = (R − mean(R)) / (std(R) + 0.0001) = ${difference} / ${spread} = ${result}`, ""];
  }

  function criticAdvantage(completion, row, { kl, gamma, lambda }, t) {
    const { old, reference, values } = completion;
    const isLast = t === old.length - 1;
    const received = -kl * (old[t] - reference[t]) + (isLast ? row.reward : 0);
    const next = isLast ? 0 : values[t + 1];
    const delta = received + gamma * next - values[t];
    const sum = `${bracketed(received)} + ${gamma} × ${bracketed(next)} − ${bracketed(values[t])}`;
    return [
      `δ = r_t + γ V(next) − V = ${sum} = ${number(delta)}; A = ${number(row.tokens[t].advantage)}`,
      `A sums this δ and the later ones (λ = ${lambda}), then it is whitened over all tokens.`,
    ];
  }

  function ratioOf(completion, token, t) {
    const [now, before] = [number(completion.current[t]), bracketed(completion.old[t])];
    const effect = token.ratio > 1 ? "likelier" : "less likely";
    return [
      `r = π / π_old = exp(${now} − ${before}) = ${number(token.ratio)}`,
      Math.abs(token.ratio - 1) < UNCHANGED
        ? "The step's updates have hardly changed this token."
        : `The step's updates have made this token ${effect}.`,
    ];
  }

  function clipOf(token, settings) {
    const [low, high] = GrpoEngine.clipBounds(settings);
    const { ratio, advantage, unclipped, clipped } = token;
    if (low === -Infinity) {
      return [
        `r A = ${number(ratio)} × ${bracketed(advantage)} = ${number(unclipped)}`,
        "No clipping.",
      ];
    }
    const bounded = `clip(r, ${number(low, 2)}, ${number(high, 2)}) A`;
    const both = `min( ${number(unclipped)}, ${number(clipped)} )`;
    const equation = `min( r A, ${bounded} ) = ${both} = ${number(Math.min(unclipped, clipped))}`;
    return [equation, clipEffect(token)];
  }

  function clipEffect({ stopped, outside, advantage }) {
    if (stopped) {
      const how = advantage > 0 ? "grown" : "shrunk";
      return `The clip takes the gradient away: the token has ${how} enough in this step.`;
    }
    return outside
      ? "The ratio is outside the range on the wrong side: the gradient stays, to bring it back."
      : "";
  }

  function klOf(completion, token, t) {
    if (!token.beta) return "";
    const difference = number(completion.reference[t] - completion.current[t]);
    return (
      `k3 = exp(d) − d − 1 = ${small(token.kl)}, with d = log π_ref − log π = ${difference}; ` +
      `times β = ${token.beta}`
    );
  }

  function weightOf(completion, row, found, { normalise, longest }) {
    if (!found.kept) return "w = 0: all are right or all are wrong, so another prompt is drawn";
    if (!row.learned) return "w = 0: the completion was cut off and is left out";
    const { completions, tokens } = found.counts;
    const how = {
      completion: `1 / (N |o|) = 1 / (${completions} × ${completion.old.length})`,
      tokens: `1 / (all tokens) = 1 / ${tokens}`,
      constant: `1 / (N T) = 1 / (${completions} × ${longest})`,
    };
    return `w = ${how[normalise]} = ${small(row.weight)}`;
  }

  function pushOf(token, row) {
    const effect = token.push > 0 ? "makes this token likelier" : "makes this token less likely";
    const say = token.push ? `The gradient ${effect}.` : "The gradient leaves this token alone.";
    if (!row.learned) return ["dJ / d log π = 0", say];
    const terms = (token.stopped ? "0" : "r A") + (token.beta ? " + β (exp(d) − 1)" : "");
    const product = `${small(row.weight)} × ${bracketed(token.slope)}`;
    return [`dJ / d log π = w × ( ${terms} ) = ${product} = ${small(token.push)}`, say];
  }

  return { lines, number, signed, small };
})();
