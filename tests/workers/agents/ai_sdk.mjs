// An agent on the AI SDK, with the tools of its rollout: `node ai_sdk.mjs`.
import { readFileSync } from "node:fs";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { dynamicTool, generateText, jsonSchema, stepCountIs } from "ai";

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, FLYWHEEL_TOOLS_URL: url } = process.env;
const task = JSON.parse(readFileSync(process.env.FLYWHEEL_TASK, "utf8"));
const provider = createOpenAICompatible({ name: "flywheel", baseURL, apiKey });

async function call(name, args) {
  const headers = { "Content-Type": "application/json" };
  const response = await fetch(`${url}/${name}`, {
    method: "POST",
    headers,
    body: JSON.stringify(args),
  });
  return (await response.json()).output;
}

const tools = Object.fromEntries(
  task.tools.map(({ function: { name, description, parameters } }) => [
    name,
    dynamicTool({
      description,
      inputSchema: jsonSchema(parameters),
      execute: (args) => call(name, args),
    }),
  ]),
);
const done = await generateText({
  model: provider("flywheel"),
  messages: task.messages,
  tools,
  stopWhen: stepCountIs(8),
});
console.log(JSON.stringify({ output: done.text }));
