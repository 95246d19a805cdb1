"""The declarations of the C headers as text, and the hash that says whether a library was built from the same ones."""

import hashlib
import re


def declarations(header: str) -> str:
    """A header as cffi reads it: comments, preprocessor lines and linkage marks removed, white space folded."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M).replace("TL_API ", "")
    return "\n".join(line for line in (" ".join(chunk.split()) + ";" for chunk in text.split(";")) if line != ";")


def abi_hash(*headers: str) -> str:
    """SHA-256, in hex, over the declarations of the headers in order."""
    return hashlib.sha256("\n".join(map(declarations, headers)).encode()).hexdigest()
