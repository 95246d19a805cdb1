"""Drawn test cases of operations. :mod:`tlspec.draw.cases` says how they are drawn and :mod:`tlspec.draw.data` with what values;
:class:`tlspec.draw.draws.Draw` is what a row's own draw is given. Nothing that computes imports this package."""
