// LangChain.js' agent on LangGraph, by chat completions or responses (MODE).
import { LangChainInstrumentation } from "@arizeai/openinference-instrumentation-langchain";
import * as callbacks from "@langchain/core/callbacks/manager";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent } from "langchain";
import * as common from "./common.mjs";

const instrumentation = new LangChainInstrumentation();
instrumentation.setTracerProvider(common.traceAll());
instrumentation.manuallyInstrument(callbacks);

const getWeather = tool(common.weather, {
  name: "get_weather",
  description: common.DESCRIPTION,
  schema: common.SCHEMA,
});

async function answer(question, scenario) {
  const model = new ChatOpenAI({
    model: common.MODEL,
    maxRetries: 0,
    useResponsesApi: common.MODE === "responses",
    streaming: scenario === "stream",
    streamUsage: true,
  });
  const agent = createAgent({
    model,
    tools: [getWeather],
    systemPrompt: common.SYSTEM,
    name: "helpdesk",
  });
  const { messages } = await agent.invoke({ messages: [{ role: "user", content: question }] });
  return messages.at(-1).text;
}

await common.play(answer);
