// A page of a run that is going on: asks its own server for news, and shows what the hosts do.

import { el, short } from "./dom.js";

const EVERY = 1000; // ms
const PATIENCE = 5;
const STUCK = 10; // s

export function follow(page, live) {
  let [rows, version, failed] = [live.rows, live.version, 0];
  const ask = async () => {
    if (document.hidden) return EVERY; // nobody looks
    const found = await fetch(`state?token=${live.token}`);
    if (!found.ok) throw new Error(`the server answered ${found.status}`);
    const news = await found.json();
    if (news.version !== version) {
      [rows, version] = [news.rows, news.version];
      const fresh = await fetch(`document?token=${live.token}`);
      if (fresh.ok) refresh(page, await fresh.json());
    } else if (news.rows !== rows) {
      const fresh = await fetch(`curves?token=${live.token}`);
      if (!fresh.ok) throw new Error(`the server answered ${fresh.status}`);
      const told = await fresh.json();
      rows = told.rows; // may be behind: metrics that take long to read are read seldom
      page.renew(told.curves);
    }
    showStatus(page.status, news, page.parts[0].iterations);
    failed = 0;
    return news.ended ? null : EVERY;
  };
  const turn = async () => {
    let next = EVERY;
    try {
      next = await ask();
    } catch {
      failed++;
      tell(page.status, "The run does not answer: it has ended, or its machine cannot be reached.", true);
      if (failed >= PATIENCE) next = null;
    }
    if (next !== null) setTimeout(turn, next);
  };
  setTimeout(turn, EVERY / 4);
}

/** Show a newer document, without losing the tab or the marked node. */
function refresh(page, content) {
  const marked = page.bus.selected;
  const scroll = scrollY;
  page.show(content);
  if (marked !== null) page.bus.select(marked, "page");
  scrollTo(0, scroll);
}

/** What is told of the run: a sentence, and folded what each host does, which opens if the run is stuck. */
function showStatus(element, news, total) {
  const stuck = !news.ended && news.stuck > STUCK;
  const wasStuck = element.querySelector(".note") !== null;
  let text = news.ended ? "The run has ended." : "The run goes on.";
  if (stuck) text = "Nothing was completed for a while: below is what the hosts wait for.";
  const fold = tell(element, text, stuck);
  if (stuck && !wasStuck) fold.open = true;
  fold.hidden = false;
  const [summary, list] = fold.children;
  const at = news.hosts.map((host) => `${short(host.host, 40)} ${host.status ? `iteration ${host.status.iteration}` : "did not answer"}`);
  const since = stuck ? `, for ${Math.round(news.stuck)} s` : "";
  const iteration = news.iteration.toLocaleString("en");
  const of = total ? ` of ${total.toLocaleString("en")}` : "";
  summary.textContent = `${iteration}${of} iterations are complete${since}${at.length ? `: ${at.join(", ")}` : ""}`;
  list.replaceChildren(...news.hosts.map(hostItem));
}

/** Set the sentence; returns the fold below it, which keeps what it has. */
function tell(element, text, isNote) {
  if (!element.childElementCount) {
    element.append(el("p", { role: "status" }), el("details", { hidden: true }, el("summary"), el("ul", { class: "hosts" })));
  }
  const [head, fold] = element.children;
  head.classList.toggle("note", isNote);
  if (head.textContent !== text) head.textContent = text; // it is read aloud only when it changes
  return fold;
}

function hostItem(host) {
  const does = host.status ? host.status.does : ["did not answer"];
  const item = el("li", {}, el("strong", {}, short(host.host, 40)), `: ${short(does[0], 200)}`);
  if (does.length > 1) item.append(el("ul", {}, ...does.slice(1).map((line) => el("li", {}, short(line, 200)))));
  return item;
}
