// What links the views: the node that is marked, and how hot nodes are. Views know only the bus.

const PARTS = /^(?:worker\d+\/)?(?:(?:replica|micro)\d+\/)*/;

/** The name of a node without its worker, replica and micro-batch: what they have in common. */
export function template(name) {
  return name.replace(PARTS, "");
}

export class Bus {
  constructor() {
    this.selected = null;
    this.heats = {};
    this._selecting = new Set();
    this._heating = new Set();
  }

  /** Mark a node by its name in the graph, or none (null). `source` says which view asks. */
  select(name, source) {
    this.selected = name;
    for (const listener of [...this._selecting]) listener(name, source);
  }

  /** Call `listener(name, source)` at each selection; returns a function that ends that. */
  onSelect(listener) {
    this._selecting.add(listener);
    return () => this._selecting.delete(listener);
  }

  /** Publish a heat: a `Map` from names of nodes to numbers, such as `time` in ns an iteration. */
  heat(kind, values) {
    this.heats[kind] = values;
    for (const listener of [...this._heating]) listener(kind, values);
  }

  /** Call `listener(kind, values)` for each heat, also for those that are known already. */
  onHeat(listener) {
    this._heating.add(listener);
    for (const [kind, values] of Object.entries(this.heats)) listener(kind, values);
    return () => this._heating.delete(listener);
  }
}
