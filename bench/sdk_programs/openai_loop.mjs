// The OpenAI SDK for JavaScript in a loop, by chat completions or responses (MODE).
import OpenAI from "openai";
import * as common from "./common.mjs";

let client = new OpenAI();
if (process.env.INSTRUMENTS === "langfuse") {
  const { LangfuseSpanProcessor } = await import("@langfuse/otel");
  const { observeOpenAI } = await import("@langfuse/openai");
  common.traceAll(new LangfuseSpanProcessor());
  client = observeOpenAI(client);
} else {
  const { OpenAIInstrumentation } = await import("@arizeai/openinference-instrumentation-openai");
  const instrumentation = new OpenAIInstrumentation();
  instrumentation.setTracerProvider(common.traceAll());
  instrumentation.manuallyInstrument(OpenAI);
}

const FUNCTION = {
  name: "get_weather",
  description: common.DESCRIPTION,
  parameters: common.SCHEMA,
};

async function chat(question, scenario) {
  const messages = [
    { role: "system", content: common.SYSTEM },
    { role: "user", content: question },
  ];
  for (;;) {
    const said = await completion([...messages], scenario);
    messages.push(said);
    if (!said.tool_calls?.length) return said.content;
    for (const call of said.tool_calls) {
      const content = common.resultOf(call.function.arguments);
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}

async function completion(messages, scenario) {
  const tools = [{ type: "function", function: FUNCTION }];
  const asked = { model: common.MODEL, messages, tools };
  if (scenario !== "stream") {
    return (await client.chat.completions.create(asked)).choices[0].message;
  }
  const said = { role: "assistant", content: "" };
  const calls = [];
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create({ ...asked, ...options })) {
    const delta = chunk.choices[0]?.delta ?? {};
    said.content += delta.content ?? "";
    for (const part of delta.tool_calls ?? []) {
      if (part.id) {
        const made = { name: part.function.name, arguments: "" };
        calls.push({ id: part.id, type: "function", function: made });
      }
      calls[part.index].function.arguments += part.function.arguments ?? "";
    }
  }
  return calls.length ? { ...said, tool_calls: calls } : said;
}

async function responses(question, scenario) {
  const tools = [{ type: "function", strict: false, ...FUNCTION }];
  let input = [{ role: "user", content: question }];
  let previous;
  for (;;) {
    const asked = { model: common.MODEL, instructions: common.SYSTEM, input: [...input], tools };
    if (previous) asked.previous_response_id = previous;
    const answer = await response(asked, scenario);
    const calls = answer.output.filter((item) => item.type === "function_call");
    if (!calls.length) return answer.output_text;
    input.push(...answer.output);
    if (scenario === "state") [input, previous] = [[], answer.id];
    for (const call of calls) {
      const output = common.resultOf(call.arguments);
      input.push({ type: "function_call_output", call_id: call.call_id, output });
    }
  }
}

async function response(asked, scenario) {
  if (scenario !== "stream") return client.responses.create(asked);
  let last;
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    if (event.type === "response.completed") last = event.response;
  }
  const texts = last.output.flatMap((item) => (item.type === "message" ? item.content : []));
  return { ...last, output_text: texts.map((part) => part.text).join("") };
}

await common.play(common.MODE === "responses" ? responses : chat);
