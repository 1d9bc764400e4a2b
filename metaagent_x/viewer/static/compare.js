// Two steps on the same task, side by side.
import { el, facts, href, link, number, warning } from "./dom.js";
import { get } from "./source.js";
import { grid } from "./task.js";

export async function comparePage(run, [step, task, other]) {
  const same = await get(`same/${step}/${task}`);
  const found = same.steps.filter((s) => s.step === Number(other));
  if (!found.length) throw new Error(`step ${other} does not hold the task ${same.task_id}`);
  const sides = await Promise.all([get(`${step}/${task}`), get(`${other}/${found[0].task}`)]);
  const choices = same.steps.map((s) =>
    el(
      "option",
      { value: String(s.step), selected: s.step === Number(other) },
      `step ${s.step}, mean reward ${number(s.reward)}`,
    ),
  );
  return {
    title: `steps ${step} and ${other}`,
    up: [step, task],
    previous: null,
    next: null,
    node: el(
      "div",
      {},
      el("h1", {}, same.task_id),
      el("pre", { class: "question" }, sides[0].question),
      el(
        "p",
        {},
        el(
          "label",
          {},
          `step ${step} and `,
          el(
            "select",
            {
              onchange: (event) => {
                location.hash = href(["compare", step, task, event.target.value]);
              },
            },
            choices,
          ),
        ),
      ),
      el("div", { class: "halves" }, sides.map(side)),
    ),
  };
}

function side(answer) {
  const played = answer.designs.flatMap((d) => d.executions).filter((e) => e.status !== "void");
  const mean = played.length ? played.reduce((sum, e) => sum + (e.reward ?? 0), 0) / played.length : null;
  const structures = Object.entries(Object.groupBy(played, (e) => e.structure)).map(
    ([name, list]) => `${name} ${list.length}`,
  );
  return el(
    "section",
    {},
    el("h2", {}, link([answer.step, answer.task], `Step ${answer.step}`)),
    facts([
      ["mean reward", number(mean)],
      ["executions", played.length],
      ["structures", structures.join(", ")],
    ]),
    grid(answer, false),
    answer.designs.map((d) =>
      el("div", {}, el("div", { class: "side" }, `design ${d.design}`), el("pre", {}, d.script)),
    ),
  );
}
