// Opens the page that the address names; keys; following a run.
import { el, href, link, warning } from "./dom.js";
import { exported, get, place } from "./source.js";
import { startPage } from "./start.js";
import { stepPage } from "./step.js";
import { designPage, taskPage } from "./task.js";
import { executionPage } from "./execution.js";
import { callPage } from "./call.js";
import { comparePage } from "./compare.js";
import { findPage } from "./find.js";

const EVERY_MS = 2000;
const HELP = [
  ["j, k", "next, previous row"],
  ["Enter", "open it"],
  ["u", "up one level"],
  ["[ , ]", "previous, next of the same level"],
  ["/", "filter"],
  ["1 to 4", "colours of tokens"],
  ["f", "follow a running job"],
  ["h", "start page"],
  ["?", "this help"],
];
const bar = document.getElementById("bar"),
  page = document.getElementById("page"),
  help = document.getElementById("help");
let run = null,
  open = null,
  here = [],
  follows = false,
  loops = 0,
  opening = 0;

/** Builds the page of the address. `still`: the same page with new contents, so it does not scroll. */
async function show(still = false) {
  const mine = ++opening;
  const began = performance.now();
  page.setAttribute("aria-busy", "true");
  let made;
  here = [];
  try {
    const { parts, query } = place();
    here = parts;
    run ??= await get("run");
    made = await pageOf(parts, query);
  } catch (error) {
    made = { title: "not there", up: here.slice(0, -1), previous: null, next: null, node: warning(error.message) };
  }
  if (mine !== opening) return;
  open = made;
  page.replaceChildren(made.node);
  page.removeAttribute("aria-busy");
  page.dataset.opened = location.hash;
  page.dataset.took = (performance.now() - began).toFixed(0);
  document.title = `${made.title} – ${run?.name ?? "metaagent_x"}`;
  drawBar(here);
  if (!still) {
    scrollTo(0, 0);
    page.focus({ preventScroll: true });
  }
}

function pageOf(parts, query) {
  if (parts.length === 0) return startPage(run, query);
  if (parts[0] === "find") return findPage(run, parts, query);
  if (parts[0] === "compare" && parts.length === 4) return comparePage(run, parts.slice(1));
  const pages = {
    1: stepPage,
    2: taskPage,
    3: designPage,
    4: parts[3] === "design" ? callPage : executionPage,
    5: callPage,
  };
  if (!pages[parts.length]) throw new Error("there is no page at this address");
  return pages[parts.length](run, parts, query);
}

function drawBar(parts, heart = null) {
  const names = ["step", "task", "design", "execution", "call"];
  const trail = /^\d+$/.test(parts[0] ?? "")
    ? parts.map((part, i) => [
        el("span", { class: "note" }, " › "),
        link(parts.slice(0, i + 1), part === "design" ? "call" : `${names[i]} ${part}`),
      ])
    : parts.slice(0, 1).map((part) => [" › ", part]);
  const to = (where, text, title) =>
    where ? el("a", { href: href(where), title }, text) : el("span", { class: "note" }, text);
  const state = heart?.phase ? `step ${heart.step}, ${heart.phase}` : "";
  bar.replaceChildren(
    ...[
      el("nav", { "aria-label": "place" }, el("a", { href: "#/", class: "home" }, run?.name ?? "start"), trail),
      el(
        "nav",
        { "aria-label": "tools" },
        el("span", { class: "note", id: "state" }, state),
        to(open?.previous, "← [", "previous"),
        to(open?.next, "] →", "next"),
        el("a", { href: "#/find" }, "find"),
        !exported && el("button", { id: "follow", "aria-pressed": String(follows), onclick: follow }, "follow"),
        el("button", { onclick: () => help.showModal() }, "?"),
      ),
    ].filter(Boolean),
  );
}

/** While following, a change of the run is looked for every other second, and the start page is built anew. */
async function follow() {
  const mine = ++loops;
  let mark = null; // what the page shows may be older than the first pulse
  follows = !follows;
  drawBar(here);
  while (follows && mine === loops) {
    try {
      const pulse = await get("pulse");
      if (mine !== loops) break;
      if (pulse.mark !== mark) {
        run = await get("run");
        if (here.length === 0) await show(true);
      }
      mark = pulse.mark;
      if (mine === loops) drawBar(here, pulse.heartbeat);
    } catch (error) {
      document.getElementById("state").textContent = error.message;
    }
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
}

function go(where) {
  if (where) location.hash = href(where);
}

/** Moves the focus among the links that open rows. */
function walk(by) {
  const rows = [...page.querySelectorAll("a.go")];
  const at = rows.indexOf(document.activeElement);
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (typing && event.key !== "Escape") return;
  const actions = {
    j: () => walk(1),
    k: () => walk(-1),
    u: () => go(open?.up),
    "[": () => go(open?.previous),
    "]": () => go(open?.next),
    h: () => go([]),
    "/": () => (page.querySelector(".filter select, .filter input") ?? { focus: () => go(["find"]) }).focus(),
    f: () => !exported && follow(),
    "?": () => help.showModal(),
    Escape: () => typing && event.target.blur(),
    ...open?.keys,
  };
  if (!(event.key in actions)) return;
  actions[event.key]();
  if (event.key !== "Escape") event.preventDefault();
});
addEventListener("hashchange", () => show());
help.append(
  el("h2", {}, "Keys"),
  el(
    "dl",
    {},
    HELP.map(([key, what]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, what))),
  ),
  el("form", { method: "dialog" }, el("button", {}, "close")),
);
show();
