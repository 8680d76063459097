// Points with areas of uncertainty on two logarithmic axes; a click chooses a point.

function drawScatter(figure, chart) {
  const list = element(figure, "ul", "legend");
  for (const [kind, text] of chart.legend) element(list, "li", "", text).prepend(element(null, "i", `key-${kind}`));
  const box = element(figure, "div", "canvas");
  keepDrawn(box, (width) => scatter(box, width, chart, figure.querySelector("figcaption").textContent));
}

function scatter(box, width, chart, label) {
  const height = Math.round(Math.min(460, Math.max(300, width * 0.55)));
  const svg = frame(box, width, height, label);
  const scales = scatterScales(chart, width, height);
  const texts = (scale, most) => scale.ticks(most).map((tick) => [tick, number(tick)]);
  const ticks = { xTicks: texts(scales.x, Math.max(3, Math.floor(width / 70))), yTicks: texts(scales.y, 6) };
  axes(svg, { ...scales, width, height, ...ticks, xLabel: chart.x.label, yLabel: chart.y.label });
  for (const line of chart.verticals) verticalOf(svg, line, scales, width, height);
  for (const line of chart.horizontals) horizontalOf(svg, line, scales, width);
  for (const point of chart.points) if (point.kind !== "other") areaOf(svg, point, scales);
  for (const point of chart.points) {
    const own = { class: `dot ${point.kind}`, cx: scales.x(point.x), cy: scales.y(point.y) };
    shape(svg, "circle", { ...own, r: point.kind === "answer" ? 7 : 4 });
  }
  picked(svg, chart, scales, width, height);
}

function scatterScales(chart, width, height) {
  const ends = (axis, range, lines, line) => {
    const values = chart.points.flatMap((point) => [point[axis], ...(point.kind === "other" ? [] : point[range])]);
    const every = [...values, ...lines.map((one) => one[line])].filter((value) => value > 0);
    return [Math.min(...every) / 1.12, Math.max(...every) * 1.12];
  };
  return {
    x: logarithmic(...ends("x", "sideways", chart.verticals, "x"), MARGIN.left, width - MARGIN.right),
    y: logarithmic(...ends("y", "upright", chart.horizontals, "y"), height - MARGIN.bottom, MARGIN.top),
  };
}

function areaOf(svg, point, { x, y }) {
  const [left, right] = point.sideways.map(x), [low, high] = point.upright.map(y);
  const size = { x: left, y: high, width: Math.max(1, right - left), height: Math.max(1, low - high), rx: 3 };
  shape(svg, "rect", { class: "spread", ...size });
}

function horizontalOf(svg, line, { y }, width) {
  const place = y(line.y);
  shape(svg, "line", { class: "limit hard", x1: MARGIN.left, x2: width - MARGIN.right, y1: place, y2: place });
  shape(svg, "text", { class: "limit-text", x: width - MARGIN.right, y: place - 5, "text-anchor": "end" }, line.text);
}

function picked(svg, chart, { x, y }, width, height) {
  const ring = shape(svg, "circle", { class: "follow", r: 4, visibility: "hidden" });
  const area = { x: MARGIN.left, y: 0, width: Math.max(0, width - MARGIN.left), height, class: "area pick" };
  const target = shape(svg, "rect", area);
  const nearest = (event) => {
    const box = svg.getBoundingClientRect(), left = event.clientX - box.left, top = event.clientY - box.top;
    const away = (point) => Math.hypot(x(point.x) - left, y(point.y) - top);
    return chart.points.reduce((one, other) => (away(other) < away(one) ? other : one));
  };
  target.addEventListener("pointermove", (event) => {
    const near = nearest(event);
    for (const [name, value] of [["cx", x(near.x)], ["cy", y(near.y)], ["visibility", "visible"]]) {
      ring.setAttribute(name, value);
    }
    tip.show(event, near.text.split("\n"));
  });
  target.addEventListener("pointerleave", () => {
    ring.setAttribute("visibility", "hidden");
    tip.hide();
  });
  target.addEventListener("click", (event) => choose(nearest(event).number));
}

function choose(number) {
  const select = document.getElementById("plan");
  if (!select || !number) return;
  select.value = String(number);
  select.dispatchEvent(new Event("change"));
  document.getElementById("point").scrollIntoView();
}
