"""A small Hugging Face Hub on this machine: its addresses, headers and error codes, and its cache.

They are those that `huggingface_hub` asks for, as it documents them.
"""

import contextlib
import hashlib
import http.server
import threading
from urllib.parse import unquote

COMMIT = '0123456789abcdef0123456789abcdef01234567'


def lay(cache, repo, source, names=None, commit=COMMIT, branch='main'):
  """Puts files of a directory where `huggingface_hub` keeps those of a repository."""
  folder = cache / f'models--{repo.replace("/", "--")}'
  snapshot = folder / 'snapshots' / commit
  snapshot.mkdir(parents=True)
  for name in names or [path.name for path in source.iterdir()]:
    (snapshot / name).write_bytes((source / name).read_bytes())
  (folder / 'refs').mkdir()
  (folder / 'refs' / branch).write_text(commit)
  return snapshot


class _Handler(http.server.BaseHTTPRequestHandler):
  """Answers /ORG/MODEL/resolve/REVISION/FILE from `server.repos`."""

  def do_HEAD(self):
    self._answer(with_body=False)

  def do_GET(self):
    self._answer(with_body=True)

  def log_message(self, *words):
    pass

  def _answer(self, with_body):
    path = unquote(self.path.partition('?')[0])
    parts = path.split('/', 5)
    if len(parts) < 6 or parts[3] != 'resolve':
      return self._refuse(404, None)  # huggingface_hub also asks what is about itself.
    self.server.requested.append(f'{self.command} {path}')
    repo, revision, file = '/'.join(parts[1:3]), parts[4], parts[5]
    if repo in self.server.refusals:
      return self._refuse(*self.server.refusals[repo])
    if repo not in self.server.repos:
      return self._refuse(404, 'RepoNotFound')
    commit, files = self.server.repos[repo]
    if revision not in ('main', 'v1', commit):
      return self._refuse(404, 'RevisionNotFound')
    if file not in files:
      return self._refuse(404, 'EntryNotFound', commit)
    return self._send(commit, files[file], with_body)

  def _refuse(self, status, code, commit=None):
    self.send_response(status)
    if code:
      self.send_header('X-Error-Code', code)
    if commit:
      self.send_header('X-Repo-Commit', commit)
    self.send_header('Content-Length', '0')
    self.end_headers()

  def _send(self, commit, content, with_body):
    self.send_response(200)
    self.send_header('X-Repo-Commit', commit)
    self.send_header('ETag', f'"{hashlib.sha256(content).hexdigest()}"')
    self.send_header('Content-Length', str(len(content)))
    self.end_headers()
    if with_body:
      cut = self.server.cuts > 0 and len(content) > 10_000
      self.server.cuts -= cut
      self.wfile.write(content[:len(content) // 2] if cut else content)


@contextlib.contextmanager
def serve(repos, refusals=()):
  """A server of repositories: by name, the commit of 'main' and 'v1', and files by their names.

  Args:
    repos: the repositories.
    refusals: by the name of another, the status and the code of the error.

  Yields the server. `requested` has the files that were asked of it, and of the next `cuts` large
  files it sends only half.
  """
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Handler)
  server.repos, server.refusals, server.requested, server.cuts = repos, dict(refusals), [], 0
  server.url = f'http://127.0.0.1:{server.server_port}'
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  try:
    yield server
  finally:
    server.shutdown()
    thread.join()
    server.server_close()
