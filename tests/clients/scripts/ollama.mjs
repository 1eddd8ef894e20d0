// The package `ollama`: list, show, chat, stream, tools, structured output, embeddings.
import assert from "node:assert/strict";
import { Ollama } from "ollama";

const client = new Ollama({ host: process.env.CHASKI_URL });
const ask = (content) => [{ role: "user", content }];

const { models } = await client.list();
assert.ok(models.some((model) => model.name === "speaker:latest"));
const shown = await client.show({ model: "speaker" });
assert.ok(shown.capabilities.includes("tools"));

const whole = await client.chat({ model: "speaker", messages: ask("hello") });
assert.equal(whole.message.content, "Good morning.");

const pieces = [];
for await (const part of await client.chat({ model: "speaker", messages: ask("hello"), stream: true })) {
    pieces.push(part.message.content);
}
assert.ok(pieces.length > 2);
assert.equal(pieces.join(""), "Good morning.");

const weather = {
    type: "function",
    function: {
        name: "weather",
        description: "The weather of a city",
        parameters: { type: "object", required: ["city"], properties: { city: { type: "string" } } },
    },
};
const messages = ask("What is the weather?");
const called = await client.chat({ model: "speaker", messages, tools: [weather] });
assert.equal(called.message.tool_calls[0].function.name, "weather");
assert.deepEqual(called.message.tool_calls[0].function.arguments, { city: "Cusco" });
messages.push(called.message, { role: "tool", tool_name: "weather", content: "sunny" });
const told = await client.chat({ model: "speaker", messages, tools: [weather] });
assert.equal(told.message.content, "It is fine.");

const city = { type: "object", required: ["city"], properties: { city: { enum: ["Lima"] } } };
const formed = await client.chat({ model: "speaker", messages: ask("Which city?"), format: city });
assert.deepEqual(JSON.parse(formed.message.content), { city: "Lima" });

const generated = await client.generate({ model: "speaker", prompt: "hello" });
assert.equal(generated.response, "Good morning.");
const { embeddings } = await client.embed({ model: "vectors", input: ["the end", "an end"] });
assert.equal(embeddings.length, 2);
console.log("ok");
