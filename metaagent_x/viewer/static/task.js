// A task: its M x N grid, and each of its designs with the script.
import { credit, el, facts, href, level, link, number, tag, warning } from "./dom.js";
import { get } from "./source.js";
import { flagTags, rolloutColumns, table } from "./table.js";
import { drawing } from "./graph.js";

export async function taskPage(run, [step, task]) {
  const answer = await get(`${step}/${task}`);
  const others = el("p", { class: "note" }, "looking for the task in other steps …");
  get(`same/${step}/${task}`)
    .then((same) => {
      const found = same.steps.filter((s) => s.step !== answer.step);
      others.replaceChildren(
        ...(found.length
          ? [
              "Compare with ",
              ...found.flatMap((s) => [
                link(["compare", step, task, s.step], `step ${s.step}`),
                ` (mean ${number(s.reward)}) `,
              ]),
            ]
          : ["No other step has this task."]),
      );
      others.append(...same.problems.map(warning));
    })
    .catch((error) => others.replaceChildren(warning(error.message)));
  return {
    title: answer.task_id,
    up: [step],
    previous: answer.task > 0 ? [step, answer.task - 1] : null,
    next: answer.task + 1 < answer.tasks ? [step, answer.task + 1] : null,
    node: el(
      "div",
      {},
      el("h1", {}, answer.task_id),
      facts([
        ["kind", answer.kind],
        ["step", link([step], step)],
        ["designs", answer.designs.length],
      ]),
      el("pre", { class: "question" }, answer.question),
      others,
      el("h2", {}, "Designs × executions"),
      grid(answer, true),
    ),
  };
}

/** The grid of a task: a row a design, reward as colour. */
export function grid(answer, withScripts) {
  const numbers = Array.from({ length: answer.executions }, (_, i) => i);
  const most = Math.max(1, ...answer.designs.flatMap((d) => d.executions.map((e) => e.reward ?? 0)));
  const row = (design) => {
    const line = design.line;
    return el(
      "tr",
      {},
      el(
        "th",
        { scope: "row" },
        el(
          "a",
          { class: "go designer", href: href([answer.step, answer.task, design.design]) },
          `design ${design.design}`,
        ),
        el("br"),
        line && [
          el("small", {}, "reward ", number(line.reward)),
          line.trained && [el("small", {}, ", advantage "), credit(line.advantages[0])],
        ],
        line && line.problem && el("div", { class: "down small" }, line.problem),
      ),
      numbers.map((number_) =>
        box(
          answer,
          design.executions.find((e) => e.execution === number_),
          most,
        ),
      ),
      withScripts && el("td", { class: "left" }, el("pre", { class: "peek" }, design.script)),
    );
  };
  return el(
    "div",
    { class: "table" },
    el(
      "table",
      { class: "grid" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", {}),
          numbers.map((n) => el("th", { scope: "col" }, `execution ${n}`)),
          withScripts && el("th", { class: "left" }, "script"),
        ),
      ),
      el("tbody", {}, answer.designs.map(row)),
    ),
  );
}

function box(answer, execution, most) {
  if (!execution) return el("td", { class: "none", title: "not run, or no call was made" }, "–");
  return el(
    "td",
    {
      class: "heat" + (execution.status === "void" ? " void" : ""),
      style: { "--level": level(execution.reward, most) },
    },
    el(
      "a",
      { class: "go cell", href: href([answer.step, answer.task, execution.design, execution.execution]) },
      el("b", {}, number(execution.reward)),
      el("small", {}, execution.structure),
      el("small", {}, execution.verdict),
      execution.flags.map((flag) => el("small", {}, flag)),
    ),
  );
}

export async function designPage(run, [step, task, number_]) {
  const answer = await get(`${step}/${task}/${number_}`);
  const rows = answer.executions.map((row) => ({
    ...row,
    step: answer.step,
    task: answer.task,
    task_id: answer.task_id,
  }));
  const drawn = el("div", {});
  const choose = async (row) => {
    try {
      drawn.replaceChildren(
        el(
          "p",
          { class: "choices" },
          rows.map((r) =>
            el("button", { "aria-pressed": String(r === row), onclick: () => choose(r) }, `execution ${r.execution}`),
          ),
        ),
        drawing(await get(`${step}/${task}/${number_}/${row.execution}`)),
      );
    } catch (error) {
      drawn.replaceChildren(warning(error.message));
    }
  };
  if (rows.length) choose(rows[0]);
  else drawn.append(el("p", { class: "note" }, "No execution made a call: there is nothing to draw."));
  const line = answer.line;
  const place = answer.designs.indexOf(answer.design);
  return {
    title: `design ${answer.design}`,
    up: [step, task],
    previous: place > 0 ? [step, task, answer.designs[place - 1]] : null,
    next: place + 1 < answer.designs.length ? [step, task, answer.designs[place + 1]] : null,
    node: el(
      "div",
      {},
      el("h1", {}, `Design ${answer.design} `, el("small", { class: "note" }, answer.task_id)),
      line &&
        facts([
          ["reward", number(line.reward)],
          ["advantage", line.trained ? credit(line.advantages[0]) : "not trained on"],
          ["weights", line.version],
          ["status", line.status],
          ["flags", line.flags.length ? flagTags(line) : null],
          [
            "call",
            el("a", { class: "go", href: href([step, task, answer.design, "design"]) }, "the Designer's tokens"),
          ],
        ]),
      !line && el("p", { class: "note" }, "No Designer was asked: the settings give this script to every task."),
      answer.problem && warning(answer.problem),
      el(
        "div",
        { class: "halves" },
        el("section", {}, el("h2", {}, "Script"), code(answer.lines, answer.lint), lint(answer.lint)),
        el("section", {}, el("h2", {}, "Structure that ran"), drawn),
      ),
      el("h2", {}, "Executions"),
      table(
        rolloutColumns(false).filter((c) => !["task", "role"].includes(c.name)),
        rows,
        {},
      ),
      answer.text !== answer.script &&
        answer.text &&
        el("details", {}, el("summary", {}, "The whole completion"), el("pre", {}, answer.text)),
      answer.messages.length > 0 &&
        el(
          "details",
          {},
          el("summary", {}, "What the Designer was told"),
          answer.told && el("pre", {}, answer.told),
          answer.messages.map((m) => el("pre", {}, m)),
        ),
    ),
  };
}

/** Lines of [kind, text], with numbers; those with a problem are marked. */
function code(lines, problems) {
  const bad = new Map(problems.map((p) => [p.line, p.hint]));
  return el(
    "pre",
    { class: "code" },
    lines.map((line, i) =>
      el(
        "span",
        { class: "line" + (bad.has(i + 1) ? " bad" : ""), title: bad.get(i + 1) ?? null },
        el("i", {}, String(i + 1)),
        line.map(([kind, text]) => (kind ? el("span", { class: "code-" + kind }, text) : text)),
        "\n",
      ),
    ),
  );
}

function lint(problems) {
  if (!problems.length) return el("p", { class: "note" }, "Lint found nothing.");
  return el(
    "ul",
    { class: "lint" },
    problems.map((p) => el("li", {}, el("b", {}, `line ${p.line}: ${p.word}`), " ", p.hint)),
  );
}
