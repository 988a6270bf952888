// The Anthropic SDK for JavaScript in a loop.
import { AnthropicInstrumentation } from "@arizeai/openinference-instrumentation-anthropic";
import Anthropic from "@anthropic-ai/sdk";
import * as common from "./common.mjs";

const instrumentation = new AnthropicInstrumentation();
instrumentation.setTracerProvider(common.traceAll());
instrumentation.manuallyInstrument(Anthropic);

const client = new Anthropic({ baseURL: common.URL_OF_PROVIDER, apiKey: "none" });
const TOOL = {
  name: "get_weather",
  description: common.DESCRIPTION,
  input_schema: common.SCHEMA,
};

async function answer(question, scenario) {
  const messages = [{ role: "user", content: question }];
  const asked = { model: "claude-sonnet-4-5", max_tokens: 2048, tools: [TOOL] };
  asked.system = common.SYSTEM;
  if (scenario === "reasoning") asked.thinking = { type: "enabled", budget_tokens: 1024 };
  for (;;) {
    const content = await said({ ...asked, messages: [...messages] }, scenario);
    messages.push({ role: "assistant", content });
    const calls = content.filter((block) => block.type === "tool_use");
    if (!calls.length) return content.find((block) => block.type === "text").text;
    const results = calls.map((call) => ({
      type: "tool_result",
      tool_use_id: call.id,
      content: common.resultOf(JSON.stringify(call.input)),
    }));
    messages.push({ role: "user", content: results });
  }
}

async function said(asked, scenario) {
  if (scenario !== "stream") return (await client.messages.create(asked)).content;
  const blocks = [];
  for await (const event of await client.messages.create({ ...asked, stream: true })) {
    if (event.type === "content_block_start") blocks.push({ json: "", ...event.content_block });
    const block = blocks.at(-1);
    if (event.type === "content_block_delta") {
      if (event.delta.text) block.text += event.delta.text;
      if (event.delta.partial_json) block.json += event.delta.partial_json;
    }
    if (event.type === "content_block_stop" && block.json) block.input = JSON.parse(block.json);
  }
  return blocks.map(({ json, ...block }) => block);
}

await common.play(answer);
