"""An environment that Flywheel serves, as a resources server of nemo-gym: every call is sent on
with the key.

Nemo-gym's agents know a server by host and port alone, without a path and without credentials.
"""

from fastapi import FastAPI, Request, Response
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.server_utils import request as send


class Config(BaseResourcesServerConfig):
    url: str  # https://<flywheel>/env/<slug>@<version>
    api_key: str


class Flywheel(SimpleResourcesServer):
    ray_enabled = False
    config: Config

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        app.post("/{path:path}")(self.forward)
        app.get("/reverify_mode")(self.forward)
        return app

    async def forward(self, request: Request) -> Response:
        """The same call of the environment, and its answer; the session's cookie goes both ways."""
        headers = {
            "Authorization": f"Bearer {self.config.api_key}",
            "Content-Type": "application/json",
        }
        url, body = self.config.url.rstrip("/") + request.url.path, await request.body()
        answer = await send(
            request.method, url, data=body, headers=headers, cookies=request.cookies
        )
        response = Response(await answer.read(), answer.status, media_type="application/json")
        for name, cookie in answer.cookies.items():
            response.set_cookie(name, cookie.value)  # without its path, which is another one here
        return response

    async def verify(self, body: object) -> None:
        raise NotImplementedError("Flywheel verifies.")


if __name__ == "__main__":
    Flywheel.run_webserver()
