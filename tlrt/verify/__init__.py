"""``python -m tlrt verify``: every operation, on every device present, against its specification.

:mod:`tlrt.verify.command` is the command line and the run, :mod:`tlrt.verify.run` one call on a device, :mod:`tlrt.verify.inputs`
a caller's own arrays as a case, :mod:`tlrt.verify.report` what a run found.
"""
