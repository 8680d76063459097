// The tasks of a rank on one canvas: a row for each stream and thread, measured above replayed.

const KINDS = ["host", "computation", "copy", "communication"];
const KIND_NAMES = ["calls and operators of threads", "computation", "copies between host and device", "communication"];
const KIND_COLOURS = ["wine", "blue", "teal", "backward"];
const TEXT_COLOURS = ["on-deep", "on-deep", "on-piece", "on-piece"];
const CRITICAL = 4, SIDES = ["measured", "replayed"];
const LANE = 14, ROW = 38, MARK = 3;

class Timeline extends ZoomedCanvas {
  constructor(figure, data) {
    super(data.end, 150, Math.max(data.tick * 50, data.end * 1e-6));
    this.data = data;
    this.sides = SIDES.map((name) => ({
      start: column(data[name].start),
      length: column(data[name].length),
      window: data[name].window,
      processors: data[name].processors && column(data[name].processors, Uint8Array),
    }));
    this.name = column(data.name, Uint16Array);
    this.code = column(data.code, Uint8Array);
    const known = this.sides.some((side) => side.processors);
    this.rows = [...(known ? [["processors", 0]] : []), ...data.rows];
    this.firsts = this.rows.reduce((firsts, [, count]) => [...firsts, firsts.at(-1) + count], [0]);
    this.onlyPath = false;
    this.hovered = -1;
    this.build(figure);
  }

  isProcessors(row) {
    return this.rows[row][0] === "processors" && this.firsts[row] === this.firsts[row + 1];
  }

  // Seconds from and to which a task runs.
  span(side, index) {
    const { start, length } = this.sides[side], from = start[index] * this.data.tick;
    return [from, from + length[index] * this.data.tick];
  }

  // --- what there is ---

  build(figure) {
    figure.querySelector(".note")?.remove();
    const [begin, end] = this.sides[0].window, middle = (begin + end) / 2, part = (end - begin) / 20;
    this.buttonRow(figure, [
      ["Everything", () => this.show(0, this.end)],
      ["Iteration", () => this.show(begin, end)],
      ["Start", () => this.show(begin, begin + part)],
      ["Middle", () => this.show(middle - part / 2, middle + part / 2)],
      ["End", () => this.show(end - part, end)],
      ["Only the critical path", (button) => this.togglePath(button)],
    ]);
    this.buildCanvas(figure, `${figure.querySelector("figcaption").textContent}. ${this.summary()}`);
    const path = [["on the critical path of the replay", "path"]];
    const busy = this.firsts[1] === 0 && this.rows.length ? [["processors that kernels occupy", "processors"]] : [];
    const kinds = KIND_NAMES.map((name, kind) => [name, KINDS[kind]]).filter((_, kind) => this.hasKind(kind));
    legend(figure, [...kinds, ...busy, ["idle", "idle"], ...path]);
    element(figure, "p", "note", this.summary());
    this.drawAndListen();
  }

  hasKind(kind) {
    return this.code.some((code) => (code & 3) === kind);
  }

  summary() {
    const { tasks, left_out: [number, seconds] } = this.data;
    return (
      `${tasks.toLocaleString("en-US")} tasks. In each row the upper line is measured, the lower one replayed. ` +
      (number
        ? `The ${number.toLocaleString("en-US")} shortest ones, ${inUnit(seconds, this.end)} together, are not in this file. `
        : "") +
      "Zoom: buttons, pinch, double click, or Ctrl and the wheel; drag to move; arrow keys, + and - do the same. Where " +
      "tasks are thinner than a pixel, a line has the shares of its time. Times begin with the iteration on the host; " +
      "the shaded part is the iteration's window, which begins when the device is free of what was before."
    );
  }

  togglePath(button) {
    this.onlyPath = !this.onlyPath;
    button.setAttribute("aria-pressed", this.onlyPath);
    this.request();
  }

  // --- what is pointed at ---

  hover(event) {
    const place = event && this.place(event);
    const found = place && !this.isProcessors(place.row) ? this.at(place) : -1;
    if (found !== this.hovered) {
      this.hovered = found;
      this.request();
    }
    if (place && this.isProcessors(place.row)) this.tipOfProcessors(event, place);
    else if (found >= 0) this.tipOfTask(event, place, found);
    else tip.hide();
  }

  // Row, side and time below the pointer.
  place(event) {
    const top = event.clientY - this.canvas.getBoundingClientRect().top - TOP, time = this.time(event);
    const row = Math.floor(top / ROW), inside = top - row * ROW;
    if (row < 0 || row >= this.rows.length || time < this.view[0] || inside > 2 * LANE + MARK) return null;
    return { row, side: inside < LANE ? 0 : 1, time };
  }

