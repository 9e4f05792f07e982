// The graph of a page: boxes that open, search, details, heat. `mountGraph` is what the page calls.

import { bytesText, el, scaled, svg, timeText } from "./dom.js";
import { arrange } from "./graph_arrange.js";
import { Camera } from "./graph_camera.js";
import { details } from "./graph_details.js";
import { arrowHead, draw, legend } from "./graph_draw.js";
import { endsOf, seen } from "./graph_edges.js";
import { guide } from "./graph_guide.js";
import { totals } from "./graph_heat.js";
import { commonName, namesOf, numbersByName } from "./graph_names.js";

const SOURCE = "graph";
const UNITS = {
  work: (value) => scaled(value, "FLOP"), bytes: bytesText, memory: bytesText, time: timeText, waiting: timeText,
};
const OWN = ["work", "bytes"];
const MEASURED = {
  time: "Time of an iteration, all devices", waiting: "Devices wait for it in an iteration", memory: "Memory in the worst moment",
};

// Show a graph document in an element. `bus` links it to other views; without one it stands alone.
export function mountGraph(element, graph, bus = null) {
  return new GraphView(element, graph, bus);
}

class GraphView {
  constructor(element, graph, bus) {
    Object.assign(this, { graph, bus, selected: null, found: [], at: -1, heats: new Map() });
    this.ends = endsOf(graph.nodes);
    this.byName = numbersByName(graph);
    this.open = new Set(graph.open);
    this.heats.set("work", new Map(graph.nodes.map((node, at) => [at, node.type === "op" ? node.flops ?? 0 : 0])));
    this.heats.set("bytes", new Map(graph.nodes.map((node, at) => [at, node.type === "op" ? node.bytes : 0])));
    this.build(element);
    this.render();
    this.start();
    const paper = matchMedia("print");
    paper.addEventListener("change", () => this.camera.print(paper.matches ? this.picture : null));
    new ResizeObserver(([entry]) => {
      if (paper.matches) return;
      if (!this.width && entry.contentRect.width) this.start();
      this.width = entry.contentRect.width;
    }).observe(this.svg);
    bus?.onSelect((name, source) => source !== SOURCE && this.follow(name));
    bus?.onHeat((kind, values) => this.addHeat(kind, values));
  }

  start() {
    const [x, w] = this.picture.columns[Math.max(0, this.graph.columns.indexOf("forward"))];
    this.camera.start(this.picture, x + w / 2);
  }

  build(element) {
    const { graph } = this;
    const keys = "Arrow keys go from box to box, Enter opens a group, plus and minus zoom.";
    const spoken = `Graph of ${graph.ops} ops and ${graph.blobs} blobs. ${keys}`;
    this.viewport = svg("g");
    this.svg = svg(
      "svg",
      { class: "pg-canvas", role: "group", tabindex: 0, "aria-label": spoken, keydown: (event) => this.key(event) },
      arrowHead(), this.viewport,
    );
    this.camera = new Camera(this.svg, (to) => this.viewport.setAttribute("transform", to), (target) => this.tap(target));
    this.panel = el("aside", { class: "pg-details", "aria-label": "Details" });
    const main = el("div", { class: "pg-main" }, this.svg, this.panel);
    this.root = el("div", { class: "pg pg-view" }, this.toolbar(), legend(graph), main);
    element.append(this.root);
    this.tell();
  }

  toolbar() {
    this.search = el("input", {
      class: "pg-search", type: "search", placeholder: "Name or kind", "aria-label": "Search by name or kind; Enter goes to the next",
      input: () => this.find(),
      keydown: (event) => event.key === "Enter" && this.next(event.shiftKey ? -1 : 1),
    });
    this.count = el("span", { class: "pg-count", role: "status" });
    this.heat = el("select", { class: "pg-heat", "aria-label": "Heat", change: () => this.paint() });
    for (const [value, text] of [["", "Colours: role"], ["work", "Heat: work"], ["bytes", "Heat: bytes moved"]]) this.option(value, text);
    this.hottest = el("span", { class: "pg-count" });
    const button = (text, click, name = null) => el("button", { type: "button", "aria-label": name, click }, text);
    return el(
      "div",
      { class: "pg-bar", role: "toolbar", "aria-label": "Graph" },
      this.search, this.count, this.heat, this.hottest,
      button("Open all", () => this.openAll()),
      button("Close all", () => this.closeAll()),
      button("+", () => this.camera.zoom(1.3), "Zoom in"),
      button("\u2212", () => this.camera.zoom(1 / 1.3), "Zoom out"),
      button("Fit", () => this.camera.fit(this.picture)),
    );
  }

