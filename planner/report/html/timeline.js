// The timeline of a pipeline on one canvas: tens of thousands of passes, zoomed and dragged without delay.

const KINDS = ["forward", "backward", "weight"];
const NAMES = ["forward (F)", "backward, input (B)", "backward, weights (W)"];
const LETTERS = "FBW";
const HELP =
  "Zoom: buttons, pinch, double click, or Ctrl and the wheel; drag to move; arrow keys, + and - do the same. " +
  "Where passes are too thin to be drawn, each rank's line has the shares of its time; zoomed in, passes have their " +
  "letter and micro-batch, later chunks are darker. The micro-batch under the pointer is marked on all ranks.";
const LANES = [[0, 1], [0, 0.5], [0.5, 1]];
const LEFT = 46;

class Timeline extends ZoomedCanvas {
  constructor(figure, data) {
    super(data.end, LEFT, data.end * 1e-5);
    this.data = data;
    this.start = column(data.start);
    this.code = column(data.code);
    this.ticks = data.end / data.tick;
    this.lengths = this.lengthTable();
    this.firsts = data.counts.reduce((firsts, count) => [...firsts, firsts.at(-1) + count], [0]);
    this.hovered = -1;
    this.build(figure);
  }

  lengthTable() {
    const table = new Float64Array(12 * this.data.pp * this.data.vpp);
    for (const [key, ticks] of Object.entries(this.data.lengths)) {
      const [kind, lane, stage] = key.split(" ").map(Number);
      table[stage * 12 + lane * 4 + kind] = ticks * this.data.tick;
    }
    return table;
  }

  piece(index) {
    const code = this.code[index], kind = code & 3, lane = (code >> 2) & 3, one = Math.floor(code / 16);
    const stage = Math.floor(one / this.data.microbatches);
    const start = this.start[index] * this.data.tick;
    const seconds = this.lengths[stage * 12 + lane * 4 + kind];
    return { kind, lane, stage, microbatch: one % this.data.microbatches, start, end: start + seconds };
  }

  // --- what there is ---

  build(figure) {
    figure.querySelector(".note")?.remove();
    this.buttons(figure);
    this.buildCanvas(figure, `${figure.querySelector("figcaption").textContent} ${this.summary()}`);
    legend(figure, [...NAMES.map((name, kind) => [name, KINDS[kind]]), ["waiting", "idle"], ["outside the passes: transfers, optimizer update", "beside"]]);
    this.measured(figure);
    element(figure, "p", "note", this.summary());
    const help = element(figure, "details");
    element(help, "summary", "", "How to read it and move in it");
    element(help, "p", "note", HELP);
    this.drawAndListen();
  }

  // How long a measured step may be beside this one.
  measured(figure) {
    const { end, range, range_text } = this.data, text = `${end.toFixed(3)} s`;
    const row = { label: "The step", text, range, range_text, parts: [{ name: "beside", label: "step", value: end, text }] };
    barBox(figure, [row], "seconds");
  }

  summary() {
    const { pp, vpp, microbatches, passes, beside, cut, pipeline, end } = this.data;
    const rest = beside.map(([name, seconds]) => `${name} ${seconds.toFixed(3)} s`).join(", ");
    return (
      `${passes.toLocaleString("en-US")} passes of ${microbatches} micro-batches through ${pp} ranks with ${vpp} ` +
      `${vpp > 1 ? "chunks" : "chunk"} each take ${pipeline.toFixed(3)} s; the step ends at ${end.toFixed(3)} s. ` +
      (rest ? `Outside the passes: ${rest}; drawn at the end, although transfers are spread over the step. ` : "") +
      (cut ? "Only the first and the last passes of each rank are in this file." : "")
    );
  }

  buttons(figure) {
    const { end } = this;
    this.buttonRow(figure, [
      ["Whole step", () => this.show(0, end)],
      ["Start", () => this.show(0, this.warmUp())],
      ["Middle", () => this.show(end / 2 - this.period(), end / 2 + this.period())],
      ["End", () => this.show(end - this.warmUp(), end)],
    ]);
  }

