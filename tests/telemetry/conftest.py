"""A stand-in for the W&B server: just enough of it for a run to start, log and finish, or to stall."""

import gzip
import http.server
import json
import threading

import pytest


class FakeWandbServer:
    """Answers the W&B client until `stall` is set; keeps what it was asked in `requests`."""

    def __init__(self):
        self.stall = threading.Event()
        self.release = threading.Event()
        self.requests: list[tuple[str, dict]] = []
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if fake.stall.is_set():
                    fake.release.wait(60)
                    return
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                try:
                    request = json.loads(body or b"{}")
                except ValueError:  # an uploaded file
                    request = {}
                fake.requests.append((self.path, request))
                answer = json.dumps(fake.reply(self.path, request)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *arguments):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def reply(self, path: str, request: dict) -> dict:
        operation, variables = request.get("operationName"), request.get("variables") or {}
        if operation == "UpsertBucket":
            project = {"id": "p", "name": variables.get("project"), "entity": {"id": "e", "name": "someone"}}
            run = {"id": "r", "name": variables.get("name"), "displayName": variables.get("displayName")}
            run |= {"config": "{}", "summaryMetrics": "{}", "historyLineCount": 0, "project": project}
            return {"data": {"upsertBucket": {"bucket": run, "inserted": True}}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.address}/upload"} for name in variables["files"]]
            return {"data": {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}}
        return {"data": {}}

    def history(self) -> list[dict]:
        """The records that arrived, decoded."""
        parts = [
            r.get("files", {}).get("wandb-history.jsonl", {}) for path, r in self.requests if "file_stream" in path
        ]
        return [json.loads(line) for part in parts for line in part.get("content", [])]

    def close(self):
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def wandb_server():
    server = FakeWandbServer()
    yield server
    server.close()
