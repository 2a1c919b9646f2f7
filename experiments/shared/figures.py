"""How figures and pages are written: every program that draws one has the flag --format."""

import base64
from contextvars import ContextVar
import hashlib
from pathlib import Path
import re
import shlex
import string
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.text import Text
import numpy as np

from bornbiased_jax import plotting
from bornbiased_jax.errors import plain
from bornbiased_jax.fields import Kind, choice

from . import session
from .tables import grouped

# A flag, but no setting of a run: what was measured can be drawn again in another format.
FORMAT = ContextVar('format', default='png')
_ISOLATED = {'\u2068': Markup('<bdi>'), '\u2069': Markup('</bdi>')}
PRESET_NAMES = {
    'tiny_gpt2': 'GPT-2 (tiny)', 'tiny_llama2': 'LLaMA (tiny)', 'tiny_qwen2': 'Qwen (tiny)',
    'tiny_moe': 'mixture (tiny)', 'nano_gpt2': 'GPT-2 (nano)', 'nano_llama2': 'LLaMA (nano)',
    'nano_qwen2': 'Qwen (nano)', 'gpt2_1b2': 'GPT-2 (1.2 B)', 'llama2_7b': 'LLaMA (7 B)',
    'pythia_70m': 'Pythia (70 M)'}
# Where they stand by themselves, not in a path or before another field.
_PRESET = re.compile(rf'(?<![\w/.-])({"|".join(PRESET_NAMES)})(?![\w/.@-]|[,:]\w)')
FORMAT_FLAG = Kind(choice('png', 'svg', 'pdf'), 'file format of figures')


def write(drawn: Any, directory: Path, name: str = 'figure') -> Path:
  """Writes a figure of results to DIRECTORY/NAME.FORMAT, in the format that --format says."""
  path = directory / f'{name}.{FORMAT.get()}'
  with plotting.style():
    for_readers(drawn)
  plotting.save(drawn, path)
  return path


def for_readers(drawn: Any) -> None:
  """Gives panels letters, titles capitals, and presets the names that people use."""
  for text in drawn.findobj(Text):
    text.set_text(named(text.get_text()))
  for ax in drawn.axes:
    ax.set(xlabel=capital(ax.get_xlabel()), ylabel=capital(ax.get_ylabel()),
           title=capital(ax.get_title('left')))
    for axis in (ax.xaxis, ax.yaxis):
      labels = [label.get_text() for label in axis.get_ticklabels()]
      if list(map(named, labels)) != labels:
        axis.set_ticklabels(list(map(named, labels)))
  panels = [ax for ax in drawn.axes if ax.get_label() != '<colorbar>']
  for letter, ax in zip(string.ascii_lowercase, panels if len(panels) > 1 else (), strict=False):
    ax.set_title(f'$\\bf{{{letter}}}$  {ax.get_title("left")}')


def named(text: str) -> str:
  """A text with presets by the names that people use.

  >>> named('tiny_gpt2: T = 64'), named('tiny_gpt2:42')
  ('GPT-2 (tiny): T = 64', 'tiny_gpt2:42')
  """
  return _PRESET.sub(lambda found: PRESET_NAMES[found[0]], text)


def capital(text: str) -> str:
  """A text whose first word, if it is one, has a capital: 'share (%)', but not 'z' or 'log10 p'."""
  return text[0].upper() + text[1:] if re.match(r'[a-z]{2,}(?![\w=])', text) else text


def draw_steps(ax: Any, rows: list[dict], name: str, **line) -> None:
  """A field by step: means over networks, with their range, where all of them have a value."""
  values = {fields['step']: [row[name] for row in own] for fields, own in grouped(rows, 'step')}
  known = {step: own for step, own in values.items() if None not in own}
  plotting.band(ax, np.array([*known]), np.array([*known.values()]).T, **line)


def log_steps(ax: Any, steps: list[int]) -> None:
  """Has steps, from 0, on a logarithmic axis, with ticks where there is room."""
  apart = [step for i, step in enumerate(steps) if i == 0 or step > 2 * steps[i - 1]]
  ax.set_xscale('symlog', linthresh=min(step for step in steps if step))
  ax.set_xticks(apart, map(str, apart))
  ax.minorticks_off()
  ax.set_xlabel('optimizer step')


def isolated(name: str) -> str:
  """A name between marks that keep letters from right to left from moving their neighbours."""
  return f'\u2068{name}\u2069'


def _shown(value):
  """A value on a page; of texts all characters are seen, and names that are isolated stay so."""
  if not isinstance(value, str) or isinstance(value, Markup):
    return value
  return Markup('').join(_ISOLATED.get(part) or plain(part)
                         for part in re.split('([\u2068\u2069])', value))


def template(name: str) -> Any:
  """The template in a file here, which may extend page.html; texts are escaped in it."""
  made = jinja2.Environment(
      loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, finalize=_shown,
      undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True,
      lstrip_blocks=True)
  made.filters |= {
      'base64': lambda content: base64.b64encode(content).decode(), 'quote': shlex.quote,
      'sha256': lambda text: hashlib.sha256(text.encode()).digest(),
      'flat': lambda text: re.sub('[\u2068\u2069]', '', text)}
  made.globals |= {'start': session.start(), 'figure': f'figure.{FORMAT.get()}'}
  return made.get_template(name)
