// A canvas with time from left to right, zoomed and dragged without delay; what stands on it is its subclass's.

const TOP = 26, LABEL = 20;

class ZoomedCanvas {
  // `end`: seconds of the whole; `left`: pixels before time begins; `least`: the fewest seconds that are shown.
  constructor(end, left, least) {
    Object.assign(this, { end, left, least, view: [0, end] });
  }

  // --- what there is ---

  buildCanvas(figure, label) {
    this.box = element(figure, "div", "canvas");
    this.canvas = element(this.box, "canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", label);
    const range = element(figure, "div", "range");
    range.style.marginLeft = `${this.left}px`;
    this.range = element(range, "div");
  }

  // Draws it for the first time, and again whenever its width changes.
  drawAndListen() {
    keepDrawn(this.box, (width) => this.resize(width));
    this.listen();
  }

  buttonRow(figure, buttons) {
    const row = element(figure, "div", "buttons");
    const zooming = [["+", () => this.zoom(0.5), "Zoom in"], ["\u2212", () => this.zoom(2), "Zoom out"]];
    for (const [text, act, label] of [...buttons, ...zooming]) {
      const button = element(row, "button", "", text);
      button.type = "button";
      if (label) button.setAttribute("aria-label", label);
      button.addEventListener("click", () => act(button));
    }
  }

  // --- the view ---

  show(from, to) {
    const width = Math.min(this.end, Math.max(to - from, this.least));
    const start = Math.min(Math.max(0, from), this.end - width);
    this.view = [start, start + width];
    this.request();
  }

  zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    const [from, to] = this.view;
    this.show(at - (at - from) * factor, at + (to - at) * factor);
  }

  move(fraction) {
    const [from, to] = this.view;
    this.show(from + (to - from) * fraction, to + (to - from) * fraction);
  }

  time(event) {
    const left = event.clientX - this.canvas.getBoundingClientRect().left - this.left;
    return this.view[0] + (left / (this.width - this.left)) * (this.view[1] - this.view[0]);
  }

  listen() {
    const canvas = this.canvas, fingers = new Map();
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("dblclick", (event) => this.zoom(0.4, this.time(event)));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, event);
      canvas.setPointerCapture(event.pointerId);
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, (event) => fingers.delete(event.pointerId));
    }
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId);
      if (before) this.dragged(fingers, before, event);
      else this.hover(event);
    });
  }

  dragged(fingers, before, event) {
    if (fingers.size === 2) {
      const [other] = [...fingers.values()].filter((one) => one.pointerId !== event.pointerId);
      const was = Math.abs(before.clientX - other.clientX), is = Math.abs(event.clientX - other.clientX);
      if (was > 10 && is > 10) this.zoom(was / is, this.time(other));
    } else {
      this.move((before.clientX - event.clientX) / (this.width - this.left));
    }
    fingers.set(event.pointerId, event);
    tip.hide();
  }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(Math.max(-50, Math.min(50, event.deltaY)) * 0.01), this.time(event));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.move(event.deltaX / (this.width - this.left));
    }
  }

  key(event) {
    const acts = {
      ArrowLeft: () => this.move(-0.2),
      ArrowRight: () => this.move(0.2),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      Home: () => this.show(0, this.end),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  // --- drawing ---

  fit(width, height) {
    const ratio = Math.min(3, devicePixelRatio || 1);
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    Object.assign(this, { width, height, ratio });
  }

  request() {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  // An empty canvas on which `paint` draws within the part where time runs.
  paintTimes(high, paint) {
    const context = this.canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = "11px system-ui, sans-serif";
    context.save();
    context.beginPath();
    context.rect(this.left, TOP, this.width - this.left, high);
    context.clip();
    paint(context);
    context.restore();
    const [from, to] = this.view.map((time) => (100 * time) / this.end);
    this.range.style.marginLeft = `${from}%`;
    this.range.style.width = `${to - from}%`;
    return context;
  }

  // To whole pixels of the screen: what is narrower than one stays crisp instead of blurring into each other.
  snapped(place) {
    return Math.round(place * this.ratio) / this.ratio;
  }

  // Ticks of seconds, or of the unit in which `perSecond` go into one.
  drawTicks(context, unit = "s", perSecond = 1) {
    context.fillStyle = colour("muted");
    context.textBaseline = "middle";
    const x = linear(...this.view.map((time) => time * perSecond), this.left, this.width);
    const ticks = x.ticks(Math.max(2, Math.floor(this.width / 110)));
    const digits = decimals((ticks[1] ?? 1) - ticks[0]);
    for (const tick of ticks) {
      const text = `${tick.toFixed(digits)} ${unit}`, half = context.measureText(text).width / 2;
      const place = Math.min(Math.max(x(tick), this.left + half), this.width - half);
      context.textAlign = "center";
      context.fillText(text, place, TOP - 12);
      context.fillRect(x(tick) - 0.5, TOP - 4, 1, 4);
    }
  }
}

function column(text, Kind = Uint32Array) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Kind(bytes.buffer);
}

const decimals = (step) => (String(Number(step.toPrecision(3))).split(".")[1] || "").length;

function rgb(text) {
  const hex = text.replace("#", "");
  const full = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
  return [0, 2, 4].map((index) => parseInt(full.slice(index, index + 2), 16));
}