  option(value, text) {
    this.heat.append(el("option", { value }, text));
  }

  render() {
    this.picture = arrange(this.graph, this.open);
    this.drawn = draw(this.graph, this.picture, this.ends);
    this.viewport.replaceChildren(this.drawn.element);
    this.paint();
  }

  // Open or close a group, and keep it where it is on the screen.
  toggle(number) {
    const before = this.picture.boxes.get(number);
    if (!this.open.delete(number)) this.open.add(number);
    this.render();
    const after = this.picture.boxes.get(number);
    this.camera.pan((before.x - after.x) * this.camera.scale, (before.y - after.y) * this.camera.scale);
    this.drawn.boxes.get(number).focus({ preventScroll: true }); // the box that had it is gone
  }

  openAll() {
    this.graph.nodes.forEach((node, at) => node.type === "group" && at && this.open.add(at));
    this.render();
    this.camera.fit(this.picture);
  }

  closeAll() {
    this.open.clear();
    this.render();
    this.camera.fit(this.picture);
  }

  tap(target) {
    const box = target.closest?.("[data-node]");
    if (!box) return this.select(null);
    const number = Number(box.dataset.node);
    if (this.graph.nodes[number].type === "group") this.toggle(number);
    return this.select(number);
  }

  // Mark a node and show what is known of it; other views are told, unless they asked.
  select(number, { name = null, quiet = false } = {}) {
    this.selected = number;
    this.tell();
    this.paint();
    const node = number === null ? null : this.graph.nodes[number];
    if (quiet || node?.type === "group") return;
    this.bus?.select(node === null ? null : name ?? namesOf(this.graph, node)[0], SOURCE);
  }

  // Open what a node is in, show it and mark it.
  go(number, options = {}) {
    let shown = number;
    if (this.graph.nodes[number].parent === undefined) [shown = 0] = this.ends.makers.get(number) ?? [];
    for (let at = this.graph.nodes[shown].parent; at; at = this.graph.nodes[at].parent) this.open.add(at);
    this.render();
    if (this.picture.boxes.has(shown)) this.camera.show(this.picture.boxes.get(shown), this.camera.scale < 0.4);
    this.select(number, options);
  }

  // What another view selected.
  follow(name) {
    if (name === null) return this.select(null, { quiet: true });
    const number = this.byName.get(name);
    return number === undefined ? undefined : this.go(number, { quiet: true });
  }

  tell() {
    if (this.selected === null) {
      this.panel.replaceChildren(...guide(this.graph));
      return;
    }
    const choose = (name) => this.bus?.select(name, SOURCE);
    const [title, list] = details(this.graph, this.ends, this.selected, (to) => this.go(to), choose);
    const measured = [...this.heats].filter(([kind]) => !OWN.includes(kind)).map(([kind, values]) => {
      const value = totals(this.graph, values).get(this.selected);
      return value === undefined ? null : [el("dt", {}, MEASURED[kind] ?? kind), el("dd", {}, heatText(kind, value))];
    });
    list.prepend(...measured.filter((line) => line !== null).flat());
    this.panel.replaceChildren(title, list);
  }

  find() {
    const text = this.search.value.trim().toLowerCase();
    const has = (value) => String(value ?? "").toLowerCase().includes(text);
    this.found = [];
    this.at = -1;
    if (text) {
      this.graph.nodes.forEach((node, at) => {
        if (!at || (node.type !== "group" && node.parent === undefined)) return;
        if (node.type === "group" ? node.label.toLowerCase() === text : has(commonName(this.graph, node)) || has(node.kind) || namesOf(this.graph, node).some(has)) this.found.push(at);
      });
    }
    const rank = (at) => { // what is called exactly so comes first, and of it the forward
      const { label, pieces = [], type, column } = this.graph.nodes[at];
      const exact = [label, pieces.join("")].some((name) => name.toLowerCase() === text);
      return (exact ? 0 : 4) + (type === "blob" ? 2 : 0) + (column === "forward" ? 0 : 1);
    };
    this.found.sort((a, b) => rank(a) - rank(b) || a - b);
    this.count.textContent = text ? `${this.found.length} found` : "";
    this.paint();
  }

