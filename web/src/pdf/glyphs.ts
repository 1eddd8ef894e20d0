// Characters by the names of their shapes, and by the encodings that fonts begin with (ISO 32000-1, annex D).

const SIGNS =
  "space exclam quotedbl numbersign dollar percent ampersand quotesingle parenleft parenright asterisk plus comma hyphen " +
  "period slash zero one two three four five six seven eight nine colon semicolon less equal greater question at";
const MORE_SIGNS: Record<string, string> = {
  bracketleft: "[", backslash: "\\", bracketright: "]", asciicircum: "^", underscore: "_", grave: "`", braceleft: "{",
  bar: "|", braceright: "}", asciitilde: "~", exclamdown: "¡", cent: "¢", sterling: "£", fraction: "⁄", yen: "¥",
  florin: "ƒ", section: "§", currency: "¤", quotedblleft: "“", guillemotleft: "«", guilsinglleft: "‹",
  guilsinglright: "›", endash: "–", dagger: "†", daggerdbl: "‡", periodcentered: "·", paragraph: "¶", bullet: "•",
  quotesinglbase: "‚", quotedblbase: "„", quotedblright: "”", guillemotright: "»", ellipsis: "…", perthousand: "‰",
  questiondown: "¿", acute: "´", circumflex: "ˆ", tilde: "˜", macron: "¯", breve: "˘", dotaccent: "˙", dieresis: "¨",
  ring: "˚", cedilla: "¸", hungarumlaut: "˝", ogonek: "˛", caron: "ˇ", emdash: "—", quoteleft: "‘", quoteright: "’",
  AE: "Æ", ordfeminine: "ª", Lslash: "Ł", Oslash: "Ø", OE: "Œ", ordmasculine: "º", ae: "æ", dotlessi: "ı",
  dotlessj: "ȷ", lslash: "ł", oslash: "ø", oe: "œ", germandbls: "ß", Eth: "Ð", eth: "ð", Thorn: "Þ", thorn: "þ",
  onesuperior: "¹", twosuperior: "²", threesuperior: "³", onequarter: "¼", onehalf: "½", threequarters: "¾",
  minus: "−", multiply: "×", divide: "÷", plusminus: "±", logicalnot: "¬", mu: "µ", brokenbar: "¦", copyright: "©",
  registered: "®", trademark: "™", degree: "°", Euro: "€", nbspace: " ", sfthyphen: "-", ff: "ff", fi: "fi", fl: "fl",
  ffi: "ffi", ffl: "ffl", infinity: "∞", partialdiff: "∂", summation: "∑", product: "∏", integral: "∫", radical: "√",
  approxequal: "≈", notequal: "≠", lessequal: "≤", greaterequal: "≥", lozenge: "◊", arrowright: "→", arrowleft: "←",
  arrowup: "↑", arrowdown: "↓", element: "∈", asteriskmath: "∗", similar: "∼", equivalence: "≡", universal: "∀",
  existential: "∃", emptyset: "∅", union: "∪", intersection: "∩", gradient: "∇", Dcroat: "Đ", dcroat: "đ", visiblespace: " ",
};
const GREEK =
  "Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho . Sigma Tau Upsilon Phi Chi Psi Omega";
const ACCENTS: Record<string, string> = {
  grave: "\u0300", acute: "\u0301", circumflex: "\u0302", tilde: "\u0303", macron: "\u0304", breve: "\u0306",
  dotaccent: "\u0307", dieresis: "\u0308", ring: "\u030a", hungarumlaut: "\u030b", caron: "\u030c", cedilla: "\u0327",
  commaaccent: "\u0326", ogonek: "\u0328",
};
const STANDARD_FROM_161 =
  "¡¢£⁄¥ƒ§¤'“«‹›\ufb01\ufb02 –†‡· ¶•‚„”»…‰ ¿ `´ˆ˜¯˘˙¨ ˚¸ ˝˛ˇ—                Æ ª    ŁØŒº     æ   ı  łøœß";

const NAMES = new Map(Object.entries(MORE_SIGNS));
SIGNS.split(" ").forEach((name, place) => NAMES.set(name, String.fromCharCode(32 + place)));
GREEK.split(" ").forEach((name, place) => {
  NAMES.set(name, String.fromCharCode(0x391 + place));
  NAMES.set(name.toLowerCase(), String.fromCharCode(0x3b1 + place));
});

/** The characters of a shape by its name; empty where the name tells none. */
export function charactersOf(name: string): string {
  // TeX has two sizes of some signs.
  const plain = name.split(".")[0]!.replace(/(text|display)$/, "");
  const known = NAMES.get(plain);
  if (known !== undefined) return known;
  if (/^[A-Za-z]$/.test(plain)) return plain;
  if (plain.includes("_")) return plain.split("_").map(charactersOf).join("");
  const codes = /^(?:uni((?:[0-9A-F]{4})+)|u([0-9A-F]{4,6}))$/.exec(plain);
  if (codes) return (codes[1]?.match(/.{4}/g) ?? [codes[2]!]).map((code) => character(parseInt(code, 16))).join("");
  const [, letter, accent = ""] = /^([A-Za-z]|dotless[ij])([a-z]{4,})$/.exec(plain) ?? [];
  const mark = ACCENTS[accent];
  return letter && mark ? ((letter.length > 1 ? letter.at(-1)! : letter) + mark).normalize("NFC") : "";
}

export function character(code: number): string {
  return code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? String.fromCodePoint(code) : "";
}

/** The characters of all 256 codes of an encoding by its name; unknown ones are Windows' own. */
export function encoding(name: string): string[] {
  const codes = Uint8Array.from({ length: 256 }, (_, code) => code);
  if (name === "MacRomanEncoding") return [...new TextDecoder("macintosh").decode(codes)];
  const found = [...new TextDecoder("windows-1252").decode(codes)];
  if (name !== "StandardEncoding") return found;
  found[39] = "’";
  found[96] = "‘";
  for (let code = 127; code < 256; code++) found[code] = STANDARD_FROM_161[code - 161]?.trim() ?? "";
  return found;
}
