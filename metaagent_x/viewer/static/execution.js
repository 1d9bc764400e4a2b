// An execution: its drawing, then its turns in order, with what each agent saw, said and had run.
import { credit, el, facts, href, link, number, tag, warning } from "./dom.js";
import { get } from "./source.js";
import { drawing } from "./graph.js";
import { flagTags } from "./table.js";

export async function executionPage(run, [step, task, design, execution]) {
  const answer = await get(`${step}/${task}/${design}/${execution}`);
  const line = answer.line;
  const turns = [...new Set(answer.calls.map((call) => call.turn))].sort((a, b) => a - b);
  const shown = answer.calls.some((call) => call.text === answer.answer);
  const open = (path) =>
    document.getElementById("call " + path)?.scrollIntoView({ behavior: "smooth", block: "start" });
  const place = answer.siblings.indexOf(answer.execution);
  return {
    title: `execution ${answer.execution}`,
    up: [step, task, design],
    previous: place > 0 ? [step, task, design, answer.siblings[place - 1]] : null,
    next: place + 1 < answer.siblings.length ? [step, task, design, answer.siblings[place + 1]] : null,
    node: el(
      "div",
      {},
      el(
        "h1",
        {},
        `Execution ${answer.execution} `,
        el("small", { class: "note" }, `of design ${answer.design}, ${answer.task_id}`),
      ),
      facts([
        ["reward", number(line.reward)],
        ["verdict", line.verdict || "not graded"],
        [
          "tests passed",
          answer.kind !== "code" || answer.fraction === null ? null : `${(100 * answer.fraction).toFixed(0)} %`,
        ],
        ["format", answer.format === null ? null : number(answer.format)],
        ["structure", line.structure],
        ["status", line.status],
        ["calls", answer.calls.length],
        ["flags", line.flags.length ? flagTags(line) : null],
      ]),
      answer.reason && warning(answer.reason),
      drawing(answer, open),
      el(
        "p",
        { class: "note" },
        "A lane is one agent. An arrow leads from a text to the call that saw it. ",
        "The bar at the left of a call has the sign of its advantage.",
      ),
      turns.map((turn) =>
        el(
          "section",
          {},
          el("h2", {}, `Turn ${turn + 1}`),
          el(
            "div",
            { class: "turns" },
            answer.calls.filter((call) => call.turn === turn).map((call) => turnCard(answer, call)),
          ),
        ),
      ),
      answer.tools.filter((tool) => tool.after === "").map(toolRun),
      !answer.recorded &&
        el("p", { class: "note" }, "This trace does not hold tool runs: it was written by an older version."),
      el("h2", {}, "Answer"),
      shown
        ? el(
            "p",
            {},
            "The text of ",
            answer.answered.map((path) => [link([step, task, design, execution, path], `call ${path}`), " "]),
          )
        : el("pre", {}, answer.answer || "(none)"),
    ),
  };
}

function turnCard(answer, call) {
  const sources = answer.edges.filter((edge) => edge.target === call.path);
  const address = href([answer.step, answer.task, answer.design, answer.execution, call.path]);
  return el(
    "article",
    { class: "turn-card", id: "call " + call.path },
    el(
      "header",
      {},
      el("b", { class: "executor" }, call.agent),
      " ",
      el("a", { class: "go", href: address }, `call ${call.path}`),
      " ",
      call.trained && ["advantage ", credit(call.advantage)],
      !call.trained && el("span", { class: "note" }, "not trained on"),
      el(
        "div",
        { class: "note" },
        `${call.prompt_tokens} prompt + ${call.sampled_tokens} sampled tokens, ${call.finish_reason}, `,
        `mean log-prob ${number(call.mean_logprob, 3)}`,
        call.prompt_cut && [" ", tag("prompt_cut", "flag")],
        call.finish_reason === "length" && [" ", tag("truncated", "flag")],
      ),
    ),
    call.told && el("details", {}, el("summary", {}, "role prompt"), el("pre", {}, call.told)),
    el(
      "div",
      { class: "side" },
      "saw",
      sources.length > 0 &&
        el(
          "span",
          { class: "note" },
          " the text of ",
          sources.map((s, i) => [i > 0 && ", ", `${s.source} (${s.how})`]),
        ),
    ),
    call.messages.map((message) => el("pre", { class: "saw" }, message)),
    el("div", { class: "side" }, "said"),
    el("pre", {}, call.text),
    answer.tools.filter((tool) => tool.after === call.path).map(toolRun),
  );
}

function toolRun(run) {
  return el(
    "details",
    { class: "toolrun", open: true },
    el("summary", {}, el("b", {}, run.tool), ` ${run.path} `, tag(run.status, run.status === "ok" ? "" : "flag")),
    el("details", {}, el("summary", {}, "program"), el("pre", {}, run.program)),
    run.stdin && el("details", {}, el("summary", {}, "standard input"), el("pre", {}, run.stdin)),
    el("div", { class: "side" }, "output"),
    el("pre", {}, run.output || "(nothing)"),
  );
}
