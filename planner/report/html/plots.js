// Plots on axes: stacked columns, and lines with marks.

const MARGIN = { top: 24, right: 14, bottom: 42, left: 60 };

function frame(box, width, height, label) {
  box.replaceChildren();
  const svg = shape(box, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  return svg;
}

function axes(svg, { x, y, width, height, xTicks, yTicks, xLabel, yLabel }) {
  const bottom = height - MARGIN.bottom;
  for (const [tick, text] of yTicks) {
    shape(svg, "line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) });
    shape(svg, "text", { class: "tick", x: MARGIN.left - 8, y: y(tick) + 4, "text-anchor": "end" }, text);
  }
  shape(svg, "line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom });
  for (const [tick, text] of xTicks) {
    shape(svg, "text", { class: "tick", x: x(tick), y: bottom + 17, "text-anchor": "middle" }, text);
  }
  const middle = (MARGIN.left + width - MARGIN.right) / 2;
  shape(svg, "text", { class: "axis-label", x: middle, y: height - 6, "text-anchor": "middle" }, xLabel);
  // above the plot, where no tick is, however many digits it has
  shape(svg, "text", { class: "axis-label", x: MARGIN.left, y: 12, "text-anchor": "start" }, yLabel);
}

// --- stacked columns ---

function drawColumns(figure, chart) {
  const names = [...new Set(chart.columns.flatMap((column) => column.parts.map((part) => part.name)))];
  const list = legend(figure, names.map((name) => [name]));
  element(list, "li", "", chart.range_label).prepend(element(null, "i", "reach"));
  for (const line of chart.lines) {
    element(list, "li", "", line.text).prepend(element(null, "i", line.hard ? "stroke hard" : "stroke"));
  }
  const box = element(figure, "div", "canvas");
  keepDrawn(box, (width) => columns(box, width, chart, figure.querySelector("figcaption").textContent));
}

function columns(box, width, chart, label) {
  const height = 320, bottom = height - MARGIN.bottom, count = chart.columns.length;
  const totals = chart.columns.map((column) => column.parts.reduce((sum, part) => sum + part.value, 0));
  const most = Math.max(chart.most || 0, ...totals, ...chart.columns.map((column) => column.range[1]), ...chart.lines.map((line) => line.value)) * 1.06;
  const y = linear(0, most, bottom, MARGIN.top);
  const pitch = (width - MARGIN.left - MARGIN.right) / count;
  const own = Math.min(64, Math.max(pitch * 0.78, pitch - 6));
  const x = (index) => MARGIN.left + pitch * (index + 0.5);
  const svg = frame(box, width, height, label);
  const stride = Math.ceil((count * 22) / (width - MARGIN.left - MARGIN.right));
  const xTicks = chart.columns.map((column, index) => [index, column.label]).filter(([index]) => index % stride === 0);
  const yTicks = ticksOf(y, 6);
  axes(svg, { x, y, width, height, xTicks, yTicks, xLabel: chart.label, yLabel: chart.axis });
  chart.columns.forEach((column, index) => columnOf(svg, column, x(index) - own / 2, own, y));
  limitLines(svg, chart.lines, width, y);
}

function columnOf(svg, column, left, width, y) {
  const group = shape(svg, "g", {});
  let below = 0;
  for (const part of column.parts) {
    const top = y(below + part.value);
    const height = Math.max(0, y(below) - top);
    shape(group, "rect", { class: `piece part-${part.name}`, x: left, y: top, width, height });
    below += part.value;
  }
  if (width >= 4) whiskers(group, left + width / 2, column.range.map(y), Math.min(5, width / 3));
  explained(group, [column.text, ...[...column.parts].reverse().map((part) => `${part.name} ${part.text}`)]);
}

// From one end to the other, upright, with a mark at each end.
function whiskers(parent, x, [low, high], half) {
  const path = `M${x - half} ${low}h${2 * half}M${x - half} ${high}h${2 * half}M${x} ${low}V${high}`;
  shape(parent, "path", { class: "reach-line", d: path });
}

function limitLines(svg, lines, width, y) {
  for (const line of lines) {
    const ends = { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(line.value), y2: y(line.value) };
    shape(svg, "line", { class: line.hard ? "limit hard" : "limit", ...ends });
  }
}

// --- lines ---

function drawLines(figure, chart) {
  if (chart.series.length > 1) {
    const list = element(figure, "ul", "legend");
    chart.series.forEach((series, index) => {
      element(list, "li", "", series.name).prepend(element(null, "i", index ? "line-key" : "line-key dashed"));
    });
  }
  const box = element(figure, "div", "canvas");
  keepDrawn(box, (width) => lines(box, width, chart, figure.querySelector("figcaption").textContent));
}

function lines(box, width, chart, label) {
  const height = Math.round(Math.min(320, Math.max(240, width * 0.55)));
  const scales = scalesOf(chart, width, height);
  const svg = frame(box, width, height, label);
  const most = Math.max(3, Math.floor(width / 70));
  const ticks = { xTicks: ticksOf(scales.x, most), yTicks: ticksOf(scales.y, 6) };
  for (const band of chart.bands || []) bandOf(svg, band, scales, height);
  axes(svg, { ...scales, width, height, ...ticks, xLabel: chart.x.label, yLabel: chart.y.label });
  for (const line of chart.verticals || []) verticalOf(svg, line, scales, width, height);
  chart.series.forEach((series, index) => seriesOf(svg, series, scales, index, chart.series.length < 2));
  (chart.marks || []).forEach((mark, index) => markOf(svg, mark, scales, width, index));
  followed(svg, chart, scales, width, height);
}

function scalesOf(chart, width, height) {
  const points = chart.series.flatMap((series) => series.points);
  const extra = (chart.verticals || []).map((line) => line.x);
  const sideways = chart.series.flatMap((series) => (series.sideways || []).flat());
  const xs = [...points.map((point) => point[0]), ...sideways, ...extra], ys = chart.series.flatMap((series) => [...series.points.map((point) => point[1]), ...series.spread.flat()]);
  const reach = points.map((point) => point[4] || point[0]);
  const kind = (axis) => (axis.log ? logarithmic : linear);
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const pad = (high - low || high || 1) * 0.08;
  const spread = chart.y.log ? [low / 1.06, high * 1.08] : [low - pad, high + pad];
  const right = Math.max(...xs, ...reach), left = Math.min(...xs);
  const sides = chart.x.log ? [left, Math.max(right, left * 2)] : [left - (right - left) * 0.03, right * 1.01];
  return {
    x: kind(chart.x)(...sides, MARGIN.left, width - MARGIN.right),
    y: kind(chart.y)(...spread, height - MARGIN.bottom, MARGIN.top),
  };
}

function bandOf(svg, band, { x }, height) {
  const right = x(band.until);
  const size = { x: MARGIN.left, y: MARGIN.top, width: Math.max(0, right - MARGIN.left) };
  shape(svg, "rect", { class: "band", ...size, height: height - MARGIN.top - MARGIN.bottom });
  if (right > MARGIN.left) shape(svg, "title", {}, band.text);
}

function verticalOf(svg, line, { x }, width, height) {
  const place = x(line.x);
  shape(svg, "line", { class: "limit hard", x1: place, x2: place, y1: MARGIN.top, y2: height - MARGIN.bottom });
  const anchor = place > width / 2 ? "end" : "start";
  const text = { class: "limit-text", x: place + (anchor === "end" ? -6 : 6), y: MARGIN.top + 10 };
  shape(svg, "text", { ...text, "text-anchor": anchor }, line.text);
}

// Where measured values lie: a band around a line, thin lines through dots.
function spreadOf(svg, series, { x, y }) {
  if (!series.dots) {
    const [lower, upper] = [0, 1].map((end) => series.points.map((point, index) => [x(point[0]), y(series.spread[index][end])]));
    const d = `M${[...lower, ...upper.reverse()].map((place) => place.join(" ")).join("L")}Z`;
    shape(svg, "path", { class: "spread", d });
    return;
  }
  series.points.forEach((point, index) => {
    const [low, high] = series.spread[index].map(y), [left, right] = series.sideways[index].map(x);
    const d = `M${x(point[0])} ${low}V${high}M${left} ${y(point[1])}H${right}`;
    shape(svg, "path", { class: "reach-line thin", d });
  });
}

function seriesOf(svg, series, { x, y }, index, isAlone) {
  spreadOf(svg, series, { x, y });
  const path = series.points.map((point, index) => {
    const [left, top] = [x(point[0]), y(point[1])];
    if (!index) return `M${left} ${top}`;
    return series.step ? `H${left}V${top}` : `L${left} ${top}`;
  });
  const last = series.points.at(-1);
  if (series.step && last[4]) path.push(`H${x(last[4])}`);
  shape(svg, "path", { class: index || isAlone ? "line" : "line dashed", d: path.join("") });
  if (!series.dots) return;
  for (const point of series.points) {
    const kind = point[3] ? "dot" : "dot hollow";
    shape(svg, "circle", { class: kind, cx: x(point[0]), cy: y(point[1]), r: 4 });
  }
}

function markOf(svg, mark, { x, y }, width, index) {
  const [left, top] = [x(mark.x), y(mark.y)];
  shape(svg, "circle", { class: "mark", cx: left, cy: top, r: 6 });
  const anchor = left > width * 0.6 ? "end" : "start";
  const above = top > 60 !== index > 0; // two of one plot keep out of each other's way
  const place = { x: left + (anchor === "end" ? -10 : 10), y: top + (above ? -10 : 20), "text-anchor": anchor };
  shape(svg, "text", { class: "mark-text", ...place }, mark.text);
}

function followed(svg, chart, { x, y }, width, height) {
  const points = chart.series.flatMap((series) => series.points);
  const dot = shape(svg, "circle", { class: "follow", r: 4, visibility: "hidden" });
  const area = { x: MARGIN.left, y: 0, width: Math.max(0, width - MARGIN.left), height, class: "area" };
  const target = shape(svg, "rect", area);
  target.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), left = event.clientX - box.left, top = event.clientY - box.top;
    const away = (point) => 100 * Math.abs(x(point[0]) - left) + Math.abs(y(point[1]) - top);
    const near = points.reduce((a, b) => (away(b) < away(a) ? b : a));
    for (const [name, value] of [["cx", x(near[0])], ["cy", y(near[1])], ["visibility", "visible"]]) {
      dot.setAttribute(name, value);
    }
    tip.show(event, near[2].split("\n"));
  });
  target.addEventListener("pointerleave", () => {
    dot.setAttribute("visibility", "hidden");
    tip.hide();
  });
}
