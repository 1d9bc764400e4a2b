// A step: its tasks as small grids of rewards, and all its designs and executions.
import { el, href, level, link, number, percent, facts, warning } from "./dom.js";
import { get, keep } from "./source.js";
import { filterForm, filterOf, matches, nameOf, rolloutColumns, table } from "./table.js";

export async function stepPage(run, [step], query) {
  const answer = await get(step);
  const metrics = run.metrics.find((line) => line.step === answer.step) ?? {};
  const names = new Map(answer.tasks.map((t) => [t.task, t.task_id]));
  const rows = answer.rows.map((row) => ({ ...row, step: answer.step, task_id: names.get(row.task) }));
  const filter = filterOf(query);
  const state = { sort: query.get("sort") ?? "", down: query.get("down") !== null, page: 0 };
  const list = el("div", {});
  const remember = () => keep({ ...filter, sort: state.sort, down: state.down ? "1" : "" });
  const draw = () => {
    const kept = rows.filter((row) => matches(filter, row));
    count.textContent = `${kept.length} of ${rows.length}`;
    list.replaceChildren(table(rolloutColumns(false), kept, state, remember));
  };
  const changed = () => {
    remember();
    draw();
  };
  const count = el("span", { class: "note" });
  const at = answer.steps.indexOf(answer.step);
  const most = Math.max(1, ...rows.map((row) => row.reward ?? 0));
  const node = el(
    "div",
    {},
    el("h1", {}, `Step ${answer.step}`),
    facts([
      ["learns", metrics.stage && el("span", { class: metrics.stage }, metrics.stage)],
      ["accuracy", metrics.accuracy === undefined ? null : percent(metrics.accuracy)],
      ["reward", metrics["reward/mean"] === undefined ? null : number(metrics["reward/mean"])],
      ["valid designs", metrics["designs/valid"] === undefined ? null : percent(metrics["designs/valid"])],
      ["calls", metrics.calls],
      ["void", metrics["executions/void"]],
      ["gradient norm", metrics.grad_norm === undefined ? null : number(metrics.grad_norm)],
    ]),
    run.alerts
      .filter((a) => a.step === answer.step)
      .map((a) => warning(`${a.guard ?? "alert"}: ${a.message ?? a.what ?? JSON.stringify(a)}`)),
    el("h2", {}, "Tasks"),
    el(
      "p",
      { class: "note" },
      "Rows are designs, columns are executions; the stronger the colour, the higher the reward. ",
      "Numbers are those of the trace, from 0.",
    ),
    el(
      "div",
      { class: "cards" },
      answer.tasks.map((task) => card(answer, task, most)),
    ),
    el("h2", {}, "Designs and executions ", count),
    filterForm(filter, rows, changed),
    list,
  );
  draw();
  return {
    title: `step ${answer.step}`,
    node,
    up: [],
    previous: at > 0 ? [answer.steps[at - 1]] : null,
    next: at + 1 < answer.steps.length ? [answer.steps[at + 1]] : null,
  };
}

function card(answer, task, most) {
  const mine = answer.rows.filter((row) => row.task === task.task);
  const designs = [...new Set(mine.map((row) => row.design))];
  const played = mine.filter((row) => row.execution >= 0 && row.status !== "void");
  const mean = played.length ? played.reduce((sum, row) => sum + (row.reward ?? 0), 0) / played.length : null;
  return el(
    "article",
    { class: "card" },
    el(
      "header",
      {},
      el("a", { class: "go", href: href([answer.step, task.task]) }, task.task_id),
      el("div", { class: "note" }, `${task.kind}, mean ${number(mean)}`),
    ),
    el(
      "div",
      { class: "mini", style: { "--columns": answer.executions + 1 } },
      designs.flatMap((design) => [
        link([answer.step, task.task, design], `D${design}`),
        ...Array.from({ length: answer.executions }, (_, execution) =>
          square(
            answer.step,
            mine.find((row) => row.design === design && row.execution === execution),
            most,
          ),
        ),
      ]),
    ),
  );
}

function square(step, row, most) {
  if (!row) return el("span", { class: "square none", title: "no call was made" });
  return el("a", {
    class: "square" + (row.status === "void" ? " void" : ""),
    href: href([step, row.task, row.design, row.execution]),
    style: { "--level": level(row.reward, most) },
    title: `${nameOf(row)}: reward ${number(row.reward)}, ${row.structure} ${row.verdict} ${row.flags.join(" ")}`,
    "aria-label": `${nameOf(row)}: reward ${number(row.reward)}`,
  });
}
