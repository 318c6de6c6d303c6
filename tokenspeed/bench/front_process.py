"""The server as it ships, over whatever worker answers at an endpoint, in a process of its own:
`python -m tokenspeed.bench.front_process PLAN MODEL_DIR ENDPOINT SOCKET_FD`."""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path

import uvicorn
import uvloop

from tokenspeed.engine import Engine
from tokenspeed.plan import Plan
from tokenspeed.server.app import create_app
from tokenspeed.server.keys import Keys
from tokenspeed.server.listen import uvicorn_config
from tokenspeed.tokenizer import load_text_model
from tokenspeed.worker.parent import die_with_parent


async def _serve(plan_path: Path, model_dir: Path, endpoint: str, listener: socket.socket) -> None:
    plan = Plan.from_json(plan_path.read_bytes())
    text = load_text_model(model_dir, plan)
    engine = Engine(f"front-{os.getpid()}")
    engine.connect(endpoint)
    app = create_app(plan, engine, text, Keys())
    await uvicorn.Server(uvicorn_config(app)).serve(sockets=[listener])
    app.close()
    await engine.close()


if __name__ == "__main__":
    die_with_parent(os.getppid())
    logging.basicConfig(level=logging.WARNING)
    paths, descriptor = sys.argv[1:4], int(sys.argv[4])
    uvloop.run(_serve(Path(paths[0]), Path(paths[1]), paths[2], socket.socket(fileno=descriptor)))
