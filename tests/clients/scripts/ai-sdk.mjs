// The package `ai` with `ai-sdk-ollama`: text, stream, tools, objects, embeddings.
import assert from "node:assert/strict";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { createOllama } from "ai-sdk-ollama";
import { z } from "zod";

const ollama = createOllama({ baseURL: process.env.CHASKI_URL });
const model = ollama("speaker");

const whole = await generateText({ model, prompt: "hello" });
assert.equal(whole.text, "Good morning.");

let text = "";
for await (const piece of streamText({ model, prompt: "hello" }).textStream) text += piece;
assert.equal(text, "Good morning.");

const asked = [];
const weather = tool({
    description: "The weather of a city",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (asked.push(city), "sunny"),
});
const told = await generateText({
    model,
    prompt: "What is the weather?",
    tools: { weather },
    stopWhen: stepCountIs(3),
});
assert.equal(told.text, "It is fine.");
assert.deepEqual(asked, ["Cusco"]);

const formed = await generateText({
    model,
    prompt: "Which city?",
    output: Output.object({ schema: z.object({ city: z.enum(["Lima"]) }) }),
});
assert.deepEqual(formed.output, { city: "Lima" });

const { embeddings } = await embedMany({ model: ollama.embedding("vectors"), values: ["the end", "an end"] });
assert.equal(embeddings.length, 2);
console.log("ok");
