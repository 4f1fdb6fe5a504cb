// Two records of one text, replayed side by side at the speed at which they were written.

import { Record, draw, make, pose } from "./record.js";

const HEIGHT = 40, TALLEST = 8;  // a block of so many tokens fills the strip
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** Where two texts part: number of the first token that differs, or null. */
export function parting(plain, trees) {
  const one = plain.steps.flatMap((step) => step.tokens);
  const other = trees.steps.flatMap((step) => step.tokens);
  const place = one.findIndex((token, number) => token !== other[number]);
  if (place >= 0) return place;
  const equal = one.length === other.length && plain.tokens === trees.tokens;
  return equal && plain.text === trees.text ? null : one.length;
}

export class Race {
  /**
   * @param follow called with the record of the trees and the number of a step
   * @param said called with the outcome, once it is seen
   */
  constructor(question, note, follow, said) {
    this.card = document.getElementById("race-card").content.cloneNode(true).firstElementChild;
    this.lanes = [...this.card.querySelectorAll(".lane")];
    pose(this.card, question);
    this.follow = follow;
    this.said = said;
    this.card.querySelector(".after").hidden = true;
    this.pace = this.card.querySelector("select");
    this.card.querySelector(".replay").addEventListener("click", () => this.play());
    this.pace.addEventListener("change", () => this.play());
    this.which = [...this.card.querySelectorAll(".which button")];
    this.which.forEach((each, lane) => each.addEventListener("click", () => this.read(lane)));
    this.read(1);
    this.tell(note);
  }

  /** Show the text of one lane, where there is no room for both. */
  read(lane) {
    this.which.forEach((each, place) => each.setAttribute("aria-pressed", place === lane));
    this.lanes.forEach((each, place) => each.classList.toggle("read", place === lane));
  }

  tell(note) {
    this.card.querySelector(".note").textContent = note;
  }

  /** Take what was written plainly and with trees. */
  fill(plain, trees, method, mayDiffer) {
    const answers = [plain, trees];
    this.records = this.lanes.map((lane, number) => {
      const record = new Record(lane.querySelector(".answer"), true);
      answers[number].steps.forEach((step) => record.add(step));
      record.draw();
      lane.querySelector(".speed b").textContent = record.speed.toFixed(0);
      lane.querySelector(".measures").textContent = record.measures;
      return record;
    });
    this.lanes[1].querySelector("h3").textContent = `With drafting: ${method}`;
    this.longest = Math.max(...this.records.map((each) => each.span), 1);
    this.strips = this.lanes.map((lane, number) => this.strip(lane, this.records[number]));
    this.outcome = this.judge(plain, trees, mayDiffer);
    this.card.querySelector(".after").hidden = false;
  }

  /** A block for each pass: as wide as it took, as high as it gave tokens. */
  strip(lane, record) {
    const home = lane.querySelector(".passes");
    const seconds = (record.span / 1e3).toFixed(2);
    const svg = draw("svg", {
      viewBox: `0 0 1000 ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${record.passes} forward passes in ${seconds} seconds`,
    });
    const scale = 1000 / this.longest;
    const blocks = record.steps.slice(1).map((step, before) => {
      const start = record.at(before), end = record.at(before + 1);
      const height = (HEIGHT * Math.min(step.tokens.length, TALLEST)) / TALLEST;
      const many = step.tokens.length > 1 ? "many" : "";
      const gap = Math.min(3, 0.25 * scale * (end - start));
      return draw("rect", {
        x: (scale * start).toFixed(2), width: Math.max(scale * (end - start) - gap, 0.5).toFixed(2),
        y: (HEIGHT - height).toFixed(2), height: height.toFixed(2), class: `done ${many}`,
      });
    });
    svg.append(...blocks);
    home.replaceChildren(svg);
    return blocks;
  }

  judge(plain, trees, mayDiffer) {
    const [one, other] = this.records;
    const ratio = other.span > 0 ? one.span / other.span : 1;
    const place = parting(plain, trees);
    if (place === null) {
      const seconds = this.records.map((each) => (each.span / 1e3).toFixed(2));
      return {
        same: true, head: "✓ Same text",
        rest: `All ${one.tokens} tokens are equal. ${seconds[1]} s instead of ${seconds[0]} s:`
          + ` ${ratio.toFixed(2)} times as fast.`,
      };
    }
    const why = mayDiffer
      ? "This method draws from the same distribution, but not by the same draws."
      : "Passes of other sizes round differently where the model does not run natively.";
    return { same: false, head: `The texts part at token ${place + 1}`, rest: why };
  }

  /** Replay both; `ended`: show the end at once. */
  play(ended = false) {
    cancelAnimationFrame(this.frame);
    const slower = Number(this.pace.value);
    const begun = performance.now();
    const next = [0, 0];
    this.verdict(null);
    this.follow(this.records[1], 0, false);
    this.records.forEach((record, lane) => {
      record.steps.forEach((_, number) => record.reveal(number, false));
      this.strips[lane].forEach((block) => block.classList.replace("done", "ahead"));
    });
    const paint = (now) => {
      if (!this.card.isConnected) return;  // its conversation was left
      const time = still.matches || ended ? Infinity : (now - begun) / slower;
      this.records.forEach((record, lane) => {
        while (next[lane] < record.steps.length && record.at(next[lane]) <= time) {
          record.reveal(next[lane]);
          this.strips[lane][next[lane] - 1]?.classList.replace("ahead", "done");
          next[lane] += 1;
        }
      });
      const [, trees] = this.records;
      const over = this.records.every((record, lane) => next[lane] === record.steps.length);
      this.follow(trees, over ? trees.best : Math.max(next[1] - 1, 0), over);
      if (over) this.verdict(this.outcome);
      else this.frame = requestAnimationFrame(paint);
    };
    paint(begun);
  }

  verdict(outcome) {
    const home = this.card.querySelector(".verdict");
    home.classList.toggle("parted", outcome !== null && !outcome.same);
    home.replaceChildren();
    if (outcome === null) return;
    home.append(make("strong", {}, outcome.head), outcome.rest);
    this.said(`${outcome.head}. ${outcome.rest}`);
  }
}
