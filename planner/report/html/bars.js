// Horizontal stacked bars, made of plain boxes so that they print and wrap as text does.

function drawBars(figure, chart) {
  if (chart.without) choice(figure, chart);
  else barBox(figure, chart.rows, chart.axis);
  const parts = chart.rows.flatMap((row) => [...row.parts, ...(row.hidden || [])]);
  const labels = new Map(parts.map((part) => [part.name, part.label]));
  const names = (chart.order || []).filter((name) => labels.has(name));
  if (names.length > 1) legend(figure, names.map((name) => [labels.get(name), name]));
}

// The largest part may hide the others: a second view leaves it out.
function choice(figure, chart) {
  const row = element(figure, "div", "buttons");
  const whole = barBox(figure, chart.rows, chart.axis);
  const rest = barBox(figure, chart.rows.map((one) => remaining(one, chart.without)), chart.axis);
  const views = [["The whole step", whole], [`Without ${chart.without}`, rest]];
  const buttons = views.map(([text]) => element(row, "button", "", text));
  const choose = (chosen) => views.forEach(([, box], index) => {
    box.hidden = index !== chosen;
    buttons[index].setAttribute("aria-pressed", index === chosen);
  });
  buttons.forEach((button, index) => {
    button.type = "button";
    button.addEventListener("click", () => choose(index));
  });
  choose(0);
}

function remaining(row, without) {
  return { ...row, parts: row.parts.filter((part) => part.name !== without), range: null };
}

function barBox(figure, rows, label) {
  const box = element(figure, "div", "bars");
  const most = Math.max(...rows.map((row) => Math.max(total(row.parts), total(row.hidden || []), row.range?.[1] || 0)));
  rows.forEach((row) => barRow(box, row, most));
  barAxis(box, most, label);
  return box;
}

const total = (parts) => parts.reduce((sum, part) => sum + part.value, 0);

function barRow(box, row, most) {
  const line = element(box, "div", "bar-row");
  const head = element(line, "div", "bar-head");
  element(head, "span", "bar-label", row.label);
  element(head, "span", "bar-text", rowText(row));
  const track = element(line, "div", "bar-track");
  stack(track, row, row.parts, most, "bar");
  if (row.range) barRange(track, row, most);
  if (row.hidden?.length) stack(line, row, row.hidden, most, "bar hidden");
}

const rowText = (row) => (row.range_text ? `${row.text} (${row.range_text})` : row.text);

function stack(parent, row, parts, most, className) {
  const bar = element(parent, "div", className);
  for (const part of parts) {
    const piece = element(bar, "div", `piece part-${part.name}`);
    const fraction = part.value / most;
    piece.style.width = `${100 * fraction}%`;
    if (fraction > 0.07 && className === "bar" && parts.length > 1) element(piece, "span", "", part.label);
    explained(piece, [`${row.label}: ${part.label}`, part.text]);
  }
}

// Between its ends; without the mark of an end where it is cut at the left edge.
function barRange(track, row, most, least = 0) {
  const [low, high] = row.range.map((end) => (100 * (end - least)) / (most - least));
  if (high <= 0) return;
  const whisker = element(track, "div", low < 0 ? "whisker cut" : "whisker");
  whisker.style.left = `${Math.max(0, low)}%`;
  whisker.style.width = `${high - Math.max(0, low)}%`;
  explained(whisker, [row.label, row.range_text]);
}

function barAxis(box, most, label, least = 0) {
  const axis = element(box, "div", "bar-axis");
  const scale = linear(least, most, 0, 100);
  for (const [tick, text] of ticksOf(scale, 5)) {
    const mark = element(axis, "span", scale(tick) > 96 ? "end" : "", text);
    mark.style.left = `${scale(tick)}%`;
  }
  element(box, "div", "axis-label", label);
}

// --- changes: bars from a zero in the middle ---

function drawChanges(figure, chart) {
  const box = element(figure, "div", "bars");
  const ends = [0, ...chart.rows.flatMap((row) => [row.value, ...(row.range || [])])];
  const pad = (Math.max(...ends) - Math.min(...ends)) * 0.03 || 1;
  const least = Math.min(...ends) - pad, most = Math.max(...ends) + pad;
  const place = linear(least, most, 0, 100);
  for (const row of chart.rows) {
    const line = element(box, "div", "bar-row");
    const head = element(line, "div", "bar-head");
    element(head, "span", "bar-label", row.label);
    element(head, "span", "bar-text", rowText(row));
    const track = element(line, "div", "bar-track");
    const bar = element(element(track, "div", "bar change"), "div", `piece part-${row.value < 0 === Boolean(chart.gains) ? "longer" : "shorter"}`);
    bar.style.left = `${Math.min(place(0), place(row.value))}%`;
    bar.style.width = `${Math.abs(place(row.value) - place(0))}%`;
    element(track, "div", "zero").style.left = `${place(0)}%`;
    if (row.range) barRange(track, row, most, least);
    explained(bar, [row.label, row.text]);
  }
  barAxis(box, most, chart.axis, least);
}
