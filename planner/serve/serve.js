// The form asks while it is typed in; the address always holds the job, so that it can be shared.

const form = document.getElementById("job");
const answer = document.getElementById("answer");
const state = document.getElementById("state");
const WAIT_MILLISECONDS = 350;
let timer = 0;
let asked = new AbortController();

function drawSteps(chart) {
  const figure = document.getElementById("steps");
  if (figure && chart) drawBars(figure, chart);
}

function queryOf(data) {
  return new URLSearchParams([...data].filter(([, text]) => text)).toString();
}

async function ask() {
  asked.abort();
  asked = new AbortController();
  const query = queryOf(new FormData(form));
  history.replaceState(null, "", `/?${query}`);
  answer.classList.add("stale");
  state.textContent = "Planning ...";
  const began = performance.now();
  try {
    const response = await fetch(`/answer?${query}`, { signal: asked.signal });
    const isJson = response.headers.get("content-type")?.startsWith("application/json");
    if (!isJson) {
      state.textContent = await response.text();
      return;
    }
    const { html, chart } = await response.json();
    answer.innerHTML = html; // escaped by the server
    drawSteps(chart);
    keep.hidden = false;
    state.textContent = `Answered in ${((performance.now() - began) / 1000).toFixed(1)} s.`;
    answer.classList.remove("stale");
  } catch (error) {
    if (error.name !== "AbortError") state.textContent = "The server does not answer.";
  }
}

function askSoon() {
  clearTimeout(timer);
  timer = setTimeout(ask, WAIT_MILLISECONDS);
}

function keepShown() {
  const fields = [...new FormData(form)].filter(([name]) => name !== "with");
  const query = queryOf(fields);
  const list = document.querySelector("#kept ul");
  const has = [...list.querySelectorAll("input")];
  if (has.some((box) => box.value === query)) return;
  if (has.length >= Number(form.dataset.most)) {
    state.textContent = `At most ${form.dataset.most} plans are kept; take one off first.`;
    return;
  }
  const named = Object.fromEntries(fields);
  const box = Object.assign(document.createElement("input"), { type: "checkbox", name: "with", value: query, checked: true });
  const label = document.createElement("label");
  label.append(box, ` ${named.model}, ${named.devices} x ${named.device}, batch ${named.batch} ${named.more}`);
  list.append(Object.assign(document.createElement("li"), {}));
  list.lastChild.append(label);
  document.getElementById("kept").hidden = false;
  ask();
}

const keep = document.getElementById("keep");
if (form) {
  for (const slider of form.querySelectorAll("[type=range]")) {
    const field = document.getElementById(slider.id.replace("slide-", ""));
    const follow = () => {
      const count = Number(field.value.replaceAll(",", ""));
      if (count > 0) slider.value = Math.round(Math.log2(count));
    };
    slider.hidden = false;
    slider.addEventListener("input", () => { field.value = String(2 ** Number(slider.value)); askSoon(); });
    field.addEventListener("input", follow);
    follow();
  }
  form.addEventListener("input", (event) => {
    if (event.target.name === "with" && !event.target.checked) event.target.closest("li").remove();
    document.getElementById("kept").hidden = !document.querySelector("#kept li");
    if (event.target.type !== "range") askSoon();
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(timer); ask(); });
  keep.addEventListener("click", keepShown);
  keep.hidden = !answer.firstChild;
}
drawSteps(JSON.parse(document.getElementById("data").textContent));
document.documentElement.dataset.ready = "true";
