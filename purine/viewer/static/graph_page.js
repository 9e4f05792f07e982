// A page with one graph and nothing else.

import { mountGraph } from "./graph.js";

mountGraph(document.getElementById("page"), JSON.parse(document.getElementById("document").textContent));
