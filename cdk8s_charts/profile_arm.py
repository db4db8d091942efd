"""Capture decode steps of an arm: `profile_arm.py OUT MODEL SERVER...` runs the arm's server once, asks it, and ends it.

Runs in the arm's own image, on its devices. What the Neuron runtime writes lies in OUT afterwards, beside what `neuron-ls`
says of the devices. Where the server has vLLM's endpoints of a profiler (`--profiler-config`) only the asked steps are
captured; elsewhere the runtime captures what the variables of the pod say (`NEURON_RT_INSPECT_*`) until the process ends.
Standard library only. *Not run on AWS.*
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

PORT = 8000
LOAD_S = 1800
"""As long as an arm may take to load."""
END_S = 900
"""The runtime writes its traces while the process ends."""
WARM_TOKENS, TOKENS = 16, 32
PROMPT = "1, 2, 3,"


def main(argv: list[str]) -> int:
    """0 once something was captured; one line says why not."""
    out, model, *command = argv
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    topology(folder)
    server = subprocess.Popen(command)
    try:
        _wait_until_it_answers(server)
        _ask(model, WARM_TOKENS)
        by_endpoint = "--profiler-config" in command
        if by_endpoint:
            _post("/start_profile")
        _ask(model, TOKENS)
        if by_endpoint:
            _post("/stop_profile")
    except (OSError, ValueError, RuntimeError) as error:
        print(f"no profile: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    finally:
        _end(server)
        readable(folder)
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".ntff", ".pb")]
    if not found:
        print(f"no profile: the runtime wrote no trace into {folder}", file=sys.stderr)
        return 1
    print(f"{len(found)} traces, {sum(path.stat().st_size for path in found) / 1e6:.1f} MB")
    return 0


def readable(folder: Path) -> None:
    """To its group, as which another container copies it: `chmod -R g+rX`."""
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        wanted = mode | (0o050 if path.is_dir() else 0o040)
        if wanted != mode:
            path.chmod(wanted)


def topology(folder: Path) -> None:
    """What `neuron-ls` says of the devices and how they are connected, as a table and as JSON."""
    for name, option in (("neuron-ls.txt", "--topology"), ("neuron-ls.json", "--json-output")):
        try:
            done = subprocess.run(["neuron-ls", option], capture_output=True, timeout=60, check=False)
            (folder / name).write_bytes(done.stdout or done.stderr)
        except (OSError, subprocess.TimeoutExpired) as error:
            (folder / name).write_text(f"neuron-ls: {error}\n", encoding="utf-8")


def _wait_until_it_answers(server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + LOAD_S
    while time.monotonic() < end:
        if (code := server.poll()) is not None:
            raise RuntimeError(f"the server ended with exit {code}; its log says why")
        try:
            urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5).close()
        except (URLError, OSError):
            time.sleep(2)
            continue
        return
    raise RuntimeError(f"the server did not answer within {LOAD_S} s")


def _ask(model: str, tokens: int) -> None:
    body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = json.loads(_post("/v1/completions", body))
    if not answer["choices"][0]["text"]:
        raise ValueError("the completion is empty")


def _post(path: str, body: dict[str, object] | None = None) -> bytes:
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("VLLM_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    asked = Request(f"http://127.0.0.1:{PORT}{path}", json.dumps(body or {}).encode(), headers, method="POST")
    with urlopen(asked, timeout=END_S) as answer:
        said: bytes = answer.read()
    return said


def _end(server: subprocess.Popen[bytes]) -> None:
    """As a person would: what is killed writes nothing."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if server.poll() is None:
            server.send_signal(number)
            try:
                server.wait(END_S if number != signal.SIGKILL else 60)
            except subprocess.TimeoutExpired:
                continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
