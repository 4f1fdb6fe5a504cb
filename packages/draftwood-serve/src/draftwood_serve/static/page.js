import { Refused, read, stream, useKey, whole } from "./api.js";
import { Race } from "./race.js";
import { Record, count, make } from "./record.js";
import { inWords, treeOf } from "./tree.js";

const $ = (id) => document.getElementById(id);
const EDITABLE = "input, textarea, select";
const SCROLLING = ["PageUp", "PageDown", "ArrowUp", "ArrowDown", "Home", "End"];

const state = {
  facts: null,  // of this server
  messages: [],
  running: null,  // what can be stopped
  record: null,  // whose steps are shown
  step: 0,
  live: false,  // whether the newest step is shown as it comes
};

const say = (text) => { $("status").textContent = text; };

function complain(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

// the forward passes

let waiting = false;

/** Show a step of a record; many calls within a frame draw once. */
function show(record, number) {
  state.record?.mark(state.step, false);
  state.record = record;
  state.step = number;
  if (!waiting) {
    waiting = true;
    requestAnimationFrame(paint);
  }
}

function paint() {
  waiting = false;
  const { record, step: number } = state;
  const step = record?.steps[number];
  $("steps").hidden = !step?.tree;
  if (!step?.tree) return;
  record.mark(number, true);
  $("step-number").textContent = `${number} of ${record.passes}`;
  const said = [
    [step.drafted, step.drafted === 1 ? "draft token" : "draft tokens"],
    [step.accepted, "accepted"],
    [step.tokens.length, `${step.tokens.length === 1 ? "token" : "tokens"} written`],
  ];
  $("step-said").replaceChildren(...said.flatMap(([figure, word], place) => [
    place ? " · " : "", make("b", {}, String(figure)), ` ${word}`,
  ]), ` · ${step.ms.toFixed(1)} ms`);
  Object.assign($("scrub"), { min: 1, max: record.passes, value: number });
  $("scrub").setAttribute("aria-valuetext", `${number} of ${record.passes}. ${inWords(step)}`);
  $("back").disabled = number <= 1;
  $("on").disabled = number >= record.passes;
  const before = record.before(number).replaceAll("\n", " ↵ ");
  const cut = before.slice(-80).replace(/^\S*\s/, "… ");
  $("before").textContent = before.length > 80 ? cut : before;
  $("canvas").replaceChildren(treeOf(step));
  if (!state.live) legend(record);
}

function legend(record) {
  $("legend").replaceChildren(...record.origins.map((origin) => {
    const item = make("li");
    item.append(make("span", { class: `t ${origin.look}` }, origin.name));
    item.append(origin.look === "own"
      ? `drew ${count(origin.kept, "token")}`
      : `${origin.told && `${origin.told}: `}${origin.kept} of ${origin.drafted} accepted`);
    return item;
  }));
}

/** Go to a step by hand: nothing else moves it from then on. */
function go(number) {
  const { record } = state;
  if (!record || number < 1 || number > record.passes) return;
  state.live = false;
  show(record, number);
}

// asking

const field = (id) => ($(id).value === "" ? undefined : Number($(id).value));

function wish(method, seed) {
  const speculative = { method, trace: "tree" };
  if (field("budget") !== undefined && method !== "plain") speculative.budget = field("budget");
  return {
    messages: state.messages, temperature: field("temperature"), seed,
    max_tokens: field("tokens"), speculative,
  };
}

function busy(controller) {
  const focused = document.activeElement;
  state.running = controller;
  $("stop").hidden = !controller;
  $("send").hidden = $("race").hidden = Boolean(controller);
  $("clear").hidden = !state.messages.length || Boolean(controller);
  if (focused === $("send") || focused === $("race")) $("stop").focus();
  else if (focused === $("stop")) $("prompt").focus();
}

/** The question, if there is one and all settings hold. */
function question() {
  if (state.running || !$("prompt").value.trim()) {
    $("prompt").focus();
    return null;
  }
  if (!$("ask").checkValidity()) {
    $("settings").open = true;
    $("ask").reportValidity();
    return null;
  }
  const text = $("prompt").value.trim();
  $("prompt").value = "";
  grow();
  return text;
}

/** Ask; what goes wrong is said, and a missing key is asked for once more. */
async function attempt(text, run) {
  const controller = new AbortController();
  const before = state.messages;
  state.messages = [...before, { role: "user", content: text }];
  complain("");
  busy(controller);
  let answer = "";
  try {
    answer = await run(controller.signal);
  } catch (error) {
    $("prompt").value ||= text;
    if (error.status === 401) askForKey();
    else complain(error instanceof Refused ? error.message : "The server cannot be reached.");
  }
  // a question without an answer would break templates in which the roles take turns
  state.messages = answer ? [...state.messages, { role: "assistant", content: answer }] : before;
  busy(null);
}

function chat(text) {
  const turn = $("turn").content.cloneNode(true).firstElementChild;
  const measures = turn.querySelector(".measures");
  const record = new Record(turn.querySelector(".answer"));
  turn.querySelector(".question").textContent = text;
  listen(turn, record);
  enter(turn);
  return attempt(text, async (signal) => {
    let answer = "", seed;
    const take = (chunk) => {
      const choice = chunk.choices[0];
      answer += choice?.delta.content ?? "";
      seed = chunk.metrics?.seed ?? seed;
      if (!choice?.step) return;
      record.add(choice.step);
      if (state.live) show(record, record.passes);
      measures.textContent = `${record.speed.toFixed(0)} tokens/s · ${record.measures}`;
      sink();
    };
    let sinks = true;  // until the reader scrolls, by hand or by key
    const sink = () => sinks && scrollTo(0, document.body.scrollHeight);
    const over = new AbortController();
    const leave = ({ key }) => { if (!key || SCROLLING.includes(key)) sinks = false; };
    for (const by of ["wheel", "touchmove", "keydown"]) {
      addEventListener(by, leave, { passive: true, signal: over.signal });
    }
    state.live = true;
    let stopped = "";
    try {
      await stream(wish($("method").value, field("seed")), signal, take);
    } catch (error) {
      if (!record.steps.length) turn.remove();
      if (!signal.aborted) throw error;
      stopped = " · stopped";
    } finally {
      if (state.live && record.passes > 0) show(record, record.best);
      state.live = false;
      requestAnimationFrame(() => requestAnimationFrame(sink));
      over.abort();
    }
    measures.textContent += `${seed === undefined ? "" : ` · seed ${seed}`}${stopped}`;
    say(`${stopped ? "Stopped. " : ""}${answer}`);
    return answer;
  });
}

function race(text) {
  const method = $("method").value;
  const named = state.facts?.methods.find((each) => each.name === method);
  const made = new Race(text, "Written plainly first …", follow, say);
  enter(made.card);
  return attempt(text, async (signal) => {
    try {
      const plain = await whole(wish("plain", field("seed")), signal);
      made.tell(`Written plainly. Now with draft trees, by ${method}, with the same seed …`);
      const trees = await whole(wish(method, plain.seed), signal);
      made.tell(`Both written just now, one after the other, with seed ${plain.seed}.`);
      const differ = !named?.same_text && field("temperature") > 0;
      made.fill(plain, trees, method, differ);
      made.records.forEach((record, lane) => listen(made.lanes[lane], record));
      made.play();
      return plain.text;
    } catch (error) {
      made.tell(signal.aborted ? "Stopped." : "It could not be written.");
      if (signal.aborted) return "";
      throw error;
    }
  });
}

/** What a replay shows, unless somebody steps by hand. */
let followed = null;

function follow(record, number, ended) {
  if (number === 0) {  // it begins
    followed = record;
    state.live = true;
  }
  if (followed !== record || !state.live) return;
  state.live = !ended;
  show(record, number);
}

/** A click on a token shows the pass that wrote it. */
function listen(home, record) {
  home.addEventListener("click", ({ target }) => {
    const number = Number(target.dataset?.step ?? 0);
    if (!record.steps[number]?.tree) return;
    state.live = false;
    show(record, number);
  });
}

function enter(card) {
  followed = null;
  $("log").append(card);
  card.scrollIntoView({ block: "start" });
}

// the page

function grow() {
  $("prompt").rows = Math.min(6, Math.max(1, $("prompt").value.split("\n").length));
}

function settingsSaid() {
  const method = state.facts?.methods.find((each) => each.name === $("method").value);
  $("method-said").textContent = method ? `${method.name}: ${method.summary}` : "";
  const heat = field("temperature") ? `temperature ${field("temperature")}` : "greedy";
  const seed = field("seed") === undefined ? "any seed" : `seed ${field("seed")}`;
  $("settings-said").textContent = method
    ? `Settings: ${method.name} · ${heat} · ${seed}` : "Settings";
}

function askForKey() {
  const dialog = $("key-asked");
  const done = (given) => {
    dialog.close();
    $("key").value = "";
    if (given) {
      useKey(given);
      learn();
    } else {
      complain("This server answers nobody without its API key; reload the page to give it.");
    }
  };
  $("key-form").onsubmit = (event) => {
    event.preventDefault();
    done($("key").value.trim());
  };
  $("key-not").onclick = () => done("");
  dialog.oncancel = () => done("");
  dialog.showModal();
}

/** What this server can do. */
async function learn() {
  try {
    state.facts = await read("page.json");
  } catch (error) {
    if (error.status === 401) askForKey();
    else complain(error instanceof Refused ? error.message : "The server cannot be reached.");
    return;
  }
  const { model, machine, method, methods } = state.facts;
  complain("");
  $("serving").textContent = `${model} on ${machine}`;
  $("method").replaceChildren(...methods.map(({ name, summary }) => {
    const option = make("option", { value: name, title: summary }, name);
    option.selected = name === method;
    return option;
  }));
  settingsSaid();
}

/** The race that comes with the page. */
async function recorded() {
  const { prompt, model, machine, date, method, seed, plain, trees } = await read("race.json");
  const note = `A recorded race: ${model} on ${machine}, ${date}, seed ${seed}. Each block is one`
    + " forward pass: as wide as it took, as high as it gave tokens.";
  const made = new Race(prompt, note, follow, () => {});
  made.fill(plain, trees, method, false);
  made.records.forEach((record, lane) => listen(made.lanes[lane], record));
  $("log").prepend(made.card);
  made.play();
}

$("ask").noValidate = true;
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = question();
  if (text) chat(text);
});
$("race").addEventListener("click", () => {
  const text = question();
  if (text) race(text);
});
$("stop").addEventListener("click", () => state.running?.abort());
$("clear").addEventListener("click", () => {
  state.messages = [];
  state.record = followed = null;
  $("log").replaceChildren();
  $("steps").hidden = true;
  busy(null);
  $("prompt").focus();
});
$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
$("settings").addEventListener("input", settingsSaid);
$("scrub").addEventListener("input", () => go(Number($("scrub").value)));
$("back").addEventListener("click", () => go(state.step - 1));
$("on").addEventListener("click", () => go(state.step + 1));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("key-asked").open) state.running?.abort();
  const writes = event.target.closest?.(EDITABLE) && event.target.value !== "";
  if (writes || event.altKey || event.ctrlKey || event.metaKey) return;
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || !state.record) return;
  event.preventDefault();
  go(state.step + by);
});
$("prompt").focus({ preventScroll: true });
recorded().catch(() => complain("The recorded race cannot be shown."));
learn();
