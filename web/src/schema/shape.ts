// The schemas that forms can show: objects of named fields that convert back without loss.

export const KINDS = ["text", "number", "integer", "yes-no", "choice", "list", "object"] as const;
export type Kind = (typeof KINDS)[number];

const TYPES: Record<string, Kind> = {
  string: "text",
  number: "number",
  integer: "integer",
  boolean: "yes-no",
  array: "list",
  object: "object",
};
const WORDS = Object.fromEntries(Object.entries(TYPES).map(([type, kind]) => [kind, type])) as Record<Kind, string>;
/** Parts that the forms do not show but keep unchanged. */
const KEPT = ["$schema", "title", "additionalProperties"];

/** A value of some kind. A choice has `choices`, a list has `items`, an object has `fields`. */
export interface Shape {
  kind: Kind;
  choices: string[];
  items?: Shape;
  fields: Field[];
  kept: [string, unknown][];
}

export interface Field {
  id: number;
  name: string;
  description: string;
  isRequired: boolean;
  shape: Shape;
}

/** Names the part of a schema that has no form, and its place. */
export class NoForm extends Error {}

let lastId = 0;

export function newShape(kind: Kind): Shape {
  return { kind, choices: [], items: kind === "list" ? newShape("text") : undefined, fields: [], kept: [] };
}

export function newField(): Field {
  return { id: ++lastId, name: "", description: "", isRequired: true, shape: newShape("text") };
}

/** Reads a schema whose values are objects. Throws NoForm if forms cannot show all of it. */
export function readSchema(schema: unknown): Shape {
  const shape = read(schema, "");
  if (shape.kind !== "object") throw new NoForm("answers that are no objects");
  const { description } = schema as { description?: unknown };
  return description === undefined ? shape : { ...shape, kept: [...shape.kept, ["description", description]] };
}

function read(schema: unknown, place: string): Shape {
  const at = place ? ` at ${place}` : "";
  if (typeof schema !== "object" || schema === null || Array.isArray(schema)) throw new NoForm(`no schema${at}`);
  const { type, enum: choices, items, properties = {}, required = [], ...others } = schema as Record<string, unknown>;
  const kept = Object.entries(others).filter(([name, value]) => KEPT.includes(name) && typeof value !== "object");
  const unknown = Object.keys(others).find((name) => name !== "description" && !kept.some(([known]) => known === name));
  if (unknown) throw new NoForm(`${unknown}${at}`);
  const kind = choices === undefined ? TYPES[String(type)] : "choice";
  const isText = type === undefined || type === "string";
  if (!kind || typeof (type ?? "") !== "string") throw new NoForm(`the type ${JSON.stringify(type) ?? "that is missing"}${at}`);
  if (kind === "choice" && !(isText && Array.isArray(choices) && choices.every((each) => typeof each === "string")))
    throw new NoForm(`choices that are no texts${at}`);
  if (Array.isArray(choices) && choices.some((each) => !each || each.includes("\n")))
    throw new NoForm(`a choice that is empty or has several lines${at}`);
  if ((items !== undefined && kind !== "list") || (kind !== "object" && ("properties" in schema || "required" in schema)))
    throw new NoForm(`what belongs to another type${at}`);
  return {
    kind,
    choices: (choices as string[] | undefined) ?? [],
    items: kind === "list" ? readItems(items, place) : undefined,
    fields: readFields(properties, required, place),
    kept,
  };
}

function readItems(items: unknown, place: string): Shape {
  if (typeof items === "object" && items !== null && "description" in items)
    throw new NoForm(`a description of what is in the list ${place}`);
  return read(items, `${place}[]`);
}

function readFields(properties: unknown, required: unknown, place: string): Field[] {
  const at = place ? ` at ${place}` : "";
  if (typeof properties !== "object" || properties === null) throw new NoForm(`properties that are no object${at}`);
  const names = Object.keys(properties);
  if (!Array.isArray(required) || !required.every((name) => names.includes(name)))
    throw new NoForm(`required names without a field${at}`);
  return Object.entries(properties).map(([name, schema]) => {
    const shape = read(schema, place ? `${place}.${name}` : name);
    const { description = "" } = schema as { description?: unknown };
    if (typeof description !== "string") throw new NoForm(`a description that is no text at ${name}`);
    return { id: ++lastId, name, description, isRequired: required.includes(name), shape };
  });
}

/** The JSON schema of a shape, in the order of its fields. */
export function schemaOf({ kind, choices, items, fields, kept }: Shape, description = ""): Record<string, unknown> {
  const required = fields.filter((field) => field.isRequired).map((field) => field.name);
  return {
    ...Object.fromEntries(kept),
    type: kind === "choice" ? "string" : WORDS[kind],
    ...(description && { description }),
    ...(kind === "choice" && { enum: choices.filter(Boolean) }),
    ...(items && { items: schemaOf(items) }),
    ...(kind === "object" && {
      properties: Object.fromEntries(fields.map((field) => [field.name, schemaOf(field.shape, field.description)])),
      ...(required.length && { required }),
    }),
  };
}

/** The problem of a field's name among other fields, or an empty string. */
export function problemOfName(field: Field, fields: Field[]): string {
  if (!field.name) return "Give this field a name.";
  if (fields.some((other) => other.id !== field.id && other.name === field.name))
    return `Another field here is called ${field.name} too. Rename one of them.`;
  if (/^\d+$/.test(field.name)) return "A name of only digits would change its position. Add a letter.";
  return "";
}

/** The problem of a shape itself, without those of its fields. */
export function problemOfShape({ kind, choices, items }: Shape): string {
  if (items) return problemOfShape(items);
  if (kind !== "choice") return "";
  if (!choices.some(Boolean)) return "Enter the choices, one per line.";
  const twice = choices.find((choice, place) => choice && choices.indexOf(choice) !== place);
  return twice === undefined ? "" : `${twice} is listed twice. Remove one of them.`;
}

export function isWhole(shape: Shape): boolean {
  const { fields, items } = shape;
  return (
    !problemOfShape(shape) &&
    (!items || isWhole(items)) &&
    fields.every((field) => !problemOfName(field, fields) && isWhole(field.shape))
  );
}
