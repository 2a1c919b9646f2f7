"""A small Hugging Face Hub: a cache as `huggingface_hub` keeps it, and a download without one."""

from fnmatch import fnmatch

COMMIT = '0123456789abcdef0123456789abcdef01234567'


def lay(cache, repo, source, names=None, commit=COMMIT, branch='main'):
  """Puts files of a directory where `huggingface_hub` keeps those of a repository."""
  folder = cache / f'models--{repo.replace("/", "--")}'
  snapshot = folder / 'snapshots' / commit
  snapshot.mkdir(parents=True)
  for name in names or [path.name for path in source.iterdir()]:
    (snapshot / name).symlink_to(source / name)
  (folder / 'refs').mkdir()
  (folder / 'refs' / branch).write_text(commit)
  return snapshot


class Download:
  """In place of `huggingface_hub.snapshot_download`: gives files of repositories, or raises.

  Args:
    cache: the folder to put them into.
    repos: the repositories by their names: contents of files by theirs, or an exception.

  `fetched` has the files that were asked for and that there are.
  """

  def __init__(self, cache, repos):
    self.cache, self.repos, self.fetched = cache, repos, []

  def __call__(self, repo, revision, allow_patterns, local_files_only):
    found = self.repos[repo]
    if isinstance(found, Exception):
      raise found
    assert not local_files_only and revision in (None, 'v1', COMMIT)
    folder = self.cache / repo / COMMIT
    for name, content in found.items():
      path = folder / name
      if any(fnmatch(name, pattern) for pattern in allow_patterns) and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.fetched.append(f'{repo}/{name}')
    return str(folder)
