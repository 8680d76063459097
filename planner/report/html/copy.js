// Texts to copy: a button at each, which needs no network and no permission.

function copied(text) {
  const area = element(document.body, "textarea", "", text);
  area.readOnly = true;
  area.className = "away";
  area.setAttribute("aria-hidden", "true");
  const before = document.activeElement;
  area.select();
  const done = document.execCommand("copy"); // works in files, where navigator.clipboard may not be there
  area.remove();
  before?.focus();
  return done;
}

async function copyText(text) {
  if (copied(text)) return true;
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

function selectAll(target) {
  const range = document.createRange();
  range.selectNodeContents(target);
  const selection = getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

function drawCopyButtons() {
  const said = element(document.body, "p", "away");
  said.setAttribute("role", "status");
  for (const block of document.querySelectorAll(".code")) {
    const name = block.querySelector(".code-name"), text = block.querySelector("pre");
    const button = element(null, "button", "copy", "Copy");
    button.type = "button";
    button.setAttribute("aria-label", `Copy ${name.textContent}`);
    name.after(button);
    button.addEventListener("click", async () => {
      const done = await copyText(text.textContent);
      if (!done) selectAll(text);
      button.textContent = done ? "Copied" : "Selected";
      said.textContent = done ? `${name.textContent} copied` : `${name.textContent} selected: copy it with the keyboard`;
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
  }
}