  next(step) {
    if (!this.found.length) return;
    this.at = (this.at + step + this.found.length) % this.found.length;
    this.go(this.found[this.at]);
    this.count.textContent = `${this.at + 1} of ${this.found.length}`;
  }

  addHeat(kind, values) {
    const of = new Map();
    for (const [name, value] of values) {
      const number = this.byName.get(name);
      if (number !== undefined) of.set(number, (of.get(number) ?? 0) + value);
    }
    if (!this.heats.has(kind)) this.option(kind, `Heat: ${kind}`);
    this.heats.set(kind, of);
    this.paint();
  }

  // Marks of selection, search and heat on what is drawn.
  paint() {
    const { boxes, edges } = this.drawn;
    let marked = this.selected;
    if (marked !== null && this.graph.nodes[marked].parent === undefined) [marked = null] = this.ends.makers.get(marked) ?? [];
    if (marked !== null) marked = seen(this.graph, this.picture, marked);
    const hits = new Set();
    for (const number of this.found) {
      for (let at = number; at; at = this.graph.nodes[at].parent) hits.add(at);
    }
    const heat = this.heat.value ? totals(this.graph, this.heats.get(this.heat.value)) : null;
    const shown = heat && Math.max(1e-30, ...[...boxes.keys()].filter((n) => !this.picture.boxes.get(n).isOpen).map((n) => heat.get(n) ?? 0));
    for (const [number, box] of boxes) {
      box.classList.toggle("pg-marked", number === marked);
      box.classList.toggle("pg-dim", this.found.length > 0 && !hits.has(number));
      box.setAttribute("tabindex", number === (marked ?? boxes.keys().next().value) ? 0 : -1);
      const value = heat && !this.picture.boxes.get(number).isOpen ? heat.get(number) ?? 0 : null;
      for (const shape of box.querySelectorAll(":scope > .pg-shape")) {
        const part = value === null ? 0 : Math.round(70 * Math.sqrt(value / shown));
        shape.style.fill = value === null ? "" : `color-mix(in srgb, var(--pg-hot) ${part}%, var(--pg-paper))`;
      }
    }
    for (const edge of edges) {
      edge.line.classList.toggle("pg-edge-marked", marked !== null && (edge.source === marked || edge.target === marked));
    }
    this.root.classList.toggle("pg-heated", heat !== null);
    const scale = [el("span", { class: "pg-scale" }), ` hottest: ${heatText(this.heat.value, shown)}`];
    this.hottest.replaceChildren(...(heat ? scale : []));
  }

  key(event) {
    const camera = this.camera;
    const focused = event.target.closest?.("[data-node]");
    const number = focused ? Number(focused.dataset.node) : null;
    const arrows = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in arrows && (event.shiftKey || this.picture.boxes.size === 0)) camera.pan(...arrows[event.key].map((v) => -60 * v));
    else if (event.key in arrows) this.step(number, arrows[event.key]);
    else if ((event.key === "Enter" || event.key === " ") && number !== null) {
      this.tap(focused);
    } else if (event.key === "+" || event.key === "=") camera.zoom(1.2);
    else if (event.key === "-") camera.zoom(1 / 1.2);
    else if (event.key === "0") camera.fit(this.picture);
    else if (event.key === "/") this.search.focus();
    else if (event.key === "Escape") this.select(null);
    else return;
    event.preventDefault();
  }

  // Go to the nearest box in a direction.
  step(number, [dx, dy]) {
    const from = number === null ? null : this.picture.boxes.get(number);
    let best = null, least = Infinity;
    for (const [other, box] of this.picture.boxes) {
      if (other === number) continue;
      const x = from ? box.x + box.w / 2 - from.x - from.w / 2 : box.x;
      const y = from ? box.y + box.h / 2 - from.y - from.h / 2 : box.y;
      const ahead = x * dx + y * dy, aside = Math.abs(x * dy) + Math.abs(y * dx);
      const cost = from ? ahead + 2.5 * aside : x + y;
      if ((!from || ahead > 1) && cost < least) [best, least] = [other, cost];
    }
    if (best === null) return;
    this.camera.show(this.picture.boxes.get(best));
    for (const [other, box] of this.drawn.boxes) box.setAttribute("tabindex", other === best ? 0 : -1);
    this.drawn.boxes.get(best).focus({ preventScroll: true });
  }
}

function heatText(kind, value) {
  return Object.hasOwn(UNITS, kind) ? UNITS[kind](value) : scaled(value, "");
}
