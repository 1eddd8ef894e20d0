// The direction of a text by its first letter.
const RIGHT_TO_LEFT =
  /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Samaritan}\p{Script=Mandaic}\p{Script=Adlam}\p{Script=Hanifi_Rohingya}]/u;

/** The first letter of a text is nearly always among these characters. */
const BEGINNING = 500;

/** The direction of a text in Markdown. Code and formulas do not count, since they are left to right in any text. */
export function directionOf(text: string): "rtl" | "ltr" {
  const letter = firstLetter(text);
  return letter && RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr";
}

/**
 * Lets the browser find the direction of a block with letters. A block without letters has that of the text around it;
 * a browser would also look through all of such a block again for each part that is added.
 */
export function ownDirection(text: string): "auto" | undefined {
  return firstLetter(text) ? "auto" : undefined;
}

function firstLetter(text: string): string | undefined {
  const beginning = text.slice(0, BEGINNING).replace(/(`+)[\s\S]*?\1|\$[^$\n]+\$|\]\([^)]*\)/g, "");
  return /\p{L}/u.exec(beginning)?.[0];
}
