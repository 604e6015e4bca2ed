// Transcripts through training: the choice of task, method and seed, which is in the address.
"use strict";

(async () => {
  const methods = await unpack("page-transcripts");
  const section = document.getElementById("through-training");
  const form = section.querySelector("form");
  const table = section.querySelector("table");
  const given = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const tasks = [...new Set(methods.map((m) => m.task))];
  let first = true;

  const options = (select, names, wanted) => {
    select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    const chosen = [wanted, "GRPO"].find((name) => names.includes(name));
    if (chosen) select.value = chosen;
  };
  const here = () => methods.filter((m) => m.task === form.task.value);
  const method = () => here().find((m) => m.name === form.method.value);

  const show = () => {
    const seed = method().seeds.find((s) => String(s.seed) === form.seed.value);
    const head = element("tr", {}, element("th", { scope: "col" }, "samples"),
      ...seed.prompts.map((prompt) => element("th", { scope: "col" }, element("code", {}, prompt))));
    const rows = seed.steps.map((step) => element("tr", {},
      element("th", { scope: "row" }, step.samples.toLocaleString("en")),
      ...step.said.map((said) => said == null ? element("td") : element("td", {},
        element("span", { class: said.right ? "right" : "wrong" }, said.right ? "✓ right " : "✗ wrong "),
        element("code", {}, said.text)))));
    table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
    if (!first) {
      const state = new URLSearchParams({ task: form.task.value, method: form.method.value, seed: form.seed.value });
      history.replaceState(null, "", `#${state}`);
    }
  };
  const choose = (event) => {
    const changed = event?.target.name;
    if (!changed || changed === "task") options(form.method, here().map((m) => m.name), changed ? form.method.value : given.get("method"));
    if (changed !== "seed") options(form.seed, method().seeds.map((s) => String(s.seed)), changed ? form.seed.value : given.get("seed"));
    show();
  };

  options(form.task, tasks, given.get("task"));
  choose();
  first = false;
  form.addEventListener("change", choose);
  section.hidden = false;
  if (given.has("task")) section.scrollIntoView();
})();
