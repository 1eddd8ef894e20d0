// The package `openai`: list, chat, stream, tools with its runner, structured output, responses, embeddings.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.CHASKI_URL}/v1`, apiKey: "unused" });
const model = "speaker";
const ask = (content) => [{ role: "user", content }];

const names = [];
for await (const found of client.models.list()) names.push(found.id);
assert.ok(names.some((name) => name.startsWith("speaker")));

const whole = await client.chat.completions.create({ model, messages: ask("hello") });
assert.equal(whole.choices[0].message.content, "Good morning.");
const stream = await client.chat.completions.create({ model, messages: ask("hello"), stream: true });
let text = "";
for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
assert.equal(text, "Good morning.");

const asked = [];
const runner = client.chat.completions.runTools({
    model,
    messages: ask("What is the weather?"),
    tools: [
        {
            type: "function",
            function: {
                name: "weather",
                description: "The weather of a city",
                parameters: { type: "object", required: ["city"], properties: { city: { type: "string" } } },
                parse: JSON.parse,
                function: ({ city }) => (asked.push(city), "sunny"),
            },
        },
    ],
});
assert.equal(await runner.finalContent(), "It is fine.");
assert.deepEqual(asked, ["Cusco"]);

const schema = {
    type: "object",
    required: ["city"],
    properties: { city: { type: "string", enum: ["Lima"] } },
    additionalProperties: false,
};
const formed = await client.chat.completions.parse({
    model,
    messages: ask("Which city?"),
    response_format: { type: "json_schema", json_schema: { name: "city", strict: true, schema } },
});
assert.deepEqual(formed.choices[0].message.parsed, { city: "Lima" });

const response = await client.responses.create({ model, input: "hello" });
assert.equal(response.output_text, "Good morning.");
const events = await client.responses.create({ model, input: "hello", stream: true });
let last;
for await (const event of events) last = event;
assert.equal(last.type, "response.completed");

const { data } = await client.embeddings.create({ model: "vectors", input: ["the end", "an end"] });
assert.equal(data.length, 2);
assert.ok(data[0].embedding.length > 0);
console.log("ok");
