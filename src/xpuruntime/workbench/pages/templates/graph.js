// The graph: boxes and edges on a canvas, with zoom, search and selection.

function graphView() {
  const canvas = byId("graph"), box = {w: data.cell[0] - 24, h: data.cell[1] - 18};
  const right = Math.max(0, largest(nodes.map(n => n.x))), bottom = Math.max(0, largest(nodes.map(n => n.y)));
  let scale = 1, dx = 0, dy = 0;
  const draw = onFrame(paint);

  function fit() {
    const {width, height} = canvas.getBoundingClientRect();
    const left = nodes.length ? smallest(nodes.map(n => n.x)) : 0, top = nodes.length ? smallest(nodes.map(n => n.y)) : 0;
    const w = right - left + data.cell[0], h = bottom - top + data.cell[1];
    scale = Math.min(width / w, height / h, 1.4);
    dx = (width - (left + right) * scale) / 2;
    dy = (height - (top + bottom) * scale) / 2;
    draw();
  }

  function zoom(factor, x, y) {
    const next = Math.min(4, Math.max(0.01, scale * factor)), real = next / scale;
    dx = x - (x - dx) * real;
    dy = y - (y - dy) * real;
    scale = next;
    draw();
  }

  function center(node) {
    const {width, height} = canvas.getBoundingClientRect();
    scale = Math.max(scale, 0.8);
    dx = width / 2 - node.x * scale;
    dy = height / 2 - node.y * scale;
    draw();
  }

  function nodeAt(x, y) {
    const px = (x - dx) / scale, py = (y - dy) / scale, slack = Math.max(0, 4 / scale - box.h / 2);
    return nodes.find(n => Math.abs(n.x - px) <= box.w / 2 + slack && Math.abs(n.y - py) <= box.h / 2 + slack);
  }

  function edge(c, from, to) {
    const x1 = from.x, y1 = from.y + box.h / 2, x2 = to.x, y2 = to.y - box.h / 2;
    c.moveTo(x1, y1);
    if (y2 < y1) c.bezierCurveTo(x1, y1 + 30, (x1 + x2) / 2, y1 + 30, (x1 + x2) / 2, (y1 + y2) / 2), c.bezierCurveTo((x1 + x2) / 2, y2 - 30, x2, y2 - 30, x2, y2);
    else {
      // An edge past other layers bends, so that no box hides it.
      const bend = y2 - y1 > data.cell[1] && Math.abs(x2 - x1) < box.w ? box.w * 0.75 : 0, reach = (y2 - y1) * 0.45;
      c.bezierCurveTo(x1 + bend, y1 + reach, x2 + bend, y2 - reach, x2, y2);
    }
  }

  function paint() {
    const c = context(canvas), {width, height} = canvas.getBoundingClientRect();
    const ink = style("--ink"), dim = style("--dim"), card = style("--card"), link = style("--link"), warn = style("--bad");
    const chosen = nodes[state.chosen], searching = state.matches.size > 0;
    const visible = n => { const x = n.x * scale + dx, y = n.y * scale + dy, m = box.w * scale; return x > -m && x < width + m && y > -m && y < height + m; };
    c.save();
    c.translate(dx, dy);
    c.scale(scale, scale);
    c.lineWidth = Math.max(1, 0.6 / scale);
    c.strokeStyle = dim;
    c.globalAlpha = 0.45;
    c.beginPath();
    for (const n of nodes) for (const i of n.reads) if (visible(n) || visible(nodes[i])) edge(c, nodes[i], n);
    c.stroke();
    c.globalAlpha = 1;
    if (chosen) {
      c.strokeStyle = link;
      c.lineWidth = Math.max(2, 1.6 / scale);
      c.beginPath();
      for (const i of chosen.reads) edge(c, nodes[i], chosen);
      for (const i of chosen.readers) edge(c, chosen, nodes[i]);
      c.stroke();
    }
    const fills = new Map(), detailed = scale > 0.45;
    c.font = "12px " + style("--mono");
    c.textBaseline = "middle";
    for (const n of nodes) {
      if (!visible(n)) continue;
      const value = n.values[state.colors.column];
      if (!fills.has(value)) fills.set(value, state.colors.of(value));
      const x = n.x - box.w / 2, y = n.y - box.h / 2;
      c.globalAlpha = searching && !state.matches.has(n.index) ? 0.25 : 1;
      if (detailed) {
        c.fillStyle = card;
        c.fillRect(x, y, box.w, box.h);
        c.fillStyle = fills.get(value);
        c.fillRect(x, y, 7, box.h);
        c.strokeStyle = fills.get(value);
        c.lineWidth = 1.2;
        c.strokeRect(x, y, box.w, box.h);
        c.fillStyle = ink;
        c.fillText(clipped(c, n.name, box.w - 16, true), x + 12, n.y);
      } else {
        c.fillStyle = fills.get(value);
        c.fillRect(x, y, box.w, box.h);
      }
      c.globalAlpha = 1;
      if (n === chosen || state.matches.has(n.index)) {
        c.strokeStyle = n === chosen ? link : warn;
        c.lineWidth = Math.max(n === chosen ? 3 : 2, 2 / scale);
        c.strokeRect(x - 2, y - 2, box.w + 4, box.h + 4);
      }
    }
    c.restore();
  }

  pointer(canvas, {
    drag: (x, y) => { dx += x; dy += y; draw(); },
    zoom,
    click: (x, y) => select(nodeAt(x, y)?.index ?? -1, {center: false}),
    hover: (x, y) => { const n = nodeAt(x, y); canvas.title = n ? n.name : ""; },
  });
  const middle = factor => () => { const r = canvas.getBoundingClientRect(); zoom(factor, r.width / 2, r.height / 2); };
  byId("closer").onclick = middle(1.4);
  byId("farther").onclick = middle(1 / 1.4);
  byId("fit").onclick = fit;
  const moves = {ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60]};
  canvas.addEventListener("keydown", event => {
    if (event.key === "+" || event.key === "=") middle(1.4)();
    else if (event.key === "-") middle(1 / 1.4)();
    else if (event.key in moves) { dx += moves[event.key][0]; dy += moves[event.key][1]; draw(); event.preventDefault(); }
  });
  state.listeners.push((index, follow) => { if (follow && nodes[index]) center(nodes[index]); else draw(); });
  new ResizeObserver(draw).observe(canvas);
  fit();
  return {draw, fit, scale: () => scale};
}

