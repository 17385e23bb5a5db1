"""A server on 127.0.0.1 that speaks the hub's paths: resolve and listing, ranges, redirects to another host, and every failure."""

import hashlib
import json
import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


@dataclass
class Hub:
    """What the server answers.

    `body` to config.json and `files` to other names (a list alone is only listed); `refusal` = (status, headers) instead of
    anything, `refusals` instead of one file, a number of times. `cdn` is a second server's address that files are moved to.
    `ranges` False: it sends whole files. `cuts`: the next answers to that file end early.
    """

    url: str = ""
    body: bytes | None = json.dumps(CONFIG).encode()
    refusal: tuple[int, dict[str, str]] | None = None
    files: dict[str, bytes] | list[str] | None = None
    refusals: dict[str, list[tuple[int, dict[str, str]]]] = field(default_factory=dict)
    redirect: bool = False
    cdn: str = ""
    linked: bool = True
    ranges: bool = True
    cuts: dict[str, int] = field(default_factory=dict)
    commit: str = COMMIT
    head_delay_s: float = 0.0
    range_delay_s: float = 0.0
    cut: bool = False
    drip: bool = False
    plain_server: bool = False
    quantization: bytes | None = None
    odd: dict[str, str] = field(default_factory=dict)
    sent_bytes: int = 0
    at_once: int = 0
    most_at_once: int = 0
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    asked_ranges: list[tuple[str, str]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def paths(self):
        return [f"{method} {path}" for method, path, _ in self.seen]

    def weights_asked(self):
        return [path for path, _ in self.asked_ranges]


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.hub.seen.append(("HEAD", self.path, self.headers.get("Authorization", "")))
        self.hub.closing.wait(self.hub.head_delay_s)
        self.answer(with_body=False)

    def do_GET(self):
        self.hub.seen.append(("GET", self.path, self.headers.get("Authorization", "")))
        if self.path.startswith("/api/models/"):
            return self.listing()
        with self.hub.lock:
            self.hub.at_once += 1
            self.hub.most_at_once = max(self.hub.most_at_once, self.hub.at_once)
        try:
            return self.answer(with_body=True)
        finally:
            with self.hub.lock:
                self.hub.at_once -= 1

    def answer(self, with_body):
        hub = self.hub
        if hub.refusal is not None:
            status, headers = hub.refusal
            return self.send(status, headers)
        path = self.path.partition("?")[0]
        name = path.split("/", 5)[5] if path.count("/") > 4 else path.rpartition("/")[2]
        if name not in ("config.json", "hf_quant_config.json"):
            return self.weights(name)
        if hub.redirect and "/resolve/" in self.path:
            return self.send(307, {"Location": "/moved/config.json"})
        body = hub.body if name == "config.json" else hub.quantization
        if body is None:
            return self.send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": hub.commit})
        etag = hashlib.sha1(body).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": hub.commit, "Content-Length": str(len(body))}
        self.send(200, {} if hub.plain_server else headers)
        if with_body and hub.cut:
            self.wfile.write(body[:20])
            self.close_connection = True
        elif with_body and hub.drip:
            self.drip(body)
        elif with_body:
            self.wfile.write(body)
        return None

    def drip(self, body):
        with suppress(OSError):  # the client goes away
            for byte in body:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                if self.hub.closing.wait(0.2):
                    break

    def weights(self, name):
        """A file of weights by range, in the ways that hubs and what stands before them do it."""
        hub = self.hub
        asked = self.headers.get("Range", "")
        hub.asked_ranges.append((name, asked))
        hub.closing.wait(hub.range_delay_s)
        with hub.lock:
            waiting = hub.refusals.get(name)
            refusal = waiting.pop(0) if waiting else None
        if refusal is not None:
            return self.send(*refusal)
        body = hub.files.get(name) if isinstance(hub.files, dict) else None
        if body is None:
            return self.send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": hub.commit})
        if hub.cdn:
            linked = {"X-Linked-Size": str(len(body))} if hub.linked else {}
            return self.send(302, {"Location": f"{hub.cdn}/blob/0/0/0/{name}?signature=x", **linked, **hub.odd})
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
        if found and hub.ranges and int(found[1]) >= len(body):
            return self.send(416, {"Content-Range": f"bytes */{len(body)}"})
        if found and hub.ranges:
            first, last = int(found[1]), min(int(found[2]), len(body) - 1)
            part = body[first : last + 1]
            self.send(206, {"Content-Range": f"bytes {first}-{last}/{len(body)}", "Content-Length": str(len(part)), **hub.odd})
            self.close_connection = "Content-Length" in hub.odd
        else:
            part = body
            self.send(200, {"Content-Length": str(len(part)), **hub.odd})
        with hub.lock:
            cut = hub.cuts.get(name, 0)
            hub.cuts[name] = cut - 1
        if hub.drip:
            return self.drip(part)
        if cut > 0:
            part = part[: len(part) // 2]
            self.close_connection = True
        with suppress(OSError):  # a client that has enough goes away
            for at in range(0, len(part), 2**16):
                self.wfile.write(part[at : at + 2**16])
                hub.sent_bytes += len(part[at : at + 2**16])
        return None

    def listing(self):
        if self.hub.files is None:
            return self.send(404, {"X-Error-Code": "RepoNotFound"})
        if waiting := self.hub.refusals.get("/names"):
            return self.send(*waiting.pop(0))
        document = {"id": "acme/tiny", "sha": self.hub.commit, "siblings": [{"rfilename": name} for name in self.hub.files]}
        body = json.dumps(document).encode()
        self.send(200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.wfile.write(body)
        return None

    def send(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", "0")
        self.end_headers()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass  # a client that has enough goes away


@contextmanager
def running(state):
    """The server of that state, as long as the block lasts; `state.url` is its address."""
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": state}))
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def environment_of(hub, folder):
    """The environment of a user whose hub is the server, with an empty cache below `folder` and no token."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_CACHE": str(folder / "hf" / "hub"),
        "HUGGINGFACE_HUB_CACHE": "",
        "HF_HUB_OFFLINE": "0",
        "TRANSFORMERS_OFFLINE": "0",
        "HF_TOKEN": "",
        "HF_HUB_ETAG_TIMEOUT": "10",
        "NO_PROXY": "127.0.0.1",
    }
