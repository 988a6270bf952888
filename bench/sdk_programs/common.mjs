// What the programs of Node share: telemetry, the tool, and the scenarios one after the other.
import { trace } from "@opentelemetry/api";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { BatchSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { NodeTracerProvider } from "@opentelemetry/sdk-trace-node";

export const URL_OF_PROVIDER = process.env.PROVIDER_URL;
export const MODE = process.env.MODE ?? "";
export const MODEL = "gpt-5-mini";
export const SYSTEM = "Be brief.";
export const DESCRIPTION = "The weather in a city.";
export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string", description: "Its name." } },
  required: ["city"],
};

export function weather({ city }) {
  if (city === "Atlantis") throw new Error(`no such city: ${city}`);
  return `7 °C and rain in ${city}`;
}

/** What a loop without a framework tells the model, also of an error. */
export function resultOf(json) {
  try {
    return weather(JSON.parse(json));
  } catch (error) {
    return `Error: ${error.message}`;
  }
}

let provider;

export function traceAll(processor = new BatchSpanProcessor(new OTLPTraceExporter())) {
  provider = new NodeTracerProvider({ spanProcessors: [processor] });
  provider.register();
  return provider;
}

export async function play(answer, finish = async () => {}) {
  for (const name of process.argv.slice(2)) {
    const begun = await fetch(`${URL_OF_PROVIDER}/scenario/${name}`, { method: "POST", body: "{}" });
    const { question } = await begun.json();
    try {
      console.log(`${name}: ${await answer(question, name)}`);
    } catch (error) {
      console.log(`${name}: ${error.name}: ${String(error.message).slice(0, 600)}`);
      if (process.env.TRACEBACKS) console.error(error);
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  await finish();
  await provider?.forceFlush();
  process.exit(0);
}

export { trace };
