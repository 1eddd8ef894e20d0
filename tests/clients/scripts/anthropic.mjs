// The package `@anthropic-ai/sdk`: list, messages, stream, tools with its runner, structured output.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.CHASKI_URL, apiKey: "unused" });
const model = "speaker";
const max_tokens = 200;
const ask = (content) => [{ role: "user", content }];

const names = [];
for await (const found of client.models.list()) names.push(found.id);
assert.ok(names.some((name) => name.startsWith("speaker")));

const whole = await client.messages.create({ model, max_tokens, messages: ask("hello") });
assert.deepEqual(whole.content, [{ type: "text", text: "Good morning." }]);
const stream = client.messages.stream({ model, max_tokens, messages: ask("hello") });
assert.equal(await stream.finalText(), "Good morning.");

const asked = [];
const input_schema = { type: "object", required: ["city"], properties: { city: { type: "string" } } };
const weather = {
    name: "weather",
    description: "The weather of a city",
    input_schema,
    run: ({ city }) => (asked.push(city), "sunny"),
    parse: (input) => input,
};
const final = await client.beta.messages.toolRunner({
    model,
    max_tokens,
    messages: ask("What is the weather?"),
    tools: [{ type: "custom", ...weather }],
});
assert.equal(final.content.at(-1).text, "It is fine.");
assert.deepEqual(asked, ["Cusco"]);

const schema = {
    type: "object",
    required: ["city"],
    properties: { city: { type: "string", enum: ["Lima"] } },
    additionalProperties: false,
};
const formed = await client.messages.create({
    model,
    max_tokens,
    messages: ask("Which city?"),
    output_config: { format: { type: "json_schema", schema } },
});
assert.deepEqual(JSON.parse(formed.content[0].text), { city: "Lima" });

const counted = await client.messages.countTokens({ model, messages: ask("hello") });
assert.ok(counted.input_tokens > 0);
console.log("ok");