  at({ row, side, time }) {
    const near = ((this.view[1] - this.view[0]) / (this.width - this.left)) * 2;
    const last = this.before(side, row, time + near);
    let best = -1, distance = near;
    for (let index = last; index >= Math.max(this.firsts[row], last - 40); index--) {
      const [from, to] = this.span(side, index);
      const away = Math.max(from - time, time - to, 0);
      if (away < distance || (away === 0 && best < 0)) [best, distance] = [index, away];
      if (distance === 0) break;
    }
    return best;
  }

  // The last task of a row that begins no later; the first one if there is none.
  before(side, row, time) {
    const { start } = this.sides[side], tick = time / this.data.tick;
    let low = this.firsts[row], high = this.firsts[row + 1] - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (start[middle] <= tick) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  tipOfTask(event, { row }, index) {
    const spans = SIDES.map((_, side) => this.span(side, index));
    const lines = spans.map(([from, to], side) => (
      `${SIDES[side]}: at ${inUnit(from, this.end)} for ${inUnit(to - from, to - from)}`
    ));
    const late = spans[1][0] - spans[0][0];
    const text = late ? `replayed ${inUnit(Math.abs(late), Math.abs(late))} ${late > 0 ? "later" : "earlier"}` : "replayed at the same time";
    const path = this.code[index] & CRITICAL ? ["on the critical path"] : [];
    tip.show(event, [this.nameOf(index), `${KIND_NAMES[this.code[index] & 3]}, ${this.rows[row][0]}`, ...lines, text, ...path]);
  }

  tipOfProcessors(event, { side, time }) {
    const share = this.shareAt(side, time, time);
    if (share === null) return tip.hide();
    tip.show(event, [`${(100 * share).toFixed(1)}% of the processors`, `${SIDES[side]}, at ${inUnit(time, this.end)}`]);
  }

  nameOf(index) {
    return this.data.names[this.name[index]];
  }

  // Mean share of the processors between two times; null outside the window.
  shareAt(side, from, to) {
    const { processors, window: [begin, end] } = this.sides[side];
    if (!processors || to < begin || from > end) return null;
    const bin = (time) => Math.floor(((time - begin) / (end - begin)) * processors.length);
    const first = Math.max(0, bin(from)), last = Math.min(processors.length - 1, Math.max(first, bin(to)));
    if (first > last) return null;
    let sum = 0;
    for (let index = first; index <= last; index++) sum += processors[index];
    return sum / (last - first + 1) / 255;
  }

  // --- drawing ---

  resize(width) {
    this.left = width < 560 ? 78 : 150;
    this.range.parentElement.style.marginLeft = `${this.left}px`;
    this.fit(width, TOP + ROW * this.rows.length + 4);
    this.draw();
  }

  draw() {
    this.fills = KIND_COLOURS.map(colour);
    const context = this.paintTimes(ROW * this.rows.length, (inner) => {
      for (let row = 0; row < this.rows.length; row++) {
        for (const side of [0, 1]) this.drawLane(inner, row, side);
      }
      this.drawHovered(inner);
    });
    this.drawLabels(context);
    const [unit, perSecond] = unitOf(this.view[1] - this.view[0]);
    this.drawTicks(context, unit, perSecond);
  }

  x(time) {
    return this.left + ((time - this.view[0]) / (this.view[1] - this.view[0])) * (this.width - this.left);
  }

  top(row, side) {
    return TOP + row * ROW + side * (LANE + 1);
  }

  drawLane(context, row, side) {
    const top = this.top(row, side), [begin, end] = this.sides[side].window;
    context.fillStyle = colour("faint");
    context.fillRect(this.left, top, this.width - this.left, LANE);
    context.fillStyle = colour("idle");
    context.fillRect(this.x(begin), top, this.x(end) - this.x(begin), LANE);
    if (this.isProcessors(row)) this.drawProcessors(context, side, top);
    else this.drawTasks(context, row, side, top);
  }

  drawProcessors(context, side, top) {
    const [from, to] = this.view, wide = this.width - this.left;
    context.fillStyle = colour("weight");
    for (let pixel = 0; pixel < wide; pixel++) {
      const share = this.shareAt(side, from + ((to - from) * pixel) / wide, from + ((to - from) * (pixel + 1)) / wide);
      if (share) context.fillRect(this.left + pixel, top + LANE * (1 - share), 1, LANE * share);
    }
  }

  drawTasks(context, row, side, top) {
    const [from, to] = this.view, wide = Math.ceil(this.width - this.left), scale = (this.width - this.left) / (to - from);
    const { start, length } = this.sides[side], { code, onlyPath, data: { tick } } = this;
    const thin = KINDS.map(() => null), path = new Uint8Array(wide + 1), last = this.firsts[row + 1];
    for (let index = Math.max(this.firsts[row], this.before(side, row, from) - 8); index < last; index++) {
      const left = (start[index] * tick - from) * scale, width = length[index] * tick * scale;
      if (left > wide) break;
      if (left + width < 0) continue;
      const kind = code[index] & 3, critical = code[index] & CRITICAL, strength = onlyPath && !critical ? 0.18 : 1;
      if (critical && side) mark(path, left, left + width);
      if (width >= 1) this.drawTask(context, index, this.left + left, width, top, strength);
      else cover(thin[kind] ||= new Float32Array(wide + 2), left, width * strength);
    }
    this.drawThin(context, thin, top);
    this.drawPath(context, path, this.top(row, 1) + LANE);
  }

  drawTask(context, index, left, width, top, strength) {
    const kind = this.code[index] & 3;
    context.globalAlpha = strength;
    context.fillStyle = this.fills[kind];
    const from = this.snapped(left), to = Math.max(from + 1 / this.ratio, this.snapped(left + width) - (width > 4 ? 0.6 : 0));
    context.fillRect(from, top, to - from, LANE);
    context.globalAlpha = 1;
    const begin = Math.max(left, this.left), room = left + width - begin - 6;
    if (room < 46 || strength < 1) return;
    context.fillStyle = colour(TEXT_COLOURS[kind]);
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(fitting(this.nameOf(index), room), begin + 3, top + LANE / 2 + 0.5);
  }

  // Tasks thinner than a pixel: in each column the shares of its time, one kind above the other.
  drawThin(context, thin, top) {
    const below = new Float32Array(Math.ceil(this.width - this.left) + 2);
    thin.forEach((sums, kind) => {
      if (!sums) return;
      context.fillStyle = this.fills[kind];
      sums.forEach((share, pixel) => {
        if (!share) return;
        const high = Math.min(LANE - below[pixel], Math.max(1, share * LANE));
        context.fillRect(this.left + pixel, top + LANE - below[pixel] - high, 1, high);
        below[pixel] += high;
      });
    });
  }

  drawPath(context, path, top) {
    context.fillStyle = colour("text");
    path.forEach((marked, pixel) => marked && context.fillRect(this.left + pixel, top + 0.5, 1, MARK - 0.5));
  }

  drawHovered(context) {
    if (this.hovered < 0) return;
    const row = this.firsts.findLastIndex((first) => first <= this.hovered);
    context.strokeStyle = colour("text");
    context.lineWidth = 1.5;
    for (const side of [0, 1]) {
      const [from, to] = this.span(side, this.hovered).map((time) => this.x(time));
      context.strokeRect(from - 0.5, this.top(row, side) + 0.5, Math.max(2, to - from + 1), LANE - 1);
    }
  }

  drawLabels(context) {
    const narrow = this.left < 100;
    context.textBaseline = "middle";
    this.rows.forEach(([label], row) => {
      context.textAlign = "left";
      context.fillStyle = colour("text");
      const room = this.left - (narrow ? 16 : 62);
      context.fillText(fitting(label, room), 0, this.top(row, 1) - 0.5);
      context.textAlign = "right";
      context.fillStyle = colour("muted");
      SIDES.forEach((name, side) => {
        context.fillText(narrow ? name[0] : name, this.left - 5, this.top(row, side) + LANE / 2 + 0.5);
      });
    });
  }
}

// Adds the part of a task that lies in each pixel; it is thinner than one, so that these are at most two.
function cover(sums, left, width) {
  const pixel = Math.floor(left), first = Math.min(width, pixel + 1 - left);
  if (pixel >= 0 && pixel < sums.length) sums[pixel] += first;
  if (pixel + 1 >= 0 && pixel + 1 < sums.length) sums[pixel + 1] += width - first;
}

function mark(path, left, right) {
  path.fill(1, Math.max(0, Math.floor(left)), Math.max(0, Math.ceil(Math.max(right, left + 1))));
}

// As much of a text as there is room for, at six pixels a letter.
function fitting(text, room) {
  const most = Math.max(1, Math.floor(room / 6));
  return text.length <= most ? text : `${text.slice(0, most - 1)}\u2026`;
}

// The unit in which a span of seconds is read.
function unitOf(span) {
  if (span >= 20) return ["s", 1];
  return span >= 2e-3 ? ["ms", 1e3] : ["\u00b5s", 1e6];
}

function inUnit(seconds, span) {
  const [unit, perSecond] = unitOf(span), value = seconds * perSecond;
  return `${value.toLocaleString("en-US", { maximumFractionDigits: 3 })} ${unit}`;
}
