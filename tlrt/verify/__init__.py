"""``python -m tlrt verify``: every operation, on every device present, against its specification.

:mod:`tlrt.verify.command` is the command line, :mod:`tlrt.verify.verifier` checks cases on several devices,
:mod:`tlrt.verify.run` makes one call on a device, :mod:`tlrt.verify.inputs` reads a caller's own arrays as a case,
:mod:`tlrt.verify.report` is what a run found, :mod:`tlrt.verify.documents` the files that runs write.
"""
