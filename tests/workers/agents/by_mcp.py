"""`python by_mcp.py MODULE`: runs an example of clients/python/examples on the task, with the tools
of its rollout. Its SDK finds the model by its own environment variables.
"""

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path

run = importlib.import_module(sys.argv[1]).run
task = json.loads(Path(os.environ["FLYWHEEL_TASK"]).read_text())
said = asyncio.run(run(task["messages"], os.environ["FLYWHEEL_MCP_URL"]))
print(json.dumps({"messages": said} if isinstance(said, list) else {"output": said}))
