// Where answers come from: the server, or the block of a file that was exported.

const block = document.getElementById("answers");
const held = block && unpacked(block.textContent);

export const exported = block !== null;

/** The answer of an address, as `viewer/answers.py` lists them. Throws an Error whose message is for the reader. */
export async function get(address) {
  if (held) {
    const all = await held;
    if (Object.hasOwn(all, address)) return all[address];
    throw new Error(
      `This file does not hold page ${address}; it was exported with the steps ${all.run.steps.join(", ")}.`,
    );
  }
  let response;
  try {
    response = await fetch("answers/" + address.split("/").map(encodeURIComponent).join("/"));
  } catch {
    throw new Error("The viewer's server does not answer; start it again: python -m metaagent_x.view RUN");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/** The parts and the query of the page that is open: #/12/3?role=executor. Throws as `get` does. */
export function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  try {
    return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
  } catch {
    throw new Error(`there is no page at the address ${location.hash}: it is not encoded as addresses are`);
  }
}

/** Keeps the state of a page in its address, without a new entry in the history. */
export function keep(query) {
  const path = location.hash.split("?")[0] || "#/";
  const text = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== "" && value !== null),
  ).toString();
  history.replaceState(null, "", path + (text && "?" + text));
}

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
