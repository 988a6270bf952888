// The OpenAI Agents SDK for JavaScript, whose model calls OpenInference records.
import { OpenAIInstrumentation } from "@arizeai/openinference-instrumentation-openai";
import { Agent, OpenAIProvider, Runner, tool } from "@openai/agents";
import OpenAI from "openai";
import * as common from "./common.mjs";

const instrumentation = new OpenAIInstrumentation();
instrumentation.setTracerProvider(common.traceAll());
instrumentation.manuallyInstrument(OpenAI);

const getWeather = tool({
  name: "get_weather",
  description: common.DESCRIPTION,
  parameters: common.SCHEMA,
  strict: false,
  execute: async (input) => common.weather(input),
});

async function answer(question, scenario) {
  const modelProvider = new OpenAIProvider({
    openAIClient: new OpenAI({ maxRetries: 0 }),
    useResponses: common.MODE === "responses",
  });
  const runner = new Runner({ modelProvider, tracingDisabled: true });
  const options = { name: "helpdesk", instructions: common.SYSTEM, model: common.MODEL };
  let agent = new Agent({ ...options, tools: [getWeather] });
  if (scenario === "handoff") {
    const specialist = new Agent({ ...options, name: "specialist", tools: [getWeather] });
    agent = new Agent({ ...options, instructions: "Hand over.", handoffs: [specialist] });
  }
  if (scenario === "stream") {
    const result = await runner.run(agent, question, { stream: true });
    await result.completed;
    return result.finalOutput;
  }
  return (await runner.run(agent, question)).finalOutput;
}

await common.play(answer);
