// Data, elements, colors and the selected node, for the other files.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const nodes = data.nodes.map(([name, values, reads, at], index) => ({
  name, values, reads, readers: [], index,
  x: at[0] * data.cell[0], y: at[1] * data.cell[1],
  text: [name, ...values.filter(v => typeof v === "string")].join("\n").toLowerCase(),
}));
for (const node of nodes) for (const i of node.reads) nodes[i].readers.push(node.index);

// Build an element. Text is set as text: names of a model are never markup.
function element(tag, text = "", parent = null, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (parent) parent.append(made);
  return made;
}

const largest = values => values.reduce((a, b) => Math.max(a, b), -Infinity);
const smallest = values => values.reduce((a, b) => Math.min(a, b), Infinity);
const isNumber = v => typeof v === "number";
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function shown(value, column = "") {
  if (value === null || value === undefined) return "";
  if (!isNumber(value)) return value;
  return column.endsWith("us") ? value.toLocaleString("en", {maximumFractionDigits: 2, minimumFractionDigits: 2})
    : value.toLocaleString("en", {maximumSignificantDigits: 6});
}

function duration(us) {
  const [scale, unit] = us >= 1e6 ? [1e6, "s"] : us >= 1e3 ? [1e3, "ms"] : [1, "us"];
  return `${(us / scale).toLocaleString("en", {maximumSignificantDigits: 4})} ${unit}`;
}

// Colors of one column: a hue for each text, or a scale for numbers.
class Colors {
  constructor(column) {
    this.column = data.columns.indexOf(column);
    const values = nodes.map(n => n.values[this.column]);
    this.numeric = values.some(isNumber);
    this.most = Math.max(0, largest(values.filter(isNumber)));
    this.counts = new Map();
    for (const v of values) this.counts.set(v ?? "", (this.counts.get(v ?? "") || 0) + 1);
    this.order = [...this.counts.keys()].filter(k => k !== "");
  }
  of(value) {
    if (value === null || value === undefined || value === "") return style("--line");
    if (this.numeric) {
      const share = this.most > 0 && isNumber(value) ? Math.sqrt(Math.max(value, 0) / this.most) : 0;
      return `color-mix(in srgb, ${style("--series-1")} ${Math.round(12 + 88 * share)}%, ${style("--card")})`;
    }
    if (value === "same") return style("--dim");
    const k = this.order.filter(v => v !== "same").indexOf(value);
    if (k < 0) return style("--series-5");
    return k < 6 ? style(`--series-${k}`) : `hsl(${Math.round(k * 137.5) % 360} 50% 50%)`;
  }
  node(node) { return this.of(node.values[this.column]); }
}

const state = {chosen: -1, matches: new Set(), colors: new Colors(data.colors[0]), listeners: []};

function select(index, {center = true} = {}) {
  state.chosen = index;
  for (const listen of state.listeners) listen(index, center);
}

// Fit a canvas to its element and return its context, scaled to CSS pixels.
function context(canvas) {
  const ratio = window.devicePixelRatio || 1, {width, height} = canvas.getBoundingClientRect();
  const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const c = canvas.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, width, height);
  return c;
}

// Call draw once before the next frame, however often it is asked for.
function onFrame(draw) {
  let pending = false;
  return () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; draw(); });
  };
}

// Report drags, clicks, moves and wheel turns of a canvas; two fingers zoom.
function pointer(canvas, {drag, zoom, click, hover}) {
  const down = new Map();
  let moved = 0;
  const at = event => { const r = canvas.getBoundingClientRect(); return [event.clientX - r.left, event.clientY - r.top]; };
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    down.set(event.pointerId, at(event));
    if (down.size === 1) moved = 0;
    canvas.classList.add("moving");
  });
  canvas.addEventListener("pointermove", event => {
    const now = at(event), before = down.get(event.pointerId);
    if (!before) { hover(...now); return; }
    if (down.size === 1) drag(now[0] - before[0], now[1] - before[1]);
    else {
      const other = [...down].find(([id]) => id !== event.pointerId)[1];
      const distance = p => Math.max(1, Math.hypot(p[0] - other[0], p[1] - other[1]));
      zoom(distance(now) / distance(before), ...other);
    }
    moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
    down.set(event.pointerId, now);
  });
  const up = event => {
    if (!down.delete(event.pointerId)) return;
    canvas.classList.remove("moving");
    if (event.type === "pointerup" && moved < 5) click(...at(event));
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...at(event));
  }, {passive: false});
}

// Shorten text to a width: its beginning, or with ``ending`` its end, which tells nodes of one module apart.
function clipped(c, text, width, ending = false) {
  if (c.measureText(text).width <= width) return text;
  const whole = [...text];
  const part = count => (ending ? whole.slice(whole.length - count) : whole.slice(0, count)).join("");
  let low = 0, high = whole.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (c.measureText("…" + part(middle)).width <= width) low = middle; else high = middle - 1;
  }
  return ending ? "…" + part(low) : part(low) + "…";
}
