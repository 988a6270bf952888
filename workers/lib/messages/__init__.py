"""Messages and tool calls. Everything that parses or compares a message does it through this package.

Pure and standard library only: exported verifiers packages include these files.
"""

from workers.lib.messages.calls import (
    ToolCall,
    answer_text,
    arguments_of,
    as_json,
    call_of,
    calls_in,
    calls_in_text,
    calls_of,
    known_call,
    native_calls,
    native_items,
    to_native,
    to_text,
    tool_names,
    unread_calls,
)
from workers.lib.messages.compare import argument_share, call_key, normalise, same_call, same_json, same_value
from workers.lib.messages.content import (
    PROMPT_ROLES,
    REASONING_PARTS,
    RESULT_ROLES,
    Message,
    content_text,
    is_example,
    is_prompt,
    is_reasoning,
    is_request,
    last_answer,
    last_request,
    part_text,
    reasoning_of,
    system_prompt,
    text_of,
    unfenced,
    without_reasoning,
)
from workers.lib.messages.json_text import (
    MAX_DEPTH,
    TooDeep,
    clean,
    cleaned,
    json_of,
    read_json,
    read_repeated,
    unpacked,
)
from workers.lib.messages.responses import (
    TEXT_PARTS,
    ItemError,
    as_completion,
    error_text,
    failure_of,
    from_chat_request,
    from_items,
    items_request,
    reasoning_text,
    to_items,
)
from workers.lib.messages.results import Exchange, OpenCalls, exchanges
from workers.lib.messages.tools import chat_tool, flat_tool, function_of, functions_of, schemas_of

__all__ = [
    "MAX_DEPTH", "PROMPT_ROLES", "REASONING_PARTS", "RESULT_ROLES", "TEXT_PARTS", "Exchange", "ItemError", "Message", "OpenCalls",
    "TooDeep", "ToolCall", "answer_text", "argument_share",
    "arguments_of", "as_completion", "as_json", "call_key", "call_of", "calls_in", "calls_in_text", "calls_of", "chat_tool", "clean",
    "cleaned", "content_text", "error_text", "exchanges", "failure_of", "flat_tool", "from_chat_request",
    "from_items", "function_of", "functions_of", "is_example", "is_prompt", "is_reasoning",
    "is_request", "items_request", "json_of", "known_call", "last_answer", "last_request", "native_calls", "native_items", "normalise", "part_text", "read_json", "read_repeated",
    "reasoning_of", "reasoning_text", "same_call", "same_json", "same_value", "schemas_of", "system_prompt", "text_of", "to_items", "to_native", "to_text", "tool_names",
    "unfenced", "unpacked", "unread_calls", "without_reasoning",
]  # fmt: skip
