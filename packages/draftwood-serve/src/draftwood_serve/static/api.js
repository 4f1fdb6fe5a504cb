// Requests to the server. The API key lives in this variable and nowhere else.

let key = "";

export const useKey = (given) => { key = given; };

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function send(path, options = {}) {
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  const response = await fetch(path, { ...options, headers, credentials: "omit" });
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  const message = told?.error?.message ?? `the server answered ${response.status}`;
  throw new Refused(message, response.status);
}

const question = (body, signal) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
  signal,
});

export const read = async (path) => (await send(path)).json();

const PARTS = { target: "model", draft: "drafting", verify: "verifying", rest: "the rest" };

/** Where a step's time went, and whether drafts paid: in brief, and in all. */
export function costsOf({ step_ms: parts, drafts }) {
  if (!parts) return null;
  const told = Object.keys(PARTS).filter((name) => name in parts)
    .map((name) => `${PARTS[name]} ${parts[name].toFixed(1)} ms`);
  const verdict = drafts ? `${drafts[0].toUpperCase()}${drafts.slice(1)}.` : "";
  const brief = verdict.split(":")[0] || "Where the time went";
  return [brief, `A pass took: ${told.join(", ")}. ${verdict}`];
}

/** The whole answer at once: nothing runs beside the model. */
export async function whole(body, signal) {
  const told = await (await send("v1/chat/completions", question(body, signal))).json();
  const choice = told.choices[0];
  return {
    text: choice.message.content ?? "",
    tokens: told.usage.completion_tokens,
    seed: told.metrics.seed,
    steps: told.metrics.speculative_decoding.per_step_trees,
    costs: costsOf(told.metrics),
  };
}

/** The answer as it is written; `take` hears each chunk. */
export async function stream(body, signal, take, path = "v1/chat/completions") {
  const response = await send(path, question({ ...body, stream: true }, signal));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Refused("the connection ended before the text did", 0);
    const events = (held + value).split("\n\n");
    held = events.pop();
    for (const each of events) {
      if (each === "data: [DONE]") return;
      const chunk = JSON.parse(each.slice("data: ".length));
      if (chunk.error) throw new Refused(chunk.error.message, 0);
      take(chunk);
    }
  }
}
