"""The calls of each library: functions whose parameters are named as the row's inputs, dimensions and parameters.

A call is what a user of the library would write for the row. Where the library's own definition differs in one point (an index
out of range, a mask of numbers), the call adds what is missing; where it differs in more, there is no call, and
``LEFT_OUT`` of the module says why. Calls of more than one operation of a library are named in ``COMPOSED``: in formats narrower
than float32 each of their steps rounds."""
