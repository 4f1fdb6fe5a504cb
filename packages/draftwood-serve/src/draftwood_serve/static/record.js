// A text with the forward passes that wrote it. Model text is set as textContent alone.

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

export class Record {
  /**
   * @param home element that takes the text
   * @param later whether tokens wait until they are revealed
   */
  constructor(home, later = false) {
    this.home = home;
    this.later = later;
    this.steps = [];
    this.spans = [];  // of each step
    this.tokens = 0;
    this.drafted = 0;
    this.widest = 0;
  }

  add(step) {
    const number = this.steps.push(step) - 1;
    const proposers = proposersOf(step);
    const spans = step.tokens.map((text, place) => {
      const { look } = originOf(proposers[place]);
      const said = proposers[place].join(" and ") || "the model itself";
      const span = make("span", { class: `t ${look}`, title: `from ${said}` }, text);
      span.dataset.step = number;
      if (this.later) span.classList.add("later");
      return span;
    });
    this.home.append(...spans);
    this.spans.push(spans);
    this.tokens += step.tokens.length;
    this.drafted += step.drafted;
    this.widest = Math.max(this.widest, step.drafted);
  }

  reveal(number, shown = true) {
    for (const span of this.spans[number]) span.classList.toggle("later", !shown);
  }

  mark(number, now) {
    for (const span of this.spans[number] ?? []) span.classList.toggle("now", now);
  }

  /** Milliseconds from the first token to the end of a step. */
  at(number) {
    return this.steps[number].elapsed_ms - this.steps[0].elapsed_ms;
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
    return this.spans.slice(0, number).flat().map((each) => each.textContent).join("");
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
