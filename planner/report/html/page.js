// Start: read the data, draw every plot, switch between plans, follow the colours of the system.

const data = JSON.parse(document.getElementById("data").textContent);
const DRAW = { bars: drawBars, changes: drawChanges, columns: drawColumns, lines: drawLines };
if (typeof drawScatter === "function") DRAW.scatter = drawScatter;

function drawFigures() {
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const chart = data.charts[figure.dataset.chart];
    if (chart) DRAW[chart.type](figure, chart);
    else figure.remove();
  }
  for (const figure of document.querySelectorAll("[data-timeline]")) {
    const timeline = data.timelines[figure.dataset.timeline];
    if (timeline) new Timeline(figure, timeline);
  }
}

function showPlan(wanted) {
  for (const block of document.querySelectorAll("[data-plan]")) block.hidden = block.dataset.plan !== wanted;
}

// Boxes that do not scroll are no stops of the Tab key.
const scrolled = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const scrolls = target.scrollWidth > target.clientWidth + 1 || target.scrollHeight > target.clientHeight + 1;
    if (scrolls) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});

function printed(begin) {
  document.documentElement.classList.toggle("light", begin);
  for (const details of document.querySelectorAll("details")) {
    if (begin) details.dataset.open = details.open;
    details.open = begin || details.dataset.open === "true";
  }
  redrawAll();
}

showPlan("1");
drawFigures();
drawCopyButtons();
for (const box of document.querySelectorAll(".scroll, pre")) scrolled.observe(box);
document.getElementById("plan")?.addEventListener("change", (event) => showPlan(event.target.value));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
addEventListener("beforeprint", () => printed(true));
addEventListener("afterprint", () => printed(false));
addEventListener("scroll", () => tip.hide(), { passive: true });
addEventListener("keydown", (event) => event.key === "Escape" && tip.hide());
document.documentElement.dataset.drawnMilliseconds = Math.round(performance.now());