  warmUp() {
    const first = this.firstBackward();
    return Math.min(this.data.end, first * 1.5);
  }

  firstBackward() {
    for (let index = 0; index < this.firsts[1]; index++) {
      const piece = this.piece(index);
      if (piece.kind === 1) return piece.end;
    }
    return this.data.end;
  }

  period() {
    return (this.data.pipeline / this.data.microbatches) * Math.max(1, this.data.vpp > 1 ? this.data.pp / 8 : 1);
  }

  // --- what is pointed at ---

  hover(event) {
    const found = event ? this.at(event) : null;
    const microbatch = found ? found.microbatch : -1;
    if (microbatch !== this.hovered) {
      this.hovered = microbatch;
      this.request();
    }
    if (!found) return tip.hide();
    const milliseconds = ((found.end - found.start) * 1e3).toFixed(2);
    tip.show(event, [
      `${NAMES[found.kind]}, micro-batch ${found.microbatch}`,
      `rank ${found.rank}, chunk ${Math.floor(found.stage / this.data.pp)} (virtual stage ${found.stage})`,
      `${found.start.toFixed(4)} to ${found.end.toFixed(4)} s, ${milliseconds} ms`,
    ]);
  }

  at(event) {
    const top = event.clientY - this.canvas.getBoundingClientRect().top - TOP;
    const rank = Math.floor(top / this.row), time = this.time(event);
    if (rank < 0 || rank >= this.data.pp || time < this.view[0]) return null;
    const lane = top / this.row - rank;
    const last = this.after(rank, time);
    for (let index = last; index >= Math.max(this.firsts[rank], last - 6); index--) {
      const piece = this.piece(index), [upper, lower] = LANES[piece.lane];
      if (piece.start <= time && time <= piece.end && lane >= upper && lane <= lower) return { rank, ...piece };
    }
    return null;
  }

  after(rank, time) {
    let low = this.firsts[rank], high = this.firsts[rank + 1] - 1;
    const tick = time / this.data.tick;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.start[middle] <= tick) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  // --- drawing ---

  resize(width) {
    this.row = Math.min(56, Math.max(11, 480 / this.data.pp));
    this.fit(width, TOP + this.row * this.data.pp + LABEL);
    this.styles = this.shades();
    this.draw();
  }

  shades() {
    const ground = rgb(colour("surface"));
    return KINDS.map((kind) => {
      const full = rgb(colour(kind));
      return Array.from({ length: this.data.vpp }, (_, chunk) => {
        const part = this.data.vpp > 1 ? 0.55 + (0.45 * chunk) / (this.data.vpp - 1) : 0.9;
        return `rgb(${full.map((value, index) => Math.round(ground[index] + (value - ground[index]) * part))})`;
      });
    });
  }

  draw() {
    const high = this.row * this.data.pp;
    const context = this.paintTimes(high, (inner) => {
      inner.fillStyle = colour("idle");
      inner.fillRect(LEFT, TOP, this.width - LEFT, high);
      const shares = this.tooThin();
      for (let rank = 0; rank < this.data.pp; rank++) {
        if (shares) this.drawShares(inner, rank, shares);
        else this.drawRank(inner, rank);
      }
      this.drawBeside(inner);
    });
    this.drawAxes(context);
  }

  // Where passes are thinner than two pixels: of how wide a column the shares are drawn instead; else 0.
  tooThin() {
    const [from, to] = this.view;
    const visible = (this.after(0, to) - this.after(0, from) + 1) / (this.width - LEFT);
    return visible < 0.5 ? 0 : Math.max(4, 6 * visible);
  }

