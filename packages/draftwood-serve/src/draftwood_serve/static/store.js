// The conversation, kept in this browser until it is cleared, without the API key.

const PLACE = "draftwood.conversation";

/** Turns of the last visit, if any were kept. */
export function kept() {
  try {
    const turns = JSON.parse(localStorage.getItem(PLACE));
    return Array.isArray(turns) ? turns : [];
  } catch {
    return [];
  }
}

/** Keep turns with their trees, or without where these find no room. */
export function keep(turns) {
  const words = () => turns.map(({ question, answer, thought, measures }) => ({ question, answer, thought, measures }));
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
  } catch { /* nothing was kept */ }
}
