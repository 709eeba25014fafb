// The roofline plot: arithmetic rate over operations per byte, both logarithmic.

function roofline() {
  const points = data.points.map(([label, index, engine, flops, bytes, us]) => ({label, index, engine, x: flops / bytes, y: flops / us / 1e3, z: bytes / us / 1e3, us}));
  if (!points.length) return;
  byId("roofline-section").hidden = false;
  const w = 960, h = 340, left = 64, bottom = 40, top = 30, right = 20;
  const range = values => [10 ** Math.floor(Math.log10(smallest(values))), 10 ** Math.ceil(Math.log10(largest(values) * 1.001))];
  const [x0, x1] = range(points.map(p => p.x)), [y0, y1] = range(points.map(p => p.y));
  const xOf = v => left + Math.log(v / x0) / Math.log(x1 / x0) * (w - left - right);
  const yOf = v => h - bottom - Math.log(v / y0) / Math.log(y1 / y0) * (h - bottom - top);
  const svg = (tag, attributes, parent, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [k, v] of Object.entries(attributes)) made.setAttribute(k, v);
    if (text) made.textContent = text;
    parent.append(made);
    return made;
  };
  const plot = svg("svg", {viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": "Roofline plot of the steps"}, byId("roofline"));
  for (let v = x0; v <= x1 * 1.01; v *= 10) {
    svg("line", {x1: xOf(v), x2: xOf(v), y1: top, y2: h - bottom, stroke: "var(--line)"}, plot);
    svg("text", {x: xOf(v), y: h - bottom + 16, "text-anchor": "middle"}, plot, v.toLocaleString("en", {maximumSignificantDigits: 3}));
  }
  for (let v = y0; v <= y1 * 1.01; v *= 10) {
    svg("line", {x1: left, x2: w - right, y1: yOf(v), y2: yOf(v), stroke: "var(--line)"}, plot);
    svg("text", {x: left - 6, y: yOf(v) + 4, "text-anchor": "end"}, plot, v.toLocaleString("en", {maximumSignificantDigits: 3}));
  }
  svg("text", {x: w - right, y: h - 6, "text-anchor": "end"}, plot, "operations per byte");
  svg("text", {x: 4, y: 12}, plot, "GFLOP/s");
  const rate = largest(points.map(p => p.y)), band = largest(points.map(p => p.z)), ridge = rate / band;
  const start = Math.max(x0, y0 / band), roof = [[start, start * band], [Math.min(Math.max(ridge, start), x1), Math.min(rate, x1 * band)], [x1, Math.min(rate, x1 * band)]];
  svg("polyline", {points: roof.map(([x, y]) => `${xOf(x)},${yOf(y)}`).join(" "), fill: "none", stroke: "var(--dim)", "stroke-dasharray": "5 4", "stroke-width": 1.5}, plot);
  svg("text", {x: w - right - 4, y: yOf(Math.min(rate, x1 * band)) - 6, "text-anchor": "end"}, plot, `${rate.toPrecision(3)} GFLOP/s, ${band.toPrecision(3)} GB/s`);
  const colors = [...new Set(points.map(p => p.engine))], longest = largest(points.map(p => p.us));
  const marks = points.map(p => {
    const mark = svg("circle", {cx: xOf(p.x), cy: yOf(p.y), r: 3.5 + 7 * Math.sqrt(p.us / longest), fill: `var(--series-${colors.indexOf(p.engine) % 6})`}, plot);
    svg("title", {}, mark, `${p.label}\n${duration(p.us)}, ${p.y.toPrecision(3)} GFLOP/s, ${p.z.toPrecision(3)} GB/s`);
    mark.addEventListener("click", () => { byId("roofline-text").textContent = `${p.label}: ${duration(p.us)}`; if (p.index >= 0) select(p.index); });
    return mark;
  });
  state.listeners.push(index => points.forEach((p, k) => marks[k].classList.toggle("chosen", index >= 0 && p.index === index)));
}
