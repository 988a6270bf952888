"""Whether a reply says that the call failed, and whether an end was a limit's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.failures.rules.checks import LIMIT, limit_reached
from apps.trajectories.tool_errors import is_error, service_failed


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("Error: no such user", True),
        ("  Traceback (most recent call last):", True),
        ('{"error": "no"}', True),
        ('{"status": "error", "code": 4}', True),
        ('{"success": false}', True),
        ('{"data": 1, "isError": true}', True),
        ('{"error": null, "rows": [1]}', False),
        ('{"errors": [], "rows": [1]}', False),
        ('{"error": "", "a": 1}', False),
        ('{"status": "ok", "note": "error"}', False),
        ("The error log is empty.", False),
        ("", False),
        ("Done.", False),
        ('[{"status": "failed"}]', False),  # a list of things that failed is what was asked for
        # Members say it in any order and spelling.
        ('{"content": [{"type": "text", "text": "card declined"}], "isError": true}', True),
        ('{"content": [{"type": "text", "text": "saved"}], "is_error": false}', False),
        (
            '{"jsonrpc": "2.0", "id": 9, "error": {"code": -32601, "message": "Method not found"}}',
            True,
        ),
        ('{"jsonrpc": "2.0", "id": 9, "result": {"content": [], "isError": true}}', True),
        ('{"code": -32000, "message": "overloaded"}', True),
        ('{"rows": null, "ok": false}', True),
        ('{"value": null, "error": "took longer than 20 s"}', True),
        ('{"Error": {"Code": "NoSuchBucket"}}', True),
        ('{"message": "no seat left", "statusCode": 409}', True),
        ('{"http_status": "503"}', True),
        ('{"type": "about:blank", "title": "Gone", "status": 410}', True),
        ('{"errorMessage": "x", "errorType": "KeyError"}', True),
        ('{"data": null, "errors": [{"message": "no field a"}]}', True),
        ("{'error': 'no such seat', 'seat': 4}", True),
        ('{"error": {"message": "cut in the mid', True),
        ('"Error: no such seat"', True),
        # Blocks of content.
        ('[{"type": "text", "text": "Error: no such seat"}]', True),
        ('[{"type": "text", "text": "Seat 4"}]', False),
        ('{"content": [{"type": "text", "text": "Error: no such seat"}]}', True),
        ('[{"type": "tool_result", "is_error": true, "content": "no"}]', True),
        # A record that was read, a report, a number.
        ('{"payment": 7, "amount": 20, "status": "failed"}', False),
        ('{"status": "failed", "reason": "no seat"}', True),
        ('{"file": "a.py", "errors": ["line too long"]}', False),
        ('{"errors": 3, "warnings": 1}', False),
        ('{"error": 0.03, "model": "ols"}', False),
        ('{"error": "none"}', False),
        ('{"ok": true, "error": "late"}', False),
        ('{"code": 450, "name": "Lamp"}', False),
        ('{"exit_code": 1, "stdout": ""}', False),
        # Words, by their form.
        ("Tool 'seats.book' failed: no route to host", True),
        ("Request failed with status code 502", True),
        ("<error>no such seat</error>", True),
        ("<tool_use_error>no</tool_use_error>", True),
        ("<errors></errors>", False),
        ("java.io.IOException: closed", True),
        ("ValueError: bad day", True),
        ("Error executing tool book: denied", True),
        ("**Error** no seat", True),
        ("[Error] no seat", True),
        ("Error 404", True),
        ("404 Not Found", True),
        ("HTTP 500", True),
        ("An unexpected error occurred", True),
        ("Fehler: Platz belegt", True),
        ("Erreur : introuvable", True),
        ("错误：没有座位", True),
        ("Error budget is 98% this week.", False),
        ("Errors are listed below: none", False),
        ("Error: none", False),
        ("Error handling is in chapter 4.", False),
        ("0 errors, 2 warnings", False),
        ("404 seats are free", False),
        ("Failed jobs: 0", False),
        ("Tool inventory: 3 items failed", False),
    ],
)
def test_errors(reply: str, error: bool) -> None:
    assert is_error(reply) is error


FAILED_REPLIES = (
    # The exit code of a command, wherever its shell puts it.
    '{"stdout": "", "stderr": "tar: seats: no such entry", "exitCode": 2}',
    '{"rc": "4", "stderr": "unreachable", "changed": false}',
    '{"status": 1, "signal": null, "stdout": "", "stderr": "seat taken"}',
    '{"output": "seat taken", "metadata": {"exit_code": 3, "duration_seconds": 0.2}}',
    "Exit code 3\nmake: no rule for seats",
    "Wall time: 0.4 seconds\nProcess exited with code 4\nOutput:\nseat taken",
    "Row 4 is free\n[The command completed with exit code 9.]",
    # Flags and names of errors, as services write them.
    '{"hasErrors": true, "message": "no seat"}',
    '{"Succeeded": "False", "reason": "no seat"}',
    '{"__type": "com.tickets#SeatTakenException", "message": "4A"}',
    '{"code": "seat_not_found", "message": "4A", "link": "https://docs.example/seats"}',
    '{"errorCode": "S17", "errorSummary": "no such seat", "errorId": "x1"}',
    '{"errcode": 40013, "errmsg": "invalid seat"}',
    '{"fault": {"faultstring": "quota"}}',
    '{"message": "Not Found", "documentation_url": "https://docs.example/seats"}',
    # In what wraps the reply of a tool.
    '{"result": {"isError": true, "content": [{"type": "text", "text": "4A is taken"}]}}',
    '{"ok": true, "result": {"exit_code": 2, "stderr": "4A is taken"}}',
    '{"functionResponse": {"name": "book", "response": {"error": "4A is taken"}}}',
    '[{"error": "4A is taken"}]',
    # The lines of runtimes, shells and databases.
    "panic: seat 4A is nil",
    "thread 'main' panicked at src/seats.rs:4:5:\nno seat",
    "Unhandled exception. Tickets.SeatTaken: 4A",
    "** (Tickets.SeatError) 4A",
    "seats.rb:7:in `fetch': key not found: :a4 (KeyError)",
    "Error in book(seat) : no seat",
    "tickets.exceptions.SeatTaken: 4A",
    "cat: seats.txt: Permission denied",
    "zsh: command not found: seats",
    "ORA-00001: unique constraint (SEATS) violated",
    '<?xml version="1.0"?>\n<Error><Code>NoSuchSeat</Code></Error>',
    "Failed to book 4A: connection reset",
    # As gateways and SDKs answer.
    "2 validation errors for Seat\nrow\n  Field required",
    "4A is taken.\n\nFix the errors and try again.",
    "<html>\n<head><title>502 Bad Gateway</title></head>\n<body></body></html>",
    "Bad Gateway",
    '{"error": 403}',
    '{"error": ["row: field required"]}',
    '{"detail": "Not found."}',
    '{"msg": "Seat not found", "detail": "4A"}',
    '{"message": "Invalid seat: 4A"}',
    '{"reason": "SEAT_NOT_FOUND", "message": "No", "explanation": "4A is not there"}',
)
READ_REPLIES = (
    "Exit code 0\nError: printed by a seat on purpose",
    "Exit code 1",  # nothing written: grep found nothing
    '{"code": 200, "stdout": "4A", "stderr": ""}',
    '{"run": 12, "job": "seats", "exit_code": 1}',  # a record of a job
    '{"success": true, "data": {"seat": "4A", "success": false}}',
    '{"data": {"error": "taken", "id": 4, "seat": "4A"}}',
    '{"errcode": 0, "errmsg": "ok"}',
    '{"type": "SeatError", "message": "taken", "events": 4}',  # an issue in a tracker
    '{"id": "m1", "name": "Bad", "message": "He is bad."}',
    '{"status": "error_free", "message": "all seats"}',
    "Error 404 is what a page without seats answers.",
    "Error-free since May.",
    "Error code 17 means that the door is open.",
    "Error in judgment is common among new pilots.",
    "panic buying of seats rose",
    "Invalid tickets:\n4A\n4B",
    "The exit code 2 stands for misuse.",
    "3 validation errors were fixed in May",
    "Forbidden seats are listed below",
    '{"error": 0, "seat": "4A"}',
    '{"title": "Access Denied", "description": "A film of 2012"}',
    '{"message": "Unknown caller left a message"}',
    '{"reason": "missing you", "message": "hi"}',
    "grep: b.txt: Permission denied\na.txt:3: seat 4A",
    "    ValueError: if the seat is taken.\n    KeyError: never",  # out of a docstring
)


@pytest.mark.parametrize("reply", FAILED_REPLIES)
def test_a_failed_call_is_seen_by_its_envelope_or_a_whole_line(reply: str) -> None:
    assert is_error(reply)


@pytest.mark.parametrize("reply", READ_REPLIES)
def test_what_was_asked_for_is_not_a_failed_call(reply: str) -> None:
    assert not is_error(reply)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max_turns", True),
        ("max rounds reached", True),
        ("MAX_TOKENS", True),
        ("Maximum number of turns exceeded", True),
        ("length", True),
        ("exit_context", True),
        ("timed out", True),
        ("the limit of 30 steps was reached", True),
        ("recursion limit", True),
        ("context window exceeded", True),
        ("stop", False),
        ("tool_calls", False),
        ("The card's limit is too low.", False),
        ("wrong length of the name", False),
        ("maximum price of the order", False),
        ("", False),
    ],
)
def test_turn_limits(text: str, limit: bool) -> None:
    assert (LIMIT.search(text) is not None) is limit


@given(st.text(st.characters()))
def test_no_text_breaks_a_pattern(text: str) -> None:
    LIMIT.search(text[:300]), is_error(text)


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        ("length", "An answer was cut off at its limit of length (tokens)."),
        ("max_tokens", "An answer was cut off at its limit of length (tokens)."),
        ("max_turns", "The turn limit ended the run."),
        ("step limit", "The step limit ended the run."),
        ("cost_limit", "The cost limit ended the run."),
        ("context window exceeded", "The context window was full."),
        ("timed out", "The time limit ended the run."),
        ("exit_format", "A limit ended the run."),
    ],
)
def test_the_limit_that_ended_a_run_is_named(ending: str, text: str) -> None:
    match = LIMIT.search(ending)
    assert match and limit_reached(match[0]) == text


@pytest.mark.parametrize(
    ("reply", "failed"),
    [
        ('HTTP 503: {"error": "later"}', True),
        ("429 Too Many Requests", True),
        ('{"error": {"code": 500}}', True),
        ('[{"type": "text", "text": "Error: 502 Bad Gateway"}]', True),
        ('{"result": {"isError": true, "content": [{"type": "text", "text": "HTTP 500"}]}}', True),
        ('{"statusCode": 422, "body": "500 is too much"}', False),
        ("HTTP 400: count must be at most 500", False),
        ("Error: no", False),
        ('{"count": 500}', False),
        ("[" * 9000, False),
    ],
)
def test_a_status_says_whether_the_service_failed_or_the_call_is_wrong(
    reply: str, failed: bool
) -> None:
    assert service_failed(reply) == failed
