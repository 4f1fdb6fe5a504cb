// The looks of Markdown and of code, a line at a time. All of it is text: nothing here makes elements.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
const INLINE = new RegExp([
  /(`+)([^`].{0,399}?)\1(?!`)/,
  /(\*\*)(?=\S)(.{1,400}?)(?<=\S)\*\*/,
  /(?<![\w*])(\*)(?=[^\s*])(.{1,400}?)(?<=[^\s*])\*(?![\w*])/,
  /(?<!\w)(_)(?=[^\s_])(.{1,400}?)(?<=[^\s_])_(?!\w)/,
].map(({ source }) => source).join("|"), "g");

const HASHED = /^(py.*|sh|bash|zsh|shell|console|ya?ml|toml|ruby|rb|r|perl|make.*|docker.*)?$/;
const DASHED = /^(sql|lua|haskell|hs)$/;
const KEYWORDS = new Set((
  "abstract and as assert async await bool boolean break case catch char class const continue def"
  + " default del delete do double elif else end enum except export extends extern False false"
  + " final finally float fn for from func function if impl implements import in include int"
  + " interface is lambda let long match mut namespace new nil None nonlocal not null nullptr or"
  + " pass private protected pub public raise return self short static string struct super switch"
  + " template then this throw trait True true try type typedef undefined use using var virtual"
  + " void where while with yield SELECT FROM WHERE INSERT INTO UPDATE DELETE CREATE TABLE JOIN ON"
  + " GROUP BY ORDER LIMIT VALUES SET AND OR NOT NULL AS"
).split(" "));

/** Bold, italic and code within a line. */
function inline(text, outer = "") {
  const runs = [];
  let last = 0;
  for (const found of text.matchAll(INLINE)) {
    const [all, ticks, code, two, strong, star, starred, bar, barred] = found;
    const marker = ticks ?? two ?? star ?? bar;
    const look = `${outer} ${ticks ? "inline" : two ? "strong" : "em"}`.trim();
    const inner = ticks ? [[code, look]] : inline(strong ?? starred ?? barred, look);
    runs.push([text.slice(last, found.index), outer], [marker, "mark"], ...inner, [marker, "mark"]);
    last = found.index + all.length;
  }
  return [...runs, [text.slice(last), outer]];
}

function lookOfWord(word, next) {
  if (/^\d/.test(word)) return "number";
  if (KEYWORDS.has(word)) return "keyword";
  return next === "(" ? "call" : "";
}

function words(text, language) {
  const comment = HASHED.test(language) ? "#.*" : DASHED.test(language) ? "--.*" : "//.*|/\\*.*";
  const parts = new RegExp(`(${comment})|("(?:[^"\\\\]|\\\\.){0,399}"|'(?:[^'\\\\]|\\\\.){0,399}')|(\\w+)`, "g");
  const runs = [];
  let last = 0;
  for (const found of text.matchAll(parts)) {
    const [all, remark, string] = found, end = found.index + all.length;
    const look = remark ? "comment" : string ? "string" : lookOfWord(all, text[end]);
    runs.push([text.slice(last, found.index), ""], [all, look]);
    last = end;
  }
  return [...runs, [text.slice(last), ""]];
}

/** A line of a code block; `quoted` tells whether a string of several lines is open. */
function codeOf(line, fence) {
  let { quoted } = fence;
  const runs = line.split(/("""|''')/).flatMap((part, place) => {
    if (place % 2) quoted = !quoted;
    return place % 2 || quoted ? [[part, "string"]] : words(part, fence.language);
  });
  return { kind: "code", runs, fence: { ...fence, quoted } };
}

/**
 * The looks of one line.
 * @param fence of the code block that the line stands in, or null
 * @returns its kind, its runs [text, look], which put together are the line, the fence that the
 *   next line stands in, and whether the next line begins a block of its own
 */
export function looksOf(line, fence = null) {
  const [, ticks, language = ""] = line.match(FENCE) ?? [];
  const marked = [[line, ticks ? "mark fence" : "mark"]];
  if (fence) {
    const ends = ticks?.startsWith(fence.ticks) && !language;
    return ends ? { kind: "code", runs: marked, fence: null, closes: true } : codeOf(line, fence);
  }
  if (ticks) {
    const begun = { ticks, language: language.toLowerCase(), quoted: false };
    return { kind: "code", runs: marked, fence: begun };
  }
  const looks = { fence: null, closes: false };
  if (!line.trim()) return { ...looks, kind: "gap", runs: marked };
  if (RULE.test(line)) return { ...looks, kind: "rule", runs: marked, closes: true };
  if (/^\s*\|/.test(line)) return { ...looks, kind: "table", runs: [[line, ""]] };
  const [, head, rest] = line.match(/^(#{1,6}\s+|>\s?)(.*)$/) ?? [];
  if (head) {
    const kind = head[0] === ">" ? "quote" : "heading";
    return { kind, runs: [[head, "mark"], ...inline(rest)], fence: null, closes: kind === "heading" };
  }
  const [, indent, point, space, said] = line.match(ITEM) ?? [];
  if (!point) return { ...looks, kind: "text", runs: inline(line) };
  const look = /\d/.test(point) ? "ordinal" : "bullet";
  const depth = Math.min(indent.length >> 1, 3);
  return { ...looks, kind: "item", depth, runs: [[indent, "mark"], [point, look], [space, ""], ...inline(said)] };
}
