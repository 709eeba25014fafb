// The table of nodes, sortable by every column, and the plain tables below it.

const MOST_ROWS = 5000;  // more rows make a browser slow; the search narrows them

function nodeTable() {
  const table = byId("table"), columns = ["name", ...data.columns];
  const head = element("tr", "", element("thead", "", table)), body = element("tbody", "", table);
  const numeric = columns.map((_, k) => k > 0 && nodes.some(n => isNumber(n.values[k - 1])));
  const rows = new Map();
  let order = nodes.map(n => n.index), only = null, sorted = -1, descending = false;
  const value = (index, k) => k === 0 ? nodes[index].name : nodes[index].values[k - 1];

  function row(index) {
    const made = element("tr");
    columns.forEach((column, k) => {
      const text = shown(value(index, k), column);
      element("td", text, made, numeric[k] ? {class: "right"} : text.length > 40 ? {title: text} : {});
    });
    made.onclick = () => select(index);
    return made;
  }

  function show() {
    const listed = only === null ? order : order.filter(i => only.has(i));
    const part = listed.slice(0, MOST_ROWS).map(i => { if (!rows.has(i)) rows.set(i, row(i)); return rows.get(i); });
    body.replaceChildren(...part);
    byId("rows").textContent = listed.length > MOST_ROWS ? `${MOST_ROWS} of ${listed.length}; search to see others` : `${listed.length}`;
  }

  function sort(k) {
    descending = k === sorted ? !descending : numeric[k];
    sorted = k;
    const sign = descending ? -1 : 1, blank = v => v === null || v === undefined || v === "";
    order.sort((a, b) => {
      const x = value(a, k), y = value(b, k);
      if (blank(x) || blank(y)) return blank(x) - blank(y) || a - b;
      const by = isNumber(x) && isNumber(y) ? x - y : String(x).localeCompare(String(y), "en", {numeric: true});
      return sign * by || a - b;
    });
    [...head.children].forEach((cell, i) => i === k ? cell.setAttribute("aria-sort", descending ? "descending" : "ascending") : cell.removeAttribute("aria-sort"));
    show();
  }

  columns.forEach((column, k) => {
    const cell = element("th", "", head, numeric[k] ? {scope: "col", class: "right"} : {scope: "col"});
    element("button", column, cell, {type: "button"}).onclick = () => sort(k);
  });
  let chosen = null;
  state.listeners.push(index => {
    chosen?.classList.remove("chosen");
    chosen = rows.get(index);
    if (!chosen) return;
    chosen.classList.add("chosen");
    const area = table.parentElement;
    area.scrollTop = chosen.offsetTop - area.clientHeight / 2;
  });
  show();
  return {filter: matches => { only = matches; show(); }};
}

function plainTables() {
  for (const {title, columns, rows, note} of data.tables) {
    const section = element("section", "", byId("tables"));
    element("h2", title, section);
    if (columns.length) {
      const table = element("table", "", element("div", "", section, {class: "scroll tall", tabindex: "0"}));
      const head = element("tr", "", element("thead", "", table)), body = element("tbody", "", table);
      const numeric = columns.map((_, k) => rows.every(row => row[k] === null || isNumber(row[k])));
      columns.forEach((column, k) => element("th", column, head, numeric[k] ? {scope: "col", class: "right"} : {scope: "col"}));
      for (const row of rows) {
        const line = element("tr", "", body);
        row.forEach((v, k) => element("td", shown(v, columns[k]), line, numeric[k] ? {class: "right"} : {}));
      }
    }
    if (note) element("p", note, section, {class: "dim"});
  }
}