function legend(redraw) {
  const choice = byId("color"), list = byId("legend");
  for (const column of data.colors) element("option", column, choice);
  const show = () => {
    state.colors = new Colors(choice.value);
    list.replaceChildren();
    const entry = (text, color) => { const item = element("li", "", list); element("i", "", item).style.background = color; item.append(text); };
    if (state.colors.numeric) for (const share of [0, 0.25, 1]) entry(shown(state.colors.most * share, choice.value), state.colors.of(state.colors.most * share));
    else for (const value of state.colors.order.slice(0, 24)) entry(`${value} (${state.colors.counts.get(value)})`, state.colors.of(value));
    if (state.colors.order.length > 24 && !state.colors.numeric) entry(`and ${state.colors.order.length - 24} more`, style("--line"));
    redraw();
  };
  choice.onchange = show;
  show();
}

function search(redraw, filter) {
  const field = byId("search"), text = byId("matches");
  let order = [], k = -1;
  const find = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    order = words.length ? nodes.filter(n => words.every(w => n.text.includes(w))).map(n => n.index) : [];
    state.matches = new Set(order);
    k = -1;
    text.textContent = words.length ? `${order.length} of ${nodes.length}` : "";
    filter(words.length ? state.matches : null);
    redraw();
  };
  const step = by => {
    if (!order.length) return;
    k = k < 0 ? (by > 0 ? 0 : order.length - 1) : (k + by + order.length) % order.length;
    text.textContent = `${k + 1} of ${order.length}`;
    select(order[k]);
  };
  field.addEventListener("input", find);
  field.addEventListener("keydown", event => { if (event.key === "Enter") step(event.shiftKey ? -1 : 1); });
  byId("next").onclick = () => step(1);
  byId("previous").onclick = () => step(-1);
}
