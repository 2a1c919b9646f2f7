"""What can be known of a module from its source, without importing all that it imports."""

import ast
import copy
from pathlib import Path
from typing import Any

import bornbiased_jax

LIBRARY = Path(bornbiased_jax.__file__).parent


def keys(path: Path, *names: str) -> tuple[str, ...]:
  """The keys of dicts that a module writes out, annotated, at its top level."""
  tables = {ast.unparse(statement.target): statement.value for statement in _parse(path).body
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Dict)}
  return tuple(ast.literal_eval(key) for name in names for key in tables[name].keys if key)


def last_statement(path: Path, given: dict[str, Any]) -> ast.Module:
  """The last statement of a module, and before it only what that needs, but for `given` names."""
  *statements, last = _parse(path).body
  needed, kept = set(), [last]
  while more := set().union(*(_names(each, ast.Load) for each in kept)) - given.keys() - needed:
    needed |= more
    kept = [part for statement in statements if (part := _part(statement, needed))] + [last]
  return ast.Module(kept, [])


def docstring(path: Path) -> str:
  return ast.get_docstring(_parse(path)) or ''


def _parse(path):
  return ast.parse(path.read_text(encoding='utf-8'), str(path))


def _names(statement, context):
  return {node.id for node in ast.walk(statement)
          if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def _part(statement, needed):
  """Of an import the names that are needed; another statement if it binds such a name; or None."""
  if isinstance(statement, ast.Import | ast.ImportFrom):
    part = copy.copy(statement)
    part.names = [alias for alias in statement.names
                  if (alias.asname or alias.name.partition('.')[0]) in needed]
    return part if part.names else None
  own = getattr(statement, 'name', None)
  return statement if needed & ({own} if own else _names(statement, ast.Store)) else None
