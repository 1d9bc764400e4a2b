// The start page: what the run became, its curve, its steps.
import { el, link, number, percent, tag, warning } from "./dom.js";
import { exported, get } from "./source.js";
import { table } from "./table.js";

const LEGEND = [
  ["dot", "held-out tasks, T = 1"],
  ["ring", "held-out tasks, greedy"],
  ["line", "training tasks, mean of 5 steps"],
  ["executor", "Executor learns"],
  ["designer", "Designer learns"],
];

const SHOWN_SETTINGS = ["batch", "designs", "executions", "policy", "schedule", "stage_length", "seed"];
const SHOWN_OF_EVALUATIONS = ["evaluate.model", "evaluate.temperature", "evaluate.samples", "seed"];

export function startPage(run, query) {
  const state = {
    sort: query.get("sort") || "step",
    down: query.get("up") === null,
    page: Number(query.get("page") || 0),
  };
  const known = new Set(run.steps);
  const metrics = new Map(run.metrics.map((line) => [line.step, line]));
  const rows = [...new Set([...metrics.keys(), ...known])].map((step) => ({
    step,
    ...metrics.get(step),
    known: known.has(step),
    alerts: run.alerts.filter((a) => a.step === step).length,
  }));
  const done = rows.reduce((most, row) => Math.max(most, row.step), 0);
  return {
    title: run.name,
    next: run.steps.length ? [run.steps[0]] : null,
    node: el(
      "div",
      {},
      el("h1", {}, run.name),
      el(
        "p",
        { class: "note" },
        `${done}${run.wanted ? " of " + run.wanted : ""} steps, `,
        `${known.size} with a trace${exported ? " in this file" : ""}. `,
        ("evaluate.model" in run.config ? SHOWN_OF_EVALUATIONS : SHOWN_SETTINGS)
          .filter((name) => name in run.config)
          .map((name) => `${name} ${run.config[name]}`)
          .join(", "),
      ),
      run.problems.map(warning),
      tiles(run),
      figure(
        "learning",
        "Accuracy",
        rows,
        el(
          "div",
          {},
          LEGEND.map(([kind, text]) => el("span", { class: "key" }, el("i", { class: kind }), text)),
        ),
      ),
      figure("structures", "Structures that the Designer chose", rows),
      el("h2", {}, "Steps"),
      table(
        columns(),
        rows,
        state,
        () =>
          history.replaceState(
            null,
            "",
            `#/?sort=${encodeURIComponent(state.sort)}${state.down ? "" : "&up=1"}&page=${state.page}`,
          ),
        25,
      ),
      alerts(run),
      evaluations(run),
      settings(run),
    ),
  };
}

function columns() {
  const plain = (name, key, show) => ({ name, value: (r) => r[key], cell: (r) => show(r[key]), downFirst: true });
  return [
    {
      name: "step",
      value: (r) => r.step,
      downFirst: true,
      cell: (r) => (r.known ? el("a", { class: "go", href: `#/${r.step}` }, r.step) : r.step),
    },
    {
      name: "learns",
      left: true,
      value: (r) => r.stage,
      cell: (r) => el("span", { class: r.stage }, r.stage ?? "–"),
    },
    { ...plain("accuracy", "accuracy", percent), heat: (r) => (0.05 + 0.5 * (r.accuracy ?? 0)).toFixed(3) },
    plain("reward", "reward/mean", number),
    plain("math", "reward/math", number),
    plain("code", "reward/code", number),
    plain("valid designs", "designs/valid", percent),
    plain("calls", "calls", (v) => v ?? "–"),
    plain("void", "executions/void", (v) => v ?? "–"),
    plain("gradient norm", "grad_norm", number),
    plain("alerts", "alerts", (v) => (v ? tag(v, "flag") : "")),
    plain("seconds", "time/step", (v) => number(v, 1)),
  ];
}

function tiles(run) {
  const tile = (label, value, detail) =>
    el(
      "div",
      { class: "tile" },
      el("div", { class: "label" }, label),
      el("div", { class: "value" }, value),
      el("div", { class: "detail" }, detail),
    );
  // Evaluations of as many tasks as the first one: others are of another set.
  const of = (temperature) =>
    run.evaluations
      .filter((e) => e.temperature === temperature && ["cold", "stage", "final"].includes(e.name))
      .filter((e, _, all) => e.tasks === all[0].tasks);
  const gain = (label, list) =>
    list.length > 0 &&
    tile(
      label,
      [list.length > 1 && el("small", {}, percent(list[0].accuracy) + " → "), percent(list.at(-1).accuracy)],
      list.length > 1
        ? `step ${list[0].step} to ${list.at(-1).step}, ${list.at(-1).tasks} tasks`
        : `step ${list[0].step}, ${list[0].tasks} tasks`,
    );
  const last = run.metrics.at(-1);
  return el(
    "div",
    { class: "tiles" },
    gain("Held-out accuracy, T = 1", of(1)),
    gain("Held-out accuracy, greedy", of(0)),
    last && tile("Reward of the last step", number(last["reward/mean"]), `step ${last.step}, ${last.stage} learns`),
    last &&
      tile(
        "Alerts",
        run.alerts.length,
        run.alerts.length ? `last at step ${run.alerts.at(-1).step}` : "no guard found anything",
      ),
  );
}

