// The graph as a list, with search: what is shown where nothing draws it.

import { el, placeText, short } from "./dom.js";

const MOST = 300;

export function mountGraph(element, graph, bus) {
  const list = el("ol", { class: "nodes" });
  const found = el("p", { class: "quiet", "aria-live": "polite" });
  const show = (text) => {
    const ops = graph.ops.filter(([name, kind]) => `${name} ${kind}`.includes(text));
    list.replaceChildren(
      ...ops.slice(0, MOST).map(([name, kind, place]) => {
        const button = el("button", { type: "button", class: "link", click: () => bus.select(name, "graph") }, short(name, 100));
        const row = el("li", {}, button, el("span", { class: "quiet" }, ` ${short(kind, 60)}, ${placeText(place)}`));
        row.dataset.name = name;
        row.classList.toggle("marked", name === bus.selected);
        return row;
      }),
    );
    found.textContent = `${ops.length} of ${graph.ops.length} ops`;
  };
  bus.onSelect((name) => {
    for (const row of list.children) row.classList.toggle("marked", row.dataset.name === name);
  });
  const search = el("input", { type: "search", placeholder: "name or kind", "aria-label": "search", input: () => show(search.value) });
  element.append(search, found, list);
  show("");
}
