// Checks of values in files that may contain anything.
export type Values = Record<string, unknown>;

export function isText(value: unknown): value is string {
  return typeof value === "string";
}

export function isObject(value: unknown): value is Values {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The value as an object, empty if it is none. */
export function objectOf(value: unknown): Values {
  return isObject(value) ? value : {};
}

export function textOf(value: unknown): string {
  return isText(value) ? value : "";
}

export function listOf(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}

/** Milliseconds of a time in seconds or milliseconds since 1970; undefined for anything else. */
export function timeOf(value: unknown): number | undefined {
  if (typeof value !== "number" || !Number.isFinite(value) || value <= 0) return undefined;
  return Math.round(value < 1e11 ? value * 1000 : value);
}

/** An id for this page, with the name of the program that the conversation comes from. */
export function idFrom(origin: string, id: string): string {
  return origin + id.replace(/\W/g, "").slice(0, 80);
}