/** A figure of the report. A click on it, or an arrow key and Enter, opens the step there. */
function figure(name, title, rows, legend) {
  const box = el("figure", {}, el("p", { class: "note" }, "drawing …"));
  get("figure/" + name)
    .then((answer) => {
      if (!answer.svg)
        return box.replaceChildren(
          answer.problem ? warning(answer.problem) : el("p", { class: "note" }, "Nothing to draw yet."),
        );
      // Style attributes are set by name: the page's policy allows no style that comes with markup.
      const text = answer.svg.replace(
        "<svg ",
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" ',
      );
      const parsed = new DOMParser().parseFromString(text.replaceAll(' style="', ' data-style="'), "image/svg+xml");
      const drawn = document.importNode(parsed.documentElement, true);
      for (const part of drawn.querySelectorAll("[data-style]")) {
        part.style.cssText = part.dataset.style;
        delete part.dataset.style;
      }
      box.replaceChildren(
        drawn,
        pointer(
          drawn.dataset.plot.split(" ").map(Number),
          rows.filter((row) => row.known),
        ),
      );
    })
    .catch((error) => box.replaceChildren(warning(error.message)));
  return el("section", {}, el("h2", {}, title), legend, box);
}

function pointer([left, top, width, height, first, last], rows) {
  const share = (v) => (100 * v).toFixed(3) + "%";
  const told = el("div", { class: "told", hidden: true });
  const line = el("div", { class: "line", hidden: true });
  let at = null;
  const show = (row) => {
    at = row;
    line.hidden = told.hidden = row === null;
    if (row === null) return;
    const x = (row.step - first) / (last - first);
    line.style.setProperty("left", share(x));
    told.style.setProperty(x < 0.5 ? "left" : "right", share(x < 0.5 ? x : 1 - x));
    told.style.removeProperty(x < 0.5 ? "right" : "left");
    told.replaceChildren(
      el("b", {}, `step ${row.step}`),
      ` ${row.stage ?? ""} learns`,
      el("br"),
      `accuracy ${percent(row.accuracy)}, reward ${number(row["reward/mean"])}`,
    );
  };
  const near = (event) => {
    const frame = area.getBoundingClientRect();
    const step = first + ((event.clientX - frame.left) / frame.width) * (last - first);
    return rows.reduce(
      (best, row) => (best === null || Math.abs(row.step - step) < Math.abs(best.step - step) ? row : best),
      null,
    );
  };
  const ordered = [...rows].sort((a, b) => a.step - b.step);
  const area = el(
    "div",
    {
      class: "pointer",
      tabindex: 0,
      role: "slider",
      "aria-label": "step",
      style: { left: share(left), top: share(top), width: share(width), height: share(height) },
      onmousemove: (event) => show(near(event)),
      onmouseleave: () => show(null),
      onblur: () => show(null),
      onclick: (event) => {
        const row = near(event);
        if (row) location.hash = `#/${row.step}`;
      },
      onkeydown: (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (by && ordered.length) show(ordered[Math.min(ordered.length - 1, Math.max(0, ordered.indexOf(at) + by))]);
        else if (event.key === "Enter" && at) location.hash = `#/${at.step}`;
        else return;
        event.preventDefault();
        event.stopPropagation();
      },
    },
    line,
    told,
  );
  return area;
}

function alerts(run) {
  return (
    run.alerts.length > 0 &&
    el(
      "details",
      { open: true },
      el("summary", {}, `Alerts (${run.alerts.length})`),
      el(
        "ul",
        {},
        run.alerts.slice(-50).map((a) =>
          el(
            "li",
            {},
            link([a.step], `step ${a.step}`),
            " ",
            Object.entries(a)
              .filter(([k]) => k !== "step")
              .map(([k, v]) => `${k}: ${typeof v === "object" ? JSON.stringify(v) : v}`)
              .join(", "),
          ),
        ),
      ),
    )
  );
}

function evaluations(run) {
  const head = ["name", "step", "T", "Designer", "Executor", "accuracy", "math", "code", "valid", "tasks", "void"];
  const row = (e) => [
    e.name,
    e.step,
    e.temperature,
    e.designer,
    e.executor,
    percent(e.accuracy),
    percent(e["accuracy/math"]),
    percent(e["accuracy/code"]),
    percent(e.valid),
    e.tasks,
    e.void,
  ];
  return (
    run.evaluations.length > 0 &&
    el(
      "details",
      {},
      el("summary", {}, `Evaluations on held-out tasks (${run.evaluations.length})`),
      el(
        "table",
        {},
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            head.map((h) => el("th", {}, h)),
          ),
        ),
        el(
          "tbody",
          {},
          run.evaluations.map((e) =>
            el(
              "tr",
              {},
              row(e).map((v) => el("td", {}, v ?? "–")),
            ),
          ),
        ),
      ),
    )
  );
}

function settings(run) {
  const all = Object.entries(run.config);
  return (
    all.length > 0 &&
    el(
      "details",
      {},
      el("summary", {}, `Settings (${all.length})`),
      el(
        "table",
        {},
        el(
          "tbody",
          {},
          all.map(([name, value]) => el("tr", {}, el("th", {}, name), el("td", { class: "left" }, value))),
        ),
      ),
    )
  );
}
