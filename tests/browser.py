"""Chromium without a screen, for tests of pages: it is told by JSON through pipes what to do."""

import base64
import contextlib
import json
import os
import shutil
import subprocess

FOUND = shutil.which('chromium') or shutil.which('chromium-browser')
_FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
          '--disable-extensions', '--disable-background-networking', '--remote-debugging-pipe']


class Page:
  """A page of the browser, which shows one file after the other.

  Attributes:
    errors: what the browser has logged, and exceptions of scripts.
  """

  def __init__(self, send, receive):
    self.errors, self._send, self._receive, self._count = [], send, receive, 0
    self._session = None
    target = self('Target.createTarget', url='about:blank')['targetId']
    self._session = self('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
    for domain in ('Page', 'Runtime', 'Log'):
      self(f'{domain}.enable')

  def __call__(self, method, **params):
    """The result of a method of the DevTools protocol."""
    self._count += 1
    number, session = self._count, {'sessionId': self._session} if self._session else {}
    self._send({'id': number, 'method': method, 'params': params} | session)
    while (said := self._receive()).get('id') != number:
      self._note(said)
    assert 'error' not in said, said
    return said['result']

  def _note(self, said):
    if said.get('method') in ('Log.entryAdded', 'Runtime.exceptionThrown',
                              'Runtime.consoleAPICalled'):
      self.errors.append(said['params'])

  def open(self, path, width, scheme='light', javascript=True):
    """Shows a file in a window of a width."""
    self('Emulation.setDeviceMetricsOverride', width=width, height=900, deviceScaleFactor=1,
         mobile=width < 500)
    self('Emulation.setScriptExecutionDisabled', value=not javascript)
    self('Emulation.setEmulatedMedia', media='', features=[
        {'name': 'prefers-color-scheme', 'value': scheme}])
    self('Page.navigate', url=path.resolve().as_uri())
    while (said := self._receive()).get('method') != 'Page.loadEventFired':
      self._note(said)

  def js(self, expression):
    """The value of an expression of JavaScript."""
    found = self('Runtime.evaluate', expression=expression, returnByValue=True)
    assert 'exceptionDetails' not in found, found
    return found['result'].get('value')

  def pdf(self):
    return base64.b64decode(self('Page.printToPDF', paperWidth=8.27, paperHeight=11.69)['data'])


@contextlib.contextmanager
def opened():
  """A page of a browser, which ends with the `with` block."""
  (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
  # The browser reads its file 3, and writes to its file 4.
  command = ['bash', '-c', f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}', FOUND, *_FLAGS]
  process = subprocess.Popen(command, pass_fds=(to_read, from_write), stderr=subprocess.DEVNULL)
  os.close(to_read), os.close(from_write)
  with os.fdopen(to_write, 'wb') as writer, os.fdopen(from_read, 'rb') as reader:
    rest = bytearray()

    def send(message):
      writer.write(json.dumps(message).encode() + b'\0')
      writer.flush()

    def receive():
      while b'\0' not in rest:
        read = reader.read1()
        assert read, 'the browser has ended'
        rest.extend(read)
      message, _, after = bytes(rest).partition(b'\0')
      rest[:] = after
      return json.loads(message)

    try:
      yield Page(send, receive)
    finally:
      process.kill()
      process.wait()
