// An execution as a drawing: agents as lanes, turns from left to right, an arrow where one saw another's text.
import { el, href, number, shape, visible } from "./dom.js";

const LANE = 74,
  TURN = 212,
  WIDTH = 152,
  HEIGHT = 50,
  LABEL = 118,
  TOP = 26;

/** The drawing of an `execution` answer. `open(path)`: what a click on a call does; by default its page opens. */
export function drawing(answer, open = null) {
  const turns = Math.max(0, ...answer.calls.map((call) => call.turn)) + 1;
  const width = LABEL + TURN * turns + 170,
    height = TOP + LANE * answer.lanes.length + 8;
  const at = new Map(
    answer.calls.map((call) => [call.path, { x: LABEL + 66 + call.turn * TURN, y: TOP + call.lane * LANE + 10 }]),
  );
  const middle = TOP + (answer.lanes.length * LANE) / 2 - 2;
  const start = { x: LABEL, y: middle },
    end = { x: LABEL + 66 + turns * TURN, y: middle };
  const seen = new Set(answer.edges.map((edge) => edge.target));
  const lanes = answer.lanes.map((name, i) => [
    shape("rect", { class: "lane", x: 0, y: TOP + i * LANE, width, height: LANE - 6, rx: 6 }),
    shape("text", { class: "label", x: 10, y: TOP + i * LANE + 40 }, cut(name, 12)),
  ]);
  const heads = Array.from({ length: turns }, (_, i) =>
    shape("text", { class: "small", x: LABEL + 66 + i * TURN, y: 16 }, `turn ${i + 1}`),
  );
  const voters = new Set(answer.votes.map(([member]) => member));
  const lines = [
    ...answer.calls
      .filter((call) => !seen.has(call.path))
      .map((call) => arrow(start, left(at.get(call.path)), "task", "the task")),
    ...answer.edges
      .filter((e) => at.has(e.source) && at.has(e.target))
      .map((e) =>
        arrow(
          right(at.get(e.source)),
          left(at.get(e.target)),
          e.how,
          `${e.target} saw the text of ${e.source} (${e.how})`,
        ),
      ),
    ...[...voters]
      .filter((path) => at.has(path) && !answer.answered.includes(path))
      .map((path) => arrow(right(at.get(path)), end, "vote", `${path} took part in the vote`)),
    ...answer.answered
      .filter((path) => at.has(path))
      .map((path) => arrow(right(at.get(path)), end, "answer", `the answer is that of ${path}`)),
  ];
  const nodes = answer.calls.map((call) => node(answer, call, at.get(call.path), open));
  const picture = shape(
    "svg",
    {
      class: "graph",
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": `${answer.calls.length} calls by ${answer.lanes.length} agents`,
    },
    shape(
      "defs",
      {},
      shape(
        "marker",
        {
          id: "tip",
          viewBox: "0 0 8 8",
          refX: 7,
          refY: 4,
          markerWidth: 7,
          markerHeight: 7,
          orient: "auto-start-reverse",
        },
        shape("path", { d: "M0 0 L8 4 L0 8 z" }),
      ),
    ),
    lanes,
    heads,
    lines,
    nodes,
    shape(
      "g",
      { class: "end" },
      shape("circle", { cx: start.x, cy: start.y, r: 7 }),
      shape("text", { class: "small", x: start.x - 12, y: start.y + 22 }, "task"),
    ),
    shape(
      "g",
      { class: "end" },
      shape("rect", { x: end.x, y: end.y - 20, width: 92, height: 40, rx: 20 }),
      shape("text", { x: end.x + 46, y: end.y + 5, "text-anchor": "middle" }, `reward ${number(answer.line.reward)}`),
    ),
  );
  return el("div", { class: "drawing", tabindex: 0 }, picture);
}

function node(answer, call, { x, y }, open) {
  const runs = answer.tools.filter((run) => run.after === call.path);
  const side = call.trained && call.advantage > 0 ? "up" : call.trained && call.advantage < 0 ? "down" : "flat";
  const address = href([answer.step, answer.task, answer.design, answer.execution, call.path]);
  return shape(
    "a",
    {
      href: address,
      class: "call",
      onclick:
        open &&
        ((event) => {
          event.preventDefault();
          open(call.path);
        }),
    },
    shape("title", {}, visible(call.text.slice(0, 300))),
    shape("rect", { class: "box", x, y, width: WIDTH, height: HEIGHT, rx: 7 }),
    shape("rect", { class: side, x, y, width: 5, height: HEIGHT, rx: 2 }),
    shape("text", { x: x + 13, y: y + 20 }, cut(last(call.text), 17)),
    shape("text", { class: "small", x: x + 13, y: y + 38 }, `${call.path} · ${call.sampled_tokens} tokens`),
    runs.length > 0 &&
      shape(
        "g",
        { class: "tool" },
        shape("rect", { x: x + 48, y: y + HEIGHT - 4, width: 96, height: 16, rx: 8 }),
        shape(
          "text",
          { class: "small", x: x + 96, y: y + HEIGHT + 8, "text-anchor": "middle" },
          `${runs[0].tool}${runs.length > 1 ? " ×" + runs.length : ""}`,
        ),
      ),
  );
}

function arrow(from, to, how, title) {
  const bend = Math.max(24, Math.abs(to.x - from.x) / 2.4);
  return shape(
    "g",
    { class: "edge " + how },
    shape("title", {}, title),
    shape("path", {
      d: `M${from.x} ${from.y} C${from.x + bend} ${from.y} ${to.x - bend} ${to.y} ${to.x} ${to.y}`,
      "marker-end": "url(#tip)",
    }),
    ["judge", "tests", "vote"].includes(how) &&
      shape("text", { class: "small", x: to.x - 12, y: to.y - 8, "text-anchor": "end" }, how),
  );
}

const left = ({ x, y }) => ({ x: x - 2, y: y + HEIGHT / 2 });
const right = ({ x, y }) => ({ x: x + WIDTH, y: y + HEIGHT / 2 });
const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

/** What a text comes to: its last boxed answer, else its last line that says something. */
function last(text) {
  const boxed = text.match(/\\boxed\{[^{}]*\}/g);
  if (boxed) return boxed.at(-1);
  const lines = text.split("\n").filter((line) => line.trim() && !line.trim().startsWith("```"));
  return lines.length ? lines.at(-1).trim() : "(empty)";
}
