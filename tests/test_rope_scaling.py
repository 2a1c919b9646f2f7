"""A way of scaling RoPE has the fields that it needs, and no others."""

import dataclasses

import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.rope_scaling import RopeScaling

LLAMA3 = dict(kind='llama3', factor=8.0, original_length=8192, slow=1.0, fast=4.0)
YARN = LLAMA3 | dict(kind='yarn', attention_factor=1.2)


@pytest.mark.parametrize('fields, named', [
    (dict(kind='ntk', factor=2.0), "kind='ntk' is not one of linear"),
    (dict(kind='linear', factor=-2.0), 'factor=-2.0 must be'),
    (dict(kind='linear', factor=0.5), 'factor=0.5 must be at least 1'),
    (dict(kind='linear', factor=True), 'factor=True must be'),
    (dict(kind='linear', factor=2.0, slow=1.0), "slow=1.0 has no meaning with kind='linear'"),
    (dict(kind='llama3', factor=2.0, slow=1.0, fast=2.0), 'original_length=None'),
    (LLAMA3 | dict(fast=1.0), 'slow=1.0 must be below fast=1.0'),
    (LLAMA3 | dict(original_length=8.5), 'original_length=8.5 must be a whole number'),
    (LLAMA3 | dict(attention_factor=1.2), 'attention_factor=1.2'),
    (YARN | dict(attention_factor=float('nan')), 'attention_factor=nan must be'),
])
def test_impossible(fields, named):
  with pytest.raises(InputError) as error:
    RopeScaling(**fields)
  assert named in str(error.value) and '\n' not in str(error.value)


@pytest.mark.parametrize('fields', [LLAMA3, YARN, dict(kind='linear', factor=1.0)], ids=str)
def test_what_is_given_is_kept(fields):
  scaling = RopeScaling(**fields)
  assert RopeScaling(**dataclasses.asdict(scaling)) == scaling and hash(scaling)
  assert {name: getattr(scaling, name) for name in fields} == fields
