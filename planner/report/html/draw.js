// What all plots share: elements, scales, ticks, the tooltip, redrawing when the width or the colours change.

const SVG = "http://www.w3.org/2000/svg";

function element(parent, tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

function shape(parent, tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

function number(value, digits = 4) {
  const notation = Math.abs(value) >= 1e4 ? "compact" : "standard";
  return value.toLocaleString("en-US", { maximumSignificantDigits: digits, notation });
}

// Ticks of an axis with their texts: as many digits as tell each from its neighbours.
function ticksOf(scale, most) {
  const ticks = scale.ticks(most);
  let digits = 4;
  while (digits < 12 && ticks.some((tick) => Number(tick.toPrecision(digits)) !== Number(tick.toPrecision(12)))) digits++;
  return ticks.map((tick) => [tick, number(tick, digits)]);
}

function linear(from, to, start, end) {
  const span = to - from || 1;
  const scale = (value) => start + ((value - from) / span) * (end - start);
  scale.inverse = (place) => from + ((place - start) / (end - start)) * span;
  scale.ticks = (most) => niceTicks(from, to, most);
  return scale;
}

function logarithmic(from, to, start, end) {
  const inner = linear(Math.log(from), Math.log(to), start, end);
  const scale = (value) => inner(Math.log(value));
  scale.inverse = (place) => Math.exp(inner.inverse(place));
  scale.ticks = (most) => {
    const every = [];
    for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power++) {
      for (const digit of [1, 2, 5]) every.push(digit * 10 ** power);
    }
    const inside = every.filter((tick) => tick >= from * 0.999 && tick <= to * 1.001);
    return inside.length < 3 || inside.length > most ? thinned(inside, from, to, most) : inside;
  };
  return scale;
}

function thinned(ticks, from, to, most) {
  if (ticks.length < 3) return niceTicks(from, to, most);
  return ticks.filter((tick) => /^1(e|0|$)|^0\.0*1$/.test(String(tick)));
}

function niceTicks(from, to, most) {
  const raw = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= raw) || 10 * power;
  const ticks = [];
  for (let tick = Math.ceil(from / step - 1e-9) * step; tick <= to + step * 1e-9; tick += step) {
    ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : Number(tick.toPrecision(12)));
  }
  return ticks;
}

const tip = {
  box: document.getElementById("tip"),
  show(event, lines) {
    this.box.replaceChildren(...lines.map((line, index) => element(null, index ? "div" : "b", "", line)));
    this.box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const left = Math.min(event.clientX + 14, innerWidth - width - 8);
    const top = event.clientY + height + 22 > innerHeight ? event.clientY - height - 12 : event.clientY + 16;
    this.box.style.left = `${Math.max(8, left)}px`;
    this.box.style.top = `${Math.max(8, top)}px`;
  },
  hide() {
    this.box.hidden = true;
  },
};

function explained(target, lines) {
  target.addEventListener("pointermove", (event) => tip.show(event, lines));
  target.addEventListener("pointerleave", () => tip.hide());
}

function legend(parent, names) {
  const list = element(parent, "ul", "legend");
  for (const [name, kind] of names) {
    const item = element(list, "li", "", name);
    item.prepend(element(null, "i", `swatch part-${kind || name}`));
  }
  return list;
}

const redrawn = new Map();
const widths = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const one = redrawn.get(target);
    if (one && Math.abs(one.width - contentRect.width) > 0.5 && contentRect.width > 0) {
      one.width = contentRect.width;
      one.draw(contentRect.width);
    }
  }
});

function keepDrawn(box, draw) {
  redrawn.set(box, { draw, width: box.clientWidth });
  if (box.clientWidth) draw(box.clientWidth);
  widths.observe(box);
}

function redrawAll() {
  for (const one of redrawn.values()) if (one.width) one.draw(one.width);
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
