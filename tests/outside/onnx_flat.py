"""A model as one list of nodes: what ONNX defines by other operators is replaced by its definition, branches are taken, and loops
are unrolled. What flows between the nodes, ONNX's reference evaluator tells, of the case's data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import numpy as np

from tests.outside.onnx_table import EXPRESSED, WHY_NOT, Computed
from tilec.torch.program import Unsupported

Scope = dict[str, str]  # the name here of what a block of nodes calls otherwise
MOST_ROUNDS = 64
RANDOM = ("RandomUniformLike", "RandomNormalLike", "RandomUniform", "RandomNormal", "Bernoulli", "Multinomial")


class Flat:
    """`known` are the values that depend on no data; parameters are among them. `values` are all known values."""

    def __init__(self, model: Any, values: Mapping[str, Any], parameters: Iterable[str]):
        from onnx import numpy_helper

        self.opsets = {d.domain: d.version for d in model.opset_import}
        self.nodes: list[Any] = []
        self.values = dict(values)
        self.known = {name: self.values[name] for name in parameters}
        self.scope: Scope = {}
        self._fresh = count()
        for tensor in model.graph.initializer:
            self.values[tensor.name] = self.known[tensor.name] = numpy_helper.to_array(tensor)
        self._given = model.graph.node

    def flatten(self) -> None:
        self._block(self._given, self.scope, "")

    def sources(self, name: str) -> set[str]:
        """What a value is made of: names that no node makes."""
        wanted, found = {name}, set[str]()
        for node in reversed(self.nodes):
            if wanted & {*node.output}:
                wanted |= {*node.input} - {""}
                found |= {*node.output}
        return wanted - found

    def _name(self, hint: str) -> str:
        return f"{hint}__{next(self._fresh)}"

    def _block(self, nodes: Iterable[Any], scope: Scope, prefix: str) -> None:
        for node in nodes:
            self._node(node, scope, prefix)

    def _node(self, proto: Any, scope: Scope, prefix: str) -> None:
        from onnx import NodeProto

        inputs = [scope.get(name, name) for name in proto.input]
        control = {"If": self._if, "Loop": self._loop, "Scan": self._scan}.get(proto.op_type)
        if control is not None:
            for name, result in zip(proto.output, control(proto, inputs, scope)):
                scope[name] = result
            return
        node = NodeProto()
        node.CopyFrom(proto)
        node.input[:] = inputs
        node.output[:] = [f"{prefix}{name}" if name else "" for name in proto.output]
        scope.update({a: b for a, b in zip(proto.output, node.output) if a != b})
        unknown = proto.op_type not in EXPRESSED and proto.op_type not in WHY_NOT and not self._all_known(node)
        body = self._definition(node) if unknown else None
        if body is None:
            self._append(node)
            return
        nodes, opsets = body
        mine, self.opsets = self.opsets, {**self.opsets, **opsets}
        inner: Scope = {}
        self._block(nodes, inner, self._name(proto.op_type) + "_")
        self.opsets = mine
        scope.update({a: inner[b] for a, b in zip(proto.output, node.output) if b in inner})

    def _all_known(self, node: Any) -> bool:
        read = node.input[:1] if node.op_type == "CastLike" else node.input  # the other one gives a type
        return all(name in self.known for name in read if name) and node.op_type not in RANDOM

    def _append(self, node: Any) -> None:
        outputs = [name for name in node.output if name]
        if any(name not in self.values for name in outputs):
            self._evaluate(node)
        if node.op_type in ("Shape", "Size", "Constant") or self._all_known(node):
            self.known |= {name: np.asarray(self.values[name]) for name in outputs if name in self.values}
        self.nodes.append(node)

    def _evaluate(self, node: Any) -> None:
        from onnx import GraphProto
        from onnx.reference import ReferenceEvaluator

        graph = GraphProto()
        graph.node.append(node)
        names = {name for name in node.input if name}
        if node.op_type in WHY_NOT:
            raise Unsupported(f"{node.op_type}: {WHY_NOT[node.op_type]}")
        if missing := [name for name in names if name not in self.values]:
            raise Unsupported(f"ONNX's evaluator does not tell {missing[0]}")
        for name in names:
            graph.input.add().name = name
        for name in node.output:
            if name:
                graph.output.add().name = name
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = ReferenceEvaluator(graph, opsets=self.opsets).run(None, {n: self.values[n] for n in names})
        except Exception as error:
            raise Unsupported(f"ONNX's evaluator has no {node.op_type}") from error
        self.values |= {o.name: v for o, v in zip(graph.output, found) if v is not None}

    def _definition(self, node: Any) -> tuple[list[Any], dict[str, int]] | None:
        """Nodes that an operator is defined by, and the versions of their operators."""
        from onnx import NodeProto, TypeProto, defs, helper
        from onnx.backend.test.case.node import function_testcase_helper

        version = self.opsets.get(node.domain, 1)
        try:
            schema = defs.get_schema(node.op_type, version, domain=node.domain)
        except Exception:
            return None
        if not (schema.has_function or schema.has_context_dependent_function):
            return None
        types = []
        for name in node.input:
            types.append(TypeProto())
            if name:
                value = self.values[name]
                dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
                types[-1] = helper.make_tensor_type_proto(dtype, value.shape)
        copy = NodeProto()
        copy.CopyFrom(node)
        imports = [helper.make_opsetid(node.domain, version)]
        bodies, _ = function_testcase_helper(copy, types, self._name("body"), imports)
        nodes, opsets = bodies[0]
        return nodes, {d.domain: d.version for d in opsets}

    # ---- control flow ----------------------------------------------------------------------------------------------------

    def _constant(self, value: Any) -> str:
        name = self._name("constant")
        self.values[name] = self.known[name] = np.asarray(value)
        return name

    def _made(self, op: str, inputs: list[str], **attributes: Any) -> str:
        from onnx import helper

        name = self._name(op)
        self._append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def _body(self, graph: Any, scope: Scope, arguments: Iterable[str]) -> list[str]:
        """The results of a block that is given these arguments."""
        from onnx import numpy_helper

        inner = {**scope, **dict(zip((i.name for i in graph.input), arguments))}
        for tensor in graph.initializer:
            inner[tensor.name] = self._constant(numpy_helper.to_array(tensor))
        self._block(graph.node, inner, self._name("block") + "_")
        return [inner.get(o.name, o.name) for o in graph.output]

    def _if(self, node: Any, inputs: list[str], scope: Scope) -> list[str]:
        branches = {a.name: a.g for a in node.attribute}
        if inputs[0] in self.known:
            taken = branches["then_branch" if self.known[inputs[0]].reshape(()) else "else_branch"]
            return self._body(taken, scope, [])
        taken, other = (self._body(branches[name], scope, []) for name in ("then_branch", "else_branch"))
        if any(np.shape(self.values[a]) != np.shape(self.values[b]) for a, b in zip(taken, other)):
            raise Computed(inputs[0], "If: a result whose shape depends on data")
        return [self._made("Where", [inputs[0], a, b]) for a, b in zip(taken, other)]

    def _loop(self, node: Any, inputs: list[str], scope: Scope) -> list[str]:
        body = node.attribute[0].g
        rounds, going, *carried = inputs
        for name in filter(None, (rounds, going)):
            if name not in self.known:
                raise Computed(name, "Loop: as many rounds as the data say")
        most = int(self.known[rounds].reshape(())) if rounds else MOST_ROUNDS + 1
        go, done, rows = bool(self.known[going].reshape(())) if going else True, 0, []
        while go and done < most:
            if done == MOST_ROUNDS:
                raise Unsupported(f"Loop: more than {MOST_ROUNDS} rounds, each of which would be equations of its own")
            again, *results = self._body(body, scope, [self._constant(np.int64(done)), self._constant(True), *carried])
            if again not in self.known:
                raise Computed(again, "Loop: as many rounds as the data say")
            carried, go, done = results[: len(carried)], bool(self.known[again].reshape(())), done + 1
            rows.append(results[len(carried) :])
        return [*carried, *(self._stacked(row, 0) for row in zip(*rows))]

    def _scan(self, node: Any, inputs: list[str], scope: Scope) -> list[str]:
        from onnx import helper

        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if self.opsets.get("", 9) < 9:
            raise Unsupported("Scan: of operator set 8, over batches of several lengths")
        read = attributes["num_scan_inputs"]
        carried, scanned = inputs[:-read], inputs[-read:]
        made = len(node.output) - len(carried)
        axes, back = attributes.get("scan_input_axes", [0] * read), attributes.get("scan_input_directions", [0] * read)
        out_axes, out_back = (attributes.get(f"scan_output_{k}", [0] * made) for k in ("axes", "directions"))
        rounds, rows = self.values[scanned[0]].shape[axes[0]], []
        if rounds > MOST_ROUNDS:
            raise Unsupported(f"Scan: more than {MOST_ROUNDS} rounds, each of which would be equations of its own")
        for n in range(rounds):
            at = [self._constant(np.int64(rounds - 1 - n if b else n)) for b in back]
            parts = [self._made("Gather", [x, i], axis=a) for x, i, a in zip(scanned, at, axes)]
            results = self._body(attributes["body"], scope, [*carried, *parts])
            carried = results[: len(carried)]
            rows.append(results[len(carried) :])
        columns = zip(zip(*rows), out_axes, out_back)
        return [*carried, *(self._stacked(column[::-1] if back else column, axis) for column, axis, back in columns)]

    def _stacked(self, names: Iterable[str], axis: int) -> str:
        parts = []
        for name in names:
            shape = list(np.shape(self.values[name]))
            shape.insert(axis % (len(shape) + 1), 1)
            parts.append(self._made("Reshape", [name, self._constant(np.array(shape, np.int64))]))
        return self._made("Concat", parts, axis=axis)
