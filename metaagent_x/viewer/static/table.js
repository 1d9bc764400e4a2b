// A table that sorts and pages, and the filter of designs and executions.
import { credit, el, href, level, link, number, tag } from "./dom.js";

/**
 * A table of rows, some at a time.
 * columns: {name, value: row => what it sorts by, cell: row => content, heat: row => level, left, downFirst, title}.
 * state: {sort, down, page}, changed in place; `changed` is called then.
 */
export function table(columns, rows, state, changed = () => {}, size = 50) {
  const column = columns.find((c) => c.name === state.sort);
  const ordered = column
    ? [...rows].sort((a, b) => compare(column.value(a), column.value(b)) * (state.down ? -1 : 1))
    : rows;
  const pages = Math.max(1, Math.ceil(rows.length / size));
  state.page = Math.min(Math.max(0, state.page || 0), pages - 1);
  const shown = ordered.slice(state.page * size, (state.page + 1) * size);
  const again = (change) => {
    Object.assign(state, change);
    changed();
    box.replaceWith(table(columns, rows, state, changed, size));
  };
  const sortBy = (c) => () =>
    again({ sort: c.name, down: state.sort === c.name ? !state.down : Boolean(c.downFirst), page: 0 });
  const head = columns.map((c) => {
    const arrow = state.sort === c.name ? (state.down ? " ↓" : " ↑") : "";
    const order = state.sort === c.name ? (state.down ? "descending" : "ascending") : null;
    return el(
      "th",
      { scope: "col", class: c.left && "left", "aria-sort": order, title: c.title },
      el("button", { class: "head", onclick: sortBy(c) }, c.name + arrow),
    );
  });
  const body = shown.map((row) =>
    el(
      "tr",
      { class: "row" },
      columns.map((c) => cell(c, row)),
    ),
  );
  const turn = (by, text) =>
    el(
      "button",
      {
        onclick: () => again({ page: state.page + by }),
        disabled: by < 0 ? state.page === 0 : state.page === pages - 1,
      },
      text,
    );
  const pager =
    pages > 1 &&
    el(
      "p",
      { class: "pager" },
      turn(-1, "← previous"),
      ` ${state.page * size + 1} to ${Math.min(rows.length, (state.page + 1) * size)} of ${rows.length} `,
      turn(1, "next →"),
    );
  const box = el(
    "div",
    { class: "table" },
    el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)),
    rows.length === 0 && el("p", { class: "note" }, "none"),
    pager,
  );
  return box;
}

function cell(column, row) {
  const content = column.cell(row);
  const heat = column.heat ? column.heat(row) : null;
  return el(
    "td",
    {
      class: [column.left && "left", heat !== null && "heat"].filter(Boolean).join(" "),
      style: heat === null ? {} : { "--level": heat },
    },
    content,
  );
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "string" ? a.localeCompare(b) : a < b ? -1 : 1;
}

/** The address of a design or an execution. */
export function placeOf(row) {
  return row.execution < 0 ? [row.step, row.task, row.design] : [row.step, row.task, row.design, row.execution];
}

/** Columns of designs and executions. `withStep`: rows of several steps. */
export function rolloutColumns(withStep) {
  const step = { name: "step", value: (r) => r.step, cell: (r) => link([r.step], r.step), downFirst: true };
  return [
    ...(withStep ? [step] : []),
    { name: "task", left: true, value: (r) => r.task, cell: (r) => link([r.step, r.task], r.task_id) },
    {
      name: "what",
      left: true,
      value: (r) => r.design * 1e4 + r.execution,
      cell: (r) => el("a", { class: "go", href: href(placeOf(r)) }, nameOf(r)),
    },
    { name: "role", left: true, value: (r) => r.role, cell: (r) => el("span", { class: r.role }, r.role) },
    { name: "structure", left: true, value: (r) => r.structure, cell: (r) => r.structure },
    {
      name: "reward",
      value: (r) => r.reward,
      cell: (r) => number(r.reward),
      heat: (r) => level(r.reward),
      downFirst: true,
    },
    {
      name: "advantage",
      value: (r) => r.advantages[0],
      cell: (r) => r.advantages.map((a, i) => [i > 0 && " … ", credit(a)]),
      downFirst: true,
      title: "of what was trained: the least and the greatest of its calls",
    },
    { name: "verdict", left: true, value: (r) => r.verdict, cell: (r) => r.verdict },
    { name: "flags", left: true, value: (r) => r.flags.join(), cell: (r) => flagTags(r) },
    { name: "calls", value: (r) => r.paths.length, cell: (r) => r.paths.length, downFirst: true },
  ];
}

export function nameOf(row) {
  return row.execution < 0 ? `design ${row.design}` : `design ${row.design}, execution ${row.execution}`;
}

export function flagTags(row) {
  return row.flags.map((flag) => [tag(flag, "flag"), " "]);
}

const FIELDS = {
  role: (row) => [row.role],
  kind: (row) => [row.kind],
  structure: (row) => [row.structure],
  verdict: (row) => [row.verdict],
  status: (row) => [row.status],
  flag: (row) => row.flags,
};

/** The filter that a query holds. */
export function filterOf(query) {
  const names = [...Object.keys(FIELDS), "least", "most", "text"];
  return Object.fromEntries(names.map((name) => [name, query.get(name) ?? ""]));
}

export function matches(filter, row) {
  const bounds =
    (filter.least === "" || row.reward >= Number(filter.least)) &&
    (filter.most === "" || row.reward <= Number(filter.most));
  const texts = [row.task_id, row.problem, row.verdict, ...row.agents];
  return (
    bounds &&
    Object.entries(FIELDS).every(([name, values]) => filter[name] === "" || values(row).includes(filter[name])) &&
    (filter.text === "" || texts.some((text) => text.includes(filter.text)))
  );
}

/** Fields that change `filter` in place. `rows` give the choices; with `open`, other values can be typed in too. */
export function filterForm(filter, rows, changed, open = false) {
  const set = (name) => (event) => {
    filter[name] = event.target.value;
    changed();
  };
  const choice = (name) => {
    const values = [...new Set([...rows.flatMap(FIELDS[name]), filter[name]])]
      .filter((v) => v !== "" && v !== null)
      .sort();
    if (open)
      return el(
        "label",
        {},
        name,
        el("input", {
          name,
          list: `known-${name}`,
          value: filter[name],
          oninput: set(name),
          style: { width: "9.5em" },
        }),
        el(
          "datalist",
          { id: `known-${name}` },
          values.map((value) => el("option", { value })),
        ),
      );
    return el(
      "label",
      {},
      name,
      el(
        "select",
        { name, onchange: set(name) },
        el("option", { value: "" }, "any"),
        values.map((value) => el("option", { value, selected: value === filter[name] }, value)),
      ),
    );
  };
  const entry = (name, label, type, size) =>
    el(
      "label",
      {},
      label,
      el("input", { name, type, value: filter[name], step: "any", style: { width: size }, oninput: set(name) }),
    );
  return el(
    "form",
    { class: "filter", onsubmit: (event) => event.preventDefault() },
    Object.keys(FIELDS).map(choice),
    entry("least", "reward from", "number", "4.5em"),
    entry("most", "to", "number", "4.5em"),
    entry("text", "text in task, agent, verdict, problem", "search", "15em"),
  );
}
