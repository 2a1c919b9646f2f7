"""A verdict as one HTML page that stands for itself, to be sent to those who must decide."""

import base64
import math
from pathlib import Path

from bornbiased_jax.lineage.sentences import p_text

from . import templates

TEMPLATE = Path(__file__).with_name('verdict.html')
COLORS = {'related': '#B0430A', 'unrelated': '#00588F', 'inconclusive': '#666666'}


def render(report: dict, png: bytes) -> str:
  """The page of a report of `verdict.compare`; names in it are escaped.

  Args:
    report: the report, with settings and environment.
    png: the figure that the page contains, as a PNG file has it.
  """
  return templates.template(TEMPLATE).render(
      report=report, png=base64.b64encode(png).decode(), color=COLORS[report['verdict']],
      p_text=lambda p_value: p_text(math.log10(p_value)))
