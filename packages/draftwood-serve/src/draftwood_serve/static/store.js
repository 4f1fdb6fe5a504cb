// The conversation, kept in this browser alone until it is cleared. The API key is not part of it.

const PLACE = "draftwood.conversation";

/** Turns of the last visit; none where this browser keeps nothing or something else. */
export function kept() {
  try {
    const turns = JSON.parse(localStorage.getItem(PLACE));
    return Array.isArray(turns) ? turns : [];
  } catch {
    return [];
  }
}

/** Keep turns: with their trees, or where there is no room for these, their words. */
export function keep(turns) {
  const words = () => turns.map(({ question, answer, measures }) => ({ question, answer, measures }));
  for (const of of [() => turns, words]) {
    try {
      localStorage.setItem(PLACE, JSON.stringify(of()));
      return;
    } catch { /* no room, or not allowed */ }
  }
}

export function forget() {
  try {
    localStorage.removeItem(PLACE);
  } catch { /* not allowed: nothing was kept */ }
}
