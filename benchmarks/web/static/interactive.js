/* What the pages with settings to change share: the gridworld and GRPO. */
"use strict";

const Interactive = (() => {
  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  /** The fields of the address, after #. */
  const readFields = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

  /** Put fields into the address, without a new entry in the history. */
  function writeFields(fields) {
    const text = new URLSearchParams(fields).toString();
    if (location.hash.slice(1) === text) return;
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  }

  const say = (text) => (find(".announce").textContent = text);

  async function copyLink() {
    try {
      await navigator.clipboard.writeText(location.href);
      say("Link copied");
    } catch {
      say("The browser does not let the page copy. The address bar has the same link.");
    }
  }

  /** Show what is wrong with the reader's input; '' for nothing. */
  function tell(problem) {
    const line = find(".problem");
    line.textContent = problem;
    line.hidden = !problem;
  }

  /** Report what the reader types or chooses; on leaving, the input shows the value that counts.
   *
   * What is no number yet, as a minus sign, is waited for.
   */
  function follow(input, report, current) {
    input.addEventListener("input", () => input.value !== "" && report(input.value));
    input.addEventListener("change", () => (input.value = current()));
  }

  return { find, all, readFields, writeFields, say, copyLink, tell, follow };
})();
