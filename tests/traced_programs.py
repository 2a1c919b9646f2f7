"""Traced programs of small networks, and the multiplications that they make."""

import functools
import math

import jax

from textbook import random_params, random_tokens, read


def equations(jaxpr, repeats=1):
  """Every primitive operation, and how often it runs."""
  for equation in getattr(jaxpr, 'jaxpr', jaxpr).eqns:
    yield equation, repeats
    inner = repeats * (equation.params['length'] if equation.primitive.name == 'scan' else 1)
    for value in equation.params.values():
      if hasattr(getattr(value, 'jaxpr', value), 'eqns'):
        yield from equations(value, inner)


def matmuls(jaxpr):
  return [pair for pair in equations(jaxpr) if pair[0].primitive.name == 'dot_general']


def multiplications(jaxpr):
  total = 0
  for equation, repeats in matmuls(jaxpr):
    contracted = equation.params['dimension_numbers'][0][0]
    shape = equation.invars[0].aval.shape
    total += repeats * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)
  return total


def traced(config, names):
  trace = jax.make_jaxpr(functools.partial(read, config, names=names))
  return trace(random_params(config), random_tokens(config))
