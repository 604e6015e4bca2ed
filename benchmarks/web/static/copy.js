// Copying text, with what the button says for a moment.
"use strict";

async function copy(value, button) {
  try {
    await navigator.clipboard.writeText(value);
  } catch { // without permission
    const area = document.createElement("textarea");
    area.className = "unseen";
    area.value = value;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

// Buttons behind a command.
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button.previousElementSibling.textContent, button));
}
