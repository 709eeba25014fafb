// The timeline: a lane per thread, region or device, with zoom along the time axis.

function timeline() {
  const lanes = data.lanes.filter(([, spans]) => spans.length);
  if (!lanes.length) return;
  byId("timeline-section").hidden = false;
  byId("timeline-note").textContent = data.lanesNote;
  const canvas = byId("timeline"), left = 150, laneHeight = 30, top = 24;
  canvas.style.height = `${top + lanes.length * laneHeight + 8}px`;
  const every = lanes.flatMap(([, spans]) => spans);
  const first = smallest(every.map(s => s[0])), last = largest(every.map(s => s[0] + s[1]));
  let begin = first, end = last > first ? last : first + 1;
  const draw = onFrame(paint), width = () => canvas.getBoundingClientRect().width - left - 8;
  const xOf = t => left + (t - begin) / (end - begin) * width();

  function ticks() {
    const rough = (end - begin) / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(k => k * power).find(s => s >= rough), all = [];
    for (let t = Math.ceil((begin - first) / step) * step; t <= end - first; t += step) all.push(t);
    return all;
  }

  function paint() {
    const c = context(canvas), r = canvas.getBoundingClientRect();
    const ink = style("--ink"), dim = style("--dim"), line = style("--line"), plain = style("--series-5"), link = style("--link");
    c.font = "12px " + style("--sans");
    c.textBaseline = "middle";
    c.strokeStyle = line;
    for (const t of ticks()) {
      const x = xOf(first + t);
      c.beginPath(); c.moveTo(x, top - 4); c.lineTo(x, r.height); c.stroke();
      c.fillStyle = dim;
      c.fillText(t === 0 ? "0" : duration(t), x + 3, 11);
    }
    lanes.forEach(([name, spans], k) => {
      const y = top + k * laneHeight;
      c.fillStyle = ink;
      c.fillText(clipped(c, name, left - 14), 8, y + laneHeight / 2);
      c.save();
      c.beginPath(); c.rect(left, y, width(), laneHeight); c.clip();
      for (const [start, long, label, index] of spans) {
        if (start > end || start + long < begin) continue;
        const x = xOf(start), w = Math.max(1, xOf(start + long) - x - 0.5);
        c.fillStyle = nodes[index] ? state.colors.node(nodes[index]) : plain;
        c.globalAlpha = 0.85;
        c.fillRect(x, y + 4, w, laneHeight - 8);
        c.globalAlpha = 1;
        if (index >= 0 && index === state.chosen) { c.strokeStyle = link; c.lineWidth = 2.5; c.strokeRect(x, y + 3, w, laneHeight - 6); c.lineWidth = 1; }
        if (w > 42) {
          c.fillStyle = style("--card");
          const from = Math.max(x, left);
          c.fillText(clipped(c, label, Math.min(x + w, r.width) - from - 10), from + 5, y + laneHeight / 2);
        }
      }
      c.restore();
    });
  }

  function spanAt(x, y) {
    const spans = lanes[Math.floor((y - top) / laneHeight)]?.[1];
    if (!spans || x < left) return null;
    const t = begin + (x - left) / width() * (end - begin), slack = 2 / width() * (end - begin);
    return spans.findLast(([s, d]) => s - slack <= t && t <= s + d + slack) ?? null;
  }

  function zoom(factor, x) {
    const t = begin + (Math.max(x, left) - left) / width() * (end - begin);
    const whole = last - first, long = Math.min(whole * 1.02, Math.max(whole / 1e6, (end - begin) / factor));
    begin = t - (t - begin) * long / (end - begin);
    end = begin + long;
    draw();
  }

  pointer(canvas, {
    drag: x => { const t = x / width() * (end - begin); begin -= t; end -= t; draw(); },
    zoom,
    click: (x, y) => { const s = spanAt(x, y); if (s && s[3] >= 0) select(s[3]); },
    hover: (x, y) => { const s = spanAt(x, y); byId("timeline-text").textContent = s ? `${s[2]}: ${duration(s[1])} at ${duration(s[0] - first)}` : ""; },
  });
  canvas.addEventListener("keydown", event => {
    const middle = left + width() / 2, part = (end - begin) / 8;
    if (event.key === "+" || event.key === "=") zoom(1.4, middle);
    else if (event.key === "-") zoom(1 / 1.4, middle);
    else if (event.key === "ArrowLeft") { begin -= part; end -= part; draw(); }
    else if (event.key === "ArrowRight") { begin += part; end += part; draw(); }
  });
  state.listeners.push(draw);
  new ResizeObserver(draw).observe(canvas);
  draw();
}
