// The page: reads its document, and mounts a view when its tab is first opened.

import { Bus } from "./bus.js";
import { el, short } from "./dom.js";
import { mountGraph } from "./graph.js";
import { follow } from "./live.js";
import { heatOf, mountMemory } from "./memory.js";
import { mountOverview } from "./overview.js";
import { mountTimeline } from "./timeline.js";
import { mountTraffic } from "./traffic.js";

const VIEWS = [
  { key: "overview", title: "Overview", has: () => true },
  { key: "graph", title: "Graph", has: (part) => part.graph, mount: (at, part, bus) => mountGraph(at, part.graph, bus) },
  { key: "timeline", title: "Timeline", has: (part) => part.timeline, mount: mountTimeline },
  { key: "memory", title: "Memory", has: (part) => part.memory?.length, mount: mountMemory },
  { key: "traffic", title: "Traffic", has: (part) => part.traffic, mount: mountTraffic },
];

const IDLE = 1500; // ms

class Page {
  constructor(element, content) {
    this.element = element;
    this.bus = new Bus();
    this.show(content);
    addEventListener("hashchange", () => this.open(location.hash.slice(1)));
    addEventListener("beforeprint", () => this.views.forEach((view) => this.mount(view)));
    if (!content.live) setTimeout(() => this._mountRest(), IDLE);
  }

  /** Mount the other views before they are asked for: a browser that prints does not wait for them. */
  async _mountRest() {
    for (const view of this.views) await this.mount(view);
  }

  /** Show a document; a page that is updated shows one after the other. */
  show(content) {
    this.content = content;
    this.parts = content.parts;
    this.bus = new Bus();
    this.views = VIEWS.filter((view) => this.parts.some((part) => view.has(part)));
    this.mounted = new Map();
    const nets = this.parts.every((part) => part.sort === "net"); // a net is looked at for its graph
    this.first = this.views.find((view) => nets && view.key === "graph") ?? this.views[0];
    const tabs = el("div", { role: "tablist", "aria-label": "views", class: "tabs", keydown: (event) => this._press(event) });
    const panels = el("main", {});
    for (const view of this.views) {
      const id = `view-${view.key}`;
      const tab = { type: "button", role: "tab", id: `tab-${view.key}`, "aria-controls": id, click: () => this.open(view.key) };
      tabs.append(el("button", tab, view.title));
      const panel = { id, role: "tabpanel", "aria-labelledby": `tab-${view.key}`, hidden: true, tabindex: -1 };
      panels.append(el("section", panel, el("h2", { class: "print-only" }, view.title)));
    }
    this.element.replaceChildren(this._head(), el("nav", {}, tabs, this._selection()), panels);
    this.open(location.hash.slice(1));
  }

  /** Show newer curves of a run that is going on. */
  renew(curves) {
    this.parts[0].curves = curves;
    const panel = document.getElementById("view-overview");
    const scroll = scrollY;
    panel.replaceChildren(panel.firstElementChild);
    mountOverview(panel, this.parts);
    scrollTo(0, scroll);
  }

  _head() {
    const { parts } = this;
    const sorts = { run: "Run", net: "Net", trace: "Trace", prediction: "Prediction" };
    const names = parts.map((part) => short(part.name, 90)).join(" and ");
    const sort = parts.length > 1 ? "Comparison of" : sorts[parts[0]?.sort] ?? "Page";
    const title = el("h1", {}, el("span", { class: "quiet" }, `${sort} `), names);
    this.status = el("div", { class: "status" });
    return el("header", {}, title, this.status);
  }

  /** The marked node, with ways to see it in the other views. */
  _selection() {
    const name = el("strong");
    const go = (key) => el("button", { type: "button", click: () => this.open(key) }, `show in ${key}`);
    const keys = this.views.map((view) => view.key).filter((key) => key === "graph" || key === "timeline");
    this.ways = new Map(keys.map((key) => [key, go(key)]));
    const clear = el("button", { type: "button", click: () => this.bus.select(null, "page") }, "clear");
    const bar = el("div", { class: "selection", hidden: true }, "Marked: ", name, ...this.ways.values(), clear);
    this.bus.onSelect((node) => {
      bar.hidden = node === null;
      name.textContent = node === null ? "" : short(node, 120);
    });
    return bar;
  }

  /** Open a view by its key; an unknown one opens the one to begin with. */
  open(key) {
    const view = this.views.find((one) => one.key === key) ?? this.first;
    for (const one of this.views) {
      document.getElementById(`view-${one.key}`).hidden = one !== view;
      const tab = document.getElementById(`tab-${one.key}`);
      tab.setAttribute("aria-selected", one === view);
      tab.tabIndex = one === view ? 0 : -1;
    }
    for (const [way, button] of this.ways) button.hidden = way === view.key;
    if (location.hash.slice(1) !== view.key) history.replaceState(null, "", `#${view.key}`);
    return this.mount(view);
  }

  /** Mount a view once; the promise ends when it can be used. */
  mount(view) {
    if (!this.mounted.has(view.key)) this.mounted.set(view.key, this._mount(view));
    return this.mounted.get(view.key);
  }

  async _mount(view) {
    const panel = document.getElementById(`view-${view.key}`);
    try {
      if (view.key === "overview") mountOverview(panel, this.parts);
      else {
        const alike = view.key === "graph" && same(this.parts.map((part) => part.graph));
        for (const part of this.parts.filter((one) => view.has(one)).slice(0, alike ? 1 : undefined)) {
          const place = el("div", { class: `part ${view.key}` });
          if (this.parts.length > 1 && !alike) place.append(el("h2", {}, short(part.name, 90)));
          panel.append(place);
          const found = await view.mount(place, part, this.bus);
          if (view.key === "timeline" && part === this.parts[0]) {
            for (const [kind, of] of Object.entries(found.events.heats())) this.bus.heat(kind, of);
          }
        }
      }
      if (view.key === "graph") this._warm();
      if (view.key === "graph" && this.bus.selected !== null) this.bus.select(this.bus.selected, "page");
    } catch (error) {
      panel.append(el("p", { class: "note" }, `This view failed: ${short(error.message, 400)}`));
      throw error;
    }
    panel.dataset.ready = "yes";
    performance.mark(`ready-${view.key}`);
  }

  /** Find out how hot the nodes of the graph are: from the timeline, and the worst moments. */
  _warm() {
    if (this.parts[0].memory?.length) this.bus.heat("memory", heatOf(this.parts[0]));
    const timeline = this.views.find((view) => view.key === "timeline");
    if (timeline) setTimeout(() => this.mount(timeline));
  }

  _press(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const at = this.views.findIndex((view) => `tab-${view.key}` === event.target.id);
    const next = this.views[(at + by + this.views.length) % this.views.length];
    this.open(next.key);
    document.getElementById(`tab-${next.key}`).focus();
  }
}

/** Whether graphs are the same, wherever the files are that they were read from. */
function same(values) {
  const text = (value) => JSON.stringify(value, (key, inner) => (key === "where" ? undefined : inner));
  return new Set(values.map(text)).size === 1;
}

const content = JSON.parse(document.getElementById("document").textContent);
document.getElementById("document").remove();
const page = new Page(document.getElementById("page"), content);
if (content.live) follow(page, content.live);
