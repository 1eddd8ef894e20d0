/** Writes invisible characters and direction marks of a text as JSON escapes. */
export function visible(text: string): string {
  return text.replace(/[^\P{C}\n\t]|[\u2028\u2029\u115f\u1160\u3164\uffa0]/gu, (character) =>
    Array.from(
      { length: character.length },
      (_, place) => `\\u${character.charCodeAt(place).toString(16).padStart(4, "0")}`,
    ).join(""),
  );
}