  drawShares(context, rank, wanted) {
    const [from, to] = this.view, wide = this.width - LEFT, count = Math.max(1, Math.round(wide / wanted));
    const size = (to - from) / count, sums = KINDS.map(() => new Float64Array(count)), traced = [];
    for (let index = Math.max(this.firsts[rank], this.after(rank, from) - 4); index < this.firsts[rank + 1]; index++) {
      const piece = this.piece(index);
      if (piece.start > to) break;
      if (piece.microbatch === this.hovered) traced.push(piece);
      const half = piece.lane ? 0.5 : 1;
      const last = Math.min(count - 1, Math.floor((piece.end - from) / size));
      for (let bin = Math.max(0, Math.floor((piece.start - from) / size)); bin <= last; bin++) {
        const begin = Math.max(piece.start, from + bin * size), end = Math.min(piece.end, from + (bin + 1) * size);
        sums[piece.kind][bin] += (half * Math.max(0, end - begin)) / size;
      }
    }
    const high = this.row - 1.5, top = TOP + rank * this.row + 0.75;
    for (let bin = 0; bin < count; bin++) {
      const left = this.snapped(LEFT + (bin * wide) / count), right = this.snapped(LEFT + ((bin + 1) * wide) / count);
      let below = top;
      sums.forEach((sum, kind) => {
        context.fillStyle = this.styles[kind].at(-1);
        context.fillRect(left, below, right - left, sum[bin] * high);
        below += sum[bin] * high;
      });
    }
    context.fillStyle = colour("text");
    for (const piece of traced) {
      context.fillRect(LEFT + ((piece.start - from) / (to - from)) * wide, top, 1.5, high);
    }
  }

  drawRank(context, rank) {
    const [from, to] = this.view, scale = (this.width - LEFT) / (to - from);
    const first = Math.max(this.firsts[rank], this.after(rank, from) - 4);
    const gap = this.row > 14 ? 1.5 : 0.75, top = TOP + rank * this.row + gap / 2, high = this.row - gap;
    for (let index = first; index < this.firsts[rank + 1]; index++) {
      const piece = this.piece(index);
      if (piece.start > to) break;
      const left = this.snapped(LEFT + (piece.start - from) * scale);
      const width = this.snapped(LEFT + (piece.end - from) * scale) - left;
      if (!width) continue;
      const [upper, lower] = LANES[piece.lane];
      const box = [left, top + upper * high, width > 4 ? width - 0.8 : width, (lower - upper) * high];
      const dim = this.hovered >= 0 && piece.microbatch !== this.hovered;
      context.globalAlpha = dim ? 0.28 : 1;
      context.fillStyle = this.styles[piece.kind][Math.floor(piece.stage / this.data.pp)] || this.styles[piece.kind][0];
      context.fillRect(...box);
      if (width > 16 && high > 9) this.drawText(context, piece, box);
    }
    context.globalAlpha = 1;
  }

  drawText(context, piece, [left, top, width, height]) {
    const chunk = Math.floor(piece.stage / this.data.pp);
    const short = `${LETTERS[piece.kind]}${piece.microbatch}`;
    const long = this.data.vpp > 1 && width > 58 ? `${short} \u00b7 c${chunk}` : short;
    if (context.measureText(long).width > width - 3) return;
    context.fillStyle = colour("on-piece");
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(long, left + width / 2, top + height / 2 + 0.5);
  }

  drawBeside(context) {
    const [from, to] = this.view, scale = (this.width - LEFT) / (to - from);
    let start = this.data.pipeline;
    for (const [name, seconds] of this.data.beside) {
      const left = LEFT + (start - from) * scale, width = seconds * scale;
      context.fillStyle = colour("beside");
      context.fillRect(left, TOP, Math.max(0, width - 0.6), this.row * this.data.pp);
      context.fillStyle = colour("on-beside");
      context.textAlign = "center";
      context.textBaseline = "middle";
      if (width > context.measureText(name).width + 4) {
        context.fillText(name, left + width / 2, TOP + (this.row * this.data.pp) / 2);
      }
      start += seconds;
    }
  }

  drawAxes(context) {
    context.fillStyle = colour("muted");
    context.textBaseline = "middle";
    context.textAlign = "right";
    const stride = Math.ceil(13 / this.row);
    for (let rank = 0; rank < this.data.pp; rank += stride) {
      context.fillText(String(rank), LEFT - 8, TOP + (rank + 0.5) * this.row);
    }
    context.textAlign = "left";
    context.fillText("rank", 0, TOP - 12);
    this.drawTicks(context);
  }
}
