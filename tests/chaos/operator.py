"""What people and scripts do with an installation, again and again, by the API and its pages: a
channel is promoted and rolled back; runs are classified; evaluations and trainings are started,
and some trainings are stopped and resumed.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import httpx2

from apps.core.models import ACTIVE_STATES, JobState
from apps.promotion.models import Promotion

if TYPE_CHECKING:
    from tests.chaos.world import World

TURN_S = 0.7
SAMPLES = 2
EVALUATIONS_AT_ONCE = 2  # one of them waits in the queue
STEPS, EVERY = 24, 4
SAME = 2  # trainings with the same data and seed
STOPPED_EVERY = 3  # of so many trainings, one is stopped and resumed
TRAINING = """
model: {base}
algorithm: sft
training_data: {eval_set}
environment: {environment}
steps: {steps}
save_every: {every}
learning_rate: 0.001
batch_size: 2
seed: {seed}
"""


class Operator(threading.Thread):
    """Keeps what was answered with 2xx: ids of evaluations and trainings, moves of the channel."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self.world, self.stopping = world, threading.Event()
        self.evaluations = list[str]()
        self.trainings = list[str]()
        self.resumed = list[str]()
        self.moves = list[str]()
        self.refused = list[str]()

    def run(self) -> None:
        turns = [self.evaluate, self.move, self.classify, self.move]
        turns[:0] = [self.train] if self.world.trains else []
        turn = 0
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{self.world.it.port}/api/v1",
            headers={"Authorization": f"Bearer {self.world.key}"},
            timeout=20,
        ) as client:
            while not self.stopping.wait(TURN_S):
                try:
                    turns[turn % len(turns)](client)
                except (httpx2.HTTPError, KeyError, ValueError) as error:
                    self.refused.append(f"{type(error).__name__} {error}")
                turn += 1

    def move(self, client: httpx2.Client) -> None:
        """To where the channel is not: what it runs is read first, since an answer may be lost."""
        live = client.get("/channels/production/").json()["model"]
        if live == self.world.versions["alpha"]:
            self.promote()
            return
        body = {"from_version": live, "reason": "worse"}
        if self.is_done(client.post("/channels/production/rollback/", json=body)):
            self.moves.append(Promotion.Kind.ROLLBACK)

    def promote(self) -> None:
        """By an owner, on the page: what was rolled back is not promoted by a key."""
        page = self.world.it.client.get(self.world.report_page)
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
        if token is None:
            raise ValueError(f"of the report's page: {page.status_code}")
        sent = self.world.it.client.post(
            f"{self.world.report_page}promote/",
            data={"reason": "better", "csrfmiddlewaretoken": token[1]},
            headers={"Referer": str(self.world.it.client.base_url)},
            follow_redirects=True,
        )
        if "is now live in" in sent.text:
            self.moves.append(Promotion.Kind.PROMOTE)
        else:
            self.refused.append(f"promote: {sent.status_code}")

    def classify(self, client: httpx2.Client) -> None:
        self.is_done(client.post("/classification/", json={}))

    def evaluate(self, client: httpx2.Client) -> None:
        before = self.evaluations[-EVALUATIONS_AT_ONCE:]
        if len(before) == EVALUATIONS_AT_ONCE and self.is_active(client, f"/eval-runs/{before[0]}"):
            return
        body = {
            "eval_set": self.world.eval_set,
            "split": "holdout",
            "environment": self.world.environment,
            "model_version": self.world.versions["alpha"],
            "samples_per_task": SAMPLES,
        }
        answer = client.post("/eval-runs/", json=body)
        if self.is_done(answer):
            self.evaluations.append(answer.json()["id"])

    def train(self, client: httpx2.Client) -> None:
        """One at a time. Some are stopped, and resumed once they have stopped."""
        trainings = self.world.acknowledged.trainings + self.trainings
        last = trainings[-1] if trainings else ""
        state = self.state(client, f"/training-runs/{last}") if last else ""
        if state in ACTIVE_STATES:
            if len(trainings) % STOPPED_EVERY == 0 and last not in self.world.stopped:
                self.world.stopped.add(last)
                self.is_done(client.post(f"/training-runs/{last}/cancel/"))
        elif state == JobState.CANCELLED and self.is_done(
            client.post(f"/training-runs/{last}/resume/")
        ):
            self.resumed.append(last)
        else:
            self.start_training(client, seed=len(trainings) // SAME)

    def start_training(self, client: httpx2.Client, *, seed: int) -> None:
        config = TRAINING.format(
            base=self.world.versions["base"],
            eval_set=self.world.training_data,
            environment=self.world.environment,
            steps=STEPS,
            every=EVERY,
            seed=seed,
        )
        answer = client.post("/training-runs/", json={"yaml": config})
        if self.is_done(answer):
            self.trainings.append(answer.json()[0]["id"])

    def is_active(self, client: httpx2.Client, path: str) -> bool:
        return self.state(client, path) in ACTIVE_STATES

    def state(self, client: httpx2.Client, path: str) -> str:
        return JobState(client.get(f"{path}/").json()["state"])

    def is_done(self, answer: httpx2.Response) -> bool:
        if answer.is_success:
            return True
        self.refused.append(f"{answer.status_code} {answer.text[:200]}")
        return False
