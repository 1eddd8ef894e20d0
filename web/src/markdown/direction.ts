// The direction of a text by its first letter.
const RIGHT_TO_LEFT =
  /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Samaritan}\p{Script=Mandaic}\p{Script=Adlam}\p{Script=Hanifi_Rohingya}]/u;

/** The first letter of a text is nearly always among these characters. */
const BEGINNING = 500;

/** The direction of a text in Markdown. Code and formulas do not count, since they are left to right in any text. */
export function directionOf(text: string): "rtl" | "ltr" {
  const beginning = text.slice(0, BEGINNING).replace(/(`+)[\s\S]*?\1|\$[^$\n]+\$|\]\([^)]*\)/g, "");
  const letter = /\p{L}/u.exec(beginning)?.[0];
  return letter && RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr";
}
