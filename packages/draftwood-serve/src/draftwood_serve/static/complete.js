// Completions of a text as one types: the newest text alone is asked for.

import { Refused, read, stream, useKey } from "./api.js";
import { count, make } from "./record.js";

const $ = (id) => document.getElementById(id);
const PAUSE = 250;  // ms without a key before anything is asked

let running = null;  // what can be stopped
let pause = 0;

function complain(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

/** End the request for an older text. */
function stop() {
  clearTimeout(pause);
  running?.abort();
  running = null;
}

function later() {
  stop();
  $("found").replaceChildren();
  $("measures").textContent = "";
  complain("");
  if ($("text").value.trim()) pause = setTimeout(complete, PAUSE);
}

/** Show the completions so far, each text once. */
function show(texts) {
  const different = [...new Set(texts)].filter((each) => each.trim());
  const items = $("found").children;
  different.forEach((text, place) => {
    const item = items[place] ?? $("found").appendChild(make("li"));
    const button = item.firstElementChild ?? item.appendChild(make("button", { type: "button" }));
    if (button.textContent !== text) button.textContent = text;
  });
  while (items.length > different.length) items[items.length - 1].remove();
  return different.length;
}

async function complete() {
  if (!$("write").checkValidity()) {
    $("write").reportValidity();
    return;
  }
  const own = running = new AbortController();
  const n = Number($("count").value);
  const texts = Array(n).fill("");
  const since = performance.now();
  const body = {
    model: $("model").value || undefined, prompt: $("text").value, n, stop: "\n",
    max_tokens: Number($("tokens").value), temperature: Number($("temperature").value),
  };
  const take = (chunk) => {
    for (const { index, text } of chunk.choices) texts[index] += text;
    show(texts);
  };
  try {
    await stream(body, own.signal, take, "v1/completions");
    const told = count(show(texts), "completion");
    $("measures").textContent = `${told} in ${((performance.now() - since) / 1000).toFixed(2)} s`;
    $("status").textContent = told;
  } catch (error) {
    if (!own.signal.aborted) refused(error);
  } finally {
    if (running === own) running = null;
  }
}

function refused(error) {
  $("locked").hidden = error.status !== 401;
  complain(error instanceof Refused ? error.message : "The server cannot be reached.");
}

async function learn() {
  try {
    const { model, models, machine } = await read("page.json");
    $("choice").hidden = models.length < 2;
    $("model").replaceChildren(...models.map(({ name }) => make("option", { value: name }, name)));
    $("model").value = model;
    $("serving").textContent = `${models.length < 2 ? model : ""} ${machine ? `on ${machine}` : ""}`;
    $("locked").hidden = true;
    later();
  } catch (error) {
    refused(error);
  }
}

$("write").addEventListener("submit", (event) => event.preventDefault());
for (const id of ["text", "count", "tokens", "temperature", "model"]) {
  $(id).addEventListener("input", later);
}
$("found").addEventListener("click", ({ target }) => {
  if (target.tagName !== "BUTTON") return;
  $("text").value += target.textContent;
  $("text").focus();
  later();
});
$("key").addEventListener("change", () => {
  useKey($("key").value.trim());
  complain("");
  learn();
});
document.addEventListener("keydown", ({ key }) => { if (key === "Escape") stop(); });
$("text").focus();
learn();
