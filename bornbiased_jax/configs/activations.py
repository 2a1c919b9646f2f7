"""The activations of MLPs by name. JAX is imported when one is computed, not before."""

from collections.abc import Callable

from bornbiased_jax.errors import InputError


class _Activations(dict[str, Callable]):
  """Functions by name, each of which stays what it is: compiled programs go by the name."""

  def __setitem__(self, name, function):
    if not isinstance(name, str) or not name.isidentifier():
      raise InputError(f'activation {name!r} must be a word, such as squared_relu')
    if self.get(name, function) is not function:
      raise InputError(f'activation {name!r} is another function already; choose another name')
    super().__setitem__(name, function)


def _of_jax(name, **arguments):
  def activation(x):
    import jax
    return getattr(jax.nn, name)(x, **arguments)

  return activation


def _squared_relu(x):
  """ReLU squared, of Primer (So et al. 2021) and Nemotron."""
  import jax
  return jax.numpy.square(jax.nn.relu(x))


# Elementwise functions. One's own is added by ACTIVATIONS['mine'] = function.
ACTIVATIONS = _Activations(
    gelu_tanh=_of_jax('gelu', approximate=True), gelu=_of_jax('gelu', approximate=False),
    silu=_of_jax('silu'), relu=_of_jax('relu'), squared_relu=_squared_relu, tanh=_of_jax('tanh'))
