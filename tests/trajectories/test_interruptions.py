"""Exceptions that steer a run are no failures, in any language; errors and time limits stay
failures.
"""

from __future__ import annotations

import pytest

from apps.trajectories.interruptions import interruption

PAUSED, LEFT, CANCELLED, HANDED_OVER = "paused", "client-left", "cancelled", "handed-over"


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("langgraph.errors.GraphInterrupt", "(Interrupt(value='Ship it?'),)", PAUSED),
        ("langgraph.errors.NodeInterrupt", "", PAUSED),
        ("", "GraphInterrupt((Interrupt(value='Ship it?'),))", PAUSED),
        ("", "(Interrupt(value={'question': 'Ship it?'}, id='7'),)", PAUSED),
        ("pydantic_ai.exceptions.ApprovalRequired", "", PAUSED),
        ("strands.interrupt.InterruptException", "", PAUSED),
        ("workflows.errors.WaitingForEvent", "", PAUSED),
        ("crewai.flow.HumanFeedbackPending", "", PAUSED),
        ("langgraph.errors.ParentCommand", "", HANDED_OVER),
        ("GeneratorExit", "", LEFT),
        ("starlette.requests.ClientDisconnect", "", LEFT),
        (
            "org.apache.catalina.connector.ClientAbortException",
            "java.io.IOException: Broken pipe",
            LEFT,
        ),
        ("asyncio.exceptions.CancelledError", "", CANCELLED),
        ("System.Threading.Tasks.TaskCanceledException", "A task was canceled.", CANCELLED),
        ("kotlinx.coroutines.JobCancellationException", "Job was cancelled", CANCELLED),
        ("java.util.concurrent.CancellationException", "", CANCELLED),
        ("AbortError", "This operation was aborted", CANCELLED),
        ("DOMException", "AbortError: The user aborted a request.", CANCELLED),
        ("*url.Error", 'Post "https://models.example": context canceled', CANCELLED),
        ("_OTHER", "rpc error: code = Canceled desc = context canceled", CANCELLED),
        (
            "System.Threading.Tasks.TaskCanceledException",
            "canceled due to the configured HttpClient.Timeout",
            "",
        ),
        ("asyncio.exceptions.CancelledError", "the deadline was exceeded", ""),
        ("*url.Error", "context deadline exceeded", ""),
        ("TimeoutError", "", ""),
        ("ValueError", "Interrupt(value=3) cannot be read", ""),
        ("InterruptedError", "", ""),
        ("shop.OrderCancelledError", "Order 7 was cancelled", ""),
        ("shop.AccountSuspendedError", "", ""),
        ("shop.EmailConfirmationRequired", "", ""),
        ("", "Order cancelled: no stock", ""),
        # Names of any language and spelling, read word by word.
        ("flows.FlowCancelledByCaller", "", CANCELLED),
        ("query_canceled", "", CANCELLED),
        ("ERR_CANCELED", "", CANCELLED),
        ("UserAbortedException", "", CANCELLED),
        ("runtime::task::JoinError", "task 7 was cancelled", CANCELLED),
        ("io.grpc.StatusException", "CANCELLED: by the app", CANCELLED),
        ("RpcException", 'Status(StatusCode="Cancelled", Detail="")', CANCELLED),
        ("connect.Error", "[canceled] stopped", CANCELLED),
        ("QueryCanceled", "canceling statement due to statement timeout", ""),
        ("AsyncRequestNotUsableException", "failed to flush: Broken pipe", LEFT),
        ("WebSocketDisconnect", "1001", LEFT),
        ("http.Error", "499 Client Closed Request", LEFT),
        ("ServerDisconnectedError", "", ""),
        ("AwaitingHumanReview", "", PAUSED),
        ("run_suspended", "", PAUSED),
        ("AgentHandoff", "", HANDED_OVER),
        ("HandoffError", "no such agent", ""),
        ("db.TransactionAbortedException", "", ""),
        ("InputRequiredError", "day", ""),
        ("RuntimeError", "the order was cancelled", ""),
        ("", "", ""),
    ],
)
def test_what_an_exception_was(kind: str, text: str, expected: str) -> None:
    assert interruption(kind, text) == expected
