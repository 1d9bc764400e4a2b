// Designs and executions of all steps that match a filter, found step by step, the newest first.
import { el, warning } from "./dom.js";
import { get, keep } from "./source.js";
import { filterForm, filterOf, matches, rolloutColumns, table } from "./table.js";

const ENOUGH = 200; // matches, then it waits to be told to go on

export async function findPage(run, parts, query) {
  const filter = filterOf(query);
  const steps = [...run.steps].reverse();
  const form = el("div", {}),
    list = el("div", {}),
    told = el("p", { class: "note", role: "status" }),
    problems = el("div", {});
  const state = { sort: "", down: false, page: 0 };
  let search = 0;
  const again = async () => {
    problems.replaceChildren();
    await look(++search, [], 0, ENOUGH);
  };
  const look = async (mine, found, from, enough) => {
    for (let i = from; i < steps.length && found.length < enough; i++) {
      if (mine !== search || !list.isConnected) return;
      told.textContent = `looking at step ${steps[i]}; ${found.length} found`;
      try {
        found.push(...(await rowsOf(steps[i])).filter((row) => matches(filter, row)));
      } catch (error) {
        problems.append(warning(error.message));
      }
      from = i + 1;
    }
    if (mine !== search) return;
    const next =
      from < steps.length &&
      el(
        "button",
        { onclick: () => look(mine, found, from, found.length + ENOUGH) },
        `look on from step ${steps[from]}`,
      );
    told.replaceChildren(`${found.length} found in ${from} of ${steps.length} steps `, ...(next ? [next] : []));
    list.replaceChildren(table(rolloutColumns(true), found, state));
  };
  let waiting = 0;
  const soon = () => {
    keep(filter);
    clearTimeout(waiting);
    waiting = setTimeout(again, 250);
  };
  if (steps.length) {
    const first = await rowsOf(steps[0]).catch(() => []); // if it is damaged, the search says so
    form.replaceChildren(filterForm(filter, first, soon, true));
    setTimeout(again);
  }
  return {
    title: "find",
    up: [],
    previous: null,
    next: null,
    node: el(
      "div",
      {},
      el("h1", {}, "Find"),
      el(
        "p",
        { class: "note" },
        "Designs and executions of all steps, the newest first. The address keeps the filter.",
      ),
      form,
      told,
      problems,
      list,
    ),
  };
}

async function rowsOf(step) {
  const answer = await get(String(step));
  const names = new Map(answer.tasks.map((t) => [t.task, t.task_id]));
  return answer.rows.map((row) => ({ ...row, step, task_id: names.get(row.task) }));
}
