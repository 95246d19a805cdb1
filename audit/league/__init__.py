"""The league: what the judge (:mod:`tlspec.judge`) says of other libraries' operations, and why."""
