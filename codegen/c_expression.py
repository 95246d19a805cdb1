"""Expressions of the signature grammar in C, over uint64_t locals and float scalars named ``NAME_``."""

import ast
import re

from tlspec.signature import Array, Signature


class _ToC(ast.NodeVisitor):
    """Translates an expression of the grammar to C over uint64_t locals and float scalars."""

    def __init__(self, sig: Signature):
        self.lists = {d[1:] for d in sig.dims if d.startswith("*")} | {p.name for p in sig.params if p.kind == "dims"}
        self.arrays = {a.name: _count(a, sig) for a in sig.inputs if a.host}

    def visit_Name(self, node: ast.Name) -> str:
        if node.id in self.arrays:  # a host array is a pointer and a length
            return f"{node.id}, {self.arrays[node.id]}"
        return f"&{node.id}_" if node.id in self.lists else f"{node.id}_"

    def visit_Constant(self, node: ast.Constant) -> str:
        return f"{node.value}u" if isinstance(node.value, int) else repr(node.value)

    def visit_List(self, node: ast.List) -> str:
        items = [str(x.value) if isinstance(x, ast.Constant) else f"(int64_t){self.visit(x)}" for x in node.elts]
        return f"{{{len(items)}, {{{', '.join(items)}}}}}"

    def visit_BinOp(self, node: ast.BinOp) -> str:
        op = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%"}[type(node.op)]
        return f"({self.visit(node.left)} {op} {self.visit(node.right)})"

    def visit_BoolOp(self, node: ast.BoolOp) -> str:
        return "(" + (" && " if isinstance(node.op, ast.And) else " || ").join(self.visit(v) for v in node.values) + ")"

    def visit_UnaryOp(self, node: ast.UnaryOp) -> str:
        return f"!({self.visit(node.operand)})" if isinstance(node.op, ast.Not) else f"-({self.visit(node.operand)})"

    def visit_Compare(self, node: ast.Compare) -> str:
        names = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
        left, parts = node.left, []
        for op, right in zip(node.ops, node.comparators, strict=True):
            parts.append(f"{self.visit(left)} {names[type(op)]} {self.visit(right)}")
            left = right
        return parts[0] if len(parts) == 1 else "(" + " && ".join(parts) + ")"

    def visit_Call(self, node: ast.Call) -> str:
        assert isinstance(node.func, ast.Name)
        if node.func.id == "given":
            return f"tl_given({ast.unparse(node.args[0])})"  # the handle itself
        return f"tl_{node.func.id}({', '.join(self.visit(a) for a in node.args)})"

    def generic_visit(self, node: ast.AST) -> str:
        raise ValueError(f"the grammar has no {type(node).__name__}")


def _count(a: Array, sig: Signature) -> str:
    """The element count of a host array as a C expression."""
    plain = Signature(tuple(x for x in sig.inputs if not x.host), sig.params, sig.outputs, sig.dims)
    return f"TL_PRODUCT({', '.join(to_c(d, plain) for d in a.dims)})"


def to_c(expression: str, sig: Signature) -> str:
    text = str(_ToC(sig).visit(ast.parse(expression, mode="eval").body))
    return text[1:-1] if re.fullmatch(r"\([^()]*\)", text) else text


def c_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
