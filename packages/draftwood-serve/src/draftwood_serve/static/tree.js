// A draft tree, drawn from left to right: what was accepted is the straight line at its top.

import { draw, originOf } from "./record.js";

const PILL = 24, ROW = 31, TOP = 22, PAD = 9, GAP = 24, ROWS = 12, LETTERS = 18;
const CAPTIONS = { root: "newest token", kept: "accepted", own: "the model's own" };

const pen = document.createElement("canvas").getContext("2d");

function width(text, font) {
  pen.font = font;
  return pen.measureText(text).width;
}

const escaped = (letter) => `\\x${letter.charCodeAt(0).toString(16).padStart(2, "0")}`;

/** A token with visible spaces and line breaks. */
export function visible(text) {
  const seen = text
    .replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥")
    .replace(/[\u0000-\u001f\u007f]/g, escaped);
  const letters = [...seen];
  return letters.length > LETTERS ? `${letters.slice(0, LETTERS - 1).join("")}…` : seen;
}

/** Nodes to be drawn: the accepted path and what the model drew itself, then as many as fit. */
function nodesOf(step) {
  const { tokens, parents, proposers, path } = step.tree;
  const kept = new Set([0, ...path]);
  const nodes = new Map();
  let rows = 1;
  const add = (number, parent, more) => {
    nodes.set(number, { number, parent, children: [], ...more });
    if (parent !== null) nodes.get(parent).children.push(number);
  };
  add(0, null, { label: visible(tokens[0]) || "start", kind: "root", depth: 0 });
  for (const number of path) {
    add(number, parents[number], {
      label: visible(tokens[number]), kind: "kept", depth: nodes.get(parents[number]).depth + 1,
      look: originOf(proposers[number]).look,
    });
  }
  if (step.tokens.length > step.accepted) {
    const last = path.at(-1) ?? 0;
    const label = visible(step.tokens.at(-1)) || "end of text";
    add("own", last, { label, kind: "mine", depth: nodes.get(last).depth + 1 });
  }
  let hidden = 0;
  tokens.forEach((token, number) => {
    const parent = nodes.get(parents[number]);
    if (kept.has(number)) return;
    if (!parent || (parent.children.length && rows >= ROWS)) {
      hidden += 1;
      return;
    }
    rows += parent.children.length > 0;
    add(number, parents[number], {
      label: visible(token), kind: "left", depth: parent.depth + 1,
      look: originOf(proposers[number]).look,
    });
  });
  return { nodes, hidden };
}

/** A row for each node: the first child goes on in its parent's, the others begin new ones. */
function assignRows(nodes) {
  let last = 0;
  const walk = (node) => {
    node.children.forEach((number, place) => {
      const child = nodes.get(number);
      child.row = place ? (last += 1) : node.row;
      walk(child);
    });
  };
  nodes.get(0).row = 0;
  walk(nodes.get(0));
  return last + 1;
}

function columns(nodes, mono, sans) {
  const widths = [];
  for (const node of nodes.values()) {
    node.width = Math.ceil(width(node.label, `bold 13px ${mono}`)) + 2 * PAD;
    const own = node.kind === "mine" ? CAPTIONS.own : node.kind === "root" ? CAPTIONS.root : "";
    const caption = own || (node.kind === "kept" && node.depth === 1 ? CAPTIONS.kept : "");
    const least = caption ? width(caption, `12px ${sans}`) - 8 : 0;
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.width, least);
  }
  const starts = [2];
  widths.forEach((each, depth) => starts.push(starts[depth] + each + GAP));
  return starts;
}

function link(from, to) {
  const x = from.x + from.width, y = from.y + PILL / 2, end = to.y + PILL / 2;
  if (y === end) return `M${x} ${y}H${to.x}`;
  const bend = x + 13;
  const down = `M${x} ${y}H${bend - 7}Q${bend} ${y} ${bend} ${y + 8}`;
  return `${down}V${end - 8}Q${bend} ${end} ${bend + 8} ${end}H${to.x}`;
}

function pill(node) {
  const place = `translate(${node.x} ${node.y})`;
  const made = draw("g", { class: `node ${node.kind}`, transform: place });
  made.append(
    draw("rect", { width: node.width, height: PILL, rx: 7 }),
    draw("text", { x: PAD, y: 15.5 }, node.label),
  );
  if (node.look) {
    const line = { x1: PAD, x2: node.width - PAD, y1: 20, y2: 20, class: `rule ${node.look}` };
    made.append(draw("line", line));
  }
  return made;
}

/** What the drawing says, for those who do not see it. */
export function inWords(step) {
  const { tokens, path } = step.tree;
  const own = step.tokens.length > step.accepted ? step.tokens.at(-1) || "the end" : "";
  const kept = path.map((number) => `“${tokens[number].trim()}”`).join(", ");
  return [
    `After “${tokens[0].trim()}”: ${step.drafted} draft tokens, ${step.accepted} accepted`,
    kept && `: ${kept}`, own && `; the model itself adds “${own.trim()}”`, ".",
  ].filter(Boolean).join("");
}

/** The drawing of a step that is not the prompt's. */
export function treeOf(step) {
  const style = getComputedStyle(document.documentElement);
  const mono = style.getPropertyValue("--mono"), sans = style.getPropertyValue("--font");
  const { nodes, hidden } = nodesOf(step);
  const rows = assignRows(nodes), starts = columns(nodes, mono, sans);
  for (const node of nodes.values()) {
    node.x = starts[node.depth];
    node.y = TOP + ROW * node.row;
  }
  const more = hidden ? ROW * 0.8 : 0;
  const size = [starts.at(-1) + 70, TOP + ROW * (rows - 1) + PILL + 4 + more];
  const svg = draw("svg", {
    width: size[0], height: size[1], viewBox: `0 0 ${size[0]} ${size[1]}`, role: "img",
    "aria-label": inWords(step),
  });
  const links = [], pills = [], captions = [];
  for (const node of nodes.values()) {
    pills.push(pill(node));
    if (node.parent === null) {
      captions.push([node.x, CAPTIONS.root]);
      continue;
    }
    const kept = node.kind === "kept" || node.kind === "mine";
    const path = { d: link(nodes.get(node.parent), node), class: kept ? "link kept" : "link" };
    links[kept ? "push" : "unshift"](draw("path", path));
    if (node.kind === "mine") captions.push([node.x, CAPTIONS.own]);
    else if (node.kind === "kept" && node.depth === 1) captions.push([node.x, CAPTIONS.kept]);
  }
  svg.append(...links, ...pills);
  for (const [x, text] of captions) svg.append(draw("text", { x, y: 13, class: "aside" }, text));
  if (hidden) {
    svg.append(draw("text", { x: 2, y: size[1] - 6, class: "aside" }, `and ${hidden} more`));
  }
  return svg;
}
