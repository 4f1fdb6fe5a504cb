// A text of masks, replayed pass by pass in the order in which its tokens were fixed.

import { Refused, read, useKey, stream } from "./api.js";
import { count, make } from "./record.js";

const $ = (id) => document.getElementById(id);
const OPEN = "░", CHANGED = "▒";
const EARLY = [64, 120, 255], LATE = [255, 120, 40];  // of the first pass and of the last one
const SECONDS = 6, LONGEST = 0.25;  // of a replay at most, and of a pass

let told = null;  // the text that is shown
let timer = 0;

/** Colour of a pass, from the first one's to the last one's. */
export function colour(pass, passes) {
  const share = (pass - 1) / Math.max(1, passes - 1);
  return `rgb(${EARLY.map((each, i) => Math.round(each + share * (LATE[i] - each))).join(" ")})`;
}

/** For each place the characters that stand there behind a pass, and the pass that put them there. */
export function placesAt({ order, pieces }, pass) {
  const last = pieces.map(() => 0), first = pieces.map(() => Infinity);
  for (const each of order) {
    first[each.place] = Math.min(first[each.place], each.pass);
    last[each.place] = Math.max(last[each.place], each.pass);
  }
  return pieces.map((piece, place) => {
    if (last[place] <= pass) return { text: piece, pass: last[place] };
    return { text: first[place] <= pass ? CHANGED : OPEN, pass: 0 };
  });
}

function show(pass) {
  $("scrub").value = pass;
  const spans = placesAt(told, pass).map((each) => {
    const span = make("span", each.pass === pass && pass ? { class: "now" } : {}, each.text);
    if (each.pass) span.style.borderBottomColor = colour(each.pass, told.passes);
    return span;
  });
  $("places").replaceChildren(...spans);
}

function replay() {
  clearInterval(timer);
  let pass = matchMedia("(prefers-reduced-motion: reduce)").matches ? told.passes : 0;
  show(pass);
  const step = 1000 * Math.min(LONGEST, SECONDS / told.passes);
  timer = setInterval(() => {
    if (pass < told.passes) show(pass += 1);
    else clearInterval(timer);
  }, step);
}

function complain(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

function refused(error) {
  $("locked").hidden = error.status !== 401;
  complain(error instanceof Refused ? error.message : "The server cannot be reached.");
}

async function write() {
  complain("");
  $("send").disabled = true;
  const body = {
    model: $("model").value || undefined, prompt: $("text").value,
    max_tokens: Number($("tokens").value), temperature: Number($("temperature").value),
    seed: Number($("seed").value), speculative: { method: $("method").value, trace: true },
  };
  try {
    let metrics = null;
    await stream(body, undefined, (chunk) => { metrics = chunk.metrics ?? metrics; }, "v1/completions");
    [told] = metrics.details;
    const made = `${count(told.pieces.length, "token")} in ${count(told.passes, "pass", "passes")}`;
    $("measures").textContent = `${made}, ${told.tokens_per_pass.toFixed(2)} a pass`;
    $("status").textContent = $("measures").textContent;
    $("scrub").max = told.passes;
    $("shown").hidden = false;
    replay();
  } catch (error) {
    refused(error);
  } finally {
    $("send").disabled = false;
  }
}

async function learn() {
  const asked = $("model").value;
  try {
    const facts = await read(asked ? `page.json?model=${encodeURIComponent(asked)}` : "page.json");
    const { model, models, machine, methods } = facts;
    $("choice").hidden = models.length < 2;
    $("model").replaceChildren(...models.map(({ name }) => make("option", { value: name }, name)));
    $("model").value = model;
    $("serving").textContent = `${models.length < 2 ? model : ""} ${machine ? `on ${machine}` : ""}`;
    $("method").replaceChildren(...methods.map(({ name, summary }) =>
      make("option", { value: name, title: summary }, name)));
    $("method").value = facts.method;
    $("locked").hidden = true;
    $("send").disabled = facts.token_by_token;
    complain(facts.token_by_token ? `${model} writes from left to right; serve a model that fills`
      + " masks, such as stories-diffusion." : "");
  } catch (error) {
    refused(error);
  }
}

$("write").addEventListener("submit", (event) => {
  event.preventDefault();
  write();
});
$("scrub").addEventListener("input", () => {
  clearInterval(timer);
  show(Number($("scrub").value));
});
$("again").addEventListener("click", replay);
$("model").addEventListener("input", learn);
$("key").addEventListener("change", () => {
  useKey($("key").value.trim());
  learn();
});
learn();
