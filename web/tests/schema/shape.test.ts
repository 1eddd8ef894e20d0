import assert from "node:assert/strict";
import { test } from "node:test";

import { isWhole, NoForm, newField, newShape, problemOfName, problemOfShape, readSchema, schemaOf } from "../../src/schema/shape";

const PERSON = {
  $schema: "https://json-schema.org/draft/2020-12/schema",
  title: "Person",
  additionalProperties: false,
  type: "object",
  description: "Somebody",
  properties: {
    name: { type: "string", description: "In full" },
    age: { type: "integer" },
    height: { type: "number" },
    isTall: { type: "boolean" },
    mood: { type: "string", enum: ["good", "bad"] },
    children: { type: "array", items: { type: "object", properties: { name: { type: "string" } }, required: ["name"] } },
  },
  required: ["name", "mood"],
};

test("a schema with a form converts back without loss", () => {
  assert.deepEqual(schemaOf(readSchema(PERSON)), PERSON);
});

test("fields keep their order, and whether they are required", () => {
  const { kind, fields } = readSchema(PERSON);
  assert.equal(kind, "object");
  assert.deepEqual(
    fields.map(({ name, isRequired, shape }) => [name, isRequired, shape.kind]),
    [
      ["name", true, "text"],
      ["age", false, "integer"],
      ["height", false, "number"],
      ["isTall", false, "yes-no"],
      ["mood", true, "choice"],
      ["children", false, "list"],
    ],
  );
});

const object = (properties: object, more = {}) => ({ type: "object", properties, ...more });
const REFUSED: [string, unknown, RegExp][] = [
  ["no object", { type: "string" }, /answers that are no objects/],
  ["null", null, /no schema/],
  ["a list of schemas", [], /no schema/],
  ["a pattern", object({ a: { type: "string", pattern: "x" } }), /pattern at a/],
  ["several types", object({ a: { type: ["string", "null"] } }), /the type \["string","null"\] at a/],
  ["no type", object({ a: {} }), /the type that is missing at a/],
  ["numbers to choose from", object({ a: { enum: [1, 2] } }), /choices that are no texts at a/],
  ["an empty choice", object({ a: { enum: [""] } }), /a choice that is empty/],
  ["items of a text", object({ a: { type: "string", items: {} } }), /what belongs to another type at a/],
  ["a described item", object({ a: { type: "array", items: { type: "string", description: "b" } } }), /a description of what/],
  ["deep inside", object({ a: { type: "array", items: object({ b: { type: "any" } }) } }), /the type "any" at a\[\]\.b/],
  ["a required name without a field", object({}, { required: ["a"] }), /required names without a field/],
];
for (const [name, schema, said] of REFUSED)
  test(`no form shows ${name}`, () => {
    assert.throws(
      () => readSchema(schema),
      (error) => error instanceof NoForm && said.test(error.message),
    );
  });

test("field names are required, unique, and not only digits", () => {
  const [one, two] = [newField(), newField()];
  assert.match(problemOfName(one, [one, two]), /Give this field a name/);
  one.name = two.name = "a";
  assert.match(problemOfName(one, [one, two]), /Another field here is called a too/);
  two.name = "7";
  assert.match(problemOfName(two, [one, two]), /only digits/);
  assert.equal(problemOfName(one, [one, two]), "");
});

test("choices exist and are unique, also in a list", () => {
  const choice = newShape("choice");
  assert.match(problemOfShape(choice), /Enter the choices/);
  choice.choices = ["a", "b", "a"];
  assert.match(problemOfShape({ ...newShape("list"), items: choice }), /a is listed twice/);
  choice.choices = ["a", "b", ""];
  assert.equal(problemOfShape(choice), "");
  assert.deepEqual(schemaOf(choice), { type: "string", enum: ["a", "b"] });
});

test("a shape is valid if all its parts are", () => {
  const shape = readSchema(PERSON);
  assert.ok(isWhole(shape));
  shape.fields[5]!.shape.items!.fields[0]!.name = "";
  assert.ok(!isWhole(shape));
});
