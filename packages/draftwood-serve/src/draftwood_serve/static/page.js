import { Refused, costsOf, read, stream, useKey, whole } from "./api.js";
import { EXAMPLES } from "./examples.js";
import { Race } from "./race.js";
import { Record, count, make, pose } from "./record.js";
import { forget, keep, kept } from "./store.js";
import { inWords, treeOf } from "./tree.js";

const $ = (id) => document.getElementById(id);
const EDITABLE = "input, textarea, select";
const SCROLLING = /^(Page|ArrowUp|ArrowDown|Home|End)/;

const state = {
  facts: null,  // of this server
  turns: [],  // of the conversation, as they are kept
  coming: null,  // the turn that is being written
  waiting: [],  // messages that are sent when it is
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

/** The conversation as the model reads it. */
const said = () => [
  ...state.turns.flatMap(({ question, answer, thought }) => [
    { role: "user", content: question },
    { role: "assistant", content: answer, reasoning_content: thought },
  ]),
  { role: "user", content: state.coming.question },
];

const field = (id) => ($(id).value === "" ? undefined : Number($(id).value));

function wish(method, seed) {
  const speculative = { method, trace: "tree" };
  if (field("budget") !== undefined && method !== "plain") speculative.budget = field("budget");
  return {
    model: $("model").value || undefined, messages: said(), temperature: field("temperature"), seed,
    max_tokens: field("tokens"), speculative,
  };
}

function busy(controller) {
  const focused = document.activeElement;
  state.running = controller;
  $("stop").hidden = !controller;
  $("send").textContent = controller ? "Queue" : "Send";
  $("race").hidden = Boolean(controller);
  $("clear").hidden = !state.turns.length || Boolean(controller);
  $("examples").hidden = Boolean(state.turns.length || controller);
  if (focused === $("race")) $("stop").focus();
  else if (focused === $("stop")) $("prompt").focus();
}

/** The question, if there is one and all settings hold. */
function question() {
  if (!$("prompt").value.trim()) {
    $("prompt").focus();
    return null;
  }
  if (!$("ask").checkValidity()) {
    $("settings").open = true;
    $("ask").reportValidity();
    return null;
  }
  const text = $("prompt").value.trim();
  put("");
  return text;
}

function put(text) {
  $("prompt").value = text;
  grow();
}

/** Hold a message back until the answer ends. */
function queue(text) {
  state.waiting.push(text);
  showWaiting();
  say("It waits for the answer to end.");
}

function showWaiting() {
  $("waiting").replaceChildren(...state.waiting.map((text, place) => {
    const item = make("li");
    const button = make("button", { class: "quiet", type: "button" }, "Take back");
    button.addEventListener("click", () => takeBack(place, 1));
    item.append(make("span", {}, text), button);
    return item;
  }));
}

/** Put waiting messages back into the box. */
function takeBack(from, number) {
  const taken = state.waiting.splice(from, number);
  showWaiting();
  put([$("prompt").value, ...taken].filter(Boolean).join("\n\n"));
  $("prompt").focus();
}

/** Ask; faults are said, and a missing key is asked for again. */
async function attempt(turn, run) {
  const controller = new AbortController();
  state.coming = turn;
  complain("");
  busy(controller);
  try {
    await run(controller.signal);
  } catch (error) {
    turn.answer = turn.thought = "";
    if (!$("prompt").value) put(turn.question);
    if (state.waiting.length) takeBack(0, state.waiting.length);
    if (error.status === 401) askForKey();
    else complain(error instanceof Refused ? error.message : "The server cannot be reached.");
  }
  state.coming = null;
  // else roles would not take turns
  if (turn.answer || turn.thought) state.turns.push(turn);
  keep(state.turns);
  busy(null);
  const [next] = state.waiting.splice(0, 1);
  showWaiting();
  if (next) chat(next);
}

/** The card of a question and its answer. */
function cardOf(question) {
  const card = $("turn").content.cloneNode(true).firstElementChild;
  const record = new Record(card.querySelector(".answer"));
  pose(card, question);
  listen(card, record);
  enter(card);
  const [measures, costs] = [".measures", ".costs"].map((each) => card.querySelector(each));
  const weigh = (told) => {
    costs.hidden = !told;
    costs.querySelector("summary").textContent = told?.[0] ?? "";
    costs.querySelector("p").textContent = told?.[1] ?? "";
  };
  return { card, record, measures, weigh };
}

/** One of the server's models. */
const servedModel = (name) => state.facts?.models.find((each) => each.name === name);

function chat(question) {
  const { card, record, measures, weigh } = cardOf(question);
  const turn = { question, answer: "", thought: "", measures: "", costs: null, steps: record.steps };
  return attempt(turn, async (signal) => {
    let seed;
    const take = (chunk) => {
      const choice = chunk.choices[0];
      turn.answer += choice?.delta.content ?? "";
      turn.thought += choice?.delta.reasoning_content ?? "";
      seed = chunk.metrics?.seed ?? seed;
      if (chunk.metrics) weigh(turn.costs = costsOf(chunk.metrics));
      if (!choice?.step) return;
      record.add(choice.step);
      if (state.live) show(record, record.passes);
      tell(`${record.speed.toFixed(0)} tokens/s · ${record.measures}`);
      sink();
    };
    const tell = (text) => { measures.textContent = turn.measures = text; };
    let sinks = true, lowest = 0;  // until the reader scrolls
    const sink = () => sinks && scrollTo(0, document.body.scrollHeight);
    const over = new AbortController();
    const leave = ({ type, key }) => {
      const end = document.body.scrollHeight - innerHeight - 4;
      if (type === "scroll" ? scrollY < Math.min(lowest, end) : !key || SCROLLING.test(key)) sinks = false;
      lowest = scrollY;
    };
    for (const by of ["wheel", "touchmove", "keydown", "scroll"]) {
      addEventListener(by, leave, { passive: true, signal: over.signal });
    }
    state.live = true;
    const chosen = $("model").value;
    if (!servedModel(chosen)?.loaded) measures.textContent = "The model is being loaded …";
    let stopped = "";
    try {
      await stream(wish($("method").value, field("seed")), signal, take);
    } catch (error) {
      const none = !record.steps.length;
      if (none) card.remove();
      if (!signal.aborted) throw error;
      if (none && !$("prompt").value) put(question);
      stopped = " · stopped";
    } finally {
      record.draw();
      if (state.live && record.passes > 0) show(record, record.best);
      state.live = false;
      requestAnimationFrame(() => requestAnimationFrame(sink));
      over.abort();
    }
    const answered = servedModel(chosen);
    if (answered && !answered.loaded && record.steps.length) {
      answered.loaded = true;
      $("model").querySelector(`[value="${CSS.escape(chosen)}"]`).textContent = chosen;
    }
    tell(`${turn.measures}${seed === undefined ? "" : ` · seed ${seed}`}${stopped}`);
    say(`${stopped ? "Stopped. " : ""}${turn.answer}`);
  });
}

function race(question) {
  const method = $("method").value;
  const named = state.facts?.methods.find((each) => each.name === method);
  const made = new Race(question, "Written plainly first …", follow, say);
  const turn = { question, answer: "" };
  enter(made.card);
  return attempt(turn, async (signal) => {
    try {
      const plain = await whole(wish("plain", field("seed")), signal);
      made.tell(`Written plainly. Now with drafting, by ${method}, with the same seed …`);
      const trees = await whole(wish(method, plain.seed), signal);
      const differ = !named?.same_text && field("temperature") > 0;
      const order = `Both written one after the other, with seed ${plain.seed}.`;
      const note = [order, trees.costs?.[1]].filter(Boolean).join(" With drafting: ");
      const measures = "";
      Object.assign(turn, { answer: plain.text, measures, note, race: [plain, trees, method, differ] });
      fillRace(made, turn);
      made.play();
    } catch (error) {
      made.tell(signal.aborted ? "Stopped." : "It could not be written.");
      if (!signal.aborted) throw error;
    }
  });
}

function fillRace(made, turn) {
  made.tell(turn.note);
  made.fill(...turn.race);
  made.records.forEach((record, lane) => listen(made.lanes[lane], record));
}

/** Show a turn of the last visit; one that was kept without its steps is a single one. */
function restore(turn) {
  const { question, answer, measures, costs, steps } = turn;
  if (turn.race) {
    const made = new Race(question, "", follow, () => {});
    enter(made.card);
    fillRace(made, turn);
    made.play(true);
    return;
  }
  const { record, measures: home, weigh } = cardOf(question);
  const alone = { tokens: [answer], drafted: 0, accepted: 0, ms: 0, elapsed_ms: 0, tree: null };
  (steps ?? [alone]).forEach((step) => record.add(step));
  record.draw();
  home.textContent = measures;
  weigh(costs);
  if (record.passes > 0) show(record, record.best);
}

/** The conversation of the last visit, if this browser kept one. */
function restoreAll() {
  try {
    kept().forEach((turn) => {
      restore(turn);
      state.turns.push(turn);
    });
  } catch {  // of another version
    clear();
  }
}

function clear() {
  state.turns = [];
  state.record = followed = null;
  $("log").replaceChildren();
  $("steps").hidden = true;
  forget();
  busy(null);
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

/** Make the box as high as its text; the style sheet holds the limit. */
function grow() {
  const box = $("prompt");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + box.offsetHeight - box.clientHeight}px`;
}

function settingsSaid() {
  const method = state.facts?.methods.find((each) => each.name === $("method").value);
  $("method-said").textContent = method ? `${method.name}: ${method.summary}` : "";
  const heat = field("temperature") ? `temperature ${field("temperature")}` : "likeliest words";
  const seed = field("seed") === undefined ? "random seed" : `seed ${field("seed")}`;
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
      learn($("model").value);
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

/** What this server can do, with its first model or the one of a name. */
async function learn(name) {
  const former = $("model").value;
  try {
    const facts = await read(name ? `page.json?model=${encodeURIComponent(name)}` : "page.json");
    if ($("model").value !== former) return;  // another was chosen meanwhile
    state.facts = facts;
  } catch (error) {
    if (error.status === 401) askForKey();
    else complain(error instanceof Refused ? error.message : "The server cannot be reached.");
    return;
  }
  const { model, models, machine, method, methods, panels } = state.facts;
  complain("");
  $("choice").hidden = models.length < 2;
  $("model").replaceChildren(...models.map(({ name, loaded }) => {
    const option = make("option", { value: name }, loaded ? name : `${name} (not loaded yet)`);
    option.selected = name === model;
    return option;
  }));
  const where = machine ? `on ${machine}` : "";
  $("serving").textContent = models.length < 2 ? `${model} ${where}` : where;
  $("method").replaceChildren(...methods.map(({ name, summary }) => {
    const option = make("option", { value: name, title: summary }, name);
    option.selected = name === method;
    return option;
  }));
  $("panels").replaceChildren(...panels.map((href) => make("a", { href }, href)));
  settingsSaid();
}

/** The race that comes with the page. */
async function recorded() {
  const { prompt, model, machine, date, method, plain, trees } = await read("race.json");
  const note = `Recorded: ${model} on ${machine}, ${date}. A block is a forward pass:`
    + " wide as it took, high as it gave tokens.";
  const made = new Race(prompt, note, follow, () => {});
  fillRace(made, { note, race: [plain, trees, method, false] });
  made.pace.value = "10";  // it would be over before it is seen
  $("log").prepend(made.card);
  made.play();
}

$("ask").noValidate = true;
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = question();
  if (text) (state.running ? queue : chat)(text);
});
$("race").addEventListener("click", () => {
  const text = state.running ? null : question();
  if (text) race(text);
});
$("stop").addEventListener("click", () => state.running?.abort());
$("clear").addEventListener("click", () => {
  clear();
  $("prompt").focus();
});
addEventListener("pagehide", () => {
  if (!state.coming?.answer && !state.coming?.thought) return;
  state.turns.push({ ...state.coming });  // its request ends with the page
  keep(state.turns);
});
$("examples").append(...EXAMPLES.map(([name, text]) => {
  const chip = make("button", { class: "chip", type: "button" }, name);
  chip.addEventListener("click", () => {
    put(text);
    $("prompt").focus();
  });
  return chip;
}));
$("prompt").addEventListener("input", grow);
addEventListener("resize", grow);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
$("settings").addEventListener("input", settingsSaid);
$("model").addEventListener("change", () => learn($("model").value));
$("scrub").addEventListener("input", () => go(Number($("scrub").value)));
$("back").addEventListener("click", () => go(state.step - 1));
$("on").addEventListener("click", () => go(state.step + 1));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing && !$("key-asked").open) state.running?.abort();
  const writes = event.target.closest?.(EDITABLE) && event.target.value !== "";
  if (writes || event.altKey || event.ctrlKey || event.metaKey) return;
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || !state.record) return;
  event.preventDefault();
  go(state.step + by);
});
$("prompt").focus({ preventScroll: true });
restoreAll();
busy(null);
if (!state.turns.length) recorded().catch(() => complain("The recorded race cannot be shown."));
learn();
