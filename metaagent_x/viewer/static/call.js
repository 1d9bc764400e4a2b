// A call: every token with its log-prob, what the learner made of it, and the request that it was.
import { credit, el, facts, number, tag, visible } from "./dom.js";
import { get, keep } from "./source.js";

const SHOWN = 6000; // tokens drawn at once
const MODES = { logprob: "log-prob", difference: "engine − learner", mask: "loss mask", plain: "plain" };

export async function callPage(run, parts, query) {
  const [step, task, design, execution, path] = parts;
  const answer = await get(parts.join("/"));
  const { prompt, sampled } = answer;
  const differences = sampled.old_logprobs && sampled.logprobs.map((value, i) => value - sampled.old_logprobs[i]);
  const scale = differences ? Math.max(1e-9, ...differences.map(Math.abs)) : null;
  const wanted = query.get("by") in MODES ? query.get("by") : "logprob";
  const readout = el("p", { class: "readout number" }, "Point at a token.");
  const flow = el("div", { class: "tokens" });
  const legend = el("p", { class: "note" });
  const buttons = Object.entries(MODES).map(([name, text], i) =>
    el(
      "button",
      {
        "data-mode": name,
        title: `key ${i + 1}`,
        onclick: () => choose(name),
        disabled: name === "difference" && !differences,
      },
      text,
    ),
  );
  const learned = new Set(prompt.learned);
  const promptSpans = prompt.ids.map((id, i) =>
    token(prompt.pieces[i], "p" + i, "asked" + (learned.has(i) ? " learned" : "")),
  );
  const sampledSpans = sampled.ids.map((id, i) => token(sampled.pieces[i], "s" + i, "said"));
  const show = (name) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.mode === name));
    flow.dataset.mode = name;
    sampledSpans.forEach((span, i) =>
      paint(span, name, sampled.logprobs[i], differences && differences[i] / scale, answer.trained),
    );
    promptSpans.forEach((span, i) =>
      paint(span, name === "mask" ? name : "plain", null, null, answer.trained && learned.has(i)),
    );
    legend.replaceChildren(LEGENDS[name](scale, answer.trained));
  };
  const choose = (name) => {
    keep({ by: name === "logprob" ? "" : name });
    show(name);
  };
  const point = (event) => {
    const key = event.target.dataset?.token;
    if (!key) return;
    const i = Number(key.slice(1)),
      ours = key[0] === "s";
    const part = ours ? sampled : prompt;
    readout.textContent =
      visible(`${ours ? "sampled" : "prompt"} ${i}: id ${part.ids[i]}, ${JSON.stringify(part.pieces[i])}`) +
      (ours ? `, log-prob ${number(sampled.logprobs[i], 4)} (p = ${number(Math.exp(sampled.logprobs[i]), 4)})` : "") +
      (ours && differences
        ? `, learner ${number(sampled.old_logprobs[i], 4)}, difference ${differences[i].toExponential(2)}`
        : "");
  };
  flow.addEventListener("mouseover", point);
  flow.append(...[...more(promptSpans), el("span", { class: "border" }), ...more(sampledSpans)]);
  show(wanted === "difference" && !differences ? "logprob" : wanted);
  const at = answer.paths.indexOf(answer.path);
  const designer = execution === "design";
  const beside = (by) =>
    !designer && answer.paths[at + by] !== undefined ? [step, task, design, execution, answer.paths[at + by]] : null;
  const request = JSON.stringify({ model: run.name, prompt: prompt.ids, ...answer.request, logprobs: 1 });
  return {
    title: designer ? "the Designer's call" : `call ${path}`,
    up: parts.slice(0, -1),
    previous: beside(-1),
    next: beside(1),
    keys: Object.fromEntries(
      Object.keys(MODES).map((name, i) => [
        String(i + 1),
        () => (name !== "difference" || differences) && choose(name),
      ]),
    ),
    node: el(
      "div",
      {},
      el(
        "h1",
        {},
        designer ? "The Designer's call " : `Call ${path} `,
        el("small", { class: "note" }, `${answer.agent}, ${answer.task_id}`),
      ),
      facts([
        ["reward", number(answer.reward)],
        ["advantage", answer.trained ? credit(answer.advantage) : "not trained on"],
        ["finish reason", answer.finish_reason === "length" ? tag("length", "flag") : answer.finish_reason],
        ["weights", `version ${answer.version}`],
        ["seed", answer.seed],
        ["prompt", `${answer.prompt_tokens} tokens`],
        ["sampled", `${answer.sampled_tokens} tokens`],
        ["mean log-prob", number(answer.mean_logprob, 4)],
        ["largest difference", scale === null ? null : scale.toExponential(2) + " nats"],
        ["memory", answer.conversation],
        ["flags", answer.prompt_cut ? tag("prompt_cut", "flag") : null],
      ]),
      el("div", { class: "choices" }, buttons),
      legend,
      flow,
      readout,
      el("h2", {}, "Request"),
      el(
        "p",
        { class: "note" },
        "As an OpenAI-compatible server takes it at /v1/completions: prompt ids and every sampling parameter.",
      ),
      copying(request),
      el("details", {}, el("summary", {}, "show"), el("pre", {}, request)),
      el(
        "details",
        {},
        el("summary", {}, "Messages"),
        answer.told && [el("div", { class: "side" }, "role prompt"), el("pre", {}, answer.told)],
        answer.messages.map((m) => [el("div", { class: "side" }, "saw"), el("pre", {}, m)]),
        el("div", { class: "side" }, "said"),
        el("pre", {}, answer.text),
      ),
    ),
  };
}

const LEGENDS = {
  logprob: () =>
    "The stronger the colour, the less likely was the token: none at p = 1, full from a log-prob of -5 down.",
  difference: (scale) =>
    el(
      "span",
      {},
      el("span", { class: "sample more" }, "engine higher"),
      " ",
      el("span", { class: "sample less" }, "learner higher"),
      ` full colour = ${scale.toExponential(1)} nats, the largest difference of this call`,
    ),
  mask: (scale, trained) =>
    trained
      ? "Marked tokens are in the loss: sampled by the policy. The others are context."
      : "Nothing of this call was trained on. Tokens that the policy sampled are underlined.",
  plain: () => "Prompt, then what was sampled.",
};

function token(piece, key, kind) {
  const shown = piece.replaceAll("\n", "↵\n");
  return el("span", { class: "token " + kind, "data-token": key }, shown);
}

function paint(span, mode, logprob, difference, trained) {
  const less = mode === "difference" && difference < 0;
  const alpha =
    mode === "logprob" && logprob !== null
      ? Math.min(1, -logprob / 5)
      : mode === "difference" && difference !== null
        ? Math.abs(difference)
        : mode === "mask" && trained
          ? 0.5
          : 0;
  span.style.setProperty("--alpha", (0.75 * alpha).toFixed(3));
  span.classList.toggle("less", less || mode === "mask");
}

/** The first spans, and a button that brings the next ones. */
function more(spans) {
  if (spans.length <= SHOWN) return spans;
  const rest = el(
    "button",
    { onclick: () => rest.replaceWith(...more(spans.slice(SHOWN))) },
    `${spans.length - SHOWN} more tokens`,
  );
  return [...spans.slice(0, SHOWN), rest];
}

function copying(text) {
  const button = el(
    "button",
    {
      onclick: async () => {
        try {
          await navigator.clipboard.writeText(text);
          button.textContent = "copied";
        } catch {
          button.textContent = "the browser does not allow it here: open “show” and copy";
        }
      },
    },
    "copy as a request",
  );
  return el("p", {}, button);
}
