/* The exact part of the GRPO page: what a prompt's groups give on average, and mixed ones alone. */
"use strict";

const GrpoExact = (() => {
  const { find } = Interactive;
  const { number, small } = GrpoFormulas;
  const KINDS = { exact: "2 4", all: "7 4", kept: "none" }; // dashes of their lines
  const POINTS = d3.range(1, 100).map((k) => k / 100); // values of p in the charts
  const TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]; // of a logarithmic axis
  const MIDDLE = 0.5; // a prompt that is neither hard nor easy

  const signed = (x) => (x > 0 ? "+" : "") + small(x);

  const names = (std) => ({
    exact: std ? "none: (R − p) / σ" : "none: R − p",
    all: "all",
    kept: "mixed only",
  });

  /** Draw everything for groups of G answers that are right with probability p. */
  function draw(p, G, std) {
    const at = GrpoEngine.expected(G, std);
    const means = at(p);
    drawMeans(means, std);
    drawFindings(means, G, std, at(MIDDLE));
    const rows = POINTS.map((x) => ({ p: x, ...at(x) }));
    const shown = { p, ...means };
    drawChart(
      find(".advantage-chart"),
      rows,
      shown,
      { right: 0, wrong: 1 },
      { nice: true, ticks: 5 },
    );
    const factors = rows.flatMap(({ exact, all, kept }) => [exact, all, kept].map((x) => x.factor));
    const domain = [d3.min(factors) / 1.2, d3.max(factors) * 1.2];
    const ticks = TICKS.filter((x) => x > domain[0] && x < domain[1]);
    drawChart(find(".factor-chart"), rows, shown, { factor: 4 }, { type: "log", domain, ticks });
  }

  function sample(dashes) {
    const svg = d3.create("svg").attr("class", "line-sample").attr("aria-hidden", "true");
    svg
      .attr("width", 30)
      .attr("height", 8)
      .append("line")
      .attr("x2", 30)
      .attr("y1", 4)
      .attr("y2", 4);
    svg.select("line").attr("stroke-dasharray", dashes);
    return svg.node();
  }

  /** The numbers at p; the names of the rows are the key of the charts. */
  function drawMeans(means, std) {
    find(".means tbody").replaceChildren(
      ...Object.entries(names(std)).map(([kind, name]) => {
        const { right, wrong, factor } = means[kind];
        const head = element("th", { scope: "row" }, sample(KINDS[kind]), name);
        const cells = [signed(right), signed(wrong), small(factor)];
        return element("tr", {}, head, ...cells.map((text) => element("td", {}, text)));
      }),
    );
  }

  /** One sentence for each finding, with the numbers at p. */
  function drawFindings({ mixed, all, kept }, G, std, middle) {
    const times = (x) => `${number(x, 1)} times`;
    const scale = number((G - 1) / G);
    const percent = number(100 * mixed, 1);
    const sentences = {
      all: std
        ? `The factor depends on p, ${small(all.factor)} here and ${small(middle.all.factor)} ` +
          "at p = 0.5, so that hard and easy prompts count more than those in between"
        : "The group's mean contains the answer itself, so every mean advantage is " +
          `(G − 1) / G = ${scale} times R − p: the same factor for every prompt, a matter of ` +
          "step size",
      kept:
        `${percent}% of this prompt's groups are mixed, and in these a right answer has ` +
        `${signed(kept.right)} instead of ${signed(all.right)} ` +
        `(${times(kept.right / all.right)}), a wrong one ${signed(kept.wrong)} instead of ` +
        `${signed(all.wrong)} (${times(kept.wrong / all.wrong)})`,
      weight:
        `A mixed group moves the policy ${times(1 / mixed)} as far as this prompt's groups do on ` +
        "average, 1 / P(mixed), and this is the prompt's weight if it is sampled until its group " +
        "is mixed",
      replaced:
        `If another prompt is drawn instead, this prompt is kept in ${percent}% of its draws ` +
        "only, and the two cancel: over all prompts the mean gradient keeps its direction and grows",
    };
    for (const [name, text] of Object.entries(sentences)) {
      find(`[data-finding="${name}"]`).textContent = text;
    }
  }

  /** Lines over p of some quantities, {name: place of its colour}, with dots at the chosen p. */
  function drawChart(figure, rows, shown, quantities, y) {
    const pairs = Object.entries(quantities).flatMap(([name, place]) =>
      Object.entries(KINDS).map(([kind, dashes]) => ({ name, kind, dashes, fill: colour(place) })),
    );
    const channels = ({ name, kind }) => ({ x: "p", y: (row) => row[kind][name] });
    figure.replaceChildren(
      chart(figure.getAttribute("aria-label"), {
        width: Math.max(280, figure.clientWidth),
        height: 260,
        marginLeft: 44,
        marginBottom: 40,
        x: { label: "probability p of a right answer", domain: [0, 1], ticks: 5 },
        y: { label: null, grid: true, tickFormat: short, ...y },
        marks: [
          Plot.ruleX([shown.p], { stroke: "var(--soft)" }),
          ...pairs.map((pair) =>
            Plot.line(rows, {
              ...channels(pair),
              stroke: pair.fill,
              strokeWidth: 1.75,
              strokeDasharray: pair.dashes,
            }),
          ),
          ...pairs.map((pair) => Plot.dot([shown], { ...channels(pair), fill: pair.fill, r: 3.5 })),
        ],
      }),
    );
  }

  return { draw };
})();
