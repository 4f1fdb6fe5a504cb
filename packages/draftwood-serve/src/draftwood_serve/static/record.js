// A text with the forward passes that wrote it. Model text is set as textContent alone.

import { looksOf } from "./markdown.js";

export function make(tag, attributes = {}, text = "") {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

export function draw(tag, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

export const count = (number, word, more = `${word}s`) => `${number} ${number === 1 ? word : more}`;

const ORIGINS = new Map([
  ["suffix", ["copy", "copied from the text so far"]],
  ["prediction", ["copy", "copied from the predicted text"]],
  ["n-grams", ["seen", "what the model held likely here before"]],
  ["bigram-prior", ["habit", "the model's usual next words"]],
  ...["eagle", "medusa", "hydra", "ctc", "lm"].map((name) => [name, ["head", "a trained head"]]),
]);

/** How a token looks and what it is called, by those who proposed it; nobody: the model drew it. */
export function originOf(proposers) {
  if (!proposers.length) return { look: "own", name: "the model itself", told: "" };
  const [look, told] = ORIGINS.get(proposers[0]) ?? ["other", ""];
  return { look, name: proposers[0], told };
}

/** For each token that a step wrote, who proposed it. */
const proposersOf = (step) => step.tokens.map(
  (_, place) => (place < step.accepted ? step.tree.proposers[step.tree.path[place]] : []),
);

const BLOCKS = { text: "p", item: "ul", code: "pre", table: "pre", quote: "blockquote", heading: "h3" };
const TAGS = { strong: "strong", em: "em", inline: "code" };

/** Markdown that comes piece by piece: only its last line is ever set again. */
export class Lines {
  constructor(home) {
    this.home = home;
    this.parts = [];  // of the last line
    this.fence = null;  // that the last line stands in
    this.block = null;  // of the line before: its kind and element
    this.line = this.begun = null;  // the last line, and the block that it began
  }

  add(text, attributes = {}) {
    for (const each of text.split(/(?<=\n)/)) {
      this.parts.push({ text: each, attributes });
      if (each.endsWith("\n")) this.end();
    }
  }

  end() {
    const { block, fence, closes } = this.draw();
    Object.assign(this, { block: closes ? null : block, fence, parts: [], line: null, begun: null });
  }

  /** Show all that has come. */
  show() {
    if (this.parts.length) this.draw();
  }

  /** Set the last line, in place of what it was. */
  draw() {
    this.line?.remove();
    this.begun?.remove();
    const text = this.parts.map((part) => part.text).join("");
    const line = text.replace(/\n$/, "");
    const { kind, runs, fence, closes, depth } = looksOf(line, this.fence);
    const joins = this.block?.kind === kind;
    const block = joins ? this.block : { kind, element: make(BLOCKS[kind] ?? "div", { class: kind }) };
    this.begun = joins ? null : block.element;
    if (!joins) this.home.append(block.element);
    this.line = make(kind === "item" ? "li" : "span", { class: `line ${depth ? `deep${depth}` : ""}` });
    block.element.append(this.line);
    this.fill([...runs, [text.slice(line.length), "mark"]]);
    return { block, fence, closes };
  }

  /** Runs tell the looks, parts who wrote: a span for each piece that has one of both. */
  fill(runs) {
    let number = 0, from = 0;
    for (const [text, look] of runs) {
      const home = look ? make(TAGS[look.split(" ").at(-1)] ?? "span", { class: look }) : this.line;
      for (let left = text.length; left > 0;) {
        const part = this.parts[number];
        const piece = part.text.slice(from, from + left);
        if (piece) home.append(make("span", part.attributes, piece));
        left -= piece.length;
        from += piece.length;
        if (from === part.text.length) [number, from] = [number + 1, 0];
      }
      if (look && text) this.line.append(home);
    }
  }
}

const LONG = 4;  // lines of a question that is folded

/** Show a question; of a long one its first line, and the rest where it is asked for. */
export function pose(card, text) {
  const long = text.split("\n").length > LONG;
  card.querySelector(".question").textContent = long ? text.split("\n")[0] : text;
  if (!long) return;
  const whole = make("details", { class: "whole" });
  const home = make("div", { class: "answer" });
  const lines = new Lines(home);
  lines.add(text);
  lines.show();
  whole.append(make("summary", {}, "The whole question"), home);
  card.querySelector(".question").after(whole);
}

export class Record {
  /**
   * @param home element that takes the text
   * @param later whether tokens wait until they are revealed
   */
  constructor(home, later = false) {
    this.home = home;
    this.later = later;
    this.lines = new Lines(home);
    this.frame = null;  // in which the last line is drawn
    this.marked = null;
    this.steps = [];
    this.ends = [];  // milliseconds, of each step
    this.tokens = 0;
    this.drafted = 0;
    this.widest = 0;
  }

  add(step) {
    const number = this.steps.push(step) - 1;
    this.time(number);
    const proposers = proposersOf(step);
    step.tokens.forEach((text, place) => {
      const { look } = originOf(proposers[place]);
      const said = proposers[place].join(" and ") || "the model itself";
      this.lines.add(text, {
        class: `t ${look}${this.later ? " later" : ""}`, title: `from ${said}`, "data-step": number,
      });
    });
    this.frame ??= requestAnimationFrame(() => this.draw());
    this.tokens += step.tokens.length;
    this.drafted += step.drafted;
    this.widest = Math.max(this.widest, step.drafted);
  }

  /** Time a step. Steps that were sent together share their time, by what each took. */
  time(number) {
    const { steps, ends } = this;
    const alone = (at) => steps[at].elapsed_ms - steps[at - 1].elapsed_ms > steps[at].ms / 2;
    let from = number;
    while (from > 1 && !alone(from)) from -= 1;
    const begun = ends[from - 1] ?? 0, spent = steps[number].elapsed_ms - begun;
    const row = steps.slice(from);
    const total = row.reduce((sum, { ms }) => sum + ms, 0);
    let taken = 0;
    row.forEach(({ ms }, place) => {
      taken += ms;
      ends[from + place] = begun + (total ? (spent * taken) / total : spent);
    });
  }

  /** Set what has come; many steps within a frame are set once. */
  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.lines.show();
    if (this.marked !== null) this.mark(this.marked, true);
  }

  of(number) {
    return this.home.querySelectorAll(`[data-step="${number}"]`);
  }

  reveal(number, shown = true) {
    for (const span of this.of(number)) span.classList.toggle("later", !shown);
  }

  mark(number, now) {
    this.marked = now ? number : null;
    for (const span of this.of(number)) span.classList.toggle("now", now);
  }

  /** Milliseconds from the first token to the end of a step. */
  at(number) {
    return this.ends[number] - this.ends[0];
  }

  get passes() { return this.steps.length - 1; }  // behind the prompt's
  get written() { return this.tokens - (this.steps[0]?.tokens.length ?? 0); }
  get span() { return this.steps.length ? this.at(this.passes) : 0; }
  get speed() { return this.span > 0 ? (1e3 * this.written) / this.span : 0; }
  get perPass() { return this.passes > 0 ? this.written / this.passes : 1; }

  get measures() {
    const said = [
      `${this.perPass.toFixed(2)} tokens per forward pass`,
      count(this.passes, "pass", "passes"),
    ];
    if (this.drafted) {
      const mean = (this.drafted / this.passes).toFixed(1);
      said.push(`${mean} drafted, at most ${this.widest}`);
    }
    return said.join(" · ");
  }

  /** The text before a step. */
  before(number) {
    return this.steps.slice(0, number).flatMap((step) => step.tokens).join("");
  }

  /** The step that shows most: some draft tokens were accepted, and some were not. */
  get best() {
    const gain = ({ accepted, drafted }) => 2 * accepted + 3 * (drafted > accepted)
      + Math.min(drafted - accepted, 3);
    let best = Math.min(1, this.passes);
    this.steps.forEach((step, number) => {
      if (number && gain(step) > gain(this.steps[best])) best = number;
    });
    return best;
  }

  /** Who proposed what was kept: name, look, told, and how much of what was drafted. */
  get origins() {
    const found = new Map();
    const of = (proposers) => {
      const origin = originOf(proposers);
      if (!found.has(origin.name)) found.set(origin.name, { ...origin, drafted: 0, kept: 0 });
      return found.get(origin.name);
    };
    for (const step of this.steps) {
      for (const proposers of proposersOf(step)) of(proposers).kept += 1;
      for (const proposers of step.tree?.proposers.slice(1) ?? []) of(proposers).drafted += 1;
    }
    return [...found.values()].sort((a, b) => b.kept - a.kept);
  }
}
