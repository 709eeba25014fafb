// The head, the details of the selected node, and the start of every view.

function head() {
  const [text, good] = data.verdict, badge = byId("verdict");
  badge.textContent = text;
  badge.classList.add(good === null ? "plain" : good ? "good" : "bad");
  for (const sentence of data.lead) element("p", sentence, byId("lead"), {class: "lead"});
  const edges = nodes.reduce((sum, n) => sum + n.reads.length, 0);
  byId("count").textContent = `${nodes.length} nodes, ` + (edges ? `${edges} edges` : "no edges recorded: in order");
}

function detail() {
  const panel = byId("detail");
  const links = (title, indices) => {
    if (!indices.length) return;
    element("p", title, panel, {class: "dim"});
    for (const i of indices.slice(0, 40)) element("button", nodes[i].name, panel, {type: "button"}).onclick = () => select(i);
    if (indices.length > 40) element("span", `and ${indices.length - 40} more`, panel);
  };
  const show = index => {
    panel.replaceChildren();
    const node = nodes[index];
    if (!node) { element("p", "Select a node: click it, search, or click a row of the table.", panel, {class: "dim"}); return; }
    element("h3", node.name, panel);
    const list = element("dl", "", panel);
    data.columns.forEach((column, k) => {
      const text = shown(node.values[k], column);
      if (text === "") return;
      const entry = element("div", "", list);
      element("dt", column, entry);
      element("dd", text, entry);
    });
    links("Reads", node.reads);
    links("Is read by", node.readers);
  };
  state.listeners.push(show);
  show(-1);
}

head();
detail();
const graph = graphView(), table = nodeTable();
legend(graph.draw);
search(graph.draw, table.filter);
timeline();
roofline();
plainTables();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => select(state.chosen, {center: false}));
if (data.selected >= 0) select(data.selected);
document.documentElement.dataset.ready = "true";
