"""An OpenAI-compatible server that writes variants by a script, as a process. `python -m
tests.evals.variant_server SCRIPT`

The script is JSON, {key, answers: [[words of the question, text of the answer], …]}: the first
whose words are all in the question answers it, and is used up. A question without one gets “OK”,
which is no JSON; one without the key HTTP 401. Prints its port; the requests are at GET /requests.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.evals.openai_server import Handler, completion, text_of


class Writing(Handler):
    key = ""
    answers: list[tuple[list[str], str]] = []
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body)
        if self.headers.get("Authorization") != f"Bearer {self.key}":
            self.answer(401, "application/json", json.dumps({"error": {"message": "No such key."}}))
            return
        message = {
            "role": "assistant",
            "content": self.next_for(text_of(body["messages"][-1]["content"])),
        }
        self.answer(200, "application/json", json.dumps(completion(body, message)))

    def next_for(self, question: str) -> str:
        with self.lock:
            for number, (words, _) in enumerate(self.answers):
                if all(word in question for word in words):
                    return self.answers.pop(number)[1]
        return "OK"


def main() -> None:
    script = json.loads(Path(sys.argv[1]).read_text())
    Writing.key, Writing.answers = (
        script["key"],
        [(words, text) for words, text in script["answers"]],
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), Writing)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
