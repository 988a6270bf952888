"""The rows of `bench.sdks`: an SDK, how it calls the model, and what records it. One declaration
each; `can` are the scenarios that the SDK has a way to play.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.sdk_scenarios import ALL

OTEL = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")


@dataclass(frozen=True)
class Environment:
    packages: tuple[str, ...]
    is_node: bool = False


@dataclass(frozen=True)
class Configuration:
    """A row. `instruments` is for common.py; `variables` are set for the program, `{url}` in them
    is the provider's address.
    """

    sdk: str
    mode: str
    recorder: str
    program: str
    environment: str
    package: str
    can: tuple[str, ...]
    recorder_package: str = ""
    instruments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.sdk} {self.mode} {self.recorder}"


def but(*names: str) -> tuple[str, ...]:
    """All scenarios but these."""
    return tuple(name for name in ALL if name not in names)


CHAT = but("reasoning", "state", "handoff")  # chat completions say neither thoughts nor state
RESPONSES = but("handoff")
OI = "openinference.instrumentation."
OI_PACKAGE = "openinference-instrumentation-"
TRACELOOP = "opentelemetry.instrumentation."
OTEL_PACKAGE = "opentelemetry-instrumentation-"
CONTENT = {
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
}
LANGFUSE = {
    "LANGFUSE_BASE_URL": "{url}",
    "LANGFUSE_PUBLIC_KEY": "flywheel",
    "LANGFUSE_SECRET_KEY": "fw_none",
}
LANGSMITH = {
    "LANGSMITH_TRACING": "true",
    "LANGSMITH_OTEL_ENABLED": "true",
    "LANGSMITH_OTEL_ONLY": "true",
    "LANGSMITH_API_KEY": "none",
    "LANGSMITH_ENDPOINT": "{url}",
}


def _of_openinference(*names: str) -> tuple[str, ...]:
    return tuple(f"{OI_PACKAGE}{name}" for name in names)


def _of_opentelemetry(*names: str) -> tuple[str, ...]:
    return tuple(f"{OTEL_PACKAGE}{name}" for name in names)


ENVIRONMENTS = {
    "clients": Environment(
        (
            "openai",
            "anthropic",
            "google-genai",
            "mistralai",
            "litellm<1.107",
            "boto3",
            "mcp",
            *_of_openinference("openai", "anthropic", "google-genai", "mistralai", "bedrock"),
            *_of_openinference("litellm"),
            *_of_opentelemetry("openai-v2", "openai", "anthropic", "google-genai", "botocore"),
            "langfuse",
            "logfire",
            *OTEL,
        )
    ),
    # apart: OpenTelemetry's instrumentation knows no later versions than these
    "contrib": Environment(
        (
            "openai<3",
            "httpx",
            *_of_opentelemetry("openai-v2"),
            "opentelemetry-util-genai==0.4b0",
            *OTEL,
        )
    ),
    "agents": Environment(
        (
            "openai-agents",
            "pydantic-ai-slim[openai,anthropic]",
            "langgraph",
            "langchain",
            "langchain-openai",
            "langsmith[otel]",
            "agno",
            *_of_openinference("openai", "openai-agents", "langchain", "agno"),
            *_of_opentelemetry("openai-agents", "langchain"),
            "langfuse",
            "logfire",
            *OTEL,
        )
    ),
    "llama": Environment(
        (
            "llama-index-core>=0.14",
            "llama-index-llms-openai",
            *_of_openinference("llama-index"),
            *OTEL,
        )
    ),
    "strands": Environment(("strands-agents[openai,otel]>=1.60", *OTEL)),
    "microsoft": Environment(
        (
            "agent-framework-core",
            "agent-framework-openai",
            "semantic-kernel",
            "autogen-agentchat",
            "autogen-ext[openai]",
            *_of_openinference("autogen-agentchat", "openai"),
            *OTEL,
        )
    ),
    "frameworks": Environment(
        (
            "smolagents[openai]",
            "haystack-ai",
            "dspy",
            "litellm<1.107",
            "claude-agent-sdk",
            *_of_openinference("smolagents", "haystack", "dspy", "litellm", "openai"),
            *_of_openinference("claude-agent-sdk"),
            *OTEL,
        )
    ),
    "google": Environment(("google-adk", *_of_openinference("google-adk"), *OTEL)),
    "crewai": Environment(("crewai", *_of_openinference("crewai", "openai"), *OTEL)),
    "node": Environment(
        (
            "openai",
            "@anthropic-ai/sdk",
            "@openai/agents",
            "langchain",
            "@langchain/core",
            "@langchain/openai",
            "ai",
            "@ai-sdk/openai",
            "@ai-sdk/otel",
            "@langfuse/openai",
            "@langfuse/otel",
            "@arizeai/openinference-instrumentation-openai",
            "@arizeai/openinference-instrumentation-anthropic",
            "@arizeai/openinference-instrumentation-langchain",
            "@opentelemetry/api",
            "@opentelemetry/sdk-trace-base",
            "@opentelemetry/sdk-trace-node",
            "@opentelemetry/exporter-trace-otlp-proto",
        ),
        is_node=True,
    ),
}


def _row(
    sdk: str,
    mode: str,
    recorder: str,
    program: str,
    environment: str,
    package: str,
    can: tuple[str, ...],
    recorder_package: str = "",
    *instruments: str,
    **variables: str,
) -> Configuration:
    return Configuration(
        sdk,
        mode,
        recorder,
        program,
        environment,
        package,
        can,
        recorder_package,
        instruments,
        variables,
    )


def _openai() -> Iterator[Configuration]:
    for mode, can in (("chat", CHAT), ("responses", RESPONSES)):
        for recorder, package, instrument, variables in (
            ("OpenInference", f"{OI_PACKAGE}openai", f"{OI}openai:OpenAIInstrumentor", {}),
            (
                "OpenTelemetry",
                f"{OTEL_PACKAGE}openai-v2",
                f"{TRACELOOP}openai_v2:OpenAIInstrumentor",
                CONTENT,
            ),
            ("OpenLLMetry", f"{OTEL_PACKAGE}openai", f"{TRACELOOP}openai:OpenAIInstrumentor", {}),
            ("Langfuse", "langfuse", "langfuse", LANGFUSE),
            ("Logfire", "logfire", "logfire:instrument_openai", {}),
        ):
            environment = "contrib" if recorder == "OpenTelemetry" else "clients"
            common = ("openai_loop.py", environment, "openai", can, package)
            yield _row("OpenAI SDK", mode, recorder, *common, instrument, **variables)


def _clients() -> Iterator[Configuration]:
    plain = but("state", "handoff")
    anthropic = ("Anthropic SDK", "messages")
    common = ("anthropic_loop.py", "clients", "anthropic", plain)
    for recorder, package, instrument in (
        ("OpenInference", f"{OI_PACKAGE}anthropic", f"{OI}anthropic:AnthropicInstrumentor"),
        ("OpenLLMetry", f"{OTEL_PACKAGE}anthropic", f"{TRACELOOP}anthropic:AnthropicInstrumentor"),
        ("Logfire", "logfire", "logfire:instrument_anthropic"),
    ):
        yield _row(*anthropic, recorder, *common, package, instrument)
    gemini = ("Google Gen AI SDK", "contents")
    common = ("google_genai_loop.py", "clients", "google-genai", plain)
    instrument = f"{OI}google_genai:GoogleGenAIInstrumentor"
    yield _row(*gemini, "OpenInference", *common, f"{OI_PACKAGE}google-genai", instrument)
    instrument = f"{TRACELOOP}google_genai:GoogleGenAiSdkInstrumentor"
    package = f"{OTEL_PACKAGE}google-genai"
    yield _row(*gemini, "OpenTelemetry", *common, package, instrument, **CONTENT)
    can = but("reasoning", "state", "handoff", "stream")
    instrument = f"{OI}mistralai:MistralAIInstrumentor"
    common = ("mistral_loop.py", "clients", "mistralai", can)
    package = f"{OI_PACKAGE}mistralai"
    yield _row("Mistral SDK", "chat", "OpenInference", *common, package, instrument)
    bedrock = ("Bedrock by boto3", "converse")
    common = ("bedrock_loop.py", "clients", "boto3", but("state", "handoff", "stream"))
    instrument = f"{OI}bedrock:BedrockInstrumentor"
    yield _row(*bedrock, "OpenInference", *common, f"{OI_PACKAGE}bedrock", instrument)
    instrument = f"{TRACELOOP}botocore:BotocoreInstrumentor"
    package = f"{OTEL_PACKAGE}botocore"
    yield _row(*bedrock, "OpenTelemetry", *common, package, instrument, **CONTENT)
    common = ("litellm_loop.py", "clients", "litellm", CHAT)
    own = {"OTEL_EXPORTER": "otlp_http", "OTEL_ENDPOINT": "{url}"}
    yield _row("LiteLLM", "chat", "its callback `otel`", *common, "", "otel", **own)
    instrument = f"{OI}litellm:LiteLLMInstrumentor"
    yield _row("LiteLLM", "chat", "OpenInference", *common, f"{OI_PACKAGE}litellm", instrument)


def _agents() -> Iterator[Configuration]:
    team = but("reasoning", "state")
    for mode, can in (("chat", team), ("responses", ALL)):
        common = ("openai_agents_runs.py", "agents", "openai-agents", can)
        for recorder, package, instrument in (
            (
                "OpenInference",
                f"{OI_PACKAGE}openai-agents",
                f"{OI}openai_agents:OpenAIAgentsInstrumentor",
            ),
            (
                "OpenLLMetry",
                f"{OTEL_PACKAGE}openai-agents",
                f"{TRACELOOP}openai_agents:OpenAIAgentsInstrumentor",
            ),
            ("Logfire", "logfire", "logfire:instrument_openai_agents"),
        ):
            yield _row("OpenAI Agents SDK", mode, recorder, *common, package, instrument)
    for mode, can in (("chat", team), ("responses", ALL)):
        common = ("pydantic_ai_runs.py", "agents", "pydantic-ai-slim", can)
        yield _row("pydantic-ai", mode, "itself", *common)
        instrument = "logfire:instrument_pydantic_ai"
        yield _row("pydantic-ai", mode, "Logfire", *common, "logfire", instrument)
    for mode, can in (("chat", CHAT), ("responses", RESPONSES)):
        common = ("langchain_agent.py", "agents", "langchain", can)
        for recorder, package, instrument, variables in (
            (
                "OpenInference",
                f"{OI_PACKAGE}langchain",
                f"{OI}langchain:LangChainInstrumentor",
                {},
            ),
            (
                "OpenLLMetry",
                f"{OTEL_PACKAGE}langchain",
                f"{TRACELOOP}langchain:LangchainInstrumentor",
                {},
            ),
            ("LangSmith", "langsmith", "langsmith", LANGSMITH),
            ("Langfuse", "langfuse", "langfuse", LANGFUSE),
        ):
            yield _row(
                "LangChain, LangGraph", mode, recorder, *common, package, instrument, **variables
            )
    for mode, can in (("chat", team), ("responses", but("state"))):
        common = ("llama_index_agent.py", "llama", "llama-index-core", can)
        instrument = f"{OI}llama_index:LlamaIndexInstrumentor"
        package = f"{OI_PACKAGE}llama-index"
        yield _row("LlamaIndex", mode, "OpenInference", *common, package, instrument)
    common = ("strands_agent.py", "strands", "strands-agents", team)
    tools = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_tool_definitions"}
    yield _row("AWS Strands", "chat", "itself", *common, **tools)
    for mode, can in (("chat", CHAT), ("responses", but("handoff", "state"))):
        common = ("agno_agent.py", "agents", "agno", can)
        instrument = f"{OI}agno:AgnoInstrumentor"
        yield _row("Agno", mode, "OpenInference", *common, f"{OI_PACKAGE}agno", instrument)


def _frameworks() -> Iterator[Configuration]:
    team = but("reasoning", "state")
    for mode, can in (("chat", team), ("responses", ALL)):
        common = ("agent_framework_runs.py", "microsoft", "agent-framework-core", can)
        yield _row("Microsoft Agent Framework", mode, "itself", *common)
    common = ("semantic_kernel_agent.py", "microsoft", "semantic-kernel", CHAT)
    own = {"SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS_SENSITIVE": "true"}
    yield _row("Semantic Kernel", "chat", "itself", *common, **own)
    common = ("autogen_agents.py", "microsoft", "autogen-agentchat", team)
    instrument = f"{OI}autogen_agentchat:AutogenAgentChatInstrumentor"
    package = f"{OI_PACKAGE}autogen-agentchat"
    openai = f"{OI}openai:OpenAIInstrumentor"
    yield _row("AutoGen", "chat", "OpenInference", *common, package, instrument, openai)
    for sdk, package, instruments in (
        ("smolagents", "smolagents", ["smolagents:SmolagentsInstrumentor"]),
        ("DSPy", "dspy", ["dspy:DSPyInstrumentor", "litellm:LiteLLMInstrumentor"]),
        ("Haystack", "haystack-ai", ["haystack:HaystackInstrumentor", "openai:OpenAIInstrumentor"]),
    ):
        name = sdk.lower()
        can = but("reasoning", "state", "handoff", "parallel", "stream") if sdk == "DSPy" else CHAT
        common = (f"{name}_agent.py", "frameworks", package, can, f"{OI_PACKAGE}{name}")
        made = [f"{OI}{instrument}" for instrument in instruments]
        yield _row(sdk, "chat", "OpenInference", *common, *made)
    common = ("claude_agent.py", "frameworks", "claude-agent-sdk", but("state", "handoff"))
    instrument = f"{OI}claude_agent_sdk:ClaudeAgentSDKInstrumentor"
    package = f"{OI_PACKAGE}claude-agent-sdk"
    yield _row("Claude Agent SDK", "messages", "OpenInference", *common, package, instrument)
    common = ("google_adk_agent.py", "google", "google-adk", but("state"))
    yield _row("Google ADK", "contents", "itself", *common, **CONTENT)
    instrument = f"{OI}google_adk:GoogleADKInstrumentor"
    package = f"{OI_PACKAGE}google-adk"
    yield _row("Google ADK", "contents", "OpenInference", *common, package, instrument)
    common = ("crewai_agent.py", "crewai", "crewai", CHAT)
    instruments = (f"{OI}crewai:CrewAIInstrumentor", openai)
    yield _row("CrewAI", "chat", "OpenInference", *common, f"{OI_PACKAGE}crewai", *instruments)


def _node() -> Iterator[Configuration]:
    js = "@arizeai/openinference-instrumentation-"
    for mode, can in (("chat", CHAT), ("responses", RESPONSES)):
        common = ("openai_loop.mjs", "node", "openai", can)
        yield _row("OpenAI SDK (JS)", mode, "OpenInference", *common, f"{js}openai")
        yield _row(
            "OpenAI SDK (JS)", mode, "Langfuse", *common, "@langfuse/openai", "langfuse", **LANGFUSE
        )
    common = ("anthropic_loop.mjs", "node", "@anthropic-ai/sdk", but("state", "handoff"))
    yield _row("Anthropic SDK (JS)", "messages", "OpenInference", *common, f"{js}anthropic")
    for mode, can in (("chat", CHAT), ("responses", but("state", "handoff"))):
        # its stream does not come to an end against this provider
        playable = tuple(name for name in can if name != "stream")
        common = ("langchain_agent.mjs", "node", "langchain", playable)
        yield _row("LangChain.js", mode, "OpenInference", *common, f"{js}langchain")
        common = ("vercel_ai.mjs", "node", "ai", can)
        yield _row("Vercel AI SDK", mode, "itself", *common)
    for mode, can in (("chat", but("reasoning", "state")), ("responses", but("state"))):
        common = ("openai_agents.mjs", "node", "@openai/agents", can)
        yield _row("OpenAI Agents SDK (JS)", mode, "OpenInference", *common, f"{js}openai")


CONFIGURATIONS = (*_openai(), *_clients(), *_agents(), *_frameworks(), *_node())
