// The Vercel AI SDK with its own telemetry, by chat completions or responses (MODE).
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, jsonSchema, registerTelemetry, streamText, tool } from "ai";
import { OpenTelemetry } from "@ai-sdk/otel";
import * as common from "./common.mjs";

common.traceAll();
registerTelemetry(new OpenTelemetry());

const provider = createOpenAI({ baseURL: `${common.URL_OF_PROVIDER}/v1`, apiKey: "none" });
const model = common.MODE === "responses" ? provider.responses : provider.chat;
const tools = {
  get_weather: tool({
    description: common.DESCRIPTION,
    inputSchema: jsonSchema(common.SCHEMA),
    execute: async (input) => common.weather(input),
  }),
};

async function answer(question, scenario) {
  const asked = {
    model: model(common.MODEL),
    system: common.SYSTEM,
    prompt: question,
    tools,
    stopWhen: isStepCount(4),
    maxRetries: 0,
    telemetry: { isEnabled: true, functionId: "helpdesk" },
  };
  if (scenario === "stream") return await streamText(asked).text;
  return (await generateText(asked)).text;
}

await common.play(answer);
